/* A matrix product by one call of a scalar function per product. Each pair of
 * argument and result type is called by its own C type: no conversion hides. */
#include "internal.h"

#define FLOATS(X, A) X(A, float, double, double) X(A, double, double, double)
/* Summed in uint64: wraps around where int64 would be undefined. */
#define INTEGERS(X, A)                                                                  \
  X(A, int8_t, uint64_t, int64_t) X(A, int16_t, uint64_t, int64_t)                      \
  X(A, int32_t, uint64_t, int64_t) X(A, int64_t, uint64_t, int64_t)                     \
  X(A, uint8_t, uint64_t, int64_t) X(A, uint16_t, uint64_t, int64_t)                    \
  X(A, uint32_t, uint64_t, int64_t) X(A, uint64_t, uint64_t, int64_t)

#define DEFINE(A, R, SUM, OUT)                                                              \
  static void A##_to_##R(og_any_pointer function, const void *left, const void *right,      \
                         int64_t m, int64_t k, int64_t n, void *result) {                   \
    R (*multiply)(A, A) = (R(*)(A, A))function;                                             \
    const A *a = left, *b = right;                                                          \
    OUT *out = result;                                                                      \
    for (int64_t i = 0; i < m; i++)                                                         \
      for (int64_t j = 0; j < n; j++) {                                                     \
        SUM sum = 0;                                                                        \
        for (int64_t l = 0; l < k; l++) sum += (SUM)multiply(a[i * k + l], b[l * n + j]);   \
        out[i * n + j] = (OUT)sum;                                                          \
      }                                                                                     \
  }

#define DEFINE_ALL(A) FLOATS(DEFINE, A) INTEGERS(DEFINE, A)
DEFINE_ALL(float)
DEFINE_ALL(double)
DEFINE_ALL(int8_t)
DEFINE_ALL(int16_t)
DEFINE_ALL(int32_t)
DEFINE_ALL(int64_t)
DEFINE_ALL(uint8_t)
DEFINE_ALL(uint16_t)
DEFINE_ALL(uint32_t)
DEFINE_ALL(uint64_t)

typedef void (*loop)(og_any_pointer, const void *, const void *, int64_t, int64_t, int64_t, void *);

#define ENTRY(A, R, SUM, OUT) A##_to_##R,
#define ROW(A) {FLOATS(ENTRY, A) INTEGERS(ENTRY, A)}
/* In the order of OG_DTYPES: float types, signed, unsigned. */
static const loop loops[OG_F16][OG_F16] = {
    ROW(float),   ROW(double),  ROW(int8_t),   ROW(int16_t),  ROW(int32_t),
    ROW(int64_t), ROW(uint8_t), ROW(uint16_t), ROW(uint32_t), ROW(uint64_t)};

og_status og_scalar_matmul(og_any_pointer f, og_dtype argument, og_dtype result, const void *a,
                           const void *b, int64_t m, int64_t k, int64_t n, void *out) {
  if (argument >= OG_F16 || result >= OG_F16) return OG_INVALID_ARGUMENT;
  loops[argument][result](f, a, b, m, k, n, out);
  return OG_OK;
}
