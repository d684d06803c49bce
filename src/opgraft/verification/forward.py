"""Whether a forward computes what it claims, over a table of cases, and how far it is off."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from opgraft.verification import due
from opgraft.verification.cases import Case
from opgraft.verification.diagnoses import diagnose
from opgraft.verification.findings import Check, Deviation
from opgraft.verification.independence import check_batch, check_special_values
from opgraft.verification.judgement import Unwritten
from opgraft.verification.number_types import sums_in_narrow_floats
from opgraft.verification.subject import Evaluate, Observation, Subject
from opgraft.verification.variation import shrunk


@dataclasses.dataclass(frozen=True, eq=False)
class Forward:
    """What was looked at and seen.

    Attributes:
        checks: of which all must pass.
        findings: names for what is wrong.
        metrics: the error against the exact operation on random numbers: "max error",
            "mean error", the same relative to the sum of the absolute terms behind each
            element ("max relative error", "mean relative error"), and "cases".
        deviations: the smallest failing case and the largest error, to be drawn.
    """

    checks: tuple[Check, ...]
    findings: tuple[str, ...]
    metrics: dict[str, float]
    deviations: tuple[Deviation, ...]


def check_forward(
    evaluate: Evaluate,
    cases: Iterable[Case],
    *,
    dtype: np.typing.DTypeLike = np.float32,
    multiply: due.Multiply | None = None,
    limit: float | None = None,
    variants: Mapping[str, Evaluate] | None = None,
    unwritten: Unwritten | None = None,
) -> Forward:
    """Compare `evaluate` with the loop nest of `opgraft.reference`.

    Without a limit, sums of small integers must be exact, and sums of random
    numbers within (k + 1) eps of the sum of the absolute terms, k being their
    number: every order of summation passes, blocked, fused or not, in the element
    type or a wider one; a kernel that replaces terms (Winograd, FFT) needs a limit.

    Args:
        evaluate: gives the output of the thing under test for a case and its
            operands, or None if it could not run.
        cases: what to try; small cases are tried first.
        dtype: the element type of the operands.
        multiply: the product of two numbers that it claims to use, also for
            padded positions. None: the exact one.
        limit: the largest error that is allowed, for a kernel that is not exact, in
            units of the sum of the absolute terms: 0.01 allows each product to be off
            by one percent. The terms are the measure, because where they cancel
            each other the output is small and the error is not.
        variants: other ways to call it, by the finding that is due if one of them
            gives what the plain call should.
        unwritten: which elements of a case's output are never written; None if
            that is not known.
    """
    subject = Subject(evaluate, np.dtype(dtype), multiply, limit)
    held = [case for case in cases if due.can_hold(case, subject.dtype)]
    usable = [case for case in held if subject.meaning.can_afford(case)]
    integers = [subject.integers(case) for case in sorted(usable, key=due.work)]
    numbers = [subject.numbers(o.case) for o in integers if o.has_due_shape]
    decisive = integers if any(o.failed for o in integers) else numbers
    findings = sums_in_narrow_floats(subject.dtype, numbers) or diagnose(
        subject, decisive, variants, unwritten
    )
    smallest = _smallest(subject, decisive)
    checks = [
        *(
            _values(subject, name, seen, smallest if seen is decisive else None, findings)
            for name, seen in (("small integers", integers), ("random numbers", numbers))
        ),
        *check_batch(subject, numbers),
        *check_special_values(subject, numbers),
        *_deviation(subject, numbers),
    ]
    checks[0] = _with_note(checks[0], len(held) - len(usable))
    return Forward(tuple(checks), findings, _metrics(numbers), _deviations(smallest, numbers))


# ---- values ------------------------------------------------------------------------------

_EXACTLY = (
    "every sum of small integers is exact, so each operand reaches the right product and each "
    "product the right output, whatever the order of summation; nothing about sizes beyond those "
    "tried, nor about rounding"
)
_ROUNDED = (
    "random numbers are multiplied and summed with no more than the rounding of the element type; "
    "nothing about sizes beyond those tried, nor about numbers that overflow"
)
_WITHIN = (
    "no element is off by more than the limit times the sum of its absolute terms, on the "
    "operands tried; nothing about other operands or sizes"
)


def _values(subject: Subject, name: str, seen: Sequence[Observation],
            smallest: Observation | None, findings: Sequence[str]) -> Check:  # fmt: skip
    proves = _EXACTLY if name == "small integers" else _ROUNDED
    if subject.limit is not None:
        proves = _WITHIN
        name = "within the limit" if name == "small integers" else name
    failing = [o for o in seen if o.failed]
    if failing:
        shown = failing[0] if smallest is None else smallest
        found = "".join(f"; {finding}" for finding in findings)
        message = f"wrong in {len(failing)} of {len(seen)} cases. {_worst(subject, shown)}{found}"
        return Check(name, False, message, proves, shown.case.id)
    missing = [o for o in seen if not o.ran]
    if missing or not seen:
        case = missing[0].case.id if missing else ""
        message = f"{len(missing)} of {len(seen)} cases could not be run"
        where = f", the first of them {case}; the contract's checks say why" if case else ""
        return Check(name, None, message + where, proves, case)
    return Check(name, True, f"{len(seen)} cases", proves)


def _with_note(check: Check, left_out: int) -> Check:
    """With what was not tried."""
    if not left_out:
        return check
    note = f"; not tried: {left_out} too large to compute what is due for them"
    return dataclasses.replace(check, message=check.message + note)


def _worst(subject: Subject, o: Observation) -> str:
    """The worst element of an observation, in words."""
    if not o.has_due_shape:
        assert o.got is not None
        return f"{o.case.id}: the output has the shape {o.got.shape} where {o.due.shape} is due"
    error = np.where(o.wrong, o.error, -1.0)
    at = np.unravel_index(int(error.argmax()), error.shape)
    index = ", ".join(map(str, at))
    text = f"{o.case.id}: element [{index}] is {o.actual[at]:.9g} where {o.due[at]:.9g} is due"
    if subject.limit is None:
        return text
    return f"{text}, {o.relative_error[at]:.3g} of its terms; the limit is {subject.limit:.3g}"


def _smallest(subject: Subject, seen: Sequence[Observation]) -> Observation | None:
    """The simplest failing observation that can be found."""
    first = next((o for o in seen if o.failed), None)
    if first is None or not first.has_due_shape:
        return first
    whole = np.array_equal(first.left, np.rint(first.left))
    observe: Callable[[Case], Observation] = subject.integers if whole else subject.numbers
    tried = {first.case: first}

    def fails(case: Case) -> bool:
        tried[case] = observe(case)
        return tried[case].failed

    return tried[shrunk(first.case, fails)]


# ---- how far it is off ---------------------------------------------------------------------


def _deviation(subject: Subject, seen: Sequence[Observation]) -> list[Check]:
    """Only of something that has a limit."""
    if subject.limit is None:
        return []
    proves = "how far random numbers are off on average and at most; nothing about other operands"
    errors = [o.relative_error.ravel() for o in seen if o.has_due_shape]
    if not sum(map(len, errors)):
        return [Check("deviation", None, "no case could be run", proves)]
    together = np.concatenate(errors)
    with np.errstate(over="ignore"):
        message = (
            f"of the sum of the absolute terms: at most {together.max():.3g}, on average "
            f"{together.mean():.3g}; the limit is {subject.limit:.3g}"
        )
    return [Check("deviation", bool(together.max() <= subject.limit), message, proves)]


def _deviations(
    smallest: Observation | None, numbers: Sequence[Observation]
) -> tuple[Deviation, ...]:
    """The smallest failing case, and the random numbers with the largest error."""
    drawn = []
    if smallest is not None and smallest.has_due_shape:
        drawn.append(("forward, smallest failing case", smallest))
    comparable = [o for o in numbers if o.has_due_shape and o.due.size]
    if comparable:
        worst = max(comparable, key=lambda o: float(o.relative_error.max()))
        drawn.append(("forward, random numbers", worst))
    return tuple(Deviation(title, o.case.id, o.due, o.actual) for title, o in drawn)


def _metrics(seen: Sequence[Observation]) -> dict[str, float]:
    """Against the exact operation, whatever product is claimed."""
    exact = due.Meaning()
    errors, relative, cases = [], [], 0
    for o in seen:
        if not o.has_due_shape:
            continue
        cases += 1
        error = abs(o.actual - exact.due(o.case, o.left, o.right))
        error = np.where(np.isnan(error), np.inf, error)
        errors.append(error.ravel())
        magnitude = exact.magnitude(o.case, o.left, o.right)
        relative.append(due.relative(error, magnitude).ravel())
    if not sum(map(len, errors)):
        return {"cases": float(cases)}
    absolute, units = np.concatenate(errors), np.concatenate(relative)
    with np.errstate(over="ignore"):
        return {
            "max error": float(absolute.max()),
            "mean error": float(absolute.mean()),
            "max relative error": float(units.max()),
            "mean relative error": float(units.mean()),
            "cases": float(cases),
        }
