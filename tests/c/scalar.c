/* One product at a time. */
#include <stdint.h>

float mul(float a, float b) { return a * b; }

float twice(float a, float b) { return 2 * a * b; }

double mul_double(double a, double b) { return a * b; }

/* Does not commute, and skew(0, b) is not 0: shows the order of operands and the padded taps. */
int32_t skew(int32_t a, int32_t b) { return a * b + 2 * a - b; }
