"""The thing under test, called on cases, and what came out beside what was due."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from opgraft.verification import due
from opgraft.verification.cases import Case

# The output for a case and concrete operands, or None if it could not run.
Evaluate = Callable[[Case, np.ndarray, np.ndarray], np.ndarray | None]
# When the rest is not tried any more: after so many calls that could not run, or so many of them
# from the beginning on, or so many seconds that were spent on them.
_REFUSALS, _REFUSALS_AT_FIRST, _PATIENCE = 24, 3, 10.0


@dataclasses.dataclass(frozen=True, eq=False)
class Observation:
    """One call.

    Attributes:
        left, right: the operands.
        due: the declared meaning, in float64.
        allowed: by how much each element may differ from it.
        magnitude: the sum of the absolute terms behind each element.
        got: what came out; None if it could not run.
    """

    case: Case
    left: np.ndarray
    right: np.ndarray
    due: np.ndarray
    allowed: np.ndarray
    magnitude: np.ndarray
    got: np.ndarray | None

    @property
    def ran(self) -> bool:
        return self.got is not None

    @property
    def has_due_shape(self) -> bool:
        return self.got is not None and self.got.shape == self.due.shape

    @property
    def actual(self) -> np.ndarray:
        """What came out, in float64."""
        assert self.got is not None
        with np.errstate(invalid="ignore"):  # memory that nobody wrote may hold anything
            return self.got.astype(np.float64)

    @property
    def error(self) -> np.ndarray:
        """Absolute, in float64; infinite where what came out is not finite."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(abs(self.actual - self.due), nan=np.inf, posinf=np.inf)

    @property
    def relative_error(self) -> np.ndarray:
        """The error in units of the terms' magnitude."""
        return due.relative(self.error, self.magnitude)

    @property
    def wrong(self) -> np.ndarray:
        """A mask of the elements that are not what is due."""
        return self.error > self.allowed

    @property
    def failed(self) -> bool:
        return self.ran and (not self.has_due_shape or bool(self.wrong.any()))


class Subject:
    """`evaluate`, what it is due to compute, and how exactly.

    Args:
        evaluate: the thing under test.
        dtype: of the operands it is given.
        multiply: the product of two numbers that it claims; None is the exact one.
        limit: the largest allowed error in units of the terms' magnitude; None
            allows nothing but rounding.
    """

    def __init__(self, evaluate: Evaluate, dtype: np.dtype, multiply: due.Multiply | None = None,
                 limit: float | None = None):  # fmt: skip
        self.evaluate = evaluate
        self.dtype = dtype
        self.limit = limit
        self.meaning = due.Meaning(multiply and due.elementwise(multiply, dtype))
        self._result: np.dtype = dtype
        self._calls, self._refusals, self._wasted = 0, 0, 0.0

    @property
    def has_given_up(self) -> bool:
        return (
            self._refusals >= _REFUSALS
            or self._refusals == self._calls >= _REFUSALS_AT_FIRST
            or self._wasted > _PATIENCE
        )

    def run(self, case: Case, left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
        """The output; None if it could not run, or too many cases before it could not."""
        if self.has_given_up:
            return None
        start = time.monotonic()
        got = self.evaluate(case, left, right)
        self._calls += 1
        if got is None:
            self._refusals += 1
            self._wasted += time.monotonic() - start
            return None
        got = np.asarray(got)
        self._result = got.dtype
        return got

    def integers(self, case: Case, salt: str = "") -> Observation:
        """With small integers."""
        return self.observe(case, *due.small_integers(case, self.dtype, salt))

    def numbers(self, case: Case) -> Observation:
        """With random normal numbers; with large random integers for integer types."""
        return self.observe(case, *due.random_numbers(case, self.dtype, self._result))

    def observe(self, case: Case, left: np.ndarray, right: np.ndarray) -> Observation:
        """With any operands."""
        return self.tried(self.expected(case, left, right))

    def expected(self, case: Case, left: np.ndarray, right: np.ndarray) -> Observation:
        """What is due, not run yet.

        Where every sum is one of integers that the type holds, the output must be
        exact; else it may be off by rounding; by `limit`, if there is one.
        """
        magnitude = self.meaning.magnitude(case, left, right)
        if self.limit is not None:
            allowed = self.limit * magnitude
        elif self._is_exact(case, left, right, magnitude):
            allowed = np.zeros_like(magnitude)
        else:
            allowed = self.rounding(case, magnitude)
        value = self.meaning.due(case, left, right)
        return Observation(case, left, right, value, allowed, magnitude, None)

    def tried(self, o: Observation) -> Observation:
        """The same operands, run."""
        return dataclasses.replace(o, got=self.run(o.case, o.left, o.right))

    def rounding(self, case: Case, magnitude: np.ndarray) -> np.ndarray:
        """By how much correct kernels may differ from what is due."""
        extra = 0 if self.meaning.multiply is None else 2  # its product may be rounded in between
        return due.rounding(case, magnitude, self.dtype, extra)

    def _is_exact(self, case, left, right, magnitude: np.ndarray) -> bool:
        return (
            all(np.array_equal(operand, np.rint(operand)) for operand in (left, right))
            and bool(np.all(magnitude <= due.largest_whole(self.dtype)))
            and self.meaning.has_whole_terms(case, left, right)
        )


def alike(a: np.ndarray, b: np.ndarray, slack: np.ndarray) -> bool:
    """Whether no element differs by more; one that is not finite must be the same."""
    with np.errstate(invalid="ignore"):
        same = (abs(a - b) <= slack) | (a == b) | (np.isnan(a) & np.isnan(b))
    return bool(same.all())
