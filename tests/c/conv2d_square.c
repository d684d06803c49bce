/*
 * A float convolution with one stride, one dilation and one padding for both
 * axes, and groups: each serves the calls in which both axes agree.
 */
void conv2d_square(const float *x, const float *kernel, long n, long ih, long iw, long cin, long kh,
                   long kw, long cout, long stride, long dilation, long pad, long groups, float *y)
{
    const long ins = cin / groups, outs = cout / groups;
    const long rows = (ih + 2 * pad - (kh - 1) * dilation - 1) / stride + 1;
    const long columns = (iw + 2 * pad - (kw - 1) * dilation - 1) / stride + 1;

    for (long at = 0; at < n * rows * columns * cout; at++) {
        const long o = at % cout, left = at / cout % columns * stride - pad;
        const long top = at / cout / columns % rows * stride - pad, image = at / cout / columns / rows;
        float sum = 0;
        for (long i = 0; i < kh; i++)
        for (long j = 0; j < kw; j++) {
            const long row = top + i * dilation, column = left + j * dilation;
            if (row < 0 || row >= ih || column < 0 || column >= iw)
                continue;
            for (long c = 0; c < ins; c++)
                sum += x[((image * ih + row) * iw + column) * cin + o / outs * ins + c]
                       * kernel[((i * kw + j) * ins + c) * cout + o];
        }
        y[at] = sum;
    }
}
