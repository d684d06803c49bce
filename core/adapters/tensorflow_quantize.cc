// The kernels that make codes of a tensor, and numbers of codes.
#include <limits>

#include "tensorflow_api.h"

namespace og_tf {

void *create_quantize(TF_OpKernelConstruction *context) {
  Status status(TF_NewStatus());
  Attributes attributes(context, status);
  std::unique_ptr<og_quantize_spec> spec(new og_quantize_spec());
  spec->low = static_cast<int32_t>(attributes.integer("low"));
  spec->high = static_cast<int32_t>(attributes.integer("high"));
  spec->mask = static_cast<int32_t>(attributes.integer("mask"));
  if (ok(status)) return spec.release();
  TF_OpKernelConstruction_Failure(context, status.get());
  return nullptr;
}

void destroy_quantize(void *kernel) { delete static_cast<og_quantize_spec *>(kernel); }

void compute_quantize(void *kernel, TF_OpKernelContext *context) {
  og_quantize_spec spec = *static_cast<og_quantize_spec *>(kernel);
  Status status(TF_NewStatus());
  Tensor inputs[3];  // x, scale, zero point
  for (int i = 0; i < 3 && ok(status); i++) {
    TF_Tensor *tensor = nullptr;
    TF_GetInput(context, i, &tensor, status.get());
    inputs[i].reset(tensor);
  }
  for (int i = 1; i < 3 && ok(status); i++)
    if (TF_TensorElementCount(inputs[i].get()) != 1)
      set(status, OG_INVALID_ARGUMENT, "opgraft: one scale and one zero point are needed");
  Tensor codes, values, spoilt;
  if (ok(status)) {
    const std::vector<int64_t> shape = shape_of(inputs[0].get());
    codes = allocate(context, 0, TF_UINT8, shape, OG_U8, status);
    if (ok(status)) values = allocate(context, 1, TF_FLOAT, shape, OG_F32, status);
    if (ok(status)) spoilt = allocate(context, 2, TF_FLOAT, {}, OG_F32, status);
  }
  if (ok(status)) {
    auto data = [](const Tensor &tensor) { return TF_TensorData(tensor.get()); };
    spec.scale = *static_cast<const float *>(data(inputs[1]));
    spec.zero_point = *static_cast<const int32_t *>(data(inputs[2]));
    const int has_nan = og_quantize(&spec, static_cast<const float *>(data(inputs[0])),
                                    TF_TensorElementCount(inputs[0].get()),
                                    static_cast<uint8_t *>(data(codes)), static_cast<float *>(data(values)));
    *static_cast<float *>(data(spoilt)) = has_nan ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  }
  if (!ok(status)) TF_OpKernelContext_Failure(context, status.get());
}

void compute_look_up(void *, TF_OpKernelContext *context) {
  Status status(TF_NewStatus());
  Tensor inputs[2];  // codes, column
  for (int i = 0; i < 2 && ok(status); i++) {
    TF_Tensor *tensor = nullptr;
    TF_GetInput(context, i, &tensor, status.get());
    inputs[i].reset(tensor);
  }
  if (ok(status) && TF_TensorElementCount(inputs[1].get()) != 256)
    set(status, OG_INVALID_ARGUMENT, "opgraft: a number for each of 256 codes is needed");
  if (ok(status)) {
    Tensor out = allocate(context, 0, TF_FLOAT, shape_of(inputs[0].get()), OG_F32, status);
    if (ok(status))
      og_look_up(static_cast<const float *>(TF_TensorData(inputs[1].get())),
                 static_cast<const uint8_t *>(TF_TensorData(inputs[0].get())),
                 TF_TensorElementCount(inputs[0].get()), static_cast<float *>(TF_TensorData(out.get())));
  }
  if (!ok(status)) TF_OpKernelContext_Failure(context, status.get());
}

}  // namespace og_tf
