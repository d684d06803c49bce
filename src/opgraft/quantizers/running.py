"""Ranges that are running averages, in what `keras.ops` offers on every framework."""

from collections.abc import Sequence
from typing import Any

SMALLEST, GREATEST = 1e-30, 1e30  # sizes of a range, so that float32 has its scale


def is_range(size: Any) -> Any:
    """Whether a range of this size, a number or a tensor, can be used; 0 was never found."""
    return (size >= SMALLEST) & (size <= GREATEST)


def limit(momentum: float, states: Sequence[Any], x: Any) -> list[Any]:
    """The largest absolute value, after x."""
    from keras import ops

    found = ops.max(ops.abs(x), initial=0)
    return _after(momentum, states, [found], x, states[0], found)


def ends(momentum: float, states: Sequence[Any], x: Any) -> list[Any]:
    """The smallest and the largest value, or 0, after x."""
    from keras import ops

    found = [ops.min(x, initial=0), ops.max(x, initial=0)]
    return _after(momentum, states, found, x, states[1] - states[0], found[1] - found[0])


def _after(momentum: float, states: Sequence[Any], found: Sequence[Any], x: Any, size: Any,
           found_size: Any) -> list[Any]:  # fmt: skip
    """The averages, of these sizes before and in x.

    An x without a range changes nothing: one of no elements, or with a NaN or an infinity.
    """
    from keras import ops

    usable = (ops.size(x) > 0) & ops.all(ops.isfinite(x)) & (found_size <= GREATEST)
    first = ~is_range(size)
    after = []
    for state, new in zip(states, found, strict=True):
        new = ops.cast(new, state.dtype)
        average = ops.where(first, new, momentum * state + (1 - momentum) * new)
        after.append(ops.where(usable, average, state))
    return after
