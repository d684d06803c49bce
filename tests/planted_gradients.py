"""Gradients with one mistake each, of the kinds that people make."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from broken import custom_gradients as wrong
from broken import gradients as internal
from planting import BROKEN, Planted, Verification, one_in

import opgraft as og


def internally(name: str) -> Verification:
    """A gradient of the example C functions, for every geometry."""
    both = og.c_function(wrong.KERNELS / "matmul.c") | og.c_function(wrong.KERNELS / "conv2d.c")
    return dataclasses.replace(both, gradient=internal.Wrong(name)), {}


def by_contraction(findings: dict[str, str], **geometry: Any) -> list[Planted]:
    return [Planted(f"contractions {name}", functools.partial(internally, name), finding,
                    "gradient", geometry=geometry)
            for name, finding in findings.items()]  # fmt: skip


def in_c_vjp(macros: tuple[str, ...]) -> Verification:
    """The example matrix product with a vjp in C."""
    flags = ("-O1", *(f"-D{macro}" for macro in macros))
    gradient = og.gradients.c_function(BROKEN / "vjp.c", flags=flags)
    return og.c_function(wrong.KERNELS / "matmul.c", gradient=gradient), {}


def in_c(macro: str, finding: str, verdict: str = "gradient") -> Planted:
    make = functools.partial(in_c_vjp, (macro,))
    return Planted(f"vjp {macro.lower()}", make, finding, verdict)


def of_op(op: Callable, findings: dict[str, str]) -> list[Planted]:
    """Wrong vjps of an operation."""
    return [Planted(f"{op.__name__} {name}", functools.partial(op, getattr(wrong, name)), finding,
                    "gradient") for name, finding in findings.items()]  # fmt: skip


def whole(findings: dict[str, str]) -> list[Planted]:
    return [Planted(name, getattr(wrong, name), finding, "gradient")
            for name, finding in findings.items()]  # fmt: skip


CONTRACTIONS = [
    *by_contraction({
        "rotated_kernel": "gradient of x: agrees with the kernel rotated by 180°",
        "rotated_kernel_gradient": "gradient of kernel: agrees with the kernel rotated by 180°",
        "odd_padding_first": "gradient of x: agrees with the odd padding above and left",
        "last_row_missing": "gradient of x: the output's last row sends nothing back",
        "mean_over_the_batch": "gradient of kernel: the mean over the batch",
        "almost_right": "",
        "frozen_kernel": "gradient of kernel: frozen (None)",
        "exchanged_operands": "gradient of x: taken at the wrong operand",
        "slightly_too_large": "gradient of kernel: is 1.0005 times what is due",
        "sign_reversed": "gradient of x: sign reversed",
        "frozen_input": "gradient of x: frozen (zeros)",
        "stride_one": "gradient of x: agrees with stride 1",
        "swapped_strides": "gradient of x: agrees with strides swapped",
        "constant_operands": "second order: wrong",
        "not_finite": "gradient of kernel: is NaN or infinite",
    }),
    *by_contraction({"swapped_dilations": "gradient of x: agrees with dilations swapped"},
                    strides=1, dilations=(2, 1)),
    *by_contraction({"zero_pad_value": "gradient of kernel: agrees with the pad value ignored"},
                    pad_value=2.0),
    *by_contraction({"groups_reversed": "gradient of kernel: agrees with groups in reverse order"},
                    groups=2),
]  # fmt: skip

VJPS_IN_C = [
    in_c("SECOND_TRANSPOSED", "gradient of b: transposed"),
    in_c("SLIGHTLY_TOO_LARGE", "gradient of a: is 1.0005 times what is due"),
    in_c("SIGN_REVERSED", "gradient of b: sign reversed"),
    in_c("LAST_ROW_MISSING", "gradient of a: the output's last row sends nothing back"),
    in_c("MEAN", "gradient of b: the mean over the batch"),
    in_c("CRASHES", "the gradient crashes (SIGSEGV)"),
    in_c("PAST_ITS_END", "writes beyond the end of its output", "contract"),
]

OPERATIONS = [
    *of_op(wrong.product, {
        "slightly_too_large": "gradient of W: is 1.0005 times what is due",
        "almost_right": "gradient of A: is 1.00001 times what is due",
        "sign_reversed": "gradient of A: sign reversed",
        "frozen_none": "gradient of W: frozen (None)",
        "frozen_zeros": "gradient of W: frozen (zeros)",
        "broadcast_shape": "gradient of W: broadcast shape",
        "wrong_dtype": "gradient of W: wrong dtype",
        "one_gradient": "the vjp returns 1 gradient for 2 inputs",
        "three_gradients": "the vjp returns 3 gradients for 2 inputs",
        "mean_over_the_batch": "gradient of W: the mean over the batch",
        "last_row_missing": "gradient of A: the output's last row sends nothing back",
        "upstream_ignored": "",
        "upstream_clipped": "",
        "not_finite": "gradient of A: is NaN or infinite",
        "of_half_precision": "",
        "detached": "second order: wrong",
    }),
    *of_op(wrong.square_product, {
        "transposed": "gradient of W: transposed",
        "exchanged": "gradient of A: is the gradient of W",
        "at_the_other_operand": "gradient of A: taken at the wrong operand",
        "operand_not_transposed": "",
    }),
    *of_op(wrong.sign, {
        "identity": "gradient of x: is not that of the surrogate",
        "of_a_tanh": "gradient of x: is not that of the surrogate",
        "clipped_at_a_half": "gradient of x: is not that of the surrogate",
        "of_the_sign_itself": "gradient of x: is not that of the surrogate",
        "slope_of_two": "gradient of x: is not that of the surrogate",
    }),
    *whole({
        "cube_exponent_forgotten": "gradient of x: is 0.333333 times what is due",
        "cube_detached": "second order: wrong",
        "cube_wrong_inside": "second order: wrong",
        "mean_not_divided": "gradient of x: is 12 times what is due",
        "bias_averaged": "gradient of b: the mean over the batch",
        "softmax_without_its_sum": "",
    }),
]  # fmt: skip

LAYERS = whole({
    "conv_odd_padding_first": "gradient of kernel: agrees with the odd padding above and left",
    "conv_stride_one": "gradient of kernel: agrees with stride 1",
    "conv_strides_swapped": "gradient of kernel: agrees with strides swapped",
    "conv_rotated": "gradient of kernel: agrees with the kernel rotated by 180°",
    "conv_kernel_frozen": "gradient of kernel: frozen (zeros)",
    "conv_pad_value_ignored": "gradient of kernel: agrees with the pad value ignored",
    "dense_transposed": "gradient of b: transposed",
    "dense_slightly_too_large": "gradient of b: is 1.0005 times what is due",
    "model_with_one_wrong_layer": "gradient of b: is 1.0005 times what is due",
})  # fmt: skip

GRADIENTS = [
    *one_in(2, CONTRACTIONS), *one_in(7, VJPS_IN_C), *OPERATIONS, *one_in(3, LAYERS),
]  # fmt: skip
