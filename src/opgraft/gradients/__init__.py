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

`by_contraction` computes the same two contractions under arithmetics of their
own, `slopes` takes the slopes of a multiplier's table, `custom` asks a Python
function, `c_function` a C function.
"""

from opgraft.gradients._base import Gradient, Native, native
from opgraft.gradients.contractions import ByContraction, Same, by_contraction, same
from opgraft.gradients.tables import BySlopes, mean_slopes, slopes
from opgraft.gradients.vjps import Custom, CVjp, c_function, custom

__all__ = [
    "ByContraction", "BySlopes", "CVjp", "Custom", "Gradient", "Native", "Same", "by_contraction",
    "c_function", "custom", "mean_slopes", "native", "same", "slopes",
]  # fmt: skip
