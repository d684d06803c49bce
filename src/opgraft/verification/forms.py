"""Forms of a mistake: how an alternative meaning of a contraction is made from the right one."""

import functools
from collections.abc import Callable

import numpy as np

from opgraft.spec import Conv2D, MatMul
from opgraft.verification.cases import Case
from opgraft.verification.due import Product, compute
from opgraft.verification.loops import Loops, to_layout

# The output that is due under a mistake, for a case, its operands and the product of two
# matrices: NaN where it cannot tell (memory that nobody wrote, or beyond the operands), and None
# where the mistake does not apply.
Form = Callable[[Case, np.ndarray, np.ndarray, Product], np.ndarray | None]
Rewrite = Callable[[Loops], Loops | None]  # None: the mistake cannot be made here
Rearrange = Callable[[np.ndarray], np.ndarray]


def rewritten(rewrite: Rewrite) -> Form:
    """A convolution whose loops are others."""

    def form(case, left, right, product):
        if not isinstance(case.contraction, Conv2D):
            return None
        loops = Loops.of(case, left, right)
        changed = rewrite(loops)
        if changed is None:
            return None
        return to_layout(case, _in_place(changed.compute(product), loops.shape))

    return form


def _in_place(y: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An output of another shape as it lies in the memory of the one that is due."""
    if y.shape == shape:
        return y
    memory = np.full(shape, np.nan)
    count = min(y.size, memory.size)
    memory.reshape(-1)[:count] = y.reshape(-1)[:count]
    return memory


def rearranged(rearrange: Rearrange) -> Form:
    """A convolution whose right output, NHWC, is rearranged."""

    def form(case, left, right, product):
        if not isinstance(case.contraction, Conv2D):
            return None
        return to_layout(case, rearrange(Loops.of(case, left, right).compute(product)))

    return form


def multiplied(wrap: Callable[[Product], Product]) -> Form:
    """A contraction through another product of two matrices."""
    return lambda case, left, right, product: compute(case.contraction, left, right, wrap(product))


def by_matrices(wrap: Callable[[Product], Product]) -> tuple[Form, Form]:
    """The same where convolutions are computed by it, and where they are not."""
    everywhere = multiplied(wrap)

    def form(case, *arguments):
        return everywhere(case, *arguments) if isinstance(case.contraction, MatMul) else None

    return everywhere, form


def of_other_geometry(change: Rewrite) -> tuple[Form, ...]:
    """A change of the contraction's fields, by kernels that go on from there in four ways."""
    ways: tuple[Rewrite, ...] = (
        lambda loops: loops,  # from the start and to the output size that are due
        Loops.started_anew,  # from the start that the changed fields give
        Loops.reading_on,
        Loops.resolved,  # start and output size, as it then lies in memory
    )
    return tuple(rewritten(functools.partial(then, change, way)) for way in ways)


def then(first: Rewrite, second: Rewrite, loops: Loops) -> Loops | None:
    between = first(loops)
    return None if between is None else second(between)
