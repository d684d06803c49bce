/* Sizes and paddings of a convolution, as TensorFlow defines them. */
#include "internal.h"

/* What one number may be: products of two of them stay within 64 bits. */
static const int64_t LARGEST = (int64_t)1 << 40;

typedef struct {
  int64_t in, filter, stride, dilation, before, after, out;
} axis;

/* SAME: ceil(in / stride) outputs; the odd padding goes after (bottom, right). */
static og_status resolve_axis(axis *a, int32_t padding, const char *name, og_message *message) {
  int64_t reach = a->filter > 0 ? (a->filter - 1) * a->dilation + 1 : 0;
  if (padding == OG_SAME) {
    a->out = (a->in + a->stride - 1) / a->stride;
    int64_t total = a->out > 0 ? (a->out - 1) * a->stride + reach - a->in : 0;
    if (total < 0) total = 0;
    a->before = total / 2;
    a->after = total - a->before;
    return OG_OK;
  }
  if (padding == OG_VALID) a->before = a->after = 0;
  if (a->before < 0 || a->after < 0)
    return og_fail(message, OG_INVALID_ARGUMENT,
                   "padding along the %s is (%lld, %lld); paddings must not be negative", name,
                   (long long)a->before, (long long)a->after);
  if (a->before >= LARGEST || a->after >= LARGEST)
    return og_fail(message, OG_INVALID_ARGUMENT, "padding along the %s is (%lld, %lld): too large",
                   name, (long long)a->before, (long long)a->after);
  int64_t room = a->in + a->before + a->after - reach;
  a->out = room < 0 ? 0 : room / a->stride + 1;
  return OG_OK;
}

static og_status check_numbers(const og_conv2d_spec *s, og_message *message) {
  const struct {
    const char *name;
    int64_t value, least;
  } numbers[] = {
      {"batch", s->batch, 0},           {"height", s->in_h, 0},
      {"width", s->in_w, 0},            {"input channels", s->in_ch, 0},
      {"kernel height", s->filter_h, 0}, {"kernel width", s->filter_w, 0},
      {"output channels", s->out_ch, 0}, {"stride_h", s->stride_h, 1},
      {"stride_w", s->stride_w, 1},     {"dilation_h", s->dilation_h, 1},
      {"dilation_w", s->dilation_w, 1}, {"groups", s->groups, 1},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (numbers[i].value < numbers[i].least)
      return og_fail(message, OG_INVALID_ARGUMENT, "%s is %lld; it must be at least %lld",
                     numbers[i].name, (long long)numbers[i].value, (long long)numbers[i].least);
  if (s->filter_h >= LARGEST >> 20 || s->filter_w >= LARGEST >> 20 || s->dilation_h >= LARGEST ||
      s->dilation_w >= LARGEST || s->stride_h >= LARGEST || s->stride_w >= LARGEST)
    return og_fail(message, OG_INVALID_ARGUMENT,
                   "a kernel of %lld x %lld, strides (%lld, %lld), dilations (%lld, %lld): too large",
                   (long long)s->filter_h, (long long)s->filter_w, (long long)s->stride_h,
                   (long long)s->stride_w, (long long)s->dilation_h, (long long)s->dilation_w);
  if (s->in_ch % s->groups || s->out_ch % s->groups)
    return og_fail(message, OG_INVALID_ARGUMENT,
                   "groups is %lld, which does not divide both %lld input and %lld output channels",
                   (long long)s->groups, (long long)s->in_ch, (long long)s->out_ch);
  if (s->padding < OG_SAME || s->padding > OG_EXPLICIT)
    return og_fail(message, OG_INVALID_ARGUMENT, "padding mode %d is unknown", (int)s->padding);
  return OG_OK;
}

/* Element counts must leave room for sizes in bytes and sums of a few of them. */
static int is_countable(int64_t a, int64_t b, int64_t c, int64_t d) {
  int64_t count;
  return !__builtin_mul_overflow(a, b, &count) && !__builtin_mul_overflow(count, c, &count) &&
         !__builtin_mul_overflow(count, d, &count) && count < (int64_t)1 << 56;
}

static og_status check_counts(const og_conv2d_spec *s, og_message *message) {
  int64_t padded_h = s->in_h + s->pad_top + s->pad_bottom;
  int64_t padded_w = s->in_w + s->pad_left + s->pad_right;
  if (is_countable(s->batch, padded_h, padded_w, s->in_ch) &&
      is_countable(s->batch, s->out_h, s->out_w, s->out_ch) &&
      is_countable(s->batch, padded_h, padded_w, s->out_ch))
    return OG_OK;
  return og_fail(message, OG_INVALID_ARGUMENT,
                 "the convolution is too large: %lld images, padded to %lld x %lld, %lld channels in "
                 "and %lld out; check its paddings",
                 (long long)s->batch, (long long)padded_h, (long long)padded_w,
                 (long long)s->in_ch, (long long)s->out_ch);
}

og_status og_conv2d_resolve(og_conv2d_spec *s, og_message *message) {
  og_status status = check_numbers(s, message);
  if (status) return status;
  axis h = {s->in_h, s->filter_h, s->stride_h, s->dilation_h, s->pad_top, s->pad_bottom, 0};
  axis w = {s->in_w, s->filter_w, s->stride_w, s->dilation_w, s->pad_left, s->pad_right, 0};
  if ((status = resolve_axis(&h, s->padding, "height", message))) return status;
  if ((status = resolve_axis(&w, s->padding, "width", message))) return status;
  s->pad_top = h.before;
  s->pad_bottom = h.after;
  s->out_h = h.out;
  s->pad_left = w.before;
  s->pad_right = w.after;
  s->out_w = w.out;
  return check_counts(s, message);
}
