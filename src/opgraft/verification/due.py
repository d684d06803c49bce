"""What is due for a case, and how far from it a correct kernel may be, all vectorised.

Equal to the loop nests of `opgraft.reference`: the same products are summed, in
float64, which holds sums of small integers exactly and is far finer than the
rounding that is allowed to the thing under test.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opgraft import reference
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul
from opgraft.verification.cases import Case

Multiply = Callable[[Any, Any], Any]  # of two numbers, or elementwise of two arrays
Product = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of two matrices

_BLOCK = 1 << 20  # terms that are held at once
# The largest cases of which it takes seconds to compute what is due:
_MOST_PRODUCTS = 1 << 22  # by a function of two numbers
_MOST_OPERANDS = 1 << 24  # numbers in the matrix that a convolution's windows become


def compute(c: Contraction, left: np.ndarray, right: np.ndarray, product: Product) -> np.ndarray:
    """The contraction through a product of two matrices; zeros where there is nothing to sum."""
    shape: Any = c.output_shape(left.shape, right.shape)
    if 0 in shape:
        return np.zeros(shape)
    return reference.by_matmul(c, left, right, product)


@dataclasses.dataclass(frozen=True)
class Meaning:
    """Contractions whose product of two numbers is `multiply`; None is the exact product."""

    multiply: Multiply | None = None

    @property
    def product(self) -> Product:
        """Of two matrices, in float64."""
        return np.matmul if self.multiply is None else self._over_terms(lambda t: t.sum(1))

    def due(self, case: Case, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """What the loop nest gives for these operands, in float64."""
        return compute(case.contraction, *self.operands(left, right), self.product)

    def magnitude(self, case: Case, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """The sum of the absolute terms behind each element of the output."""
        of_claimed = self._over_terms(lambda t: abs(t).sum(1))
        product = of_claimed if self.multiply else lambda a, b: abs(a) @ abs(b)
        return compute(case.contraction, *self.operands(left, right), product)

    def has_whole_terms(self, case: Case, left: np.ndarray, right: np.ndarray) -> bool:
        """Whether each term of each sum of integer operands is an integer."""
        if self.multiply is None:
            return True
        fractions = self._over_terms(lambda t: (t != np.rint(t)).any(1))
        return not compute(case.contraction, *self.operands(left, right), fractions).any()

    def can_afford(self, case: Case) -> bool:
        """Whether it takes seconds at most, and no memory to speak of."""
        if self.multiply:
            return work(case) <= _MOST_PRODUCTS
        return math.prod(case.output[:-1]) * terms(case) <= _MOST_OPERANDS

    def operands(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """In the type in which they are multiplied: C widens integers, and so is done here."""
        if self.multiply is None:
            return left.astype(np.float64), right.astype(np.float64)
        if left.dtype.kind in "iu":
            return left.astype(np.int64), right.astype(np.int64)
        return left, right

    def _over_terms(self, reduce: Callable[[np.ndarray], np.ndarray]) -> Product:
        """`reduce` of the terms [m, k, n], some rows at a time."""

        def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            assert self.multiply is not None
            rows = max(1, _BLOCK // max(1, b.size))
            blocks = [
                reduce(np.asarray(self.multiply(a[i : i + rows, :, None], b[None]), np.float64))
                for i in range(0, len(a), rows)
            ]
            return np.concatenate(blocks)

        return product


def elementwise(multiply: Multiply, dtype: np.dtype) -> Multiply:
    """`multiply` on broadcast arrays of a type: itself if it can take them, else in a loop.

    That it takes arrays is believed only if it gives the same for them as one by one.
    """

    def loop(a, b):
        a, b = np.broadcast_arrays(a, b)
        values = [multiply(p, q) for p, q in zip(a.ravel(), b.ravel(), strict=True)]
        return np.array(values, np.float64).reshape(a.shape)

    sample = np.array([0, 1, 2, 3] if dtype.kind == "u" else [-2.5, -1, 0, 0.75, 3]).astype(dtype)
    try:
        together = np.asarray(multiply(sample[:, None], sample[None]), np.float64)
    except Exception:  # whatever a function of two numbers does with arrays, it does not take them
        return loop
    alone = loop(sample[:, None], sample[None])
    return multiply if np.array_equal(together, alone, equal_nan=True) else loop


# ---- sizes -----------------------------------------------------------------------------


def terms(case: Case) -> int:
    """How many products are summed for one element of the output."""
    if isinstance(case.contraction, MatMul):
        return case.left[-2] if case.contraction.transpose_a else case.left[-1]
    depthwise = isinstance(case.contraction, DepthwiseConv2D)
    return math.prod(case.right[: 2 if depthwise else 3])


def work(case: Case) -> int:
    """The number of multiply-accumulates."""
    return math.prod(case.output) * terms(case)


def relative(error: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    """An error in units of the terms' magnitude; infinite where there is no term and an error."""
    with np.errstate(over="ignore"):
        return error / np.maximum(magnitude, np.finfo(np.float64).tiny)


# ---- rounding --------------------------------------------------------------------------


def rounding(case: Case, magnitude: np.ndarray, dtype: np.dtype, extra: int = 0) -> np.ndarray:
    """The largest error of a sum of rounded products, in any order, blocked, fused or not.

    With k terms, each of which is rounded at most once for its product (and
    `extra` times more) and k - 1 times in the sums, it is at most about k u times the
    sum of the absolute terms, u = eps / 2 being half a unit in the last place.
    (k + 1) eps is given, which also covers that what is due was itself computed in float64.
    Integers are not rounded.
    """
    if dtype.kind != "f":
        return np.zeros_like(magnitude)
    info = np.finfo(dtype)
    allowed = (terms(case) + 1 + extra) * (float(info.eps) * magnitude + float(info.tiny))
    return np.where(magnitude == 0, 0.0, allowed)


def largest_whole(dtype: np.dtype) -> int:
    """Up to here every integer is held exactly."""
    if dtype.kind == "f":
        return int(2 / np.finfo(dtype).eps)
    return min(int(np.iinfo(dtype).max), 2**53)


# ---- operands --------------------------------------------------------------------------

Operands = tuple[np.ndarray, np.ndarray]


def small_integers(case: Case, dtype: np.dtype, salt: str = "") -> Operands:
    """Integers of at most 3, fewer where the type could not hold a sum of their products."""
    top = _top(case, largest_whole(dtype), 3)
    left, right = (np.clip(o, -top, top) for o in case.integers(salt))
    if dtype.kind == "u":
        left, right = abs(left), abs(right)
    return left.astype(dtype), right.astype(dtype)


def random_numbers(case: Case, dtype: np.dtype, result: np.dtype) -> Operands:
    """Normal numbers; for integer types, integers as large as the sums in `result` allow."""
    left, right = case.normals()
    if dtype.kind == "f":
        fine = case.integers("below float32")  # rounding operands to float32 shows in float64
        left, right = (v + 2.0**-28 * f for v, f in zip((left, right), fine, strict=True))
        return left.astype(dtype), right.astype(dtype)
    # In C, products and sums of small integers are of type int, whatever holds the result.
    room = min(largest_whole(result), 2**31 - 1)
    top = _top(case, room, int(np.iinfo(dtype).max))
    spread = top / 4
    left, right = (np.clip(np.rint(v * spread), -top, top) for v in (left, right))
    if dtype.kind == "u":
        left, right = abs(left), abs(right)
    return left.astype(dtype), right.astype(dtype)


def _top(case: Case, room: int, top: int) -> int:
    """The largest absolute value, up to `top`, of which sums of products stay below `room`."""
    count = max(terms(case), 1)
    padded = abs(getattr(case.contraction, "pad_value", 0))
    while top > 1 and count * top * max(top, padded) > room:
        top = min(top - 1, math.isqrt(room // count))
    return top


def can_hold(case: Case, dtype: np.dtype) -> bool:
    """Whether the case's pad value is one of the type."""
    value = case.contraction.pad_value if isinstance(case.contraction, Conv2D) else 0.0
    return dtype.kind == "f" or (value == int(value) and not (dtype.kind == "u" and value < 0))
