// Kernels of the operations that give a gradient: what they compute is a value that
// is there already, or the user's own vector-Jacobian product.
#include "tensorflow_api.h"

namespace og_tf {

// A graft: the value of one tensor, the gradient of a contraction of two others.
void compute_graft(void *, TF_OpKernelContext *context) {
  Status status(TF_NewStatus());
  TF_Tensor *value = nullptr;
  TF_GetInput(context, 2, &value, status.get());
  Tensor owner(value);
  if (ok(status)) TF_SetOutput(context, 0, value, status.get());
  if (!ok(status)) TF_OpKernelContext_Failure(context, status.get());
}

// A custom op: the values of some tensors, the gradient that its rule gives to others.
void compute_custom(void *, TF_OpKernelContext *context) {
  Status status(TF_NewStatus());
  const int outputs = TF_NumOutputs(context), first = TF_NumInputs(context) - outputs;
  for (int i = 0; i < outputs && ok(status); i++) {
    TF_Tensor *value = nullptr;
    TF_GetInput(context, first + i, &value, status.get());
    Tensor owner(value);
    if (ok(status)) TF_SetOutput(context, i, value, status.get());
  }
  if (!ok(status)) TF_OpKernelContext_Failure(context, status.get());
}

namespace {

// The gradients of two operands by the user's function. What it does not write comes out empty.
struct Vjp {
  const og_function *function = nullptr;
  bool writes[2] = {false, false};
  TF_DataType type = TF_FLOAT;
  og_dtype dtype = OG_F32;
};

}  // namespace

void *create_vjp(TF_OpKernelConstruction *context) {
  Status status(TF_NewStatus());
  Attributes attributes(context, status);
  std::unique_ptr<Vjp> kernel(new Vjp);
  kernel->type = attributes.type("T", &kernel->dtype);
  kernel->writes[0] = attributes.flag("writes_input");
  kernel->writes[1] = attributes.flag("writes_kernel");
  if (ok(status)) kernel->function = open_function(attributes, status);
  if (ok(status)) return kernel.release();
  TF_OpKernelConstruction_Failure(context, status.get());
  return nullptr;
}

void destroy_vjp(void *kernel) { delete static_cast<Vjp *>(kernel); }

void compute_vjp(void *kernel, TF_OpKernelContext *context) {
  const Vjp &vjp = *static_cast<Vjp *>(kernel);
  Status status(TF_NewStatus());
  Tensor inputs[5], gradients[2];  // input, kernel, output, upstream, sizes
  for (int i = 0; i < 5 && ok(status); i++) {
    TF_Tensor *tensor = nullptr;
    TF_GetInput(context, i, &tensor, status.get());
    inputs[i].reset(tensor);
  }
  bool empty = false;
  for (int i = 0; i < 2 && ok(status); i++) {
    const std::vector<int64_t> shape = vjp.writes[i] ? shape_of(inputs[i].get()) : std::vector<int64_t>{0};
    gradients[i] = allocate(context, i, vjp.type, shape, vjp.dtype, status);
    if (ok(status) && vjp.writes[i]) empty |= TF_TensorElementCount(gradients[i].get()) == 0;
  }
  if (ok(status) && !empty) {  // an empty batch never reaches the user's function
    auto data = [](const Tensor &tensor) { return TF_TensorData(tensor.get()); };
    og_vjp_arguments arguments = {data(inputs[0]), data(inputs[1]), data(inputs[2]), data(inputs[3]),
                                  vjp.writes[0] ? data(gradients[0]) : nullptr,
                                  vjp.writes[1] ? data(gradients[1]) : nullptr,
                                  static_cast<const int64_t *>(data(inputs[4]))};
    og_message message;
    og_status code = og_vjp_run(vjp.function, &arguments, &message);
    if (code) set(status, code, std::string("opgraft: ") + message.text);
  }
  if (!ok(status)) TF_OpKernelContext_Failure(context, status.get());
}

}  // namespace og_tf
