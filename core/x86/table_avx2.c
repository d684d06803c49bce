/* The inner loops of products by a table: 16-bit numbers eight at a time. */
#include <immintrin.h>

#include "../generic/internal.h"

enum { N = OG_TABLE_COLUMNS };

/* Eight columns of the transposed table, sixteen numbers of each, become sixteen rows. In both
 * halves of a register the same is done to eight numbers of each column. */
static inline void transpose(const int16_t *const columns[8], int a, int16_t *to) {
  __m256i pairs[8], fours[8];
  for (int i = 0; i < 4; i++) {
    __m256i even = _mm256_loadu_si256((const __m256i *)(columns[2 * i] + a));
    __m256i odd = _mm256_loadu_si256((const __m256i *)(columns[2 * i + 1] + a));
    pairs[2 * i] = _mm256_unpacklo_epi16(even, odd);
    pairs[2 * i + 1] = _mm256_unpackhi_epi16(even, odd);
  }
  for (int i = 0; i < 2; i++)
    for (int half = 0; half < 2; half++) {
      __m256i left = pairs[4 * i + half], right = pairs[4 * i + 2 + half];
      fours[4 * i + 2 * half] = _mm256_unpacklo_epi32(left, right);
      fours[4 * i + 2 * half + 1] = _mm256_unpackhi_epi32(left, right);
    }
  for (int i = 0; i < 4; i++) {
    __m256i even = _mm256_unpacklo_epi64(fours[i], fours[4 + i]);
    __m256i odd = _mm256_unpackhi_epi64(fours[i], fours[4 + i]);
    _mm_store_si128((__m128i *)(to + 2 * i * N), _mm256_castsi256_si128(even));
    _mm_store_si128((__m128i *)(to + (2 * i + 1) * N), _mm256_castsi256_si128(odd));
    _mm_store_si128((__m128i *)(to + (2 * i + 8) * N), _mm256_extracti128_si256(even, 1));
    _mm_store_si128((__m128i *)(to + (2 * i + 9) * N), _mm256_extracti128_si256(odd, 1));
  }
}

static void expand(int16_t *expanded, const int16_t *transposed, const uint8_t *codes,
                   int64_t stride, int64_t rows, const uint8_t *used) {
  for (int64_t k = 0; k < rows; k++, codes += stride, expanded += OG_TABLE_CODES * N)
    for (int n = 0; n < N; n += 8) {
      const int16_t *columns[8];
      for (int i = 0; i < 8; i++) columns[i] = transposed + 256 * codes[n + i];
      for (int a = 0; a < 256; a += 16)
        if (used[a / 8] | used[a / 8 + 1]) transpose(columns, a, expanded + a * N + n);
    }
}

/* Sums of 16 columns, as unpacking leaves them: the first and the third four, and the others. */
typedef struct {
  __m256i low, high;
} sixteen;

static inline sixteen crossed(__m256i first, __m256i second) {
  return (sixteen){_mm256_permute2x128_si256(first, second, 0x20),
                   _mm256_permute2x128_si256(first, second, 0x31)};
}

/* Numbers of two rows, side by side, are multiplied by 1 and added in 32 bits: so they need not
 * be widened one by one. */
static inline void add(sixteen *sums, const int16_t *row, const int16_t *next) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i a = _mm256_load_si256((const __m256i *)row), b = _mm256_load_si256((const __m256i *)next);
  __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), ones);
  __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), ones);
  sums->low = _mm256_add_epi32(sums->low, low);
  sums->high = _mm256_add_epi32(sums->high, high);
}

static void accumulate(int32_t *sums, const int16_t *expanded, const uint8_t *codes, int64_t count,
                       int64_t rows) {
  static const int16_t nothing[N] __attribute__((aligned(64)));
  for (int64_t i = 0; i < count; i++, codes += rows, sums += N) {
    __m256i *here = (__m256i *)sums;
    sixteen left = crossed(_mm256_load_si256(here), _mm256_load_si256(here + 1));
    sixteen right = crossed(_mm256_load_si256(here + 2), _mm256_load_si256(here + 3));
    const int16_t *block = expanded;
    for (int64_t k = 0; k < rows; k += 2, block += 2 * OG_TABLE_CODES * N) {
      const int16_t *row = block + codes[k] * N;
      const int16_t *next = k + 1 < rows ? block + (OG_TABLE_CODES + codes[k + 1]) * N : nothing;
      add(&left, row, next);
      add(&right, row + 16, next + 16);
    }
    left = crossed(left.low, left.high);
    right = crossed(right.low, right.high);
    _mm256_store_si256(here, left.low);
    _mm256_store_si256(here + 1, left.high);
    _mm256_store_si256(here + 2, right.low);
    _mm256_store_si256(here + 3, right.high);
  }
}

/* Every processor with AVX2 has F16C. */
const og_variant_table og_variant_avx2 = {
    "avx2", "avx2", og_f16c_half_to_float, og_f16c_float_to_half, expand, accumulate,
    og_quantize_row_avx2};
