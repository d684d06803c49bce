/*
 * A float convolution with every parameter that a convolution can have, in an
 * unusual order and in several integer types. Padded positions hold pad_value.
 */
#include <stddef.h>
#include <stdint.h>

int conv2d_full(float *out, double pad_value, const float *kernel, size_t groups, int64_t batch,
                short stride_h, short stride_w, const float *input, uint8_t dilation_h,
                uint8_t dilation_w, int in_h, int in_w, long in_ch, int filter_h, int filter_w,
                unsigned out_ch, int64_t out_h, int64_t out_w, int pad_top, int pad_bottom,
                int pad_left, int pad_right)
{
    const int64_t ins = in_ch / (int64_t)groups, outs = out_ch / (int64_t)groups;

    if ((out_h - 1) * stride_h + (filter_h - 1) * dilation_h >= in_h + pad_top + pad_bottom)
        return 1; /* the last row would reach beyond the padding */
    if ((out_w - 1) * stride_w + (filter_w - 1) * dilation_w >= in_w + pad_left + pad_right)
        return 2;
    for (int64_t n = 0; n < batch; n++)
    for (int64_t row = 0; row < out_h; row++)
    for (int64_t column = 0; column < out_w; column++)
    for (int64_t o = 0; o < out_ch; o++) {
        float sum = 0;
        for (int i = 0; i < filter_h; i++)
        for (int j = 0; j < filter_w; j++)
        for (int64_t c = 0; c < ins; c++) {
            const int64_t y = row * stride_h + i * dilation_h - pad_top;
            const int64_t x = column * stride_w + j * dilation_w - pad_left;
            const int inside = y >= 0 && y < in_h && x >= 0 && x < in_w;
            const int64_t channel = o / outs * ins + c;
            const float value =
                inside ? input[((n * in_h + y) * in_w + x) * in_ch + channel] : (float)pad_value;
            sum += value * kernel[((i * filter_w + j) * ins + c) * out_ch + o];
        }
        *out++ = sum;
    }
    return 0;
}
