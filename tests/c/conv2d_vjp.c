/* Vector-Jacobian products of a convolution of an image that is padded already. */
#include <string.h>

int conv2d_vjp(const float *x, const float *w, const float *dy, int batch, int in_h, int in_w,
               int in_ch, int filter_h, int filter_w, int out_ch, int out_h, int out_w,
               int stride_h, int stride_w, int dilation_h, int dilation_w, float *dx, float *dw)
{
    memset(dx, 0, sizeof *dx * batch * in_h * in_w * in_ch);
    memset(dw, 0, sizeof *dw * filter_h * filter_w * in_ch * out_ch);
    for (int b = 0; b < batch; b++)
    for (int y = 0; y < out_h; y++)
    for (int q = 0; q < out_w; q++)
    for (int o = 0; o < out_ch; o++) {
        float g = dy[((b * out_h + y) * out_w + q) * out_ch + o];
        for (int i = 0; i < filter_h; i++)
        for (int j = 0; j < filter_w; j++)
        for (int c = 0; c < in_ch; c++) {
            int at = ((b * in_h + y * stride_h + i * dilation_h) * in_w + q * stride_w
                      + j * dilation_w) * in_ch + c;
            int tap = ((i * filter_w + j) * in_ch + c) * out_ch + o;
            dx[at] += g * w[tap];
            dw[tap] += g * x[at];
        }
    }
    return 0;
}

/* At stride 1 and without dilation, the kernel's gradient alone. */
void conv2d_dw(const double *image, const double *grad_out, long n, long h, long w, long c,
               long kh, long kw, long filters, double *grad_w)
{
    long out_h = h - kh + 1, out_w = w - kw + 1;
    memset(grad_w, 0, sizeof *grad_w * kh * kw * c * filters);
    for (long b = 0; b < n; b++)
    for (long y = 0; y < out_h; y++)
    for (long x = 0; x < out_w; x++)
    for (long at = 0; at < kh * kw * c * filters; at++) {
        long o = at % filters, ch = at / filters % c, j = at / filters / c % kw;
        long i = at / filters / c / kw;
        grad_w[at] += grad_out[((b * out_h + y) * out_w + x) * filters + o]
                    * image[((b * h + y + i) * w + x + j) * c + ch];
    }
}

/* And the image's. */
void conv2d_dx(const double *weights, const double *grad_out, long n, long h, long w, long c,
               long kh, long kw, long filters, double *grad_x)
{
    long out_h = h - kh + 1, out_w = w - kw + 1;
    memset(grad_x, 0, sizeof *grad_x * n * h * w * c);
    for (long b = 0; b < n; b++)
    for (long y = 0; y < out_h; y++)
    for (long x = 0; x < out_w; x++)
    for (long at = 0; at < kh * kw * c * filters; at++) {
        long o = at % filters, ch = at / filters % c, j = at / filters / c % kw;
        long i = at / filters / c / kw;
        grad_x[((b * h + y + i) * w + x + j) * c + ch]
            += grad_out[((b * out_h + y) * out_w + x) * filters + o] * weights[at];
    }
}
