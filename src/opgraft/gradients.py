"""What backward means. The only place that says it.

Let q be the quantizers of an arithmetic, P its product and C the exact
contraction (matrix product or convolution). The forward is

    y = P(q(x), q(w)).

`native` declares the backward as the vector-Jacobian product of C at the
operands that the arithmetic really used, q(x) and q(w), pulled back through
each quantizer's own pseudo-gradient:

    dx = (dC/da)(q(x), q(w))ᵀ dy · q'(x),      dw = (dC/db)(q(x), q(w))ᵀ dy · q'(w).

With identity quantizers, as for a float C function, this is precisely the
framework's gradient of the operation that was replaced.

`by_contraction` computes the same two contractions under arithmetics of their
own, `custom` asks a Python function, `c_function` a C function.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from opgraft import functions
from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.values import Value

if TYPE_CHECKING:
    from opgraft.arithmetic import Arithmetic
    from opgraft.products import CSymbol
    from opgraft.spec import Contraction


class Gradient(Value):
    """How the gradient of a contraction is computed; a value like all others.

    Attributes:
        in_python: whether it needs Python code that no operation can carry.
    """

    in_python: bool = False
    supports_jit: ClassVar[bool] = False  # whether XLA can compile it

    def of(self, arithmetic: "Arithmetic") -> "Gradient":
        """This gradient with everything that it leaves to its arithmetic filled in."""
        return self

    def check(self, contraction: "Contraction") -> None:
        """Raise `UnsupportedError` for a contraction whose gradient it cannot compute."""


@dataclasses.dataclass(frozen=True)
class Native(Gradient):
    """The framework's own gradient of the exact contraction, at the operands used."""

    type_name: ClassVar[str] = "native"
    supports_jit: ClassVar[bool] = True


native = Native()


# ---- each backward contraction under an arithmetic of its own ----------------------------


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


# ---- a function of yours -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Custom(Gradient):
    """A Python function of tensors. See `custom`."""

    type_name: ClassVar[str] = "custom"
    in_python: ClassVar[bool] = True  # type: ignore[misc]
    supports_jit: ClassVar[bool] = True

    vjp: Callable[..., Any]
    check_finite: bool = False

    @property
    def knows_geometry(self) -> bool:
        """Whether the vjp is told of strides, padding and the like."""
        return functions.takes_keyword(self.vjp, "contraction")

    def to_config(self) -> dict[str, Any]:
        name = functions.registered_name(self.vjp, "the vjp")
        return {"type": self.type_name, "vjp": name, "check_finite": self.check_finite}

    @classmethod
    def from_fields(cls, vjp: str, check_finite: bool) -> "Custom":  # type: ignore[override]
        return cls(functions.registered(vjp), check_finite)


def custom(vjp: Callable[..., Any], *, check_finite: bool = False) -> Custom:
    """A gradient that a function of yours computes, its contract enforced.

    Args:
        vjp: `vjp(inputs, output, upstream)`, of tensors. `inputs` are the two operands
            (a named tuple: `a, b` of a matrix product, `x, kernel` of a convolution),
            `output` is what the forward gave, `upstream` is dL/d(output), of its shape.
            It returns one gradient per operand, each of the operand's shape and dtype.
            One that serves convolutions of any geometry takes `contraction` by keyword
            besides (a `Conv2D` with `.strides`, `.padding` ...).
            Write it in framework operations, and it can be differentiated again.
        check_finite: fail where a gradient has a NaN or an infinity.

    Raises:
        ArgumentError: `vjp` is no function of three arguments. When a gradient is
            computed: not one gradient per operand, None, or another shape.
        DtypeError: a gradient has another dtype than its operand.
        UnsupportedError: a second derivative is asked for that `vjp` cannot give.
    """
    functions.check_vjp(vjp)
    return Custom(vjp, bool(check_finite))


@dataclasses.dataclass(frozen=True)
class CVjp(Gradient):
    """One or two C functions that compute the gradients. See `c_function`."""

    type_name: ClassVar[str] = "c_vjp"

    symbols: "tuple[CSymbol, ...]"
    forward: Any = None  # the arithmetic of the forward, for a function that takes its output

    @property
    def in_python(self) -> bool:  # type: ignore[override]
        return self.forward is not None and self.forward.product.in_python

    @property
    def takes_output(self) -> bool:
        return any("output" in symbol.roles for symbol in self.symbols)

    def of(self, arithmetic: "Arithmetic") -> "CVjp":
        if self.forward is not None or not self.takes_output:
            return self
        return CVjp(self.symbols, dataclasses.replace(arithmetic, gradient=native))

    def to_config(self) -> dict[str, Any]:
        symbols = [list(dataclasses.astuple(symbol)) for symbol in self.symbols]
        return {"type": self.type_name, "symbols": symbols}

    @classmethod
    def from_fields(cls, symbols: Any) -> "CVjp":  # type: ignore[override]
        from opgraft.native import vjp

        return cls(vjp.reopened(symbols))

    def check(self, contraction: "Contraction") -> None:
        from opgraft.native import vjp

        vjp.check(self.symbols, contraction)


def c_function(
    library: Any,
    prototype: Any = None,
    *,
    roles: Any = None,
    thread_safe: bool = True,
    flags: Any = ("-O3",),
) -> CVjp:
    """A gradient that your C function computes: a second symbol, the VJP of the first.

    Its parameters are bound by name, as those of `og.c_function`. Beside the operands
    and the sizes, it takes the upstream gradient (`dy`, `upstream`, `grad_output` ...),
    of the output's shape, and writes the operands' gradients (`dx`, `da`,
    `grad_input` ... and `dw`, `db`, `grad_kernel` ...), every element of them. If it takes
    the output too (`y`, `out` ...), that is what the forward gave. One function may
    write both, or two functions one each (give both prototypes, separated by `;`).

        og.gradients.c_function("mm.c", "void mm_vjp(const float *a, const float *b, "
            "const float *dy, int m, int k, int n, float *da, float *db)")

    A matrix product's VJP serves convolutions through im2col, a convolution's serves
    convolutions only. There is no second order through it: asking for one is an error.

    Args:
        library, prototype, roles, thread_safe, flags: as in `og.c_function`.

    Raises:
        LibraryError, CompileError, PrototypeError: as `og.c_function`; or no gradient
            is written, or one is written twice.
    """
    from opgraft.native import vjp

    return CVjp(vjp.load(library, prototype, roles, thread_safe, flags))
