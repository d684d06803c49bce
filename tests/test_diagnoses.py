"""Forwards: a wrong one is caught and named rightly, a right one is left alone."""

import math

import numpy as np
import pytest
from cases import CASES, CONVOLUTIONS, MATMULS, Case, every, meaning
from numpy_kernels import convolution, matrices, through, unwritten

from opgraft.spec import Conv2D, DepthwiseConv2D, MatMul
from opgraft.verification.forward import check_forward

FILLED = [case for case in CASES if 0 not in (*case.left, *case.right, *case.output)]
CONV = [case for case in FILLED if case in set(CONVOLUTIONS)]
MATRICES = [case for case in FILLED if case in set(MATMULS)]
RIGHT = convolution()


def by_name(forward):
    return {check.name: check for check in forward.checks}


# ---- the kernels of these tests themselves -----------------------------------------------


@every(CONV[::6])
def test_the_kernel_without_a_mistake_is_right(case):
    left, right = (operand.astype(np.float32) for operand in case.integers())
    expected = meaning(case, np.multiply, left, right)
    np.testing.assert_array_equal(RIGHT(case, left, right), expected)
    np.testing.assert_array_equal(through(matrices())(case, left, right), expected)


# ---- mistakes of convolutions --------------------------------------------------------------


def half(size: str):
    return lambda v: getattr(v, size) // 2 if v.same else v.pads[size == "kw"][0]


MISTAKES = {
    "symmetric padding": {"top": half("kh"), "left": half("kw")},
    "symmetric padding, rounded down": {
        "top": lambda v: (v.kh - 1) // 2 if v.same and sum(v.pads[0]) else v.pads[0][0],
        "left": lambda v: (v.kw - 1) // 2 if v.same and sum(v.pads[1]) else v.pads[1][0],
    },
    "the odd padding above and left": {
        "top": lambda v: v.pads[0][1] if v.same else v.pads[0][0],
        "left": lambda v: v.pads[1][1] if v.same else v.pads[1][0],
    },
    "VALID padding": {"top": lambda v: 0, "left": lambda v: 0},
    "VALID padding, unchecked": {
        "top": lambda v: 0, "left": lambda v: 0, "inside": lambda v: np.True_
    },
    "strides swapped": {
        "y": lambda v: v.oy * v.sx + v.i * v.dy - v.top,
        "x": lambda v: v.ox * v.sy + v.j * v.dx - v.left,
    },
    "stride 1 and the output cut": {
        "y": lambda v: v.oy + v.i * v.dy - v.top,
        "x": lambda v: v.ox + v.j * v.dx - v.left,
    },
    "the kernel rotated by 180°": {
        "weight": lambda v: (
            (((v.kh - 1 - v.i) * v.kw + v.kw - 1 - v.j) * v.ins + v.c) * v.outs + v.o
        )
    },
    "the kernel's height and width swapped": {
        "weight": lambda v: ((v.j * v.kh + v.i) * v.ins + v.c) * v.outs + v.o
    },
    "OIHW": {"weight": lambda v: ((v.o * v.ins + v.c) * v.kh + v.i) * v.kw + v.j},
    "OHWI": {"weight": lambda v: ((v.o * v.kh + v.i) * v.kw + v.j) * v.ins + v.c},
    "HWOI": {"weight": lambda v: ((v.i * v.kw + v.j) * v.outs + v.o) * v.ins + v.c},
    "an NCHW input": {
        "pixel": lambda v: ((v.n * v.channels + v.channel) * v.h + v.y) * v.w + v.x
    },
    "an NCHW output": {"place": lambda v: ((v.n * v.outs + v.o) * v.oh + v.oy) * v.ow + v.ox},
    "the image's height and width swapped": {
        "pixel": lambda v: ((v.n * v.w + v.x) * v.h + v.y) * v.channels + v.channel
    },
    "dilation ignored": {
        "y": lambda v: v.oy * v.sy + v.i - v.top,
        "x": lambda v: v.ox * v.sx + v.j - v.left,
    },
    "dilations swapped": {
        "y": lambda v: v.oy * v.sy + v.i * v.dx - v.top,
        "x": lambda v: v.ox * v.sx + v.j * v.dy - v.left,
    },
    "groups ignored": {"group": lambda v: 0},
    "groups in reverse order": {"group": lambda v: v.groups - 1 - v.o // (v.outs // v.groups)},
    "the pad value ignored": {"outside": lambda v: 0},
    "the last term left out": {
        "counted": lambda v: (v.i < v.kh - 1) | (v.j < v.kw - 1) | (v.c < v.ins - 1)
    },
    "the first term left out": {"counted": lambda v: v.i + v.j + v.c > 0},
    "the last kernel row left out": {"counted": lambda v: v.i < v.kh - 1},
    "the last kernel column left out": {"counted": lambda v: v.j < v.kw - 1},
    "the last input channel left out": {"counted": lambda v: v.c < v.ins - 1},
    "the output shifted by one row": {"y": lambda v: (v.oy + 1) * v.sy + v.i * v.dy - v.top},
    "the output shifted by one column": {"x": lambda v: (v.ox - 1) * v.sx + v.j * v.dx - v.left},
    "the output shifted by one column, in memory": {
        "place": lambda v: ((v.n * v.oh + v.oy) * v.ow + v.ox + 1) * v.outs + v.o
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_convolution_is_named(name):
    wrong = convolution(**MISTAKES[name])
    found = check_forward(wrong, CONV[::3], unwritten=unwritten(wrong))
    assert found.findings == (f"agrees with {name.split(',')[0]}",)
    check = by_name(found)["small integers"]
    assert check.passed is False
    assert found.findings[0] in check.message
    assert check.case in check.message


PARTIAL = {
    "last row never written": {"written": lambda v: v.oy < v.oh - 1},
    "last column never written": {"written": lambda v: v.ox < v.ow - 1},
    "last channel never written": {"written": lambda v: v.o < v.outs - 1},
    "last image never written": {"written": lambda v: v.n < v.batch - 1},
    "of every third element": {"written": lambda v: (v.oy + v.ox + v.o + v.n) % 3 > 0},
}


@pytest.mark.parametrize("name", PARTIAL)
def test_what_is_never_written_is_named(name):
    wrong = convolution(**PARTIAL[name])
    (found,) = check_forward(wrong, CONV[::3], unwritten=unwritten(wrong)).findings[:1]
    if name in ("of every third element",):
        assert found.endswith(" elements never written")
        assert int(found.split()[0]) > 1
    else:
        assert found == name


def test_what_is_not_known_to_be_unwritten_is_nan():
    wrong = convolution(**PARTIAL["last channel never written"])
    assert check_forward(wrong, CONV[::3]).findings == ("is NaN or infinite",)


def test_a_packed_output_of_another_size_explains_what_is_unwritten():
    """VALID where SAME is due: a smaller output at the beginning of the memory."""

    def wrong(case, left, right):
        c = case.contraction
        if not isinstance(c, Conv2D) or c.padding != "SAME":
            return RIGHT(case, left, right)
        valid = Case(Conv2D(c.strides, "VALID", c.dilations, c.groups), case.left, case.right)
        small = RIGHT(valid, left, right).ravel()
        return np.append(small, np.full(math.prod(case.output) - small.size, np.nan)).reshape(
            case.output
        )

    cases = [case for case in CONV if not isinstance(case.contraction, DepthwiseConv2D)
             and not case.contraction.channels_first][::3]  # fmt: skip
    found = check_forward(wrong, cases, unwritten=unwritten(wrong))
    assert found.findings == ("agrees with VALID padding",)


PATTERNS = {
    "wrong only for batch > 1": {"pixel": lambda v: (v.y * v.w + v.x) * v.channels + v.channel},
    "wrong only for odd sizes": {
        "pixel": lambda v: (v.n * v.h * v.w + v.y * (v.w // 2 * 2) + v.x) * v.channels + v.channel
    },
    "wrong only for odd sizes, of the kernel": {
        "counted": lambda v: (v.i < v.kh // 2 * 2) | (v.kh == 1)
    },
    "wrong only for non-square sizes": {
        "place": lambda v: ((v.n * v.oh + v.oy) * min(v.oh, v.ow) + v.ox) * v.outs + v.o
    },
    "wrong only for non-square sizes, of the kernel": {
        "weight": lambda v: ((v.i * v.kh + v.j) * v.ins + v.c) * v.outs + v.o
    },
    "depends on the batch size": {"result": lambda v: v.sum * (1 + v.batch)},
}


@pytest.mark.parametrize("name", PATTERNS)
def test_when_it_is_wrong_is_named(name):
    wrong = convolution(**PATTERNS[name])
    found = check_forward(wrong, CONV[::3], unwritten=unwritten(wrong)).findings
    assert name.split(",")[0] in found
    assert not [finding for finding in found if "agrees with" in finding]


def test_both_are_said_where_both_are_true():
    found = check_forward(convolution(result=lambda v: v.sum / v.batch), CONV[::3])
    assert found.findings == ("wrong only for batch > 1", "depends on the batch size")


def test_a_constant_factor_is_named():
    for factor, text in ((1.0005, "1.0005"), (-1, "-1"), (1 + 2**-20, "1.00000095"), (0, "0")):
        wrong = convolution(result=lambda v, factor=factor: np.float32(v.sum * factor))
        found = check_forward(wrong, CONV[::3])
        assert found.findings == (f"is {text} times what is due",)


def test_nothing_is_named_that_does_not_explain_everything():
    """Absolute values; a mistake of one image of seven; two mistakes at once."""
    for wrong in (
        convolution(result=lambda v: abs(v.sum)),
        convolution(result=lambda v: v.sum + (v.h == 7)),
        convolution(**MISTAKES["OIHW"], **MISTAKES["strides swapped"]),
    ):
        found = check_forward(wrong, CONV[::3])
        assert by_name(found)["small integers"].passed is False
        assert found.findings == ()


def test_a_padded_image_is_seen_where_padding_is_composed_first():
    """As of a C function that has no parameters for a padding of four numbers."""
    wrong = convolution(**MISTAKES["an NCHW input"])

    def evaluate(case, left, right):
        c = case.contraction
        if c.padding == "SAME" and not c.pad_value:
            return wrong(case, left, right)
        (top, bottom), (first, last) = ((0, 0), (0, 0)) if c.padding == "VALID" else (
            c.padding if c.padding != "SAME" else
            [tuple(c.axis(i, case.left[i + 1], case.right[i])[:2]) for i in (0, 1)]
        )  # fmt: skip
        x = np.pad(left, ((0, 0), (top, bottom), (first, last), (0, 0)),
                   constant_values=c.pad_value)  # fmt: skip
        plain = type(c)(c.strides, "VALID", c.dilations, c.groups)
        return wrong(Case(plain, x.shape, case.right), x, right)

    cases = [case for case in CONV if not case.contraction.channels_first]
    assert check_forward(evaluate, cases).findings == ("agrees with an NCHW input",)


# ---- mistakes of matrix products -----------------------------------------------------------

PRODUCTS = {
    "agrees with the first operand transposed": {"a": lambda v: v.l * v.m + v.i},
    "agrees with the second operand transposed": {"b": lambda v: v.j * v.k + v.l},
    "agrees with the result transposed": {"place": lambda v: v.j * v.m + v.i},
    "agrees with the last term left out": {"counted": lambda v: v.l < v.k - 1},
    "agrees with the first term left out": {"counted": lambda v: v.l > 0},
    "last row never written": {"written": lambda v: v.i < v.m - 1},
    "last column never written": {"written": lambda v: v.j < v.n - 1},
    "wrong only for odd sizes": {"counted": lambda v: v.l < max(v.k // 2 * 2, 1)},
    "wrong only for non-square sizes": {"b": lambda v: v.l * min(v.k, v.n) + v.j},
    "depends on the batch size": {"result": lambda v: v.sum * v.m},
}


@pytest.mark.parametrize("cases", [MATRICES, FILLED[::3] + MATRICES], ids=["matrices", "all"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_wrong_matrix_product_is_named(name, cases):
    wrong = through(matrices(**PRODUCTS[name]))
    found = check_forward(wrong, cases, unwritten=unwritten(wrong)).findings
    assert name in found
    assert not [finding for finding in found if "agrees with" in finding and finding != name]


def test_a_transpose_that_is_ignored_is_named():
    def wrong(case, left, right):
        c = case.contraction
        left = left.reshape((*left.shape[:-2], *left.shape[:-3:-1])) if c.transpose_a else left
        return through(np.matmul)(Case(MatMul(False, c.transpose_b), left.shape, case.right),
                                  left, right)  # fmt: skip

    found = check_forward(wrong, MATRICES)
    assert found.findings == ("agrees with the first operand transposed",)


# ---- other ways to call it -----------------------------------------------------------------


def test_another_way_to_call_it_that_is_right_is_the_finding():
    wrong = convolution(result=lambda v: v.sum + v.h)
    variants = {
        "agrees with 'p' and 'q' exchanged": wrong,
        "agrees with 'h' and 'w' exchanged": RIGHT,
    }
    found = check_forward(wrong, CONV[::4], variants=variants)
    assert found.findings == ("agrees with 'h' and 'w' exchanged",)


def test_another_way_must_be_right_where_the_plain_one_is_too():
    wrong = convolution(result=lambda v: v.sum + (v.h > 6))
    other = convolution(result=lambda v: v.sum + (v.h <= 6))
    assert check_forward(wrong, CONV[::4], variants={"another": other}).findings == ()


def test_other_ways_are_not_tried_for_what_is_right():
    def never(case, left, right):
        raise AssertionError("called")

    assert check_forward(RIGHT, CONV[::4], variants={"another": never}).findings == ()
