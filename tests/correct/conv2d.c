/* Convolutions that are right, and that do it in a way a checker may not expect. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SIGNATURE(name)                                                                   \
    void name(const float *x, const float *kernel, int batch, int h, int w, int in_ch,    \
              int kh, int kw, int out_ch, int stride_h, int stride_w, const char *padding, \
              float *out)

#define EACH(index, count) for (int index = 0; index < (count); index++)

struct axis {
    int out, before;
};

static struct axis resolve(int size, int taps, int stride, const char *padding)
{
    struct axis axis = {size < taps ? 0 : (size - taps) / stride + 1, 0};

    if (padding[0] == 'S') {
        axis.out = 1 + (size - 1) / stride;
        const int missing = (axis.out - 1) * stride + taps - size;
        axis.before = missing > 0 ? missing / 2 : 0;
    }
    return axis;
}

#define RESOLVE                                                                           \
    const struct axis y_axis = resolve(h, kh, stride_h, padding);                         \
    const struct axis x_axis = resolve(w, kw, stride_w, padding);                         \
    const size_t outputs = (size_t)batch * y_axis.out * x_axis.out * out_ch;              \
    (void)outputs

#define OUT(n, row, column)                                                               \
    (out + (((size_t)(n) * y_axis.out + (row)) * x_axis.out + (column)) * out_ch)
#define PIXEL(n, y, x_) (x + (((size_t)(n) * h + (y)) * w + (x_)) * in_ch)
#define WEIGHTS(i, j, c) (kernel + (((size_t)(i) * kw + (j)) * in_ch + (c)) * out_ch)

/* Every pixel is sent to the outputs that it belongs to. */
SIGNATURE(scattered)
{
    RESOLVE;
    memset(out, 0, outputs * sizeof *out);
    EACH(n, batch) EACH(y, h) EACH(xx, w) EACH(i, kh) EACH(j, kw) {
        const int row = y - i + y_axis.before, column = xx - j + x_axis.before;
        if (row < 0 || row % stride_h || row / stride_h >= y_axis.out)
            continue;
        if (column < 0 || column % stride_w || column / stride_w >= x_axis.out)
            continue;
        float *sums = OUT(n, row / stride_h, column / stride_w);
        EACH(c, in_ch) EACH(o, out_ch) sums[o] += PIXEL(n, y, xx)[c] * WEIGHTS(i, j, c)[o];
    }
}

/* One tap after the other, over the whole batch; the taps last to first. */
SIGNATURE(taps_outside)
{
    RESOLVE;
    for (size_t at = 0; at < outputs; at++)
        out[at] = 0;
    for (int i = kh - 1; i >= 0; i--) for (int j = kw - 1; j >= 0; j--)
    EACH(n, batch) EACH(row, y_axis.out) EACH(column, x_axis.out) {
        const int y = row * stride_h + i - y_axis.before;
        const int xx = column * stride_w + j - x_axis.before;
        if (y < 0 || y >= h || xx < 0 || xx >= w)
            continue;
        EACH(c, in_ch) EACH(o, out_ch)
            OUT(n, row, column)[o] += PIXEL(n, y, xx)[c] * WEIGHTS(i, j, c)[o];
    }
}

/* A padded copy of the image, so that the loops need not ask; one output channel at a time. */
SIGNATURE(padded_copy)
{
    RESOLVE;
    const int tall = (y_axis.out > 0 ? (y_axis.out - 1) * stride_h : 0) + kh + h;
    const int wide = (x_axis.out > 0 ? (x_axis.out - 1) * stride_w : 0) + kw + w;
    float *copy = malloc((size_t)tall * wide * in_ch * sizeof *copy);
    EACH(n, batch) {
        memset(copy, 0, (size_t)tall * wide * in_ch * sizeof *copy);
        EACH(y, h)
            memcpy(copy + ((size_t)(y + y_axis.before) * wide + x_axis.before) * in_ch,
                   PIXEL(n, y, 0), (size_t)w * in_ch * sizeof *copy);
        EACH(o, out_ch) EACH(row, y_axis.out) EACH(column, x_axis.out) {
            double sum = 0;
            EACH(i, kh) EACH(j, kw) EACH(c, in_ch)
                sum += (double)copy[((size_t)(row * stride_h + i) * wide + column * stride_w + j)
                                    * in_ch + c] * WEIGHTS(i, j, c)[o];
            OUT(n, row, column)[o] = (float)sum;
        }
    }
    free(copy);
}

/* im2col of one image, then a matrix product. */
SIGNATURE(by_columns)
{
    RESOLVE;
    const size_t inner = (size_t)kh * kw * in_ch, places = (size_t)y_axis.out * x_axis.out;
    float *columns = malloc((places * inner + 1) * sizeof *columns);
    EACH(n, batch) {
        float *next = columns;
        EACH(row, y_axis.out) EACH(column, x_axis.out) EACH(i, kh) EACH(j, kw) {
            const int y = row * stride_h + i - y_axis.before;
            const int xx = column * stride_w + j - x_axis.before;
            const int inside = y >= 0 && y < h && xx >= 0 && xx < w;
            EACH(c, in_ch) *next++ = inside ? PIXEL(n, y, xx)[c] : 0;
        }
        for (size_t place = 0; place < places; place++) EACH(o, out_ch) {
            float sum = 0;
            for (size_t l = 0; l < inner; l++)
                sum += columns[place * inner + l] * kernel[l * out_ch + o];
            out[(n * places + place) * out_ch + o] = sum;
        }
    }
    free(columns);
}

/* A copy of the kernel as OHWI and rotated, which its loops undo. */
SIGNATURE(kernel_turned)
{
    RESOLVE;
    const size_t taps = (size_t)kh * kw;
    float *turned = malloc((taps * in_ch * out_ch + 1) * sizeof *turned);
    EACH(i, kh) EACH(j, kw) EACH(c, in_ch) EACH(o, out_ch)
        turned[(o * taps + taps - 1 - (i * kw + j)) * in_ch + c] = WEIGHTS(i, j, c)[o];
    EACH(n, batch) EACH(row, y_axis.out) EACH(column, x_axis.out) EACH(o, out_ch) {
        float sum = 0;
        for (size_t tap = taps; tap-- > 0;) {
            const int y = row * stride_h + (int)(taps - 1 - tap) / kw - y_axis.before;
            const int xx = column * stride_w + (int)(taps - 1 - tap) % kw - x_axis.before;
            if (y >= 0 && y < h && xx >= 0 && xx < w)
                EACH(c, in_ch) sum += PIXEL(n, y, xx)[c] * turned[(o * taps + tap) * in_ch + c];
        }
        OUT(n, row, column)[o] = sum;
    }
    free(turned);
}

/* ---- other parameters ------------------------------------------------------------------- */

/* Four explicit pads, no output sizes; unsigned sizes, a status, the output in front. */
int four_pads(float *y, const float *x, const float *w, unsigned n, unsigned ih, unsigned iw,
              unsigned cin, unsigned kh, unsigned kw, unsigned cout, unsigned sh, unsigned sw,
              int pad_top, int pad_bottom, int pad_left, int pad_right)
{
    const unsigned oh = (ih + pad_top + pad_bottom - kh) / sh + 1;
    const unsigned ow = (iw + pad_left + pad_right - kw) / sw + 1;

    for (unsigned image = 0; image < n; image++)
    for (unsigned row = 0; row < oh; row++)
    for (unsigned column = 0; column < ow; column++)
    for (unsigned o = 0; o < cout; o++) {
        float sum = 0;
        for (unsigned i = 0; i < kh; i++)
        for (unsigned j = 0; j < kw; j++) {
            const unsigned top = row * sh + i - pad_top, left = column * sw + j - pad_left;
            if (top >= ih || left >= iw) /* also where the difference wrapped around */
                continue;
            for (unsigned c = 0; c < cin; c++)
                sum += x[(((size_t)image * ih + top) * iw + left) * cin + c]
                       * w[(((size_t)i * kw + j) * cin + c) * cout + o];
        }
        *y++ = sum;
    }
    return 0;
}

/* Dilations, groups and a pad value; one group after the other. */
void grouped(const float *x, const float *kernel, int64_t n, int64_t h, int64_t w, int64_t c,
             int64_t kh, int64_t kw, int64_t filters, int64_t sh, int64_t sw, int64_t dh,
             int64_t dw, size_t groups, int64_t top, int64_t bottom, int64_t left, int64_t right,
             int64_t oh, int64_t ow, double pad_value, float *out)
{
    const int64_t ins = c / (int64_t)groups, outs = filters / (int64_t)groups;

    (void)bottom, (void)right;
    for (int64_t o = filters - 1; o >= 0; o--)
    for (int64_t at = 0; at < n * oh * ow; at++) {
        const float *image = x + at / (oh * ow) * h * w * c + o / outs * ins;
        double sum = 0;
        for (int64_t i = 0; i < kh; i++)
        for (int64_t j = 0; j < kw; j++)
        for (int64_t l = 0; l < ins; l++) {
            const int64_t row = at / ow % oh * sh + i * dh - top;
            const int64_t column = at % ow * sw + j * dw - left;
            const int inside = row >= 0 && row < h && column >= 0 && column < w;
            sum += (inside ? image[(row * w + column) * c + l] : pad_value)
                   * kernel[((i * kw + j) * ins + l) * filters + o];
        }
        out[at * filters + o] = (float)sum;
    }
}

/* One image at stride 1 without padding: all the rest is composed by the caller. */
void one_image(const float *image, const float *weights, size_t height, size_t width,
               size_t channels, size_t kernel_h, size_t kernel_w, size_t filters, float *result)
{
    for (size_t y = 0; y + kernel_h <= height; y++)
    for (size_t x = 0; x + kernel_w <= width; x++, result += filters) {
        const size_t row = kernel_w * channels; /* of the window: contiguous in the image too */
        for (size_t o = 0; o < filters; o++)
            result[o] = 0;
        for (size_t i = 0; i < kernel_h; i++)
        for (size_t l = 0; l < row; l++)
        for (size_t o = 0; o < filters; o++)
            result[o] += image[((y + i) * width + x) * channels + l]
                         * weights[(i * row + l) * filters + o];
    }
}
