"""The differences by which the gradients of smooth functions are judged."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opgraft.verification import numeric


def numbers(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5), st.integers(0, 99))
def test_the_derivative_of_a_polynomial(coefficients, seed):
    """Central differences of fourth order are exact for polynomials of degree four."""
    x, d, w = (numbers(3, 2, seed=seed + i).astype(np.float64) for i in range(3))
    found = numeric.directional(lambda t: [np.polyval(coefficients, t[0])], [x], [d], [w],
                                numeric.DOUBLE)  # fmt: skip
    expected = float(np.sum(w * np.polyval(np.polyder(np.array(coefficients)), x) * d))
    assert found.value == pytest.approx(expected, rel=1e-7, abs=1e-6)  # what rounding leaves
    assert found.agrees(expected, numeric.DOUBLE)
    assert not found.agrees(expected + 1e-4 * (1 + abs(expected)), numeric.DOUBLE)


def test_inputs_that_stay_where_they_are():
    a, b = (numbers(3, 2, seed=i).astype(np.float64) for i in (0, 1))
    found = numeric.directional(lambda t: [t[0] * t[1]], [a, b], [None, np.ones_like(b)],
                                [np.ones_like(a)], numeric.DOUBLE)  # fmt: skip
    assert found.value == pytest.approx(float(a.sum()), rel=1e-9)


@pytest.mark.parametrize(
    ("function", "step"), [(np.sign, True), (np.floor, True), (np.abs, False), (np.tanh, False)]
)
def test_what_a_step_function_is(function, step):
    x = np.array([0.3, -0.7, 1.4])
    found = numeric.is_step(lambda t: [function(t[0])], [x], [np.ones(3)], numeric.DOUBLE)
    assert found is step


def test_a_kink_is_not_smooth():
    x, d, w = np.array([1e-4]), np.array([1.0]), np.array([1.0])
    precision = dataclasses.replace(numeric.DOUBLE, steps=numeric.DOUBLE.steps[:1])
    assert not numeric.directional(lambda t: [np.abs(t[0])], [x], [d], [w], precision).is_smooth


def test_how_finely_a_function_computes():
    x, d = numbers(4, 3).astype(np.float64), np.ones((4, 3))
    assert numeric.computes_in_double(lambda t: [np.sin(t[0])], [x], [d])
    single = numeric.computes_in_double(lambda t: [np.sin(t[0].astype(np.float32))], [x], [d])
    assert not single
