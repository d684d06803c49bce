// The user's function: its prototype as a plan, and the exact way to call it.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "../generic/internal.h"

// X(role): every name that a parameter can have in a plan. Python owns the
// aliases (opgraft/native/roles.py); a test holds the two lists together.
#define OG_ROLES(X)                                                              \
  X(input) X(kernel) X(output) X(upstream) X(grad_input) X(grad_kernel)          \
  X(batch) X(m) X(k) X(n) X(in_h) X(in_w) X(in_ch)                               \
  X(filter_h) X(filter_w) X(out_ch) X(out_h) X(out_w) X(stride_h) X(stride_w)    \
  X(stride) X(dilation_h) X(dilation_w) X(dilation) X(groups) X(pad_top)         \
  X(pad_bottom) X(pad_left) X(pad_right) X(pad_h) X(pad_w) X(pad) X(padding)     \
  X(pad_value)

namespace og {

enum Role {
#define X(role) ROLE_##role,
  OG_ROLES(X)
#undef X
      ROLE_COUNT
};

struct Parameter {
  Role role;
  og_dtype dtype = OG_F32;
  bool pointer = false, text = false;
};

// What one call passes: buffers, and the number that each role stands for.
struct Arguments {
  const void *input = nullptr, *kernel = nullptr, *upstream = nullptr;
  void *output = nullptr, *grad_input = nullptr, *grad_kernel = nullptr;
  const char *padding = "VALID";
  double pad_value = 0;
  int64_t values[ROLE_COUNT] = {};
};

// vjp: of a matrix product or a convolution, which only Python tells apart.
enum class Kind { matmul, conv2d, scalar, vjp };

}  // namespace og

struct og_function {
  std::string symbol, signature;
  og_any_pointer address = nullptr;
  bool thread_safe = true, returns_status = false;
  std::vector<og::Parameter> parameters;
  og::Kind kind = og::Kind::matmul;
  og_dtype operand = OG_F32;  // element type of input and kernel
  og_dtype result = OG_F32;   // element type of the output as the caller gets it
  og_dtype scalar_return = OG_F32;
  std::mutex *lock = nullptr;  // of its library; held during a call if not thread_safe

  bool takes(og::Role role) const;
  og_status parse(const char *plan, og_message *message);
  og_status call(const og::Arguments &arguments, og_message *message) const;
};
