"""Whether each image is computed by itself: alone as among others, whatever the others are."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from opgraft.spec import Conv2D, MatMul
from opgraft.verification import due
from opgraft.verification.cases import Case
from opgraft.verification.findings import Check
from opgraft.verification.subject import Observation, Subject, alike
from opgraft.verification.variation import batch_name, first_of_batch, has_output, resized, sizes

_ALONE = 24  # cases whose images are computed alone too
_IMAGES = 3  # images of each
_SPECIAL = 6  # cases with a NaN or an infinity


def check_batch(subject: Subject, seen: Sequence[Observation]) -> list[Check]:
    """Each image alone; of a matrix product each row. Nothing where no case has several.

    Not bit for bit: a blocked kernel may sum the last rows of a batch in another order.
    """
    proves = (
        "an image (of a matrix product: a row) gives the same alone as among others, up to "
        "rounding and twice the limit; nothing about batches beyond those tried"
    )
    compared, depends = 0, False
    for o in (chosen := _with_several(seen, _ALONE)):
        for index in range(0, _count(o.case), -(-_count(o.case) // _IMAGES)):
            agrees = _agrees_alone(subject, o, index)
            if agrees is None:
                continue
            if not any(agrees):
                message = f"{o.case.id}: {_noun(o.case)} {index} gives something else alone"
                return [Check("batch", False, message, proves, o.case.id)]
            compared += 1
            depends |= not agrees[0]
    if not chosen:
        return []
    message = f"{compared} computed alone"
    if depends:
        message += "; what others are in the batch changes the result, by less than the limit"
    return [Check("batch", True if compared else None, message, proves)]


def check_special_values(subject: Subject, seen: Sequence[Observation]) -> list[Check]:
    """NaN and infinity, for exact floating products only: only of these it is certain what is due.

    Outputs of the same image that do not use the element are not judged: a
    correct kernel may have multiplied it by a zero.
    """
    exact = subject.limit is None and subject.meaning.multiply is None
    if not exact or subject.dtype.kind != "f":
        return []
    proves = (
        "a NaN or an infinity in an image reaches every output that uses it, and no other image; "
        "nothing about other outputs of the same image"
    )
    compared = 0
    for number, o in enumerate(chosen := _with_several(seen, _SPECIAL)):
        wrong = _wrong_spread(subject, o, (np.nan, np.inf, -np.inf)[number % 3])
        if wrong:
            message = f"{o.case.id}: {wrong}"
            return [Check("special values", False, message, proves, o.case.id)]
        compared += wrong is not None
    if not chosen:
        return []
    return [Check("special values", True if compared else None, f"{compared} cases", proves)]


def _with_several(seen: Sequence[Observation], most: int) -> list[Observation]:
    """Some of those with more than one image, evenly spread."""
    several = [o for o in seen if o.has_due_shape and has_output(o.case) and _count(o.case) > 1]
    return several[:: -(-len(several) // most)] if several else []


def _count(case: Case) -> int:
    return sizes(case)[batch_name(case)]


def _noun(case: Case) -> str:
    return "row" if isinstance(case.contraction, MatMul) else "image"


def _axis(case: Case) -> int:
    """Of the output, along which the images lie."""
    return -2 if isinstance(case.contraction, MatMul) else 0


def _agrees_alone(subject: Subject, o: Observation, index: int) -> tuple[bool, bool] | None:
    """Whether one image gives the same by itself, to rounding and within the limit.

    None if that could not run.
    """
    case = resized(o.case, **{batch_name(o.case): 1})
    c = o.case.contraction
    axis = 0 if isinstance(c, Conv2D) else -1 if getattr(c, "transpose_a", False) else -2
    alone = subject.run(case, np.ascontiguousarray(np.take(o.left, [index], axis)), o.right)
    if alone is None:
        return None
    together = np.take(o.actual, [index], _axis(case))
    if alone.shape != together.shape:
        return False, False
    rounding = subject.rounding(o.case, o.magnitude)
    to_rounding, within = (
        alike(alone.astype(np.float64), together, 2 * np.take(allowed, [index], _axis(case)))
        for allowed in (rounding, rounding + (subject.limit or 0.0) * o.magnitude)
    )
    return to_rounding, within


def _wrong_spread(subject: Subject, o: Observation, value: float) -> str | None:
    """What is wrong after an element of the first image became `value`.

    "" if nothing is, None if it could not run.
    """
    left, place = o.left.copy(), np.zeros(o.left.shape)
    first = first_of_batch(o.case, left, 1)
    at = tuple(size // 2 for size in first.shape)
    first[at] = value
    first_of_batch(o.case, place, 1)[at] = 1
    with np.errstate(all="ignore"):
        got = subject.run(o.case, left, o.right)
    if got is None or got.shape != o.due.shape:
        return None
    users = due.Meaning().magnitude(_padded_with_zeros(o.case), place, o.right) > 0
    if np.isfinite(got[users]).any():
        return f"{value} at {list(at)} of the first {_noun(o.case)} does not reach all that use it"
    axis = _axis(o.case)
    slack = 2 * subject.rounding(o.case, o.magnitude)
    others = (np.delete(array, 0, axis) for array in (got.astype(np.float64), o.actual, slack))
    if not alike(*others):
        return f"{value} in the first {_noun(o.case)} changes the outputs of others"
    return ""


def _padded_with_zeros(case: Case) -> Case:
    c = case.contraction
    if isinstance(c, Conv2D):
        return dataclasses.replace(case, contraction=dataclasses.replace(c, pad_value=0.0))
    return case
