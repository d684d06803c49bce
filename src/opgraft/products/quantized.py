"""The contract of products of quantized operands."""

import dataclasses
from typing import Any

import numpy as np

from opgraft import reference
from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.products import accumulators
from opgraft.products._base import Product
from opgraft.products.accumulators import Accumulator
from opgraft.quantizers import Linear, Quantizer
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul


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


class Quantized(Product):
    """Sums of a function of two codes.

    With zero points z_a and z_b what is summed is f(a, b) - z_a b - z_b a + z_a z_b, so that an
    exact f gives the exact product of the quantized operands.

    Attributes:
        keeps_padding: padded taps go through f with the code of 0, as in hardware that stores
            the padding; else they add nothing, whatever f(0, b) is.
        accumulator: how the products f(a, b) are added; the terms of the zero points are added
            exactly afterwards.
    """

    keeps_padding: bool
    accumulator: Accumulator

    @property
    def is_whole(self) -> bool:
        """Whether codes and products are integers."""
        return True

    def of_codes(self, a: np.ndarray, b: np.ndarray, input: Any, kernel: Any) -> np.ndarray:
        """f of the codes that two quantizers made; arrays, which broadcast."""
        raise NotImplementedError

    def check(self, contraction: Contraction) -> None:
        if isinstance(contraction, Conv2D) and contraction.pad_value:
            raise UnsupportedError(
                f"pad_value={contraction.pad_value:g}: a product of quantized operands pads with "
                "0. Pad the tensor before the operation"
            )

    def check_quantizers(self, input: Quantizer, kernel: Quantizer) -> None:
        if getattr(input, "per_channel", False):
            raise ArgumentError(
                "Arithmetic(input=Symmetric(per_channel=True)): only a kernel has channels of its "
                "own in every output"
            )

    def meaning(
        self, c: Contraction, input: Linear, kernel: Linear, left: np.ndarray, right: np.ndarray
    ) -> np.ndarray:
        """What the arithmetic gives, in NumPy and float64: the loop nest over f.

        Args:
            c: the contraction, which pads with 0.
            input, kernel: the quantizers.
            left, right: the operands, of the shapes that the contraction takes.

        Returns:
            s_x s_w times the sums, of the output's shape.
        """
        shape: Any = c.output_shape(left.shape, right.shape)
        if 0 in (*shape, left.size, right.size):  # nothing to sum
            return np.zeros(shape)
        a, b = input.encode(left), kernel.encode(right, shared_axes(c))
        nothing = 2**input.bits  # a code of its own, for the taps that add nothing
        if isinstance(c, Conv2D):
            zero = a.zero_point % nothing if self.keeps_padding else nothing
            c = dataclasses.replace(c, pad_value=zero)

        def product(p: np.ndarray, q: np.ndarray) -> np.ndarray:
            present = p < nothing
            p, q = np.where(present, p, 0)[:, :, None], q[None]
            found = self.accumulator.add_up(self.of_codes(p, q, input, kernel), present)
            if not self.is_whole:
                return found
            zeros = a.zero_point * (b.zero_point - kernel.numbers[q]) - (
                b.zero_point * input.numbers[p]
            )
            return found + accumulators.exact.add_up(zeros, present)

        sums = reference.by_matmul(c, a.codes.astype(np.int64), b.codes.astype(np.int64), product)
        return sums * (float(a.scale.item()) * _beside_output(c, b.scale.astype(np.float64)))
