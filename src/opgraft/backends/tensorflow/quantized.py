"""Products of quantized operands in TensorFlow: quantize, sum, give the scale back."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from opgraft.arithmetic import Arithmetic
from opgraft.backends.tensorflow import coded, tables
from opgraft.backends.tensorflow.quantize import Encoded, encode
from opgraft.errors import DtypeError
from opgraft.products import Coded, Quantized, Table
from opgraft.products.quantized import shared_axes
from opgraft.quantizers import codes_dtype
from opgraft.spec import Contraction, MatMul


def run(product: Quantized, c: Contraction, arithmetic: Arithmetic, left, right, states):
    """The operands that were used, with the quantizers' gradients, and the contraction's value."""
    if not left.dtype.is_floating:
        raise DtypeError(
            f"{product.label} is given {left.dtype.name}: it multiplies quantized floating "
            "operands. Cast them: keras.ops.cast(x, 'float32')"
        )
    a, b = encoded(c, arithmetic, left, right, states)
    found = total(product, c, arithmetic, a, b)
    scale = tf.reshape(a.scale, []) * _of_output(c, b.scale) + a.spoilt + b.spoilt
    value = tf.cast(found, scale.dtype) * scale
    used = [tf.cast(each.values, left.dtype) for each in (a, b)]
    return used, tf.cast(tf.stop_gradient(value), left.dtype)


def encoded(
    c: Contraction, arithmetic: Arithmetic, left, right, states=((), ())
) -> tuple[Encoded, Encoded]:
    """Both operands as the arithmetic sees them, in float32 or wider."""
    narrow = left.dtype if left.dtype in (tf.float32, tf.float64) else tf.float32
    x, w = (tf.cast(operand, narrow) for operand in (left, right))
    of_x, of_w = ([tf.cast(state, narrow) for state in each] for each in states)
    shared = list(shared_axes(c))
    return encode(arithmetic.input, x, None, of_x), encode(arithmetic.kernel, w, shared, of_w)


@functools.singledispatch
def total(product: Quantized, c: Contraction, arithmetic: Arithmetic, a, b) -> tf.Tensor:
    """The sums of what two operands were encoded to, the terms of the zero points among them."""
    raise NotImplementedError(f"TensorFlow has no way to sum {type(product).__name__}")


total.register(Table, tables.total)
total.register(Coded, coded.total)


def _of_output(c: Contraction, scale) -> tf.Tensor:
    """A kernel's scale, of one number or one for each channel, beside the output."""
    if scale.shape.rank == 0:
        return scale
    if isinstance(c, MatMul):
        return tf.linalg.matrix_transpose(scale) if c.transpose_b else scale
    flat = tf.reshape(scale, [-1])
    return tf.reshape(flat, [1, -1, 1, 1] if getattr(c, "channels_first", False) else [1, 1, 1, -1])


# ---- what is built must be what runs ---------------------------------------------------------


def check_sums(product: Quantized, arithmetic: Arithmetic) -> bool:
    """Whether a small matrix product of random codes is what NumPy gives."""
    quantizers: Any = (arithmetic.input, arithmetic.kernel)
    draw = np.random.default_rng(0).integers
    left, right = (
        draw(0, 2 ** quantizers[0].bits, (67, 5)),
        draw(0, 2 ** quantizers[1].bits, (5, 9)),
    )
    for rows in (left, left[:3]):  # many and few
        products = product.of_codes(rows[:, :, None], right[None], *quantizers)
        due = product.accumulator.add_up(products, np.ones(rows.shape, bool))
        a, b = (_of_codes(q, codes) for q, codes in zip(quantizers, (rows, right), strict=True))
        got = total(product, MatMul(), arithmetic, a, b).numpy()
        if not np.array_equal(got, due, equal_nan=True):
            return False
    return True


def _of_codes(quantizer, codes: np.ndarray) -> Encoded:
    codes = tf.constant(codes.astype(codes_dtype(quantizer.bits)))
    one = tf.ones([])
    return Encoded(codes, one, tf.zeros([], tf.int32), one, one)
