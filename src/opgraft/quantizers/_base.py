"""The contract of a quantizer, and the one that changes nothing."""

import dataclasses
from typing import ClassVar, NamedTuple

import numpy as np

from opgraft.values import Value


class Codes(NamedTuple):
    """What an arithmetic sees of an operand.

    Attributes:
        codes: uint8, of the operand's shape: the bits of whole numbers q.
        scale, zero_point: an element's value is scale (q - zero_point); the scale is a
            number, or has one for each channel.
        values: that value, in the operand's dtype.
    """

    codes: np.ndarray
    scale: np.ndarray
    zero_point: int
    values: np.ndarray


class Quantizer(Value):
    """Replaces an operand x by decode(q(x)), the value the arithmetic really uses.

    Laws that every quantizer keeps, and that its tests show:
      - a value: frozen, comparable, hashable, serialisable, without variables;
      - decode(q(x)) has the shape and the dtype of x;
      - idempotent: quantizing decode(q(x)) again changes nothing, where the range is given;
      - its pseudo-gradient is declared, by formula and source, in its docstring.

    How a framework applies a quantizer is registered in that framework's backend.
    """

    def dynamic(self) -> "Quantizer":
        """The same, its range that of each tensor it is given."""
        return self


@dataclasses.dataclass(frozen=True)
class Identity(Quantizer):
    """q(x) = x; its gradient is the identity."""

    type_name: ClassVar[str] = "identity"


identity = Identity()
