"""Gradients by the slopes of a multiplier's table, as native contractions.

The slope along a at the codes (a, b) is a sum of products of a function of a and one of
b. So the gradient for the input is a sum of native ones: each for a kernel that is
replaced by its function of b, and multiplied by the function of a. Likewise for the kernel.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from opgraft.backends.tensorflow import native, quantized
from opgraft.backends.tensorflow.quantize import Encoded
from opgraft.gradients import BySlopes
from opgraft.multipliers.slopes import Slopes
from opgraft.spec import Contraction


def gradients(gradient: BySlopes, c: Contraction, upstream, left, right, skip) -> tuple:
    """The gradients of the operands as they came; None for those in `skip`."""
    with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape:
        tape.watch([left, right])
        a, b = quantized.encoded(c, gradient.forward, left, right)
    dy = tf.cast(upstream, a.values.dtype)
    of_input, of_kernel = gradient.tables()

    def to_input(kernel):
        return native.input_vjp(c, dy, a.values, kernel)

    def to_kernel(input):
        return native.kernel_vjp(c, dy, input, b.values)

    # One by one: the operands may be the same tensor.
    return (
        None if 0 in skip else tape.gradient(a.values, left, _flow(of_input, to_input, a, b)),
        None if 1 in skip else tape.gradient(b.values, right, _flow(of_kernel, to_kernel, b, a)),
    )


def _flow(slopes: Slopes, contract: Callable, own: Encoded, other: Encoded) -> tf.Tensor:
    """What flows back to one operand's values.

    Args:
        contract: the native gradient for that operand, as a function of the other.
    """
    dtype = own.values.dtype.as_numpy_dtype
    first = other.values
    if slopes.mean.any():
        first += other.scale * _looked_up(slopes.mean.astype(dtype), other)
    total = contract(first)
    if not slopes.own.size:
        return total
    shape = own.values.shape
    functions = [tf.constant(part.T.astype(dtype)) for part in (slopes.own, slopes.other)]

    def add(r, total):
        of_own, of_other = (part[r] for part in functions)
        found = contract(other.scale * _looked_up(of_other, other))
        return r + 1, tf.ensure_shape(total + _looked_up(of_own, own) * found, shape)

    # One after the other: all at once would need as many times the memory.
    _, total = tf.while_loop(
        lambda r, _: r < slopes.own.shape[1], add, [0, tf.ensure_shape(total, shape)],
        shape_invariants=[tf.TensorShape([]), shape], parallel_iterations=1,
    )  # fmt: skip
    return total


def _looked_up(function: np.ndarray | tf.Tensor, operand: Encoded) -> tf.Tensor:
    """A function of codes at an operand's codes."""
    return tf.gather(function, tf.cast(operand.codes, tf.int32))
