"""When it is wrong: a rule about sizes that tells failing cases from passing ones.

The case table is never square and seldom all even, so a rule is decided on
cases made for it: the failing contractions at random small sizes.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from opgraft.spec import Conv2D, MatMul
from opgraft.verification import due
from opgraft.verification.cases import Case
from opgraft.verification.subject import Observation, Subject, alike
from opgraft.verification.variation import (
    Sizes,
    at_random,
    batch_name,
    first_of_batch,
    has_output,
    resized,
    sizes,
)

_BASES = 3  # contractions to try
_PROBES = 20  # cases of each
_ENOUGH = 4  # cases on either side of a rule
_BATCHES = (1, 2, 3, 4)
_ONLY_SEVERAL = "wrong only for batch > 1"


def patterns(subject: Subject, seen: Sequence[Observation]) -> tuple[str, ...]:
    """The rules that hold, for the batch or for sizes; what tells cases apart goes first."""
    failing = [o.case for o in seen if o.failed and has_output(o.case)]
    plainest = min(map(_padding, failing), default=0)
    failing = [case for case in failing if _padding(case) == plainest]
    bases = list({(c.contraction, c.right): c for c in reversed(failing)}.values())[::-1][:_BASES]
    about_batches = _about_batches(subject, bases, seen)
    if _ONLY_SEVERAL in about_batches:
        return about_batches
    return _about_sizes(subject, bases, failing) or about_batches


def _padding(case: Case) -> int:
    """Whether it is certain that the image is given as it is: something may be given it padded."""
    c = case.contraction
    if isinstance(c, MatMul) or (isinstance(c, Conv2D) and c.padding == "VALID"):
        return 0
    return 1 if isinstance(c, Conv2D) and c.padding == "SAME" and not c.pad_value else 2


# ---- the batch ---------------------------------------------------------------------------


def _about_batches(
    subject: Subject, bases: Iterable[Case], seen: Sequence[Observation]
) -> tuple[str, ...]:
    series = [runs for base in bases if (runs := _series(subject, base))]
    if not series or not _is_deterministic(subject, series[0][-1]):
        return ()
    alone = [o for o in seen if o.ran and sizes(o.case)[batch_name(o.case)] == 1]
    first, *others = zip(*series, strict=True)
    only_alone_right = (
        not any(o.failed for o in (*alone, *first))
        and len([*alone, *first]) >= _ENOUGH
        and all(o.failed for runs in others for o in runs)
    )
    found = (_ONLY_SEVERAL,) if only_alone_right else ()
    compared = [runs[1:] for runs in series] if only_alone_right else series
    values_depend = 2 * sum(_first_differs(subject, runs) for runs in compared) >= len(series)
    some_are_right = all(len({o.failed for o in runs}) == 2 for runs in compared)
    return (*found, "depends on the batch size") if values_depend or some_are_right else found


def _series(subject: Subject, base: Case) -> list[Observation]:
    """The same images in batches of 1, 2, 3 ..., or nothing if one could not run."""
    name = batch_name(base)
    largest = resized(base, **{name: _BATCHES[-1]})
    left, right = due.small_integers(largest, subject.dtype)
    runs = []
    for count in _BATCHES:
        case = resized(base, **{name: count})
        runs.append(subject.observe(case, first_of_batch(largest, left, count), right))
    return runs if all(o.has_due_shape for o in runs) else []


def _is_deterministic(subject: Subject, o: Observation) -> bool:
    again = subject.run(o.case, o.left, o.right)
    return again is not None and np.array_equal(again, o.actual, equal_nan=True)


def _first_differs(subject: Subject, runs: Sequence[Observation]) -> bool:
    """Whether the first image's output is another one in another batch."""
    axis = -2 if batch_name(runs[0].case) == "m" else 0
    firsts = [np.take(o.actual, 0, axis) for o in runs]
    slack = 2 * np.take(subject.rounding(runs[0].case, runs[0].magnitude), 0, axis)
    return not all(alike(y, firsts[0], slack) for y in firsts[1:])


# ---- odd and non-square sizes --------------------------------------------------------------

Rule = Callable[[Sizes], bool]
Tried = tuple[Sizes, bool]  # the sizes of a case, and whether it failed


def _about_sizes(
    subject: Subject, bases: Sequence[Case], failing: Sequence[Case]
) -> tuple[str, ...]:
    """The rule with the fewest exceptions."""
    if not bases:
        return ()
    kind = sizes(bases[0]).keys()
    probes = [
        (sizes(o.case), o.failed)
        for number, base in enumerate(bases)
        for o in map(subject.integers, at_random(base, _PROBES, number))
        if o.ran and sizes(base).keys() == kind
    ]
    wrong = [s for s in map(sizes, failing) if s.keys() == kind]
    counted = [
        (exceptions, name)
        for name, rule in _rules("m" in kind)
        if (exceptions := _exceptions(rule, probes, wrong)) is not None
    ]
    return (min(counted, key=lambda pair: pair[0])[1],) if counted else ()


def _exceptions(rule: Rule, probes: Sequence[Tried], failing: Iterable[Sizes]) -> int | None:
    """How many pass that the rule says are wrong; None if it does not tell cases apart."""
    inside = [failed for s, failed in probes if rule(s)]
    outside = [failed for s, failed in probes if not rule(s)]
    if any(outside) or len(outside) < _ENOUGH or sum(inside) < _ENOUGH:
        return None
    passing = len(inside) - sum(inside)
    return passing if 5 * passing <= len(inside) and all(map(rule, failing)) else None


def _rules(matrix: bool) -> Iterator[tuple[str, Rule]]:
    """Of one size, of several: which one it is, is not said, because the pattern is what helps."""
    if matrix:
        together = [("m", "k"), ("k", "n"), ("m", "n"), ("m", "k", "n")]
        pairs = [[("m", "k")], [("k", "n")], [("m", "n")], [("m", "k"), ("k", "n")]]
    else:
        together = [("h", "w"), ("oh", "ow"), ("kh", "kw"), ("in", "out")]
        image, output, kernel = [("h", "w")], [("oh", "ow")], [("kh", "kw")]
        pairs = [image, output, kernel, [("in", "out")]]
        pairs += [image + output, image + kernel, output + kernel, image + output + kernel]
    singles = [(name,) for name in dict.fromkeys(sum(together, ()))]
    for names in (*singles, *together):
        for quantifier in (any, all):
            yield "wrong only for odd sizes", functools.partial(_is_odd, names, quantifier)
    for unequal in pairs:
        yield "wrong only for non-square sizes", functools.partial(_is_unequal, unequal)
    for p, q in itertools.chain.from_iterable(pairs):
        yield "wrong only for non-square sizes", functools.partial(_is_larger, p, q)
        yield "wrong only for non-square sizes", functools.partial(_is_larger, q, p)


def _is_odd(names: Iterable[str], quantifier: Callable[[Iterable[bool]], bool], s: Sizes) -> bool:
    return quantifier(s[name] % 2 == 1 for name in names)


def _is_unequal(pairs: Iterable[tuple[str, str]], s: Sizes) -> bool:
    return any(s[p] != s[q] for p, q in pairs)


def _is_larger(p: str, q: str, s: Sizes) -> bool:
    return s[p] > s[q]
