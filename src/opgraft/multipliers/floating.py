"""`FloatMultiplier`: a product of floating numbers, given by a table of their mantissas."""

import functools
import hashlib
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from opgraft.errors import ArgumentError
from opgraft.multipliers import packing
from opgraft.multipliers._multiplier import Multiplier
from opgraft.values import Value

_LONGEST = 11  # bits of a mantissa: its table has 4 million entries


class FloatMultiplier(Value):
    """A multiplier of floating numbers: signs and exponents are exact, mantissas are a table.

    ±(1 + i / 2^m) 2^e times ±(1 + j / 2^m) 2^f is ±table[i, j] 2^(e + f). Operands are rounded
    to m bits of mantissa, halves to even; m = 7 is what bfloat16 has, so that such operands
    stay as they are. A product with 0 is 0, and infinities and NaN do what they do in IEEE
    arithmetic. Products are summed in double, in their order.

    Make one with `from_array`, `from_function` or `from_multiplier`; `og.approximate` takes it.
    Source of the scheme: J. Gong et al., "ApproxTrain", IEEE TCAD 2023.

    Attributes:
        table: [2^m, 2^m] float64, read-only; an exact one has (1 + i / 2^m) (1 + j / 2^m).
        name: for reports.

    Two are equal if their tables are.
    """

    type_name: ClassVar[str] = "float_multiplier"

    def __init__(self, table: np.ndarray, name: str = "") -> None:
        self.table, self.name = table, name
        table.setflags(write=False)

    @classmethod
    def from_array(cls, table: Any, *, name: str = "") -> "FloatMultiplier":
        """From a table [2^m, 2^m] of products, m from 1 to 11.

        Raises:
            ArgumentError: it has another shape, or holds what is not above 0 and finite.
        """
        array = np.array(table)
        rows = array.shape[0] if array.ndim == 2 else 0
        square = array.ndim == 2 and array.shape == (rows, rows)
        if not square or rows not in [2**m for m in range(1, _LONGEST + 1)]:
            raise ArgumentError(
                f"a table of mantissas has the shape {array.shape}; it must be [2^m, 2^m] for a "
                f"mantissa of m bits, 1 to {_LONGEST}"
            )
        if array.dtype.kind not in "iuf" or not (np.isfinite(array) & (array > 0)).all():
            raise ArgumentError(
                "a table of mantissas must hold finite numbers above 0: products of numbers from "
                "1 to 2"
            )
        return cls(array.astype(np.float64), name)

    @classmethod
    def from_function(cls, function: Callable[[Any, Any], Any], bits: int, *,
                      name: str = "") -> "FloatMultiplier":  # fmt: skip
        """From a function of two arrays of mantissas, numbers from 1 to 2, with their 1.

        Mitchell's product is `lambda a, b: np.where(a + b < 3, a + b - 1, 2 * (a + b - 2))`.

        Args:
            function: what gives their products.
            bits: of a mantissa, without the 1.

        Raises:
            ArgumentError: bits is none from 1 to 11, or as for `from_array`.
        """
        if not isinstance(bits, int) or isinstance(bits, bool) or not 1 <= bits <= _LONGEST:
            raise ArgumentError(f"bits={bits!r} of a mantissa must be 1 to {_LONGEST}")
        mantissas = 1 + np.arange(2**bits) / 2**bits
        return cls.from_array(function(mantissas[:, None], mantissas[None]), name=name)

    @classmethod
    def from_multiplier(cls, multiplier: Multiplier) -> "FloatMultiplier":
        """The mantissas, with their 1, multiplied by an unsigned multiplier of m + 1 bits.

        One of 8 bits serves bfloat16.

        Raises:
            ArgumentError: it is signed, of numbers that are no integers, or its widths differ.
        """
        first, second = multiplier.widths
        if multiplier.signed is not False or first != second:
            raise ArgumentError(
                f"{multiplier!r} does not multiply mantissas: an unsigned multiplier of two "
                "operands of one width is needed"
            )
        half = 2 ** (first - 1)  # of the codes: those whose highest bit, the 1, is set
        return cls.from_array(multiplier.table[half:, half:] / half**2, name=multiplier.name)

    @property
    def bits(self) -> int:
        """Of a mantissa, without its 1."""
        return len(self.table).bit_length() - 1

    def multiply(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The meaning: products of two arrays, which broadcast, in float64."""
        (i, scale), (j, other) = self._split(a), self._split(b)
        with np.errstate(invalid="ignore"):  # 0 times infinity
            return self.table[i, j] * (scale * other)

    def _split(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x is about scale (1 + mantissa / 2^m); zeros, infinities and NaN are their own scale."""
        x = np.asarray(x, np.float64)
        usual = np.isfinite(x) & (x != 0)
        fraction, exponent = np.frexp(np.where(usual, x, 1))
        steps = np.rint((2 * abs(fraction) - 1) * 2**self.bits).astype(np.int64)
        carry = steps >> self.bits
        scale = np.copysign(np.ldexp(1.0, exponent - 1 + carry), x)
        mantissa = np.where(usual, steps * (1 - carry), 0)
        return mantissa, np.where(usual, scale, x)

    @functools.cached_property
    def sha256(self) -> str:
        """Of the table's bytes."""
        return hashlib.sha256(self.table.tobytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FloatMultiplier) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __repr__(self) -> str:
        name = self.name or "(no name)"
        return f"<FloatMultiplier {name}: mantissas of {self.bits} bits, {self.sha256[:12]}>"

    def __reduce__(self) -> tuple:
        return type(self), (self.table, self.name)

    def to_config(self) -> dict[str, Any]:
        return {"type": self.type_name, "table": packing.packed(self.table),
                "rows": len(self.table), "name": self.name}  # fmt: skip

    @classmethod
    def from_fields(cls, table: str, rows: int, name: str) -> "FloatMultiplier":  # type: ignore[override]
        try:
            array = packing.unpacked(table, "<f8", (rows, rows))
        except (ValueError, TypeError) as error:
            raise ArgumentError(
                f"the saved multiplier's mantissas cannot be read: {error}"
            ) from None
        return cls.from_array(array, name=name)
