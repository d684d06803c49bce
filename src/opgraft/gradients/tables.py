"""The slopes of a multiplier's table, in place of the exact product's."""

import dataclasses
import functools
import numbers
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from opgraft import reference
from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.gradients._base import Gradient, native
from opgraft.multipliers.slopes import Slopes, in_order, slopes_along_first

if TYPE_CHECKING:
    from opgraft.arithmetic import Arithmetic
    from opgraft.products import Table
    from opgraft.spec import Contraction


@dataclasses.dataclass(frozen=True)
class BySlopes(Gradient):
    """The slopes of a multiplier's table, at the codes that were used. See `slopes`.

    Attributes:
        half_width, rank: see `slopes`.
        forward: the arithmetic of the forward, which has the table and the quantizers.
    """

    type_name: ClassVar[str] = "by_slopes"
    of_codes: ClassVar[bool] = True

    half_width: int | None = None
    rank: int | None = None
    forward: Any = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("half_width", "rank"):
            value = getattr(self, name)
            if value is None:
                continue
            whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
            if not whole or value < 0:
                raise ArgumentError(
                    f"slopes({name}={value!r}): it must be a whole number, 0 or more, or None"
                )
            object.__setattr__(self, name, int(value))

    def of(self, arithmetic: "Arithmetic") -> "BySlopes":
        if self.forward is not None:
            return self
        return dataclasses.replace(self, forward=dataclasses.replace(arithmetic, gradient=native))

    def to_config(self) -> dict[str, Any]:
        return {"type": self.type_name, "half_width": self.half_width, "rank": self.rank}

    def check(self, contraction: "Contraction") -> None:
        from opgraft.products import Table

        product = self.forward.product
        if not isinstance(product, Table) or not product.is_whole:
            raise UnsupportedError(
                f"{self.label} needs a product by a table of integers, as from "
                f"og.approximate(multiplier), and is given {product.label}. Use "
                "og.gradients.native, or one of your own: og.gradients.custom(...)"
            )
        for name, codes in zip(("activation", "kernel"), product.values, strict=True):
            most = len(in_order(codes)) - 2  # a window beyond would meet more than one reflection
            if self.half_width is not None and self.half_width > most:
                raise UnsupportedError(
                    f"{self.label}: the {name} of {product.multiplier!r} has {most + 2} numbers; "
                    f"half_width can be at most {most}"
                )

    @property
    def label(self) -> str:
        """How it is written."""
        if self.rank == 0:
            return f"og.gradients.mean_slopes(half_width={self.half_width})"
        return f"og.gradients.slopes(half_width={self.half_width}, rank={self.rank})"

    def tables(self) -> tuple[Slopes, Slopes]:
        """Along the activation, and along the kernel."""
        return _tables(self.forward.product, self.half_width, self.rank)

    def meaning(
        self, c: "Contraction", left: np.ndarray, right: np.ndarray, upstream: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Both gradients in NumPy and float64: the slopes of every single product, looked up.

        Args:
            c: the contraction, which pads with 0.
            left, right: the operands as they come to the arithmetic.
            upstream: dL/dy, of the output's shape.
        """
        from opgraft.products.quantized import shared_axes

        input, kernel = self.forward.input, self.forward.kernel
        a, b = input.encode(left), kernel.encode(right, shared_axes(c))
        first, second = self.forward.product.values
        of_input, of_kernel = (each.of_error for each in self.tables())
        along_a = second + of_input - b.zero_point
        along_b = first[:, None] + of_kernel.T - a.zero_point
        scales = float(a.scale.item()), np.broadcast_to(b.scale, right.shape).ravel()
        dx: np.ndarray = np.zeros(left.size)
        dw: np.ndarray = np.zeros(right.size)
        for p, q, o in reference.matrices(c, left.shape, right.shape):
            at = a.codes.ravel()[p][:, :, None], b.codes.ravel()[q][None]
            dy = np.where(p >= 0, 1.0, 0.0)[:, :, None] * upstream.ravel()[o][:, None]
            np.add.at(dx, p, (dy * along_a[at] * scales[1][q]).sum(2))
            np.add.at(dw, q, (dy * along_b[at] * scales[0]).sum(0))
        return (
            dx.reshape(left.shape) * input.passes(left),
            dw.reshape(right.shape) * kernel.passes(right),
        )


@functools.lru_cache(maxsize=64)
def _tables(product: "Table", half_width: int | None, rank: int | None) -> tuple[Slopes, Slopes]:
    first, second = product.values
    return (
        slopes_along_first(product.entries, (first, second), half_width, rank),
        slopes_along_first(product.entries.T, (second, first), half_width, rank),
    )


def slopes(half_width: int | None = None, rank: int | None = None) -> BySlopes:
    """The slopes of an approximate multiplier's table, in place of those of the exact product.

    The native gradient takes a b for f(a, b), and so b for its slope along a. This one takes
    the central difference of a moving average along the numbers a,

        D_a[a, b] = (mean f(a + 1 - h ... a + 1 + h, b) - mean f(a - 1 - h ... a - 1 + h, b)) / 2,

    and D_b likewise. With the scales s and zero points z of both operands, over the products
    that an element has a part in,

        dL/dx = s_w sum of dy (D_a[a, b] - z_w),    dL/dw = s_x sum of dy (D_b[a, b] - z_x),

    and back through the quantizers, as ever. Padded taps send nothing back. Beyond its first and
    its last number a table goes on as its reflection in that point, so that an exact multiplier
    has exactly the native gradient, at its ends as well.

    D_a is the exact slope, plus a mean over a, plus a sum of `rank` products of a function of a
    and one of b (a singular value decomposition). So each gradient is `rank` + 1 native
    contractions, of any geometry. A second derivative is that of these: D_a and D_b are constant.

    Sources: C. Meng, W. Burleson, W. Qian, G. De Micheli, "Gradient approximation of approximate
    multipliers for high-accuracy deep neural network retraining", DATE 2025; and, as LUT-2D,
    C. Meng, W. Burleson, G. De Micheli, arXiv:2509.10519. Near the ends, the authors' code
    takes the span of the table's values over their number; nor does it decompose.

    Args:
        half_width: h, 0 or more; None: a 16th of the number of codes, and at least 1.
        rank: how many products at most; None: as many as float32 can tell apart.

    Raises:
        ArgumentError: one of them is no such number.
        UnsupportedError: when it is used: the arithmetic's product is none by a table of
            integers, or the table is too small for the window.
    """
    return BySlopes(half_width, rank)


def mean_slopes(half_width: int | None = None) -> BySlopes:
    """As `slopes`, D_a averaged over all a, and D_b over all b: `slopes(half_width, rank=0)`.

    It costs what the native gradient does. LUT-1D, of the second paper, has slopes that depend
    on one operand, too.
    """
    return BySlopes(half_width, 0)
