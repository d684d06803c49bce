#include "rows.h"

#include <algorithm>

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
  double value = 0;
  const char *element = static_cast<const char *>(data) + offset * og_dtype_size(dtype);
  og_convert(&value, OG_F64, 1, element, dtype, 1, 1, 0);
  return og_fail(message, OG_INVALID_ARGUMENT,
                 "%s: the %s holds %.9g (element %lld, %s), which the C type %s cannot hold "
                 "exactly. Give it operands that it can hold (round or quantize them first), or a "
                 "C function of another type",
                 function.symbol.c_str(), operand, value, static_cast<long long>(offset),
                 og_dtype_name(dtype), og_dtype_name(function.operand));
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
