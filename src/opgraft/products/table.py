"""Products of two codes that stand in a table."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.multipliers import Multiplier
from opgraft.products import accumulators
from opgraft.products.accumulators import Accumulator
from opgraft.products.quantized import Quantized
from opgraft.quantizers import Affine, Levels, Linear, Quantizer, Scaled, Symmetric

_LARGEST = 2**24  # of a whole entry; a product of 8-bit numbers has 16 bits


@dataclasses.dataclass(frozen=True)
class Table(Quantized):
    """Sums of table[activation, kernel] over quantized operands.

    Whole numbers are summed exactly, in 32 or 64 bits, unless `accumulator` says otherwise;
    others in double, in the order of the reference's loops.

    Attributes:
        multiplier: of numbers of at most 8 bits.
        exchanged: look up table[kernel, activation] instead.
        keeps_padding: padded taps go through the table with the code of 0, as in hardware that
            stores the padding; else they add nothing, whatever f(0, b) is.
        accumulator: how the products are added; f(a, b) goes through it, the terms of the zero
            points are added exactly afterwards.
    """

    type_name: ClassVar[str] = "table"

    multiplier: Multiplier
    exchanged: bool = False
    keeps_padding: bool = False
    accumulator: Accumulator = accumulators.exact

    def __post_init__(self) -> None:
        if not isinstance(self.multiplier, Multiplier):
            raise ArgumentError(
                f"Table({self.multiplier!r}): an og.Multiplier is needed; og.Multiplier.from_array "
                "makes one of a table"
            )
        if not isinstance(self.accumulator, Accumulator):
            raise ArgumentError(
                f"accumulator={self.accumulator!r}: one of og.accumulators is needed, such as "
                "og.accumulators.saturate(20)"
            )
        if not self.is_whole:
            self._check_real()
        elif abs(self.multiplier.table).max() > _LARGEST:
            raise UnsupportedError(
                f"{self.multiplier!r} holds {abs(self.multiplier.table).max()}; products beyond "
                f"{_LARGEST} are none of 8-bit numbers, and are not summed"
            )

    def _check_real(self) -> None:
        if self.accumulator != accumulators.exact:
            raise UnsupportedError(
                f"{self.multiplier!r} gives numbers that are no integers; these are summed in "
                f"double, not by {self.accumulator!r}"
            )
        if self.multiplier.signed is not None:
            raise UnsupportedError(
                f"{self.multiplier!r} gives numbers that are no integers for operands that are; "
                "scale its results to integers, or say by `values` what its codes stand for"
            )

    @property
    def label(self) -> str:
        return repr(self.multiplier)

    @property
    def is_whole(self) -> bool:
        """Whether operands and products are integers."""
        return self.multiplier.signed is not None and self.multiplier.table.dtype.kind == "i"

    @property
    def entries(self) -> np.ndarray:
        """[code of the activation, code of the kernel]"""
        return self.multiplier.table.T if self.exchanged else self.multiplier.table

    @property
    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """What each code of the activation, and of the kernel, stands for."""
        first, second = self.multiplier.values
        return (second, first) if self.exchanged else (first, second)

    @property
    def widths(self) -> tuple[int, int]:
        """Bits of the activation and of the kernel."""
        first, second = self.multiplier.widths
        return (second, first) if self.exchanged else (first, second)

    @property
    def default_quantizers(self) -> tuple[Quantizer, Quantizer]:
        return self._quantizer(0), self._quantizer(1)

    def _quantizer(self, operand: int) -> Scaled:
        if self.multiplier.signed is None:
            return Levels.of(self.values[operand])
        return (Symmetric if self.multiplier.signed else Affine)(self.widths[operand])

    def of_codes(self, a: np.ndarray, b: np.ndarray, input: Any, kernel: Any) -> np.ndarray:
        return self.entries[a, b]

    def check_quantizers(self, input: Quantizer, kernel: Quantizer) -> None:
        for operand, (name, quantizer) in enumerate((("input", input), ("kernel", kernel))):
            due = self._quantizer(operand)
            if self._makes_codes(quantizer, due):
                continue
            if isinstance(due, Levels):
                takes, such = "codes of its own numbers", "Levels.of(multiplier.values[...])"
            else:
                signed = bool(self.multiplier.signed)
                takes = f"{'signed' if signed else 'unsigned'} codes of {due.bits} bits"
                such = f"{type(due).__name__}({due.bits})"
            raise ArgumentError(
                f"Arithmetic({name}={quantizer!r}): {self.multiplier!r} takes {takes} there, as "
                f"from og.quantizers.{such}"
            )
        super().check_quantizers(input, kernel)

    @staticmethod
    def _makes_codes(quantizer: Quantizer, due: Scaled) -> bool:
        """Whether it makes the codes of `due`, if with another scale."""
        if isinstance(due, Levels):
            return isinstance(quantizer, Levels) and quantizer.levels == due.levels
        assert isinstance(due, Linear)
        return isinstance(quantizer, Linear) and (
            (quantizer.bits, quantizer.signed) == (due.bits, due.signed)
        )
