// TensorFlow's side of the core: op types and CPU kernels registered through
// the stable C API, so that one binary serves every TensorFlow 2.16-2.21.
//
// An op carries its whole arithmetic as attributes. Its kernel hands the
// tensors' own memory to the core; nothing is copied unless the user's function
// needs another layout or element type. Shape functions of the C API cannot
// read these attributes, so static shapes come from Python.
#include <algorithm>

#include "tensorflow_api.h"

namespace {

using namespace og_tf;

struct Kernel {
  og_call call = {};
  TF_DataType output_type = TF_FLOAT;

  virtual ~Kernel() = default;
  virtual void read(const Attributes &attributes) = 0;
  virtual void compute(TF_OpKernelContext *context, const og_call &call, TF_Tensor *left,
                       TF_Tensor *right, const Status &status) = 0;

  // Of an op that calls a function of the user's; one that looks products up in a table
  // has no library, and the table is one of its inputs.
  void open(const Attributes &attributes, bool by_table, const Status &status) {
    attributes.type("T", &call.operand_dtype);
    output_type = attributes.type("Tout", &call.result_dtype);
    read(attributes);
    if (!by_table) {
      if (ok(status)) call.function = open_function(attributes, status);
      return;
    }
    attributes.type("Ttable", &table.entries_dtype);
    table.signed_codes = attributes.flag("signed_codes");
    table.keeps_padding = attributes.flag("keeps_padding");
    table.engine = static_cast<int32_t>(attributes.integer("engine"));
    std::vector<int64_t> limits = attributes.list("accumulator", 2);
    accumulator = {limits[0], limits[1], nullptr};
    const bool has_adder = ok(status) && !attributes.text("symbol").empty();
    if (has_adder) accumulator.adder = open_function(attributes, status);
    if (has_adder || limits[0] < limits[1]) table.accumulator = &accumulator;
  }

  og_table table = {};  // all but what the inputs say
  og_accumulator accumulator = {};
};

// The table [rows, columns] and the two zero points of a call.
bool read_table(TF_Tensor *entries, TF_Tensor *zeros, og_table *table) {
  std::vector<int64_t> shape = shape_of(entries);
  if (shape.size() != 2 || TF_TensorElementCount(zeros) != 2) return false;
  table->entries = TF_TensorData(entries);
  table->rows = shape[0], table->columns = shape[1];
  const int32_t *points = static_cast<const int32_t *>(TF_TensorData(zeros));
  table->zero_a = points[0], table->zero_b = points[1];
  return true;
}

// Uninitialised, aligned for any element type and vector.
struct Scratch {
  std::unique_ptr<char[]> memory;
  explicit Scratch(size_t bytes) : memory(bytes ? new char[bytes + 64] : nullptr) {}
  void *data() const {
    return reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(memory.get()) + 63) / 64 * 64);
  }
};

struct MatMul : Kernel {
  bool transpose_a = false, transpose_b = false;

  void read(const Attributes &attributes) override {
    transpose_a = attributes.flag("transpose_a");
    transpose_b = attributes.flag("transpose_b");
  }

  void compute(TF_OpKernelContext *context, const og_call &call, TF_Tensor *left, TF_Tensor *right,
               const Status &status) override {
    std::vector<int64_t> a = shape_of(left), b = shape_of(right), batch;
    og_matmul_spec spec = {};
    std::vector<int64_t> a_index, b_index;
    if (!fit(a, b, &spec) || !broadcast(a, b, &batch, &a_index, &b_index))
      return set(status, OG_INVALID_ARGUMENT,
                 "opgraft: the shapes " + text_of(a) + " and " + text_of(b) +
                     " do not fit a matrix product (transpose_a=" + (transpose_a ? "True" : "False") +
                     ", transpose_b=" + (transpose_b ? "True" : "False") + ")");
    std::vector<int64_t> out = batch;
    out.push_back(spec.m);
    out.push_back(spec.n);
    flatten(a, b, a_index, b_index, &spec);
    Tensor product = allocate(context, 0, output_type, out, call.result_dtype, status);
    if (!ok(status)) return;
    og_message message;
    og_call here = call;
    og_status code = og_matmul_prepare(&here, &spec, &message);
    Scratch scratch(code ? 0 : here.scratch_bytes);
    if (!code)
      code = og_matmul_run(&here, &spec, TF_TensorData(left), TF_TensorData(right),
                           TF_TensorData(product.get()), scratch.data(), &message);
    if (code) set(status, code, std::string("opgraft: ") + message.text);
  }

 private:
  bool fit(const std::vector<int64_t> &a, const std::vector<int64_t> &b, og_matmul_spec *spec) const {
    if (a.size() < 2 || b.size() < 2) return false;
    const int64_t *ra = &a[a.size() - 2], *rb = &b[b.size() - 2];
    spec->transpose_a = transpose_a;
    spec->transpose_b = transpose_b;
    spec->m = ra[transpose_a ? 1 : 0];
    spec->k = ra[transpose_a ? 0 : 1];
    spec->n = rb[transpose_b ? 0 : 1];
    return spec->k == rb[transpose_b ? 1 : 0];
  }

  // The batch dimensions of the result, and which matrix each of its entries takes.
  static bool broadcast(const std::vector<int64_t> &a, const std::vector<int64_t> &b,
                        std::vector<int64_t> *batch, std::vector<int64_t> *a_index,
                        std::vector<int64_t> *b_index) {
    size_t rank = std::max(a.size(), b.size()) - 2;
    auto dim = [rank](const std::vector<int64_t> &shape, size_t i) {
      size_t missing = rank + 2 - shape.size();
      return i < missing ? int64_t{1} : shape[i - missing];
    };
    int64_t count = 1;
    for (size_t i = 0; i < rank; i++) {
      int64_t da = dim(a, i), db = dim(b, i);
      if (da != db && da != 1 && db != 1) return false;
      batch->push_back(da == 1 ? db : da);
      count *= batch->back();
    }
    a_index->assign(static_cast<size_t>(count), 0);
    b_index->assign(static_cast<size_t>(count), 0);
    for (int64_t entry = 0; entry < count; entry++) {
      int64_t rest = entry, a_step = 1, b_step = 1;
      for (size_t i = rank; i-- > 0;) {
        int64_t at = rest % (*batch)[i];
        rest /= (*batch)[i];
        if (dim(a, i) != 1) (*a_index)[static_cast<size_t>(entry)] += at * a_step;
        if (dim(b, i) != 1) (*b_index)[static_cast<size_t>(entry)] += at * b_step;
        a_step *= dim(a, i);
        b_step *= dim(b, i);
      }
    }
    return true;
  }

  // One kernel for the whole batch, as in a dense layer on sequences: the batch
  // is more rows of one product, and the user's function is called once.
  static void flatten(const std::vector<int64_t> &a, const std::vector<int64_t> &b,
                      const std::vector<int64_t> &a_index, const std::vector<int64_t> &b_index,
                      og_matmul_spec *spec) {
    spec->batches = static_cast<int64_t>(a_index.size());
    spec->a_index = a_index.data();
    spec->b_index = b_index.data();
    auto matrices = [](const std::vector<int64_t> &shape) {
      int64_t count = 1;
      for (size_t i = 0; i + 2 < shape.size(); i++) count *= shape[i];
      return count;
    };
    if (matrices(b) != 1 || spec->transpose_a || matrices(a) != spec->batches) return;
    spec->m *= spec->batches;
    spec->batches = std::min<int64_t>(spec->batches, 1);
  }
};

struct Conv2D : Kernel {
  og_conv2d_spec spec = {};
  bool depthwise;

  explicit Conv2D(bool depthwise) : depthwise(depthwise) {}

  void read(const Attributes &attributes) override {
    std::vector<int64_t> strides = attributes.list("strides", 2);
    std::vector<int64_t> dilations = attributes.list("dilations", 2);
    std::vector<int64_t> pads = attributes.list("explicit_paddings", 4);
    std::string padding = attributes.text("padding");
    spec.stride_h = strides[0], spec.stride_w = strides[1];
    spec.dilation_h = dilations[0], spec.dilation_w = dilations[1];
    spec.pad_top = pads[0], spec.pad_bottom = pads[1], spec.pad_left = pads[2],
    spec.pad_right = pads[3];
    spec.padding = padding == "SAME" ? OG_SAME : padding == "VALID" ? OG_VALID : OG_EXPLICIT;
    spec.channels_first = attributes.text("data_format") == "NCHW";
    spec.groups = attributes.integer("groups");
    spec.pad_value = attributes.real("pad_value");
  }

  void compute(TF_OpKernelContext *context, const og_call &call, TF_Tensor *input, TF_Tensor *filter,
               const Status &status) override {
    std::vector<int64_t> x = shape_of(input), w = shape_of(filter);
    og_conv2d_spec here = spec;
    if (!fit(x, w, &here))
      return set(status, OG_INVALID_ARGUMENT,
                 "opgraft: the input " + text_of(x) + " and the kernel " + text_of(w) +
                     " do not fit a convolution of " + std::to_string(spec.groups) + " group(s), " +
                     (spec.channels_first ? "channels_first" : "channels_last"));
    og_message message;
    og_status code = og_conv2d_resolve(&here, &message);
    og_call prepared = call;
    if (!code) code = og_conv2d_prepare(&prepared, &here, &message);
    if (code) return set(status, code, std::string("opgraft: ") + message.text);
    std::vector<int64_t> shape = {here.batch, here.out_h, here.out_w, here.out_ch};
    if (here.channels_first) shape = {here.batch, here.out_ch, here.out_h, here.out_w};
    Tensor out = allocate(context, 0, output_type, shape, call.result_dtype, status);
    if (!ok(status)) return;
    Scratch scratch(prepared.scratch_bytes);
    code = og_conv2d_run(&prepared, &here, TF_TensorData(input), TF_TensorData(filter),
                         TF_TensorData(out.get()), scratch.data(), &message);
    if (code) set(status, code, std::string("opgraft: ") + message.text);
  }

 private:
  bool fit(const std::vector<int64_t> &x, const std::vector<int64_t> &w, og_conv2d_spec *s) const {
    if (x.size() != 4 || w.size() != 4) return false;
    const bool first = s->channels_first;
    s->batch = x[0];
    s->in_h = x[first ? 2 : 1];
    s->in_w = x[first ? 3 : 2];
    s->in_ch = x[first ? 1 : 3];
    s->filter_h = w[0];
    s->filter_w = w[1];
    s->out_ch = depthwise ? w[2] * w[3] : w[3];
    if (depthwise) {
      s->groups = std::max<int64_t>(s->in_ch, 1);
      return w[2] == s->in_ch;
    }
    return w[2] * s->groups == s->in_ch;
  }
};

template <bool by_table>
void *create(TF_OpKernelConstruction *context, Kernel *made) {
  Status status(TF_NewStatus());
  std::unique_ptr<Kernel> kernel(made);
  kernel->open(Attributes(context, status), by_table, status);
  if (ok(status)) return kernel.release();
  TF_OpKernelConstruction_Failure(context, status.get());
  return nullptr;
}

template <bool by_table>
void *create_matmul(TF_OpKernelConstruction *context) {
  return create<by_table>(context, new MatMul);
}
template <bool by_table>
void *create_conv2d(TF_OpKernelConstruction *context) {
  return create<by_table>(context, new Conv2D(false));
}
template <bool by_table>
void *create_depthwise(TF_OpKernelConstruction *context) {
  return create<by_table>(context, new Conv2D(true));
}

void compute(void *made, TF_OpKernelContext *context) {
  Status status(TF_NewStatus());
  Kernel &kernel = *static_cast<Kernel *>(made);
  Tensor inputs[4];  // both operands; the table and its zero points, if there is one
  const int count = std::min(TF_NumInputs(context), 4);
  for (int i = 0; i < count && ok(status); i++) {
    TF_Tensor *tensor = nullptr;
    TF_GetInput(context, i, &tensor, status.get());
    inputs[i].reset(tensor);
  }
  try {
    og_table table = kernel.table;
    og_call call = kernel.call;
    if (ok(status) && count == 4) {
      call.table = &table;
      if (!read_table(inputs[2].get(), inputs[3].get(), &table))
        set(status, OG_INVALID_ARGUMENT, "opgraft: a table [rows, columns] and two zero points are needed");
    }
    if (ok(status)) kernel.compute(context, call, inputs[0].get(), inputs[1].get(), status);
  } catch (const std::exception &error) {
    set(status, OG_INTERNAL, std::string("opgraft: ") + error.what());
  }
  if (!ok(status)) TF_OpKernelContext_Failure(context, status.get());
}

void destroy(void *kernel) { delete static_cast<Kernel *>(kernel); }

// ---- registration -----------------------------------------------------------

const char *const kTypes =
    "{half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64}";

void unknown_shape(TF_ShapeInferenceContext *context, TF_Status *status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

struct Op {
  const char *name;
  std::vector<const char *> inputs, outputs, attributes;
  void *(*create)(TF_OpKernelConstruction *);
  void (*compute)(void *, TF_OpKernelContext *);
  void (*destroy)(void *);
};

void register_op(const Op &op) {
  TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder(op.name);
  for (const char *input : op.inputs) TF_OpDefinitionBuilderAddInput(builder, input);
  for (const char *output : op.outputs) TF_OpDefinitionBuilderAddOutput(builder, output);
  for (const char *attribute : op.attributes) TF_OpDefinitionBuilderAddAttr(builder, attribute);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, unknown_shape);
  Status status(TF_NewStatus());
  TF_RegisterOpDefinition(builder, status.get());
  if (!ok(status)) return;  // loaded twice: the first registration stands
  TF_KernelBuilder *kernel =
      TF_NewKernelBuilder(op.name, "CPU", op.create, op.compute, op.destroy);
  TF_RegisterKernelBuilder(op.name, kernel, status.get());
}

std::vector<const char *> join(std::vector<const char *> first,
                               const std::vector<const char *> &second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const bool registered = [] {
  static const std::string operand = std::string("T: ") + kTypes, result = std::string("Tout: ") + kTypes;
  const std::vector<const char *> arithmetic = {operand.c_str(), result.c_str(), "arithmetic: string"};
  const std::vector<const char *> library = {
      "library: string", "library_hash: string", "binary: string", "symbol: string",
      "plan: string", "prototype: string", "address: int = 0", "thread_safe: bool = true"};
  const std::vector<const char *> function = join(library, arithmetic);
  const std::vector<const char *> geometry =
      {"strides: list(int)", "padding: {'SAME', 'VALID', 'EXPLICIT'}",
       "explicit_paddings: list(int)", "dilations: list(int)", "groups: int = 1",
       "data_format: {'NHWC', 'NCHW'}", "pad_value: string = '0.0'"};
  const std::vector<const char *> conv = join(geometry, function);
  const std::vector<const char *> transposes = {"transpose_a: bool = false", "transpose_b: bool = false"};
  const std::vector<const char *> by_table = {
      "T: {uint8, float}", "Ttable: {int32, double}", "Tout: {int32, int64, double}", "signed_codes: bool",
      "keeps_padding: bool = false", "engine: int = 0",
      // An accumulator from the first number to the second, if they are not equal; an adder, if
      // there is a symbol.
      "accumulator: list(int) = [0, 0]", "library: string = ''", "library_hash: string = ''",
      "binary: string = ''", "symbol: string = ''", "plan: string = ''", "prototype: string = ''",
      "address: int = 0", "thread_safe: bool = true"};
  const std::vector<const char *> table = {"table: Ttable", "zero_points: int32"};
  const std::vector<const char *> images = {"input: T", "filter: T"}, output = {"output: Tout"};
  register_op({"OpgraftMatMul", {"a: T", "b: T"}, output,
               join(transposes, function), create_matmul<false>, compute, destroy});
  register_op({"OpgraftConv2D", images, output, conv, create_conv2d<false>, compute, destroy});
  register_op({"OpgraftDepthwiseConv2D", images, output, conv, create_depthwise<false>, compute, destroy});
  register_op({"OpgraftTableMatMul", join({"a: T", "b: T"}, table), output, join(transposes, by_table),
               create_matmul<true>, compute, destroy});
  register_op({"OpgraftTableConv2D", join(images, table), output, join(geometry, by_table),
               create_conv2d<true>, compute, destroy});
  register_op({"OpgraftTableDepthwiseConv2D", join(images, table), output, join(geometry, by_table),
               create_depthwise<true>, compute, destroy});
  // `least` and `most` are the values beyond which the gradient is 0, if `clips`.
  register_op({"OpgraftQuantize",
               {"x: float", "scale: float", "zero_point: int32", "least: float", "most: float"},
               {"codes: uint8", "values: float", "spoilt: float"},
               {"low: int", "high: int", "mask: int", "clips: bool"},
               create_quantize, compute_quantize, destroy_quantize});
  register_op({"OpgraftLookUp", {"codes: uint8", "column: float"}, {"numbers: float"}, {}, nullptr,
               compute_look_up, nullptr});
  register_op({"OpgraftGraft", {"a: T", "b: T", "value: Tout"}, output,
               join({"contraction: string"}, arithmetic), nullptr, compute_graft, nullptr});
  register_op({"OpgraftVjp", {"input: T", "kernel: T", "output: T", "upstream: T", "sizes: int64"},
               {"grad_input: T", "grad_kernel: T"},
               join({operand.c_str(), "writes_input: bool", "writes_kernel: bool"}, library),
               create_vjp, compute_vjp, destroy_vjp});
  register_op({"OpgraftCustomOp", {"inputs: Tin", "values: Tout"}, {"outputs: Tout"},
               {"Tin: list(type) >= 0", "Tout: list(type) >= 1", "function: string",
                "backward: list(func) >= 0 = []"},
               nullptr, compute_custom, nullptr});
  return true;
}();

}  // namespace
