/* Matrix products in AVX2, which need not be switched on for the rest of the program. */
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#define SIGNATURE(name)                                                                   \
    void name(const float *a, const float *b, int m, int k, int n, float *out)

/* Eight columns at a time wherever they lie; the rest one by one. */
__attribute__((target("avx2,fma"))) SIGNATURE(unaligned)
{
    for (int i = 0; i < m; i++) {
        int j = 0;

        for (; j + 8 <= n; j += 8) {
            __m256 sum = _mm256_setzero_ps();
            for (int l = 0; l < k; l++)
                sum = _mm256_fmadd_ps(_mm256_set1_ps(a[(size_t)i * k + l]),
                                      _mm256_loadu_ps(b + (size_t)l * n + j), sum);
            _mm256_storeu_ps(out + (size_t)i * n + j, sum);
        }
        for (; j < n; j++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += a[(size_t)i * k + l] * b[(size_t)l * n + j];
            out[(size_t)i * n + j] = sum;
        }
    }
}

/* The same without a rest: masked lanes are neither read nor written. */
__attribute__((target("avx2,fma"))) SIGNATURE(masked)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

    for (int j = 0; j < n; j += 8) {
        const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - j), lanes);
        for (int i = 0; i < m; i++) {
            __m256 sum = _mm256_setzero_ps();
            for (int l = 0; l < k; l++)
                sum = _mm256_fmadd_ps(_mm256_set1_ps(a[(size_t)i * k + l]),
                                      _mm256_maskload_ps(b + (size_t)l * n + j, mask), sum);
            _mm256_maskstore_ps(out + (size_t)i * n + j, mask, sum);
        }
    }
}

/* Aligned loads, from an aligned copy of its own whose rows are filled up with zeros. */
__attribute__((target("avx2,fma"))) SIGNATURE(aligned_copy)
{
    const size_t pitch = ((size_t)n + 7) / 8 * 8;
    float *copy = aligned_alloc(32, (pitch * k + 8) * sizeof *copy);
    float row[8] __attribute__((aligned(32)));

    memset(copy, 0, (pitch * k + 8) * sizeof *copy);
    for (int l = 0; l < k; l++)
        memcpy(copy + l * pitch, b + (size_t)l * n, (size_t)n * sizeof *copy);
    for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j += 8) {
        __m256 sum = _mm256_setzero_ps();
        for (int l = 0; l < k; l++)
            sum = _mm256_fmadd_ps(_mm256_set1_ps(a[(size_t)i * k + l]),
                                  _mm256_load_ps(copy + l * pitch + j), sum);
        _mm256_store_ps(row, sum);
        memcpy(out + (size_t)i * n + j, row, (size_t)(n - j < 8 ? n - j : 8) * sizeof *row);
    }
    free(copy);
}
