"""Gradients of contractions: what is wrong with them is named, and nothing where nothing is."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from broken import gradients as wrong
from cases import CASES, CONVOLUTIONS, MATMULS

from opgraft import reference
from opgraft.spec import Conv2D, DepthwiseConv2D
from opgraft.verification.gradient_diagnoses import diagnose_gradient

FILLED = [case for case in CASES if 0 not in (*case.left, *case.right, *case.output)]
CONV = [case for case in FILLED if case in set(CONVOLUTIONS)]
MATRICES = [case for case in FILLED if case in set(MATMULS)]


def operands(case):
    left, right = case.integers()
    return [v.astype(np.float32) for v in (left, right, case.integer_upstream())]


def results(vjp, cases):
    """`vjp(case, left, right, upstream)` gives both gradients, as any arrays or None."""
    found = []
    for case in cases:
        values = operands(case)
        both = vjp(case, *values)
        found.append((case, *values, tuple(g if g is None else np.float32(g) for g in both)))
    return found


def due(case, left, right, upstream):
    return reference.vjp(case.contraction, left, right, upstream)


@pytest.mark.parametrize("cases", [FILLED[::2], CONV[::3], MATRICES], ids=["all", "conv", "matmul"])
def test_nothing_is_wrong_with_what_is_right(cases):
    assert diagnose_gradient(results(due, cases)) == ()
    assert diagnose_gradient([]) == ()


# ---- mistakes that TensorFlow computes -----------------------------------------------------

BY_TENSORFLOW = {
    "no_mistake": (),
    "rotated_kernel": ("gradient of x: agrees with the kernel rotated by 180°",),
    "rotated_kernel_gradient": ("gradient of kernel: agrees with the kernel rotated by 180°",),
    "odd_padding_first": tuple(
        f"gradient of {name}: agrees with the odd padding above and left"
        for name in ("x", "kernel")
    ),
    "swapped_dilations": tuple(
        f"gradient of {name}: agrees with dilations swapped" for name in ("x", "kernel")
    ),
    "zero_pad_value": ("gradient of kernel: agrees with the pad value ignored",),
    "last_row_missing": tuple(
        f"gradient of {name}: the output's last row sends nothing back" for name in ("x", "kernel")
    ),
    "mean_over_the_batch": ("gradient of kernel: the mean over the batch",),
    "groups_reversed": ("gradient of kernel: agrees with groups in reverse order",),
    "almost_right": tuple(
        f"gradient of {name}: is 1.00000095 times what is due" for name in ("x", "kernel")
    ),
    "frozen_kernel": ("gradient of kernel: frozen (None)",),
    "exchanged_operands": ("gradient of x: taken at the wrong operand",),
}


@pytest.mark.parametrize("name", BY_TENSORFLOW)
def test_a_mistake_is_named(name):
    found = []
    for case in FILLED[::2] + CONV[1:40:6]:
        left, right, upstream = operands(case)
        both = wrong.MISTAKES[name](case.contraction, *map(tf.constant, (upstream, left, right)))
        got = tuple(g if g is None else g.numpy() for g in both)
        found.append((case, left, right, upstream, got))
    assert diagnose_gradient(found) == BY_TENSORFLOW[name]


# ---- mistakes in NumPy -----------------------------------------------------------------------


def of_each(change, side: int):
    """A vjp whose gradient of one operand is changed."""

    def vjp(case, *values):
        both = list(due(case, *values))
        both[side] = change(case, both[side], *values)
        return both

    return vjp


def by_windows(case, left, right, upstream, strides=None):
    """The vjp of the right loop nest, element by element, with other strides."""
    c = case.contraction
    x, dy = (reference.channels_last(c, v) for v in (left, upstream))
    (top, _), (first, _) = reference.paddings(c, x, right)
    sy, sx = strides or c.strides
    gx, gk = np.zeros(x.shape), np.zeros(right.shape)
    for n, oy, ox, i, j in np.ndindex(*dy.shape[:3], *right.shape[:2]):
        y = oy * sy + i * c.dilations[0] - top
        z = ox * sx + j * c.dilations[1] - first
        if 0 <= y < x.shape[1] and 0 <= z < x.shape[2]:
            gx[n, y, z] += right[i, j] @ dy[n, oy, ox]
            gk[i, j] += np.outer(x[n, y, z], dy[n, oy, ox])
    return np.moveaxis(gx, 3, 1) if c.channels_first else gx, gk


PLAIN = [case for case in CONV if not isinstance(case.contraction, DepthwiseConv2D)
         and case.contraction.groups == 1 and not case.contraction.pad_value]  # fmt: skip


def test_the_windows_of_these_tests_are_right():
    assert diagnose_gradient(results(by_windows, PLAIN[::5])) == ()


@pytest.mark.parametrize(("name", "strides"), [
    ("agrees with stride 1", lambda c: (1, 1)),
    ("agrees with strides swapped", lambda c: c.strides[::-1]),
])  # fmt: skip
def test_other_strides_are_named(name, strides):
    def vjp(case, *values):
        return by_windows(case, *values, strides=strides(case.contraction))

    found = diagnose_gradient(results(vjp, PLAIN[::3]), names=("image", "filter"))
    assert found == (f"gradient of image: {name}", f"gradient of filter: {name}")


EVERYWHERE = {
    "sign reversed": lambda case, g, *_: -g,
    "is 1.0005 times what is due": lambda case, g, *_: g * 1.0005,
    "is 2 times what is due": lambda case, g, *_: 2 * g,
    "frozen (zeros)": lambda case, g, *_: 0 * g,
    "frozen (None)": lambda case, g, *_: None,
    "is NaN or infinite": lambda case, g, *_: np.where(np.arange(g.shape[-1]) > 0, g, np.inf),
    "broadcast shape": lambda case, g, *_: g.sum(0),
    "transposed": lambda case, g, *_: np.swapaxes(g, -1, -2),
    "the mean over the batch": lambda case, g, left, *_: g / left.shape[0],
}


@pytest.mark.parametrize("side", [0, 1], ids=["x", "kernel"])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_mistake_of_one_gradient_is_named(name, side):
    vjp = of_each(EVERYWHERE[name], side)
    found = diagnose_gradient(results(vjp, FILLED[::3]), names=("p", "q"))
    assert found == (f"gradient of {'pq'[side]}: {name}",)


def test_the_gradient_of_the_other_operand_is_named():
    found = diagnose_gradient(results(lambda *v: due(*v)[::-1], MATRICES), names=("a", "b"))
    assert found == ("gradient of a: is the gradient of b", "gradient of b: is the gradient of a")


def test_another_dtype_is_named_and_what_else_is_wrong():
    def as_doubles(factor):
        return [(*rest, tuple(factor * g.astype(np.float64) for g in both))
                for *rest, both in results(due, MATRICES)]  # fmt: skip

    names = ("a", "b")
    assert diagnose_gradient(as_doubles(1), names) == (
        "gradient of a: wrong dtype", "gradient of b: wrong dtype"
    )  # fmt: skip
    assert "gradient of b: is 3 times what is due" in diagnose_gradient(as_doubles(3), names)


def test_operands_of_another_value_are_named():
    def at_ones(case, left, right, upstream):
        return (
            reference.vjp(case.contraction, left, np.ones_like(right), upstream)[0],
            reference.vjp(case.contraction, np.sign(left), right, upstream)[1],
        )

    assert diagnose_gradient(results(at_ones, FILLED[::3])) == (
        "gradient of x: taken at the wrong operand",
        "gradient of kernel: taken at the wrong operand",
    )


def test_groups_are_told_from_one_another():
    """The gradients at the other operand's groups in reverse order, depthwise ones too."""

    def reversed_groups(case, left, right, upstream):
        c = case.contraction
        if not isinstance(c, Conv2D):
            return due(case, left, right, upstream)
        groups, axis = (right.shape[2], 2) if isinstance(c, DepthwiseConv2D) else (c.groups, 3)
        turned = np.concatenate(np.split(right, groups, axis)[::-1], axis)
        gx = reference.vjp(c, left, turned, upstream)[0]
        return gx, due(case, left, right, upstream)[1]

    found = diagnose_gradient(results(reversed_groups, FILLED[::2]))
    assert found == ("gradient of x: agrees with groups in reverse order",)


def test_a_pad_value_matters_to_the_kernel_only():
    def ignored(case, left, right, upstream):
        c = case.contraction
        plain = dataclasses.replace(c, pad_value=0.0) if isinstance(c, Conv2D) else c
        return reference.vjp(plain, left, right, upstream)

    valued = [case for case in CONV if case.contraction.pad_value]
    found = diagnose_gradient(results(ignored, valued + CONV[::6]))
    assert found == ("gradient of kernel: agrees with the pad value ignored",)


def test_nothing_is_named_that_does_not_explain_everything():
    """The upstream is ignored; one case of many is wrong; one is right that should not be."""
    ignored = results(lambda c, l, r, u: due(c, l, r, np.ones_like(u)), FILLED[::3])
    assert diagnose_gradient(ignored) == ()
    found = results(due, CONV[::6])
    case, left, right, upstream, (gx, gk) = found[4]
    found[4] = (case, left, right, upstream, (-gx, gk))
    assert diagnose_gradient(found) == ()
