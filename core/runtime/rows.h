// A matrix product by tiles of rows: the one loop behind matmul, im2col
// convolutions and scalar functions.
#pragma once

#include <functional>

#include "function.h"

namespace og {

// What a contraction does with rows [first, first + count). `gather` brings
// them into the C function's element type, `scatter` takes the results away;
// where one is empty, the C function works on `a` or `out` itself.
struct Rows {
  const og_function *function;
  int64_t m, k, n;
  const void *a, *b;
  void *out;
  std::function<og_status(int64_t first, int64_t count, void *to, og_message *)> gather;
  std::function<void(int64_t first, int64_t count, const void *from)> scatter;
};

// How the rows are cut. Independent of the number of threads.
struct Tiling {
  int64_t rows = 0;              // per tile
  size_t a_bytes = 0, out_bytes = 0;  // scratch of one worker
  size_t worker_bytes() const { return a_bytes + out_bytes; }
};

size_t aligned(size_t bytes);
Tiling tile_rows(const og_function &function, int64_t m, int64_t k, int64_t n, bool gathers,
                 bool scatters);
og_status run_rows(const Rows &rows, const Tiling &tiling, int threads, char *scratch,
                   og_message *message);

// "the input holds 0.5 (element 3), which int32_t cannot hold": a value that a cast would
// change. `data` is the whole tensor that the caller gave, `offset` counts its elements.
og_status refuse_value(const og_function &function, const char *operand, const void *data,
                       og_dtype dtype, int64_t offset, og_message *message);

// Bring a whole kernel into the C function's element type.
og_status convert_kernel(const og_function &function, const og_copy_spec &copy, const void *kernel,
                         int64_t offset, void *to, og_message *message);

// The padding value must survive the C function's element type, as operands must.
og_status check_pad_value(const og_function &function, const og_conv2d_spec &spec,
                          og_message *message);

}  // namespace og
