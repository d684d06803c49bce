"""Gradients that a function of yours computes, in Python or in C."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from opgraft import functions
from opgraft.gradients._base import Gradient, native

if TYPE_CHECKING:
    from opgraft.arithmetic import Arithmetic
    from opgraft.products import CSymbol
    from opgraft.spec import Contraction


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
    def of_output(self) -> bool:  # type: ignore[override]
        return any("output" in symbol.roles for symbol in self.symbols)

    def of(self, arithmetic: "Arithmetic") -> "CVjp":
        if self.forward is not None or not self.of_output:
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
