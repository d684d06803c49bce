"""Each of the two backward contractions under an arithmetic of its own."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.gradients._base import Gradient, native
from opgraft.values import Value

if TYPE_CHECKING:
    from opgraft.arithmetic import Arithmetic
    from opgraft.spec import Contraction


@dataclasses.dataclass(frozen=True)
class Same(Value):
    """Stands for the arithmetic of the forward."""

    type_name: ClassVar[str] = "same"


same = Same()


@dataclasses.dataclass(frozen=True)
class ByContraction(Gradient):
    """The two contractions of the native gradient, each under an arithmetic. See `by_contraction`.

    Attributes:
        grad_input, grad_kernel: an `Arithmetic`, or `same`.
    """

    type_name: ClassVar[str] = "by_contraction"

    grad_input: Any
    grad_kernel: Any

    @property
    def in_python(self) -> bool:  # type: ignore[override]
        parts = [part for part in (self.grad_input, self.grad_kernel) if part != same]
        return any(part.product.in_python or part.gradient.in_python for part in parts)

    def check(self, contraction: "Contraction") -> None:
        from opgraft.spec import Conv2D

        of_input = of_kernel = contraction
        if isinstance(contraction, Conv2D):  # see backends: strides become dilations
            strides, dilations = contraction.strides, contraction.dilations
            of_input = Conv2D(dilations=dilations)
            of_kernel = Conv2D(strides=dilations, dilations=strides)
        for name, part, backward in (("grad_input", self.grad_input, of_input),
                                     ("grad_kernel", self.grad_kernel, of_kernel)):  # fmt: skip
            try:
                part.check(backward)
            except UnsupportedError as error:
                raise UnsupportedError(f"{name}, a {backward} in itself: {error}") from None

    @property
    def is_native(self) -> bool:
        """Whether both are exact, which is the native gradient."""
        from opgraft.arithmetic import exact

        return self.grad_input == self.grad_kernel == exact

    @property
    def supports_jit(self) -> bool:  # type: ignore[override]
        return self.is_native

    def of(self, arithmetic: "Arithmetic") -> Gradient:
        if self.is_native:
            return native
        # Its own gradient, for second order, is native: anything else would never end.
        plain = dataclasses.replace(arithmetic, gradient=native)
        parts = (plain if part == same else part for part in (self.grad_input, self.grad_kernel))
        return ByContraction(*parts)


def by_contraction(grad_input: Any = None, grad_kernel: Any = None) -> ByContraction:
    """The native gradient's two contractions, each under an arithmetic of its own.

    For a matrix product y = A·W they are dA = dy·Wᵀ and dW = Aᵀ·dy; for a convolution,
    dy against the rotated kernel, and the input against dy. Zeros that a stride or a
    padding puts between and around dy go through the arithmetic like all numbers.

    Args:
        grad_input, grad_kernel: an `og.Arithmetic`; `og.gradients.same` for the one of
            the forward; None for exact.

    Raises:
        ArgumentError: it is neither.
    """
    from opgraft import arithmetic

    def read(name: str, value: Any) -> Any:
        if value == same:
            return value
        try:
            return arithmetic.standardize(value)
        except ArgumentError:
            raise ArgumentError(
                f"by_contraction({name}={value!r}): an og.Arithmetic is needed, or "
                "og.gradients.same, or None for exact"
            ) from None

    return ByContraction(read("grad_input", grad_input), read("grad_kernel", grad_kernel))
