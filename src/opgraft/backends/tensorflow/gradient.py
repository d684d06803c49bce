"""The registered gradients: they read a forward op's attributes and build its backward.

One registration per op type, for the life of the process; which arithmetic
ran, and what its backward is, stands in the op itself.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from opgraft import gradients, values
from opgraft.backends.tensorflow import backward, c_vjp, native, private, slopes
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul


@functools.singledispatch
def vjp(gradient: gradients.Gradient, contraction: Contraction, upstream, left, right, skip):
    """Gradients for both operands; None for those in `skip`, which nobody asks for."""
    raise NotImplementedError(type(gradient).__name__)


@vjp.register
def _(gradient: gradients.Native, contraction, upstream, left, right, skip):
    return (
        None if 0 in skip else native.input_vjp(contraction, upstream, left, right),
        None if 1 in skip else native.kernel_vjp(contraction, upstream, left, right),
    )


@vjp.register
def _(gradient: gradients.ByContraction, contraction, upstream, left, right, skip):
    operands = contraction, upstream, left, right
    return (
        None if 0 in skip else backward.input_gradient(gradient.grad_input, *operands),
        None if 1 in skip else backward.kernel_gradient(gradient.grad_kernel, *operands),
    )


@vjp.register
def _(gradient: gradients.BySlopes, contraction, upstream, left, right, skip):
    return slopes.gradients(gradient, contraction, upstream, left, right, skip)


@vjp.register
def _(gradient: gradients.CVjp, contraction, upstream, left, right, skip):
    return c_vjp.gradients(gradient, contraction, upstream, left, right)


def _text(op, name: str) -> str:
    value = op.get_attr(name)
    return value.decode() if isinstance(value, bytes) else value


def _contraction(op) -> Contraction:
    """The contraction that a forward op computes, from its attributes."""
    return _READERS[op.type](op)


def _read_matmul(op) -> Contraction:
    return MatMul(bool(op.get_attr("transpose_a")), bool(op.get_attr("transpose_b")))


def _read_conv(kind: type[Conv2D], op) -> Contraction:
    padding = _text(op, "padding")
    top, bottom, left, right = op.get_attr("explicit_paddings")
    return kind(
        strides=tuple(op.get_attr("strides")),
        padding=((top, bottom), (left, right)) if padding == "EXPLICIT" else padding,
        dilations=tuple(op.get_attr("dilations")),
        groups=op.get_attr("groups"),
        channels_first=_text(op, "data_format") == "NCHW",
        pad_value=float(_text(op, "pad_value")),
    )


def _read_graft(op) -> Contraction:
    return values.from_json(_text(op, "contraction"))


_READERS: dict[str, Callable[..., Contraction]] = {
    "OpgraftMatMul": _read_matmul,
    "OpgraftConv2D": functools.partial(_read_conv, Conv2D),
    "OpgraftDepthwiseConv2D": functools.partial(_read_conv, DepthwiseConv2D),
    "OpgraftGraft": _read_graft,
}


def _backward(op, upstream):
    left, right = op.inputs[0], op.inputs[1]
    unasked = (None,) * (len(op.inputs) - 2)  # the grafted value carries no gradient
    if not left.dtype.is_floating:
        return (None, None, *unasked)
    arithmetic = values.from_json(_text(op, "arithmetic"))
    skip = private.unneeded_inputs(op)
    gradient = arithmetic.gradient.of(arithmetic)
    return (*vjp(gradient, _contraction(op), upstream, left, right, skip), *unasked)


for _op_type in _READERS:
    tf.RegisterGradient(_op_type)(_backward)
