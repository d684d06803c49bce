/* Matrix products that are right, and that do it in a way a checker may not expect. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIGNATURE(name)                                                                   \
    void name(const float *a, const float *b, int m, int k, int n, float *out)

#define A(i, l) a[(size_t)(i) * k + (l)]
#define B(l, j) b[(size_t)(l) * n + (j)]
#define OUT(i, j) out[(size_t)(i) * n + (j)]
#define EACH(index, count) for (int index = 0; index < (count); index++)

/* ---- orders of summation -------------------------------------------------------------- */

SIGNATURE(last_term_first)
{
    EACH(i, m) EACH(j, n) {
        float sum = 0;
        for (int l = k - 1; l >= 0; l--)
            sum += A(i, l) * B(l, j);
        OUT(i, j) = sum;
    }
}

static float halves(const float *a, const float *b, int terms, int step)
{
    if (terms == 0)
        return 0;
    if (terms == 1)
        return *a * *b;
    return halves(a, b, terms / 2, step)
           + halves(a + terms / 2, b + (size_t)(terms / 2) * step, terms - terms / 2, step);
}

SIGNATURE(pairwise)
{
    EACH(i, m) EACH(j, n) OUT(i, j) = halves(a + (size_t)i * k, b + j, k, n);
}

SIGNATURE(compensated) /* Kahan */
{
    EACH(i, m) EACH(j, n) {
        volatile float sum = 0, lost = 0;
        EACH(l, k) {
            const volatile float term = A(i, l) * B(l, j) - lost;
            const volatile float next = sum + term;
            lost = (next - sum) - term;
            sum = next;
        }
        OUT(i, j) = sum;
    }
}

SIGNATURE(fused)
{
    EACH(i, m) EACH(j, n) {
        float sum = 0;
        EACH(l, k) sum = fmaf(A(i, l), B(l, j), sum);
        OUT(i, j) = sum;
    }
}

SIGNATURE(in_blocks)
{
    EACH(i, m) EACH(j, n) {
        float total = 0;
        for (int first = 0; first < k; first += 4) {
            float block = 0;
            for (int l = first; l < k && l < first + 4; l++)
                block += A(i, l) * B(l, j);
            total += block;
        }
        OUT(i, j) = total;
    }
}

SIGNATURE(in_double)
{
    EACH(i, m) EACH(j, n) {
        double sum = 0;
        EACH(l, k) sum += (double)A(i, l) * B(l, j);
        OUT(i, j) = (float)sum;
    }
}

SIGNATURE(four_sums)
{
    EACH(i, m) EACH(j, n) {
        float sums[4] = {0};
        EACH(l, k) sums[l % 4] += A(i, l) * B(l, j);
        OUT(i, j) = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    }
}

static int by_magnitude(const void *left, const void *right)
{
    const float p = fabsf(*(const float *)left), q = fabsf(*(const float *)right);
    return (p > q) - (p < q);
}

SIGNATURE(smallest_terms_first)
{
    float *terms = malloc((size_t)(k + 1) * sizeof *terms);
    EACH(i, m) EACH(j, n) {
        EACH(l, k) terms[l] = A(i, l) * B(l, j);
        qsort(terms, k, sizeof *terms, by_magnitude);
        OUT(i, j) = 0;
        EACH(l, k) OUT(i, j) += terms[l];
    }
    free(terms);
}

/* ---- orders of loops ------------------------------------------------------------------ */

SIGNATURE(in_place) /* the output is set to zero, and summed in */
{
    memset(out, 0, (size_t)m * n * sizeof *out);
    EACH(i, m) EACH(l, k) EACH(j, n) OUT(i, j) += A(i, l) * B(l, j);
}

SIGNATURE(columns_first)
{
    for (int j = n - 1; j >= 0; j--) EACH(i, m) {
        float sum = 0;
        EACH(l, k) sum += A(i, l) * B(l, j);
        OUT(i, j) = sum;
    }
}

SIGNATURE(outer_products)
{
    EACH(i, m) EACH(j, n) OUT(i, j) = -0.0f;
    EACH(l, k) EACH(j, n) EACH(i, m) OUT(i, j) += A(i, l) * B(l, j);
}

#define TILE 3
#define TILES(index, count) for (int index##0 = 0; index##0 < (count); index##0 += TILE)
#define IN_TILE(index, count)                                                             \
    for (int index = index##0; index < (count) && index < index##0 + TILE; index++)

SIGNATURE(tiled)
{
    EACH(i, m) EACH(j, n) OUT(i, j) = 0;
    TILES(j, n) TILES(l, k) TILES(i, m)
        IN_TILE(i, m) IN_TILE(l, k) IN_TILE(j, n) OUT(i, j) += A(i, l) * B(l, j);
}

/* Cut the longest side in half until one product is left. */
static void cut(const float *a, const float *b, int m, int k, int n, float *out, int lda, int ldb)
{
    if (m == 0 || k == 0 || n == 0)
        return;
    if (m == 1 && k == 1 && n == 1) {
        *out += *a * *b;
    } else if (m >= k && m >= n) {
        const size_t half = m / 2;
        cut(a, b, m / 2, k, n, out, lda, ldb);
        cut(a + half * lda, b, m - m / 2, k, n, out + half * ldb, lda, ldb);
    } else if (k >= n) {
        const size_t half = k / 2;
        cut(a, b, m, k / 2, n, out, lda, ldb);
        cut(a + half, b + half * ldb, m, k - k / 2, n, out, lda, ldb);
    } else {
        cut(a, b, m, k, n / 2, out, lda, ldb);
        cut(a, b + n / 2, m, k, n - n / 2, out + n / 2, lda, ldb);
    }
}

SIGNATURE(recursive)
{
    memset(out, 0, (size_t)m * n * sizeof *out);
    cut(a, b, m, k, n, out, k, n);
}

SIGNATURE(transposed_copy) /* of the second operand, in memory of its own */
{
    float *turned = malloc(((size_t)k * n + 1) * sizeof *turned);
    EACH(l, k) EACH(j, n) turned[(size_t)j * k + l] = B(l, j);
    EACH(i, m) EACH(j, n) {
        float sum = 0;
        EACH(l, k) sum += A(i, l) * turned[(size_t)j * k + l];
        OUT(i, j) = sum;
    }
    free(turned);
}

SIGNATURE(large_scratch) /* 64 MiB, of which it writes as much as it needs */
{
    float *sums = calloc(1 << 24, sizeof *sums);
    EACH(i, m) EACH(j, n) {
        EACH(l, k) sums[j] += A(i, l) * B(l, j);
        OUT(i, j) = sums[j];
        sums[j] = 0;
    }
    free(sums);
}

SIGNATURE(output_as_scratch) /* writes every number three times */
{
    EACH(i, m) EACH(j, n) OUT(i, j) = NAN;
    EACH(i, m) EACH(j, n) OUT(i, j) = (float)j;
    in_double(a, b, m, k, n, out);
}

SIGNATURE(talkative)
{
    fprintf(stderr, "%d x %d x %d\n", m, k, n);
    printf("%d x %d x %d\n", m, k, n);
    fflush(stdout);
    in_place(a, b, m, k, n, out);
}

/* ---- types ------------------------------------------------------------------------------ */

#define TYPED(name, returned, operand, size, result, end)                                 \
    returned name(const operand *a, const operand *b, size m, size k, size n, result *out) \
    {                                                                                     \
        for (size i = 0; i < m; i++)                                                      \
            for (size j = 0; j < n; j++) {                                                \
                result sum = 0;                                                           \
                for (size l = 0; l < k; l++)                                              \
                    sum += (result)a[i * k + l] * b[l * n + j];                           \
                out[i * n + j] = sum;                                                     \
            }                                                                             \
        end                                                                               \
    }

TYPED(size_t_sizes, void, float, size_t, float, )
TYPED(int64_sizes, int, float, int64_t, float, return 0;)
TYPED(unsigned_sizes, int, float, unsigned, float, return 0;)
TYPED(doubles, void, double, int, double, )
TYPED(wide_result, void, float, long, double, )
TYPED(bytes, void, int8_t, int, int32_t, )
TYPED(unsigned_bytes, int, uint8_t, uint32_t, uint32_t, return 0;)
