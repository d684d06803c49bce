"""Products of floating numbers whose mantissas stand in a table."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from opgraft import reference
from opgraft.errors import ArgumentError, DtypeError
from opgraft.multipliers import FloatMultiplier
from opgraft.products import accumulators
from opgraft.products._base import Product
from opgraft.spec import Contraction


@dataclasses.dataclass(frozen=True)
class Mantissas(Product):
    """Sums of a float multiplier's products, in double and in their order.

    Operands are float32, bfloat16 or float16; the sum is rounded to their dtype.

    Attributes:
        multiplier: its table is looked up at [activation, kernel].
        exchanged: look up table[kernel, activation] instead.
    """

    type_name: ClassVar[str] = "mantissas"

    multiplier: FloatMultiplier
    exchanged: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.multiplier, FloatMultiplier):
            raise ArgumentError(f"Mantissas({self.multiplier!r}): an og.FloatMultiplier is needed")

    @property
    def label(self) -> str:
        return repr(self.multiplier)

    def check_operands(self, dtype: str) -> None:
        """Raise `DtypeError` for operands that are rounded to more than their mantissas."""
        if dtype not in ("float32", "bfloat16", "float16"):
            raise DtypeError(
                f"{self.multiplier!r} is given {dtype}: it multiplies float32, bfloat16 or "
                "float16. Cast the operands: keras.ops.cast(x, 'float32')"
            )

    @property
    def entries(self) -> np.ndarray:
        """[mantissa of the activation, mantissa of the kernel]"""
        return self.multiplier.table.T if self.exchanged else self.multiplier.table

    def meaning(
        self, c: Contraction, input: Any, kernel: Any, left: np.ndarray, right: np.ndarray
    ) -> np.ndarray:
        """What the arithmetic gives, in NumPy and float64: the loop nest over the products."""

        def multiply(a: Any, b: Any) -> Any:
            return self.multiplier.multiply(*((b, a) if self.exchanged else (a, b)))

        def product(p: np.ndarray, q: np.ndarray) -> np.ndarray:
            everything = np.ones(p.shape, bool)
            return accumulators.exact.add_up(multiply(p[:, :, None], q[None]), everything)

        shape: Any = c.output_shape(left.shape, right.shape)
        if 0 in (*shape, left.size, right.size):  # nothing to sum
            return np.zeros(shape)
        return reference.by_matmul(c, left, right, product)
