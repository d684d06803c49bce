// With many rows the table is expanded for each block of the kernel, so that a code of the input
// selects numbers that lie side by side; with few rows a row of the table is looked up number by
// number. Both add the same integers: every bit is the same.
#include "table_engine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "../generic/internal.h"
#include "parallel.h"
#include "rows.h"

namespace og {
namespace {

constexpr int64_t kBlock = 8;         // rows of the kernel that are expanded at once: half the cache
constexpr int64_t kTileRows = 8192;   // of the input, whose sums stay in the caches
constexpr int64_t kChunkRows = 64;    // that one thread gathers at once
constexpr int64_t kFewRows = 48;      // below, expanding takes longer than it saves
constexpr int64_t kMinColumns = 8;    // likewise

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

int32_t number(int64_t code, int64_t count, int32_t is_signed) {
  return static_cast<int32_t>(is_signed && code >= count / 2 ? code - count : code);
}

}  // namespace

// The table itself where it is whole and has no zero points, else all 256 x 256 products.
Products::Products(const og_table &t, char *scratch)
    : entries(static_cast<const int32_t *>(t.entries)),
      transposed(reinterpret_cast<int16_t *>(scratch + kCodes * kCodes * 4)) {
  if (t.rows < kCodes || t.columns < kCodes || t.zero_a || t.zero_b) {
    int32_t *filled = reinterpret_cast<int32_t *>(scratch);
    fill(t, filled);
    entries = filled;
  }
  int32_t low = INT32_MAX, high = INT32_MIN;
  for (int64_t a = 0; a < t.rows; a++)
    for (int64_t b = 0; b < t.columns; b++) {
      low = std::min(low, entries[a * kCodes + b]);
      high = std::max(high, entries[a * kCodes + b]);
    }
  largest = std::max(std::abs(low), std::abs(high));
  if (low < INT16_MIN || high > INT16_MAX) {
    centre = low + 32768;
    is_short = static_cast<int64_t>(high) - low <= 65535;
  }
}

// f(a, b) - zero_a b - zero_b a + zero_a zero_b, as one number and a multiple of b.
void Products::fill(const og_table &t, int32_t *to) {
  std::memset(to, 0, kCodes * kCodes * sizeof *to);
  for (int64_t a = 0; a < t.rows; a++, to += kCodes) {
    const int32_t of_row = t.zero_b * (t.zero_a - number(a, t.rows, t.signed_codes));
    const int32_t *from = static_cast<const int32_t *>(t.entries) + a * t.columns;
    for (int64_t b = 0; b < t.columns; b++) to[b] = from[b] + of_row;
    if (t.zero_a)
      for (int64_t b = 0; b < t.columns; b++) to[b] -= t.zero_a * number(b, t.columns, t.signed_codes);
  }
}

// By squares, so that neither side leaves the first-level cache.
void Products::transpose() {
  constexpr int64_t kSide = 16;
  for (int64_t b = 0; b < kCodes; b += kSide)
    for (int64_t a = 0; a < kCodes; a += kSide)
      for (int64_t i = b; i < b + kSide; i++)
        for (int64_t j = a; j < a + kSide; j++)
          transposed[i * kCodes + j] = static_cast<int16_t>(entries[j * kCodes + i] - centre);
}

int64_t Products::terms() const {
  int64_t term = std::max<int64_t>(std::abs(centre) + 65536, largest);
  return (INT32_MAX - 65536) / term;
}

bool expands(const Products &products, int64_t m, int64_t n, int engine) {
  const bool few = m < kFewRows || n < kMinColumns;
  return products.is_short && (engine == OG_TABLE_EXPANDED || (engine == OG_TABLE_AUTO && !few));
}

Layout lay_out(int64_t m, int64_t k, int64_t n, int threads) {
  Layout l;
  l.threads = threads;
  l.columns_padded = round_up(std::max<int64_t>(n, 1), OG_TABLE_COLUMNS);
  l.blocks = (k + kBlock - 1) / kBlock;
  // One tile for every thread, unless the columns are enough to share.
  int64_t shares = std::max<int64_t>(1, l.threads / (l.columns_padded / OG_TABLE_COLUMNS));
  l.tile_rows = std::max<int64_t>(1, std::min(kTileRows, m));
  int64_t tile = round_up((l.tile_rows + shares - 1) / shares, kChunkRows);
  l.kernel_bytes = aligned(static_cast<size_t>(k * l.columns_padded));
  l.codes_bytes = aligned(static_cast<size_t>(l.tile_rows * std::max<int64_t>(k, 1)));
  size_t gathered = aligned(static_cast<size_t>(kChunkRows * k));
  size_t sums = aligned(static_cast<size_t>(tile * OG_TABLE_COLUMNS * 4));
  size_t expanded = static_cast<size_t>(kBlock * OG_TABLE_CODES * OG_TABLE_COLUMNS * 2);
  l.worker_bytes = std::max(gathered, sums + expanded) +
                   aligned(static_cast<size_t>(std::max<int64_t>(n, 1)) * 4);
  return l;
}

namespace {

class Engine {
 public:
  Engine(const Products &products, const Problem &problem, const Layout &layout, char *scratch)
      : products_(products), p_(problem), l_(layout),
        kernel_(reinterpret_cast<uint8_t *>(scratch)),
        codes_(reinterpret_cast<uint8_t *>(scratch + layout.kernel_bytes)),
        workers_(scratch + layout.kernel_bytes + layout.codes_bytes) {}

  void run(int engine) {
    if (!expands(products_, p_.m, p_.n, engine)) return by_rows();
    pack_kernel();
    for (int64_t first = 0; first < p_.m; first += l_.tile_rows)
      expanded(first, std::min(l_.tile_rows, p_.m - first));
  }

 private:
  char *worker(int index) const { return workers_ + static_cast<size_t>(index) * l_.worker_bytes; }

  // Rows of the first matrix where they lie, or gathered into the scratch.
  const uint8_t *rows_of(int64_t first, int64_t count, char *scratch) const {
    if (p_.rows) return p_.rows + first * p_.k;
    uint8_t *rows = reinterpret_cast<uint8_t *>(scratch);
    p_.gather(first, count, rows);
    return rows;
  }

  // Columns beyond the kernel's repeat the code 0; their sums are thrown away.
  void pack_kernel() {
    for (int64_t k = 0; k < p_.k; k++) {
      uint8_t *to = kernel_ + k * l_.columns_padded;
      std::memcpy(to, p_.kernel + k * p_.kernel_stride, static_cast<size_t>(p_.n));
      std::memset(to + p_.n, 0, static_cast<size_t>(l_.columns_padded - p_.n));
    }
  }

  // Rows of codes as [block of k][row][k in the block].
  void gather(int64_t first, int64_t count) {
    int64_t chunks = (count + kChunkRows - 1) / kChunkRows;
    parallel_for(chunks, l_.threads, [&](int64_t chunk, int index) {
      int64_t from = chunk * kChunkRows, some = std::min(kChunkRows, count - from);
      const uint8_t *rows = rows_of(first + from, some, worker(index));
      for (int64_t k = 0; k < p_.k; k += kBlock) {
        int64_t size = std::min(kBlock, p_.k - k);
        uint8_t *to = codes_ + k * count + from * size;
        if (size == kBlock)  // of a size that the compiler knows
          for (int64_t i = 0; i < some; i++, to += kBlock) std::memcpy(to, rows + i * p_.k + k, kBlock);
        else
          for (int64_t i = 0; i < some; i++, to += size)
            std::memcpy(to, rows + i * p_.k + k, static_cast<size_t>(size));
      }
      return 0;
    });
  }

  void expanded(int64_t first, int64_t count) {
    gather(first, count);
    int64_t columns = l_.columns_padded / OG_TABLE_COLUMNS;
    int64_t shares = std::max<int64_t>(1, l_.threads / columns);
    int64_t tile = round_up((count + shares - 1) / shares, kChunkRows);
    shares = (count + tile - 1) / tile;
    parallel_for(columns * shares, l_.threads, [&](int64_t job, int index) {
      int64_t from = job % shares * tile, some = std::min(tile, count - from);
      columns_of(first, count, from, some, job / shares * OG_TABLE_COLUMNS, worker(index));
      return 0;
    });
  }

  // The sums of rows [from, from + some) of a tile for the columns from `column` on.
  void columns_of(int64_t first, int64_t count, int64_t from, int64_t some, int64_t column, char *scratch) {
    int16_t *block = reinterpret_cast<int16_t *>(scratch);
    int32_t *sums = reinterpret_cast<int32_t *>(scratch + kBlock * OG_TABLE_CODES * OG_TABLE_COLUMNS * 2);
    const int64_t n = std::min<int64_t>(OG_TABLE_COLUMNS, p_.n - column);
    const int64_t most = std::max<int64_t>(kBlock, products_.terms() / kBlock * kBlock);
    for (int64_t start = 0; start < p_.k; start += most) {
      int64_t stop = std::min(p_.k, start + most);
      std::fill(sums, sums + some * OG_TABLE_COLUMNS, static_cast<int32_t>((stop - start) * products_.centre));
      for (int64_t k = start; k < stop; k += kBlock) {
        int64_t size = std::min(kBlock, p_.k - k);
        og_active->expand(block, products_.transposed, kernel_ + k * l_.columns_padded + column,
                          l_.columns_padded, size, p_.used);
        og_active->accumulate(sums, block, codes_ + k * count + from * size, some, size);
      }
      for (int64_t i = 0; i < some; i++)
        p_.put(first + from + i, column, n, sums + i * OG_TABLE_COLUMNS, start == 0);
    }
  }

  void by_rows() {
    const int64_t most = products_.terms(), parts = p_.m >= l_.threads ? 1 : l_.threads;
    const int64_t width = (p_.n + parts - 1) / parts;
    parallel_for(p_.m * parts, l_.threads, [&](int64_t job, int index) {
      int64_t row = job / parts, column = job % parts * width, n = std::min(width, p_.n - column);
      int32_t *sums = reinterpret_cast<int32_t *>(worker(index) + aligned(static_cast<size_t>(p_.k)));
      if (n <= 0) return 0;
      const uint8_t *codes = rows_of(row, 1, worker(index));
      for (int64_t start = 0; start < p_.k; start += most) {
        std::fill(sums, sums + n, 0);
        look_up(codes, start, std::min(p_.k, start + most), column, n, sums);
        p_.put(row, column, n, sums, start == 0);
      }
      return 0;
    });
  }

  // Four rows of the kernel at a time: a sum is read and written once for them.
  void look_up(const uint8_t *codes, int64_t k, int64_t stop, int64_t column, int64_t n,
               int32_t *__restrict sums) const {
    auto entries = [&](int64_t row) { return products_.entries + kCodes * codes[row]; };
    auto kernel = [&](int64_t row) { return p_.kernel + row * p_.kernel_stride + column; };
    for (; k + 4 <= stop; k += 4) {
      const int32_t *const rows[] = {entries(k), entries(k + 1), entries(k + 2), entries(k + 3)};
      const uint8_t *const weights[] = {kernel(k), kernel(k + 1), kernel(k + 2), kernel(k + 3)};
      og_table_look_up(sums, rows, weights, n);
    }
    for (; k < stop; k++) {
      const int32_t *e = entries(k);
      const uint8_t *w = kernel(k);
      for (int64_t j = 0; j < n; j++) sums[j] += e[w[j]];
    }
  }

  const Products &products_;
  const Problem &p_;
  const Layout &l_;
  uint8_t *kernel_, *codes_;
  char *workers_;
};

}  // namespace

void run_table(const Products &products, const Problem &problem, const Layout &layout, char *scratch,
               int engine) {
  Engine(products, problem, layout, scratch).run(engine);
}

}  // namespace og
