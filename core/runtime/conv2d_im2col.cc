// A convolution through a matrix product: im2col by tiles, group by group.
#include <algorithm>

#include "conv2d.h"

namespace og {
namespace {

struct Im2colPlan {
  int64_t rows, k, n;
  bool gathers, packs_kernel, scatters;
  Tiling tiling;
  size_t kernel_bytes;
};

// A 1x1 kernel at stride 1 without padding: the input is its own im2col matrix.
bool is_matrix_already(const og_conv2d_spec &s) {
  return s.filter_h * s.filter_w == 1 && s.stride_h * s.stride_w == 1 && s.groups == 1 &&
         !s.channels_first && s.pad_top + s.pad_bottom + s.pad_left + s.pad_right == 0;
}

Im2colPlan plan_im2col(const og_call &call, const og_conv2d_spec &s) {
  const og_function &f = *call.function;
  const bool casts = f.operand != call.operand_dtype;
  Im2colPlan plan;
  plan.rows = s.batch * s.out_h * s.out_w;
  plan.k = s.filter_h * s.filter_w * (s.in_ch / s.groups);
  plan.n = s.out_ch / s.groups;
  plan.gathers = casts || !is_matrix_already(s);
  plan.packs_kernel = casts || s.groups > 1;
  plan.scatters = f.result != call.result_dtype || s.groups > 1 || s.channels_first;
  plan.tiling = tile_rows(f, plan.rows, plan.k, plan.n, plan.gathers, plan.scatters);
  plan.kernel_bytes =
      plan.packs_kernel ? aligned(static_cast<size_t>(plan.k * plan.n) * og_dtype_size(f.operand)) : 0;
  return plan;
}

// Rows of results to their places: [rows, n] into channels [group * n, ...) of the output.
void scatter_rows(const og_call &call, const og_conv2d_spec &s, int64_t group, int64_t first,
                  int64_t count, const void *from, void *out) {
  const int64_t n = s.out_ch / s.groups, plane = s.out_h * s.out_w;
  const int64_t result = static_cast<int64_t>(og_dtype_size(call.function->result));
  ImageStrides strides(s.out_h, s.out_w, s.out_ch, s.channels_first);
  for (int64_t row = first; row < first + count; row++) {
    int64_t to = row / plane * strides.image + row % plane * strides.x + group * n * strides.channel;
    og_convert(static_cast<char *>(out) + to * static_cast<int64_t>(og_dtype_size(call.result_dtype)),
               call.result_dtype, strides.channel,
               static_cast<const char *>(from) + (row - first) * n * result, call.function->result,
               1, n, 0);
  }
}

}  // namespace

int im2col_threads(const og_call &call, const og_conv2d_spec &s) {
  Im2colPlan plan = plan_im2col(call, s);
  if (!call.function->thread_safe || plan.tiling.rows == 0) return 1;
  int64_t tiles = (plan.rows + plan.tiling.rows - 1) / plan.tiling.rows;
  return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(og_threads(), tiles)));
}

size_t im2col_scratch(const og_call &call, const og_conv2d_spec &s) {
  Im2colPlan plan = plan_im2col(call, s);
  return plan.kernel_bytes + plan.tiling.worker_bytes() * static_cast<size_t>(call.threads);
}

og_status run_im2col(const og_call &call, const og_conv2d_spec &s, const void *input,
                     const void *kernel, void *out, char *scratch, og_message *message) {
  const og_function &f = *call.function;
  const Im2colPlan plan = plan_im2col(call, s);
  for (int64_t group = 0; group < s.groups; group++) {
    Rows rows{&f, plan.rows, plan.k, plan.n, input, kernel, out, nullptr, nullptr};
    if (plan.packs_kernel) {
      og_copy_spec copy = kernel_copy(s, f.operand, call.operand_dtype);
      og_status status = convert_kernel(f, copy, kernel, group * plan.n, scratch, message);
      if (status) return status;
      rows.b = scratch;
    }
    if (plan.gathers)
      rows.gather = [&, group](int64_t first, int64_t count, void *to, og_message *why) {
        int64_t bad = og_im2col(&s, group, first, count, input, call.operand_dtype, to, f.operand);
        return bad < 0 ? OG_OK : refuse_value(f, "input", input, call.operand_dtype, bad, why);
      };
    if (plan.scatters)
      rows.scatter = [&, group](int64_t first, int64_t count, const void *from) {
        scatter_rows(call, s, group, first, count, from, out);
      };
    og_status status = run_rows(rows, plan.tiling, call.threads, scratch + plan.kernel_bytes, message);
    if (status) return status;
  }
  return OG_OK;
}

}  // namespace og
