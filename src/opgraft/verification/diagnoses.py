"""What is wrong with a forward: named, from the pattern of what came out.

A name is given only where it explains every failing case and contradicts no
passing one; where several do, cases are made that tell them apart.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from opgraft import reference
from opgraft.spec import Conv2D
from opgraft.verification.cases import Case
from opgraft.verification.judgement import (
    AT_MOST,
    Evidence,
    Judge,
    Unwritten,
    has_matrices,
    names,
)
from opgraft.verification.patterns import patterns
from opgraft.verification.subject import Evaluate, Observation, Subject
from opgraft.verification.variation import group_count

_AGAIN = 4  # failing cases that are run again
_PASSING = 8  # passing cases that another way to call it must also get right


def diagnose(
    subject: Subject,
    seen: Sequence[Observation],
    variants: Mapping[str, Evaluate] | None = None,
    unwritten: Unwritten | None = None,
) -> tuple[str, ...]:
    """Names for what is wrong in `seen`, the most specific ones; none if nothing fits.

    Args:
        subject: the thing under test, to be tried on more cases.
        seen: what it gave so far, small cases first.
        variants: other ways to call it, by the finding that is due if one of
            them gives what the plain call should.
        unwritten: tells which elements of an output are never written.
    """
    seen = [o for o in seen if o.ran]
    failing = [o for o in seen if o.failed]
    if not failing or not all(o.has_due_shape for o in failing):
        return ()
    with np.errstate(all="ignore"):
        if not _is_reproducible(subject, failing):
            return ()  # what came out is no function of the operands: nothing here is about that
        judge = Judge(subject, unwritten)
        evidence = [judge.evidence(o) for o in seen]
        partial = _never_written(evidence)
        if not any(e.failed for e in evidence):  # all that was written is right
            always = all(o.failed for o in seen if o.due.size)
            return partial if always else partial + patterns(subject, seen)
        if best := judge.best(evidence):
            covered = all(judge.covers_unwritten(best[0], e) for e in evidence)
            return names(best) if covered else partial + names(best)
        if factor := _constant_factor(subject, evidence):
            return partial + factor
        if others := _variants(evidence, variants or {}):
            return others  # called that way, all is written
        return partial + patterns(subject, seen) + _not_finite(evidence)


def _is_reproducible(subject: Subject, failing: Sequence[Observation]) -> bool:
    """Whether it gives the same again, called in another order."""
    some = failing[:: -(-len(failing) // _AGAIN)][::-1]
    again = [(o, subject.run(o.case, o.left, o.right)) for o in some]
    return all(y is None or np.array_equal(o.actual, y, equal_nan=True) for o, y in again)


# ---- other names -------------------------------------------------------------------------


def _never_written(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """The part of every output that is not written, if it has a name, else how large it is."""
    partial = [e for e in evidence if not e.written.all()]
    if not partial:
        return ()
    by_matrices = has_matrices(evidence)
    fitting = [
        {name for name, p in _parts(e.seen.case, by_matrices) if np.array_equal(p, ~e.written)}
        for e in partial
    ]
    if named := set.intersection(*fitting):
        return tuple(f"last {name} never written" for name in sorted(named)[:AT_MOST])
    if any(e.failed for e in evidence) and not any(e.seen.due[~e.written].any() for e in partial):
        return ()  # zeros that are added to what was there look as if nobody wrote them
    count = max(int((~e.written).sum()) for e in partial)
    return (f"{count} element{'s' if count != 1 else ''} never written",)


def _parts(case: Case, by_matrices: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Masks of the last row, column ... of the output; of the matrix that a convolution becomes."""
    c = case.contraction
    axes = {"row": -2, "column": -1}
    if isinstance(c, Conv2D):
        row, column = c.spatial_axes
        axes = {"row": row, "column": column, "channel": c.channel_axis, "image": 0}
    for name, axis in axes.items():
        part = np.full(case.output, False)
        np.moveaxis(part, axis, 0)[-1:] = True
        yield name, part
    if isinstance(c, Conv2D) and by_matrices:
        rows, columns = (np.full(case.output, False) for _ in range(2))
        reference.channels_last(c, rows)[-1:, -1:, -1:] = True
        by_group = reference.channels_last(c, columns)
        for channels in np.split(by_group, group_count(case), 3):
            channels[..., -1:] = True
        yield from (("row", rows), ("column", columns))


def _constant_factor(subject: Subject, evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """One factor, by least squares, that explains all and is far nearer than what is due."""
    pairs = [(e.seen.actual[e.written], e.seen.due[e.written]) for e in evidence]
    got, due = (np.concatenate(side) for side in zip(*pairs, strict=True))
    factor = float(got @ due / (due @ due))
    if not np.isfinite(factor):
        return ()
    for e in evidence:
        rounding = 4 * subject.rounding(e.seen.case, abs(factor) * e.seen.magnitude)
        left = abs(e.seen.actual - factor * e.seen.due) > np.maximum(rounding, e.tolerance)
        if np.any(left & e.written):
            return ()
    if abs(got - factor * due).max() * 4 > abs(got - due).max():
        return ()
    return (f"is {factor_text(factor)} times what is due",)


def factor_text(factor: float) -> str:
    """Six digits; more for a factor that would read as 1."""
    return f"{factor:.6g}" if f"{factor:.6g}" != "1" else f"{factor:.9g}"


def _variants(evidence: Sequence[Evidence], variants: Mapping[str, Evaluate]) -> tuple[str, ...]:
    """The other ways to call it that give what is due, where the plain call does and does not."""
    failing = [e.seen for e in evidence if e.seen.failed]
    passing = [e.seen for e in evidence if not e.seen.failed and e.seen.due.size]
    tried = failing + passing[:_PASSING]

    def is_right(evaluate: Evaluate, o: Observation) -> bool:
        got = evaluate(o.case, o.left, o.right)
        called = dataclasses.replace(o, got=None if got is None else np.asarray(got))
        return called.has_due_shape and not called.failed

    names = (
        name for name, evaluate in variants.items() if all(is_right(evaluate, o) for o in tried)
    )
    return tuple(itertools.islice(names, AT_MOST))


def _not_finite(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    failing = [e for e in evidence if e.failed]
    everywhere = all(np.any(~np.isfinite(e.seen.actual) & e.written) for e in failing)
    return ("is NaN or infinite",) if failing and everywhere else ()
