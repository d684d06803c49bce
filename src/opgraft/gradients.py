"""What backward means. The only place that says it.

Let q be the quantizers of an arithmetic, P its product and C the exact
contraction (matrix product or convolution). The forward is

    y = P(q(x), q(w)).

`native` declares the backward as the vector-Jacobian product of C at the
operands that the arithmetic really used, q(x) and q(w), pulled back through
each quantizer's own pseudo-gradient:

    dx = (dC/da)(q(x), q(w))ᵀ dy · q'(x),      dw = (dC/db)(q(x), q(w))ᵀ dy · q'(w).

With identity quantizers, as for a float C function, this is precisely the
framework's gradient of the operation that was replaced.
"""

import dataclasses
from typing import ClassVar

from opgraft.values import Value


class Gradient(Value):
    """How the gradient of a contraction is computed; a value like all others."""


@dataclasses.dataclass(frozen=True)
class Native(Gradient):
    """The framework's own gradient of the exact contraction, at the operands used."""

    type_name: ClassVar[str] = "native"


native = Native()
