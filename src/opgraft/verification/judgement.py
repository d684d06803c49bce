"""Weighing hypotheses against what came out of a thing under test."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from opgraft import reference
from opgraft.spec import Conv2D, MatMul
from opgraft.verification import number_types
from opgraft.verification.cases import Case
from opgraft.verification.due import small_integers
from opgraft.verification.forms import Form
from opgraft.verification.hypotheses import EXACT, HYPOTHESES
from opgraft.verification.subject import Observation, Subject
from opgraft.verification.variation import at_random, has_output

# Which elements of a case's output are never written; None if that is not known.
Unwritten = Callable[[Case], np.ndarray | None]
AT_MOST = 2  # names that are equally good
_CONFIRMATIONS = 6  # cases made to confirm a name
_PROBES = 24  # cases to look through for those
_MUCH_BETTER = 20  # times smaller a residual must be where nothing is exact


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """An observation, which of its elements were written, and how near is near."""

    seen: Observation
    written: np.ndarray
    tolerance: float

    @property
    def wrong(self) -> np.ndarray:
        """Elements that were written, and are not what is due."""
        return self.seen.wrong & self.written

    @property
    def failed(self) -> bool:
        return bool(self.wrong.any())

    def contradicts(self, predicted: np.ndarray) -> bool:
        """Whether a prediction is not what came out; its NaNs are not known."""
        known = ~np.isnan(predicted) & self.written
        return not np.all(abs(self.seen.actual - predicted)[known] <= self.tolerance)

    def distance(self, predicted: np.ndarray) -> float:
        """The mean difference, in units of the mean magnitude of the terms."""
        differences = abs(self.seen.actual - predicted)[~np.isnan(predicted) & self.written]
        scale = float(self.seen.magnitude.mean()) or 1.0
        return float(differences.mean()) / scale if differences.size else 0.0

    def is_explained_by(self, predicted: np.ndarray) -> bool:
        """Whether a prediction that does not contradict knows most of what was wrong."""
        wrong = self.wrong
        return bool(2 * (wrong & ~np.isnan(predicted)).sum() >= wrong.sum() > 0)


def has_matrices(evidence: Iterable[Evidence]) -> bool:
    """Whether matrix products are among the cases: then convolutions may be made of them."""
    return any(isinstance(e.seen.case.contraction, MatMul) for e in evidence)


# ---- what the thing under test is given ----------------------------------------------------

# A thing that has no parameters for a padding is given a padded image instead. Which paddings
# those are is not known here, so that every usual answer is a hypothesis of its own.
PaddedFirst = Callable[[Conv2D, tuple], bool]
_PADDED_FIRST: tuple[PaddedFirst, ...] = (
    lambda c, pads: False,
    lambda c, pads: c.padding != "SAME" or c.pad_value != 0,  # padding is a word
    lambda c, pads: True,  # there is no padding
    lambda c, pads: c.pad_value != 0,  # there is no pad value
    lambda c, pads: c.pad_value != 0 or any(a != b for a, b in pads),  # one number for two sides
    lambda c, pads: c.pad_value != 0 or len({*pads[0], *pads[1]}) > 1,  # for all four
)


def _is_padded_first(rule: PaddedFirst, case: Case) -> bool:
    c = case.contraction
    if not isinstance(c, Conv2D):
        return False
    pads = _pads(c, case)
    return bool(np.any(pads)) and rule(c, pads)


def _pads(c: Conv2D, case: Case) -> tuple:
    rows, columns = (c.axis(i, case.left[a], case.right[i]) for i, a in enumerate(c.spatial_axes))
    return ((rows.before, rows.after), (columns.before, columns.after))


def _as_given(
    rule: PaddedFirst, form: Form, case: Case, left: np.ndarray, right: np.ndarray, product
) -> np.ndarray | None:
    """A form of what the thing under test was given."""
    c = case.contraction
    if isinstance(c, Conv2D) and _is_padded_first(rule, case):
        x = reference.channels_last(c, left)
        x = reference.pad(x, _pads(c, case), c.pad_value)
        left = np.moveaxis(x, 3, 1) if c.channels_first else x
        plain = dataclasses.replace(c, padding="VALID", pad_value=0.0)
        case = Case(plain, left.shape, case.right)
    return form(case, left, right, product)


def _distinct_rules(cases: Sequence[Case]) -> list[PaddedFirst]:
    """One of those that come to the same."""
    by_answers = {
        tuple(_is_padded_first(rule, case) for case in cases): rule
        for rule in reversed(_PADDED_FIRST)
    }
    return list(by_answers.values())[::-1]


# ---- the weighing ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A form of a hypothesis, and how far it is from what came out in failing cases."""

    name: str
    form: Form
    residual: float


def names(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(candidate.name for candidate in candidates))[:AT_MOST]


class Judge:
    """Finds the hypotheses that explain a thing under test."""

    def __init__(self, subject: Subject, unwritten: Unwritten | None):
        self.subject = subject
        self.unwritten = unwritten

    def evidence(self, o: Observation) -> Evidence:
        mask = self.unwritten(o.case) if o.failed and self.unwritten else None
        written = np.full(o.due.shape, True) if mask is None else ~mask.reshape(o.due.shape)
        slack = float(o.allowed.max(initial=0.0))
        if self.subject.limit is None:
            return Evidence(o, written, 4 * slack)  # the allowance of other terms, but as many
        worst = np.where(o.wrong & np.isfinite(o.error), o.error, 0.0).max(initial=0.0)
        return Evidence(o, written, max(slack, worst / _MUCH_BETTER))

    def predict(self, form: Form, o: Observation) -> np.ndarray:
        """What the form gives; what is due where it does not apply."""
        meaning = self.subject.meaning
        predicted = form(o.case, *meaning.operands(o.left, o.right), meaning.product)
        return o.due if predicted is None else predicted

    def best(self, evidence: Sequence[Evidence]) -> list[Candidate]:
        """The forms that explain everything, also what is made to tell them apart."""
        ordered = sorted(evidence, key=lambda e: not e.failed)  # failing ones decide soonest
        candidates = [
            Candidate(name, form, residual)
            for name, form in self._forms(ordered)
            if (residual := self._residual(form, ordered)) is not None
        ]
        least = min((c.residual for c in candidates), default=0.0)
        return self._confirmed([c for c in candidates if c.residual <= 1.5 * least], evidence)

    def _forms(self, evidence: Sequence[Evidence]) -> Iterator[tuple[str, Form]]:
        """Every form of every hypothesis, of everything that may have been given."""
        claims_another = self.subject.meaning.multiply is not None
        known = (
            *([EXACT] if claims_another else []),
            *HYPOTHESES,
            *number_types.hypotheses(self.subject.dtype),
        )
        matrices = has_matrices(evidence)
        rules = _distinct_rules([e.seen.case for e in evidence])
        for hypothesis in known:
            for form, rule in itertools.product(hypothesis.forms, rules):
                yield hypothesis.name, functools.partial(_as_given, rule, form)
            if matrices:
                yield from ((hypothesis.name, form) for form in hypothesis.by_matrices)

    def _residual(self, form: Form, evidence: Iterable[Evidence]) -> float | None:
        """Its mean distance in failing cases; None if it is contradicted or explains too little."""
        distances, explained = [], 0
        for e in evidence:
            predicted = self.predict(form, e.seen)
            if e.contradicts(predicted):
                return None
            if e.failed:
                explained += e.is_explained_by(predicted)
                distances.append(e.distance(predicted))
        return float(np.mean(distances)) if 2 * explained >= len(distances) > 0 else None

    def _confirmed(
        self, candidates: list[Candidate], evidence: Iterable[Evidence]
    ) -> list[Candidate]:
        """Those that also explain cases made so that they say different things."""
        tried = 0
        for case in _probes(e.seen.case for e in evidence if e.failed):
            if not candidates or tried == _CONFIRMATIONS:
                break
            o = self.subject.expected(case, *small_integers(case, self.subject.dtype))
            predicted = [(c, self.predict(c.form, o)) for c in candidates]
            if not _tells_apart(o, predicted):
                continue
            tried += 1
            o = self.subject.tried(o)
            if o.has_due_shape:
                e = self.evidence(o)
                candidates = [c for c, p in predicted if not e.contradicts(p)]
        return candidates

    def covers_unwritten(self, candidate: Candidate, e: Evidence) -> bool:
        """Whether the form itself says that nobody writes what nobody wrote."""
        predicted = self.predict(candidate.form, e.seen)
        return bool(e.written.all() or np.isnan(predicted[~e.written]).all())


def _tells_apart(o: Observation, predicted: Sequence[tuple[Candidate, np.ndarray]]) -> bool:
    """Whether two names say different things; if there is but one, whether it differs from due."""
    slack = o.allowed.max(initial=0.0)
    others: list[tuple[str, np.ndarray]] = [(c.name, p) for c, p in predicted]
    if len({name for name, _ in others}) == 1:
        others = [("", o.due)]
    return any(
        np.any(abs(p - q) > slack) for c, p in predicted for name, q in others if name != c.name
    )


def _probes(cases: Iterable[Case]) -> Iterator[Case]:
    """The contractions of some failing cases by turns, at random sizes."""
    bases = list({c.contraction: c for c in cases if has_output(c)}.values())
    spread = bases[:: -(-len(bases) // 4)] if bases else []
    series = [at_random(base, _PROBES // len(spread), 7) for base in spread]
    return (case for turn in itertools.zip_longest(*series) for case in turn if case is not None)
