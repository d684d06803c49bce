"""Verifying a Python function: first in a copy of this process, which may hang or die."""

import time
from collections.abc import Callable

import numpy as np

from opgraft.products import PythonFunction
from opgraft.verification import isolated
from opgraft.verification.cases import Case
from opgraft.verification.findings import Check
from opgraft.verification.forward import check_forward
from opgraft.verification.parts import Options, Parts

_SECONDS = 10.0  # for the sweep, unless one call alone takes longer
_RUNS = "It comes back, without raising, on the cases tried."
_AFTER_A_FORK = "SIGTERM"
_TERMINATES = "Every case that was tried ended within the time limit."


def check(product: PythonFunction, cases: list[Case], parts: Parts, options: Options) -> None:
    """Contract and forward of a Python function."""
    usable = [case for case in cases if 0 not in (*case.left, *case.right, *case.output)]
    tried: list[str] = []
    raised: list[str] = []

    def sweep() -> None:
        end = time.monotonic() + _SECONDS
        for case in usable:
            if time.monotonic() > end:
                return
            isolated.say(case.id)
            for operands in (case.integers(), case.normals()):
                try:
                    product.compute(case.contraction, *(x.astype(np.float32) for x in operands))
                except MemoryError:
                    raise
                except Exception as error:
                    isolated.say(f"!{case.id}: {type(error).__name__}: {error}")

    def hear(line: str) -> None:
        (raised if line.startswith("!") else tried).append(line.removeprefix("!"))

    ended = isolated.run(sweep, options.time_limit, options.memory_limit, hear)
    parts.safe = not ended
    at = tried[-1] if tried else ""
    parts.contract += [_runs(ended, at, raised, len(tried)), _terminates(ended, at, options)]
    if ended and ended != _AFTER_A_FORK:
        parts.find(isolated.finding(ended))
    if ended:
        return
    for line in raised[:1]:
        parts.find(f"raises {line.split(': ')[1]}")
    found = check_forward(
        _evaluate(product), usable, multiply=options.multiply, limit=options.limit
    )
    parts.add_forward(found)


def _runs(ended: str, at: str, raised: list[str], count: int) -> Check:
    if ended == _AFTER_A_FORK:
        message = (
            f"not run: a copy of this process ended by {ended}, as OpenMP makes it once its "
            "threads have run. Verify before anything has used them, as in a new process"
        )
        return Check("runs", None, message, _RUNS)
    if ended and ended != isolated.TIMED_OUT:
        return Check("runs", False, f"{isolated.finding(ended)} in the case {at}", _RUNS, at)
    if raised:
        case, _, error = raised[0].partition(": ")
        return Check("runs", False, f"{error}, in {len(raised)} calls", _RUNS, case)
    return Check("runs", True, f"{count} cases", _RUNS)


def _terminates(ended: str, at: str, options: Options) -> Check:
    if ended == isolated.TIMED_OUT:
        message = f"no end after {options.time_limit:g} s, in the case {at}"
        return Check("terminates", False, message, _TERMINATES, at)
    return Check("terminates", True, f"each within {options.time_limit:g} s", _TERMINATES)


def _evaluate(product: PythonFunction) -> Callable:
    def evaluate(case: Case, left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
        try:
            return product.compute(case.contraction, left, right)
        except Exception:  # the contract's checks have said so
            return None

    return evaluate
