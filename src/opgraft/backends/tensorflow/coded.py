"""Products of quantized operands by a C function, called once for each."""

import dataclasses

import tensorflow as tf

from opgraft import values
from opgraft.arithmetic import Arithmetic, exact
from opgraft.backends.tensorflow import native, symbols, through_c
from opgraft.backends.tensorflow.zero_points import corrections, numbers
from opgraft.products import Coded
from opgraft.spec import Contraction, Conv2D, MatMul

_UNPADDED = ("VALID", ((0, 0), (0, 0)))


def total(product: Coded, c: Contraction, arithmetic: Arithmetic, a, b) -> tf.Tensor:
    """The sums of f(a, b), with the terms of the zero points, as int64."""
    x, w = numbers(arithmetic.input, a.codes), numbers(arithmetic.kernel, b.codes)
    zeros = tf.stack([a.zero_point, b.zero_point])
    found = _padded_sums(product, c, x, w, zeros[0])
    if isinstance(c, Conv2D) and not product.keeps_padding and c.padding not in _UNPADDED:
        found -= _of_padding(product, c, x, w, zeros[0])
    if product.signed:  # no zero points
        return found
    return found + corrections(c, product.keeps_padding, x, w, zeros)


def _padded_sums(product: Coded, c: Contraction, x, w, zero) -> tf.Tensor:
    """Sums of f, where padded taps hold the zero point."""
    if isinstance(c, Conv2D):
        last = dataclasses.replace(c, channels_first=False)
        x = tf.transpose(x, (0, 2, 3, 1)) if c.channels_first else x
        x = native.padded(last, x - zero, w) + zero
        sums = _sums(product, dataclasses.replace(last, padding="VALID"), x, w)
        return tf.transpose(sums, (0, 3, 1, 2)) if c.channels_first else sums
    return _sums(product, c, x, w)


def _sums(product: Coded, c: Contraction, x, w) -> tf.Tensor:
    attributes = {
        **symbols.attributes(product.symbol),
        "arithmetic": values.to_json(exact),  # nothing flows back through it
        "Tout": tf.int64,
    }
    dtype = product.symbol.operand_dtype
    return through_c.contract(c, attributes, tf.cast(x, dtype), tf.cast(w, dtype))


def _of_padding(product: Coded, c: Conv2D, x, w, zero) -> tf.Tensor:
    """What f(zero point, b) adds where taps lie on the padding: to be taken off again."""
    found = _sums(product, MatMul(), tf.reshape(zero, (1, 1)), tf.reshape(w, (1, -1)))
    added = tf.cast(tf.reshape(found, tf.shape(w)), tf.float64)
    added.set_shape(w.shape)
    outside = dataclasses.replace(c, pad_value=1)
    inside = tf.zeros_like(x[:1], tf.float64)
    return tf.cast(native.contract(outside, inside, added), tf.int64)
