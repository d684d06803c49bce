"""What flowed back in one case, and whether that is what is due."""

import dataclasses
from collections.abc import Callable

import numpy as np

from opgraft import reference
from opgraft.spec import Contraction, Conv2D
from opgraft.verification.cases import Case
from opgraft.verification.findings import Deviation
from opgraft.verification.messages import number_of


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
    """What flowed back in one case with small integers."""

    case: Case
    left: np.ndarray
    right: np.ndarray
    upstream: np.ndarray
    due: tuple[np.ndarray, np.ndarray]
    got: tuple  # of arrays or None; of any length, from a vjp that breaks its contract
    error: str = ""
    allowed: tuple = (0.0, 0.0)  # by how much an element may be off

    def is_due(self, operand: int) -> bool:
        """Whether the gradient of operand 0 or 1 is what is due."""
        got, due = self.got[operand], self.due[operand]
        if got is None or got.dtype != np.float32 or got.shape != due.shape:
            return False
        return bool(np.all(abs(got - due) <= self.allowed[operand]))

    @property
    def wrong(self) -> bool:
        if self.error or len(self.got) != 2:
            return True
        return not (self.is_due(0) and self.is_due(1))


def padded_with(c: Contraction, change: Callable[[float], float]) -> Contraction:
    """The contraction with another pad value, if it has one."""
    if not isinstance(c, Conv2D):
        return c
    return dataclasses.replace(c, pad_value=change(c.pad_value))


def exact_product(c, left, right) -> np.ndarray:
    left, right = left.astype(np.float64), right.astype(np.float64)
    return reference.by_matmul(c, left, right, np.matmul)


def is_adjoint(flow: Flow) -> bool:
    if flow.error or len(flow.got) != 2 or any(g is None for g in flow.got):
        return False
    c, dy = flow.case.contraction, flow.upstream.astype(np.float64)
    v, u = (operand.astype(np.float64) for operand in flow.case.integers("adjoint"))
    if any(g.shape != x.shape for g, x in zip(flow.got, (v, u), strict=True)):
        return False
    dx, dw = (g.astype(np.float64) for g in flow.got)
    plain = padded_with(c, lambda _: 0.0)
    return bool(
        np.vdot(dy, exact_product(plain, v, flow.right)) == np.vdot(dx, v)
        and np.vdot(dy, exact_product(c, flow.left, u)) == np.vdot(dw, u)
    )


def described(flow: Flow) -> str:
    """In which case, for which operand, and by how much."""
    if flow.error:
        return f"smallest: {flow.error}"
    if len(flow.got) != 2:
        return f"the vjp returned {number_of(len(flow.got))} for 2 inputs"
    operand = next((i for i in (0, 1) if not flow.is_due(i)), None)
    if operand is None:
        return ""
    got, due = flow.got[operand], flow.due[operand]
    said = f"smallest: the gradient of {flow.case.contraction.operand_names[operand]}"
    if got is None:
        return f"{said} is None"
    if got.shape != due.shape or got.dtype != np.float32:
        return f"{said} is {got.dtype} of the shape {got.shape} where float32 of {due.shape} is due"
    at = np.unravel_index(np.argmax(abs(got - due)), due.shape)
    return f"{said} at {tuple(map(int, at))} is {got[at]:g} where {due[at]:g} is due"


def deviations(wrong: list[Flow]) -> tuple[Deviation, ...]:
    """The smallest case, each operand whose gradient is wrong in it."""
    flow = next((f for f in wrong if not f.error and len(f.got) == 2), None)
    if flow is None:
        return ()
    names = flow.case.contraction.operand_names
    return tuple(
        Deviation(
            f"gradient of {names[i]}", flow.case.id, flow.due[i], flow.got[i], flow.case.axes[i]
        )
        for i in (0, 1)
        if flow.got[i] is not None and not flow.is_due(i)
    )
