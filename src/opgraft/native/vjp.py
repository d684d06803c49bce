"""C functions that compute gradients: found, bound, and told which contraction they serve."""

from collections.abc import Iterable, Sequence

from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.native import core, loading, prototype
from opgraft.products.c_function import CSymbol
from opgraft.spec import Contraction, Conv2D

GRADIENTS = ("grad_input", "grad_kernel")


def load(library, declared, roles, thread_safe, flags) -> tuple[CSymbol, ...]:
    """The symbols of `gradients.c_function`, which says what is raised."""
    symbols = loading.load_checked(library, declared, roles, thread_safe, flags, prototype.bind_vjp)
    for kind in sorted({symbol.kind for symbol in symbols}):
        for gradient in GRADIENTS:
            writers = [s.symbol for s in symbols if s.kind == kind and writes(s, gradient)]
            if len(writers) != 1:
                who = f"{' and '.join(writers)} write" if writers else "nothing writes"
                raise ArgumentError(
                    f"{who} {gradient} of a {kind.removesuffix('_vjp')}; exactly one C function "
                    "must. Give the prototypes of both functions, separated by a semicolon"
                )
    return symbols


def reopened(symbols: Iterable[Sequence]) -> tuple[CSymbol, ...]:
    """The symbols that were written down; a library that is gone or has changed is refused."""
    found = tuple(CSymbol(*fields) for fields in symbols)
    for symbol in found:
        core.open_function(symbol.spec())
    return found


def writes(symbol: CSymbol, gradient: str) -> bool:
    return gradient in symbol.roles


def serving(symbols: Sequence[CSymbol], contraction: Contraction) -> list[CSymbol]:
    """Those that compute the gradients of this contraction: its own kind, else a matrix product's.

    Raises:
        UnsupportedError: there are none.
    """
    kinds = ["conv2d_vjp", "matmul_vjp"] if isinstance(contraction, Conv2D) else ["matmul_vjp"]
    for kind in kinds:
        found = [symbol for symbol in symbols if symbol.kind == kind]
        if found:
            return found
    names = ", ".join(symbol.symbol for symbol in symbols)
    raise UnsupportedError(
        f"{names} computes gradients of a convolution and cannot serve a matrix product (a dense "
        "layer). Give the VJP of a matmul, which serves both"
    )


def check(symbols: Sequence[CSymbol], contraction: Contraction) -> None:
    """Raise `UnsupportedError` for a contraction whose gradients they cannot compute."""
    for symbol in serving(symbols, contraction):
        if symbol.kind != "conv2d_vjp":
            continue
        assert isinstance(contraction, Conv2D)
        for name, pair in (("stride", contraction.strides), ("dilation", contraction.dilations)):
            if not symbol.takes_pair(name, pair):
                raise UnsupportedError(
                    f"{symbol.symbol} has no {name} parameters, and the call has {name}s {pair}. "
                    f"Add {name}_h and {name}_w to the C function, or give the VJP of a matmul, "
                    "which serves every convolution"
                )
