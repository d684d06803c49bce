/* The inner loops of products by a table, in plain C. */
#include "internal.h"

void og_table_expand(int16_t *expanded, const int16_t *transposed, const uint8_t *codes,
                     int64_t stride, int64_t rows, const uint8_t *used) {
  enum { N = OG_TABLE_COLUMNS };
  for (int64_t k = 0; k < rows; k++, codes += stride, expanded += OG_TABLE_CODES * N)
    for (int n = 0; n < N; n++)
      for (int a = 0; a < 256; a++)
        if (used[a / 8]) expanded[a * N + n] = transposed[256 * codes[n] + a];
}

void og_table_accumulate(int32_t *sums, const int16_t *expanded, const uint8_t *codes,
                         int64_t count, int64_t rows) {
  enum { N = OG_TABLE_COLUMNS };
  for (int64_t i = 0; i < count; i++, codes += rows, sums += N)
    for (int64_t k = 0; k < rows; k++) {
      const int16_t *row = expanded + (k * OG_TABLE_CODES + codes[k]) * N;
      for (int n = 0; n < N; n++) sums[n] += row[n];
    }
}
