"""Whether a C function of two numbers keeps its contract. It has no memory to overrun."""

import itertools

import numpy as np

from opgraft.verification.calls import Outcome, same_bits
from opgraft.verification.examination import Examination

_RANDOM = 2000  # pairs
_SEARCH = 0.1  # of the time limit, for each step of a search
_NUMBERS_ONLY = (
    "returns zero", "stays inside its output", "reads only its inputs", "leaves its inputs alone",
    "writes every element",
)  # fmt: skip

Pairs = tuple[np.ndarray, np.ndarray]


def examine(exam: Examination) -> None:
    """Call it with many pairs of numbers, in two orders and in a new process."""
    pairs = _pairs(np.dtype(exam.symbol.operand_dtype))
    outcome = exam.sandbox.scalar(*pairs)
    exam.refused = outcome.refused
    for name in ("runs", "terminates", "memory"):
        exam.passes(name, f"{pairs[0].size} pairs of numbers")
    for name in _NUMBERS_ONLY:
        exam.passes(name, "nothing to see: it takes two numbers and returns one")
    exam.passes("threads", "not tried: two calls are too short to meet")
    exam.passes("indices beyond 2^31", "nothing to see: it has no indices")
    if outcome.output is not None:
        exam.came_back = pairs[0].size
        _repeat(exam, pairs, outcome.output)
    elif not outcome.refused:
        _name(exam, pairs, outcome)


def _pairs(dtype: np.dtype) -> Pairs:
    """Every pair of 8-bit numbers; of others small, extreme and random ones. Small ones first."""
    draw = np.random.default_rng(dtype.num)
    values: list[float]
    extra: np.ndarray
    if dtype.kind == "f":
        values = [0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 100.25, -1e-30, 1e30, -0.0]
        extra = draw.standard_normal((2, _RANDOM))
    else:
        limits = np.iinfo(dtype)
        few = dtype.itemsize > 1
        small = [0, 1, -1, 2, -2, 3, 7, -8, 127, 128, 255, int(limits.min), int(limits.max)]
        every = small if few else sorted(range(limits.min, limits.max + 1), key=abs)
        values = [value for value in every if limits.min <= value <= limits.max]
        largest = min(int(limits.max), 2**15)
        extra = draw.integers(max(int(limits.min), -largest), largest, (2, _RANDOM if few else 0))
    known = np.array(list(itertools.product(values, values)), dtype).T
    left, right = np.concatenate([known, extra.astype(dtype)], axis=1)
    return left, right


def _name(exam: Examination, pairs: Pairs, outcome: Outcome) -> None:
    """Find the first pair that does not come back: `low` of them do, `high` do not."""
    left, right = pairs
    low, high = 0, left.size
    while high - low > 1:
        middle = (low + high) // 2
        tried = exam.sandbox.scalar(left[low:middle], right[low:middle], _SEARCH)
        low, high = (middle, high) if tried.ended else (low, middle)
    exam.came_back = low
    for name in ("runs", "terminates", "memory"):
        exam.passes(name, f"{low} pairs of numbers")
    exam.skip("repeats itself", "not tried: it does not always come back")
    exam.fail_to_return(outcome, f"{exam.symbol.symbol}({left[low]}, {right[low]})")


def _repeat(exam: Examination, pairs: Pairs, due: np.ndarray) -> None:
    backwards = pairs[0][::-1], pairs[1][::-1]
    again = exam.sandbox.scalar(*pairs).output
    other = exam.sandbox.scalar(*backwards).output
    if same_bits(due, again) and other is not None and same_bits(due, other[::-1]):
        exam.passes("repeats itself", "the same pairs again, and in the opposite order")
        return
    runs = []
    for _ in range(2):
        exam.sandbox.restart(disturbed=True)
        runs.append(exam.sandbox.scalar(*pairs).output)
    alike = same_bits(*runs)
    exam.fail(
        "repeats itself",
        "keeps state between calls" if alike else "is not deterministic",
        f"{exam.symbol.symbol} does not always give the same for the same two numbers",
    )
