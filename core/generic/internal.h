/* What the files of the core share with each other and with nobody else. */
#ifndef OPGRAFT_INTERNAL_H
#define OPGRAFT_INTERNAL_H

#include "opgraft.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Write the sentence, return the status: `return og_fail(message, status, ...)`. */
__attribute__((format(printf, 3, 4))) og_status og_fail(og_message *message, og_status status,
                                                        const char *format, ...);

/* A row of conversions with both strides 1; never involves an integer. */
typedef void (*og_row_converter)(void *dst, const void *src, int64_t n);

/* Products by a table, for so many columns of the kernel at once.
 *
 * expand: expanded[k][a][n] = the product of the codes a and codes[k][n], where `transposed` has
 * the 256 products of each code of the kernel side by side, and used[a / 8] is not 0.
 * accumulate: sums[i][n] += the sum over k < rows of expanded[k][codes[i][k]][n].
 * From one k to the next are OG_TABLE_CODES rows, an odd number: rows of one code, of which 0
 * comes often, then lie in different sets of the caches. Buffers are aligned to 64 bytes. */
enum { OG_TABLE_COLUMNS = 32, OG_TABLE_CODES = 257 };
typedef void (*og_table_expander)(int16_t *expanded, const int16_t *transposed,
                                  const uint8_t *codes, int64_t stride, int64_t rows,
                                  const uint8_t *used);
typedef void (*og_table_accumulator)(int32_t *sums, const int16_t *expanded, const uint8_t *codes,
                                     int64_t count, int64_t rows);

/* sums[j] += the entries codes[r][j] of four rows of the table, r < 4. */
void og_table_look_up(int32_t *sums, const int32_t *const entries[4], const uint8_t *const codes[4],
                      int64_t n);

typedef int (*og_row_quantizer)(uint8_t *codes, float *values, const float *x, int64_t n,
                                const og_quantize_spec *spec);

/* One row per variant; the generic one comes last and always runs. */
typedef struct {
  const char *name;
  const char *needs; /* one CPU feature, or "" */
  og_row_converter half_to_float, float_to_half;
  og_table_expander expand;
  og_table_accumulator accumulate;
  og_row_quantizer quantize;
} og_variant_table;

extern const og_variant_table *og_active;
extern const og_variant_table og_variant_generic;
extern const og_variant_table og_variant_f16c;
extern const og_variant_table og_variant_avx2;

void og_table_expand(int16_t *expanded, const int16_t *transposed, const uint8_t *codes,
                     int64_t stride, int64_t rows, const uint8_t *used);
void og_table_accumulate(int32_t *sums, const int16_t *expanded, const uint8_t *codes,
                         int64_t count, int64_t rows);
int og_quantize_row(uint8_t *codes, float *values, const float *x, int64_t n,
                    const og_quantize_spec *spec);
int og_quantize_row_avx2(uint8_t *codes, float *values, const float *x, int64_t n,
                         const og_quantize_spec *spec);
void og_f16c_half_to_float(void *dst, const void *src, int64_t n);
void og_f16c_float_to_half(void *dst, const void *src, int64_t n);

/* *sum = adder(*sum, term) for each term. Returns -1, or the index of the first term at which the
 * sum or the term is no value of the argument's type. Integer types only. */
int64_t og_fold(og_any_pointer adder, og_dtype argument, og_dtype result, const int64_t *terms,
                int64_t n, int64_t *sum);

/* x[i] = scales[i] (1 + mantissas[i] / 2^bits), rounded to so many bits, halves to even; of zeros,
 * infinities and NaN the scale is the number itself. */
void og_split_mantissas(const float *x, int64_t n, int bits, uint16_t *mantissas, double *scales);

float og_half_to_float(uint16_t half);
uint16_t og_double_to_half(double value);
float og_bfloat16_to_float(uint16_t value);
uint16_t og_double_to_bfloat16(double value);

void og_sha256(const void *data, size_t size, char hex[65]);

#ifdef __cplusplus
}
#endif
#endif
