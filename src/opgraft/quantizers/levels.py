"""Quantization to the numbers of a list: minifloats, posits, and any others."""

import dataclasses
import functools
import numbers
from typing import Any, ClassVar, NamedTuple

import numpy as np

from opgraft.errors import ArgumentError
from opgraft.quantizers._base import Codes, Scaled


class Steps(NamedTuple):
    """A list as a staircase.

    Attributes:
        levels: its finite numbers, ascending, each once.
        codes: of them, uint8.
        thresholds: between each and the next: numbers from there on become the next.
    """

    levels: np.ndarray
    codes: np.ndarray
    thresholds: np.ndarray


@dataclasses.dataclass(frozen=True)
class Levels(Scaled):
    """q(x) is the code of the number nearest to x / s in a list, and stands for s times it.

    Where two are as near, it is the one whose code is even, as IEEE 754 rounds, or the lower one
    if both are or none is. Beyond the smallest or the largest number it is that number. Gradient:
    1 where x lies between these two, else 0; 1 everywhere if the scale is found anew (see
    `Symmetric`).

    Args:
        levels: 2^bits numbers, bits from 2 to 8, by code; None (or NaN, or an infinity) for a
            code that stands for no number. Of codes of one number the first is used.
        scale: s; None: so that the largest absolute value of each tensor becomes the largest
            one of the list, found anew at each call, without a gradient of its own.

    Raises:
        ArgumentError: there are no 2^bits numbers, or fewer than two of them; or the scale is
            no number above 0.
    """

    type_name: ClassVar[str] = "levels"
    per_channel: ClassVar[bool] = False  # type: ignore[misc]

    levels: tuple[float | None, ...]
    scale: float | None = None

    @classmethod
    def of(cls, kind: Any, scale: float | None = None) -> "Levels":
        """From an array of numbers, or from all values of an 8-bit dtype, such as those of
        ml_dtypes."""
        if isinstance(kind, np.dtype | type):
            kind = np.arange(256, dtype=np.uint8).view(kind)
        return cls(tuple(np.asarray(kind, np.float64).tolist()), scale)

    def __post_init__(self) -> None:
        if len(self.levels) not in [2**bits for bits in range(2, 9)]:
            raise ArgumentError(
                f"Levels of {len(self.levels)} numbers: one for each code is needed, 4 to 256"
            )
        # Values are compared, and NaN is no equal of itself.
        kept = [None if x is None or not np.isfinite(x) else float(x) for x in self.levels]
        object.__setattr__(self, "levels", tuple(kept))
        if len({x for x in kept if x is not None}) < 2:
            raise ArgumentError("Levels: at least two finite numbers that differ are needed")
        scale = self.scale
        if scale is None:
            return
        if not isinstance(scale, numbers.Real) or not 1e-30 <= scale <= 1e30:
            raise ArgumentError(f"Levels(scale={scale!r}): it must be a number from 1e-30 to 1e30")
        object.__setattr__(self, "scale", float(scale))

    @property
    def bits(self) -> int:  # type: ignore[override]
        return len(self.levels).bit_length() - 1

    @property
    def numbers(self) -> np.ndarray:
        """What each code stands for; NaN for nothing."""
        return np.array([np.nan if x is None else x for x in self.levels])

    @functools.cached_property
    def steps(self) -> Steps:
        finite = np.flatnonzero(np.isfinite(self.numbers))
        levels, first = np.unique(self.numbers[finite], return_index=True)
        codes = finite[first].astype(np.uint8)
        middle = ((levels[1:] + levels[:-1]) / 2).astype(np.float32)
        upwards = (codes[1:] % 2 == 0) & (codes[:-1] % 2 == 1)
        above = np.nextafter(middle, np.float32(np.inf))
        return Steps(levels, codes, np.where(upwards, middle, above))

    @property
    def largest(self) -> float:
        return float(abs(self.steps.levels).max())

    @property
    def zero(self) -> int:
        """The code of 0, or of what is nearest to it."""
        return int(self.steps.codes[self._index(np.zeros(()))])

    def _index(self, x: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.steps.thresholds, x, side="right")

    def dynamic(self) -> "Levels":
        return dataclasses.replace(self, scale=None)

    def calibrated(self, low: float, high: float) -> "Levels":
        scale = max(abs(low), abs(high)) / self.largest
        return dataclasses.replace(self, scale=scale if scale >= 1e-30 else 1.0)

    def passes(self, x: np.ndarray) -> np.ndarray:
        if self.scale is None:
            return np.ones(x.shape, bool)
        low, high = (x.dtype.type(end * self.scale) for end in self.steps.levels[[0, -1]])
        return (low <= x) & (x <= high)

    def encode(self, x: np.ndarray, axes: tuple[int, ...] | None = None) -> Codes:
        x = np.asarray(x)
        kind = x.dtype.type
        scale = kind(self.scale or np.max(abs(x), initial=0) * kind(1 / self.largest))
        scale = scale if scale > 0 else kind(1)
        index = self._index(x / scale)
        values = (self.steps.levels.astype(x.dtype)[index] * scale).astype(x.dtype)
        return Codes(self.steps.codes[index], np.asarray(scale), self.zero, values)
