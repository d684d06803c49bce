"""What the verifier must catch and name, and what it must let pass.

`PLANTED` are kernels and gradients with one mistake each; `CORRECT` are right, and do it in
an unusual way. `test_power.py` asserts what is said of them; `benchmarks/verify_power.py`
counts it.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

from correct import functions as right
from planted_gradients import GRADIENTS, in_c_vjp, internally
from planted_kernels import KERNELS, MATMUL, X86, upper_halves, without_lowest_bit
from planting import RIGHT, Correct, Verification, all_slow, kernel, one_in

import opgraft as og

PLANTED = [*KERNELS, *GRADIENTS]


# ---- right, and unusual ------------------------------------------------------------------


def correct(file: str, prototype: str, more: str = "", **keywords: Any) -> Correct:
    """A function of a source in `correct/`."""
    name = re.search(r"(\w+)\(", prototype)[1]
    geometry = {} if "stride" in prototype or " sw," in prototype else {"strides": 1}

    def make() -> Verification:
        flags = ("-O2", "-pthread")
        return og.c_function(RIGHT / file, prototype, flags=flags), keywords

    return Correct(" ".join([file.removesuffix(".c"), name, *more.split()]), make, geometry)


def python(function: Callable) -> Verification:
    return og.python_function(function), {}


def correct_functions(file: str, prototype: str, *names: str) -> list[Correct]:
    return [correct(file, prototype.replace("NAME", name)) for name in names]


FLOATS = MATMUL.replace(" matmul(", " NAME(")
IMAGES = (
    "void NAME(const float *x, const float *kernel, int batch, int h, int w, int in_ch, int kh, "
    "int kw, int out_ch, int stride_h, int stride_w, const char *padding, float *out)"
)


def sized(returns: str, name: str, operand: str, size: str, result: str) -> str:
    return (
        f"{returns} {name}(const {operand} *a, const {operand} *b, {size} m, {size} k, {size} n, "
        f"{result} *out)"
    )


CONVOLUTIONS = (
    "int four_pads(float *y, const float *x, const float *w, unsigned n, unsigned ih, unsigned iw, "
    "unsigned cin, unsigned kh, unsigned kw, unsigned cout, unsigned sh, unsigned sw, int pad_top, "
    "int pad_bottom, int pad_left, int pad_right)",
    "void grouped(const float *x, const float *kernel, int64_t n, int64_t h, int64_t w, int64_t c, "
    "int64_t kh, int64_t kw, int64_t filters, int64_t sh, int64_t sw, int64_t dh, int64_t dw, "
    "size_t groups, int64_t top, int64_t bottom, int64_t left, int64_t right, int64_t oh, "
    "int64_t ow, double pad_value, float *out)",
    "void one_image(const float *image, const float *weights, size_t height, size_t width, "
    "size_t channels, size_t kernel_h, size_t kernel_w, size_t filters, float *result)",
)  # fmt: skip

FUNCTIONS = [
    *correct_functions(
        "matmul.c", FLOATS, "last_term_first", "pairwise", "compensated", "fused", "in_blocks",
        "in_double", "four_sums", "smallest_terms_first", "in_place", "columns_first",
        "outer_products", "tiled", "recursive", "transposed_copy", "large_scratch",
        "output_as_scratch", "talkative",
    ),
    *(correct("matmul.c", sized(*words)) for words in (
        ("void", "size_t_sizes", "float", "size_t", "float"),
        ("int", "int64_sizes", "float", "int64_t", "float"),
        ("int", "unsigned_sizes", "float", "unsigned", "float"),
        ("void", "doubles", "double", "int", "double"),
        ("void", "wide_result", "float", "long", "double"),
        ("void", "bytes", "int8_t", "int", "int32_t"),
        ("int", "unsigned_bytes", "uint8_t", "uint32_t", "uint32_t"),
    )),
    *correct_functions("conv2d.c", IMAGES, "scattered", "taps_outside", "padded_copy",
                       "by_columns", "kernel_turned"),
    *(correct("conv2d.c", prototype) for prototype in CONVOLUTIONS),
    *correct_functions("threads.c", FLOATS, "threaded", "scratch_per_thread", "locked"),
    *(correct_functions("simd.c", FLOATS, "unaligned", "masked", "aligned_copy") if X86 else []),
    correct("scalar.c", "float mul(float a, float b)"),
    correct("scalar.c", "double mul_double(double a, double b)"),
    correct("scalar.c", "float cut(float a, float b)", multiply=upper_halves),
    correct("scalar.c", FLOATS.replace("NAME", "cut_matmul"), multiply=upper_halves),
    correct("scalar.c", "int32_t truncated(int32_t a, int32_t b)", multiply=without_lowest_bit),
    Correct("matmul in static scratch, declared unsafe for threads",
            kernel("contract.c", "STATIC_SCRATCH", thread_safe=False)),
    Correct("functions numba_matmul", right.numba_matmul),
]  # fmt: skip

EXPENSIVE = [
    correct("matmul.c", sized("void", "size_t_sizes", "float", "size_t", "float"), "and large",
            large=True),
    correct("threads.c", FLOATS.replace("NAME", "patient")),
    *(Correct(f"functions {function.__name__}", functools.partial(python, function))
      for function in (right.matmul_in_double, right.matmul_by_einsum, right.conv2d_by_taps)),
    Correct("vjp without a mistake", functools.partial(in_c_vjp, ())),
]  # fmt: skip

GRADIENTS_BY_HAND = [
    *(Correct(f"functions {make.__name__}", make) for make in (
        right.product_by_hand, right.softmax_by_hand, right.sign_clipped, right.steep_cube,
        right.bias_by_hand, right.two_outputs, right.integer_indices,
        right.dense_by_hand, right.small_model,
    )),
    Correct("contractions no_mistake", functools.partial(internally, "no_mistake")),
]  # fmt: skip

CORRECT = [*one_in(2, FUNCTIONS), *GRADIENTS_BY_HAND, *all_slow(EXPENSIVE)]
