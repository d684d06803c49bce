/* Matrix products of several element and size types; the sums have the output's type. */
#include <stddef.h>
#include <stdint.h>

#define MATMUL(name, operand, size, result)                                                 \
    void name(const operand *a, const operand *b, size m, size k, size n, result *out)      \
    {                                                                                       \
        for (size i = 0; i < m; i++)                                                        \
            for (size j = 0; j < n; j++) {                                                  \
                result sum = 0;                                                             \
                for (size l = 0; l < k; l++)                                                \
                    sum += (result)a[i * k + l] * (result)b[l * n + j];                     \
                out[i * n + j] = sum;                                                       \
            }                                                                               \
    }

MATMUL(matmul_float, float, int, float)
MATMUL(matmul_double, double, size_t, double)
MATMUL(matmul_int32, int32_t, int64_t, int32_t)
MATMUL(matmul_int64, int64_t, short, int64_t)
MATMUL(matmul_int8, int8_t, unsigned, int32_t)
MATMUL(matmul_uint8, uint8_t, int, uint16_t)
MATMUL(matmul_wide, float, long, double)
