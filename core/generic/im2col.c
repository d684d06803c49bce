/* A tile of the matrix that turns a convolution into a matrix product. */
#include <string.h>

#include "internal.h"

typedef struct {
  const og_conv2d_spec *s;
  const char *input;
  char *to;
  og_dtype input_dtype, columns_dtype;
  int64_t channels;                /* of one group */
  int64_t pixel, next_channel, base; /* strides in elements, and the group's first channel */
  int64_t from_size, to_size;      /* bytes of an element */
  int copies;                      /* taps side by side lie as the columns do: one memcpy */
} tile;

static void fill_taps(tile *t, int64_t taps) {
  int64_t count = taps * t->channels;
  if (t->s->pad_value == 0)
    memset(t->to, 0, (size_t)(count * t->to_size)); /* zero is zero bits in every dtype */
  else
    og_fill(t->to, t->columns_dtype, t->s->pad_value, count);
  t->to += count * t->to_size;
}

/* `size` bytes that end where the `bytes` bytes end, and `size` that begin where they begin. */
#define MOVE_BOTH_ENDS(size)                            \
  {                                                     \
    char head[size], tail[size];                        \
    memcpy(head, from, size);                           \
    memcpy(tail, from + bytes - size, size);            \
    memcpy(to, head, size);                             \
    memcpy(to + bytes - size, tail, size);              \
  }

/* A few taps are a few bytes: overlapping moves of a fixed size beat a call of memcpy. */
static inline void copy_short(char *to, const char *from, size_t bytes) {
  if (bytes > 32)
    memcpy(to, from, bytes);
  else if (bytes >= 16)
    MOVE_BOTH_ENDS(16)
  else if (bytes >= 8)
    MOVE_BOTH_ENDS(8)
  else if (bytes >= 4)
    MOVE_BOTH_ENDS(4)
  else
    for (size_t i = 0; i < bytes; i++) to[i] = from[i];
}

/* The taps [first, last) of one kernel row, all inside the input; `x` is where tap 0 falls. */
static int64_t copy_taps(tile *t, int64_t line, int64_t x, int64_t first, int64_t last) {
  const og_conv2d_spec *s = t->s;
  if (t->copies) {
    size_t bytes = (size_t)((last - first) * t->channels * t->to_size);
    copy_short(t->to, t->input + (line + (x + first) * t->pixel) * t->from_size, bytes);
    t->to += bytes;
    return -1;
  }
  for (int64_t tap = first; tap < last; tap++, t->to += t->channels * t->to_size) {
    int64_t from = line + (x + tap * s->dilation_w) * t->pixel + t->base;
    int64_t bad = og_convert(t->to, t->columns_dtype, 1, t->input + from * t->from_size,
                             t->input_dtype, t->next_channel, t->channels, 1);
    if (bad >= 0) return from + bad * t->next_channel;
  }
  return -1;
}

static int64_t clamp(int64_t value, int64_t least, int64_t most) {
  return value < least ? least : value > most ? most : value;
}

/* One row of the matrix: the window whose first tap falls on (y, x), in or outside. */
static int64_t copy_window(tile *t, int64_t image, int64_t y, int64_t x) {
  const og_conv2d_spec *s = t->s;
  const int64_t d = s->dilation_w;
  int64_t first = 0, last = s->filter_w;
  if (x < 0 || x + (s->filter_w - 1) * d >= s->in_w) { /* at an edge; divisions are slow */
    first = clamp(x < 0 ? (-x + d - 1) / d : 0, 0, s->filter_w);
    last = clamp(x < s->in_w ? (s->in_w - 1 - x) / d + 1 : 0, first, s->filter_w);
  }
  for (int64_t fy = 0; fy < s->filter_h; fy++) {
    int64_t iy = y + fy * s->dilation_h;
    if (iy < 0 || iy >= s->in_h) {
      fill_taps(t, s->filter_w);
      continue;
    }
    int64_t line = image * s->in_h * s->in_w * s->in_ch + iy * s->in_w * t->pixel;
    if (first) fill_taps(t, first);
    int64_t bad = first < last ? copy_taps(t, line, x, first, last) : -1;
    if (bad >= 0) return bad;
    if (last < s->filter_w) fill_taps(t, s->filter_w - last);
  }
  return -1;
}

int64_t og_im2col(const og_conv2d_spec *s, int64_t group, int64_t first, int64_t count,
                  const void *input, og_dtype input_dtype, void *columns, og_dtype columns_dtype) {
  tile t = {.s = s, .input = input, .to = columns, .input_dtype = input_dtype};
  t.columns_dtype = columns_dtype;
  t.channels = s->in_ch / s->groups;
  t.pixel = s->channels_first ? 1 : s->in_ch;
  t.next_channel = s->channels_first ? s->in_h * s->in_w : 1;
  t.base = group * t.channels * t.next_channel;
  t.from_size = (int64_t)og_dtype_size(input_dtype);
  t.to_size = (int64_t)og_dtype_size(columns_dtype);
  t.copies = input_dtype == columns_dtype && s->dilation_w == 1 && s->groups == 1 &&
             (!s->channels_first || s->in_ch == 1);
  int64_t x = first % s->out_w, y = first / s->out_w % s->out_h, image = first / s->out_w / s->out_h;
  for (int64_t row = 0; row < count; row++) {
    int64_t bad = copy_window(&t, image, y * s->stride_h - s->pad_top, x * s->stride_w - s->pad_left);
    if (bad >= 0) return bad;
    if (++x == s->out_w) {
      x = 0;
      if (++y == s->out_h) y = 0, image++;
    }
  }
  return -1;
}
