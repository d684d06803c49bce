"""How TensorFlow applies each quantizer. A new quantizer adds one function here."""

import functools
from typing import NamedTuple

import tensorflow as tf

from opgraft.backends.tensorflow.library import ops
from opgraft.quantizers import Affine, Quantizer, Symmetric


class Encoded(NamedTuple):
    """See `opgraft.quantizers.Codes`; `values` has the quantizer's pseudo-gradient.

    Attributes:
        spoilt: NaN if the operand holds a NaN, which codes do not show, else 0.
    """

    codes: tf.Tensor
    scale: tf.Tensor
    zero_point: tf.Tensor
    values: tf.Tensor
    spoilt: tf.Tensor


class _Numbers(NamedTuple):
    """The whole numbers that have a code."""

    low: int
    high: int
    mask: int  # of the bits of a code
    clips: bool  # whether there may be values outside


@functools.singledispatch
def encode(quantizer: Quantizer, x: tf.Tensor, axes: list[int] | None) -> Encoded:
    """Codes of a tensor; `axes` are those that share a scale where each channel has its own."""
    raise NotImplementedError(f"TensorFlow has no way to apply {type(quantizer).__name__}")


@encode.register
def _(q: Symmetric, x, axes):
    numbers = _Numbers(-q.top, q.top, 2**q.bits - 1, q.limit is not None)
    limit = tf.constant(q.limit or 0, x.dtype)
    ends = -limit, limit
    if q.limit is None:
        shared = axes if q.per_channel else None
        low, high = (f(x, shared, keepdims=q.per_channel) for f in (tf.reduce_min, tf.reduce_max))
        limit = tf.maximum(tf.maximum(high, -low), 0)  # of no elements it is -infinity
    scale = _scale(limit, q.top)
    return _encoded(x, scale, tf.zeros([], x.dtype), numbers, ends)


@encode.register
def _(q: Affine, x, axes):
    numbers = _Numbers(0, q.top, 2**q.bits - 1, q.low is not None)
    zero = tf.zeros([], x.dtype)
    if q.low is None:
        low, high = tf.minimum(tf.reduce_min(x), zero), tf.maximum(tf.reduce_max(x), zero)
    else:
        low, high = tf.constant(q.low, x.dtype), tf.constant(q.high, x.dtype)
    scale = _scale(high - low, q.top)
    zero_point = tf.round(-low / scale)
    zero_point = tf.where(tf.math.is_nan(zero_point), zero, zero_point)  # the scale says it
    ends = -zero_point * scale, (tf.cast(q.top, x.dtype) - zero_point) * scale
    return _encoded(x, scale, zero_point, numbers, ends)


def _scale(size, top: int) -> tf.Tensor:
    """1 where everything is 0; NaN stays.

    A product: graphs would make one of a division by a constant, and round otherwise.
    """
    scale = size * tf.constant(1 / top, size.dtype)
    return tf.stop_gradient(tf.where(tf.equal(scale, 0), tf.ones_like(scale), scale))


def _encoded(x, scale, zero_point, numbers: _Numbers, ends) -> Encoded:
    """`ends` are the values beyond which an operand is clipped, where it can be."""
    zero_point = tf.stop_gradient(zero_point)
    whole = tf.cast(zero_point, tf.int32)
    if x.dtype == tf.float32 and scale.shape.rank == 0:
        codes, values, spoilt = ops().opgraft_quantize(
            x=x, scale=scale, zero_point=whole, least=ends[0], most=ends[1], **numbers._asdict()
        )
        if not tf.executing_eagerly():
            for each, shape in ((codes, x.shape), (values, x.shape), (spoilt, [])):
                each.set_shape(shape)
        return Encoded(codes, scale, whole, values, spoilt)
    found = tf.stop_gradient(x)
    low, high = tf.cast(numbers.low, x.dtype), tf.cast(numbers.high, x.dtype)
    steps = tf.clip_by_value(tf.round(found / scale) + zero_point, low, high)
    codes = tf.cast(tf.bitwise.bitwise_and(tf.cast(steps, tf.int32), numbers.mask), tf.uint8)
    values = (steps - zero_point) * scale
    inside = x
    if numbers.clips:
        inside = tf.clip_by_value(x, *map(tf.stop_gradient, ends))
    nan = tf.constant(float("nan"), x.dtype)
    spoilt = tf.where(tf.reduce_any(tf.math.is_nan(found)), nan, tf.zeros([], x.dtype))
    return Encoded(codes, scale, whole, inside + tf.stop_gradient(values - inside), spoilt)


@tf.RegisterGradient("OpgraftQuantize")
def _straight_through(op, codes, values, spoilt):
    """1 where the operand has a code near it, 0 where it was clipped."""
    if values is None or not op.get_attr("clips"):
        return [values, None, None, None, None]
    x, _, _, least, most = op.inputs
    inside = (x >= least) & (x <= most)
    return [tf.where(inside, values, tf.zeros_like(values)), None, None, None, None]
