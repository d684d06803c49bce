// Products by a table: contractions of codes, exact in 32 or 64 bits.
#include "table.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "conv2d.h"
#include "parallel.h"
#include "runs.h"
#include "table_engine.h"
#include "table_in_order.h"
#include "../generic/internal.h"

namespace og {
namespace {

// ---- checks -------------------------------------------------------------------------------

constexpr int32_t kLargest = 1 << 25;  // so that sums of a hundred fit

og_status check(const og_call &call, og_message *message) {
  const og_table &t = *call.table;
  auto fits = [](int64_t size) { return size >= 4 && size <= kCodes && (size & (size - 1)) == 0; };
  if (!fits(t.rows) || !fits(t.columns))
    return og_fail(message, OG_INVALID_ARGUMENT,
                   "a table of %lld x %lld products; each size must be a power of two from 4 to 256",
                   (long long)t.rows, (long long)t.columns);
  if (call.operand_dtype != OG_U8 || (call.result_dtype != OG_I32 && call.result_dtype != OG_I64))
    return og_fail(message, OG_INVALID_ARGUMENT,
                   "products by a table take codes (uint8) and give int32 or int64, not %s and %s",
                   og_dtype_name(call.operand_dtype), og_dtype_name(call.result_dtype));
  if (t.entries_dtype != OG_I32)
    return og_fail(message, OG_INVALID_ARGUMENT, "a table of %s; one of int32 or float64 is needed",
                   og_dtype_name(t.entries_dtype));
  if (std::abs(t.zero_a) > kCodes || std::abs(t.zero_b) > kCodes)
    return og_fail(message, OG_INVALID_ARGUMENT, "the zero points are %d and %d; they are no codes",
                   (int)t.zero_a, (int)t.zero_b);
  if (t.engine < OG_TABLE_AUTO || t.engine > OG_TABLE_ROWS)
    return og_fail(message, OG_INVALID_ARGUMENT, "engine %d of products by a table is unknown", (int)t.engine);
  return OG_OK;
}

og_status check_sums(const og_call &call, const Products &products, int64_t k, og_message *message) {
  if (products.largest > kLargest)
    return og_fail(message, OG_INVALID_ARGUMENT,
                   "the table holds a product of %d; those of 8-bit numbers stay below %d",
                   (int)products.largest, (int)kLargest);
  if (call.result_dtype == OG_I64 || k <= products.terms()) return OG_OK;
  return og_fail(message, OG_INVALID_ARGUMENT,
                 "%lld products of up to %d may leave 32 bits; ask for sums in 64 bits", (long long)k,
                 (int)products.largest);
}

og_status check_codes(const uint8_t *codes, int64_t count, int64_t limit, const char *operand,
                      og_message *message) {
  if (limit == kCodes) return OG_OK;
  for (int64_t i = 0; i < count; i++)
    if (codes[i] >= limit)
      return og_fail(message, OG_INVALID_ARGUMENT,
                     "the %s holds the code %d (element %lld); the table has codes below %lld", operand,
                     (int)codes[i], (long long)i, (long long)limit);
  return OG_OK;
}

// Which codes may occur, in groups of eight: all from the smallest to the largest.
struct Used {
  uint8_t groups[kCodes / 8] = {};

  Used(const uint8_t *codes, int64_t count, uint8_t also) {
    uint8_t low = also, high = also;
    for (int64_t i = 0; i < count; i++) {
      low = std::min(low, codes[i]);
      high = std::max(high, codes[i]);
    }
    std::memset(groups + low / 8, 1, static_cast<size_t>(high / 8 - low / 8 + 1));
  }
};

template <class T>
void put_as(T *out, int64_t stride, int64_t n, const int32_t *sums, bool first) {
  if (first && stride == 1) std::copy(sums, sums + n, out);
  else if (first)
    for (int64_t j = 0; j < n; j++) out[j * stride] = sums[j];
  else
    for (int64_t j = 0; j < n; j++) out[j * stride] += sums[j];
}

// Sums to elements of the output: the first are written, others added.
void put(void *out, og_dtype dtype, int64_t at, int64_t stride, int64_t n, const int32_t *sums, bool first) {
  if (dtype == OG_I32) put_as(static_cast<int32_t *>(out) + at, stride, n, sums, first);
  else put_as(static_cast<int64_t *>(out) + at, stride, n, sums, first);
}

// ---- the padding of a convolution ----------------------------------------------------------

// What padded taps have added to the sums is taken off again, tap by tap.
struct Padding {
  const og_conv2d_spec &s;
  int64_t *of_tap;  // [tap][n]
  bool adds = false;  // what is to be taken off

  Padding(const og_call &call, const og_conv2d_spec &spec, const Products &products,
          const uint8_t *kernel, int64_t channels, int64_t n, char *scratch)
      : s(spec), of_tap(reinterpret_cast<int64_t *>(scratch)) {
    const int32_t *row = products.entries + kCodes * static_cast<int64_t>(spec.pad_value);
    adds = std::any_of(row, row + kCodes, [](int32_t value) { return value != 0; });
    adds = adds && !call.table->keeps_padding && is_padded();
    if (!adds) return;
    std::fill(of_tap, of_tap + s.filter_h * s.filter_w * n, 0);
    for (int64_t tap = 0; tap < s.filter_h * s.filter_w; tap++)
      for (int64_t c = 0; c < channels; c++)
        for (int64_t j = 0; j < n; j++)
          of_tap[tap * n + j] += row[kernel[(tap * channels + c) * s.out_ch + j]];
  }

  static size_t bytes(const og_conv2d_spec &s) {
    return aligned(static_cast<size_t>(s.filter_h * s.filter_w * (s.out_ch / s.groups)) * sizeof(int64_t));
  }

  bool is_padded() const { return s.pad_top || s.pad_bottom || s.pad_left || s.pad_right; }

  void take_off(int64_t tap, int64_t n, void *out, og_dtype dtype, int64_t at, int64_t stride) const {
    const int64_t *added = of_tap + tap * n;
    for (int64_t j = 0; j < n; j++)
      if (dtype == OG_I32) static_cast<int32_t *>(out)[at + j * stride] -= static_cast<int32_t>(added[j]);
      else static_cast<int64_t *>(out)[at + j * stride] -= added[j];
  }

  // Calls `each(tap)` for the padded taps of the window behind row `row`.
  template <class Each>
  void for_padded(int64_t row, Each each) const {
    int64_t y = row / s.out_w % s.out_h * s.stride_h - s.pad_top, x = row % s.out_w * s.stride_w - s.pad_left;
    int64_t below = y + (s.filter_h - 1) * s.dilation_h, right = x + (s.filter_w - 1) * s.dilation_w;
    if (y >= 0 && x >= 0 && below < s.in_h && right < s.in_w) return;
    for (int64_t fy = 0; fy < s.filter_h; fy++)
      for (int64_t fx = 0; fx < s.filter_w; fx++) {
        int64_t iy = y + fy * s.dilation_h, ix = x + fx * s.dilation_w;
        if (iy < 0 || iy >= s.in_h || ix < 0 || ix >= s.in_w) each(fy * s.filter_w + fx);
      }
  }
};

// ---- depthwise ------------------------------------------------------------------------------

// One channel in, `multiplier` out: there is nothing to share between columns. The products of
// some channels' kernel codes, for one tap, stay in the first-level cache along a line of outputs.
struct Depthwise {
  static constexpr int64_t kChannels = 32;
  const og_call &call;
  const og_conv2d_spec &s;
  const Products &products;
  const uint8_t *x, *kernel;
  void *out;
  char *scratch;
  const int64_t multiplier = s.out_ch / s.in_ch;
  const ImageStrides in{s.in_h, s.in_w, s.in_ch, s.channels_first != 0};
  const ImageStrides to{s.out_h, s.out_w, s.out_ch, s.channels_first != 0};
  const uint8_t pad = static_cast<uint8_t>(s.pad_value);

  void run() const {
    const int64_t taps = s.filter_h * s.filter_w, most = products.terms();
    parallel_for(s.batch * s.out_h, call.threads, [&](int64_t line, int worker) {
      int32_t *sums = reinterpret_cast<int32_t *>(scratch + static_cast<size_t>(worker) * worker_bytes(s));
      const int64_t place = line / s.out_h * to.image + line % s.out_h * to.y;
      for (int64_t first = 0; first < s.out_ch; first += kChannels)
        for (int64_t start = 0; start < taps; start += most) {  // so many fit into 32 bits
          const int64_t n = std::min(kChannels, s.out_ch - first);
          std::fill(sums, sums + n * s.out_w, 0);
          for (int64_t tap = start, stop = std::min(taps, start + most); tap < stop;) {
            const bool three = tap % s.filter_w + 3 <= s.filter_w && tap + 3 <= stop;
            if (three) add_taps<3>(line, tap, first, n, sums);
            else add_taps<1>(line, tap, first, n, sums);
            tap += three ? 3 : 1;
          }
          for (int64_t o = 0; o < n; o++)
            put(out, call.result_dtype, place + (first + o) * to.channel, to.x, s.out_w,
                sums + o * s.out_w, start == 0);
        }
      return 0;
    });
  }

  static size_t worker_bytes(const og_conv2d_spec &s) {
    return aligned(static_cast<size_t>(s.out_w * kChannels) * sizeof(int32_t));
  }

  // What some taps of one row of the kernel, from `tap` on, add to a line of outputs, channel by
  // channel: where all of them see the image, a sum is read and written once for them.
  template <int kTaps>
  void add_taps(int64_t line, int64_t tap, int64_t first, int64_t n, int32_t *sums) const {
    const int64_t y = line % s.out_h * s.stride_h - s.pad_top + tap / s.filter_w * s.dilation_h;
    const int64_t step = s.stride_w * in.x;
    int64_t shift[kTaps], left[kTaps], right[kTaps], low = 0, high = s.out_w;
    for (int t = 0; t < kTaps; t++) {
      shift[t] = (tap + t) % s.filter_w * s.dilation_w - s.pad_left;
      // Outputs from `left` on and before `right` see the image, the others its padding.
      left[t] = shift[t] < 0 ? (-shift[t] + s.stride_w - 1) / s.stride_w : 0;
      right[t] = shift[t] < s.in_w ? (s.in_w - 1 - shift[t]) / s.stride_w + 1 : 0;
      if (y < 0 || y >= s.in_h) right[t] = 0;
      right[t] = std::min(right[t], s.out_w);
      left[t] = std::min(left[t], right[t]);
      low = std::max(low, left[t]);
      high = std::min(high, right[t]);
    }
    if (high <= low) low = high = s.out_w;
    for (int64_t o = 0; o < n; o++, sums += s.out_w) {
      const uint8_t *w = kernel + tap * s.out_ch + first + o;
      const uint8_t *codes = x + line / s.out_h * in.image + y * in.y + (first + o) / multiplier * in.channel;
      auto add = [&](auto product) {
        for (int64_t ox = low; ox < high; ox++) {
          int32_t sum = sums[ox];
          for (int t = 0; t < kTaps; t++) sum += product(t, codes[shift[t] * in.x + ox * step]);
          sums[ox] = sum;
        }
        for (int t = 0; t < kTaps; t++) {
          auto add_alone = [&](int64_t from, int64_t to) {
            for (int64_t ox = from; ox < to; ox++) sums[ox] += product(t, codes[shift[t] * in.x + ox * step]);
          };
          add_alone(left[t], std::min(low, right[t]));
          add_alone(std::max(high, left[t]), right[t]);
        }
      };
      if (products.is_short) {
        const int16_t *columns[kTaps];
        for (int t = 0; t < kTaps; t++) columns[t] = products.transposed + kCodes * w[t * s.out_ch];
        add([&](int t, uint8_t code) { return columns[t][code] + products.centre; });
      } else {
        add([&](int t, uint8_t code) { return products.entries[code << 8 | w[t * s.out_ch]]; });
      }
      if (!call.table->keeps_padding) continue;
      for (int t = 0; t < kTaps; t++) {
        const int32_t padded = products.entries[pad << 8 | w[t * s.out_ch]];
        for (int64_t ox = 0; ox < left[t]; ox++) sums[ox] += padded;
        for (int64_t ox = right[t]; ox < s.out_w; ox++) sums[ox] += padded;
      }
    }
  }
};

int64_t rows_of(const og_conv2d_spec &s) { return s.batch * s.out_h * s.out_w; }
int64_t terms_of(const og_conv2d_spec &s) { return s.filter_h * s.filter_w * (s.in_ch / s.groups); }
bool is_depthwise(const og_conv2d_spec &s) { return s.groups == s.in_ch && s.groups > 1; }

og_status nothing_to_sum(const og_call &call, void *out, int64_t count) {
  og_fill(out, call.result_dtype, 0, count);
  return OG_OK;
}

og_status prepare_in_order(og_call *call, int64_t k, int64_t n, og_message *message) {
  call->threads = in_order_threads(*call->table);
  call->scratch_bytes = in_order_scratch(k, n, call->threads);
  return check_in_order(*call, message);
}

}  // namespace

// ---- contractions ---------------------------------------------------------------------------

og_status prepare_table_matmul(og_call *call, const og_matmul_spec &s, og_message *message) {
  if (is_in_order(*call->table)) return prepare_in_order(call, s.k, s.n, message);
  og_status status = check(*call, message);
  if (status) return status;
  Layout layout = lay_out(s.m, s.k, s.n, std::max(1, og_threads()));
  call->threads = layout.threads;
  call->scratch_bytes = Products::bytes() + layout.total() +
                        aligned(static_cast<size_t>(s.transpose_b ? s.k * s.n : 0));
  return OG_OK;
}

og_status run_table_matmul(const og_call &call, const og_matmul_spec &s, const void *a, const void *b,
                           void *out, char *scratch, og_message *message) {
  const int64_t out_count = s.m * s.n * s.batches;
  if (out_count * s.k == 0) return nothing_to_sum(call, out, out_count);
  if (is_in_order(*call.table)) return run_in_order_matmul(call, s, a, b, out, scratch, message);
  Products products(*call.table, scratch);
  og_status status = check_sums(call, products, s.k, message);
  const bool expanding = expands(products, s.m, s.n, call.table->engine);
  count_run(expanding ? OG_RAN_EXPANDED : OG_RAN_ROWS);
  if (expanding) products.transpose();
  const Layout layout = lay_out(s.m, s.k, s.n, call.threads);
  char *rest = scratch + Products::bytes();
  uint8_t *turned = reinterpret_cast<uint8_t *>(rest + layout.total());
  for (int64_t i = 0; i < s.batches && !status; i++) {
    const uint8_t *left = static_cast<const uint8_t *>(a) + (s.a_index ? s.a_index[i] : i) * s.m * s.k;
    const uint8_t *right = static_cast<const uint8_t *>(b) + (s.b_index ? s.b_index[i] : i) * s.k * s.n;
    status = check_codes(left, s.m * s.k, call.table->rows, "input", message);
    if (!status) status = check_codes(right, s.k * s.n, call.table->columns, "kernel", message);
    if (status) break;
    if (s.transpose_b) {
      for (int64_t k = 0; k < s.k; k++)
        for (int64_t n = 0; n < s.n; n++) turned[k * s.n + n] = right[n * s.k + k];
      right = turned;
    }
    auto gather = [&](int64_t first, int64_t count, uint8_t *to) {
      for (int64_t row = 0; row < count; row++)  // transposed
        for (int64_t k = 0; k < s.k; k++) to[row * s.k + k] = left[k * s.m + first + row];
    };
    auto place = [&](int64_t row, int64_t column, int64_t n, const int32_t *sums, bool first) {
      put(out, call.result_dtype, (i * s.m + row) * s.n + column, 1, n, sums, first);
    };
    const Used used(left, s.m * s.k, left[0]);
    const uint8_t *direct = s.transpose_a ? nullptr : left;
    Problem problem = {s.m, s.k, s.n, direct, right, s.n, used.groups, gather, place};
    run_table(products, problem, layout, rest, call.table->engine);
  }
  return status;
}

og_status prepare_table_conv2d(og_call *call, const og_conv2d_spec &s, og_message *message) {
  if (is_in_order(*call->table))
    return prepare_in_order(call, terms_of(s), s.out_ch / s.groups, message);
  og_status status = check(*call, message);
  if (status) return status;
  if (s.pad_value != 0)
    return og_fail(message, OG_UNIMPLEMENTED,
                   "the pad value is %g; products by a table pad with 0, whose code is the zero point",
                   s.pad_value);
  call->threads = std::max(1, og_threads());
  const size_t own = is_depthwise(s)
                         ? Depthwise::worker_bytes(s) * static_cast<size_t>(call->threads)
                         : lay_out(rows_of(s), terms_of(s), s.out_ch / s.groups, call->threads).total();
  call->scratch_bytes = Products::bytes() + Padding::bytes(s) + own;
  return OG_OK;
}

og_status run_table_conv2d(const og_call &call, const og_conv2d_spec &spec, const void *input,
                           const void *kernel, void *out, char *scratch, og_message *message) {
  og_conv2d_spec s = spec;
  s.pad_value = static_cast<double>(call.table->zero_a & (call.table->rows - 1));
  const int64_t rows = rows_of(s), k = terms_of(s), n = s.out_ch / s.groups, channels = s.in_ch / s.groups;
  if (rows * s.out_ch * k == 0) return nothing_to_sum(call, out, rows * s.out_ch);
  if (is_in_order(*call.table)) return run_in_order_conv2d(call, spec, input, kernel, out, scratch, message);
  const uint8_t *x = static_cast<const uint8_t *>(input), *w = static_cast<const uint8_t *>(kernel);
  og_status status = check_codes(x, s.batch * s.in_h * s.in_w * s.in_ch, call.table->rows, "input", message);
  if (!status) status = check_codes(w, k * s.out_ch, call.table->columns, "kernel", message);
  if (status) return status;
  Products products(*call.table, scratch);
  if ((status = check_sums(call, products, k, message))) return status;
  const bool expanding = expands(products, rows, n, call.table->engine);
  count_run(is_depthwise(s) ? OG_RAN_DEPTHWISE : expanding ? OG_RAN_EXPANDED : OG_RAN_ROWS);
  if (expanding || (is_depthwise(s) && products.is_short)) products.transpose();
  if (is_depthwise(s)) {
    Depthwise{call, s, products, x, w, out, scratch + Products::bytes()}.run();
    return OG_OK;
  }
  const Used used(x, s.batch * s.in_h * s.in_w * s.in_ch, static_cast<uint8_t>(s.pad_value));
  const Layout layout = lay_out(rows, k, n, call.threads);
  char *const rest = scratch + Products::bytes() + Padding::bytes(s);
  ImageStrides to(s.out_h, s.out_w, s.out_ch, s.channels_first);
  for (int64_t group = 0; group < s.groups; group++) {
    const Padding padding(call, s, products, w + group * n, channels, n,
                          scratch + Products::bytes());
    auto gather = [&](int64_t first, int64_t count, uint8_t *columns) {
      og_im2col(&s, group, first, count, x, OG_U8, columns, OG_U8);
    };
    auto place = [&](int64_t row, int64_t column, int64_t some, const int32_t *sums, bool first) {
      int64_t plane = s.out_h * s.out_w, at = row / plane * to.image + row % plane * to.x;
      put(out, call.result_dtype, at + (group * n + column) * to.channel, to.channel, some, sums, first);
    };
    Problem problem = {rows, k, n, nullptr, w + group * n, s.out_ch, used.groups, gather, place};
    run_table(products, problem, layout, rest, call.table->engine);
    if (!padding.adds) continue;
    parallel_for(s.batch * s.out_h, layout.threads, [&](int64_t line, int) {
      const int64_t place = line / s.out_h * to.image + line % s.out_h * to.y + group * n * to.channel;
      for (int64_t x = 0; x < s.out_w; x++)
        padding.for_padded(line * s.out_w + x, [&](int64_t tap) {
          padding.take_off(tap, n, out, call.result_dtype, place + x * to.x, to.channel);
        });
      return 0;
    });
  }
  return OG_OK;
}

}  // namespace og
