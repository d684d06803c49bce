/* A sum by the user's adder: one call for each term, by the function's own C types. */
#include "internal.h"

/* Every pair of argument and result types, of integers. */
#define FOR_RESULTS(X, A)                                                           \
  X(A, int8_t) X(A, int16_t) X(A, int32_t) X(A, int64_t)                            \
  X(A, uint8_t) X(A, uint16_t) X(A, uint32_t) X(A, uint64_t)
#define FOR_ARGUMENTS(X)                                                            \
  X(int8_t) X(int16_t) X(int32_t) X(int64_t) X(uint8_t) X(uint16_t) X(uint32_t) X(uint64_t)

#define DEFINE(A, R)                                                                \
  static int64_t A##_to_##R(og_any_pointer function, const int64_t *terms, int64_t n, int64_t *sum) { \
    R (*add)(A, A) = (R(*)(A, A))function;                                          \
    for (int64_t i = 0; i < n; i++) {                                               \
      const A left = (A)*sum, right = (A)terms[i];                                  \
      if ((int64_t)left != *sum || (int64_t)right != terms[i]) return i;            \
      *sum = (int64_t)add(left, right);                                             \
    }                                                                               \
    return -1;                                                                      \
  }
#define DEFINE_ALL(A) FOR_RESULTS(DEFINE, A)
FOR_ARGUMENTS(DEFINE_ALL)

typedef int64_t (*fold)(og_any_pointer, const int64_t *, int64_t, int64_t *);

#define ENTRY(A, R) A##_to_##R,
#define ROW(A) {FOR_RESULTS(ENTRY, A)},
/* In the order of OG_DTYPES, from OG_I8 on. */
static const fold folds[OG_U64 - OG_I8 + 1][OG_U64 - OG_I8 + 1] = {FOR_ARGUMENTS(ROW)};

int64_t og_fold(og_any_pointer adder, og_dtype argument, og_dtype result, const int64_t *terms,
                int64_t n, int64_t *sum) {
  return folds[argument - OG_I8][result - OG_I8](adder, terms, n, sum);
}
