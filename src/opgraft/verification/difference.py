"""How far two arrays are apart, and where: what every way to show a deviation reads."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

# Errors below this share of the largest are taken for rounding, and not counted.
NOISE = 1e-3
IMAGES = ("image", "row", "column", "channel")


def axes_of(dimensions: int) -> tuple[str, ...]:
    """Names of the axes where nobody gave any: those of images, or of matrices."""
    if dimensions == len(IMAGES):
        return IMAGES
    batch = tuple(f"batch axis {number}" for number in range(1, dimensions - 1))
    return (*batch, "row", "column")[-dimensions:] if dimensions else ()


class Difference:
    """The errors `actual - expected` of two arrays of one shape.

    Two elements that are both NaN agree, and so do equal infinities. Any other
    NaN or infinity is an error larger than every number.

    Args:
        expected, actual: arrays of numbers, of any shape with at least one element.
        axes: a name for each axis; see `axes_of`.
    """

    def __init__(self, expected: np.ndarray, actual: np.ndarray, axes: tuple[str, ...] = ()):
        self.axes = axes if len(axes) == expected.ndim else axes_of(expected.ndim)
        self.expected = expected.astype(np.float64)
        self.actual = actual.astype(np.float64)

    @functools.cached_property
    def errors(self) -> np.ndarray:
        """Signed, float64; NaN or infinite where one of the two is."""
        same = (self.expected == self.actual) | (np.isnan(self.expected) & np.isnan(self.actual))
        with np.errstate(invalid="ignore", over="ignore"):
            return np.where(same, 0.0, self.actual - self.expected)

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """Magnitudes of the errors, infinite where an error is no number."""
        return np.nan_to_num(np.abs(self.errors), nan=np.inf, posinf=np.inf)

    @functools.cached_property
    def finite(self) -> np.ndarray:
        """The errors that are numbers, in one row."""
        return self.errors[np.isfinite(self.errors)]

    @functools.cached_property
    def largest(self) -> float:
        """The largest magnitude among the errors that are numbers."""
        return float(np.abs(self.finite).max(initial=0.0))

    @functools.cached_property
    def deviating(self) -> np.ndarray:
        """Which elements are off by more than `NOISE` of the largest error."""
        return self.sizes > NOISE * self.largest

    @property
    def not_numbers(self) -> int:
        """How many errors are NaN or infinite."""
        return self.errors.size - self.finite.size

    @property
    def ignored(self) -> int:
        """How many elements differ too little to be counted."""
        return int(np.count_nonzero((self.sizes > 0) & ~self.deviating))

    @functools.cached_property
    def worst(self) -> tuple[int, ...]:
        """Index of the first element with the largest error."""
        return tuple(map(int, np.unravel_index(np.argmax(self.sizes), self.sizes.shape)))

    @property
    def plane(self) -> tuple[int, ...]:
        """The axes to draw: rows and columns; one or none where there are not two."""
        named = [i for i, name in enumerate(self.axes) if name.endswith(("row", "column"))]
        return tuple(named[-2:] if len(named) >= 2 else range(len(self.axes))[-2:])

    def map(self) -> np.ndarray:
        """Rows x columns: the largest magnitude of the errors over all other axes."""
        others = tuple(i for i in range(len(self.axes)) if i not in self.plane)
        return np.atleast_2d(self.sizes.max(axis=others))

    def at_worst(self, array: np.ndarray) -> np.ndarray:
        """Rows x columns of `array`, at the worst element's place on all other axes."""
        index = tuple(slice(None) if i in self.plane else at for i, at in enumerate(self.worst))
        return np.atleast_2d(array[index])

    def places(self) -> list[tuple[str, list[int], int]]:
        """For each axis its name, the indices at which something deviates, and its size."""
        found = []
        for axis, name in enumerate(self.axes):
            others = tuple(i for i in range(len(self.axes)) if i != axis)
            hit = np.flatnonzero(self.deviating.any(axis=others))
            found.append((name, hit.tolist(), self.deviating.shape[axis]))
        return found

    def summary(self) -> dict[str, Any]:
        """Its figures, by name."""
        return {
            "shape": list(self.errors.shape),
            "deviating": int(np.count_nonzero(self.deviating)),
            "elements": self.errors.size,
            "not_numbers": self.not_numbers,
            "largest": float(self.sizes[self.worst]),
            "at": list(self.worst),
            "expected": float(self.expected[self.worst]),
            "actual": float(self.actual[self.worst]),
        }


def number(value: float) -> str:
    """A number for people: whole where it is whole, else of seven digits."""
    if math.isnan(value):
        return "NaN"
    whole = abs(value) < 1e15 and value == int(value)
    return f"{int(value)}" if whole else f"{value:.7g}"


def short(value: float) -> str:
    """A number of three digits."""
    return number(float(f"{value:.3g}"))


def ranges(indices: Iterable[int]) -> str:
    """Ascending indices, runs joined: "0-3, 7"."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(f"{low}-{high}" if high > low else f"{low}" for low, high in runs)
