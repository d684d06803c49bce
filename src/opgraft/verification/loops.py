"""A convolution with everything resolved, to be changed in one respect and computed.

A wrong kernel is mostly a right one with one piece exchanged: it steps by other
strides, starts at another place, reads its operands in another order. Such a
kernel is a `Loops` in which that piece was replaced.
"""

import dataclasses

import numpy as np

from opgraft import reference
from opgraft.spec import Axis, Conv2D, Pair
from opgraft.verification.cases import Case
from opgraft.verification.due import Product, compute


@dataclasses.dataclass(frozen=True, eq=False)
class Loops:
    """What the loop nest of a convolution runs over, NHWC and HWIO.

    Attributes:
        c: strides, dilations and pad value; its padding is not used, see `before`.
        kernel: [kh, kw, in / groups, out], for depthwise convolutions too.
        before: where the first window starts: this far above and left of the image.
        out: the output's height and width.
        unchecked: whether what lies outside of the image is read from where it would
            lie in memory, as a kernel does that does not look whether it is inside.
    """

    c: Conv2D
    x: np.ndarray
    kernel: np.ndarray
    groups: int
    before: Pair
    out: Pair
    unchecked: bool = False

    @classmethod
    def of(cls, case: Case, x: np.ndarray, kernel: np.ndarray) -> "Loops":
        """The right ones."""
        c = case.contraction
        assert isinstance(c, Conv2D)
        x, grouped, groups = reference.as_grouped(c, reference.channels_last(c, x), kernel)
        return cls(c, np.ascontiguousarray(x), grouped, groups, (0, 0), (0, 0)).resolved()

    def change(self, **fields) -> "Loops":
        """With other fields of the contraction; starts and sizes stay as they are."""
        return dataclasses.replace(self, c=dataclasses.replace(self.c, **fields))

    def axes(self) -> tuple[Axis, Axis]:
        """Paddings and output sizes that follow from the contraction."""
        rows, columns = (self.c.axis(i, self.x.shape[i + 1], self.kernel.shape[i]) for i in (0, 1))
        return rows, columns

    def resolved(self) -> "Loops":
        """With the start and the output size that follow from the contraction."""
        rows, columns = self.axes()
        before, out = (rows.before, columns.before), (rows.out, columns.out)
        return dataclasses.replace(self, before=before, out=out)

    def started_anew(self) -> "Loops":
        """With the start that follows from the contraction, and the output size as it is."""
        return dataclasses.replace(self, before=self.resolved().before)

    def reading_on(self) -> "Loops | None":
        """Unchecked; None if the operands' type cannot say that it does not know."""
        return dataclasses.replace(self, unchecked=True) if self.x.dtype == np.float64 else None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the output, NHWC."""
        return (self.x.shape[0], *self.out, self.kernel.shape[3])

    def _positions(self) -> list[np.ndarray]:
        """Along both axes: the rows and columns of the image that the windows cover."""
        sizes = [
            (self.out[i] - 1) * self.c.strides[i] + (self.kernel.shape[i] - 1) * self.c.dilations[i]
            for i in (0, 1)
        ]
        return [np.arange(size + 1) - start for size, start in zip(sizes, self.before, strict=True)]

    def _frame(self) -> np.ndarray:
        """The part of the padded image that the windows cover."""
        ys, xs = self._positions()
        ys, xs = ys[:, None], xs[None]
        height, width = self.x.shape[1:3]
        if self.unchecked:
            return self._from_memory(ys * width + xs)
        inside = (ys >= 0) & (ys < height) & (xs >= 0) & (xs < width)
        seen = self.x[:, np.clip(ys, 0, height - 1), np.clip(xs, 0, width - 1)]
        pad_value = self.x.dtype.type(self.c.pad_value)
        return np.where(inside[None, :, :, None], seen, pad_value)

    def _from_memory(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels by their place in memory, counted from the start of each image; else NaN."""
        batch, height, width, channels = self.x.shape
        places = np.arange(batch)[:, None, None] * (height * width) + pixels
        flat = self.x.reshape(batch * height * width, channels).astype(np.float64)
        known = (places >= 0) & (places < len(flat))
        return np.where(known[..., None], flat[np.where(known, places, 0)], np.nan)

    @property
    def _framed(self) -> Conv2D:
        """The convolution of the frame."""
        return Conv2D(strides=self.c.strides, dilations=self.c.dilations, groups=self.groups)

    def compute(self, product: Product) -> np.ndarray:
        """The output, NHWC, in float64."""
        if 0 in self.shape or 0 in self.kernel.shape or 0 in self.x.shape:
            return np.zeros(self.shape)
        return compute(self._framed, self._frame(), self.kernel, product)

    def vjp(self, upstream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradients of `x`, NHWC, and of `kernel` for an NHWC upstream, exact."""
        if 0 in self.shape or 0 in self.kernel.shape or 0 in self.x.shape:
            return np.zeros(self.x.shape), np.zeros(self.kernel.shape)
        framed, gk = reference.vjp(self._framed, self._frame(), self.kernel, upstream)
        gx = np.zeros(self.x.shape)
        ys, xs = self._positions()
        rows = np.flatnonzero((ys >= 0) & (ys < self.x.shape[1]))[:, None]
        columns = np.flatnonzero((xs >= 0) & (xs < self.x.shape[2]))[None]
        gx[:, ys[rows], xs[columns]] = framed[:, rows, columns]
        return gx, gk


def to_layout(case: Case, y: np.ndarray) -> np.ndarray:
    """An NHWC array in the layout of the case."""
    c = case.contraction
    return np.moveaxis(y, 3, 1) if isinstance(c, Conv2D) and c.channels_first else y
