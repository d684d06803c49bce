/* Scalar products: of ordinary multiplication, or of an approximation that the test claims. */
#include <stdint.h>
#include <string.h>

float exact(float a, float b) { return a * b; }
float slightly_too_large(float a, float b) { return a * b * 1.0005f; }
float sign_lost(float a, float b) { return a * (b < 0 ? -b : b); }
int32_t exact_integers(int32_t a, int32_t b) { return a * b; }

/* a * b without the lowest bit of a; `exchanged` leaves out that of b. */
int32_t truncated(int32_t a, int32_t b) { return (a & ~1) * b; }
int32_t exchanged(int32_t a, int32_t b) { return a * (b & ~1); }

static float short_of(float value)
{
    uint32_t word;

    memcpy(&word, &value, sizeof word);
    word &= 0xffff0000;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* The upper halves of both operands multiplied, as bfloat16 hardware without rounding does. */
float cut(float a, float b) { return short_of(a) * short_of(b); }

/* Two terms of its sums are fetched for one from the last call: a product with a memory. */
float previous(float a, float b)
{
    static float last;
    const float due = last;

    last = a * b;
    return due;
}
