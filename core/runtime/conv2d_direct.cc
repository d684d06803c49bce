// A convolution through a convolution of the user's. What its prototype has no
// parameter for is composed here, where that is exact: padding by padding
// first, groups by slices, strides by leaving outputs out, layouts and element
// types by copies. Images go in chunks, so that scratch is bounded.
#include <algorithm>

#include "conv2d.h"

namespace og {
namespace {

constexpr size_t kChunkBytes = 8 << 20;

struct DirectPlan {
  og_conv2d_spec inner;  // the convolution that the user's function computes, of one chunk
  int64_t groups, step_y, step_x;
  bool pads_first, packs_input, packs_kernel, packs_output;
  int64_t chunk;
  size_t kernel_bytes, input_bytes, output_bytes;
};

bool passes_strides(const og_function &f, const og_conv2d_spec &s) {
  if (s.stride_h == 1 && s.stride_w == 1) return true;
  if (f.takes(ROLE_stride_h) && f.takes(ROLE_stride_w)) return true;
  return f.takes(ROLE_stride) && s.stride_h == s.stride_w;
}

bool passes_dilations(const og_function &f, const og_conv2d_spec &s) {
  if (s.dilation_h == 1 && s.dilation_w == 1) return true;
  if (f.takes(ROLE_dilation_h) && f.takes(ROLE_dilation_w)) return true;
  return f.takes(ROLE_dilation) && s.dilation_h == s.dilation_w;
}

bool passes_padding(const og_function &f, const og_conv2d_spec &s, bool strides_pass) {
  if (s.pad_top + s.pad_bottom + s.pad_left + s.pad_right == 0) return true;
  if (s.pad_value != 0 && !f.takes(ROLE_pad_value)) return false;
  if (f.takes(ROLE_pad_top) && f.takes(ROLE_pad_bottom) && f.takes(ROLE_pad_left) &&
      f.takes(ROLE_pad_right))
    return true;
  const bool symmetric = s.pad_top == s.pad_bottom && s.pad_left == s.pad_right;
  if (f.takes(ROLE_pad_h) && f.takes(ROLE_pad_w)) return symmetric;
  if (f.takes(ROLE_pad)) return symmetric && s.pad_top == s.pad_left;
  return f.takes(ROLE_padding) && s.padding == OG_SAME && strides_pass;
}

// Move the padding out of the inner convolution and into its input.
void pad_first(og_conv2d_spec *inner) {
  inner->in_h += inner->pad_top + inner->pad_bottom;
  inner->in_w += inner->pad_left + inner->pad_right;
  inner->pad_top = inner->pad_bottom = inner->pad_left = inner->pad_right = 0;
  inner->padding = OG_VALID;
}

// Compute every position; the copy of the result leaves out what a stride skips.
void unstride(DirectPlan *plan) {
  og_conv2d_spec *inner = &plan->inner;
  plan->step_y = inner->stride_h;
  plan->step_x = inner->stride_w;
  inner->stride_h = inner->stride_w = 1;
  if (inner->padding == OG_SAME) inner->padding = OG_EXPLICIT;  // those of the true stride
  og_message unused;
  og_conv2d_resolve(inner, &unused);  // cannot fail: the outer spec was checked
}

size_t bytes_of(int64_t h, int64_t w, int64_t channels, og_dtype dtype) {
  return static_cast<size_t>(h * w * channels) * og_dtype_size(dtype);
}

DirectPlan plan_direct(const og_call &call, const og_conv2d_spec &s) {
  const og_function &f = *call.function;
  const bool casts = f.operand != call.operand_dtype;
  DirectPlan plan = {};
  plan.inner = s;
  plan.step_y = plan.step_x = 1;
  plan.groups = f.takes(ROLE_groups) ? 1 : s.groups;
  const bool strides_pass = passes_strides(f, s);
  if (!strides_pass) unstride(&plan);
  plan.pads_first = !passes_padding(f, plan.inner, strides_pass);
  if (plan.pads_first) pad_first(&plan.inner);
  plan.inner.in_ch /= plan.groups;
  plan.inner.out_ch /= plan.groups;
  plan.inner.groups /= plan.groups;
  plan.packs_input = casts || plan.pads_first || s.channels_first || plan.groups > 1;
  plan.packs_kernel = casts || plan.groups > 1;
  plan.packs_output =
      f.result != call.result_dtype || s.channels_first || plan.groups > 1 || !strides_pass;
  const og_conv2d_spec &in = plan.inner;
  size_t input_image = plan.packs_input ? bytes_of(in.in_h, in.in_w, in.in_ch, f.operand) : 0;
  size_t output_image = plan.packs_output ? bytes_of(in.out_h, in.out_w, in.out_ch, f.result) : 0;
  plan.chunk = s.batch;
  if (input_image + output_image > 0)
    plan.chunk = std::max<int64_t>(
        1, std::min<int64_t>(s.batch, kChunkBytes / (input_image + output_image)));
  if (!f.takes(ROLE_batch)) plan.chunk = std::min<int64_t>(s.batch, 1);
  plan.input_bytes = aligned(input_image * static_cast<size_t>(plan.chunk));
  plan.output_bytes = aligned(output_image * static_cast<size_t>(plan.chunk));
  if (plan.packs_kernel)
    plan.kernel_bytes = aligned(static_cast<size_t>(s.filter_h * s.filter_w * (s.in_ch / s.groups) *
                                                    plan.inner.out_ch) * og_dtype_size(f.operand));
  return plan;
}

og_status pack_input(const og_call &call, const og_conv2d_spec &s, const DirectPlan &plan,
                     int64_t group, int64_t image, const void *input, char *to,
                     og_message *message) {
  const og_conv2d_spec &in = plan.inner;
  const og_function &f = *call.function;
  ImageStrides source(s.in_h, s.in_w, s.in_ch, s.channels_first);
  ImageStrides packed(in.in_h, in.in_w, in.in_ch, false);
  if (plan.pads_first) og_fill(to, f.operand, s.pad_value, in.batch * packed.image);
  og_copy_spec copy = {{in.batch, s.in_h, s.in_w, in.in_ch},
                       {packed.image, packed.y, packed.x, 1},
                       {source.image, source.y, source.x, source.channel},
                       f.operand,
                       call.operand_dtype,
                       1};
  int64_t from = image * source.image + group * in.in_ch * source.channel;
  int64_t inside = plan.pads_first ? s.pad_top * packed.y + s.pad_left * packed.x : 0;
  const char *first = static_cast<const char *>(input) +
                      from * static_cast<int64_t>(og_dtype_size(call.operand_dtype));
  int64_t bad = og_copy(&copy, to + inside * static_cast<int64_t>(og_dtype_size(f.operand)), first);
  return bad < 0 ? OG_OK
                 : refuse_value(f, "input", input, call.operand_dtype, from + bad, message);
}

void unpack_output(const og_call &call, const og_conv2d_spec &s, const DirectPlan &plan,
                   int64_t group, int64_t image, const char *from, void *out) {
  const og_conv2d_spec &in = plan.inner;
  ImageStrides packed(in.out_h, in.out_w, in.out_ch, false);
  ImageStrides target(s.out_h, s.out_w, s.out_ch, s.channels_first);
  og_copy_spec copy = {{in.batch, s.out_h, s.out_w, in.out_ch},
                       {target.image, target.y, target.x, target.channel},
                       {packed.image, packed.y * plan.step_y, packed.x * plan.step_x, 1},
                       call.result_dtype,
                       call.function->result,
                       0};
  int64_t to = image * target.image + group * in.out_ch * target.channel;
  og_copy(&copy,
          static_cast<char *>(out) + to * static_cast<int64_t>(og_dtype_size(call.result_dtype)),
          from);
}

og_status call_function(const og_function &f, const og_conv2d_spec &in, const void *input,
                        const void *kernel, void *out, og_message *message) {
  Arguments arguments;
  arguments.input = input;
  arguments.kernel = kernel;
  arguments.output = out;
  arguments.padding = in.padding == OG_SAME ? "SAME" : "VALID";
  arguments.pad_value = in.pad_value;
  int64_t *v = arguments.values;
#define SET(role) v[ROLE_##role] = in.role;
  SET(batch) SET(in_h) SET(in_w) SET(in_ch) SET(filter_h) SET(filter_w) SET(out_ch) SET(out_h)
  SET(out_w) SET(stride_h) SET(stride_w) SET(dilation_h) SET(dilation_w) SET(groups) SET(pad_top)
  SET(pad_bottom) SET(pad_left) SET(pad_right)
#undef SET
  v[ROLE_stride] = in.stride_h;
  v[ROLE_dilation] = in.dilation_h;
  v[ROLE_pad_h] = v[ROLE_pad] = in.pad_top;
  v[ROLE_pad_w] = in.pad_left;
  return f.call(arguments, message);
}

}  // namespace

og_status check_direct(const og_function &f, const og_conv2d_spec &s, og_message *message) {
  if (passes_dilations(f, s)) return OG_OK;
  return og_fail(message, OG_UNIMPLEMENTED,
                 "%s has no dilation parameters, and the call has dilations (%lld, %lld). Add "
                 "dilation_h and dilation_w to the C function, or give a matmul beside it, through "
                 "which dilated convolutions then go",
                 f.symbol.c_str(), static_cast<long long>(s.dilation_h),
                 static_cast<long long>(s.dilation_w));
}

size_t direct_scratch(const og_call &call, const og_conv2d_spec &s) {
  DirectPlan plan = plan_direct(call, s);
  return plan.kernel_bytes + plan.input_bytes + plan.output_bytes;
}

og_status run_direct(const og_call &call, const og_conv2d_spec &s, const void *input,
                     const void *kernel, void *out, char *scratch, og_message *message) {
  const og_function &f = *call.function;
  DirectPlan plan = plan_direct(call, s);
  og_conv2d_spec &in = plan.inner;
  char *packed_input = scratch + plan.kernel_bytes;
  char *packed_output = packed_input + plan.input_bytes;
  const size_t operand = og_dtype_size(call.operand_dtype), result = og_dtype_size(f.result);
  og_conv2d_spec sliced = s;
  sliced.groups = s.groups / in.groups;
  sliced.in_ch = s.in_ch / in.groups;  // what one group's kernel spans, if groups are passed on
  for (int64_t group = 0; group < plan.groups; group++) {
    const void *group_kernel = plan.packs_kernel ? scratch : kernel;
    og_status status = OG_OK;
    if (plan.packs_kernel)
      status = convert_kernel(f, kernel_copy(sliced, f.operand, call.operand_dtype), kernel,
                              group * in.out_ch, scratch, message);
    for (int64_t image = 0; !status && image < s.batch; image += plan.chunk) {
      in.batch = std::min(plan.chunk, s.batch - image);
      const void *from = static_cast<const char *>(input) + image * s.in_h * s.in_w * s.in_ch * operand;
      void *to = static_cast<char *>(out) + image * s.out_h * s.out_w * s.out_ch * result;
      if (plan.packs_input) {
        status = pack_input(call, s, plan, group, image, input, packed_input, message);
        from = packed_input;
      }
      if (plan.packs_output) to = packed_output;
      if (!status) status = call_function(f, in, from, group_kernel, to, message);
      if (!status && plan.packs_output) unpack_output(call, s, plan, group, image, packed_output, out);
    }
    if (status) return status;
  }
  return OG_OK;
}

}  // namespace og
