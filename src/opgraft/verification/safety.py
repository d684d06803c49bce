"""Whether a C function keeps the contract of a call: it comes back, and touches only what it may.

Every call is a raw one in a process of its own. `probes` holds what needs more
than a look at one call.
"""

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np

from opgraft.products.c_function import CSymbol
from opgraft.spec import Conv2D, MatMul
from opgraft.verification import indices, probes, scalars
from opgraft.verification.calls import Call, Outcome
from opgraft.verification.cases import Case
from opgraft.verification.due import terms
from opgraft.verification.examination import Examination
from opgraft.verification.findings import Check
from opgraft.verification.raw import is_raw, raw_call, raw_cases, size, small_operands
from opgraft.verification.sandbox import Sandbox

_SECONDS = 4.0  # for the sweep, unless a few calls alone take longer
_AT_LEAST = 12  # cases
_CRASHES = 8  # after so many the sweep ends
_MOST_ELEMENTS = 1 << 25  # of the operands of a call with the user's sizes


_PROBES = [
    ("reads only its inputs", probes.borders), ("repeats itself", probes.repetition),
    ("threads", probes.threads),
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Safety:
    """What was looked at and seen.

    Attributes:
        checks: always the same ones, in the same order.
        findings: names for what is wrong, none of them twice.
        safe: whether the function may be called in a process that has something to lose: it
            comes back without an error and touches only what it may.
    """

    checks: tuple[Check, ...]
    findings: tuple[str, ...]
    safe: bool


def check_safety(
    symbol: CSymbol, sandbox: Sandbox, *, own: Sequence[Case] = (), large: bool = False
) -> Safety:
    """Call a function in every way that it may be called, and watch what it does.

    It never raises for what the function does.

    Args:
        symbol: the function.
        sandbox: of the same function; its time and memory limits hold.
        own: more cases, of the user's sizes.
        large: also try operands of more than 2^31 elements, which may take minutes.
    """
    exam = Examination(symbol, sandbox, large=large, own=bool(own))
    if symbol.kind == "scalar":
        scalars.examine(exam)
        exam.passes("runs on your sizes", "nothing to see: it takes two numbers")
    else:
        sweep(exam, _cases(symbol))
        if own:
            _own_sizes(exam, own)
        more = [*_PROBES, ("indices beyond 2^31", indices.large_indices)] if large else _PROBES
        for name, probe in more:
            if exam.is_stuck:
                exam.skip(name, "not tried: the function does not always return")
            else:
                probe(exam)
    return Safety(exam.checks(), exam.findings(), exam.is_safe)


# ---- the cases -----------------------------------------------------------------------


def _cases(symbol: CSymbol) -> list[Case]:
    """Those of the table and some more, smallest first."""
    more = [case for case in _SIZES if is_raw(symbol, case)]
    return sorted(dict.fromkeys([*more, *raw_cases(symbol)]), key=size)


def _conv(x: tuple[int, ...], kernel: tuple[int, ...]) -> Case:
    return Case(Conv2D(), x, kernel)


def _matmul(m: int, k: int, n: int) -> Case:
    return Case(MatMul(), (m, k), (k, n))


_SIZES = (
    # Every size 1; then one, two and three images.
    _matmul(1, 1, 1), _conv((1, 1, 1, 1), (1, 1, 1, 1)),
    _conv((1, 1, 3, 1), (1, 1, 1, 1)), _conv((1, 3, 1, 1), (1, 1, 1, 2)),
    _conv((1, 1, 1, 5), (1, 1, 5, 1)), _conv((1, 3, 4, 2), (2, 1, 2, 3)),
    _conv((2, 3, 4, 2), (2, 1, 2, 3)), _conv((3, 3, 4, 2), (2, 1, 2, 3)),
    # Operands of multiples of 64 elements, which end where aligned vectors do, odd sizes in them.
    _matmul(5, 64, 7), _matmul(64, 3, 64), _conv((1, 16, 4, 3), (4, 2, 3, 8)),
    # Rows that are longer than a vector, and no multiple of one.
    _matmul(3, 2, 9), _matmul(2, 3, 17), _conv((1, 3, 4, 2), (2, 1, 2, 9)),
    _conv((1, 7, 16, 4), (4, 4, 4, 5)), _conv((1, 64, 1, 9), (2, 1, 9, 64)),
    probes.LONG_PRODUCT, probes.LONG_CONVOLUTION,
)  # fmt: skip


# ---- one call after the other ----------------------------------------------------------


def sweep(exam: Examination, cases: Sequence[Case]) -> None:
    """Call every case, as long as that does not take too long, and note what it did."""
    crashes, until = 0, time.monotonic() + _SECONDS
    for number, case in enumerate(cases):
        if number >= _AT_LEAST and time.monotonic() > until:
            break
        call = raw_call(exam.symbol, case, *small_operands(exam.symbol, case))
        assert call is not None
        outcome = _try(exam, case, call)
        if outcome.ended:
            exam.good.append((case, call))
        crashes += bool(outcome.crashed)
        if exam.is_stuck or crashes == _CRASHES:
            break


def _own_sizes(exam: Examination, own: Sequence[Case]) -> None:
    """The sizes of the user's inputs, which are what will run in this process."""
    name = "runs on your sizes"
    if not exam.is_safe:
        return exam.skip(name, "not tried: it fails on small ones")
    tried = 0
    for case in own:
        call = _own_call(exam.symbol, case)
        if call is None:
            continue
        tried += 1
        if _try(exam, case, call).ended:
            probes.border(exam, case, call)
        if failure := exam.failure_in(case):
            return exam.fail(name, failure.finding, failure.message, case)
    if not tried:
        return exam.passes(name, "not tried: no contraction on your inputs is one call of the "
                                 "function, or each is too large to be called again")  # fmt: skip
    return exam.passes(name, f"{tried} of {len(own)} contractions on your inputs")


def _own_call(symbol: CSymbol, case: Case) -> Call | None:
    """The whole, or one image where the core gives the function one at a time, or nothing."""
    images = [case]
    if isinstance(case.contraction, Conv2D):
        images.append(dataclasses.replace(case, left=(1, *case.left[1:])))
    for each in images:
        if max(size(each)[0], math.prod(each.output[:-1]) * terms(each)) <= _MOST_ELEMENTS:
            call = raw_call(symbol, each, *small_operands(symbol, each))
            if call is not None:
                return call
    return None


def _try(exam: Examination, case: Case, call: Call) -> Outcome:
    outcome = exam.sandbox.run(call)
    if outcome.refused:
        exam.refused = outcome.refused
    elif outcome.ended:
        exam.came_back += 1
        exam.peak = max(exam.peak, outcome.peak)
        _note(exam, case, call, outcome)
    else:
        _note_end(exam, case, call, outcome)
    return outcome


def _note_end(exam: Examination, case: Case, call: Call, outcome: Outcome) -> None:
    if outcome.crashed and exam.failed("runs"):
        return
    described = exam.sandbox.describe(call)
    if outcome.crashed and exam.sandbox.run(call).ended:
        described += ", not as the first call,"
    exam.fail_to_return(outcome, described, case)


def _note(exam: Examination, case: Case, call: Call, outcome: Outcome) -> None:
    """What is wrong with a call that came back."""
    described = exam.sandbox.describe(call)
    if outcome.returned:
        exam.fail(
            "returns zero", f"returns {outcome.returned}",
            f"{described} returned {outcome.returned}; any value but 0 is an error. If the "
            "function returns nothing, declare it void", case,
        )  # fmt: skip
    for buffer, where in (
        (outcome.overrun, "beyond the end"),
        (outcome.underrun, "before the start"),
    ):
        if buffer:
            finding = f"writes {where} of its {buffer}"
            exam.fail("stays inside its output", finding, f"{described} {finding}", case)
    for operand in outcome.modified:
        finding = f"writes to its {operand}"
        exam.fail("leaves its inputs alone", finding, f"{described} {finding}", case)
    if outcome.unwritten is not None and outcome.unwritten.any():
        count, total = int(np.sum(outcome.unwritten)), math.prod(call.shape)
        exam.fail(
            "writes every element", "",
            f"{described} does not write {count} of the {total} elements of its output", case,
        )  # fmt: skip
    if outcome.reads_output:
        finding = "reads its output before writing it"
        if outcome.adds_to_output:
            finding = "adds to what was in the output"
        exam.fail(
            "writes every element", finding,
            f"{described} {finding}, which is undefined: set it to zero first", case,
        )  # fmt: skip
