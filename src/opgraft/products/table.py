"""Products of two codes that stand in a table."""

import dataclasses
from typing import ClassVar

from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.multipliers import Multiplier
from opgraft.products._base import Product
from opgraft.quantizers import Linear, Quantizer
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul

_LARGEST = 2**24  # of an entry; a product of 8-bit numbers has 16 bits


def shared_axes(c: Contraction) -> tuple[int, ...]:
    """The axes of a kernel that are summed over; those that are left are output channels."""
    if isinstance(c, MatMul):
        return (-1 if c.transpose_b else -2,)
    return (0, 1) if isinstance(c, DepthwiseConv2D) else (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Table(Product):
    """Sums of table[activation, kernel] over quantized operands, exact in 32 or 64 bits.

    With zero points z_a and z_b what is summed is f(a, b) - z_a b - z_b a + z_a z_b, so that an
    exact multiplier gives the exact product of the quantized operands.

    Attributes:
        multiplier: of integers.
        exchanged: look up table[kernel, activation] instead.
        keeps_padding: padded taps go through the table with the code of 0, as in hardware that
            stores the padding; else they add nothing, whatever f(0, b) is.
    """

    type_name: ClassVar[str] = "table"

    multiplier: Multiplier
    exchanged: bool = False
    keeps_padding: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.multiplier, Multiplier):
            raise ArgumentError(
                f"Table({self.multiplier!r}): an og.Multiplier is needed; og.Multiplier.from_array "
                "makes one of a table"
            )
        if self.multiplier.signed is None or self.multiplier.table.dtype.kind != "i":
            raise UnsupportedError(
                f"{self.multiplier!r} is no product of integers; only these can be summed exactly"
            )
        if abs(self.multiplier.table).max() > _LARGEST:
            raise UnsupportedError(
                f"{self.multiplier!r} holds {abs(self.multiplier.table).max()}; products beyond "
                f"{_LARGEST} are none of 8-bit numbers, and are not summed"
            )

    @property
    def widths(self) -> tuple[int, int]:
        """Bits of the activation and of the kernel."""
        first, second = self.multiplier.widths
        return (second, first) if self.exchanged else (first, second)

    def check(self, contraction: Contraction) -> None:
        if isinstance(contraction, Conv2D) and contraction.pad_value:
            raise UnsupportedError(
                f"pad_value={contraction.pad_value:g}: a product by a table pads with 0. Pad the "
                "tensor before the operation"
            )

    def check_quantizers(self, input: Quantizer, kernel: Quantizer) -> None:
        for name, quantizer, bits in zip(
            ("input", "kernel"), (input, kernel), self.widths, strict=True
        ):
            signed = bool(self.multiplier.signed)
            due = f"og.quantizers.{'Symmetric' if signed else 'Affine'}({bits})"
            fits = isinstance(quantizer, Linear) and (quantizer.bits, quantizer.signed) == (
                bits, signed,
            )  # fmt: skip
            if not fits:
                kind = "signed" if signed else "unsigned"
                raise ArgumentError(
                    f"Arithmetic({name}={quantizer!r}): {self.multiplier!r} takes {kind} codes of "
                    f"{bits} bits there, as from {due}"
                )
        if getattr(input, "per_channel", False):
            raise ArgumentError(
                "Arithmetic(input=Symmetric(per_channel=True)): only a kernel has channels of its "
                "own in every output"
            )
