"""Products by a table in TensorFlow: quantize, sum in whole numbers, give the scale back."""

import functools
import math

import numpy as np
import tensorflow as tf

from opgraft import environment
from opgraft.arithmetic import Arithmetic
from opgraft.backends.tensorflow import symbols
from opgraft.backends.tensorflow.library import ops
from opgraft.backends.tensorflow.quantize import encode
from opgraft.errors import DtypeError, OpgraftError
from opgraft.products import Table
from opgraft.products.table import shared_axes
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul

_LARGEST = 2**31 - 2**17  # what sums may reach in 32 bits, as the core counts it


def run(product: Table, c: Contraction, arithmetic: Arithmetic, left, right):
    """The operands that were used, with the quantizers' gradients, and the contraction's value."""
    if not left.dtype.is_floating:
        raise DtypeError(
            f"{product.multiplier!r} is given {left.dtype.name}: it multiplies quantized floating "
            "operands. Cast them: keras.ops.cast(x, 'float32')"
        )
    narrow = left.dtype if left.dtype in (tf.float32, tf.float64) else tf.float32
    x, w = (tf.cast(operand, narrow) for operand in (left, right))
    a = encode(arithmetic.input, x, None)
    b = encode(arithmetic.kernel, w, list(shared_axes(c)))
    found = sums(c, product, a.codes, b.codes, tf.stack([a.zero_point, b.zero_point]))
    scale = tf.reshape(a.scale, []) * _of_output(c, b.scale) + a.spoilt + b.spoilt
    value = tf.cast(found, narrow) * scale
    used = [tf.cast(each.values, left.dtype) for each in (a, b)]
    return used, tf.cast(tf.stop_gradient(value), left.dtype)


def _of_output(c: Contraction, scale) -> tf.Tensor:
    """A kernel's scale, of one number or one for each channel, beside the output."""
    if scale.shape.rank == 0:
        return scale
    if isinstance(c, MatMul):
        return tf.linalg.matrix_transpose(scale) if c.transpose_b else scale
    flat = tf.reshape(scale, [-1])
    return tf.reshape(flat, [1, -1, 1, 1] if getattr(c, "channels_first", False) else [1, 1, 1, -1])


def sums(c: Contraction, product: Table, a, b, zero_points) -> tf.Tensor:
    """The contraction of codes (uint8), as int32, or int64 where that might not hold it."""
    entries = _entries(product)
    attributes = {
        "table": tf.constant(entries),
        "zero_points": zero_points,
        "Tout": _sum_type(c, a, b, entries),
        "signed_codes": bool(product.multiplier.signed),
        "keeps_padding": product.keeps_padding,
        "engine": environment.table_engine(),
    }
    if isinstance(c, MatMul):
        return ops().opgraft_table_mat_mul(
            a=a, b=b, transpose_a=c.transpose_a, transpose_b=c.transpose_b, **attributes
        )
    assert isinstance(c, Conv2D)
    depthwise = isinstance(c, DepthwiseConv2D)
    op = ops().opgraft_table_depthwise_conv2d if depthwise else ops().opgraft_table_conv2d
    return op(input=a, filter=b, **symbols.geometry(c), **attributes)


@functools.lru_cache(maxsize=64)
def _entries(product: Table) -> np.ndarray:
    table = product.multiplier.table
    return np.ascontiguousarray(table.T if product.exchanged else table, np.int32)


def _sum_type(c: Contraction, a, b, entries: np.ndarray) -> tf.DType:
    """32 bits where a bound shows that they hold every sum."""
    if b.shape.rank is None:
        terms = None
    elif isinstance(c, MatMul):
        terms = b.shape[-1 if c.transpose_b else -2]
    else:
        sizes = b.shape.as_list()[: 2 if isinstance(c, DepthwiseConv2D) else 3]
        terms = None if None in sizes else math.prod(sizes)
    # With zero points, a product becomes at most 2 * 255 * 255 larger.
    largest = int(abs(entries).max()) + 2 * 2**16 + 2**16
    return tf.int32 if terms is not None and terms * largest < _LARGEST else tf.int64


@functools.lru_cache(maxsize=64)
def check(product: Table) -> None:
    """A small contraction through the real engine, against the table read by NumPy.

    Raises:
        OpgraftError: they differ; nothing would be computed as it was claimed.
    """
    draw = np.random.default_rng(0).integers
    rows, columns = _entries(product).shape
    a = draw(0, rows, (67, 5)).astype(np.uint8)
    b = draw(0, columns, (5, 9)).astype(np.uint8)
    for some in (67, 3):  # many rows and few
        codes = tf.constant(a[:some]), tf.constant(b)
        got = sums(MatMul(), product, *codes, tf.constant([0, 0])).numpy()
        due = _entries(product)[a[:some, :, None], b[None]].sum(1)
        if not np.array_equal(got, due):
            raise OpgraftError(
                f"the core does not compute {product.multiplier!r}: a small matrix product differs "
                "from its table. Reinstall opgraft, and report this with `opgraft config`"
            )
