"""How TensorFlow applies each quantizer. A new quantizer adds one function here."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from opgraft.backends.tensorflow.library import ops
from opgraft.quantizers import Affine, Levels, Quantizer, Symmetric
from opgraft.quantizers.running import is_range


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
def encode(
    quantizer: Quantizer, x: tf.Tensor, axes: list[int] | None, states: Sequence[tf.Tensor] = ()
) -> Encoded:
    """Codes of a tensor.

    Args:
        axes: those that share a scale, where each channel has its own.
        states: what the quantizer declares, of the tensor's dtype; (): its range is the tensor's.
    """
    raise NotImplementedError(f"TensorFlow has no way to apply {type(quantizer).__name__}")


@encode.register
def _(q: Symmetric, x, axes, states=()):
    def own():
        shared = axes if q.per_channel else None
        low, high = (f(x, shared, keepdims=q.per_channel) for f in (tf.reduce_min, tf.reduce_max))
        return (tf.maximum(tf.maximum(high, -low), 0),)  # of no elements it is -infinity

    given = () if q.limit is None else (tf.constant(q.limit, x.dtype),)
    (limit,), clips = _range(given, states, lambda limit: limit, own)
    numbers = _Numbers(-q.top, q.top, 2**q.bits - 1, clips is not False)
    ends = _ends(clips, -limit, limit)
    return _encoded(x, _scale(limit, q.top), tf.zeros([], x.dtype), numbers, ends)


@encode.register
def _(q: Affine, x, axes, states=()):
    def own():
        return tf.reduce_min(x), tf.reduce_max(x)

    zero = tf.zeros([], x.dtype)
    given = () if q.low is None else [tf.constant(end, x.dtype) for end in (q.low, q.high)]
    (low, high), clips = _range(given, states, lambda low, high: high - low, own)
    low, high = tf.minimum(low, zero), tf.maximum(high, zero)
    scale = _scale(high - low, q.top)
    zero_point = tf.round(-low / scale)
    zero_point = tf.where(tf.math.is_nan(zero_point), zero, zero_point)  # the scale says it
    numbers = _Numbers(0, q.top, 2**q.bits - 1, clips is not False)
    ends = _ends(clips, -zero_point * scale, (tf.cast(q.top, x.dtype) - zero_point) * scale)
    return _encoded(x, scale, zero_point, numbers, ends)


@encode.register
def _(q: Levels, x, axes, states=()):
    found = tf.stop_gradient(x)
    if q.scale is None:
        size = tf.maximum(tf.reduce_max(found), -tf.reduce_min(found))
        scale = _scale(tf.maximum(size, 0), q.largest)  # of no elements it is -infinity
    else:
        scale = tf.constant(q.scale, x.dtype)
    levels, codes, thresholds = q.steps
    flat = tf.reshape(found / scale, [1, -1])
    index = tf.searchsorted(tf.constant(thresholds[None], x.dtype), flat, side="right")
    index = tf.reshape(index, tf.shape(x))
    values = tf.gather(tf.constant(levels, x.dtype), index) * scale
    inside = x
    if q.scale is not None:
        low, high = (tf.constant(end * q.scale, x.dtype) for end in levels[[0, -1]])
        inside = tf.clip_by_value(x, low, high)
    zero = tf.constant(q.zero, tf.int32)
    used = inside + tf.stop_gradient(values - inside)
    return Encoded(tf.gather(codes, index), scale, zero, used, _spoilt(found))


def _range(given, states, size: Callable, own: Callable) -> tuple[Sequence[tf.Tensor], Any]:
    """The range that is given, else the states', else the tensor's own; and whether it clips.

    Args:
        size: of a range; that of states which were never found is 0.
    """
    if given or not states:
        return given or own(), bool(given)
    found = is_range(size(*states))
    return tf.cond(found, lambda: tuple(states), own), found


def _ends(clips: Any, least, most) -> tuple[tf.Tensor, tf.Tensor]:
    """The values beyond which an operand is clipped; infinite where it is not."""
    if clips is True:
        return least, most
    infinity = tf.constant(float("inf"), most.dtype)
    if clips is False:
        return -infinity, infinity
    return tf.where(clips, least, -infinity), tf.where(clips, most, infinity)


def _scale(size, top: float) -> tf.Tensor:
    """1 where everything is 0; NaN stays.

    A product: graphs would make one of a division by a constant, and round otherwise.
    """
    scale = size * tf.constant(1 / top, size.dtype)
    return tf.stop_gradient(tf.where(tf.equal(scale, 0), tf.ones_like(scale), scale))


def _encoded(x, scale, zero_point, numbers: _Numbers, ends) -> Encoded:
    """`ends` are the values beyond which an operand is clipped, where it can be."""
    zero_point = tf.stop_gradient(zero_point)
    whole = tf.cast(zero_point, tf.int32)
    if x.dtype == tf.float32 and scale.shape.rank == 0 and numbers.mask < 256:
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
    codes = tf.bitwise.bitwise_and(tf.cast(steps, tf.int32), numbers.mask)
    codes = tf.cast(codes, tf.uint8 if numbers.mask < 256 else tf.uint16)
    values = (steps - zero_point) * scale
    inside = x
    if numbers.clips:
        inside = tf.clip_by_value(x, *map(tf.stop_gradient, ends))
    used = inside + tf.stop_gradient(values - inside)
    return Encoded(codes, scale, whole, used, _spoilt(found))


def _spoilt(x) -> tf.Tensor:
    nan = tf.constant(float("nan"), x.dtype)
    return tf.where(tf.reduce_any(tf.math.is_nan(x)), nan, tf.zeros([], x.dtype))


@tf.RegisterGradient("OpgraftQuantize")
def _straight_through(op, codes, values, spoilt):
    """1 where the operand has a code near it, 0 where it was clipped."""
    if values is None or not op.get_attr("clips"):
        return [values, None, None, None, None]
    x, _, _, least, most = op.inputs
    inside = (x >= least) & (x <= most)
    return [tf.where(inside, values, tf.zeros_like(values)), None, None, None, None]
