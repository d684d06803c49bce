/*
 * The vector-Jacobian product of a matrix product, da = dy · bᵀ and db = aᵀ · dy, that is
 * right, and with one of these macros defined wrong in one way.
 */
#ifdef SECOND_TRANSPOSED
#define DB(l, j) db[(j) * k + (l)]
#else
#define DB(l, j) db[(l) * n + (j)]
#endif

#ifdef SLIGHTLY_TOO_LARGE
#define DUE(sum) ((sum) * 1.0005f)
#elif defined(SIGN_REVERSED)
#define DUE(sum) (-(sum))
#else
#define DUE(sum) (sum)
#endif

#ifdef LAST_ROW_MISSING
#define ROWS (m - 1)
#else
#define ROWS m
#endif

#ifdef MEAN
#define COUNT m
#else
#define COUNT 1
#endif

void matmul_vjp(const float *a, const float *b, const float *dy, int m, int k, int n, float *da,
                float *db)
{
#ifdef CRASHES
    *(volatile int *)0 = 1;
#endif
    for (int i = 0; i < m; i++)
        for (int l = 0; l < k; l++) {
            float sum = 0;

            for (int j = 0; j < n; j++)
                sum += dy[i * n + j] * b[l * n + j];
            da[i * k + l] = DUE(i < ROWS ? sum : 0);
        }
    for (int l = 0; l < k; l++)
        for (int j = 0; j < n; j++) {
            float sum = 0;

            for (int i = 0; i < ROWS; i++)
                sum += a[i * k + l] * dy[i * n + j];
            DB(l, j) = DUE(sum) / COUNT;
        }
#ifdef PAST_ITS_END
    db[k * n] = 0;
#endif
}
