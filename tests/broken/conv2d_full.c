/*
 * A convolution with dilations, groups and a pad value that is right, and with
 * one of these macros defined wrong in one way that people get wrong.
 */
#ifdef DILATIONS_IGNORED
#define DILATION_Y 1
#define DILATION_X 1
#elif defined(DILATIONS_SWAPPED)
#define DILATION_Y dilation_w
#define DILATION_X dilation_h
#else
#define DILATION_Y dilation_h
#define DILATION_X dilation_w
#endif

#ifdef GROUPS_IGNORED /* every group reads the channels of the first */
#define FIRST_CHANNEL 0
#elif defined(GROUPS_REVERSED)
#define FIRST_CHANNEL ((groups - 1 - o / outs) * ins)
#else
#define FIRST_CHANNEL (o / outs * ins)
#endif

#ifdef KERNEL_OF_ALL_CHANNELS /* takes the kernel for one of all channels, as without groups */
#define DEPTH in_ch
#else
#define DEPTH ins
#endif

#ifdef PAD_VALUE_IGNORED
#define OUTSIDE 0
#else
#define OUTSIDE pad_value
#endif

#ifdef BORDER_REPEATED /* a position outside takes the nearest pixel */
#define INSIDE (y = y < 0 ? 0 : y < h ? y : h - 1, x = x < 0 ? 0 : x < w ? x : w - 1, 1)
#else
#define INSIDE (y >= 0 && y < h && x >= 0 && x < w)
#endif

void conv2d_full(const float *input, const float *kernel, long batch, long h, long w, long in_ch,
                 long kernel_h, long kernel_w, long out_ch, long stride_h, long stride_w,
                 long dilation_h, long dilation_w, long groups, long pad_top, long pad_bottom,
                 long pad_left, long pad_right, long out_h, long out_w, float pad_value, float *out)
{
    const long ins = in_ch / groups, outs = out_ch / groups;

    for (long n = 0; n < batch; n++)
    for (long row = 0; row < out_h; row++)
    for (long column = 0; column < out_w; column++)
    for (long o = 0; o < out_ch; o++) {
        float sum = 0;

        for (long i = 0; i < kernel_h; i++)
        for (long j = 0; j < kernel_w; j++)
        for (long c = 0; c < DEPTH; c++) {
            long y = row * stride_h + i * DILATION_Y - pad_top;
            long x = column * stride_w + j * DILATION_X - pad_left;
            const float weight = kernel[((i * kernel_w + j) * DEPTH + c) * out_ch + o];

            if (INSIDE)
                sum += input[((n * h + y) * w + x) * in_ch + (FIRST_CHANNEL + c) % in_ch] * weight;
            else
                sum += OUTSIDE * weight;
        }
        (void)outs, (void)pad_bottom, (void)pad_right, (void)pad_value;
        *out++ = sum;
    }
}
