/* Vector-Jacobian products of a matrix product: both gradients at once, or one by one. */

void matmul_vjp(const float *a, const float *b, const float *dy, int m, int k, int n, float *da,
                float *db)
{
    for (int i = 0; i < m; i++)
    for (int l = 0; l < k; l++) {
        float sum = 0;
        for (int j = 0; j < n; j++)
            sum += dy[i * n + j] * b[l * n + j];
        da[i * k + l] = sum;
    }
    for (int l = 0; l < k; l++)
    for (int j = 0; j < n; j++) {
        float sum = 0;
        for (int i = 0; i < m; i++)
            sum += a[i * k + l] * dy[i * n + j];
        db[l * n + j] = sum;
    }
}

/* Parameters in another order, under other names, in double. */
void matmul_vjp_double(long n, double *grad_rhs, long k, const double *grad_out, double *grad_lhs,
                       const double *rhs, long m, const double *lhs)
{
    for (long at = 0; at < m * k; at++) {
        grad_lhs[at] = 0;
        for (long j = 0; j < n; j++)
            grad_lhs[at] += grad_out[at / k * n + j] * rhs[at % k * n + j];
    }
    for (long at = 0; at < k * n; at++) {
        grad_rhs[at] = 0;
        for (long i = 0; i < m; i++)
            grad_rhs[at] += lhs[i * k + at / n] * grad_out[i * n + at % n];
    }
}

void matmul_da(const float *w, const float *dy, int m, int k, int n, float *da)
{
    for (int i = 0; i < m; i++)
    for (int l = 0; l < k; l++) {
        float sum = 0;
        for (int j = 0; j < n; j++)
            sum += dy[i * n + j] * w[l * n + j];
        da[i * k + l] = sum;
    }
}

void matmul_dw(const float *x, const float *dy, int m, int k, int n, float *dw)
{
    for (int l = 0; l < k; l++)
    for (int j = 0; j < n; j++) {
        float sum = 0;
        for (int i = 0; i < m; i++)
            sum += x[i * k + l] * dy[i * n + j];
        dw[l * n + j] = sum;
    }
}

/* Takes the output too, and gives it back where it can be seen. */
void matmul_vjp_output(const float *a, const float *b, const float *y, const float *dy, int m,
                       int k, int n, float *da, float *db)
{
    for (int i = 0; i < m; i++)
    for (int l = 0; l < k; l++)
        da[i * k + l] = y[i * n + l % n] + a[i * k + l];
    for (int l = 0; l < k; l++)
    for (int j = 0; j < n; j++)
        db[l * n + j] = dy[j] + b[l * n + j];
}

/* An error where there are three columns. */
int matmul_vjp_fails(const float *dy, int m, int k, int n, float *da, float *db)
{
    for (int at = 0; at < m * k; at++)
        da[at] = dy[0];
    for (int at = 0; at < k * n; at++)
        db[at] = dy[0];
    return n == 3 ? 41 : 0;
}
