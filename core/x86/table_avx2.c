/* The inner loops of products by a table: 16-bit numbers eight at a time. */
#include <immintrin.h>

#include "../generic/internal.h"

enum { N = OG_TABLE_COLUMNS };

/* Eight columns of the transposed table, eight numbers of each, become eight rows. */
static inline void transpose(const int16_t *const columns[8], int a, int16_t *to) {
  __m128i pairs[8], fours[8];
  for (int i = 0; i < 4; i++) {
    __m128i even = _mm_loadu_si128((const __m128i *)(columns[2 * i] + a));
    __m128i odd = _mm_loadu_si128((const __m128i *)(columns[2 * i + 1] + a));
    pairs[2 * i] = _mm_unpacklo_epi16(even, odd);
    pairs[2 * i + 1] = _mm_unpackhi_epi16(even, odd);
  }
  for (int i = 0; i < 2; i++)
    for (int half = 0; half < 2; half++) {
      __m128i left = pairs[4 * i + half], right = pairs[4 * i + 2 + half];
      fours[4 * i + 2 * half] = _mm_unpacklo_epi32(left, right);
      fours[4 * i + 2 * half + 1] = _mm_unpackhi_epi32(left, right);
    }
  for (int i = 0; i < 4; i++) {
    _mm_store_si128((__m128i *)(to + 2 * i * N), _mm_unpacklo_epi64(fours[i], fours[4 + i]));
    _mm_store_si128((__m128i *)(to + (2 * i + 1) * N), _mm_unpackhi_epi64(fours[i], fours[4 + i]));
  }
}

static void expand(int16_t *expanded, const int16_t *transposed, const uint8_t *codes,
                   int64_t stride, int64_t rows, const uint8_t *used) {
  for (int64_t k = 0; k < rows; k++, codes += stride, expanded += 256 * N)
    for (int n = 0; n < N; n += 8) {
      const int16_t *columns[8];
      for (int i = 0; i < 8; i++) columns[i] = transposed + 256 * codes[n + i];
      for (int a = 0; a < 256; a += 8)
        if (used[a / 8]) transpose(columns, a, expanded + a * N + n);
    }
}

static inline __m256i add(__m256i sums, const int16_t *row) {
  return _mm256_add_epi32(sums, _mm256_cvtepi16_epi32(_mm_load_si128((const __m128i *)row)));
}

static void accumulate(int32_t *sums, const int16_t *expanded, const uint8_t *codes, int64_t count,
                       int64_t rows) {
  for (int64_t i = 0; i < count; i++, codes += rows, sums += N) {
    __m256i *here = (__m256i *)sums;
    __m256i s0 = _mm256_load_si256(here), s1 = _mm256_load_si256(here + 1);
    __m256i s2 = _mm256_load_si256(here + 2), s3 = _mm256_load_si256(here + 3);
    const int16_t *block = expanded;
    for (int64_t k = 0; k < rows; k++, block += 256 * N) {
      const int16_t *row = block + codes[k] * N;
      s0 = add(s0, row);
      s1 = add(s1, row + 8);
      s2 = add(s2, row + 16);
      s3 = add(s3, row + 24);
    }
    _mm256_store_si256(here, s0);
    _mm256_store_si256(here + 1, s1);
    _mm256_store_si256(here + 2, s2);
    _mm256_store_si256(here + 3, s3);
  }
}

/* Every processor with AVX2 has F16C. */
const og_variant_table og_variant_avx2 = {
    "avx2", "avx2", og_f16c_half_to_float, og_f16c_float_to_half, expand, accumulate,
    og_quantize_row_avx2};
