"""The gradient of a smooth function of a user's, by directional derivatives in float64.

For a random direction d and random weights u, <u, f(x + h d)> is a function of the one
number h. Its derivative at 0 by a central difference of fourth order must be <vjp(u), d>.
A function that does not change at all for small h is a step function: no difference says
anything about its gradient, and it is compared with a declared surrogate or not at all.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Arrays = list[np.ndarray]

STEP = 1e-3  # of the size of an input
TOLERANCE = 1e-6  # of the derivative's size; rounding in float64 is far below


@dataclasses.dataclass(frozen=True)
class Derivative:
    """A directional derivative, and how far its value at half the step is from it."""

    value: float
    doubt: float
    size: float  # of the terms that were summed


def directional(
    function: Callable[[Arrays], Arrays], inputs: Arrays, direction: Sequence[Any], weights: Arrays
) -> Derivative:
    """The derivative of <weights, function(inputs + h direction)> at h = 0.

    Args:
        function: of arrays, all in float64.
        direction: one array per input, or None for one that stays as it is.
        weights: one array per output.
    """

    def along(h: float) -> float:
        moved = [x if d is None else x + h * d for x, d in zip(inputs, direction, strict=True)]
        return sum(float(np.vdot(w, y)) for w, y in zip(weights, function(moved), strict=True))

    def slope(h: float) -> float:
        return (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)

    coarse, fine = slope(STEP), slope(STEP / 2)
    return Derivative(fine, abs(coarse - fine), abs(coarse) + abs(fine))


def is_step(function: Callable[[Arrays], Arrays], inputs: Arrays, direction: Sequence[Any]) -> bool:
    """Whether the function stays exactly as it is for small steps in a direction."""
    before = function(inputs)
    for h in (STEP, -STEP, STEP / 16):
        moved = [x if d is None else x + h * d for x, d in zip(inputs, direction, strict=True)]
        if any(not np.array_equal(a, b) for a, b in zip(before, function(moved), strict=True)):
            return False
    return True


def agrees(claimed: float, derivative: Derivative) -> bool:
    """Whether <vjp, direction> is the derivative, to what the difference can tell."""
    allowed = TOLERANCE * max(derivative.size, abs(claimed), 1e-12) + 4 * derivative.doubt
    return abs(claimed - derivative.value) <= allowed


def is_smooth(derivative: Derivative) -> bool:
    """Whether the two step sizes agree, so that the difference says something."""
    return derivative.doubt <= 1e-4 * max(derivative.size, 1e-9)
