"""Products by a table of a low rank: a few of TensorFlow's own contractions, without a core.

The error of a table often has a low rank: f(a, b) = a b + sum over r of F[a, r] G[b, r]. Then

    f(a, b) - z_a b - z_b a + z_a z_b = (a - z_a)(b - z_b) + sum over r of F[a, r] G[b, r]

and its sums are those of one contraction, of operands that hold r + 1 numbers for each code.
F and G are whole numbers, and float32 adds whole numbers exactly and in any order while the
absolute values of all terms add up to at most 2^24. Longer sums are cut into blocks that keep
to that, and the blocks are added as integers.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from opgraft import environment
from opgraft.backends.tensorflow import native
from opgraft.backends.tensorflow.library import ops
from opgraft.errors import UnsupportedError
from opgraft.multipliers import Multiplier
from opgraft.multipliers.codes import integers
from opgraft.multipliers.factors import MOST, Factors, factors
from opgraft.products import Table
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul

_ROUNDING = "ONEDNN_DEFAULT_FPMATH_MODE"  # where it is set, float32 may be less than that
_EXACT = 2**24  # float32 has every whole number up to here

Zeros = tuple[int, int] | None  # both zero points, where they are known while a graph is made


def sums(c: Contraction, product: Table, a, b, zero_points, dtype: tf.DType) -> tf.Tensor:
    """The contraction of codes (uint8), bit for bit as `tables.sums`; `why_not` must be "".

    Args:
        c, product: what is computed.
        a, b: codes, of the shapes that the contraction takes.
        zero_points: [2] integers, that of `a` and that of `b`.
        dtype: of the result; an integer type that holds every sum.
    """
    with tf.device("CPU"):  # elsewhere float32 may be rounded to fewer bits, or transformed
        terms = _terms(product, known(zero_points))
        assert terms is not None
        columns = _columns(product, terms, zero_points)
        if isinstance(c, DepthwiseConv2D):
            pairs = zip(_numbers(a, columns[0]), _numbers(b, columns[1]), strict=True)
            return tf.cast(tf.add_n([native.contract(c, x, w) for x, w in pairs]), dtype)
        if not isinstance(c, Conv2D) or c.groups == 1:
            return _in_blocks(c, columns, a, b, terms.at_most, dtype)
        groups = zip(tf.split(a, c.groups, c.channel_axis), tf.split(b, c.groups, 3), strict=True)
        one = dataclasses.replace(c, groups=1)
        parts = [_in_blocks(one, columns, x, w, terms.at_most, dtype) for x, w in groups]
        return tf.concat(parts, c.channel_axis)


def why_not(
    c: Contraction, product: Table, shapes: Sequence[tf.TensorShape], zeros: Zeros = None
) -> str:
    """Why a contraction cannot be computed so, in words; "" if it can.

    Args:
        c, product: what is to be computed.
        shapes: of both operands; sizes may be unknown.
        zeros: both zero points; None: any within the codes.
    """
    if os.environ.get(_ROUNDING, "").upper() not in ("", "STRICT"):
        return f"{_ROUNDING} lets TensorFlow round what it multiplies"
    terms = _terms(product, zeros)
    if terms is None:
        return f"the rank of {product.multiplier!r}'s error is too high; {MOST} is the most"
    pads = isinstance(c, Conv2D) and c.padding not in ("VALID", ((0, 0), (0, 0)))
    if pads and product.keeps_padding:
        return "keeps_padding=True sends padded taps through the table, and here they are 0"
    size = _summed(c, shapes)
    if size is None:
        return "the sizes that are summed over are not known while the graph is made"
    if size.at_once > terms.at_most:
        return (
            f"float32 is exact for sums of at most {terms.at_most} such products, and the fewest "
            f"that are summed at once are {size.at_once}"
        )
    return ""


def is_chosen(c: Contraction, product: Table, a, b, zero_points) -> bool:
    """Whether it computes this contraction: because it is forced, or else is preferred.

    Raises:
        UnsupportedError: it is forced, and cannot.
    """
    shapes, engine = (a.shape, b.shape), environment.table_engine()
    zeros = known(zero_points)
    if engine == environment.AUTO:
        return is_preferred(c, product, zeros) and not why_not(c, product, shapes, zeros)
    if engine != environment.LOW_RANK:
        return False
    why = why_not(c, product, shapes, zeros)
    if why:
        raise UnsupportedError(
            f"OPGRAFT_TABLE_ENGINE=low_rank: this {c.type_name} cannot be computed so: {why}. "
            "OPGRAFT_TABLE_ENGINE=auto takes an engine that can"
        )
    return True


def is_preferred(c: Contraction, product: Table, zeros: Zeros = None) -> bool:
    """Whether it is the fastest engine, where it can be used at all.

    With one term it takes half the time of the others, with two about as long, then more.
    """
    if isinstance(c, Conv2D) and (isinstance(c, DepthwiseConv2D) or c.groups > 1):
        return False
    terms = _terms(product, zeros)
    return terms is not None and terms.centred + terms.rest.rank == 1


def known(zero_points) -> Zeros:
    """The zero points, where they are constants."""
    found = tf.get_static_value(zero_points)
    return None if found is None else (int(found[0]), int(found[1]))


# ---- what is summed --------------------------------------------------------------------------


class _Terms(NamedTuple):
    """What a product is made of.

    Attributes:
        centred: whether (a - z_a)(b - z_b) is a term of its own.
        rest: the factors of the other terms.
        at_most: so many products float32 adds exactly, whatever they are.
    """

    centred: bool
    rest: Factors
    at_most: int


@functools.lru_cache(maxsize=1024)
def _terms(product: Table, zeros: Zeros) -> _Terms | None:
    """By the error's factors or, without zero points, by the table's where these are fewer."""
    rest = _factors(product.multiplier, True)
    whole = _factors(product.multiplier, False) if zeros == (0, 0) else None
    centred = whole is None or whole.rank == 0 or (rest is not None and rest.rank < whole.rank)
    if not centred:
        rest = whole
    if rest is None:
        return None
    largest = rest.largest
    if centred:
        spans = (
            np.ptp(numbers) if zeros is None else abs(numbers - zeros[i]).max()
            for i, numbers in enumerate(_codes(product))
        )
        largest += math.prod(map(int, spans))
    return _Terms(centred, rest.transposed if product.exchanged else rest, _EXACT // largest)


@functools.lru_cache(maxsize=128)
def _factors(multiplier: Multiplier, of_error: bool) -> Factors | None:
    return factors(multiplier.table - multiplier.exact if of_error else multiplier.table)


def _codes(product: Table) -> list[np.ndarray]:
    """The numbers that the codes of both operands stand for."""
    return [integers(bits, bool(product.multiplier.signed)) for bits in product.widths]


def _columns(product: Table, terms: _Terms, zero_points) -> list[list[tf.Tensor]]:
    """For each operand the numbers that take the place of its codes: one column for each term."""
    both = []
    for i, side in enumerate((terms.rest.left, terms.rest.right)):
        columns = [tf.constant(column, tf.float32) for column in side.T]
        if terms.centred:
            codes = tf.constant(_codes(product)[i], tf.float32)
            columns.insert(0, codes - tf.cast(zero_points[i], tf.float32))
        both.append(columns)
    return both


def _numbers(codes, columns: list[tf.Tensor]) -> list[tf.Tensor]:
    found = []
    for column in columns:
        every = tf.pad(column, [[0, 256 - column.shape[0]]])  # narrow codes have fewer
        found.append(ops().opgraft_look_up(codes=codes, column=every))
        found[-1].set_shape(codes.shape)
    return found


# ---- block by block --------------------------------------------------------------------------


class _Size(NamedTuple):
    """How many products are summed: `parts` times `at_once`, of which only parts are split."""

    parts: int
    at_once: int


def _summed(c: Contraction, shapes: Sequence[tf.TensorShape]) -> _Size | None:
    """None where a size is unknown."""
    a, b = shapes
    if isinstance(c, MatMul):
        k = b[-1 if c.transpose_b else -2]
        k = a[-2 if c.transpose_a else -1] if k is None else k
        return None if k is None else _Size(k, 1)
    height, width, channels = b[0], b[1], 1 if isinstance(c, DepthwiseConv2D) else b[2]
    if height is None or width is None or channels is None:
        return None
    return _Size(channels, height * width)


def _in_blocks(c: Contraction, columns, a, b, at_most: int, dtype: tf.DType) -> tf.Tensor:
    """Blocks of the summed axis, of nearly equal sizes; the terms lie side by side along it."""
    size = _summed(c, (a.shape, b.shape))
    assert size is not None
    count = max(math.ceil(size.parts / (at_most // max(size.at_once, 1))), 1)
    sizes = [size.parts // count + (i < size.parts % count) for i in range(count)]
    if isinstance(c, MatMul):
        axes = -2 if c.transpose_a else -1, -1 if c.transpose_b else -2
    else:
        assert isinstance(c, Conv2D)
        axes = c.channel_axis, 2
    total = []
    for block in zip(tf.split(a, sizes, axes[0]), tf.split(b, sizes, axes[1]), strict=True):
        operands = (
            tf.concat(_numbers(codes, of), axis)
            for codes, of, axis in zip(block, columns, axes, strict=True)
        )
        total.append(tf.cast(native.contract(c, *operands), dtype))
    return tf.add_n(total)
