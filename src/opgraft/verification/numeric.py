"""The gradient of a smooth function of a user's, by directional derivatives.

For a direction d and random weights u, <u, f(x + h d)> is a function of the one
number h. Its derivative at 0 by a central difference of fourth order must be
<vjp(u), d>. A function that does not change at all for small h is a step function:
no difference says anything about its gradient, and it is compared with a declared
surrogate or not at all.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Arrays = list[np.ndarray]
Function = Callable[[Arrays], Arrays]


@dataclasses.dataclass(frozen=True)
class Precision:
    """How finely a function computes, and so how finely it can be judged.

    Attributes:
        dtype: of the floating inputs.
        steps: sizes of h, of which the one with the least doubt counts.
        tolerance: of the derivative's size.
        said: the tolerance in words.
        vjp_dtype: in which the gradient is computed; inputs are numbers of that type, too.
    """

    dtype: type
    steps: tuple[float, ...]
    tolerance: float
    said: str
    vjp_dtype: type = np.float64


DOUBLE = Precision(np.float64, (1e-3, 1e-5), 1e-6, "one part in a million")
SINGLE = Precision(
    np.float32, (2e-2,), 5e-3, "one part in two hundred, as it computes in float32", np.float32
)
MIXED = dataclasses.replace(
    DOUBLE, tolerance=1e-5, said="one part in a hundred thousand, as the vjp computes in float32",
    vjp_dtype=np.float32,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Derivative:
    """A directional derivative, and how far its value at half the step is from it."""

    value: float
    doubt: float
    size: float

    @property
    def is_smooth(self) -> bool:
        """Whether the two step sizes agree, so that the difference says something."""
        return self.doubt <= 1e-2 * max(self.size, 1e-9)

    def agrees(self, claimed: float, precision: Precision) -> bool:
        """Whether <vjp, direction> is the derivative, to what the difference can tell."""
        size = max(self.size, abs(claimed), 1e-12)
        return abs(claimed - self.value) <= precision.tolerance * size + 4 * self.doubt


def moved(inputs: Arrays, direction: Sequence[Any], h: float) -> Arrays:
    """inputs + h direction, in the inputs' types; None in a direction moves nothing."""
    return [x if d is None else (x + h * d).astype(x.dtype)
            for x, d in zip(inputs, direction, strict=True)]  # fmt: skip


def directional(
    function: Function, inputs: Arrays, direction: Sequence[Any], weights: Arrays,
    precision: Precision,
) -> Derivative:  # fmt: skip
    """The derivative of <weights, function(inputs + h direction)> at h = 0.

    Args:
        function: of arrays.
        direction: one array per input, or None for one that stays as it is.
        weights: one array per output.
    """

    def along(h: float) -> float:
        outputs = function(moved(inputs, direction, h))
        return sum(float(np.vdot(w.astype(np.float64), y.astype(np.float64)))
                   for w, y in zip(weights, outputs, strict=True))  # fmt: skip

    def slope(h: float) -> float:
        return (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)

    found = []
    for step in precision.steps:
        coarse, fine = slope(step), slope(step / 2)
        found.append(Derivative(fine, abs(coarse - fine), (abs(coarse) + abs(fine)) / 2))
    return min(found, key=lambda derivative: derivative.doubt)


def is_step(
    function: Function, inputs: Arrays, direction: Sequence[Any], precision: Precision
) -> bool:
    """Whether the function stays exactly as it is for small steps in a direction."""
    h = precision.steps[0]
    return all(_same(function, inputs, direction, step) for step in (h, -h, h / 4))


def computes_in_double(function: Function, inputs: Arrays, direction: Sequence[Any]) -> bool:
    """Whether a change that float32 does not know changes the outputs."""
    return not _same(function, inputs, direction, 1e-11)


def moves(function: Function, inputs: Arrays, direction: Sequence[Any]) -> bool:
    """Whether a thousandth of a direction changes an output by more than a millionth."""
    before, after = function(inputs), function(moved(inputs, direction, 1e-3))
    return any(np.max(abs(a - b), initial=0) > 1e-6 * np.max(abs(a), initial=0)
               for a, b in zip(before, after, strict=True))  # fmt: skip


def _same(function: Function, inputs: Arrays, direction: Sequence[Any], h: float) -> bool:
    before, after = function(inputs), function(moved(inputs, direction, h))
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))
