#include "conv2d.h"

#include "float_environment.h"
#include "table.h"

namespace og {

ImageStrides::ImageStrides(int64_t h, int64_t w, int64_t channels, bool channels_first)
    : image(h * w * channels),
      y(channels_first ? w : w * channels),
      x(channels_first ? 1 : channels),
      channel(channels_first ? h * w : 1) {}

og_copy_spec kernel_copy(const og_conv2d_spec &s, og_dtype to, og_dtype from) {
  og_copy_spec copy = {};
  copy.shape[0] = copy.shape[1] = 1;
  copy.shape[2] = s.filter_h * s.filter_w * (s.in_ch / s.groups);
  copy.shape[3] = s.out_ch / s.groups;
  copy.src_stride[2] = s.out_ch;
  copy.dst_stride[2] = copy.shape[3];
  copy.src_stride[3] = copy.dst_stride[3] = 1;
  copy.dst_dtype = to;
  copy.src_dtype = from;
  copy.exact = 1;
  return copy;
}

}  // namespace og

using namespace og;

extern "C" og_status og_conv2d_prepare(og_call *call, const og_conv2d_spec *s,
                                       og_message *message) {
  if (call->table) return prepare_table_conv2d(call, *s, message);
  const og_function &f = *call->function;
  og_status unfit = check_pad_value(f, *s, message);
  if (unfit) return unfit;
  if (f.kind == Kind::conv2d) {
    call->threads = 1;
    og_status status = check_direct(f, *s, message);
    if (!status) call->scratch_bytes = direct_scratch(*call, *s);
    return status;
  }
  call->threads = im2col_threads(*call, *s);
  call->scratch_bytes = im2col_scratch(*call, *s);
  return OG_OK;
}

extern "C" og_status og_conv2d_run(const og_call *call, const og_conv2d_spec *s, const void *input,
                                   const void *kernel, void *out, void *scratch,
                                   og_message *message) {
  if (call->table)
    return run_table_conv2d(*call, *s, input, kernel, out, static_cast<char *>(scratch), message);
  int64_t outputs = s->batch * s->out_h * s->out_w * s->out_ch;
  if (outputs == 0) return OG_OK;  // an empty batch never reaches the user's function
  if (s->filter_h * s->filter_w * s->in_ch == 0) {
    og_fill(out, call->result_dtype, 0, outputs);
    return OG_OK;
  }
  FloatEnvironment environment;
  auto run = call->function->kind == Kind::conv2d ? run_direct : run_im2col;
  return run(*call, *s, input, kernel, out, static_cast<char *>(scratch), message);
}
