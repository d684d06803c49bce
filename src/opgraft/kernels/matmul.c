/*
 * The example matrix product: out = a x b, all row-major.
 *
 *   a    batch_size x in_size
 *   b    in_size    x out_size
 *   out  batch_size x out_size
 *
 * Change the line that multiplies, and the network trains through your arithmetic.
 * The innermost loop runs over neighbours in memory, so that the compiler can vectorise it.
 */
#include <stddef.h>

void custom_matmul(const float *a, const float *b, int batch_size, int in_size, int out_size,
                   float *out)
{
    for (int i = 0; i < batch_size; i++) {
        const float *a_row = a + (size_t)i * in_size;
        float *sums = out + (size_t)i * out_size;

        for (int j = 0; j < out_size; j++)
            sums[j] = 0.0f;

        for (int k = 0; k < in_size; k++) {
            const float *b_row = b + (size_t)k * out_size;

            for (int j = 0; j < out_size; j++)
                sums[j] += a_row[k] * b_row[j];
        }
    }
}
