"""The terms that zero points add to a sum of products of codes, exactly."""

import dataclasses

import tensorflow as tf

from opgraft.backends.tensorflow import native
from opgraft.quantizers import Linear, Quantizer
from opgraft.spec import Contraction, Conv2D


def numbers(quantizer: Quantizer, codes) -> tf.Tensor:
    """The whole number (int32) that each code stands for."""
    assert isinstance(quantizer, Linear)
    whole = tf.cast(codes, tf.int32)
    if not quantizer.signed:
        return whole
    return tf.where(whole >= 2 ** (quantizer.bits - 1), whole - 2**quantizer.bits, whole)


def corrections(c: Contraction, keeps_padding: bool, a, b, zero_points) -> tf.Tensor:
    """The sums (int64) of z_a z_b - z_a b - z_b a, that is of -z_b (a - z_a) - z_a b.

    Args:
        a, b: the numbers of both operands.
        zero_points: z_a and z_b.

    A padded tap that is kept holds z_a: it has no part in the first term, but one in the second.
    In double, where sums of products of 16-bit numbers are exact.
    """
    x, w = tf.cast(a, tf.float64), tf.cast(b, tf.float64)
    z_a, z_b = (tf.cast(z, tf.float64) for z in tf.unstack(zero_points))
    kept = dataclasses.replace(c, pad_value=1) if isinstance(c, Conv2D) and keeps_padding else c
    of_input = native.contract(c, x - z_a, tf.ones_like(w))
    of_kernel = native.contract(kept, tf.ones_like(x), w)
    return tf.cast(-z_b * of_input - z_a * of_kernel, tf.int64)
