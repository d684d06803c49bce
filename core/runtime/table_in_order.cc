#include "table_in_order.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>

#include "conv2d.h"
#include "float_environment.h"
#include "parallel.h"
#include "runs.h"

namespace og {
namespace {

constexpr uint16_t kNothing = UINT16_MAX;  // the code of a padded tap, which adds nothing

bool is_power_of_two(int64_t size, int64_t least, int64_t most) {
  return size >= least && size <= most && (size & (size - 1)) == 0;
}

int bits_of(int64_t size) {
  int bits = 0;
  while (int64_t{1} << bits < size) bits++;
  return bits;
}

// One row or column: codes, and of real operands what their mantissas are multiplied by.
struct Line {
  uint16_t *codes;
  double *scales;

  static size_t bytes(int64_t k) { return aligned(static_cast<size_t>(k) * 2) + aligned(static_cast<size_t>(k) * 8); }
  Line(char *at, int64_t k)
      : codes(reinterpret_cast<uint16_t *>(at)),
        scales(reinterpret_cast<double *>(at + aligned(static_cast<size_t>(k) * 2))) {}
};

// One matrix product. `gather` writes a row of the first operand, as codes (U16) or as numbers
// (F32); element (l, j) of the second lies at kernel[l * row + j * column].
struct Terms {
  int64_t m, k, n;
  std::function<void(int64_t row, void *to)> gather;
  const void *kernel;
  int64_t row, column;
  void *out;
  int64_t step;  // from one column of the output to the next
  std::function<int64_t(int64_t row)> place;
};

class InOrder {
 public:
  InOrder(const og_call &call, char *scratch, og_message *message)
      : call_(call), t_(*call.table), scratch_(scratch), message_(message) {}

  og_status run(const Terms &p) {
    for (int64_t j = 0; j < p.n; j++)
      if (og_status status = read_column(p, j)) return status;
    char *workers = scratch_ + static_cast<size_t>(p.n) * Line::bytes(p.k);
    return static_cast<og_status>(parallel_for(p.m, call_.threads, [&](int64_t i, int worker) -> int {
      FloatEnvironment environment;
      return of_row(p, i, workers + static_cast<size_t>(worker) * worker_bytes(p.k));
    }));
  }

  // A row as it is gathered, its line, and its terms.
  static size_t worker_bytes(int64_t k) {
    return aligned(static_cast<size_t>(k) * 4) + Line::bytes(k) + aligned(static_cast<size_t>(k) * 8);
  }

 private:
  bool takes_numbers() const { return call_.operand_dtype == OG_F32; }
  Line column(const Terms &p, int64_t j) const {
    return Line(scratch_ + static_cast<size_t>(j) * Line::bytes(p.k), p.k);
  }

  og_status read_column(const Terms &p, int64_t j) {
    const Line line = column(p, j);
    for (int64_t l = 0; l < p.k; l++) {
      const int64_t at = l * p.row + j * p.column;
      if (takes_numbers()) {
        og_split_mantissas(static_cast<const float *>(p.kernel) + at, 1, bits_of(t_.columns),
                           line.codes + l, line.scales + l);
      } else {
        line.codes[l] = static_cast<const uint8_t *>(p.kernel)[at];
        if (line.codes[l] >= t_.columns) return refuse_code("kernel", line.codes[l], t_.columns);
      }
    }
    return OG_OK;
  }

  og_status of_row(const Terms &p, int64_t i, char *scratch) {
    const Line line(scratch + aligned(static_cast<size_t>(p.k) * 4), p.k);
    if (takes_numbers()) {
      p.gather(i, scratch);
      og_split_mantissas(reinterpret_cast<float *>(scratch), p.k, bits_of(t_.rows), line.codes, line.scales);
    } else {
      p.gather(i, line.codes);
      for (int64_t l = 0; l < p.k; l++)
        if (line.codes[l] >= t_.rows && line.codes[l] != kNothing)
          return refuse_code("input", line.codes[l], t_.rows);
    }
    int64_t *terms = reinterpret_cast<int64_t *>(scratch + aligned(static_cast<size_t>(p.k) * 4) + Line::bytes(p.k));
    const int64_t place = p.place(i);
    for (int64_t j = 0; j < p.n; j++) {
      const int64_t at = place + j * p.step;
      if (t_.entries_dtype == OG_F64) {
        static_cast<double *>(p.out)[at] = real_sum(line, column(p, j), p.k);
      } else if (og_status status = sum(line, column(p, j), p.k, terms, static_cast<int64_t *>(p.out) + at)) {
        return status;
      }
    }
    return OG_OK;
  }

  double real_sum(const Line &a, const Line &b, int64_t k) const {
    const double *entries = static_cast<const double *>(t_.entries);
    double sum = 0;
    if (takes_numbers()) {
      for (int64_t l = 0; l < k; l++)
        sum += entries[a.codes[l] * t_.columns + b.codes[l]] * (a.scales[l] * b.scales[l]);
    } else {
      for (int64_t l = 0; l < k; l++)
        if (a.codes[l] != kNothing) sum += entries[a.codes[l] * t_.columns + b.codes[l]];
    }
    return sum;
  }

  og_status sum(const Line &a, const Line &b, int64_t k, int64_t *terms, int64_t *to) {
    const int32_t *entries = static_cast<const int32_t *>(t_.entries);
    const og_accumulator &accumulator = *t_.accumulator;
    int64_t count = 0, sum = 0;
    for (int64_t l = 0; l < k; l++)
      if (a.codes[l] != kNothing) terms[count++] = entries[a.codes[l] * t_.columns + b.codes[l]];
    if (accumulator.adder) {
      const int64_t bad = call_adder(*accumulator.adder, terms, count, &sum);
      if (bad >= 0) return refuse_sum(sum, terms[bad]);
    } else {
      for (int64_t l = 0; l < count; l++)
        sum = std::min(std::max(sum + terms[l], accumulator.low), accumulator.high);
    }
    *to = sum;
    return OG_OK;
  }

  static int64_t call_adder(const og_function &f, const int64_t *terms, int64_t count, int64_t *sum) {
    std::unique_lock<std::mutex> guard;
    if (!f.thread_safe) guard = std::unique_lock<std::mutex>(*f.lock);
    return og_fold(f.address, f.operand, f.scalar_return, terms, count, sum);
  }

  og_status refuse_code(const char *operand, int code, int64_t limit) {
    std::lock_guard<std::mutex> guard(failing_);
    return og_fail(message_, OG_INVALID_ARGUMENT, "the %s holds the code %d; the table has codes below %lld",
                   operand, code, (long long)limit);
  }

  og_status refuse_sum(int64_t sum, int64_t term) {
    const og_function &f = *t_.accumulator->adder;
    std::lock_guard<std::mutex> guard(failing_);
    return og_fail(message_, OG_INVALID_ARGUMENT,
                   "%s: the sum %lld and the product %lld are not both values of its argument type %s; "
                   "give an adder of a wider type, or fewer products",
                   f.symbol.c_str(), (long long)sum, (long long)term, og_dtype_name(f.operand));
  }

  const og_call &call_;
  const og_table &t_;
  char *scratch_;
  og_message *message_;
  std::mutex failing_;
};

}  // namespace

bool is_in_order(const og_table &t) { return t.accumulator || t.entries_dtype == OG_F64; }

og_status check_in_order(const og_call &call, og_message *message) {
  const og_table &t = *call.table;
  const bool real = t.entries_dtype == OG_F64, numbers = call.operand_dtype == OG_F32;
  const int64_t least = numbers ? 2 : 4, most = numbers ? 2048 : 256;
  if (!is_power_of_two(t.rows, least, most) || !is_power_of_two(t.columns, least, most))
    return og_fail(message, OG_INVALID_ARGUMENT,
                   "a table of %lld x %lld products; each size must be a power of two from %lld to %lld",
                   (long long)t.rows, (long long)t.columns, (long long)least, (long long)most);
  const og_dtype result = real ? OG_F64 : OG_I64;
  if ((!numbers && call.operand_dtype != OG_U8) || (numbers && !real) || call.result_dtype != result)
    return og_fail(message, OG_INVALID_ARGUMENT,
                   "products of %s by this table, added in their order, do not give %s",
                   og_dtype_name(call.operand_dtype), og_dtype_name(call.result_dtype));
  if (real && t.accumulator)
    return og_fail(message, OG_UNIMPLEMENTED, "real products are added in double, by no accumulator");
  if (!t.accumulator) return OG_OK;
  if (t.accumulator->low > 0 || t.accumulator->high < 0)
    return og_fail(message, OG_INVALID_ARGUMENT, "an accumulator from %lld to %lld does not hold 0",
                   (long long)t.accumulator->low, (long long)t.accumulator->high);
  const og_function *f = t.accumulator->adder;
  auto whole = [](og_dtype dtype) { return dtype >= OG_I8 && dtype <= OG_U64; };
  if (f && (f->kind != Kind::scalar || !whole(f->operand) || !whole(f->scalar_return)))
    return og_fail(message, OG_INVALID_ARGUMENT,
                   "%s is no adder: a C function of two integers that returns one is needed", f->symbol.c_str());
  return OG_OK;
}

int in_order_threads(const og_table &t) {
  const bool alone = t.accumulator && t.accumulator->adder && !t.accumulator->adder->thread_safe;
  return alone ? 1 : std::max(1, og_threads());
}

size_t in_order_scratch(int64_t k, int64_t n, int threads) {
  return static_cast<size_t>(n) * Line::bytes(k) + static_cast<size_t>(threads) * InOrder::worker_bytes(k);
}

og_status run_in_order_matmul(const og_call &call, const og_matmul_spec &s, const void *a,
                              const void *b, void *out, char *scratch, og_message *message) {
  count_run(OG_RAN_IN_ORDER);
  const og_dtype dtype = call.operand_dtype;
  const int64_t size = static_cast<int64_t>(og_dtype_size(dtype));
  for (int64_t i = 0; i < s.batches; i++) {
    const char *left = static_cast<const char *>(a) + (s.a_index ? s.a_index[i] : i) * s.m * s.k * size;
    const char *right = static_cast<const char *>(b) + (s.b_index ? s.b_index[i] : i) * s.k * s.n * size;
    const int64_t row = s.transpose_a ? 1 : s.k, next = s.transpose_a ? s.m : 1;
    auto gather = [&](int64_t at, void *to) {
      og_convert(to, dtype == OG_U8 ? OG_U16 : dtype, 1, left + at * row * size, dtype, next, s.k, 1);
    };
    auto place = [&](int64_t at) { return (i * s.m + at) * s.n; };
    Terms terms = {s.m, s.k, s.n, gather, right, s.transpose_b ? 1 : s.n, s.transpose_b ? s.k : 1,
                   out, 1, place};
    if (og_status status = InOrder(call, scratch, message).run(terms)) return status;
  }
  return OG_OK;
}

og_status run_in_order_conv2d(const og_call &call, const og_conv2d_spec &spec, const void *input,
                              const void *kernel, void *out, char *scratch, og_message *message) {
  count_run(OG_RAN_IN_ORDER);
  og_conv2d_spec s = spec;
  const og_table &t = *call.table;
  const og_dtype gathered = call.operand_dtype == OG_U8 ? OG_U16 : call.operand_dtype;
  if (gathered == OG_U16) s.pad_value = t.keeps_padding ? t.zero_a & (t.rows - 1) : kNothing;
  const int64_t n = s.out_ch / s.groups, k = s.filter_h * s.filter_w * (s.in_ch / s.groups);
  const ImageStrides to(s.out_h, s.out_w, s.out_ch, s.channels_first);
  const int64_t plane = s.out_h * s.out_w, size = static_cast<int64_t>(og_dtype_size(call.operand_dtype));
  for (int64_t group = 0; group < s.groups; group++) {
    auto gather = [&](int64_t row, void *columns) {
      og_im2col(&s, group, row, 1, input, call.operand_dtype, columns, gathered);
    };
    auto place = [&](int64_t row) {
      return row / plane * to.image + row % plane * to.x + group * n * to.channel;
    };
    Terms terms = {s.batch * plane, k, n, gather, static_cast<const char *>(kernel) + group * n * size,
                   s.out_ch, 1, out, to.channel, place};
    if (og_status status = InOrder(call, scratch, message).run(terms)) return status;
  }
  return OG_OK;
}

}  // namespace og
