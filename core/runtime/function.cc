#include "function.h"

#include <cstring>
#include <sstream>

#include "float_environment.h"

namespace og {
namespace {

const char *const role_names[] = {
#define X(role) #role,
    OG_ROLES(X)
#undef X
};

bool find_role(const std::string &name, Role *role) {
  for (int i = 0; i < ROLE_COUNT; i++)
    if (name == role_names[i]) return *role = static_cast<Role>(i), true;
  return false;
}

bool find_dtype(const std::string &name, og_dtype *dtype) {
  for (int i = 0; i < OG_F16; i++)  // the 16-bit floats are not C types
    if (name == og_dtype_name(static_cast<og_dtype>(i)))
      return *dtype = static_cast<og_dtype>(i), true;
  return false;
}

bool parse_parameter(const std::string &word, Parameter *parameter) {
  size_t colon = word.find(':');
  if (colon == std::string::npos || !find_role(word.substr(0, colon), &parameter->role))
    return false;
  std::string type = word.substr(colon + 1);
  if (type == "text") return parameter->text = true;
  if (!type.empty() && type.back() == '*') {
    parameter->pointer = true;
    type.pop_back();
  }
  return find_dtype(type, &parameter->dtype);
}

bool is_float(og_dtype dtype) { return dtype == OG_F32 || dtype == OG_F64; }

bool is_whole(double value) {
  int64_t stored = 0;
  return og_convert(&stored, OG_I64, 1, &value, OG_F64, 1, 1, 1) < 0;
}

// Does `value` keep its value as an integer of this type?
bool fits(int64_t value, og_dtype dtype) {
  int64_t stored = 0;
  return og_convert(&stored, dtype, 1, &value, OG_I64, 1, 1, 1) < 0;
}

// ---- the call --------------------------------------------------------------
//
// Two calling conventions are supported, System V x86-64 (psABI 3.2.3) and
// AAPCS64 on Linux (6.8.2). In both, integers and pointers fill one file of
// registers and floating-point numbers another, independently of how they
// alternate in the prototype; what overflows lies on the stack in 8-byte slots,
// in order; a callee reads the low bits of its register or slot; the caller
// cleans up, so unused arguments are invisible. Therefore a function of any
// prototype with at most INTEGERS integers or pointers and FLOATS floating-point
// scalars is called exactly through the one type below. FLOATS may not exceed
// the eight registers that both conventions have; then only integers overflow.
#if !(defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__)) && \
      __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
#error "opgraft: the calling convention of this platform is not described here (function.cc)"
#endif

constexpr int INTEGERS = 32, FLOATS = 8;

using Call = int (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                     int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                     int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                     int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                     double, double, double, double, double, double, double, double);

int call_any(og_any_pointer function, const int64_t *i, const double *f) {
  return reinterpret_cast<Call>(function)(
      i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12], i[13],
      i[14], i[15], i[16], i[17], i[18], i[19], i[20], i[21], i[22], i[23], i[24], i[25], i[26],
      i[27], i[28], i[29], i[30], i[31], f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7]);
}

int64_t pointer_argument(const Parameter &p, const Arguments &arguments) {
  auto address = [](const void *pointer) { return reinterpret_cast<int64_t>(pointer); };
  switch (p.role) {
    case ROLE_input: return address(arguments.input);
    case ROLE_kernel: return address(arguments.kernel);
    case ROLE_upstream: return address(arguments.upstream);
    case ROLE_grad_input: return address(arguments.grad_input);
    case ROLE_grad_kernel: return address(arguments.grad_kernel);
    default: return address(arguments.output);
  }
}

double float_argument(const Parameter &p, const Arguments &arguments) {
  double value = p.role == ROLE_pad_value ? arguments.pad_value
                                          : static_cast<double>(arguments.values[p.role]);
  if (p.dtype == OG_F64) return value;
  float narrow = static_cast<float>(value);
  double slot = 0;  // its low half is what the callee reads as a float
  std::memcpy(&slot, &narrow, sizeof narrow);
  return slot;
}

}  // namespace
}  // namespace og

using namespace og;

bool og_function::takes(Role role) const {
  for (const Parameter &p : parameters)
    if (p.role == role) return true;
  return false;
}

og_status og_function::parse(const char *plan, og_message *message) {
  signature = plan;
  std::istringstream words(plan);
  std::string returns, word;
  words >> returns;
  int integers = 0, floats = 0;
  while (words >> word) {
    Parameter p;
    if (!parse_parameter(word, &p))
      return og_fail(message, OG_INVALID_ARGUMENT, "plan '%s' has an unknown word '%s'", plan,
                     word.c_str());
    parameters.push_back(p);
    ++(p.pointer || p.text || !is_float(p.dtype) ? integers : floats);
    if (p.role == ROLE_input) operand = p.dtype;
    if (p.role == ROLE_output) result = p.dtype;
  }
  if (integers > INTEGERS || floats > FLOATS)
    return og_fail(message, OG_UNIMPLEMENTED,
                   "'%s' has %d integer or pointer parameters and %d floating-point ones; at most "
                   "%d and %d can be called",
                   plan, integers, floats, INTEGERS, FLOATS);
  returns_status = returns == "i32";
  kind = takes(ROLE_filter_h) || takes(ROLE_in_ch) ? Kind::conv2d : Kind::matmul;
  if (takes(ROLE_upstream)) {
    kind = Kind::vjp;
    if (!takes(ROLE_grad_input) && !takes(ROLE_grad_kernel))
      return og_fail(message, OG_INVALID_ARGUMENT, "plan '%s' writes no gradient", plan);
  } else if (!takes(ROLE_output)) {
    kind = Kind::scalar;
    if (parameters.size() != 2 || !find_dtype(returns, &scalar_return))
      return og_fail(message, OG_INVALID_ARGUMENT, "plan '%s' has no output", plan);
    result = is_float(scalar_return) ? OG_F64 : OG_I64;
  } else if (!takes(ROLE_input) || !takes(ROLE_kernel) ||
             !(returns == "void" || returns_status)) {
    return og_fail(message, OG_INVALID_ARGUMENT,
                   "plan '%s' lacks an operand or returns neither void nor i32", plan);
  }
  return OG_OK;
}

og_status og_function::call(const Arguments &arguments, og_message *message) const {
  int64_t integers[INTEGERS] = {};
  double floats[FLOATS] = {};
  int next_integer = 0, next_float = 0;
  for (const Parameter &p : parameters) {
    if (p.pointer) {
      integers[next_integer++] = pointer_argument(p, arguments);
    } else if (p.text) {
      integers[next_integer++] = reinterpret_cast<int64_t>(arguments.padding);
    } else if (is_float(p.dtype)) {
      floats[next_float++] = float_argument(p, arguments);
    } else {
      if (p.role == ROLE_pad_value && !is_whole(arguments.pad_value))
        return og_fail(message, OG_INVALID_ARGUMENT,
                       "%s: pad_value is %.17g, and its parameter is an integer; give a whole "
                       "number, or make the parameter a float",
                       symbol.c_str(), arguments.pad_value);
      int64_t value = p.role == ROLE_pad_value ? static_cast<int64_t>(arguments.pad_value)
                                               : arguments.values[p.role];
      if (!fits(value, p.dtype))
        return og_fail(message, OG_INVALID_ARGUMENT,
                       "%s: argument %s is %lld, which its type %s cannot hold; widen the "
                       "parameter in the C function",
                       symbol.c_str(), role_names[p.role], static_cast<long long>(value),
                       og_dtype_name(p.dtype));
      integers[next_integer++] = value;
    }
  }
  std::unique_lock<std::mutex> guard;
  if (!thread_safe) guard = std::unique_lock<std::mutex>(*lock);
  int code = call_any(address, integers, floats);
  if (returns_status && code != 0)
    return og_fail(message, OG_ABORTED,
                   "%s returned %d; a C function that returns int reports an error by any value "
                   "but 0. If it returns nothing, declare it void (in ctypes: restype = None)",
                   symbol.c_str(), code);
  return OG_OK;
}

extern "C" const char *og_roles(void) {
#define X(role) #role " "
  return OG_ROLES(X);
#undef X
}

extern "C" const char *og_function_kind(const og_function *function) {
  switch (function->kind) {
    case Kind::matmul: return "matmul";
    case Kind::conv2d: return "conv2d";
    case Kind::vjp: return "vjp";
    default: return "scalar";
  }
}

extern "C" og_status og_vjp_run(const og_function *function, const og_vjp_arguments *given,
                                og_message *message) {
  if (function->kind != Kind::vjp)
    return og_fail(message, OG_UNIMPLEMENTED, "%s takes no upstream gradient and is no VJP",
                   function->symbol.c_str());
  Arguments arguments;
  arguments.input = given->input;
  arguments.kernel = given->kernel;
  arguments.upstream = given->upstream;
  arguments.output = const_cast<void *>(given->output);  // the prototype says whether it is const
  arguments.grad_input = given->grad_input;
  arguments.grad_kernel = given->grad_kernel;
  std::memcpy(arguments.values, given->sizes, sizeof arguments.values);
  FloatEnvironment environment;
  return function->call(arguments, message);
}
