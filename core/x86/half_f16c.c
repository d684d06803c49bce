/* binary16 rows by the F16C instructions, eight at a time. */
#include <immintrin.h>

#include "../generic/internal.h"

void og_f16c_half_to_float(void *dst, const void *src, int64_t n) {
  float *to = dst;
  const uint16_t *from = src;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i halves = _mm_loadu_si128((const __m128i *)(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  for (; i < n; i++) to[i] = _cvtsh_ss(from[i]);
}

void og_f16c_float_to_half(void *dst, const void *src, int64_t n) {
  uint16_t *to = dst;
  const float *from = src;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128((__m128i *)(to + i), halves);
  }
  for (; i < n; i++) to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
}

const og_variant_table og_variant_f16c = {"f16c", "f16c", og_f16c_half_to_float,
                                          og_f16c_float_to_half, og_table_expand,
                                          og_table_accumulate, og_quantize_row};
