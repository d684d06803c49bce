/* A matrix product in AVX that takes every row to begin at a multiple of 32 bytes. */
#include <immintrin.h>

__attribute__((target("avx"))) void matmul(const float *a, const float *b, int m, int k, int n,
                                           float *out)
{
    for (int i = 0; i < m; i++) {
        int j = 0;

        for (; j + 8 <= n; j += 8) {
            __m256 sum = _mm256_setzero_ps();
            for (int l = 0; l < k; l++) {
                const __m256 row = _mm256_load_ps(b + (size_t)l * n + j);
                sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_set1_ps(a[(size_t)i * k + l]), row));
            }
            _mm256_store_ps(out + (size_t)i * n + j, sum);
        }
        for (; j < n; j++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += a[(size_t)i * k + l] * b[(size_t)l * n + j];
            out[(size_t)i * n + j] = sum;
        }
    }
}
