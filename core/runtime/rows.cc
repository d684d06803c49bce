#include "rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "parallel.h"

namespace og {
namespace {

constexpr size_t kTileBytes = 256 * 1024;  // a tile of rows stays in the second-level cache
constexpr int64_t kScalarRows = 16;

og_status call_rows(const Rows &rows, const void *a, int64_t count, void *out,
                    og_message *message) {
  const og_function &f = *rows.function;
  if (f.kind == Kind::scalar)
    return og_scalar_matmul(f.address, f.operand, f.scalar_return, a, rows.b, count, rows.k,
                            rows.n, out);
  Arguments arguments;
  arguments.input = a;
  arguments.kernel = rows.b;
  arguments.output = out;
  arguments.values[ROLE_m] = count;
  arguments.values[ROLE_k] = rows.k;
  arguments.values[ROLE_n] = rows.n;
  return f.call(arguments, message);
}

const char *c_name(og_dtype dtype) {
  static const char *const names[] = {
#define X(enumerator, name, type, bytes) #type,
      OG_DTYPES(X)
#undef X
  };
  return names[dtype];
}

// As NumPy and TensorFlow call it.
std::string tensor_name(og_dtype dtype) {
  switch (dtype) {
    case OG_F16: return "float16";
    case OG_BF16: return "bfloat16";
    case OG_F32: return "float32";
    case OG_F64: return "float64";
    default: {
      std::string name = c_name(dtype);
      return name.substr(0, name.size() - 2);  // int8_t
    }
  }
}

std::string text_of(const char *element, og_dtype dtype) {
  int64_t integer = 0;
  uint64_t natural = 0;
  if (dtype == OG_U64) {
    std::memcpy(&natural, element, sizeof natural);
    return std::to_string(natural);
  }
  if (dtype >= OG_I8 && dtype < OG_F16 && og_convert(&integer, OG_I64, 1, element, dtype, 1, 1, 1) < 0)
    return std::to_string(integer);
  double value = 0;
  char text[32];
  og_convert(&value, OG_F64, 1, element, dtype, 1, 1, 0);
  const bool whole = std::fabs(value) < 1e19 && std::nearbyint(value) == value;
  std::snprintf(text, sizeof text, whole ? "%.0f" : "%.9g", value);
  if (dtype == OG_F64 && !whole && std::strtod(text, nullptr) != value)
    std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

Tiling tile_rows(const og_function &function, int64_t m, int64_t k, int64_t n, bool gathers,
                 bool scatters) {
  Tiling tiling;
  size_t a_row = gathers ? static_cast<size_t>(k) * og_dtype_size(function.operand) : 0;
  size_t out_row = scatters ? static_cast<size_t>(n) * og_dtype_size(function.result) : 0;
  tiling.rows = m;
  if (function.kind == Kind::scalar) tiling.rows = std::min(m, kScalarRows);
  if (a_row + out_row > 0) {
    int64_t fitting = static_cast<int64_t>(kTileBytes / (a_row + out_row));
    tiling.rows = std::min(tiling.rows, std::max<int64_t>(fitting, 8));
  }
  tiling.a_bytes = aligned(a_row * static_cast<size_t>(tiling.rows));
  tiling.out_bytes = aligned(out_row * static_cast<size_t>(tiling.rows));
  return tiling;
}

og_status run_rows(const Rows &rows, const Tiling &tiling, int threads, char *scratch,
                   og_message *message) {
  const og_function &f = *rows.function;
  const size_t a_row = static_cast<size_t>(rows.k) * og_dtype_size(f.operand);
  const size_t out_row = static_cast<size_t>(rows.n) * og_dtype_size(f.result);
  std::mutex first_failure;
  auto tile_body = [&](int64_t tile, int worker) -> int {
    char *a = scratch + static_cast<size_t>(worker) * tiling.worker_bytes();
    char *out = a + tiling.a_bytes;
    int64_t first = tile * tiling.rows, count = std::min(tiling.rows, rows.m - first);
    og_message local;
    og_status status = OG_OK;
    if (rows.gather) status = rows.gather(first, count, a, &local);
    const void *from = rows.gather ? a : static_cast<const char *>(rows.a) + first * a_row;
    void *to = rows.scatter ? out : static_cast<char *>(rows.out) + first * out_row;
    if (!status) status = call_rows(rows, from, count, to, &local);
    if (!status && rows.scatter) rows.scatter(first, count, out);
    if (status) {
      std::lock_guard<std::mutex> guard(first_failure);
      *message = local;
    }
    return status;
  };
  int64_t tiles = (rows.m + tiling.rows - 1) / tiling.rows;
  return static_cast<og_status>(parallel_for(tiles, threads, tile_body));
}

og_status refuse_value(const og_function &function, const char *operand, const void *data,
                       og_dtype dtype, int64_t offset, og_message *message) {
  const char *element = static_cast<const char *>(data) + offset * og_dtype_size(dtype);
  return og_fail(message, OG_INVALID_ARGUMENT,
                 "%s: the %s holds %s (element %lld, %s), which the C type %s cannot hold "
                 "exactly. Give it operands that it can hold (round or quantize them first), or a "
                 "C function of another type",
                 function.symbol.c_str(), operand, text_of(element, dtype).c_str(),
                 static_cast<long long>(offset), tensor_name(dtype).c_str(),
                 c_name(function.operand));
}

og_status check_pad_value(const og_function &function, const og_conv2d_spec &s,
                          og_message *message) {
  int64_t stored = 0;
  if (s.pad_top + s.pad_bottom + s.pad_left + s.pad_right == 0) return OG_OK;
  if (og_convert(&stored, function.operand, 1, &s.pad_value, OG_F64, 1, 1, 1) < 0) return OG_OK;
  return og_fail(message, OG_INVALID_ARGUMENT,
                 "%s: pad_value is %.17g, which the C type %s cannot hold exactly; give one that it "
                 "can hold",
                 function.symbol.c_str(), s.pad_value, c_name(function.operand));
}

og_status convert_kernel(const og_function &function, const og_copy_spec &copy, const void *kernel,
                         int64_t offset, void *to, og_message *message) {
  const char *from =
      static_cast<const char *>(kernel) + offset * static_cast<int64_t>(og_dtype_size(copy.src_dtype));
  int64_t bad = og_copy(&copy, to, from);
  if (bad < 0) return OG_OK;
  return refuse_value(function, "kernel", kernel, copy.src_dtype, offset + bad, message);
}

}  // namespace og
