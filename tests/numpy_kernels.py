"""Kernels in NumPy as one writes them in C: flat memory and index formulas.

Each formula can be exchanged, which is how most mistakes are made. They share
nothing with `opgraft.verification`, which has to tell the mistakes apart.
"""

import types
from collections.abc import Callable

import numpy as np

from opgraft import reference
from opgraft.spec import Conv2D, DepthwiseConv2D, MatMul

# Of a namespace `v` that holds the loops' variables (n, oy, ox, o, i, j, c: arrays that
# broadcast), the sizes, and what the formulas before this one gave.
Formula = Callable[[types.SimpleNamespace], object]

CONVOLUTION: dict[str, Formula] = {
    "top": lambda v: v.pads[0][0],
    "left": lambda v: v.pads[1][0],
    "y": lambda v: v.oy * v.sy + v.i * v.dy - v.top,
    "x": lambda v: v.ox * v.sx + v.j * v.dx - v.left,
    "inside": lambda v: (v.y >= 0) & (v.y < v.h) & (v.x >= 0) & (v.x < v.w),
    "group": lambda v: v.o // (v.outs // v.groups),
    "channel": lambda v: v.group * v.ins + v.c,
    "pixel": lambda v: ((v.n * v.h + v.y) * v.w + v.x) * v.channels + v.channel,
    "weight": lambda v: ((v.i * v.kw + v.j) * v.ins + v.c) * v.outs + v.o,
    "outside": lambda v: v.pad_value,
    "counted": lambda v: True,
    "sum": lambda v: v.terms.sum((4, 5, 6)),
    "result": lambda v: v.sum,
    "place": lambda v: ((v.n * v.oh + v.oy) * v.ow + v.ox) * v.outs + v.o,
    "written": lambda v: True,
}


def convolution(**formulas: Formula):
    """An evaluator of convolutions; what is not written holds NaN."""
    used = CONVOLUTION | formulas

    def evaluate(case, left, right):
        c = case.contraction
        if not isinstance(c, Conv2D):
            return None
        v = _sizes(c, reference.channels_last(c, left), right, case.output)
        for name in ("top", "left", "y", "x", "inside", "group", "channel", "pixel", "weight"):
            setattr(v, name, used[name](v))
        image, kernel = np.ravel(reference.channels_last(c, left)), right.ravel()
        seen = np.where(v.inside, _read(image, v.pixel), used["outside"](v))
        with np.errstate(invalid="ignore"):  # infinity times zero
            terms = np.float32(seen) * _read(kernel, v.weight) * used["counted"](v)
        v.terms = np.broadcast_to(terms, v.loops)
        v.sum = used["sum"](v)
        memory = np.full(v.loops[:4], np.nan, np.float32).ravel()
        places, results, written = (
            np.broadcast_to(
                np.reshape(value, np.shape(value)[:4]) if np.ndim(value) == 7 else value,
                v.loops[:4],
            ).ravel()
            for value in (used["place"](v), used["result"](v), used["written"](v))
        )
        fits = written & (places >= 0) & (places < memory.size)
        memory[places[fits]] = results[fits]
        y = memory.reshape(v.loops[:4])
        return np.moveaxis(y, 3, 1) if c.channels_first else y

    return evaluate


def _read(memory: np.ndarray, places) -> np.ndarray:
    """Beyond the memory lies something else."""
    places = np.asarray(places)
    known = (places >= 0) & (places < memory.size)
    return np.where(known, memory[np.where(known, places, 0)], 1234)


def _sizes(c: Conv2D, x: np.ndarray, kernel: np.ndarray, output) -> types.SimpleNamespace:
    batch, h, w, channels = x.shape
    kh, kw = kernel.shape[:2]
    groups = channels if isinstance(c, DepthwiseConv2D) else c.groups
    oh, ow = (output[axis] for axis in c.spatial_axes)
    outs = output[c.channel_axis]
    loops = (batch, oh, ow, outs, kh, kw, channels // groups)
    n, oy, ox, o, i, j, ic = np.indices(loops, sparse=True)
    return types.SimpleNamespace(
        n=n, oy=oy, ox=ox, o=o, i=i, j=j, c=ic, loops=loops, batch=batch, h=h, w=w,
        channels=channels, ins=channels // groups, outs=outs, groups=groups, kh=kh, kw=kw,
        oh=oh, ow=ow, sy=c.strides[0], sx=c.strides[1], dy=c.dilations[0], dx=c.dilations[1],
        pads=reference.paddings(c, x, kernel), same=c.padding == "SAME", pad_value=c.pad_value,
    )  # fmt: skip


MATRICES: dict[str, Formula] = {
    "a": lambda v: v.i * v.k + v.l,
    "b": lambda v: v.l * v.n + v.j,
    "counted": lambda v: True,
    "sum": lambda v: v.terms.sum(2),
    "result": lambda v: v.sum,
    "place": lambda v: v.i * v.n + v.j,
    "written": lambda v: True,
}


def matrices(**formulas: Formula):
    """A product of two matrices in their memory."""
    used = MATRICES | formulas

    def product(a, b):
        (m, k), n = a.shape, b.shape[1]
        i, j, l = np.indices((m, n, k), sparse=True)
        v = types.SimpleNamespace(i=i, j=j, l=l, m=m, k=k, n=n)
        terms = np.float32(_read(a.ravel(), used["a"](v))) * _read(b.ravel(), used["b"](v))
        v.terms = np.broadcast_to(terms * used["counted"](v), (m, n, k))
        v.sum = used["sum"](v)
        memory = np.full(m * n, np.nan, np.float32)
        v.i, v.j = i[..., 0], j[..., 0]
        places, results, written = (
            np.broadcast_to(used[name](v), (m, n)).ravel()
            for name in ("place", "result", "written")
        )
        memory[places[written]] = results[written]
        return memory.reshape(m, n)

    return product


def through(product, convolutions: bool = True):
    """An evaluator of everything by a product of two matrices."""

    def evaluate(case, left, right):
        if 0 in case.output:
            return np.zeros(case.output, np.float32)
        if not isinstance(case.contraction, MatMul) and not convolutions:
            return None
        return reference.by_matmul(case.contraction, left, right, product)

    return evaluate


def unwritten(evaluate):
    """Which elements of an output are NaN, for small integers."""

    def mask(case):
        left, right = (operand.astype(np.float32) for operand in case.integers())
        return np.isnan(evaluate(case, left, right))

    return mask
