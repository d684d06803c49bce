/* Scalar products, and approximations that do what the test claims of them. */
#include <stdint.h>
#include <string.h>

float mul(float a, float b) { return b * a; }
double mul_double(double a, double b) { return a * b; }

/* a * b without the lowest bit of a; f(1, b) is 0, and f does not commute. */
int32_t truncated(int32_t a, int32_t b) { return (a & ~1) * b; }

static float short_of(float value)
{
    uint32_t word;

    memcpy(&word, &value, sizeof word);
    word &= 0xffff0000;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* The upper halves of both operands multiplied. */
float cut(float a, float b) { return short_of(a) * short_of(b); }

void cut_matmul(const float *a, const float *b, int m, int k, int n, float *out)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += cut(a[(size_t)i * k + l], b[(size_t)l * n + j]);
            out[(size_t)i * n + j] = sum;
        }
}
