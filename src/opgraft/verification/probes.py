"""What takes more than one look at one call: the borders of the operands, repetition, threads.

Each conclusion rests on two calls that differ in one thing only, such as a page
that nobody may touch, a process that is new, or a second thread.
"""

import time
import zlib

import numpy as np

from opgraft.spec import Conv2D, MatMul
from opgraft.verification.calls import OPERANDS, Call, Outcome, Placement, same_bits
from opgraft.verification.cases import Case
from opgraft.verification.examination import Examination
from opgraft.verification.raw import raw_call, small_operands

# Long enough for two calls to meet, short enough for many: some 300,000 products.
LONG_PRODUCT = Case(MatMul(), (72, 61), (61, 70))
LONG_CONVOLUTION = Case(Conv2D(), (1, 22, 25, 6), (3, 3, 6, 13))
_LONG = (LONG_PRODUCT, LONG_CONVOLUTION)

_ALIGNMENT = 64  # bytes to which tensors are aligned
_SECONDS = 1.5  # for the borders on one side
_LARGEST = 12  # cases to try first
_UNEXPLAINED = 3  # crashes beside a guarded page that no single cause explains


# ---- the borders of the operands -------------------------------------------------------


def borders(exam: Examination) -> None:
    """Pages that nobody may touch before and behind the operands, which nobody may write to."""
    order = list(dict.fromkeys([*exam.good[: -_LARGEST - 1 : -1], *exam.good]))
    sides = [_Border(exam, flush) for flush in (True, False)]
    for border in sides:
        until = time.monotonic() + _SECONDS
        for case, call in order:
            if border.finished or (border.looks >= _LARGEST and time.monotonic() > until):
                break
            border.look(case, call)
    end, start = (border.looks for border in sides)
    exam.passes(
        "reads only its inputs", f"{end} calls at the end of both operands, {start} at the start"
    )


def border(exam: Examination, case: Case, call: Call) -> None:
    """Of one more call."""
    for flush in (True, False):
        _Border(exam, flush).look(case, call)


class _Border:
    """The end (if `flush`) or the start of both operands."""

    def __init__(self, exam: Examination, flush: bool) -> None:
        self.exam, self.flush = exam, flush
        self.guarded = set(OPERANDS)  # those that were not read beyond so far
        self.only_aligned = False
        self.unexplained = 0
        self.looks = 0

    @property
    def finished(self) -> bool:
        return not self.guarded or self.unexplained == _UNEXPLAINED

    def look(self, case: Case, call: Call) -> None:
        if self.flush and self.only_aligned and not _ends_aligned(call):
            return
        self.looks += 1
        readonly = {role for role in OPERANDS if not self.exam.has_finding(f"writes to its {role}")}
        if not self._survives(call, self.flush, self.guarded, readonly):
            self._explain(case, call, readonly)

    def _survives(self, call: Call, flush: bool = False, guarded=(), readonly=()) -> bool:
        place = Placement(flush, frozenset(guarded), frozenset(readonly))
        return self.exam.sandbox.once(call, place=place).ended

    def _explain(self, case: Case, call: Call, readonly: set[str]) -> None:
        explained = False
        described = self.exam.sandbox.describe(call)
        for role in sorted(readonly):
            if not self._survives(call, readonly={role}):
                finding = f"writes to its {role}"
                message = f"{described} {finding}, even if it puts back what was there"
                self.exam.fail("leaves its inputs alone", finding, message, case)
                explained = True
        if self.flush and not self._survives(call, flush=True):
            self.only_aligned = explained = True  # it takes operands to be aligned, as they are
        else:
            where = "beyond the end" if self.flush else "before the start"
            for role in sorted(self.guarded):
                if not self._survives(call, self.flush, {role}):
                    finding = f"reads {where} of its {role}"
                    self.exam.fail("reads only its inputs", finding, f"{described} {finding}", case)
                    self.guarded.discard(role)
                    explained = True
        self.unexplained += not explained


def _ends_aligned(call: Call) -> bool:
    sizes = (each.nbytes for each in (call.left, call.right) if isinstance(each, np.ndarray))
    return all(size % _ALIGNMENT == 0 for size in sizes)


# ---- repetition ------------------------------------------------------------------------


def numbers(exam: Examination, case: Case, salt: str) -> Call:
    """A case with random operands, whose sums are rounded if they can be."""
    dtype = np.dtype(exam.symbol.operand_dtype)
    left, right = small_operands(exam.symbol, case, salt)
    if dtype.kind == "f":
        draw = np.random.default_rng(zlib.crc32(f"{case.id} {salt}".encode())).standard_normal
        left, right = draw(case.left).astype(dtype), draw(case.right).astype(dtype)
    call = raw_call(exam.symbol, case, left, right)
    assert call is not None
    return call


def _long_and_short(exam: Examination) -> tuple[Case, Case] | None:
    """A case that takes a while, and a small one that has several terms to sum."""
    good = [case for case, _ in exam.good]
    long = next((case for case in good if case in _LONG), good[-1] if good else None)
    short = next((case for case in good if min(map(np.prod, (case.left, case.right))) > 3), None)
    return None if long is None or short is None or long == short else (long, short)


def repetition(exam: Examination) -> None:
    """The same calls again, after others, and in a new process."""
    pair = _long_and_short(exam)
    if pair is None:
        return exam.skip("repeats itself", "not tried: too few calls came back")
    for main, other in (pair, pair[::-1]):
        calls = {
            "a": numbers(exam, main, "a"),
            "b": numbers(exam, main, "b"),
            "c": numbers(exam, other, "c"),
        }
        first = _in_new_process(exam, calls, "aabca")
        outcomes = [*first, *_in_new_process(exam, calls, "cba")]
        described = exam.sandbox.describe(calls["a"])
        if end := next((outcome for outcome in outcomes if not outcome.ended), None):
            return exam.fail_to_return(end, f"{described}, or another after it,", main)
        seen: dict[str, np.ndarray | None] = {}
        named = zip("aabcacba", outcomes, strict=True)
        if all(same_bits(o.output, seen.setdefault(name, o.output)) for name, o in named):
            continue
        again = _in_new_process(exam, calls, "aabca")
        alike = all(same_bits(x.output, y.output) for x, y in zip(first, again, strict=True))
        finding = "keeps state between calls" if alike else "is not deterministic"
        why = (
            "what it gives depends on the calls before"
            if alike
            else "the same calls in a new process give something else"
        )
        message = f"{described} {finding}: {why}"
        return exam.fail("repeats itself", finding, message, main)
    return exam.passes("repeats itself", "two sizes, again, after others and in a new process")


def _in_new_process(exam: Examination, calls: dict[str, Call], order: str) -> list[Outcome]:
    exam.sandbox.restart(disturbed=True)
    return [exam.sandbox.once(calls[name]) for name in order]


# ---- threads ---------------------------------------------------------------------------


def threads(exam: Examination) -> None:
    """Calls of two sizes and of two values each, at once."""
    if not exam.symbol.thread_safe:
        return exam.passes(
            "threads", "not tried: thread_safe=False, so it is called once at a time"
        )
    pair = _long_and_short(exam)
    if pair is None or exam.failed("repeats itself"):
        why = "it does not repeat itself" if pair else "too few calls came back"
        return exam.skip("threads", f"not tried: {why}")
    exam.sandbox.restart()
    calls = [numbers(exam, case, salt) for case in pair for salt in "ab"]
    alone = [exam.sandbox.once(call) for call in calls]
    together = exam.sandbox.run_together(calls)
    finding = "is not safe to call from two threads at once"
    if failure := next((outcome.failure for outcome in together if not outcome.ended), ""):
        exam.harmful = True
        return exam.fail("threads", finding, f"four calls at once: {failure}", pair[0])
    for call, due, got in zip(calls, alone, together, strict=True):
        if got.varies or not same_bits(due.output, got.output):
            return exam.fail(
                "threads", finding,
                f"{exam.sandbox.describe(call)} gives something else while others run; keep what "
                "it computes on its stack, or pass thread_safe=False", pair[0],
            )  # fmt: skip
    return exam.passes("threads", "four calls at once, of two sizes, many times")
