// Matrix products through the user's function: transposes and casts are ours.
#include <algorithm>

#include "float_environment.h"
#include "rows.h"
#include "table.h"

using namespace og;

namespace {

struct MatmulPlan {
  bool pack_a, pack_b, pack_out;
  Tiling tiling;
  size_t b_bytes;
};

MatmulPlan plan_matmul(const og_call &call, const og_matmul_spec &s) {
  const og_function &f = *call.function;
  MatmulPlan plan;
  plan.pack_a = s.transpose_a || f.operand != call.operand_dtype;
  plan.pack_b = s.transpose_b || f.operand != call.operand_dtype;
  plan.pack_out = f.result != call.result_dtype;
  plan.tiling = tile_rows(f, s.m, s.k, s.n, plan.pack_a, plan.pack_out);
  plan.b_bytes = plan.pack_b ? aligned(static_cast<size_t>(s.k * s.n) * og_dtype_size(f.operand)) : 0;
  return plan;
}

// A rows x columns matrix, taken from where it lies transposed or not.
og_copy_spec matrix_copy(int64_t rows, int64_t columns, int64_t stored_rows, int64_t stored_columns,
                         bool transposed, og_dtype to, og_dtype from) {
  og_copy_spec copy = {};
  copy.shape[0] = copy.shape[1] = 1;
  copy.shape[2] = rows;
  copy.shape[3] = columns;
  copy.dst_stride[2] = columns;
  copy.dst_stride[3] = 1;
  copy.src_stride[2] = transposed ? 1 : stored_columns;
  copy.src_stride[3] = transposed ? stored_rows : 1;
  copy.dst_dtype = to;
  copy.src_dtype = from;
  copy.exact = 1;
  return copy;
}

// The tensors, and where in them (in elements) the matrices of one product begin.
struct Product {
  const void *a, *b;
  void *out;
  int64_t a_first, b_first, out_first;
};

const char *element(const void *base, int64_t index, og_dtype dtype) {
  return static_cast<const char *>(base) + index * static_cast<int64_t>(og_dtype_size(dtype));
}

og_status run_one(const og_call &call, const og_matmul_spec &s, const MatmulPlan &plan,
                  const Product &p, char *scratch, og_message *message) {
  const og_function &f = *call.function;
  const og_dtype operand = call.operand_dtype;
  char *out = const_cast<char *>(element(p.out, p.out_first, call.result_dtype));
  Rows rows{&f, s.m, s.k, s.n, element(p.a, p.a_first, operand), element(p.b, p.b_first, operand),
            out, nullptr, nullptr};
  if (plan.pack_b) {
    og_copy_spec copy = matrix_copy(s.k, s.n, s.k, s.n, s.transpose_b, f.operand, operand);
    og_status status = convert_kernel(f, copy, p.b, p.b_first, scratch, message);
    if (status) return status;
    rows.b = scratch;
  }
  if (plan.pack_a)
    rows.gather = [&](int64_t first, int64_t count, void *to, og_message *why) -> og_status {
      og_copy_spec copy = matrix_copy(count, s.k, s.m, s.k, s.transpose_a, f.operand, operand);
      int64_t from = p.a_first + first * (s.transpose_a ? 1 : s.k);
      int64_t bad = og_copy(&copy, to, element(p.a, from, operand));
      return bad < 0 ? OG_OK : refuse_value(f, "input", p.a, operand, from + bad, why);
    };
  if (plan.pack_out)
    rows.scatter = [&](int64_t first, int64_t count, const void *from) {
      char *to = out + first * s.n * static_cast<int64_t>(og_dtype_size(call.result_dtype));
      og_convert(to, call.result_dtype, 1, from, f.result, 1, count * s.n, 0);
    };
  return run_rows(rows, plan.tiling, call.threads, scratch + plan.b_bytes, message);
}

}  // namespace

extern "C" og_status og_matmul_prepare(og_call *call, const og_matmul_spec *s,
                                       og_message *message) {
  if (call->table) return prepare_table_matmul(call, *s, message);
  const og_function &f = *call->function;
  if (f.kind == Kind::conv2d)
    return og_fail(message, OG_UNIMPLEMENTED,
                   "%s is a convolution; a matrix product needs a C function with m, k and n",
                   f.symbol.c_str());
  MatmulPlan plan = plan_matmul(*call, *s);
  int64_t tiles = plan.tiling.rows ? (s->m + plan.tiling.rows - 1) / plan.tiling.rows : 0;
  call->threads = f.thread_safe ? static_cast<int>(std::min<int64_t>(og_threads(), tiles)) : 1;
  call->scratch_bytes =
      plan.b_bytes + plan.tiling.worker_bytes() * static_cast<size_t>(std::max(call->threads, 1));
  return OG_OK;
}

extern "C" og_status og_matmul_run(const og_call *call, const og_matmul_spec *s, const void *a,
                                   const void *b, void *out, void *scratch, og_message *message) {
  if (call->table)
    return run_table_matmul(*call, *s, a, b, out, static_cast<char *>(scratch), message);
  if (s->m * s->n * s->batches == 0) return OG_OK;  // nothing to compute: not the user's business
  if (s->k == 0) {
    og_fill(out, call->result_dtype, 0, s->m * s->n * s->batches);
    return OG_OK;
  }
  FloatEnvironment environment;
  MatmulPlan plan = plan_matmul(*call, *s);
  for (int64_t i = 0; i < s->batches; i++) {
    int64_t ai = s->a_index ? s->a_index[i] : i, bi = s->b_index ? s->b_index[i] : i;
    Product product = {a, b, out, ai * s->m * s->k, bi * s->k * s->n, i * s->m * s->n};
    og_status status = run_one(*call, *s, plan, product, static_cast<char *>(scratch), message);
    if (status) return status;
  }
  return OG_OK;
}
