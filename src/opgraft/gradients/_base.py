"""The contract of a gradient, and the native one."""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from opgraft.values import Value

if TYPE_CHECKING:
    from opgraft.arithmetic import Arithmetic
    from opgraft.spec import Contraction


class Gradient(Value):
    """How the gradient of a contraction is computed; a value like all others.

    Attributes:
        in_python: whether it needs Python code that no operation can carry.
        of_codes: whether it is one of codes: then it is given the operands as they came to the
            arithmetic, goes back through the quantizers itself, and has a `meaning`.
        of_output: whether it is given what the forward gave, which is computed again.
    """

    in_python: bool = False
    of_codes: ClassVar[bool] = False
    of_output: bool = False
    supports_jit: ClassVar[bool] = False  # whether XLA can compile it

    def of(self, arithmetic: "Arithmetic") -> "Gradient":
        """This gradient with everything that it leaves to its arithmetic filled in."""
        return self

    def check(self, contraction: "Contraction") -> None:
        """Raise `UnsupportedError` for a contraction whose gradient it cannot compute."""

    def meaning(
        self, c: "Contraction", left: np.ndarray, right: np.ndarray, upstream: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The gradients of both operands, as they came, in NumPy; where they are `of_codes`."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Native(Gradient):
    """The framework's own gradient of the exact contraction, at the operands used."""

    type_name: ClassVar[str] = "native"
    supports_jit: ClassVar[bool] = True


native = Native()
