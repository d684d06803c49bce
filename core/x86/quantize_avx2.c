/* Linear quantization, eight numbers at a time; the same bits as one by one. */
#include <immintrin.h>

#include "../generic/internal.h"

int og_quantize_row_avx2(uint8_t *codes, float *values, const float *x, int64_t n,
                         const og_quantize_spec *s) {
  const float zero = (float)s->zero_point;
  const __m256 scale = _mm256_set1_ps(s->scale), high = _mm256_set1_ps((float)s->high - zero),
               low = _mm256_set1_ps((float)s->low - zero);
  const __m256i shift = _mm256_set1_epi32(s->zero_point), mask = _mm256_set1_epi32(s->mask);
  /* The low byte of each number, side by side, in each half. */
  const __m256i bytes = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                         0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  __m256 nan = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 steps = _mm256_div_ps(_mm256_loadu_ps(x + i), scale);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(steps, steps, _CMP_UNORD_Q));
    steps = _mm256_max_ps(_mm256_min_ps(steps, high), low); /* NaN becomes the largest number */
    steps = _mm256_round_ps(steps, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i numbers = _mm256_add_epi32(_mm256_cvtps_epi32(steps), shift);
    numbers = _mm256_shuffle_epi8(_mm256_and_si256(numbers, mask), bytes);
    int32_t halves[2] = {_mm256_extract_epi32(numbers, 0), _mm256_extract_epi32(numbers, 4)};
    __builtin_memcpy(codes + i, halves, 8);
    _mm256_storeu_ps(values + i, _mm256_mul_ps(steps, scale));
  }
  return (_mm256_movemask_ps(nan) != 0) | og_quantize_row(codes + i, values + i, x + i, n - i, s);
}
