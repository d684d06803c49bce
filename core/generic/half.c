/* binary16 and bfloat16, one number at a time: the meaning of the fast variants. */
#include <math.h>
#include <string.h>

#include "internal.h"

static float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t bits_from_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

float og_half_to_float(uint16_t half) {
  uint32_t sign = (uint32_t)(half >> 15) << 31;
  uint32_t exponent = (half >> 10) & 31;
  uint32_t fraction = half & 1023;
  if (exponent == 31) { /* infinity, or NaN made quiet as the hardware does */
    uint32_t quiet = fraction ? 0x400000u : 0u;
    return float_from_bits(sign | 0x7f800000u | quiet | fraction << 13);
  }
  float magnitude = exponent ? ldexpf((float)(fraction + 1024), (int)exponent - 25)
                             : ldexpf((float)fraction, -24);
  return float_from_bits(sign | bits_from_float(magnitude));
}

/* Round |value| to a format of `precision` significant bits whose smallest
 * normal exponent is `least`: nearest, ties to even, subnormals included. */
static double round_to_format(double value, int precision, int least) {
  int exponent;
  frexp(value, &exponent); /* value = f * 2^exponent, 0.5 <= f < 1 */
  if (exponent - 1 < least) exponent = least + 1;
  double ulp = ldexp(1.0, exponent - precision);
  return nearbyint(value / ulp) * ulp;
}

uint16_t og_double_to_half(double value) {
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  double magnitude = fabs(value);
  if (isnan(value)) { /* keep the leading bits of the payload, as the hardware does */
    uint32_t bits = bits_from_float((float)magnitude);
    return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x3ff));
  }
  magnitude = magnitude < 1e6 ? round_to_format(magnitude, 11, -14) : magnitude;
  if (magnitude >= 65536.0) return (uint16_t)(sign | 0x7c00);
  if (magnitude < 0x1p-14) return (uint16_t)(sign | (uint16_t)ldexp(magnitude, 24));
  int exponent;
  double fraction = frexp(magnitude, &exponent);
  uint16_t mantissa = (uint16_t)((uint32_t)ldexp(fraction, 11) & 1023);
  return (uint16_t)(sign | (uint16_t)((exponent + 14) << 10) | mantissa);
}

float og_bfloat16_to_float(uint16_t value) { return float_from_bits((uint32_t)value << 16); }

uint16_t og_double_to_bfloat16(double value) {
  if (isnan(value)) return (uint16_t)((signbit(value) ? 0x8000 : 0) | 0x7fc0);
  double magnitude = fabs(value);
  /* Rounded in double first, the cast to float below is exact or overflows to
   * infinity, as it should: no number is rounded twice. */
  if (magnitude > 0 && magnitude < 1e39) magnitude = round_to_format(magnitude, 8, -126);
  float rounded = magnitude > 3.4e38 ? INFINITY : (float)magnitude;
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  return (uint16_t)(sign | (uint16_t)(bits_from_float(rounded) >> 16));
}

static void half_to_float_row(void *dst, const void *src, int64_t n) {
  for (int64_t i = 0; i < n; i++) ((float *)dst)[i] = og_half_to_float(((const uint16_t *)src)[i]);
}

static void float_to_half_row(void *dst, const void *src, int64_t n) {
  for (int64_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = og_double_to_half(((const float *)src)[i]);
}

const og_variant_table og_variant_generic = {"generic", "", half_to_float_row,
                                             float_to_half_row, og_table_expand,
                                             og_table_accumulate, og_quantize_row};
