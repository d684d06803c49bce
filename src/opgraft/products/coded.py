"""Products of two quantized operands by a C function of two integers."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from opgraft.errors import ArgumentError
from opgraft.products import accumulators
from opgraft.products.accumulators import Accumulator
from opgraft.products.c_function import CFunction, CSymbol
from opgraft.products.quantized import Quantized
from opgraft.quantizers import Affine, Linear, Quantizer, Symmetric


@dataclasses.dataclass(frozen=True)
class Coded(Quantized):
    """Sums of f(activation, kernel) over quantized operands, exact in 64 bits.

    For numbers of more bits than a table can have: the C function is called for every product.

    Attributes:
        function: one scalar function of integers.
    """

    type_name: ClassVar[str] = "coded"
    accumulator: ClassVar[Accumulator] = accumulators.exact  # type: ignore[misc]

    function: CFunction
    keeps_padding: bool = False

    def __post_init__(self) -> None:
        symbols = getattr(self.function, "symbols", ())
        whole = [s.kind == "scalar" and "int" in s.operand_dtype for s in symbols]
        if whole != [True] or self.symbol.output_dtype != "int64":
            raise ArgumentError(
                f"{self.function!r} is no product of quantized operands: one C function of two "
                "integers that returns one is needed, such as int32_t mul12(int16_t a, int16_t b)"
            )

    @property
    def symbol(self) -> CSymbol:
        return self.function.symbols[0]

    @property
    def label(self) -> str:
        return self.symbol.prototype

    @property
    def type_bits(self) -> int:
        """Of the function's arguments."""
        return int(np.iinfo(self.symbol.operand_dtype).bits)

    @property
    def signed(self) -> bool:
        """Whether the function takes numbers below 0."""
        return bool(np.iinfo(self.symbol.operand_dtype).min)

    @property
    def default_quantizers(self) -> tuple[Quantizer, Quantizer]:
        kind = Symmetric if self.signed else Affine
        bits = min(self.type_bits, 16)
        return kind(bits), kind(bits)

    def of_codes(self, a: np.ndarray, b: np.ndarray, input: Any, kernel: Any) -> np.ndarray:
        multiply = np.vectorize(self.symbol.scalar(), otypes=[np.int64])
        return multiply(input.numbers[a], kernel.numbers[b])

    def check_quantizers(self, input: Quantizer, kernel: Quantizer) -> None:
        for name, quantizer in (("input", input), ("kernel", kernel)):
            fits = isinstance(quantizer, Linear) and (
                quantizer.signed == self.signed and quantizer.bits <= self.type_bits
            )
            if not fits:
                kind = "Symmetric" if self.signed else "Affine"
                raise ArgumentError(
                    f"Arithmetic({name}={quantizer!r}): {self.symbol.prototype} takes "
                    f"{'signed' if self.signed else 'unsigned'} numbers of at most "
                    f"{self.type_bits} bits, as from og.quantizers.{kind}(12)"
                )
        super().check_quantizers(input, kernel)
