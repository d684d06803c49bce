/*
 * The example convolution, laid out as TensorFlow lays it out.
 *
 *   inputs   batch x h x w x in_ch                     (NHWC)
 *   filters  filter_h x filter_w x in_ch x out_ch      (HWIO)
 *   out      batch x out_h x out_w x out_ch            (NHWC)
 *   padding  "SAME" or "VALID"
 *
 * Change the line that multiplies, and the network trains through your arithmetic.
 * The innermost loop runs over neighbours in memory, so that the compiler can vectorise it.
 */
#include <stddef.h>
#include <string.h>

/* One axis: how many outputs, and how many zeros stand before the first input. */
struct axis {
    int outputs, before;
};

/* SAME gives ceil(size / stride) outputs; an odd number of zeros puts the extra one at the end. */
static struct axis axis_of(int size, int filter, int stride, const char *padding)
{
    struct axis axis = {(size - filter + stride) / stride, 0};

    if (strcmp(padding, "SAME") == 0) {
        axis.outputs = (size + stride - 1) / stride;
        const int zeros = (axis.outputs - 1) * stride + filter - size;
        axis.before = zeros > 0 ? zeros / 2 : 0;
    }
    return axis;
}

void custom_conv2d(const float *inputs, const float *filters, int batch, int h, int w, int in_ch,
                   int filter_h, int filter_w, int out_ch, int stride_h, int stride_w,
                   const char *padding, float *out)
{
    const struct axis rows = axis_of(h, filter_h, stride_h, padding);
    const struct axis columns = axis_of(w, filter_w, stride_w, padding);
    float *sums = out; /* the out_ch sums of the output pixel at hand */

    for (int n = 0; n < batch; n++)
    for (int row = 0; row < rows.outputs; row++)
    for (int column = 0; column < columns.outputs; column++, sums += out_ch) {
        for (int o = 0; o < out_ch; o++)
            sums[o] = 0.0f;

        for (int i = 0; i < filter_h; i++)
        for (int j = 0; j < filter_w; j++) {
            const int y = row * stride_h + i - rows.before;
            const int x = column * stride_w + j - columns.before;
            if (y < 0 || y >= h || x < 0 || x >= w)
                continue; /* padding contributes nothing */

            const float *pixel = inputs + (((size_t)n * h + y) * w + x) * in_ch;
            const float *taps = filters + ((size_t)i * filter_w + j) * in_ch * out_ch;

            for (int c = 0; c < in_ch; c++)
                for (int o = 0; o < out_ch; o++)
                    sums[o] += pixel[c] * taps[(size_t)c * out_ch + o];
        }
    }
}
