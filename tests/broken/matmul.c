/* A matrix product that is right, and with one of these macros defined wrong in one way. */
#ifdef SECOND_OPERAND_TRANSPOSED
#define B(l, j) b[(j) * k + (l)]
#else
#define B(l, j) b[(l) * n + (j)]
#endif

void matmul(const float *a, const float *b, int m, int k, int n, float *out)
{
#ifdef LAST_TERM_LEFT_OUT
    const int terms = k - 1;
#else
    const int terms = k;
#endif
#ifdef LAST_ROW_UNWRITTEN
    const int rows = m - 1;
#else
    const int rows = m;
#endif

    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int l = 0; l < terms; l++)
                sum += a[i * k + l] * B(l, j);
#ifdef RESULT_TRANSPOSED
            out[j * m + i] = sum;
#else
            out[i * n + j] = sum;
#endif
        }
}
