/* A tile of the matrix that turns a convolution into a matrix product. */
#include <string.h>

#include "internal.h"

typedef struct {
  const og_conv2d_spec *s;
  const char *input;
  og_dtype input_dtype, columns_dtype;
  int64_t channels;                  /* of one group */
  int64_t pixel, next_channel, base; /* strides in elements, and the group's first channel */
  int64_t from_size, to_size;        /* bytes of an element */
  int64_t row_bytes, line_bytes;     /* of the matrix, and of the part that is one kernel row */
  int64_t last_inside;               /* windows that begin in [0, last_inside] leave no edge */
  int copies;                        /* taps side by side lie as the columns do: one move */
} tile;

static void fill_taps(const tile *t, char *to, int64_t taps) {
  int64_t count = taps * t->channels;
  if (t->s->pad_value == 0)
    memset(to, 0, (size_t)(count * t->to_size)); /* zero is zero bits in every dtype */
  else
    og_fill(to, t->columns_dtype, t->s->pad_value, count);
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

static int64_t clamp(int64_t value, int64_t least, int64_t most) {
  return value < least ? least : value > most ? most : value;
}

/* One kernel row of one window that begins at `x`, inside or outside; `line` is where x = 0 lies. */
static int64_t copy_taps(const tile *t, int64_t line, int64_t x, char *to) {
  const int64_t d = t->s->dilation_w, taps = t->s->filter_w, width = t->s->in_w;
  const int64_t tap_bytes = t->channels * t->to_size;
  int64_t first = clamp(x < 0 ? (-x + d - 1) / d : 0, 0, taps);
  int64_t last = clamp(x < width ? (width - 1 - x) / d + 1 : 0, first, taps);
  if (first > 0) fill_taps(t, to, first);
  if (last < taps) fill_taps(t, to + last * tap_bytes, taps - last);
  if (t->copies) {
    const char *from = t->input + (line + (x + first) * t->pixel) * t->from_size;
    if (first < last) copy_short(to + first * tap_bytes, from, (size_t)((last - first) * tap_bytes));
    return -1;
  }
  for (int64_t tap = first; tap < last; tap++) {
    int64_t from = line + (x + tap * d) * t->pixel + t->base;
    int64_t bad = og_convert(to + tap * tap_bytes, t->columns_dtype, 1,
                             t->input + from * t->from_size, t->input_dtype, t->next_channel,
                             t->channels, 1);
    if (bad >= 0) return from + bad * t->next_channel;
  }
  return -1;
}

/* One kernel row of `count` windows side by side, the first of which begins at `x`. */
static int64_t copy_line(const tile *t, int64_t line, int64_t x, int64_t count, char *to) {
  const int64_t step = t->s->stride_w;
  for (int64_t i = 0; i < count; i++, x += step, to += t->row_bytes) {
    if (t->copies && x >= 0 && x <= t->last_inside) {
      copy_short(to, t->input + (line + x * t->pixel) * t->from_size, (size_t)t->line_bytes);
    } else {
      int64_t bad = copy_taps(t, line, x, to);
      if (bad >= 0) return bad;
    }
  }
  return -1;
}

/* `count` windows side by side, the first of which begins at (y, x). */
static int64_t copy_windows(const tile *t, int64_t image, int64_t y, int64_t x, int64_t count,
                            char *to) {
  const og_conv2d_spec *s = t->s;
  for (int64_t fy = 0; fy < s->filter_h; fy++, to += t->line_bytes) {
    int64_t iy = y + fy * s->dilation_h;
    if (iy < 0 || iy >= s->in_h) {
      for (int64_t i = 0; i < count; i++) fill_taps(t, to + i * t->row_bytes, s->filter_w);
      continue;
    }
    int64_t line = image * s->in_h * s->in_w * s->in_ch + iy * s->in_w * t->pixel;
    int64_t bad = copy_line(t, line, x, count, to);
    if (bad >= 0) return bad;
  }
  return -1;
}

int64_t og_im2col(const og_conv2d_spec *s, int64_t group, int64_t first, int64_t count,
                  const void *input, og_dtype input_dtype, void *columns, og_dtype columns_dtype) {
  tile t = {.s = s, .input = input, .input_dtype = input_dtype, .columns_dtype = columns_dtype};
  t.channels = s->in_ch / s->groups;
  t.pixel = s->channels_first ? 1 : s->in_ch;
  t.next_channel = s->channels_first ? s->in_h * s->in_w : 1;
  t.base = group * t.channels * t.next_channel;
  t.from_size = (int64_t)og_dtype_size(input_dtype);
  t.to_size = (int64_t)og_dtype_size(columns_dtype);
  t.line_bytes = s->filter_w * t.channels * t.to_size;
  t.row_bytes = s->filter_h * t.line_bytes;
  t.last_inside = s->in_w - 1 - (s->filter_w - 1) * s->dilation_w;
  t.copies = input_dtype == columns_dtype && s->dilation_w == 1 && s->groups == 1 &&
             (!s->channels_first || s->in_ch == 1);
  /* Short kernel rows: many windows at once, as many as the first-level cache holds. Long ones
   * are written window by window, in the order of memory. */
  const int64_t most = t.line_bytes > 256 ? 1 : 1 + 16384 / (t.row_bytes + 1);
  char *to = columns;
  for (int64_t row = first; row < first + count;) {
    int64_t x = row % s->out_w, y = row / s->out_w % s->out_h, image = row / s->out_w / s->out_h;
    int64_t side_by_side = clamp(first + count - row, 1, clamp(s->out_w - x, 1, most));
    int64_t bad = copy_windows(&t, image, y * s->stride_h - s->pad_top,
                               x * s->stride_w - s->pad_left, side_by_side, to);
    if (bad >= 0) return bad;
    row += side_by_side;
    to += side_by_side * t.row_bytes;
  }
  return -1;
}
