/* Products of four codes of the input with four rows of the kernel. */
#include "internal.h"

void og_table_look_up(int32_t *restrict sums, const int32_t *const entries[4],
                      const uint8_t *const codes[4], int64_t n) {
  const int32_t *e0 = entries[0], *e1 = entries[1], *e2 = entries[2], *e3 = entries[3];
  const uint8_t *w0 = codes[0], *w1 = codes[1], *w2 = codes[2], *w3 = codes[3];
  for (int64_t j = 0; j < n; j++) sums[j] += e0[w0[j]] + e1[w1[j]] + e2[w2[j]] + e3[w3[j]];
}
