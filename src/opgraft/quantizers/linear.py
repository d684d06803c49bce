"""Linear quantization to whole numbers of a few bits: symmetric, and with a zero point."""

import dataclasses
import math
import numbers
from typing import Any, ClassVar

import numpy as np

from opgraft.errors import ArgumentError
from opgraft.quantizers._base import Codes, Quantizer


class Linear(Quantizer):
    """Whole numbers q of `bits` bits, of which each stands for scale (q - zero point).

    Attributes:
        bits: 2 to 8.
        signed: whether codes are two's complement numbers.
        per_channel: whether each output channel has a scale of its own.
    """

    bits: int
    signed: ClassVar[bool]
    per_channel: bool

    def dynamic(self) -> "Linear":
        raise NotImplementedError

    def calibrated(self, low: float, high: float) -> "Linear":
        """For values from low to high."""
        raise NotImplementedError

    def encode(self, x: np.ndarray, axes: tuple[int, ...] | None = None) -> Codes:
        """The meaning, in NumPy; `axes` are those that share a scale, None for all."""
        raise NotImplementedError

    def passes(self, x: np.ndarray) -> np.ndarray:
        """Where the pseudo-gradient is 1: where nothing is clipped."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Symmetric(Linear):
    """q(x) = clip(round(x / s), -t, t) with t = 2^(bits - 1) - 1 and s = limit / t; zero is 0.

    Codes are two's complement numbers. Halves round to even. Gradient: that of the clip,
    1 where |x| <= limit and 0 elsewhere (a straight-through estimator with a range mask:
    Y. Bengio et al., "Estimating or propagating gradients through stochastic neurons", 2013;
    B. Jacob et al., "Quantization and training of neural networks", CVPR 2018).

    Args:
        bits: 2 to 8.
        limit: the largest absolute value; None: that of each tensor, found anew at each call,
            without a gradient of its own.
        per_channel: a limit of its own for each output channel; for kernels only.

    Raises:
        ArgumentError: an argument is no number that it can be.
    """

    type_name: ClassVar[str] = "symmetric"
    signed: ClassVar[bool] = True

    bits: int = 8
    limit: float | None = None
    per_channel: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", _bits(self.bits))
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

    def dynamic(self) -> "Symmetric":
        return dataclasses.replace(self, limit=None)

    def calibrated(self, low: float, high: float) -> "Symmetric":
        limit = max(abs(low), abs(high))
        limit = limit if limit >= _SMALLEST else 1.0  # nothing but zeros
        return dataclasses.replace(self, limit=limit, per_channel=False)

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
        return Codes(codes.astype(np.uint8), scale, 0, (numbers * scale).astype(x.dtype))


@dataclasses.dataclass(frozen=True)
class Affine(Linear):
    """q(x) = clip(round(x / s) + z, 0, t) with t = 2^bits - 1, s = (high - low) / t.

    z = round(-low / s). Codes are unsigned numbers; 0 has one of its own, the zero point z.
    Halves round to even. Gradient: 1 where x lies between the smallest and the largest value
    that has a code, else 0 (see `Symmetric`). Source: B. Jacob et al., CVPR 2018, which has the
    same scheme.

    Args:
        bits: 2 to 8.
        low, high: the range, which must hold 0; None: that of each tensor and 0, found anew at
            each call.

    Raises:
        ArgumentError: an argument is no number that it can be.
    """

    type_name: ClassVar[str] = "affine"
    signed: ClassVar[bool] = False
    per_channel: ClassVar[bool] = False  # type: ignore[misc]

    bits: int = 8
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", _bits(self.bits))
        low: Any = self.low
        high: Any = self.high
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

    def dynamic(self) -> "Affine":
        return dataclasses.replace(self, low=None, high=None)

    def calibrated(self, low: float, high: float) -> "Affine":
        low, high = min(low, 0.0), max(high, 0.0)
        high = high if high - low >= _SMALLEST else low + 1.0  # nothing but zeros
        return dataclasses.replace(self, low=low, high=high)

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
        return Codes(numbers.astype(np.uint8), np.asarray(scale), zero, values)


_SMALLEST, _GREATEST = 1e-30, 1e30  # of a range, so that float32 has its scale


def _bits(bits: Any) -> int:
    whole = isinstance(bits, numbers.Integral) and not isinstance(bits, bool)
    if not whole or not 2 <= int(bits) <= 8:
        raise ArgumentError(f"bits={bits!r}: a whole number from 2 to 8 is needed")
    return int(bits)


def _is_number(value: Any) -> bool:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and math.isfinite(value)


def _is_size(value: Any) -> bool:
    """Whether float32 has room for it, and for a 255th of it."""
    return _is_number(value) and _SMALLEST <= value <= _GREATEST
