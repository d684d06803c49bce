/* Floating numbers as a table of mantissas takes them. */
#include <math.h>

#include "internal.h"

/* x = scale (1 + mantissa / 2^bits) but for rounding, halves to even; zeros, infinities and NaN
 * are their own scale. */
static double split(float x, int bits, uint16_t *mantissa) {
  *mantissa = 0;
  if (x == 0 || x - x != 0) return x;
  int exponent;
  const double rest = 2 * fabs(frexp(x, &exponent)) - 1;
  const double steps = nearbyint(ldexp(rest, bits));
  const double carry = steps == ldexp(1, bits);
  if (!carry) *mantissa = (uint16_t)steps;
  return copysign(ldexp(1, exponent - !carry), x);
}

void og_split_mantissas(const float *x, int64_t n, int bits, uint16_t *mantissas, double *scales) {
  for (int64_t i = 0; i < n; i++) scales[i] = split(x[i], bits, mantissas + i);
}
