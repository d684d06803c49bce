"""Whether indices overflow where the input has more than 2^31 elements.

Such an input is zero but for its last elements: pages that are only read take no
memory. What is due comes from the same function, called with the numbers that
are not zero in a small input, so that any arithmetic can be tried.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from opgraft.spec import Conv2D, MatMul
from opgraft.verification.calls import Call, Outcome, Sparse, same_bits
from opgraft.verification.cases import Case
from opgraft.verification.examination import Examination
from opgraft.verification.raw import conv2d_numbers, holds_numbers, raw_call

_CHECK = "indices beyond 2^31"
_FINDING = "indices overflow beyond 2^31 elements"
_PATIENCE = 12.0  # times the time limit, for some billion products
_M, _K = 32771, 65539  # a matrix of 2^31 elements and a few more
_STEP = 2000  # a stride that leaves few outputs of a large image
_TAIL = 64  # numbers that are not zero where there are no strides
_NO_PADS = ((0, 0), (0, 0))


class _Large(NamedTuple):
    """A large call, a small one, and how often each row of its output is due in the large one."""

    case: Case
    call: Call
    small: Call
    counts: tuple[int, ...] | int = 1


def large_indices(exam: Examination) -> None:
    """Call with such inputs, as far as the parameters allow them."""
    tried = 0
    for large in (_products if exam.symbol.kind == "matmul" else _convolutions)(exam):
        small = exam.sandbox.once(large.small).output
        if small is None or not holds_numbers(exam.symbol, large.call):
            continue
        outcome = exam.sandbox.once(large.call, patience=_PATIENCE)
        if not _judge(exam, large, outcome, np.repeat(small, large.counts, axis=0)):
            return
        tried += 1
    if tried:
        exam.passes(_CHECK, f"{tried} large input{'s' if tried > 1 else ''}")
    else:
        exam.skip(_CHECK, "not tried: its parameters or its product allow no such input")


def _judge(exam: Examination, large: _Large, outcome: Outcome, due: np.ndarray) -> bool:
    """Note what a large call did; whether it was right."""
    described = exam.sandbox.describe(large.call)
    if outcome.crashed or (outcome.ended and not same_bits(outcome.output, due)):
        seen = outcome.failure or "gives something else than the same numbers in a small input"
        message = f"{described} {seen}. Compute indices in size_t or int64_t"
        exam.fail(_CHECK, _FINDING, message, large.case)
        return False
    if not outcome.ended:
        seconds = f"has not returned after {_PATIENCE * exam.sandbox.time_limit:g} s"
        seen = seconds if outcome.timed_out else outcome.refused or outcome.failure
        exam.skip(_CHECK, f"{described}: {seen}. Give a larger time_limit or memory_limit")
        return False
    return True


def _numbers(exam: Examination, *shape: int) -> np.ndarray:
    """Small numbers, none of them zero."""
    draw = np.random.default_rng(math.prod(shape)).integers
    return draw(1, 4, shape).astype(exam.symbol.operand_dtype)


def _products(exam: Examination) -> Iterator[_Large]:
    """Zeros, and a last row of numbers, times one column."""
    row, column = _numbers(exam, _K), _numbers(exam, _K, 1)
    call = Call(Sparse((_M, _K), row), column, (_M, 1), {"m": _M, "k": _K, "n": 1})
    rows = np.stack([np.zeros_like(row), row])
    small = Call(rows, column, (2, 1), {"m": 2, "k": _K, "n": 1})
    yield _Large(Case(MatMul(), (_M, _K), (_K, 1)), call, small, (_M - 1, 1))


def _convolutions(exam: Examination) -> Iterator[_Large]:
    roles = {parameter.role for parameter in exam.sandbox.parameters}
    if "stride" in roles or {"stride_h", "stride_w"} <= roles:
        yield from _strided(exam, 1, 24 * _STEP + 1, 23 * _STEP + 1)
        if "batch" in roles:
            yield from _strided(exam, 3, 15 * _STEP + 1, 19 * _STEP + 1)
    else:
        yield from _deep(exam)


def _strided(exam: Examination, batch: int, h: int, w: int) -> Iterator[_Large]:
    """A large image, zero but for its last row, of which few positions are computed."""
    case = Case(Conv2D(strides=(_STEP, _STEP)), (batch, h, w, 1), (1, 1, 1, 1))
    few = Case(Conv2D(), case.output, case.right)
    row, kernel = _numbers(exam, w), _numbers(exam, *case.right)
    positions = np.zeros(case.output, row.dtype)
    positions[-1, -1, :, 0] = row[::_STEP]
    small = raw_call(exam.symbol, few, positions, kernel)
    if small is not None:
        yield _Large(case, _call(case, Sparse(case.left, row), kernel), small)


def _deep(exam: Examination) -> Iterator[_Large]:
    """Two pixels of very many channels, and as large a kernel; zero but for the last channels."""
    depth = 2**30 + _TAIL
    case = Case(Conv2D(), (1, 2, 1, depth), (2, 1, depth, 1))
    few = Case(Conv2D(), (1, 2, 1, _TAIL), (2, 1, _TAIL, 1))
    tails = _numbers(exam, _TAIL), _numbers(exam, _TAIL)[::-1]
    x, kernel = (
        np.concatenate([np.zeros_like(tail), tail]).reshape(shape)
        for tail, shape in zip(tails, (few.left, few.right), strict=True)
    )
    zeros = raw_call(exam.symbol, few, 0 * x, 0 * kernel)
    small = raw_call(exam.symbol, few, x, kernel)
    nothing = exam.sandbox.once(zeros).output if zeros else None
    if small is not None and nothing is not None and not nothing.any():
        left, right = Sparse(case.left, tails[0]), Sparse(case.right, tails[1])
        yield _Large(case, _call(case, left, right), small)


def _call(case: Case, left: Sparse, right: Sparse | np.ndarray) -> Call:
    c = case.contraction
    assert isinstance(c, Conv2D)
    numbers = conv2d_numbers(c, case.left, case.right, 1, _NO_PADS, case.output)
    return Call(left, right, case.output, numbers)
