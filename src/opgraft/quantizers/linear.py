"""Linear quantization to whole numbers of a few bits: symmetric, and with a zero point."""

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from opgraft.errors import ArgumentError
from opgraft.quantizers import running
from opgraft.quantizers._base import Codes, Scaled, State, codes_dtype
from opgraft.quantizers.running import GREATEST, SMALLEST, is_range


class Linear(Scaled):
    """Whole numbers q of 2 to 16 bits, of which each stands for scale (q - zero point).

    Attributes:
        signed: whether codes are two's complement numbers.
    """

    signed: ClassVar[bool]

    @property
    def numbers(self) -> np.ndarray:
        """The whole number that each code stands for."""
        codes = np.arange(2**self.bits, dtype=np.int64)
        return np.where(self.signed & (codes >= 2 ** (self.bits - 1)), codes - 2**self.bits, codes)


@dataclasses.dataclass(frozen=True)
class Symmetric(Linear):
    """q(x) = clip(round(x / s), -t, t) with t = 2^(bits - 1) - 1 and s = limit / t; zero is 0.

    Codes are two's complement numbers. Halves round to even. Gradient: that of the clip,
    1 where |x| <= limit and 0 elsewhere (a straight-through estimator with a range mask:
    Y. Bengio et al., "Estimating or propagating gradients through stochastic neurons", 2013;
    B. Jacob et al., "Quantization and training of neural networks", CVPR 2018).

    Args:
        bits: 2 to 16; a table has room for 8.
        limit: the largest absolute value; None: that of each tensor, found anew at each call,
            without a gradient of its own.
        per_channel: a limit of its own for each output channel; for kernels only.
        momentum: m, from 0 to below 1: the limit is a running average. In training it becomes
            m * limit + (1 - m) * (that of this tensor), and the first tensor sets it.

    Raises:
        ArgumentError: an argument is no number that it can be.
    """

    type_name: ClassVar[str] = "symmetric"
    signed: ClassVar[bool] = True

    bits: int = 8
    limit: float | None = None
    per_channel: bool = False
    momentum: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", _bits(self.bits))
        if self.momentum is not None:
            object.__setattr__(self, "momentum", _momentum(self.momentum))
            if self.per_channel or self.limit is not None:
                other = "per_channel=True" if self.per_channel else "limit=..."
                raise ArgumentError(f"Symmetric({other}, momentum=...): give one of the two")
        if self.limit is None:
            return
        if self.per_channel:
            raise ArgumentError("Symmetric(limit=..., per_channel=True): give one of the two")
        if not _is_size(self.limit):
            raise ArgumentError(
                f"Symmetric(limit={self.limit!r}): it must be a number above 0, from 1e-30 to 1e30"
            )
        object.__setattr__(self, "limit", float(self.limit))

    @property
    def top(self) -> int:
        return int(2 ** (self.bits - 1)) - 1

    @property
    def states(self) -> tuple[State, ...]:
        return () if self.momentum is None else (State("limit"),)

    def next_states(self, states: Sequence[Any], x: Any) -> Sequence[Any]:
        return () if self.momentum is None else running.limit(self.momentum, states, x)

    def with_states(self, states: Sequence[Any]) -> "Symmetric":
        limit = float(states[0]) if states else 0.0
        return self.calibrated(-limit, limit) if is_range(limit) else self.dynamic()

    def dynamic(self) -> "Symmetric":
        return dataclasses.replace(self, limit=None, momentum=None)

    def calibrated(self, low: float, high: float) -> "Symmetric":
        limit = max(abs(low), abs(high))
        limit = limit if limit >= SMALLEST else 1.0  # nothing but zeros
        return dataclasses.replace(self, limit=limit, per_channel=False, momentum=None)

    def passes(self, x: np.ndarray) -> np.ndarray:
        return np.ones(x.shape, bool) if self.limit is None else abs(x) <= x.dtype.type(self.limit)

    def encode(self, x: np.ndarray, axes: tuple[int, ...] | None = None) -> Codes:
        x = np.asarray(x)
        limit: Any = self.limit
        if limit is None:
            limit = np.max(
                abs(x), axis=axes if self.per_channel else None, keepdims=True, initial=0
            )
        scale = np.asarray(limit, x.dtype) * x.dtype.type(1 / self.top)
        scale = np.where(scale > 0, scale, x.dtype.type(1))
        numbers = np.clip(np.rint(x / scale), -self.top, self.top)
        codes = numbers.astype(np.int64) & (2**self.bits - 1)
        values = (numbers * scale).astype(x.dtype)
        return Codes(codes.astype(codes_dtype(self.bits)), scale, 0, values)


@dataclasses.dataclass(frozen=True)
class Affine(Linear):
    """q(x) = clip(round(x / s) + z, 0, t) with t = 2^bits - 1, s = (high - low) / t.

    z = round(-low / s). Codes are unsigned numbers; 0 has one of its own, the zero point z.
    Halves round to even. Gradient: 1 where x lies between the smallest and the largest value
    that has a code, else 0 (see `Symmetric`). Source: B. Jacob et al., CVPR 2018, which has the
    same scheme.

    Args:
        bits: 2 to 16; a table has room for 8.
        low, high: the range, which must hold 0; None: that of each tensor and 0, found anew at
            each call.
        momentum: both ends are running averages (see `Symmetric`).

    Raises:
        ArgumentError: an argument is no number that it can be.
    """

    type_name: ClassVar[str] = "affine"
    signed: ClassVar[bool] = False
    per_channel: ClassVar[bool] = False  # type: ignore[misc]

    bits: int = 8
    low: float | None = None
    high: float | None = None
    momentum: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", _bits(self.bits))
        low: Any = self.low
        high: Any = self.high
        if self.momentum is not None:
            object.__setattr__(self, "momentum", _momentum(self.momentum))
            if low is not None or high is not None:
                raise ArgumentError("Affine(low=..., momentum=...): give a range or a momentum")
        if low is None and high is None:
            return
        known = _is_number(low) and _is_number(high)
        if not (known and low <= 0 <= high and _is_size(high - low)):
            raise ArgumentError(
                f"Affine(low={low!r}, high={high!r}): give both, low below high and 0 between "
                "them, 1e-30 to 1e30 apart, or neither"
            )
        object.__setattr__(self, "low", float(low))
        object.__setattr__(self, "high", float(high))

    @property
    def top(self) -> int:
        return int(2**self.bits) - 1

    @property
    def states(self) -> tuple[State, ...]:
        return () if self.momentum is None else (State("low"), State("high"))

    def next_states(self, states: Sequence[Any], x: Any) -> Sequence[Any]:
        return () if self.momentum is None else running.ends(self.momentum, states, x)

    def with_states(self, states: Sequence[Any]) -> "Affine":
        low, high = map(float, states or (0, 0))
        return self.calibrated(low, high) if is_range(high - low) else self.dynamic()

    def dynamic(self) -> "Affine":
        return dataclasses.replace(self, low=None, high=None, momentum=None)

    def calibrated(self, low: float, high: float) -> "Affine":
        low, high = min(low, 0.0), max(high, 0.0)
        high = high if high - low >= SMALLEST else low + 1.0  # nothing but zeros
        return dataclasses.replace(self, low=low, high=high, momentum=None)

    def passes(self, x: np.ndarray) -> np.ndarray:
        if self.low is None:
            return np.ones(x.shape, bool)
        found = self.encode(x)
        least, most = (x.dtype.type(q - found.zero_point) * found.scale for q in (0, self.top))
        return (least <= x) & (x <= most)

    def encode(self, x: np.ndarray, axes: tuple[int, ...] | None = None) -> Codes:
        x = np.asarray(x)
        low: Any = self.low
        high: Any = self.high
        if low is None:
            low, high = np.min(x, initial=0), np.max(x, initial=0)
        kind = x.dtype.type
        scale = (kind(high) - kind(low)) * kind(1 / self.top)
        scale = scale if scale > 0 else kind(1)
        zero = int(np.rint(-kind(low) / scale))
        numbers = np.clip(np.rint(x / scale) + zero, 0, self.top)
        values = ((numbers - zero) * scale).astype(x.dtype)
        return Codes(numbers.astype(codes_dtype(self.bits)), np.asarray(scale), zero, values)


def _bits(bits: Any) -> int:
    whole = isinstance(bits, numbers.Integral) and not isinstance(bits, bool)
    if not whole or not 2 <= int(bits) <= 16:
        raise ArgumentError(f"bits={bits!r}: a whole number from 2 to 16 is needed")
    return int(bits)


def _momentum(momentum: Any) -> float:
    if not (_is_number(momentum) and 0 <= momentum < 1):
        raise ArgumentError(
            f"momentum={momentum!r}: it must be a number from 0 to below 1, such as 0.99"
        )
    return float(momentum)


def _is_number(value: Any) -> bool:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and math.isfinite(value)


def _is_size(value: Any) -> bool:
    """Whether float32 has room for it, and for a 255th of it."""
    return _is_number(value) and SMALLEST <= value <= GREATEST
