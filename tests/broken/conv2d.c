/*
 * A convolution that is right, and with one of these macros defined wrong in
 * one way that people get wrong. The tests must tell each from the right one.
 *
 * Everything that a mistake can change is a macro of its own, above the loops.
 */
#include <math.h>
#include <string.h>

/* ---- how many zeros stand before the first pixel, and when ------------------------- */

#ifdef SYMMETRIC_SAME /* pads both sides by half a kernel, whatever the image and the stride */
#define BEFORE(total, filter) ((filter) / 2)
#elif defined(ODD_PADDING_FIRST) /* the odd row or column goes above and left */
#define BEFORE(total, filter) (((total) + 1) / 2)
#else
#define BEFORE(total, filter) ((total) / 2)
#endif

#ifdef VALID_INSTEAD_OF_SAME /* and the output is packed as VALID has it */
#define IS_SAME(padding) ((void)(padding), 0)
#else
#define IS_SAME(padding) (strcmp(padding, "SAME") == 0)
#endif

/* ---- where the values lie ------------------------------------------------------------ */

#ifdef ROTATED_KERNEL
#define TAP(i, j) ((filter_h - 1 - (i)) * filter_w + filter_w - 1 - (j))
#elif defined(TRANSPOSED_KERNEL)
#define TAP(i, j) ((j) * filter_h + (i))
#else
#define TAP(i, j) ((i) * filter_w + (j))
#endif

#ifdef OUTPUT_CHANNELS_FIRST /* OHWI */
#define WEIGHT(i, j, c, o) (((o) * filter_h * filter_w + TAP(i, j)) * in_ch + (c))
#elif defined(BOTH_CHANNELS_FIRST) /* OIHW */
#define WEIGHT(i, j, c, o) (((o) * in_ch + (c)) * filter_h * filter_w + TAP(i, j))
#elif defined(INPUT_CHANNELS_LAST) /* HWOI */
#define WEIGHT(i, j, c, o) ((TAP(i, j) * out_ch + (o)) * in_ch + (c))
#else
#define WEIGHT(i, j, c, o) ((TAP(i, j) * in_ch + (c)) * out_ch + (o))
#endif

#ifdef SWAPPED_HEIGHT_AND_WIDTH
#define PIXEL(y, x, c) (((image * w + (x)) * h + (y)) * in_ch + (c))
#elif defined(NCHW_INPUT)
#define PIXEL(y, x, c) (((image * in_ch + (c)) * h + (y)) * w + (x))
#elif defined(FIRST_IMAGE_ONLY) /* every image of a batch is taken to be the first */
#define PIXEL(y, x, c) (((y) * w + (x)) * in_ch + (c))
#elif defined(ROWS_OF_EVEN_LENGTH) /* steps from row to row by pairs of pixels */
#define PIXEL(y, x, c) ((image * h * w + (y) * (w / 2 * 2) + (x)) * in_ch + (c))
#elif defined(SQUARE_IMAGES) /* takes rows to be as long as there are rows */
#define PIXEL(y, x, c) ((image * h * w + ((y) * h + (x)) % (h * w)) * in_ch + (c))
#else
#define PIXEL(y, x, c) (((image * h + (y)) * w + (x)) * in_ch + (c))
#endif

#ifdef NCHW_OUTPUT
#define OUT (((image * out_ch + o) * rows + row) * columns + column)
#else
#define OUT at
#endif

/* ---- which of them are read and written --------------------------------------------- */

#ifdef SWAPPED_STRIDES
#define STEP_Y stride_w
#define STEP_X stride_h
#else
#define STEP_Y stride_h
#define STEP_X stride_w
#endif

#ifdef STRIDES_IGNORED /* stride 1, of which as many outputs are kept as there is room for */
#define STRIDE(stride) 1
#else
#define STRIDE(stride) (stride)
#endif

#ifdef SHIFTED_BY_ONE_ROW
#define ROW (row + 1)
#else
#define ROW row
#endif
#ifdef SHIFTED_BY_ONE_COLUMN
#define COLUMN (column + 1)
#else
#define COLUMN column
#endif

#ifdef LAST_KERNEL_ROW_LEFT_OUT
#define KERNEL_ROWS (filter_h - 1)
#else
#define KERNEL_ROWS filter_h
#endif
#ifdef LAST_KERNEL_COLUMN_LEFT_OUT
#define KERNEL_COLUMNS (filter_w - 1)
#else
#define KERNEL_COLUMNS filter_w
#endif
#ifdef LAST_INPUT_CHANNEL_LEFT_OUT
#define INPUT_CHANNELS (in_ch - 1)
#else
#define INPUT_CHANNELS in_ch
#endif

#ifdef LAST_ROW_UNWRITTEN
#define IS_WRITTEN (row < rows - 1)
#elif defined(LAST_COLUMN_UNWRITTEN)
#define IS_WRITTEN (column < columns - 1)
#elif defined(LAST_CHANNEL_UNWRITTEN)
#define IS_WRITTEN (o < out_ch - 1)
#elif defined(LAST_IMAGE_UNWRITTEN)
#define IS_WRITTEN (batch == 1 || image < batch - 1)
#elif defined(OUTSIDE_UNWRITTEN) /* leaves out whatever it believes to be zero already */
#define IS_WRITTEN (sum != 0)
#else
#define IS_WRITTEN 1
#endif

/* ---- what becomes of a sum ------------------------------------------------------------ */

#ifdef MEAN_OVER_THE_BATCH
#define RESULT (sum / batch)
#elif defined(SLIGHTLY_TOO_LARGE)
#define RESULT (sum * 1.0005f)
#elif defined(SIGN_REVERSED)
#define RESULT (-sum)
#elif defined(ADDS_TO_OUTPUT)
#define RESULT (out[OUT] + sum)
#elif defined(NAN_FROM_THE_THIRD_IMAGE)
#define RESULT (image > 1 ? NAN : sum)
#elif defined(ABSOLUTE_VALUES)
#define RESULT (sum < 0 ? -sum : sum)
#else
#define RESULT sum
#endif

static int before(int size, int filter, int stride, const char *padding)
{
    const int total = ((size + stride - 1) / stride - 1) * stride + filter - size;

    return IS_SAME(padding) && total > 0 ? BEFORE(total, filter) : 0;
}

static int outputs(int size, int filter, int stride, const char *padding)
{
    if (IS_SAME(padding))
        return (size + stride - 1) / stride;
    return size < filter ? 0 : (size - filter) / stride + 1;
}

void conv2d(const float *inputs, const float *filters, int batch, int h, int w, int in_ch,
            int filter_h, int filter_w, int out_ch, int stride_h, int stride_w,
            const char *padding, float *out)
{
    const int rows = outputs(h, filter_h, stride_h, padding);
    const int columns = outputs(w, filter_w, stride_w, padding);
    const int top = before(h, filter_h, STRIDE(stride_h), padding);
    const int left = before(w, filter_w, STRIDE(stride_w), padding);

    for (int at = 0; at < batch * rows * columns * out_ch; at++) {
        const int o = at % out_ch, column = at / out_ch % columns;
        const int row = at / out_ch / columns % rows, image = at / out_ch / columns / rows;
        float sum = 0;

        for (int i = 0; i < KERNEL_ROWS; i++)
        for (int j = 0; j < KERNEL_COLUMNS; j++)
        for (int c = 0; c < INPUT_CHANNELS; c++) {
            const int y = ROW * STRIDE(STEP_Y) + i - top;
            const int x = COLUMN * STRIDE(STEP_X) + j - left;

            if (y >= 0 && y < h && x >= 0 && x < w)
                sum += inputs[PIXEL(y, x, c)] * filters[WEIGHT(i, j, c, o)];
        }
        (void)image; /* some mistakes have no use for it */
        if (IS_WRITTEN)
            out[OUT] = RESULT;
    }
}
