"""Mistakes in the types of numbers: operands read as another type, sums in one too small."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from opgraft.verification.due import compute, terms
from opgraft.verification.hypotheses import Hypothesis
from opgraft.verification.subject import Observation

# Bits of the significand of types that sums may be kept in, by name, the narrowest first.
_SIGNIFICANDS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def sums_in_narrow_floats(dtype: np.dtype, numbers: Sequence[Observation]) -> tuple[str, ...]:
    """The floating type whose rounding explains outputs for random numbers, if it is too narrow.

    Every output must be a number of that type, which random sums in a wider one
    are not, and no further off than its rounding.
    """
    seen = [o for o in numbers if o.ran and o.due.size]
    if dtype.kind != "f" or not any(o.failed for o in seen):
        return ()
    for name, bits in _SIGNIFICANDS.items():
        if 2.0 ** (1 - bits) <= np.finfo(dtype).eps:
            break
        if all(_is_rounded_to(bits, o) for o in seen):
            return (f"agrees with sums in {name}",)
    return ()


def _is_rounded_to(bits: int, o: Observation) -> bool:
    if not o.has_due_shape or not np.all(np.isfinite(o.actual)):
        return False
    significands = np.ldexp(np.frexp(o.actual)[0], bits)
    allowed = (terms(o.case) + 1) * 2.0 ** (1 - bits) * o.magnitude + o.allowed
    return bool(np.all(significands == np.rint(significands)) and np.all(o.error <= allowed))


def hypotheses(dtype: np.dtype) -> Iterator[Hypothesis]:
    """For operands of an integer type."""
    if dtype.kind not in "iu":
        return
    bits = 8 * dtype.itemsize
    other = f"{'u' if dtype.kind == 'i' else ''}int{bits}_t"
    reread = functools.partial(_reread, bits, dtype.kind == "i")
    yield Hypothesis(f"agrees with {other} instead of {dtype.name}_t", (reread,))
    for width in (8, 16):
        for signed in (True, False):
            name = f"{'' if signed else 'u'}int{width}"
            forms = tuple(functools.partial(form, width, signed) for form in (_wrapped, _clipped))
            yield Hypothesis(f"agrees with sums in {name}", forms)


def _reread(bits, was_signed, case, left, right, product):
    """Operands of the same bits with the sign's bit read otherwise."""
    span = 2**bits
    left, right = (
        np.where(v < 0, v + span, v) if was_signed else np.where(v >= span // 2, v - span, v)
        for v in (left, right)
    )
    return compute(case.contraction, left, right, product)


def _wrapped(bits, signed, case, left, right, product):
    """Sums modulo the span of the type."""
    start = -(2.0 ** (bits - 1)) if signed else 0.0
    return (compute(case.contraction, left, right, product) - start) % 2.0**bits + start


def _clipped(bits, signed, case, left, right, product):
    """Sums that stop at the ends of the type."""
    start = -(2.0 ** (bits - 1)) if signed else 0.0
    return np.clip(compute(case.contraction, left, right, product), start, start + 2.0**bits - 1)
