"""Sums of products by a table, through the core."""

import functools
import math

import numpy as np
import tensorflow as tf

from opgraft import environment
from opgraft.arithmetic import Arithmetic
from opgraft.backends.tensorflow import low_rank, symbols
from opgraft.backends.tensorflow.library import ops
from opgraft.backends.tensorflow.zero_points import corrections, numbers
from opgraft.products import Mantissas, Table, accumulators
from opgraft.products.accumulators import Adder, Saturate, Wrap
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul

_LARGEST = 2**31 - 2**17  # what sums may reach in 32 bits, as the core counts it


def total(product: Table, c: Contraction, arithmetic: Arithmetic, a, b) -> tf.Tensor:
    """The sums of f(a, b), with the terms of the zero points: int32, int64 or float64."""
    zeros = tf.stack([a.zero_point, b.zero_point])
    if not product.is_whole:
        return _in_order(c, product, a.codes, b.codes, zeros, tf.float64)
    if _is_exact(product, c, b.codes):
        return sums(c, product, a.codes, b.codes, zeros)
    of_zeros = tf.zeros([], tf.int64)
    if not product.multiplier.signed:
        x, w = numbers(arithmetic.input, a.codes), numbers(arithmetic.kernel, b.codes)
        of_zeros = corrections(c, product.keeps_padding, x, w, zeros)
    if isinstance(product.accumulator, Wrap):  # in any order
        found = tf.cast(sums(c, product, a.codes, b.codes, zeros), tf.int64) - of_zeros
        low, size = product.accumulator.low, 2**product.accumulator.bits
        return tf.math.floormod(found - low, size) + low + of_zeros
    return _in_order(c, product, a.codes, b.codes, zeros, tf.int64) + of_zeros


def _is_exact(product: Table, c: Contraction, b) -> bool:
    """Whether no sum can leave the accumulator."""
    held = product.accumulator
    if not isinstance(held, Saturate):
        return held == accumulators.exact
    terms = _terms(c, b)
    low, high = (int(f(product.entries)) for f in (np.min, np.max))
    return terms is not None and held.low <= terms * min(low, 0) and terms * high <= held.high


def _in_order(c: Contraction, product: Table, a, b, zeros, dtype: tf.DType) -> tf.Tensor:
    """The sums of f alone, in the order of its products, by the product's accumulator."""
    held = product.accumulator
    options: dict = {"Tout": dtype}
    if isinstance(held, Saturate):
        options["accumulator"] = [held.low, held.high]
    if isinstance(held, Adder):
        options |= symbols.attributes(held.symbol)
    return _through_table(c, a, b, zeros, _entries(product), product.keeps_padding, options)


def sums(c: Contraction, product: Table, a, b, zero_points) -> tf.Tensor:
    """The contraction of codes (uint8), as int32, or int64 where that might not hold it."""
    entries = _entries(product)
    dtype = _sum_type(c, b, entries)
    if low_rank.is_chosen(c, product, a, b, zero_points):
        return low_rank.sums(c, product, a, b, zero_points, dtype)
    options = {
        "Tout": dtype,
        "signed_codes": bool(product.multiplier.signed),
        "engine": environment.table_engine(),
    }
    return _through_table(c, a, b, zero_points, entries, product.keeps_padding, options)


def _through_table(c, a, b, zero_points, entries, keeps_padding: bool, options: dict) -> tf.Tensor:
    """The forward op of a contraction by a table."""
    attributes = {
        "table": tf.constant(entries), "zero_points": zero_points, "signed_codes": False,
        "keeps_padding": keeps_padding, **options,
    }  # fmt: skip
    if isinstance(c, MatMul):
        return ops().opgraft_table_mat_mul(
            a=a, b=b, transpose_a=c.transpose_a, transpose_b=c.transpose_b, **attributes
        )
    assert isinstance(c, Conv2D)
    depthwise = isinstance(c, DepthwiseConv2D)
    op = ops().opgraft_table_depthwise_conv2d if depthwise else ops().opgraft_table_conv2d
    return op(input=a, filter=b, **symbols.geometry(c), **attributes)


def mantissas(product: Mantissas, c: Contraction, left, right) -> tf.Tensor:
    """The sums of a float multiplier's products, in float64."""
    x, w = (tf.cast(operand, tf.float32) for operand in (left, right))
    zeros, options = tf.zeros([2], tf.int32), {"Tout": tf.float64}
    return _through_table(c, x, w, zeros, product.entries, False, options)


@functools.lru_cache(maxsize=64)
def _entries(product: Table) -> np.ndarray:
    return np.ascontiguousarray(product.entries, np.int32 if product.is_whole else np.float64)


def _sum_type(c: Contraction, b, entries: np.ndarray) -> tf.DType:
    """32 bits where a bound shows that they hold every sum."""
    terms = _terms(c, b)
    # With zero points, a product becomes at most 2 * 255 * 255 larger.
    largest = int(abs(entries).max()) + 2 * 2**16 + 2**16
    return tf.int32 if terms is not None and terms * largest < _LARGEST else tf.int64


def _terms(c: Contraction, b) -> int | None:
    """How many products a sum has, where that is known."""
    if b.shape.rank is None:
        return None
    if isinstance(c, MatMul):
        return b.shape[-1 if c.transpose_b else -2]
    sizes = b.shape.as_list()[: 2 if isinstance(c, DepthwiseConv2D) else 3]
    return None if None in sizes else math.prod(sizes)
