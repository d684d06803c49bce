"""Products of two codes that stand in a table."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from opgraft import reference
from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.multipliers import Multiplier
from opgraft.multipliers.codes import integers
from opgraft.products._base import Product
from opgraft.quantizers import Linear, Quantizer
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul

_LARGEST = 2**24  # of an entry; a product of 8-bit numbers has 16 bits


def shared_axes(c: Contraction) -> tuple[int, ...]:
    """The axes of a kernel that are summed over; those that are left are output channels."""
    if isinstance(c, MatMul):
        return (-1 if c.transpose_b else -2,)
    return (0, 1) if isinstance(c, DepthwiseConv2D) else (0, 1, 2)


def _beside_output(c: Contraction, scale: np.ndarray) -> np.ndarray:
    """A kernel's scale, of one number or one for each channel, as it lies beside the output."""
    if scale.size == 1:
        return scale.reshape(())
    if isinstance(c, MatMul):
        return np.swapaxes(scale, -1, -2) if c.transpose_b else scale
    channels_first = isinstance(c, Conv2D) and c.channels_first
    return scale.reshape([1, -1, 1, 1] if channels_first else [1, 1, 1, -1])


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

    def meaning(
        self, c: Contraction, input: Linear, kernel: Linear, left: np.ndarray, right: np.ndarray
    ) -> np.ndarray:
        """What the arithmetic gives, in NumPy and float64: the loop nest over the table.

        Args:
            c: the contraction, which pads with 0.
            input, kernel: the quantizers.
            left, right: the operands, of the shapes that the contraction takes.

        Returns:
            s_x s_w times the sums of the table's entries, of the output's shape.
        """
        shape: Any = c.output_shape(left.shape, right.shape)
        if 0 in (*shape, left.size, right.size):  # nothing to sum
            return np.zeros(shape)
        a, b = input.encode(left), kernel.encode(right, shared_axes(c))
        entries = self.multiplier.table.T if self.exchanged else self.multiplier.table
        first, second = (integers(bits, bool(self.multiplier.signed)) for bits in self.widths)
        entries = entries - a.zero_point * second[None] - b.zero_point * first[:, None]
        entries = entries + a.zero_point * b.zero_point
        rows = len(entries)
        # A last row, with a code of its own, for the taps that add nothing.
        entries = np.concatenate([entries, np.zeros((1, entries.shape[1]), np.int64)])
        if isinstance(c, Conv2D):
            c = dataclasses.replace(
                c, pad_value=a.zero_point % rows if self.keeps_padding else rows
            )

        def product(p: np.ndarray, q: np.ndarray) -> np.ndarray:
            return entries[p[:, :, None], q[None]].sum(1)

        sums = reference.by_matmul(c, a.codes.astype(np.int64), b.codes.astype(np.int64), product)
        return sums * (float(a.scale.item()) * _beside_output(c, b.scale.astype(np.float64)))

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
