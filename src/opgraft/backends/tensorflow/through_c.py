"""The forward ops that call a C function of the user's."""

import functools

import tensorflow as tf

from opgraft.backends.tensorflow import symbols
from opgraft.backends.tensorflow.library import ops
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul


@functools.singledispatch
def contract(contraction: Contraction, attributes: dict, left, right) -> tf.Tensor:
    """The forward op of a contraction; `attributes` say which C function it calls."""
    raise NotImplementedError(type(contraction).__name__)


@contract.register
def _(c: MatMul, attributes, a, b):
    transposes = {"transpose_a": c.transpose_a, "transpose_b": c.transpose_b}
    return ops().opgraft_mat_mul(a=a, b=b, **transposes, **attributes)


@contract.register
def _(c: Conv2D, attributes, x, kernel):
    depthwise = isinstance(c, DepthwiseConv2D)
    op = ops().opgraft_depthwise_conv2d if depthwise else ops().opgraft_conv2d
    return op(input=x, filter=kernel, **symbols.geometry(c), **attributes)
