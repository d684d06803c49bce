"""The contract of a quantizer, and the one that changes nothing."""

import dataclasses
from typing import ClassVar

from opgraft.values import Value


class Quantizer(Value):
    """Replaces an operand x by decode(q(x)), the value the arithmetic really uses.

    Laws that every quantizer keeps, and that its tests show:
      - a value: frozen, comparable, hashable, serialisable, without variables;
      - decode(q(x)) has the shape and the dtype of x;
      - idempotent: quantizing decode(q(x)) again changes nothing;
      - its pseudo-gradient is declared, by formula and source, in its docstring.
    """


@dataclasses.dataclass(frozen=True)
class Identity(Quantizer):
    """q(x) = x; its gradient is the identity."""

    type_name: ClassVar[str] = "identity"


identity = Identity()
