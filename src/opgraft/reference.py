"""The meaning of every contraction, in NumPy, to be read in a minute.

The loop nests (`matmul`, `conv2d`) define what all fast code must equal. The
helpers below them say how a convolution is composed from smaller pieces.
Nothing here calls compiled code of ours.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opgraft.errors import ArgumentError
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul, Pair

Multiply = Callable[[Any, Any], Any]  # of two numbers


def matmul(
    a: np.ndarray, b: np.ndarray, multiply: Multiply, total: type = np.float64
) -> np.ndarray:
    """out[i, j] = sum over l of multiply(a[i, l], b[l, j]), in the order of l, in type `total`."""
    rows, inner = a.shape
    columns = b.shape[1]
    out: np.ndarray = np.zeros((rows, columns), total)
    for i in range(rows):
        for j in range(columns):
            for l in range(inner):
                out[i, j] += total(multiply(a[i, l], b[l, j]))
    return out


def conv2d(c: Conv2D, x: np.ndarray, kernel: np.ndarray, multiply: Multiply,
           total: type = np.float64) -> np.ndarray:  # fmt: skip
    """The loop nest of a convolution, NHWC and HWIO; padded positions hold `c.pad_value`."""
    x = channels_last(c, x)
    pads = paddings(c, x, kernel)
    x, kernel, groups = as_grouped(c, pad(x, pads, c.pad_value), kernel)
    batch, (kh, kw, per_group, channels) = x.shape[0], kernel.shape
    reach = [(kernel.shape[i] - 1) * c.dilations[i] for i in (0, 1)]
    out_h, out_w = (len(range(0, x.shape[i + 1] - reach[i], c.strides[i])) for i in (0, 1))
    out: np.ndarray = np.zeros((batch, out_h, out_w, channels), total)
    for n, oy, ox, oc in np.ndindex(*out.shape):
        first = oc // (channels // groups) * per_group  # first input channel of oc's group
        for ky, kx, ic in np.ndindex(kh, kw, per_group):
            iy = oy * c.strides[0] + ky * c.dilations[0]
            ix = ox * c.strides[1] + kx * c.dilations[1]
            out[n, oy, ox, oc] += total(multiply(x[n, iy, ix, first + ic], kernel[ky, kx, ic, oc]))
    return np.moveaxis(out, 3, 1) if c.channels_first else out


# ---- compositions ------------------------------------------------------------------


def channels_last(c: Conv2D, x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, 1, 3) if c.channels_first else x


def paddings(c: Conv2D, x: np.ndarray, kernel: np.ndarray) -> tuple[Pair, Pair]:
    """((top, bottom), (left, right)) for an NHWC input."""
    vertical, horizontal = (c.axis(i, x.shape[i + 1], kernel.shape[i]) for i in (0, 1))
    return ((vertical.before, vertical.after), (horizontal.before, horizontal.after))


def pad(x: np.ndarray, pads: tuple[Pair, Pair], value: float) -> np.ndarray:
    stored = x.dtype.type(value)
    if np.any(pads) and x.dtype.kind in "iu" and stored != value:
        raise ArgumentError(f"pad_value={value} cannot be held by {x.dtype}; give a whole number")
    return np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=stored)


def as_grouped(c: Conv2D, x: np.ndarray, kernel: np.ndarray):
    """(x, kernel, groups) of the plain grouped convolution that `c` is."""
    if isinstance(c, DepthwiseConv2D):
        kh, kw, channels, multiplier = kernel.shape
        return x, kernel.reshape(kh, kw, 1, channels * multiplier), channels
    return x, kernel, c.groups


def by_groups(groups: int, x: np.ndarray, kernel: np.ndarray, one_group: Callable) -> np.ndarray:
    """A grouped convolution as one convolution per slice of the channels."""
    parts = zip(np.split(x, groups, 3), np.split(kernel, groups, 3), strict=True)
    results = [one_group(np.ascontiguousarray(a), np.ascontiguousarray(b)) for a, b in parts]
    return np.concatenate(results, 3)


def im2col(x: np.ndarray, kernel_size: Pair, strides: Pair, dilations: Pair) -> np.ndarray:
    """[batch, out_h, out_w, kh * kw * in] from a padded NHWC input."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel_size, dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(1, 2))
    windows = windows[:, :: strides[0], :: strides[1], :, :: dilations[0], :: dilations[1]]
    columns = np.moveaxis(windows, 3, 5)
    return columns.reshape(*columns.shape[:3], kernel_size[0] * kernel_size[1] * x.shape[3])


def by_matmul(c: Contraction, left: np.ndarray, right: np.ndarray, product: Callable) -> np.ndarray:
    """Any contraction through `product`, a function of two matrices."""
    if isinstance(c, MatMul):
        return _batched(c, left, right, product)
    assert isinstance(c, Conv2D)
    x = channels_last(c, left)
    x, kernel, groups = as_grouped(c, pad(x, paddings(c, x, right), c.pad_value), right)

    def one_group(part: np.ndarray, weights: np.ndarray) -> np.ndarray:
        columns = im2col(part, weights.shape[:2], c.strides, c.dilations)
        inner, channels = columns.shape[3], weights.shape[3]
        rows = np.ascontiguousarray(columns.reshape(math.prod(columns.shape[:3]), inner))
        flat = product(rows, weights.reshape(inner, channels))
        return np.asarray(flat).reshape(*columns.shape[:3], channels)

    result = by_groups(groups, x, kernel, one_group)
    return np.moveaxis(result, 3, 1) if c.channels_first else result


def matrices(
    c: Contraction, left: tuple[int, ...], right: tuple[int, ...]
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The matrix products that a contraction of these shapes consists of, by positions.

    Each is (p, q, o), into the flattened operands and the flattened output: o[i, j] is the sum
    over l of p[i, l] times q[l, j]. A padded tap has the position -1.
    """
    parts: list[tuple[np.ndarray, np.ndarray]] = []

    def product(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        first = sum(len(a) * b.shape[1] for a, b in parts)
        parts.append((p, q))
        return first + np.arange(len(p) * q.shape[1]).reshape(len(p), q.shape[1])

    if isinstance(c, Conv2D):
        c = dataclasses.replace(c, pad_value=-1)
    x, w = (np.arange(math.prod(shape)).reshape(shape) for shape in (left, right))
    met = np.argsort(by_matmul(c, x, w, product), axis=None)  # the outputs, as they were met
    ends = np.cumsum([len(p) * q.shape[1] for p, q in parts])
    return [
        (p, q, met[end - len(p) * q.shape[1] : end].reshape(len(p), q.shape[1]))
        for (p, q), end in zip(parts, ends, strict=True)
    ]


def _batched(c: MatMul, a: np.ndarray, b: np.ndarray, product: Callable) -> np.ndarray:
    a = np.swapaxes(a, -1, -2) if c.transpose_a else a
    b = np.swapaxes(b, -1, -2) if c.transpose_b else b
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = np.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    out = [
        product(np.ascontiguousarray(a[i]), np.ascontiguousarray(b[i])) for i in np.ndindex(*batch)
    ]
    return np.reshape(out, (*batch, a.shape[-2], b.shape[-1]))


# ---- gradients ---------------------------------------------------------------------


def vjp(
    c: Contraction, left: np.ndarray, right: np.ndarray, upstream: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The vector-Jacobian products of the exact contraction, in float64.

    A contraction y = C(left, right) is linear in each operand. For `upstream`,
    the gradient dy of a number with respect to y, these are the arrays with

        <vjp[0], v> = <dy, C(v, right) - C(0, right)>   for every v like left,
        <vjp[1], u> = <dy, C(left, u)>                  for every u like right.

    (C(0, right) is not zero where the padding is not.) For y = A B that is
    (dy Bᵀ, Aᵀ dy); for a convolution, sums over all outputs of dy times what the
    operand's element was multiplied with. Exact on small integers.
    """
    left, right, upstream = (np.asarray(v, np.float64) for v in (left, right, upstream))
    if isinstance(c, MatMul):
        return _matmul_vjp(c, left, right, upstream)
    assert isinstance(c, Conv2D)
    return _conv2d_vjp(c, left, right, upstream)


def _matmul_vjp(c: MatMul, a: np.ndarray, b: np.ndarray, upstream: np.ndarray):
    a = np.swapaxes(a, -1, -2) if c.transpose_a else a
    b = np.swapaxes(b, -1, -2) if c.transpose_b else b
    ga = _unbroadcast(np.einsum("...ij,...kj->...ik", upstream, b), a.shape)
    gb = _unbroadcast(np.einsum("...ik,...ij->...kj", a, upstream), b.shape)
    return (
        np.swapaxes(ga, -1, -2) if c.transpose_a else ga,
        np.swapaxes(gb, -1, -2) if c.transpose_b else gb,
    )


def _unbroadcast(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The gradient of a broadcast operand, summed over where it was repeated."""
    gradient = gradient.sum(tuple(range(gradient.ndim - len(shape))))
    ones = tuple(i for i, size in enumerate(shape) if size == 1 and gradient.shape[i] != 1)
    return gradient.sum(ones, keepdims=True)


def _conv2d_vjp(c: Conv2D, x: np.ndarray, kernel: np.ndarray, upstream: np.ndarray):
    """One kernel tap at a time: each is a product of two matrices per group."""
    x, upstream = channels_last(c, x), channels_last(c, upstream)
    pads = paddings(c, x, kernel)
    padded = pad(x, pads, c.pad_value)
    padded, taps, groups = as_grouped(c, padded, kernel)
    batch, rows, columns, outs = upstream.shape
    upstream = upstream.reshape(batch, rows, columns, groups, outs // groups)
    taps = taps.reshape(*taps.shape[:3], groups, outs // groups)
    gx, gk = np.zeros_like(padded), np.zeros_like(taps)
    for i, j in np.ndindex(*taps.shape[:2]):
        ys = i * c.dilations[0] + c.strides[0] * np.arange(rows)
        xs = j * c.dilations[1] + c.strides[1] * np.arange(columns)
        window = np.ix_(range(batch), ys, xs, range(x.shape[3]))
        seen = padded[window].reshape(batch, rows, columns, groups, x.shape[3] // groups)
        gk[i, j] = np.einsum("nyxgc,nyxgo->cgo", seen, upstream)
        back = np.einsum("nyxgo,cgo->nyxgc", upstream, taps[i, j])
        gx[window] += back.reshape(batch, rows, columns, x.shape[3])
    (top, _), (first, _) = pads
    gx = gx[:, top : top + x.shape[1], first : first + x.shape[2]]
    return np.moveaxis(gx, 3, 1) if c.channels_first else gx, gk.reshape(kernel.shape)
