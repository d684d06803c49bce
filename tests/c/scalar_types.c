/* f(a, b) = a * b + a for every pair of argument and return type: does not commute. */
#include <stdint.h>

#define DEFINE(R, A) R f_##A##_##R(A a, A b) { return (R)(a * b + a); }
#define FROM(A) DEFINE(float, A) DEFINE(double, A) DEFINE(int8_t, A) DEFINE(int16_t, A)     \
    DEFINE(int32_t, A) DEFINE(int64_t, A) DEFINE(uint8_t, A) DEFINE(uint16_t, A)            \
    DEFINE(uint32_t, A) DEFINE(uint64_t, A)

FROM(float)
FROM(double)
FROM(int8_t)
FROM(int16_t)
FROM(int32_t)
FROM(int64_t)
FROM(uint8_t)
FROM(uint16_t)
FROM(uint32_t)
FROM(uint64_t)
