"""How TensorFlow runs each product. A new product adds one function here."""

import dataclasses
import functools

import tensorflow as tf

from opgraft import gradients, values
from opgraft.arithmetic import Arithmetic
from opgraft.backends.tensorflow import native, symbols, tables
from opgraft.backends.tensorflow.library import follow_once, ops
from opgraft.products import CFunction, Exact, Product, PythonFunction, Table
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul


@functools.singledispatch
def run(
    product: Product, contraction: Contraction, arithmetic: Arithmetic, left, right
) -> tf.Tensor:
    """The result of `contraction` under `arithmetic`, whose product this is."""
    raise NotImplementedError(f"TensorFlow has no way to run {type(product).__name__}")


@run.register
def _(product: Exact, contraction, arithmetic, left, right):
    if arithmetic.gradient.of(arithmetic) == gradients.native:
        return native.contract(contraction, left, right)
    value = native.contract(contraction, tf.stop_gradient(left), tf.stop_gradient(right))
    return _graft(contraction, arithmetic, left, right, value)


@run.register
def _(product: CFunction, contraction, arithmetic, left, right):
    follow_once()
    attributes = {
        **symbols.attributes(product.symbol_for(contraction)),
        "arithmetic": values.to_json(arithmetic),
        "Tout": product.result_dtype(contraction, left.dtype.name),
    }
    return _through_c(contraction, attributes, left, right)


@run.register
def _(product: PythonFunction, contraction, arithmetic, left, right):
    product.warn_once()
    # stateful: never folded into a constant, never merged with an equal call.
    value = tf.numpy_function(
        functools.partial(product.compute, contraction), [left, right], left.dtype, stateful=True
    )
    return _graft(contraction, _in_memory(arithmetic), left, right, value)


@run.register
def _(product: Table, contraction, arithmetic, left, right):
    follow_once()
    used, value = tables.run(product, contraction, arithmetic, left, right)
    # The gradient is that of the operands as they were used; a range that was calibrated is
    # one of activations, not of what flows back.
    anew = dataclasses.replace(
        arithmetic, input=arithmetic.input.dynamic(), kernel=arithmetic.kernel.dynamic()
    )
    return _graft(contraction, _in_memory(anew), used[0], used[1], value)


def _graft(contraction, arithmetic: Arithmetic, left, right, value) -> tf.Tensor:
    """A value with the gradient that the arithmetic gives to the contraction."""
    return ops().opgraft_graft(
        a=left,
        b=right,
        value=value,
        contraction=values.to_json(contraction),
        arithmetic=values.to_json(arithmetic),
    )


@functools.lru_cache(maxsize=1024)
def _in_memory(arithmetic: Arithmetic) -> Arithmetic:
    """What the gradient must know of an arithmetic, without the product that it does not use."""
    return Arithmetic(gradient=arithmetic.gradient.of(arithmetic))


@functools.singledispatch
def _through_c(contraction: Contraction, attributes: dict, left, right) -> tf.Tensor:
    """The forward op of a contraction; `attributes` say which C function it calls."""
    raise NotImplementedError(type(contraction).__name__)


@_through_c.register
def _(c: MatMul, attributes, a, b):
    transposes = {"transpose_a": c.transpose_a, "transpose_b": c.transpose_b}
    return ops().opgraft_mat_mul(a=a, b=b, **transposes, **attributes)


@_through_c.register
def _(c: Conv2D, attributes, x, kernel):
    depthwise = isinstance(c, DepthwiseConv2D)
    op = ops().opgraft_depthwise_conv2d if depthwise else ops().opgraft_conv2d
    return op(input=x, filter=kernel, **symbols.geometry(c), **attributes)
