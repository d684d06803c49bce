// The two ways to a convolution: through a convolution of the user's, composed
// where its prototype is narrower than the call; or through a matrix product.
#pragma once

#include "rows.h"

namespace og {

size_t direct_scratch(const og_call &call, const og_conv2d_spec &spec);
og_status check_direct(const og_function &function, const og_conv2d_spec &spec,
                       og_message *message);
og_status run_direct(const og_call &call, const og_conv2d_spec &spec, const void *input,
                     const void *kernel, void *out, char *scratch, og_message *message);

size_t im2col_scratch(const og_call &call, const og_conv2d_spec &spec);
int im2col_threads(const og_call &call, const og_conv2d_spec &spec);
og_status run_im2col(const og_call &call, const og_conv2d_spec &spec, const void *input,
                     const void *kernel, void *out, char *scratch, og_message *message);

// Element strides of a [batch, h, w, ch] tensor that lies NHWC or NCHW.
struct ImageStrides {
  int64_t image, y, x, channel;
  ImageStrides(int64_t h, int64_t w, int64_t channels, bool channels_first);
};

// The copy of one group's kernel: [h * w * in_ch / groups, out_ch / groups].
og_copy_spec kernel_copy(const og_conv2d_spec &spec, og_dtype to, og_dtype from);

}  // namespace og
