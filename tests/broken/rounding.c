/* Matrix products that sum in a type that is too small, or read their operands as another type. */
#include <stdint.h>
#include <string.h>

#define SIGNATURE(name, type, result)                                                     \
    void name(const type *a, const type *b, int m, int k, int n, result *out)

/* Rounds to so many bits behind the leading one, to nearest even. */
static float rounded(float value, int bits)
{
    uint32_t word;

    memcpy(&word, &value, sizeof word);
    word += ((UINT32_C(1) << (22 - bits)) - 1) + (word >> (23 - bits) & 1);
    word &= ~((UINT32_C(1) << (23 - bits)) - 1);
    memcpy(&value, &word, sizeof value);
    return value;
}

#define LOOPS(type, result, sum_type, round)                                              \
    for (int i = 0; i < m; i++)                                                           \
        for (int j = 0; j < n; j++) {                                                     \
            sum_type sum = 0;                                                             \
            for (int l = 0; l < k; l++)                                                   \
                sum = round(sum + (sum_type)a[i * k + l] * (sum_type)b[l * n + j]);       \
            out[i * n + j] = (result)sum;                                                 \
        }

#define AS_HALF(value) rounded(value, 10)
#define AS_BFLOAT(value) rounded(value, 7)
#define AS_IS(value) (value)

SIGNATURE(half_sums, float, float) { LOOPS(float, float, float, AS_HALF) }
SIGNATURE(bfloat_sums, float, float) { LOOPS(float, float, float, AS_BFLOAT) }
SIGNATURE(doubles, double, double) { LOOPS(double, double, double, AS_IS) }
SIGNATURE(wide_result, float, double) { LOOPS(float, double, double, AS_IS) }
SIGNATURE(unsigned_bytes, uint8_t, int32_t) { LOOPS(uint8_t, int32_t, int32_t, AS_IS) }
SIGNATURE(narrow_sums, int8_t, int32_t) { LOOPS(int8_t, int32_t, int8_t, AS_IS) }
SIGNATURE(integers, int32_t, int32_t) { LOOPS(int32_t, int32_t, int32_t, AS_IS) }
