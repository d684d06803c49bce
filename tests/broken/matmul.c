/* A matrix product that is right, and with one of these macros defined wrong in one way. */
#ifdef FIRST_OPERAND_TRANSPOSED
#define A(i, l) a[(l) * m + (i)]
#else
#define A(i, l) a[(i) * k + (l)]
#endif

#ifdef SECOND_OPERAND_TRANSPOSED
#define B(l, j) b[(j) * k + (l)]
#else
#define B(l, j) b[(l) * n + (j)]
#endif

#ifdef RESULT_TRANSPOSED
#define OUT(i, j) out[(j) * m + (i)]
#else
#define OUT(i, j) out[(i) * n + (j)]
#endif

#ifdef FIRST_TERM_LEFT_OUT
#define FIRST_TERM 1
#else
#define FIRST_TERM 0
#endif
#ifdef LAST_TERM_LEFT_OUT
#define TERMS (k - 1)
#else
#define TERMS k
#endif
#ifdef LAST_ROW_UNWRITTEN
#define ROWS (m - 1)
#else
#define ROWS m
#endif
#ifdef LAST_COLUMN_UNWRITTEN
#define COLUMNS (n - 1)
#else
#define COLUMNS n
#endif
#ifdef EVERY_OTHER_COLUMN_UNWRITTEN
#define STEP 2
#else
#define STEP 1
#endif

#ifdef ADDS_TO_OUTPUT
#define RESULT(i, j) (OUT(i, j) + sum)
#elif defined(TIMES_ZERO_IS_ZERO) /* beta * out + sum with beta = 0: not for a NaN in out */
#define RESULT(i, j) (0 * OUT(i, j) + sum)
#elif defined(SLIGHTLY_TOO_LARGE)
#define RESULT(i, j) (sum * 1.0005f)
#elif defined(LARGE_SUMS_CUT_OFF)
#define RESULT(i, j) (sum > 6 ? 6 : sum)
#elif defined(MEAN_OVER_THE_ROWS)
#define RESULT(i, j) (sum / m)
#else
#define RESULT(i, j) sum
#endif

void matmul(const float *a, const float *b, int m, int k, int n, float *out)
{
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j += STEP) {
            float sum = 0;

            for (int l = FIRST_TERM; l < TERMS; l++)
                sum += A(i, l) * B(l, j);
            OUT(i, j) = RESULT(i, j);
        }
}
