/* A tile of the matrix that turns a convolution into a matrix product. */
#include "internal.h"

int64_t og_im2col(const og_conv2d_spec *s, int64_t group, int64_t first, int64_t count,
                  const void *input, og_dtype input_dtype, void *columns, og_dtype columns_dtype) {
  const int64_t channels = s->in_ch / s->groups, plane = s->in_h * s->in_w;
  const int64_t pixel = s->channels_first ? 1 : s->in_ch;
  const int64_t next_channel = s->channels_first ? plane : 1;
  const int64_t base = group * channels * next_channel;
  const int64_t step = channels * (int64_t)og_dtype_size(columns_dtype);
  char *to = columns;
  for (int64_t row = first; row < first + count; row++) {
    int64_t x = row % s->out_w, y = row / s->out_w % s->out_h, image = row / s->out_w / s->out_h;
    for (int64_t fy = 0; fy < s->filter_h; fy++)
      for (int64_t fx = 0; fx < s->filter_w; fx++, to += step) {
        int64_t iy = y * s->stride_h - s->pad_top + fy * s->dilation_h;
        int64_t ix = x * s->stride_w - s->pad_left + fx * s->dilation_w;
        if (iy < 0 || iy >= s->in_h || ix < 0 || ix >= s->in_w) {
          og_fill(to, columns_dtype, s->pad_value, channels);
          continue;
        }
        int64_t from = image * plane * s->in_ch + (iy * s->in_w + ix) * pixel + base;
        const char *source = (const char *)input + from * (int64_t)og_dtype_size(input_dtype);
        int64_t bad = og_convert(to, columns_dtype, 1, source, input_dtype, next_channel,
                                 channels, 1);
        if (bad >= 0) return from + bad * next_channel;
      }
  }
  return -1;
}
