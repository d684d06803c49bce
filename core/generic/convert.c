/* Conversion between all element types, row by row. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "internal.h"

/* The types that C itself has; the two 16-bit floats go through float or double. */
#define NATIVE_FLOATS(X, with) X(F32, float, with) X(F64, double, with)
#define NATIVE_INTEGERS(X, with)                                                          \
  X(I8, int8_t, with) X(I16, int16_t, with) X(I32, int32_t, with) X(I64, int64_t, with)   \
  X(U8, uint8_t, with) X(U16, uint16_t, with) X(U32, uint32_t, with) X(U64, uint64_t, with)

#define IS_SIGNED(type) ((type)-1 < 0)
#define MAX_OF(type) \
  (IS_SIGNED(type) ? (type)(((uint64_t)1 << (8 * sizeof(type) - 1)) - 1) : (type)-1)
#define MIN_OF(type) (IS_SIGNED(type) ? (type)(-MAX_OF(type) - 1) : (type)0)
/* The first power of two beyond the type's largest value, as a double. */
#define LIMIT_OF(type) ldexp(1.0, (int)(8 * sizeof(type)) - (IS_SIGNED(type) ? 1 : 0))

#define LOOP(S, D, body)                                            \
  const S *from = src;                                              \
  D *to = dst;                                                      \
  for (int64_t i = 0; i < n; i++, from += src_stride, to += dst_stride) { \
    S s = *from;                                                    \
    body                                                            \
  }                                                                 \
  return -1;

#define PARAMETERS                                                                      \
  void *dst, int64_t dst_stride, const void *src, int64_t src_stride, int64_t n, int exact

#define FLOAT_TO_FLOAT(DE, D, S)                   \
  static int64_t S##_to_##D(PARAMETERS) {          \
    (void)exact;                                   \
    LOOP(S, D, *to = (D)s;)                        \
  }

#define FLOAT_TO_INTEGER(DE, D, S)                                                      \
  static int64_t S##_to_##D(PARAMETERS) {                                               \
    const double limit = LIMIT_OF(D), least = IS_SIGNED(D) ? -limit : 0.0;              \
    LOOP(S, D,                                                                          \
         double r = nearbyint((double)s);                                               \
         int inside = r >= least && r < limit;                                          \
         if (exact && !(inside && r == (double)s)) return i;                            \
         *to = inside ? (D)r : r >= limit ? MAX_OF(D) : r < least ? MIN_OF(D) : (D)0;)  \
  }

#define INTEGER_TO_FLOAT(DE, D, S)                                                 \
  static int64_t S##_to_##D(PARAMETERS) {                                          \
    const D limit = (D)LIMIT_OF(S);                                                \
    LOOP(S, D,                                                                     \
         D d = (D)s;                                                               \
         if (exact && (d >= limit || (S)d != s)) return i;                         \
         *to = d;)                                                                 \
  }

#define INTEGER_TO_INTEGER(DE, D, S)                                               \
  static int64_t S##_to_##D(PARAMETERS) {                                          \
    LOOP(S, D,                                                                     \
         D d = (D)s;                                                               \
         int kept = (S)d == s && (d < 0) == (s < 0);                               \
         if (exact && !kept) return i;                                             \
         *to = kept ? d : s < 0 ? MIN_OF(D) : MAX_OF(D);)                          \
  }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtype-limits" /* "s < 0" of an unsigned s */
#define FROM_FLOAT(S) NATIVE_FLOATS(FLOAT_TO_FLOAT, S) NATIVE_INTEGERS(FLOAT_TO_INTEGER, S)
#define FROM_INTEGER(S) NATIVE_FLOATS(INTEGER_TO_FLOAT, S) NATIVE_INTEGERS(INTEGER_TO_INTEGER, S)
FROM_FLOAT(float)
FROM_FLOAT(double)
FROM_INTEGER(int8_t)
FROM_INTEGER(int16_t)
FROM_INTEGER(int32_t)
FROM_INTEGER(int64_t)
FROM_INTEGER(uint8_t)
FROM_INTEGER(uint16_t)
FROM_INTEGER(uint32_t)
FROM_INTEGER(uint64_t)
#pragma GCC diagnostic pop

typedef int64_t (*converter)(PARAMETERS);

#define NATIVE OG_F16 /* dtypes below this number are C's own */

#define ENTRY(DE, D, S) [OG_##DE] = S##_to_##D,
#define ROW(SE, S) [OG_##SE] = {NATIVE_FLOATS(ENTRY, S) NATIVE_INTEGERS(ENTRY, S)},
static const converter converters[NATIVE][NATIVE] = {
    ROW(F32, float) ROW(F64, double) ROW(I8, int8_t) ROW(I16, int16_t) ROW(I32, int32_t)
    ROW(I64, int64_t) ROW(U8, uint8_t) ROW(U16, uint16_t) ROW(U32, uint32_t) ROW(U64, uint64_t)};

static const char *at(const void *base, og_dtype dtype, int64_t index) {
  return (const char *)base + index * (int64_t)og_dtype_size(dtype);
}

static void read_small_floats(float *to, const uint16_t *from, og_dtype dtype, int64_t stride,
                              int64_t n) {
  if (dtype == OG_BF16) {
    for (int64_t i = 0; i < n; i++) to[i] = og_bfloat16_to_float(from[i * stride]);
  } else if (stride == 1) {
    og_active->half_to_float(to, from, n);
  } else {
    for (int64_t i = 0; i < n; i++) to[i] = og_half_to_float(from[i * stride]);
  }
}

static void write_small_floats(uint16_t *to, og_dtype dtype, int64_t stride, const double *from,
                               int64_t n) {
  for (int64_t i = 0; i < n; i++)
    to[i * stride] = dtype == OG_BF16 ? og_double_to_bfloat16(from[i]) : og_double_to_half(from[i]);
}

enum { CHUNK = 256 };

/* A 64-bit integer as a double rounded to odd: what is rounded again, to fewer bits, then is
 * as if it had been rounded once. */
static double to_odd_double(uint64_t magnitude) {
  int shift = magnitude >> 53 ? 11 - __builtin_clzll(magnitude) : 0;
  uint64_t kept = magnitude >> shift;
  return ldexp((double)(kept | (kept << shift != magnitude)), shift);
}

static void read_wide_integers(double *to, const void *from, og_dtype dtype, int64_t stride,
                               int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint64_t bits = ((const uint64_t *)from)[i * stride];
    int negative = dtype == OG_I64 && bits >> 63;
    double magnitude = to_odd_double(negative ? 0 - bits : bits);
    to[i] = negative ? -magnitude : magnitude;
  }
}

/* At least one side is a 16-bit float: read as float, or write from double,
 * which both hold every value of the other side or round it only once. */
static int64_t convert_chunk(void *dst, og_dtype dst_dtype, int64_t dst_stride, const void *src,
                             og_dtype src_dtype, int64_t src_stride, int64_t n, int exact) {
  float read[CHUNK];
  double wide[CHUNK];
  if (src_dtype >= NATIVE) {
    read_small_floats(read, src, src_dtype, src_stride, n);
    src = read;
    src_dtype = OG_F32;
    src_stride = 1;
  }
  if (dst_dtype < NATIVE)
    return converters[src_dtype][dst_dtype](dst, dst_stride, src, src_stride, n, exact);
  if (dst_dtype == OG_F16 && src_dtype == OG_F32 && src_stride == 1 && dst_stride == 1) {
    og_active->float_to_half(dst, src, n);
    return -1;
  }
  if (src_dtype == OG_I64 || src_dtype == OG_U64)
    read_wide_integers(wide, src, src_dtype, src_stride, n);
  else
    converters[src_dtype][OG_F64](wide, 1, src, src_stride, n, 0); /* holds all others */
  write_small_floats(dst, dst_dtype, dst_stride, wide, n);
  if (!exact || src_dtype == OG_F32 || src_dtype == OG_F64) return -1;
  read_small_floats(read, dst, dst_dtype, dst_stride, n); /* did the integers survive? */
  for (int64_t i = 0; i < n; i++)
    if ((double)read[i] != wide[i]) return i;
  return -1;
}

int64_t og_convert(void *dst, og_dtype dst_dtype, int64_t dst_stride, const void *src,
                   og_dtype src_dtype, int64_t src_stride, int64_t n, int exact) {
  if (dst_dtype == src_dtype && dst_stride == 1 && src_stride == 1) {
    if (n > 0) memcpy(dst, src, (size_t)n * og_dtype_size(src_dtype));
    return -1;
  }
  if (dst_dtype < NATIVE && src_dtype < NATIVE)
    return converters[src_dtype][dst_dtype](dst, dst_stride, src, src_stride, n, exact);
  if (dst_dtype == src_dtype) { /* 16 bits moved as they are */
    for (int64_t i = 0; i < n; i++)
      ((uint16_t *)dst)[i * dst_stride] = ((const uint16_t *)src)[i * src_stride];
    return -1;
  }
  for (int64_t i = 0; i < n; i += CHUNK) {
    int64_t count = n - i < CHUNK ? n - i : CHUNK;
    char *to = (char *)dst + i * dst_stride * (int64_t)og_dtype_size(dst_dtype);
    int64_t bad = convert_chunk(to, dst_dtype, dst_stride, at(src, src_dtype, i * src_stride),
                                src_dtype, src_stride, count, exact);
    if (bad >= 0) return i + bad;
  }
  return -1;
}

int64_t og_copy(const og_copy_spec *spec, void *dst, const void *src) {
  const int64_t *shape = spec->shape, *ds = spec->dst_stride, *ss = spec->src_stride;
  const int64_t to_bytes = (int64_t)og_dtype_size(spec->dst_dtype);
  for (int64_t i = 0; i < shape[0]; i++)
    for (int64_t j = 0; j < shape[1]; j++)
      for (int64_t k = 0; k < shape[2]; k++) {
        int64_t from = i * ss[0] + j * ss[1] + k * ss[2];
        char *to = (char *)dst + (i * ds[0] + j * ds[1] + k * ds[2]) * to_bytes;
        int64_t bad = og_convert(to, spec->dst_dtype, ds[3], at(src, spec->src_dtype, from),
                                 spec->src_dtype, ss[3], shape[3], spec->exact);
        if (bad >= 0) return from + bad * ss[3];
      }
  return -1;
}

void og_fill(void *dst, og_dtype dtype, double value, int64_t n) {
  int64_t size = (int64_t)og_dtype_size(dtype);
  if (n <= 0) return;
  og_convert(dst, dtype, 1, &value, OG_F64, 1, 1, 0);
  for (int64_t done = 1; done < n; done *= 2) { /* double the part that is written */
    int64_t more = done < n - done ? done : n - done;
    memcpy((char *)dst + done * size, dst, (size_t)(more * size));
  }
}
