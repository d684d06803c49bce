// TensorFlow's C API as C++ owns it: status, tensors, attributes of a node.
#pragma once

#include <cstdint>
#include <locale>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "opgraft.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_tensor.h"

namespace og_tf {

struct Free {
  void operator()(TF_Status *status) const { TF_DeleteStatus(status); }
  void operator()(TF_Tensor *tensor) const { TF_DeleteTensor(tensor); }
};
using Status = std::unique_ptr<TF_Status, Free>;
using Tensor = std::unique_ptr<TF_Tensor, Free>;

inline bool ok(const Status &status) { return TF_GetCode(status.get()) == TF_OK; }

// og_status is numbered like TF_Code.
inline void set(const Status &status, og_status code, const std::string &text) {
  TF_SetStatus(status.get(), static_cast<TF_Code>(code), text.c_str());
}

inline bool to_og(TF_DataType type, og_dtype *dtype) {
  static const struct {
    TF_DataType tf;
    og_dtype og;
  } pairs[] = {{TF_FLOAT, OG_F32}, {TF_DOUBLE, OG_F64}, {TF_HALF, OG_F16},   {TF_BFLOAT16, OG_BF16},
               {TF_INT8, OG_I8},   {TF_INT16, OG_I16},  {TF_INT32, OG_I32},  {TF_INT64, OG_I64},
               {TF_UINT8, OG_U8},  {TF_UINT16, OG_U16}, {TF_UINT32, OG_U32}, {TF_UINT64, OG_U64}};
  for (const auto &pair : pairs)
    if (pair.tf == type) return *dtype = pair.og, true;
  return false;
}

class Attributes {
 public:
  Attributes(TF_OpKernelConstruction *context, const Status &status)
      : context_(context), status_(status) {}

  std::string text(const char *name) const {
    int32_t entries = 0, size = 0;
    TF_OpKernelConstruction_GetAttrSize(context_, name, &entries, &size, status_.get());
    if (!ok(status_)) return "";
    std::vector<char> value(static_cast<size_t>(size) + 1, 0);
    TF_OpKernelConstruction_GetAttrString(context_, name, value.data(), static_cast<size_t>(size),
                                          status_.get());
    return value.data();
  }

  int64_t integer(const char *name) const {
    int64_t value = 0;
    if (ok(status_)) TF_OpKernelConstruction_GetAttrInt64(context_, name, &value, status_.get());
    return value;
  }

  bool flag(const char *name) const {
    TF_Bool value = 0;
    if (ok(status_)) TF_OpKernelConstruction_GetAttrBool(context_, name, &value, status_.get());
    return value != 0;
  }

  // A double as text: the attribute type float has only 32 bits.
  double real(const char *name) const {
    std::istringstream words(text(name));
    words.imbue(std::locale::classic());
    double value = 0;
    words >> value;
    return value;
  }

  std::vector<int64_t> list(const char *name, size_t size) const {
    std::vector<int64_t> values(size, 0);
    int32_t entries = 0, bytes = 0;
    TF_OpKernelConstruction_GetAttrSize(context_, name, &entries, &bytes, status_.get());
    if (!ok(status_)) return values;
    if (entries != static_cast<int32_t>(size)) {
      set(status_, OG_INVALID_ARGUMENT,
          std::string("attribute ") + name + " must have " + std::to_string(size) + " numbers");
      return values;
    }
    TF_OpKernelConstruction_GetAttrInt64List(context_, name, values.data(), entries, status_.get());
    return values;
  }

  TF_DataType type(const char *name, og_dtype *dtype) const {
    TF_DataType value = TF_FLOAT;
    if (ok(status_)) TF_OpKernelConstruction_GetAttrType(context_, name, &value, status_.get());
    if (ok(status_) && !to_og(value, dtype))
      set(status_, OG_UNIMPLEMENTED, std::string("attribute ") + name + " has an unsupported type");
    return value;
  }

 private:
  TF_OpKernelConstruction *context_;
  const Status &status_;
};

inline std::vector<int64_t> shape_of(TF_Tensor *tensor) {
  std::vector<int64_t> shape(static_cast<size_t>(TF_NumDims(tensor)));
  for (size_t i = 0; i < shape.size(); i++) shape[i] = TF_Dim(tensor, static_cast<int>(i));
  return shape;
}

inline std::string text_of(const std::vector<int64_t> &shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); i++) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

inline Tensor allocate(TF_OpKernelContext *context, int output, TF_DataType type, const std::vector<int64_t> &shape,
                       og_dtype dtype, const Status &status) {
  int64_t bytes = static_cast<int64_t>(og_dtype_size(dtype));
  for (int64_t size : shape)  // TensorFlow ends the process where this overflows
    if (__builtin_mul_overflow(bytes, size, &bytes)) {
      set(status, OG_INVALID_ARGUMENT, "opgraft: a result of the shape " + text_of(shape) + " is too large");
      return nullptr;
    }
  return Tensor(TF_AllocateOutput(context, output, type, shape.data(), static_cast<int>(shape.size()),
                                  static_cast<size_t>(bytes), status.get()));
}

inline const og_function *open_function(const Attributes &attributes, const Status &status) {
  std::string library = attributes.text("library"), hash = attributes.text("library_hash"),
              binary = attributes.text("binary"), symbol = attributes.text("symbol"),
              plan = attributes.text("plan");
  int64_t address = attributes.integer("address");
  og_function_spec spec = {library.c_str(), hash.c_str(), binary.c_str(), symbol.c_str(),
                           plan.c_str(), reinterpret_cast<const void *>(address),
                           attributes.flag("thread_safe")};
  if (!ok(status)) return nullptr;
  const og_function *function = nullptr;
  og_message message;
  og_status code = og_function_open(&spec, &function, &message);
  if (code) set(status, code, std::string("opgraft: ") + message.text);
  return function;
}

// ---- in tensorflow_gradients.cc ---------------------------------------------

void compute_graft(void *, TF_OpKernelContext *context);
void compute_custom(void *, TF_OpKernelContext *context);
void *create_quantize(TF_OpKernelConstruction *context);
void compute_quantize(void *kernel, TF_OpKernelContext *context);
void destroy_quantize(void *kernel);
void compute_look_up(void *, TF_OpKernelContext *context);
void *create_vjp(TF_OpKernelConstruction *context);
void compute_vjp(void *kernel, TF_OpKernelContext *context);
void destroy_vjp(void *kernel);

}  // namespace og_tf
