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

/* One row per variant; the generic one comes last and always runs. */
typedef struct {
  const char *name;
  const char *needs; /* one CPU feature, or "" */
  og_row_converter half_to_float, float_to_half;
} og_variant_table;

extern const og_variant_table *og_active;
extern const og_variant_table og_variant_generic;
extern const og_variant_table og_variant_f16c;

float og_half_to_float(uint16_t half);
uint16_t og_double_to_half(double value);
float og_bfloat16_to_float(uint16_t value);
uint16_t og_double_to_bfloat16(double value);

void og_sha256(const void *data, size_t size, char hex[65]);

#ifdef __cplusplus
}
#endif
#endif
