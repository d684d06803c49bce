/* Linear quantization, number by number. */
#include <math.h>

#include "internal.h"

int og_quantize_row(uint8_t *codes, float *values, const float *x, int64_t n,
                    const og_quantize_spec *s) {
  const float zero = (float)s->zero_point, low = (float)s->low - zero, high = (float)s->high - zero;
  int has_nan = 0;
  for (int64_t i = 0; i < n; i++) {
    float steps = x[i] / s->scale;
    has_nan |= steps != steps;
    steps = steps < high ? steps : high; /* NaN becomes the largest number */
    steps = rintf(steps > low ? steps : low);
    codes[i] = (uint8_t)((int)(steps + zero) & s->mask);
    values[i] = steps * s->scale;
  }
  return has_nan;
}
