// Products of two matrices of codes by a table: sums of table[a[m, k], b[k, n]] over k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "opgraft.h"

namespace og {

constexpr int64_t kCodes = 256;

// All 256 x 256 products with their zero points taken off, whatever the widths.
struct Products {
  const int32_t *entries;  // [a][b]
  int16_t *transposed;     // [b][a], minus `centre`, once `transpose` was called
  int32_t centre = 0, largest = 0;
  bool is_short = true;  // whether 16 bits hold them so

  Products(const og_table &table, char *scratch);
  void transpose();
  static void fill(const og_table &table, int32_t *to);
  static constexpr size_t bytes() { return kCodes * kCodes * 6; }
  // So many terms never leave 32 bits, on the way with the centre included.
  int64_t terms() const;
};

// The first matrix lies at `rows`; where that is null, `gather` writes whole rows of it. `put`
// brings sums to their place: the `first` are written, others added.
struct Problem {
  int64_t m, k, n;
  const uint8_t *rows;
  const uint8_t *kernel;
  int64_t kernel_stride;
  const uint8_t *used;  // [code / 8]: whether such codes may occur in the first matrix
  std::function<void(int64_t first, int64_t count, uint8_t *to)> gather;
  std::function<void(int64_t row, int64_t column, int64_t columns, const int32_t *sums, bool first)> put;
};

// How a problem is cut, and what scratch that takes beside the products.
struct Layout {
  int64_t tile_rows, blocks, columns_padded;
  int threads;
  size_t kernel_bytes, codes_bytes, worker_bytes;
  size_t total() const {
    return kernel_bytes + codes_bytes + worker_bytes * static_cast<size_t>(threads);
  }
};

// Whether a problem of so many rows and columns is computed by expanding, which takes what
// `transpose` makes.
bool expands(const Products &products, int64_t m, int64_t n, int engine);

Layout lay_out(int64_t m, int64_t k, int64_t n, int threads);
void run_table(const Products &products, const Problem &problem, const Layout &layout, char *scratch,
               int engine);

}  // namespace og
