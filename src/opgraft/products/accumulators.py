"""How the products of one sum are added: what the accumulator of a hardware does.

The sums of one output start from 0 and take its products in the order of the reference's
loops: kernel row, kernel column, input channel; padded taps that add nothing are left out.
"""

import dataclasses
import functools
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from opgraft.errors import ArgumentError, PrototypeError
from opgraft.native import core
from opgraft.products.c_function import CSymbol
from opgraft.values import Value


class Accumulator(Value):
    """Adds integers, in order, from 0 on."""

    def add_up(self, products: np.ndarray, present: np.ndarray) -> np.ndarray:
        """The meaning, in NumPy.

        Args:
            products: [m, k, n] integers.
            present: [m, k], whether a product is there; else it is skipped.

        Returns:
            [m, n] sums over k.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Exact(Accumulator):
    """As wide as it must be: nothing is lost."""

    type_name: ClassVar[str] = "exact_sum"

    def add_up(self, products: np.ndarray, present: np.ndarray) -> np.ndarray:
        # One after the other: numbers that are no integers depend on the order.
        return np.cumsum(np.where(present[:, :, None], products, 0), axis=1)[:, -1]


exact = Exact()


@dataclasses.dataclass(frozen=True)
class _Width(Accumulator):
    """Of a stated width.

    Args:
        bits: 2 to 32.
        signed: whether it holds two's complement numbers, or none below 0.

    Raises:
        ArgumentError: the width is no such number.
    """

    bits: int
    signed: bool = True

    def __post_init__(self) -> None:
        whole = isinstance(self.bits, numbers.Integral) and not isinstance(self.bits, bool)
        if not whole or not 2 <= int(self.bits) <= 32:
            raise ArgumentError(
                f"an accumulator of bits={self.bits!r}: a whole number from 2 to 32 is needed"
            )
        object.__setattr__(self, "bits", int(self.bits))
        object.__setattr__(self, "signed", bool(self.signed))

    @property
    def low(self) -> int:
        return -(2 ** (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        return self.low + int(2**self.bits) - 1


@dataclasses.dataclass(frozen=True)
class Wrap(_Width):
    """Keeps the lowest bits of the sum, whatever the order: an overflow wraps around."""

    type_name: ClassVar[str] = "wrap"

    def add_up(self, products: np.ndarray, present: np.ndarray) -> np.ndarray:
        return (exact.add_up(products, present) - self.low) % 2**self.bits + self.low


@dataclasses.dataclass(frozen=True)
class Saturate(_Width):
    """Stops at its smallest and its largest number, after each product."""

    type_name: ClassVar[str] = "saturate"

    def add_up(self, products: np.ndarray, present: np.ndarray) -> np.ndarray:
        sums = np.zeros((products.shape[0], products.shape[2]), np.int64)
        for k in range(products.shape[1]):
            clipped = np.clip(sums + products[:, k], self.low, self.high)
            sums = np.where(present[:, k, None], clipped, sums)
        return sums


@dataclasses.dataclass(frozen=True)
class Adder(Accumulator):
    """A C function gives each sum. See `c_function`."""

    type_name: ClassVar[str] = "adder"

    symbol: CSymbol

    def add_up(self, products: np.ndarray, present: np.ndarray) -> np.ndarray:
        add = self.symbol.scalar()
        m, _, n = products.shape
        sums = np.zeros((m, n), np.int64)
        for i, j in np.ndindex(m, n):
            sums[i, j] = functools.reduce(add, products[i, present[i], j].tolist(), 0)
        return sums

    def to_config(self) -> dict[str, Any]:
        return {"type": self.type_name, "symbol": list(dataclasses.astuple(self.symbol))}

    @classmethod
    def from_fields(cls, symbol: Any) -> "Adder":  # type: ignore[override]
        found = CSymbol(*symbol)
        core.open_function(found.spec())  # refuse a library that is gone or has changed
        return cls(found)


def wrap(bits: int, *, signed: bool = True) -> Wrap:
    """An accumulator of so many bits (2 to 32) whose overflow wraps around."""
    return Wrap(bits, signed)


def saturate(bits: int, *, signed: bool = True) -> Saturate:
    """An accumulator of so many bits (2 to 32) that stops at its smallest and largest number."""
    return Saturate(bits, signed)


def c_function(library: Any, prototype: Any = None, *, thread_safe: bool = True,
               flags: str | Sequence[str] = ("-O3",)) -> Adder:  # fmt: skip
    """An adder of yours: a C function of two integers, called as add(sum, product).

    A sum or a product that is no value of its argument type fails the operation.

    Args:
        library, prototype, thread_safe, flags: as for `og.c_function`. Such as
            "int32_t add(int32_t sum, int32_t product)".

    Raises:
        LibraryError, CompileError, PrototypeError: as for `og.c_function`; or it is no function
            of two integers that returns one.
    """
    from opgraft.native import loading

    (symbol, *more) = loading.load_checked(library, prototype, None, thread_safe, flags)
    whole = symbol.kind == "scalar" and not {symbol.plan[0], symbol.operand_dtype[0]} & {"f", "d"}
    if more or not whole:
        raise PrototypeError(
            f"{symbol.prototype} is no adder: give one function of two integers that returns one, "
            "such as int32_t add(int32_t sum, int32_t product)"
        )
    return Adder(symbol)


__all__ = ["Accumulator", "Adder", "Exact", "Saturate", "Wrap", "c_function", "exact", "saturate",
           "wrap"]  # fmt: skip
