"""How TensorFlow runs each product. A new product adds one function here."""

import dataclasses
import functools

import tensorflow as tf

from opgraft import gradients, values
from opgraft.arithmetic import Arithmetic
from opgraft.backends.tensorflow import native, quantized, symbols, tables, through_c
from opgraft.backends.tensorflow.library import follow_once, ops
from opgraft.products import CFunction, Exact, Mantissas, Product, PythonFunction, Quantized
from opgraft.spec import Contraction


@functools.singledispatch
def run(
    product: Product, contraction: Contraction, arithmetic: Arithmetic, left, right
) -> tf.Tensor:
    """The result of `contraction` under `arithmetic`, whose product this is.

    Of a product that lets quantizers with states pass, the function takes `states=` as well:
    those of the input's quantizer, and those of the kernel's.
    """
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
    return through_c.contract(contraction, attributes, left, right)


@run.register
def _(product: PythonFunction, contraction, arithmetic, left, right):
    product.warn_once()
    # stateful: never folded into a constant, never merged with an equal call.
    value = tf.numpy_function(
        functools.partial(product.compute, contraction), [left, right], left.dtype, stateful=True
    )
    return _graft(contraction, _in_memory(arithmetic), left, right, value)


@run.register
def _(product: Mantissas, contraction, arithmetic, left, right):
    follow_once()
    product.check_operands(left.dtype.name)
    operands = tf.stop_gradient(left), tf.stop_gradient(right)
    value = tf.cast(tables.mantissas(product, contraction, *operands), left.dtype)
    return _graft(contraction, _in_memory(arithmetic), left, right, value)


@run.register
def _(product: Quantized, contraction, arithmetic, left, right, states=((), ())):
    follow_once()
    used, value = quantized.run(product, contraction, arithmetic, left, right, states)
    if arithmetic.gradient.of_codes:  # those of what was used may be others, in a range of its own
        return _graft(contraction, arithmetic, left, right, value)
    # The gradient is that of the operands as they were used; a range that was calibrated is
    # one of activations, not of what flows back.
    if not arithmetic.gradient.of_output:
        arithmetic = dataclasses.replace(
            arithmetic, input=arithmetic.input.dynamic(), kernel=arithmetic.kernel.dynamic()
        )
    return _graft(contraction, _in_memory(arithmetic), used[0], used[1], value)


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
    """What the gradient must know of an arithmetic, without a product that it does not use."""
    if arithmetic.gradient.of_output:
        return arithmetic
    return Arithmetic(gradient=arithmetic.gradient.of(arithmetic))
