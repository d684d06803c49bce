"""og.c_function: what it accepts and composes, how it fails, when it compiles and loads."""

import concurrent.futures
import ctypes
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import opgraft as og
from opgraft import environment, reference, spec
from opgraft.errors import CompileError, UnsupportedError
from opgraft.native import source

MATMUL = """void custom_matmul(const float *a, const float *b, int batch_size, int in_size,
                   int out_size, float *out)"""
CONV2D = """void custom_conv2d(const float *inputs, const float *filters, int batch, int h, int w,
                   int in_ch, int filter_h, int filter_w, int out_ch, int stride_h, int stride_w,
                   const char *padding, float *out)"""

KERNELS = pathlib.Path(og.__file__).parent / "kernels"

rng = np.random.default_rng(20260)


def whole(*shape, dtype="float32", least=-4):
    """Random whole numbers: sums of their products are exact in every type."""
    return rng.integers(least, 5, shape).astype(dtype)


def matmul_source(operand="float", size="int", result=None, name="mm", scale=1, extra=""):
    """A matrix product times `scale`, in C."""
    result = result or operand
    return f"""#include <stddef.h>
#include <stdint.h>
{extra}
void {name}(const {operand} *a, const {operand} *b, {size} m, {size} k, {size} n, {result} *out) {{
  for ({size} i = 0; i < m; i++)
    for ({size} j = 0; j < n; j++) {{
      {result} sum = 0;
      for ({size} l = 0; l < k; l++) sum += ({result})a[i * k + l] * ({result})b[l * n + j];
      out[i * n + j] = {scale} * sum;
    }}
}}
"""


SHORT = "void mm(const float *a, const float *b, int m, int k, int n, float *out)"

# Every number of a convolution; those that the function has no parameter for are constants.
CONSTANTS = {
    "batch": 1, "stride_h": 1, "stride_w": 1, "dilation_h": 1, "dilation_w": 1, "groups": 1,
    "pad_top": 0, "pad_bottom": 0, "pad_left": 0, "pad_right": 0, "pad_value": 0,
}  # fmt: skip
SIZES = "int h, int w, int in_ch, int filter_h, int filter_w, int out_ch"


def conv_source(parameters="", derived="", returns="void", guard=""):
    """A convolution in C that takes these numbers beside its sizes, and derives others."""
    known = re.findall(r"\w+(?=,)", parameters + ",") + re.findall(r"\w+(?= =)", derived)
    rest = {name: value for name, value in CONSTANTS.items() if name not in known}
    declared = "".join(f"const double {name} = {value};\n" for name, value in rest.items())
    declared += "".join(f"const long {entry.strip()};\n" for entry in derived.split(";") if entry)
    return f"""#include <stddef.h>
#include <stdint.h>
{returns} conv(const float *x, const float *kernel, {SIZES}{parameters}, float *y) {{
{declared}{guard}
const long rows = (h + pad_top + pad_bottom - (filter_h - 1) * dilation_h - 1) / stride_h + 1;
const long columns = (w + pad_left + pad_right - (filter_w - 1) * dilation_w - 1) / stride_w + 1;
const long ins = in_ch / groups, outs = out_ch / groups;
for (long n = 0; n < batch; n++)
for (long r = 0; r < rows; r++) for (long c = 0; c < columns; c++)
for (long o = 0; o < out_ch; o++, y++) {{
  *y = 0;
  for (long i = 0; i < filter_h; i++) for (long j = 0; j < filter_w; j++)
  for (long l = 0; l < ins; l++) {{
    const long row = r * stride_h + i * dilation_h - pad_top;
    const long column = c * stride_w + j * dilation_w - pad_left;
    const int inside = row >= 0 && row < h && column >= 0 && column < w;
    *y += (inside ? x[((n * h + row) * w + column) * in_ch + o / outs * ins + l] : pad_value)
          * kernel[((i * filter_w + j) * ins + l) * out_ch + o];
  }}
}}
{"return 0;" if returns == "int" else ""}
}}
"""


def build(path, target=None, *flags):
    """A shared library of a C source, made by the system's compiler and not by opgraft."""
    target = target or path.with_suffix(".so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", target, path, *flags], check=True)
    return target


def matmul(arithmetic, a, b):
    return og.matmul(a, b, arithmetic=arithmetic).numpy()


def exact_conv(x, kernel, strides=1, padding="VALID", dilations=1, groups=1, pad_value=0.0):
    contraction = spec.Conv2D(
        strides=spec.pair(strides, "strides"),
        padding=spec.padding(padding),
        dilations=spec.pair(dilations, "dilations"),
        groups=groups,
        pad_value=pad_value,
    )
    return reference.by_matmul(contraction, np.float64(x), np.float64(kernel), np.matmul)


def check_conv(arithmetic, **how):
    """Random images, odd and even and not square, through the arithmetic and the reference."""
    groups = how.get("groups", 1)
    for h, w, kh, kw in [(8, 9, 3, 2), (7, 6, 2, 3), (5, 8, 1, 4)]:
        x, kernel = whole(3, h, w, 4), whole(kh, kw, 4 // groups, 6)
        y = og.conv2d(x, kernel, arithmetic=arithmetic, **how)
        np.testing.assert_array_equal(y, exact_conv(x, kernel, **how))


# ---- the two usual signatures ---------------------------------------------------------


@pytest.mark.parametrize("form", ["source", "source alone", "library", "CDLL", "text"])
def test_the_two_signatures_as_they_stand(form, tmp_path):
    found = []
    for name, prototype in (("matmul", MATMUL), ("conv2d", CONV2D)):
        path = shutil.copy(KERNELS / f"{name}.c", tmp_path)
        if form in ("library", "CDLL"):
            path = build(pathlib.Path(path))
        library = {"CDLL": ctypes.CDLL, "text": str}.get(form, pathlib.Path)(path)
        found.append(og.c_function(library, None if form == "source alone" else prototype))
    both = found[0] | found[1]
    a, b = whole(7, 5), whole(5, 3)
    np.testing.assert_array_equal(matmul(both, a, b), a @ b)
    for strides, padding in itertools.product([1, 2, (2, 1)], ["SAME", "VALID", "same"]):
        check_conv(both, strides=strides, padding=padding)


def test_a_pasted_pair_of_prototypes_makes_one_arithmetic(compile_c):
    text = conv_source(", int batch").replace("conv(", "c(") + matmul_source()
    declared = f"void c(const float *x, const float *kernel, {SIZES}, int batch, float *y);\n"
    declared += "void mm(const float *a, const float *foo, int m, int k, int n, float *out);"
    both = og.c_function(compile_c(text), declared, roles={"foo": "kernel"})
    assert [symbol.kind for symbol in both.product.symbols] == ["conv2d", "matmul"]
    a, b = whole(4, 3), whole(3, 6)
    np.testing.assert_array_equal(matmul(both, a, b), a @ b)
    check_conv(both, strides=2)


@pytest.mark.parametrize("library", ["relative", "home"])
def test_paths_may_be_relative_or_begin_with_a_tilde(compile_c, monkeypatch, library):
    path = compile_c(matmul_source())
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("OPGRAFT_CACHE_DIR", str(environment.cache_folder()))  # not to move
    monkeypatch.setenv("HOME", str(path.parent))
    arithmetic = og.c_function(path.name if library == "relative" else f"~/{path.name}")
    assert arithmetic.product.symbols[0].library == str(path)
    assert arithmetic == og.c_function(path)


# ---- element and size types -------------------------------------------------------------


@pytest.mark.parametrize("size", ["int", "size_t", "int64_t", "unsigned", "short", "uint8_t"])
@pytest.mark.parametrize(
    ("operand", "result"),
    [("float", "float"), ("double", "double"), ("int32_t", "int32_t"), ("int64_t", "int64_t"),
     ("int8_t", "int32_t"), ("uint8_t", "uint16_t"), ("uint16_t", "double"), ("float", "double")],
)  # fmt: skip
def test_types_of_operands_sizes_and_results(compile_c, operand, size, result):
    arithmetic = og.c_function(compile_c(matmul_source(operand, size, result)))
    least = 0 if operand.startswith("u") else -4
    a, b = whole(6, 5, least=least), whole(5, 7, least=least)
    np.testing.assert_array_equal(matmul(arithmetic, a, b), a @ b)  # casts to and from float32
    numpy_name = {"float": "float32", "double": "float64"}.get(operand, operand.removesuffix("_t"))
    own = matmul(arithmetic, a.astype(numpy_name), b.astype(numpy_name))
    np.testing.assert_array_equal(own, a @ b)
    expected = {"float": "float32", "double": "float64"}.get(result, result.removesuffix("_t"))
    assert own.dtype == (numpy_name if operand in ("float", "double") else expected)


def test_a_size_that_its_type_cannot_hold_is_an_error(compile_c):
    arithmetic = og.c_function(compile_c(matmul_source(size="int8_t")))
    a, b = whole(3, 200), whole(200, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"mm: argument k is 200.*cannot hold"):
        matmul(arithmetic, a, b)


# ---- error codes -------------------------------------------------------------------------

FAILS_AT_5 = """
int mm(const float *a, const float *b, int m, int k, int n, float *out) {
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {
      out[i * n + j] = 0;
      for (int l = 0; l < k; l++) out[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  return k == 5 ? %d : 0;
}
"""


@pytest.mark.parametrize("code", [7, -3, 2147483647])
def test_an_error_code_reaches_the_user_and_the_process_goes_on(compile_c, code):
    arithmetic = og.c_function(compile_c(FAILS_AT_5 % code))
    in_graph = tf.function(lambda a, b: og.matmul(a, b, arithmetic=arithmetic))
    with pytest.raises(tf.errors.OpError, match=rf"mm returned {code}\b"):
        matmul(arithmetic, whole(4, 5), whole(5, 2))
    with pytest.raises(tf.errors.OpError, match=rf"mm returned {code}\b"):
        in_graph(whole(4, 5), whole(5, 2))
    with pytest.raises(tf.errors.OpError, match=rf"mm returned {code}\b"):  # by many tiles
        matmul(arithmetic, whole(40000, 5, dtype="float64"), whole(5, 2, dtype="float64"))
    a, b = whole(4, 6), whole(6, 2)
    np.testing.assert_array_equal(matmul(arithmetic, a, b), a @ b)
    np.testing.assert_array_equal(in_graph(a, b), a @ b)


def test_an_error_code_ends_fit_and_another_fit_works(compile_c):
    arithmetic = og.c_function(compile_c(FAILS_AT_5 % 42))
    for width in (5, 6):
        model = keras.Sequential([keras.Input((width,)), og.layers.Dense(3, arithmetic=arithmetic)])
        model.compile("sgd", "mse")
        x, y = whole(10, width), whole(10, 3)
        if width == 5:
            with pytest.raises(tf.errors.OpError, match=r"mm returned 42\b"):
                model.fit(x, y, batch_size=4, verbose=0)
        else:
            assert np.isfinite(model.fit(x, y, batch_size=4, verbose=0).history["loss"]).all()


def test_an_error_code_of_a_convolution(compile_c):
    guard = "if (in_ch == 3) return 11;"
    arithmetic = og.c_function(compile_c(conv_source(", int batch", returns="int", guard=guard)))
    with pytest.raises(tf.errors.OpError, match=r"conv returned 11\b"):
        og.conv2d(whole(2, 5, 6, 3), whole(2, 3, 3, 2), arithmetic=arithmetic)
    check_conv(arithmetic, padding="SAME")


# ---- fewer and more parameters -------------------------------------------------------------

COMPOSED = [
    {}, {"strides": 2}, {"strides": (1, 3)}, {"padding": "SAME"}, {"padding": "SAME", "strides": 2},
    {"padding": ((1, 2), (0, 3))}, {"padding": ((2, 2), (1, 1)), "strides": (2, 1)},
    {"padding": ((1, 1), (1, 1))}, {"groups": 2}, {"groups": 2, "padding": "SAME", "strides": 2},
    {"padding": "SAME", "pad_value": -2.0}, {"padding": ((1, 0), (2, 1)), "pad_value": 3.0},
]  # fmt: skip
SIGNATURES = {
    "nothing but sizes": ("", ""),
    "batch": (", int batch", ""),
    "strides": (", int batch, int stride_h, int stride_w", ""),
    "one stride": (", int stride", "stride_h = stride; stride_w = stride"),
    "two pads": (", int pad_h, int pad_w",
                 "pad_top = pad_h; pad_bottom = pad_h; pad_left = pad_w; pad_right = pad_w"),
    "one pad": (", int batch, int pad, int stride_h, int stride_w",
                "pad_top = pad; pad_bottom = pad; pad_left = pad; pad_right = pad"),
    "four pads": (", size_t pad_top, int64_t pad_left, int pad_right, short pad_bottom", ""),
    "pad_value": (", int batch, int pad_top, int pad_left, int pad_right, int pad_bottom, "
                  "float pad_value", ""),
    "groups": (", int batch, int groups", ""),
    "everything": (", double pad_value, long groups, int batch, int stride_w, int dilation_h, "
                   "int dilation_w, int stride_h, int pad_top, int pad_bottom, int pad_left, "
                   "int pad_right", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_what_a_function_has_no_parameter_for_is_composed(compile_c, name):
    arithmetic = og.c_function(compile_c(conv_source(*SIGNATURES[name])))
    for how in COMPOSED:
        check_conv(arithmetic, **how)


@pytest.mark.parametrize(
    ("parameters", "aliases", "passed", "refused"),
    [
        ("", "", [], [2, (1, 3)]),
        (", int dilation_h, int dilation_w", "", [2, (1, 3)], []),
        (", int dilation", "dilation_h = dilation; dilation_w = dilation", [2], [(1, 3), (2, 1)]),
    ],
)
def test_dilation_needs_a_parameter_or_a_matmul(compile_c, c_matmul, parameters, aliases, passed,
                                                refused):  # fmt: skip
    alone = og.c_function(compile_c(conv_source(parameters, aliases)))
    for dilations in passed:
        check_conv(alone, dilations=dilations, padding="SAME")
    for dilations in refused:
        with pytest.raises(UnsupportedError, match=r"conv .*dilation.* a matmul beside it"):
            check_conv(alone, dilations=dilations)
        check_conv(alone | c_matmul, dilations=dilations, padding="SAME")


def test_a_convolution_alone_refuses_a_matrix_product(c_conv2d):
    with pytest.raises(UnsupportedError, match=r"custom_conv2d is a convolution.*Give a matmul"):
        og.matmul(whole(2, 3), whole(3, 2), arithmetic=c_conv2d)


def test_joined_functions_serve_one_network_in_either_order(c_matmul, c_conv2d):
    assert c_matmul | c_conv2d == c_conv2d | c_matmul
    assert hash(c_matmul | c_conv2d) == hash(c_conv2d | c_matmul)


# ---- scalar products -------------------------------------------------------------------------

SCALARS = {
    "float": ("float mul(float a, float b) { return a * b + (a > b); }",
              "float32", lambda a, b: a * b + (a > b), np.float64),
    "double": ("double mul(double a, double b) { return 2 * a * b - a; }",
               "float64", lambda a, b: 2 * a * b - a, np.float64),
    "int8_t": ("short mul(signed char a, signed char b) { return a * b - (a >> 1); }",
               "int8", lambda a, b: int(a) * int(b) - (int(a) >> 1), np.int64),
    "uint8_t": ("unsigned short mul(unsigned char a, unsigned char b) { return (a & 0xfd) * b; }",
                "uint8", lambda a, b: (int(a) & 0xFD) * int(b), np.int64),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALARS)
def test_scalar_products_follow_the_reference(compile_c, name):
    text, dtype, multiply, total = SCALARS[name]
    arithmetic = og.c_function(compile_c(text))
    least = 0 if dtype == "uint8" else -4
    a, b = whole(5, 7, dtype=dtype, least=least), whole(7, 3, dtype=dtype, least=least)
    y = og.matmul(a, b, arithmetic=arithmetic)
    np.testing.assert_array_equal(y, reference.matmul(a, b, multiply, total))
    assert y.dtype == (dtype if dtype.startswith("float") else "int64")
    x, kernel = whole(2, 5, 4, 2, dtype=dtype, least=least), whole(2, 3, 2, 3, dtype=dtype, least=0)
    how = {"strides": (2, 1), "padding": "SAME", "dilations": (1, 2)}
    y = og.conv2d(x, kernel, arithmetic=arithmetic, **how)
    np.testing.assert_array_equal(
        y, reference.conv2d(spec.Conv2D(**how), x, kernel, multiply, total)
    )


@pytest.mark.parametrize("name", ["int8_t", "uint8_t"])
def test_integer_scalar_products_take_floating_operands_that_are_whole(compile_c, name):
    text, dtype, multiply, total = SCALARS[name]
    arithmetic = og.c_function(compile_c(text))
    a, b = whole(4, 3, least=0), whole(3, 5, least=0)
    expected = reference.matmul(a.astype(dtype), b.astype(dtype), multiply, total)
    y = og.matmul(a, b, arithmetic=arithmetic)
    assert y.dtype == "float32"
    np.testing.assert_array_equal(y, expected)


# ---- concurrency -----------------------------------------------------------------------------

DETECTOR = """
#include <unistd.h>
static int inside;
static int enter(void) {
  int now = __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  usleep(50000);
  __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  return now;
}
void mm(const float *a, const float *b, int m, int k, int n, float *out) {
  int most = enter();
  for (int i = 0; i < m * n; i++) out[i] = most;
}
void conv(const float *x, const float *kernel, int h, int w, int in_ch, int filter_h, int filter_w,
          int out_ch, float *y) {
  int most = enter();
  for (int i = 0; i < (h - filter_h + 1) * (w - filter_w + 1) * out_ch; i++) y[i] = most;
}
"""


def peak_of_concurrency(arithmetic):
    """The largest number of calls that were inside the C functions at once."""

    def call(index):
        if index % 2:
            return matmul(arithmetic, whole(2, 3), whole(3, 2)).max()
        return og.conv2d(whole(1, 4, 3, 2), whole(3, 2, 2, 2), arithmetic=arithmetic).numpy().max()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        from_threads = max(threads.map(call, range(8)))
    graph = tf.function(
        lambda xs: [og.matmul(x, x + i, arithmetic=arithmetic) for i, x in enumerate(xs)]
    )
    tiles = og.matmul(whole(90000, 3, dtype="float64"), whole(3, 3, dtype="float64"),
                      arithmetic=arithmetic)  # fmt: skip
    return max(from_threads, np.max(graph([whole(3, 3) for _ in range(4)])), np.max(tiles))


def detector(path, **options):
    prototypes = [source.find_prototype(path, name) for name in ("mm", "conv")]
    return og.c_function(path, ";".join(prototypes), **options)


def test_functions_that_are_not_thread_safe_never_run_twice_at_once(compile_c):
    assert peak_of_concurrency(detector(compile_c(DETECTOR), thread_safe=False)) == 1


def test_thread_safe_functions_run_concurrently(compile_c):
    assert peak_of_concurrency(detector(compile_c(DETECTOR))) > 1


# ---- the compile cache -----------------------------------------------------------------------


def compiled(arithmetic):
    """The object in the cache that an arithmetic's function was compiled to."""
    return environment.cache_folder() / f"{arithmetic.product.symbols[0].binary}.so"


def test_a_source_is_compiled_once(compile_c):
    path = compile_c(matmul_source())
    first = og.c_function(path)
    before = compiled(first).stat()
    path.touch()
    second = og.c_function(path)
    after = compiled(second).stat()
    assert second == first
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_changed_source_header_or_flag_compiles_anew_and_the_old_keeps_its_meaning(compile_c):
    header = compile_c("#define SCALE 2\n", "scale.h")
    changing = compile_c(matmul_source(scale="SCALE", extra='#include "scale.h"'))
    versions = [og.c_function(changing)]
    header.write_text("#define SCALE 3\n")
    versions.append(og.c_function(changing))
    changing.write_text(changing.read_text().replace("SCALE *", "10 * SCALE *"))
    versions.append(og.c_function(changing))
    changing.write_text(changing.read_text().replace("10 *", "EXTRA *"))
    versions.append(og.c_function(changing, flags=["-O2", "-DEXTRA=5"]))
    versions.append(og.c_function(changing, flags="-O2 -DEXTRA=7"))
    assert len({compiled(version) for version in versions}) == 5
    a, b = whole(3, 4), whole(4, 2)
    for version, scale in zip(versions, [2, 3, 30, 15, 21], strict=True):
        np.testing.assert_array_equal(matmul(version, a, b), scale * (a @ b))


def test_one_source_compiled_by_many_threads_at_once(compile_c):
    path = compile_c(matmul_source())
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: og.c_function(path), range(8)))
    assert len(set(found)) == 1
    a, b = whole(3, 4), whole(4, 2)
    np.testing.assert_array_equal(matmul(found[0], a, b), a @ b)


def test_the_errors_of_the_compiler_are_shown_whole(compile_c):
    lines = ["int first = missing_one;", "int second = missing_two;", "#error the third"]
    path = compile_c("float mul(float a, float b) { return a * b; }\n" + "\n".join(lines))
    with pytest.raises(CompileError) as caught:
        og.c_function(path, "float mul(float, float)")
    for words in (str(path), "#error the third", "-O3"):
        assert words in str(caught.value)
    path.write_text("\n".join(lines[:2]))
    with pytest.raises(CompileError) as caught:
        og.c_function(path, "float mul(float, float)")
    for words in ("missing_one", "missing_two", f"{path}:1", f"{path}:2"):
        assert words in str(caught.value)
    path.write_text('#include "gone.h"\n')
    with pytest.raises(CompileError, match=r"gone\.h"):
        og.c_function(path, "float mul(float, float)")


# ---- libraries -------------------------------------------------------------------------------


def test_ctypes_functions_of_a_library(compile_c):
    library = build(compile_c(matmul_source()))
    function = ctypes.CDLL(str(library)).mm
    pointer = np.ctypeslib.ndpointer(np.float32, flags="C_CONTIGUOUS")
    function.argtypes = [pointer, pointer, *[ctypes.c_int] * 3, pointer]
    function.restype = None
    a, b = whole(3, 4), whole(4, 2)
    for arithmetic in (og.c_function(function), og.c_function(library, function)):
        assert arithmetic.product.symbols[0].library == str(library)
        np.testing.assert_array_equal(matmul(arithmetic, a, b), a @ b)
    other = og.c_function(function, roles=["b", "a", "n", "k", "m", "out"])
    expected = (b.reshape(2, 4) @ a.reshape(4, 3)).reshape(3, 2)  # what those roles ask for
    np.testing.assert_array_equal(matmul(other, a, b), expected)


def test_a_library_that_ctypes_found_by_its_bare_name():
    maximum = og.c_function(ctypes.CDLL("libm.so.6"), "double fmax(double x, double y)")
    a, b = whole(3, 4, dtype="float64"), whole(4, 2, dtype="float64")
    np.testing.assert_array_equal(matmul(maximum, a, b), reference.matmul(a, b, max))


def test_a_helper_named_as_one_of_libm_is_the_users_own(compile_c):
    text = "float fmaf(float a, float b, float c) { return 2 * a * b; }\n"
    path = compile_c(text + "float mul(float a, float b) { return fmaf(a, b, 0); }\n")
    arithmetic = og.c_function(path, "float mul(float, float)", flags="-fno-builtin")
    a, b = whole(3, 4), whole(4, 2)
    np.testing.assert_array_equal(matmul(arithmetic, a, b), 2 * (a @ b))


def test_an_unset_restype_is_explained(compile_c):
    text = matmul_source().replace("void", "int").replace("\n}\n", "\n  return 123;\n}\n")
    function = ctypes.CDLL(str(build(compile_c(text)))).mm
    function.argtypes = [*[ctypes.POINTER(ctypes.c_float)] * 2, *[ctypes.c_int] * 3,
                         ctypes.POINTER(ctypes.c_float)]  # fmt: skip
    with pytest.raises(tf.errors.OpError, match=r"returned 123.*restype"):
        matmul(og.c_function(function), whole(3, 4), whole(4, 2))


def test_a_library_finds_what_lies_beside_it(compile_c, tmp_path):
    build(compile_c("float twice(float x) { return 2 * x; }", "libhelper.c"))
    text = "float twice(float x);\n" + matmul_source(scale="twice(1)")
    beside = [f"-L{tmp_path}", "-lhelper", "-Wl,-rpath,$ORIGIN"]
    arithmetic = og.c_function(build(compile_c(text), None, *beside), SHORT)
    a, b = whole(3, 4), whole(4, 2)
    np.testing.assert_array_equal(matmul(arithmetic, a, b), 2 * (a @ b))


@pytest.mark.parametrize("how", ["overwritten", "replaced"])
def test_a_rebuilt_library_is_reloaded_and_the_old_keeps_its_meaning(compile_c, tmp_path, how):
    library, found = tmp_path / "libmm.so", []
    for scale in (1, 2, 5):
        fresh = build(compile_c(matmul_source(scale=scale)), tmp_path / "fresh.so")
        if how == "replaced":
            os.replace(fresh, library)
        else:
            shutil.copyfile(fresh, library)  # the same file, its bytes changed under our feet
        found.append(og.c_function(library, SHORT))
        a, b = whole(3, 4), whole(4, 2)
        for scale_then, arithmetic in zip((1, 2, 5), found, strict=False):
            graph = tf.function(lambda x, y, c=arithmetic: og.matmul(x, y, arithmetic=c))
            np.testing.assert_array_equal(matmul(arithmetic, a, b), scale_then * (a @ b))
            np.testing.assert_array_equal(graph(a, b), scale_then * (a @ b))
    assert len(set(found)) == 3
    library.unlink()
    np.testing.assert_array_equal(matmul(found[1], a, b), 2 * (a @ b))


# ---- functions that live in memory -------------------------------------------------------------


def numba_functions(numba):
    pointer, number = numba.types.CPointer(numba.float32), numba.int32

    @numba.cfunc(numba.void(pointer, pointer, number, number, number, pointer))
    def product(a, b, m, k, n, out):
        for i in range(m):
            for j in range(n):
                total = numba.float32(0)
                for l in range(k):
                    total += a[i * k + l] * b[l * n + j]
                out[i * n + j] = total

    @numba.cfunc(numba.float64(numba.float64, numba.float64))
    def scalar(x, y):
        return 3 * x * y

    return product, scalar


@pytest.mark.parametrize("door", [og.c_function, og.python_function])
def test_numba_functions_go_down_the_c_path(door):
    numba = pytest.importorskip("numba")
    product, scalar = (door(function) for function in numba_functions(numba))
    assert [entry.product.symbols[0].kind for entry in (product, scalar)] == ["matmul", "scalar"]
    a, b = whole(5, 4), whole(4, 3)
    np.testing.assert_array_equal(matmul(product, a, b), a @ b)
    np.testing.assert_array_equal(matmul(scalar, a, b), 3 * (a @ b))
    check_conv(product, strides=2, padding="SAME", groups=2)


def test_a_saved_model_of_a_numba_function_is_refused_elsewhere(tmp_path):
    numba = pytest.importorskip("numba")
    product, _ = numba_functions(numba)
    arithmetic = og.c_function(product)
    model = keras.Sequential([keras.Input((4,)), og.layers.Dense(3, arithmetic=arithmetic)])
    path, x = tmp_path / "model.keras", whole(2, 4)
    model.save(path)
    np.testing.assert_array_equal(keras.models.load_model(path)(x), model(x))
    code = f"import keras, opgraft; keras.models.load_model({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "LibraryError" in done.stderr
    assert "'product' has no file: it lived in the memory of the process" in done.stderr


def test_a_ctypes_callback_is_called_where_it_lives():
    pointer = ctypes.POINTER(ctypes.c_float)
    kind = ctypes.CFUNCTYPE(None, pointer, pointer, *[ctypes.c_int] * 3, pointer)

    @kind
    def product(a, b, m, k, n, out):
        a, b = np.ctypeslib.as_array(a, (m, k)), np.ctypeslib.as_array(b, (k, n))
        np.ctypeslib.as_array(out, (m, n))[...] = a @ b

    arithmetic = og.c_function(product)
    a, b = whole(5, 4), whole(4, 3)
    np.testing.assert_array_equal(matmul(arithmetic, a, b), a @ b)
    graph = tf.function(lambda x, y: og.matmul(x, y, arithmetic=arithmetic))
    np.testing.assert_array_equal(graph(a, b), a @ b)
