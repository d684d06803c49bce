/*
 * A convolution that is right, and with one of these macros defined wrong in
 * one way that people get wrong. The tests must tell each from the right one.
 */
#include <string.h>

#ifdef SYMMETRIC_SAME /* pads both sides by half a kernel, whatever the image and the stride */
#define BEFORE(total, filter) ((filter) / 2)
#elif defined(ODD_PADDING_FIRST) /* the odd row or column goes above and left */
#define BEFORE(total, filter) (((total) + 1) / 2)
#else
#define BEFORE(total, filter) ((total) / 2)
#endif

static int before(int size, int filter, int stride, const char *padding)
{
    const int total = ((size + stride - 1) / stride - 1) * stride + filter - size;

    return strcmp(padding, "SAME") == 0 && total > 0 ? BEFORE(total, filter) : 0;
}

static int outputs(int size, int filter, int stride, const char *padding)
{
    return strcmp(padding, "SAME") == 0 ? (size + stride - 1) / stride
                                        : (size - filter) / stride + 1;
}

void conv2d(const float *inputs, const float *filters, int batch, int h, int w, int in_ch,
            int filter_h, int filter_w, int out_ch, int stride_h, int stride_w,
            const char *padding, float *out)
{
#ifdef SWAPPED_STRIDES
    const int step_y = stride_w, step_x = stride_h;
#else
    const int step_y = stride_h, step_x = stride_w;
#endif
    const int rows = outputs(h, filter_h, stride_h, padding);
    const int columns = outputs(w, filter_w, stride_w, padding);
    const int top = before(h, filter_h, stride_h, padding);
    const int left = before(w, filter_w, stride_w, padding);

    for (int at = 0; at < batch * rows * columns * out_ch; at++) {
        const int o = at % out_ch, column = at / out_ch % columns;
        const int row = at / out_ch / columns % rows, image = at / out_ch / columns / rows;
        float sum = 0;
#ifdef LAST_ROW_UNWRITTEN
        if (row == rows - 1)
            continue;
#endif
#ifdef LAST_IMAGE_UNWRITTEN
        if (batch > 1 && image == batch - 1)
            continue;
#endif
        for (int i = 0; i < filter_h; i++)
        for (int j = 0; j < filter_w; j++)
        for (int c = 0; c < in_ch; c++) {
            const int y = row * step_y + i - top, x = column * step_x + j - left;
#ifdef ROTATED_KERNEL
            const int tap = (filter_h - 1 - i) * filter_w + filter_w - 1 - j;
#elif defined(TRANSPOSED_KERNEL)
            const int tap = (j * filter_h + i);
#else
            const int tap = i * filter_w + j;
#endif
#ifdef OUTPUT_CHANNELS_FIRST
            const int weight = (o * filter_h * filter_w + tap) * in_ch + c;
#else
            const int weight = (tap * in_ch + c) * out_ch + o;
#endif
            if (y < 0 || y >= h || x < 0 || x >= w)
                continue;
#ifdef SWAPPED_HEIGHT_AND_WIDTH
            sum += inputs[((image * w + x) * h + y) * in_ch + c] * filters[weight];
#else
            sum += inputs[((image * h + y) * w + x) * in_ch + c] * filters[weight];
#endif
        }
        out[at] = sum;
    }
}
