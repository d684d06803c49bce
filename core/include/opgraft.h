/* The public face of the Opgraft core: plain C, 64-bit sizes, no framework.
 *
 * Every function that can fail returns an og_status (0 = success) and then
 * leaves one sentence in the og_message it was given: what was wrong, where,
 * and what to do next. Nothing prints, nothing throws across this border, and
 * the caller provides all scratch memory.
 */
#ifndef OPGRAFT_H
#define OPGRAFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OG_ABI_VERSION 3
#define OG_EXPORT __attribute__((visibility("default")))

/* Numbered as TensorFlow and absl number them, so that adapters pass them on. */
typedef enum {
  OG_OK = 0,
  OG_INVALID_ARGUMENT = 3,
  OG_NOT_FOUND = 5,
  OG_FAILED_PRECONDITION = 9,
  OG_ABORTED = 10,
  OG_UNIMPLEMENTED = 12,
  OG_INTERNAL = 13
} og_status;

typedef struct {
  char text[2048];
} og_message;

/* X(enumerator, name in a plan, C type or the type that stores it, bytes) */
#define OG_DTYPES(X)        \
  X(F32, f32, float, 4)     \
  X(F64, f64, double, 8)    \
  X(I8, i8, int8_t, 1)      \
  X(I16, i16, int16_t, 2)   \
  X(I32, i32, int32_t, 4)   \
  X(I64, i64, int64_t, 8)   \
  X(U8, u8, uint8_t, 1)     \
  X(U16, u16, uint16_t, 2)  \
  X(U32, u32, uint32_t, 4)  \
  X(U64, u64, uint64_t, 8)  \
  X(F16, f16, uint16_t, 2)  \
  X(BF16, bf16, uint16_t, 2)

typedef enum {
#define X(enumerator, name, type, bytes) OG_##enumerator,
  OG_DTYPES(X)
#undef X
      OG_DTYPE_COUNT
} og_dtype;

OG_EXPORT int og_abi_version(void);
OG_EXPORT size_t og_dtype_size(og_dtype dtype);
OG_EXPORT const char *og_dtype_name(og_dtype dtype);

/* ---- processor, variants and threads ---------------------------------- */

/* Space-separated names: what this processor has; what this build holds and
 * this processor can run; the one that runs now. */
OG_EXPORT const char *og_cpu_features(void);
OG_EXPORT const char *og_variants(void);
OG_EXPORT const char *og_variant(void);
/* "auto" chooses the best; any other name must be one of og_variants(). */
OG_EXPORT og_status og_select_variant(const char *name, og_message *message);
OG_EXPORT void og_set_threads(int threads);
OG_EXPORT int og_threads(void);

/* ---- conversion and strided copies ------------------------------------- */

/* dst[i * dst_stride] = src[i * src_stride], converted, for i < n.
 *
 * float to float rounds to nearest even. Anything that involves an integer
 * must keep its value if `exact` is not 0; the return value is the index of
 * the first element that would not, or -1. If `exact` is 0, integers round to
 * the nearest float, and floats saturate to the integer's range. */
OG_EXPORT int64_t og_convert(void *dst, og_dtype dst_dtype, int64_t dst_stride, const void *src,
                             og_dtype src_dtype, int64_t src_stride, int64_t n, int exact);

/* A four-dimensional copy; strides in elements. */
typedef struct {
  int64_t shape[4], dst_stride[4], src_stride[4];
  og_dtype dst_dtype, src_dtype;
  int exact;
} og_copy_spec;

/* Returns -1, or the offset in `src` of the first element that `exact` refuses. */
OG_EXPORT int64_t og_copy(const og_copy_spec *spec, void *dst, const void *src);

/* Set n elements to a value, rounded to the dtype. */
OG_EXPORT void og_fill(void *dst, og_dtype dtype, double value, int64_t n);

/* ---- linear quantization --------------------------------------------------- */

/* Of n numbers: q = clip(rint(x / scale) + zero_point, low, high), halves to even.
 * codes: the low bits of q under `mask`. values: scale (q - zero_point). */
typedef struct {
  float scale;
  int32_t zero_point, low, high, mask;
} og_quantize_spec;

/* Returns whether a number was NaN, of which the codes say nothing. */
OG_EXPORT int og_quantize(const og_quantize_spec *spec, const float *x, int64_t n, uint8_t *codes,
                          float *values);

/* numbers[i] = column[codes[i]], for i < n. */
OG_EXPORT void og_look_up(const float column[256], const uint8_t *codes, int64_t n, float *numbers);

/* ---- geometry ------------------------------------------------------------ */

typedef enum { OG_SAME = 0, OG_VALID = 1, OG_EXPLICIT = 2 } og_padding;

/* A depthwise convolution is the case groups == in_ch: its kernel
 * [h, w, ch, multiplier] lies in memory as [h, w, 1, ch * multiplier]. */
typedef struct {
  int64_t batch, in_h, in_w, in_ch;
  int64_t filter_h, filter_w, out_ch;
  int64_t stride_h, stride_w, dilation_h, dilation_w, groups;
  int64_t pad_top, pad_bottom, pad_left, pad_right; /* results, unless OG_EXPLICIT */
  int64_t out_h, out_w;                             /* results */
  int32_t padding;                                  /* an og_padding */
  int32_t channels_first;
  double pad_value;
} og_conv2d_spec;

/* Check the numbers and fill in the results. */
OG_EXPORT og_status og_conv2d_resolve(og_conv2d_spec *spec, og_message *message);

/* One matrix product for each i < batches: matrix a_index[i] of `a` with
 * matrix b_index[i] of `b` (null: 0, 1, 2, ...). `a` is m x k, `b` is k x n,
 * as stored if not transposed. */
typedef struct {
  int64_t m, k, n, batches;
  const int64_t *a_index, *b_index;
  int32_t transpose_a, transpose_b;
} og_matmul_spec;

/* ---- the reference pieces of a convolution by matrix product ------------- */

/* Rows [first, first + count) of the im2col matrix of one group: row =
 * (image, out_y, out_x), column = (filter_y, filter_x, channel of the group).
 * Returns -1, or the offset in `input` of an element that cannot be converted. */
OG_EXPORT int64_t og_im2col(const og_conv2d_spec *spec, int64_t group, int64_t first,
                            int64_t count, const void *input, og_dtype input_dtype, void *columns,
                            og_dtype columns_dtype);

typedef void (*og_any_pointer)(void);

/* out[m, n] = sum over k of f(a[m, k], b[k, n]), in the order of k, summed in
 * double for a function that returns a float type (out: double), else in
 * int64 with wrap-around (out: int64). */
OG_EXPORT og_status og_scalar_matmul(og_any_pointer f, og_dtype argument, og_dtype result,
                                     const void *a, const void *b, int64_t m, int64_t k, int64_t n,
                                     void *out);

/* ---- the user's function -------------------------------------------------- */

typedef struct og_function og_function;

/* plan: the return type, then name:type of each argument in the order of the
 * prototype, separated by spaces. A pointer to an element type ends in '*';
 * `text` is const char *. Example: "void a:f32* b:f32* m:i32 k:i32 n:i32 out:f32*".
 *
 * library, hash: the file that the user named, and its SHA-256. binary: name of
 * the compiled object in the cache where the file is a source, else "".
 * address: of a function that lives in no file but in this process, else null;
 * then hash is this process's og_process_token(). */
typedef struct {
  const char *library, *hash, *binary, *symbol, *plan;
  const void *address;
  int32_t thread_safe;
} og_function_spec;

/* Where private copies and compiled objects lie, and the folders (separated by
 * colons) to look in for a library that is not where the model says. */
OG_EXPORT void og_set_paths(const char *cache, const char *search);
OG_EXPORT const char *og_process_token(void);
OG_EXPORT og_status og_hash_file(const char *path, char hex[65], og_message *message);
/* Find the file, compare its hash, load a private copy. Functions stay open. */
OG_EXPORT og_status og_function_open(const og_function_spec *spec, const og_function **function,
                                     og_message *message);
OG_EXPORT const char *og_function_kind(const og_function *function);
OG_EXPORT const char *og_roles(void);
/* One line per library loaded: "hash path". Returns the length it has or wants. */
OG_EXPORT size_t og_loaded_libraries(char *buffer, size_t size);

/* ---- contractions --------------------------------------------------------- */

/* How the products of one sum are added, in their order from 0 on: each sum is cut off at `low`
 * and `high`; or `adder`, a scalar function of integers, gives it: adder(sum, product). */
typedef struct {
  int64_t low, high;
  const og_function *adder;
} og_accumulator;

/* Products of two codes of at most 8 bits: entries[a * columns + b]. A code is a number's bits;
 * `signed_codes` says whether they are a two's complement number. With zero points, what is
 * summed is f(a, b) - zero_a b - zero_b a + zero_a zero_b, with the numbers a and b.
 *
 * With an accumulator, or with real entries (F64, summed in double in the order of the products),
 * it is f(a, b) alone, and zero_a no more than the code of padding. Real entries also serve
 * operands F32, as products of mantissas (1 + a / rows) (1 + b / columns), to which signs and
 * exponents are added; operands are rounded to so many bits. */
typedef enum { OG_TABLE_AUTO = 0, OG_TABLE_EXPANDED = 1, OG_TABLE_ROWS = 2 } og_table_engine;
typedef struct {
  const void *entries;
  og_dtype entries_dtype; /* I32 or F64 */
  int64_t rows, columns;  /* powers of two, 4 to 256; of mantissas 2 to 2048 */
  int32_t zero_a, zero_b;
  int32_t signed_codes;
  int32_t keeps_padding; /* padded taps go through the table, else they add nothing */
  int32_t engine;        /* an og_table_engine */
  const og_accumulator *accumulator; /* null: exact sums */
} og_table;

/* How many contractions each engine has computed in this process, so that it can be seen which
 * one ran; of look-ups, which serve the low-rank engine, how many there were. */
typedef enum { OG_RAN_EXPANDED, OG_RAN_ROWS, OG_RAN_DEPTHWISE, OG_RAN_IN_ORDER, OG_RAN_LOOK_UP, OG_RAN_COUNT } og_ran;
OG_EXPORT void og_runs(int64_t counts[OG_RAN_COUNT]);

/* Through the user's function; or, where `table` is not null, through a table: operands are then
 * codes (U8), results sums (I32 or I64; I64 by an accumulator, F64 of real entries). */
typedef struct {
  const og_function *function;
  og_dtype operand_dtype, result_dtype; /* of the tensors, not of the C function */
  size_t scratch_bytes;                 /* result of prepare */
  int32_t threads;                      /* result of prepare */
  const og_table *table;
} og_call;

/* prepare: check, decide what is composed, say how much scratch it takes.
 * run: do it. The operands and `scratch` are aligned for their types. */
OG_EXPORT og_status og_matmul_prepare(og_call *call, const og_matmul_spec *spec,
                                      og_message *message);
OG_EXPORT og_status og_matmul_run(const og_call *call, const og_matmul_spec *spec, const void *a,
                                  const void *b, void *out, void *scratch, og_message *message);
OG_EXPORT og_status og_conv2d_prepare(og_call *call, const og_conv2d_spec *spec,
                                      og_message *message);
OG_EXPORT og_status og_conv2d_run(const og_call *call, const og_conv2d_spec *spec,
                                  const void *input, const void *kernel, void *out, void *scratch,
                                  og_message *message);

/* ---- gradients through the user's function -------------------------------- */

/* Of plain, contiguous operands in the C function's element type, already
 * padded. Gradients that the function does not write are null. `sizes` has one
 * number for each of og_roles(), in that order. */
typedef struct {
  const void *input, *kernel, *output, *upstream;
  void *grad_input, *grad_kernel;
  const int64_t *sizes;
} og_vjp_arguments;

OG_EXPORT og_status og_vjp_run(const og_function *function, const og_vjp_arguments *arguments,
                               og_message *message);

#ifdef __cplusplus
}
#endif
#endif
