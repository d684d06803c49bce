"""Properties over random geometry, in small integers, so that every comparison is exact."""

import numpy as np
import pytest
import tensorflow as tf
from cases import Case, compute, meaning
from hypothesis import given, settings
from hypothesis import strategies as st

import opgraft as og
from opgraft.errors import ArgumentError
from opgraft.spec import Conv2D, DepthwiseConv2D, MatMul

few = st.integers(1, 3)
pair = st.tuples(few, few)
side = st.tuples(st.integers(0, 3), st.integers(0, 3))
paddings = st.sampled_from(["SAME", "VALID"]) | st.tuples(side, side)


@st.composite
def convolutions(draw, dilations=pair) -> Case:
    """A convolution of any kind whose loop nest takes some thousand steps."""
    geometry = {
        "strides": draw(pair),
        "padding": draw(paddings),
        "dilations": draw(dilations),
        "channels_first": draw(st.booleans()),
        "pad_value": draw(st.sampled_from([0.0, 0.0, 1.0, -2.0])),
    }
    image = draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    batch, per_group, count = draw(st.integers(0, 2)), draw(st.integers(1, 2)), draw(few)
    if draw(st.booleans()):
        contraction = Conv2D(groups=count, **geometry)
        channels, right = per_group * count, (*kernel, per_group, draw(st.integers(1, 2)) * count)
    else:
        contraction = DepthwiseConv2D(**geometry)
        channels, right = count, (*kernel, count, per_group)
    first = contraction.channels_first
    left = (batch, channels, *image) if first else (batch, *image, channels)
    return Case(contraction, left, right)


@st.composite
def products(draw) -> Case:
    """A matrix product with any transposes and batch dimensions that broadcast."""
    m, k, n = draw(st.tuples(*[st.integers(0, 5)] * 3))
    batch = draw(st.lists(st.integers(1, 3), max_size=3))
    shapes = []
    for transposed, matrix in ((draw(st.booleans()), (m, k)), (draw(st.booleans()), (k, n))):
        kept = batch[draw(st.integers(0, len(batch))) :]
        ones = [1 if draw(st.booleans()) else size for size in kept]
        shapes.append((transposed, (*ones, *(matrix[::-1] if transposed else matrix))))
    (a, left), (b, right) = shapes
    return Case(MatMul(a, b), left, right)


def check(case: Case, *arithmetics) -> None:
    left, right = case.integers()
    expected = meaning(case, np.multiply, left, right, np.int64)
    assert expected.shape == case.output
    for arithmetic in arithmetics:
        got = compute(case.contraction, arithmetic, left.astype("float32"), right.astype("float32"))
        np.testing.assert_array_equal(got, expected)


@given(case=convolutions())
@settings(max_examples=150)
def test_a_convolution_is_its_loop_nest(case, c_conv2d_full, c_both, c_matmul):
    check(case, c_conv2d_full, c_both, c_matmul)


@pytest.fixture(scope="module")
def narrow(request):
    return og.c_function(request.path.parent / "c" / "conv2d_narrow.c")


@given(case=convolutions(dilations=st.just((1, 1))))
@settings(max_examples=100)
def test_a_convolution_by_a_narrow_function_is_its_loop_nest(case, c_conv2d, narrow):
    check(case, c_conv2d, narrow)


@given(case=products())
@settings(max_examples=100)
def test_a_matrix_product_is_its_loop_nest(case, c_matmul):
    check(case, c_matmul)


@given(case=convolutions() | products())
@settings(max_examples=100)
def test_the_gradient_is_the_adjoint(case, c_both):
    """<dy, f(x, w)> = <gw, w>, and = <gx, x> where nothing is padded with a value."""
    x, w = (tf.constant(operand, tf.float32) for operand in case.integers())
    upstream = tf.constant(case.integer_upstream(), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        y = compute(case.contraction, c_both, x, w)
    gx, gw = tape.gradient(y, [x, w], upstream)
    assert (gx.shape, gw.shape) == (x.shape, w.shape)
    total = np.vdot(upstream, y)
    assert total == np.vdot(gw, w)
    if getattr(case.contraction, "pad_value", 0) == 0:
        assert total == np.vdot(gx, x)


@given(case=convolutions() | products(), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_a_contraction_is_linear_in_its_kernel(case, seed, c_both):
    x, w = (operand.astype("float32") for operand in case.integers())
    _, u = (operand.astype("float32") for operand in case.integers(str(seed)))

    def f(kernel):
        return compute(case.contraction, c_both, x, kernel).numpy()

    np.testing.assert_array_equal(f(w + 3 * u), f(w) + 3 * f(u))


@given(case=convolutions(), wrong=st.integers(1, 3))
@settings(max_examples=50)
def test_channels_that_do_not_fit_are_refused(case, wrong, c_both):
    left = list(case.left)
    left[case.contraction.channel_axis] += wrong
    x, w = np.ones(left, "float32"), np.ones(case.right, "float32")
    with pytest.raises(ArgumentError, match=rf"has {left[case.contraction.channel_axis]} channels"):
        compute(case.contraction, c_both, x, w)
