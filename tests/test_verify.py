"""`og.verify` as a whole: targets, options, what it refuses; and `og.testing`."""

import functools
import json

import keras
import loaded
import numpy as np
import pytest
import tensorflow as tf

import opgraft as og
from opgraft.errors import ArgumentError

RIGHT = loaded.product()
TRANSPOSED = RIGHT.replace("b[l * n + j]", "b[j * k + l]")
LARGE_CRASH = loaded.product("if (k > 100) *(volatile int *)0 = 1")


def product_vjp(inputs, output, upstream):
    a, w = inputs
    return upstream @ tf.transpose(w), tf.transpose(a) @ upstream


@og.custom_op(vjp=product_vjp)
def product(A, W):  # noqa: N803
    return A @ W


def passed(report) -> dict[str, bool]:
    return {verdict.name: verdict.passed for verdict in report.verdicts}


@pytest.fixture
def rng():
    return np.random.default_rng(7)


# ---- arithmetics ---------------------------------------------------------------------------


def test_a_right_kernel_passes_with_every_check_run(compile_c):
    report = og.verify(og.c_function(compile_c(RIGHT)))
    assert report.passed, str(report)
    assert report.findings == ()
    assert report.not_run == ()
    for verdict in report.verdicts:
        assert len({check.name for check in verdict.checks}) == len(verdict.checks) > 3
        assert all(check.proves for check in verdict.checks)
    assert 0 < report.metrics["max relative error"] < 1e-6


def test_a_wrong_kernel_fails_forward_alone_and_is_named(compile_c):
    report = og.verify(og.c_function(compile_c(TRANSPOSED)))
    assert passed(report) == {"forward": False, "gradient": True, "contract": True}
    assert report.findings == ("agrees with the second operand transposed",)
    told = json.loads(report.to_json())
    assert told["passed"] is False
    assert told["findings"] == list(report.findings)


def test_a_limit_is_for_kernels_that_are_not_exact(compile_c):
    coarse = og.c_function(compile_c(RIGHT.replace("= sum;", "= sum * 1.01f;")))
    assert not og.verify(coarse).forward.passed
    assert og.verify(coarse, limit=0.02).forward.passed
    assert not og.verify(coarse, limit=0.005).forward.passed


def test_a_kernel_that_is_exact_is_not_the_approximate_one_it_claims_to_be(compile_c):
    report = og.verify(og.c_function(compile_c(RIGHT)), multiply=lambda a, b: a * b * 0.5)
    assert not report.forward.passed
    assert "agrees with exact multiplication" in report.findings


def test_limits_of_a_forward_do_not_loosen_a_gradient(compile_c):
    vjp = og.gradients.custom(lambda i, o, u: tuple(1.05 * g for g in product_vjp(i, o, u)))
    report = og.verify(og.c_function(compile_c(RIGHT), gradient=vjp), limit=0.1)
    assert passed(report) == {"forward": True, "gradient": False, "contract": True}
    assert "gradient of a: is 1.05 times what is due" in report.findings


# ---- what arithmetics are used in --------------------------------------------------------------


def test_a_layer_is_verified_on_its_own_sizes_before_it_runs_here(compile_c, rng):
    layer = og.layers.Dense(3, arithmetic=og.c_function(compile_c(LARGE_CRASH)))
    report = og.verify(layer, rng.standard_normal((4, 200), np.float32))
    assert not report.contract.passed
    assert report.findings == ("crashes (SIGSEGV)",)
    (check,) = [c for c in report.contract.checks if c.name == "runs on your sizes"]
    assert check.passed is False
    assert "k=200" in check.message


def test_a_model_of_several_layers(c_both):
    layers = [keras.Input((9, 8, 1)), keras.layers.Conv2D(2, 3), keras.layers.Flatten()]
    model = og.swap(keras.Sequential([*layers, keras.layers.Dense(3)]), c_both)
    report = og.verify(model)
    assert report.passed, str(report)
    assert any(c.name == "every weight has a gradient" for c in report.gradient.checks)


def test_a_custom_op(rng):
    inputs = [rng.standard_normal(shape, np.float32) for shape in ((5, 7), (7, 3))]
    report = og.verify(product, inputs)
    assert report.passed, str(report)

    @og.custom_op(vjp=lambda i, o, u: tuple(1.0005 * g for g in product_vjp(i, o, u)))
    def wrong(A, W):  # noqa: N803
        return A @ W

    report = og.verify(wrong, inputs)
    assert passed(report) == {"forward": True, "gradient": False, "contract": True}
    assert report.findings == ("gradient of A: is 1.0005 times what is due",)


def test_a_custom_op_inside_a_function_is_verified_too(rng):
    @og.custom_op(vjp=lambda inputs, output, upstream: 2 * upstream)
    def tripled(x):
        return 3 * x

    report = og.verify(lambda x: tf.nn.relu(tripled(x)), rng.standard_normal((4, 3), np.float32))
    assert not report.gradient.passed
    assert report.findings == ("gradient of x: is 0.666667 times what is due",)


def test_a_step_function_needs_its_surrogate(rng):
    @og.custom_op(vjp=lambda i, o, u: u * tf.cast(tf.abs(i.x) <= 1, u.dtype))
    def sign(x):
        return tf.where(x < 0, -1.0, 1.0)

    x = rng.standard_normal((5, 4), np.float32)
    report = og.verify(sign, x)
    assert not report.passed
    (check,) = [c for c in report.gradient.checks if c.name == "directional derivatives"]
    assert check.passed is None
    assert "step function" in check.message
    assert og.verify(sign, x, surrogate=lambda x: tf.clip_by_value(x, -1, 1)).passed
    report = og.verify(sign, x, surrogate=tf.tanh)
    assert report.findings == ("gradient of x: is not that of the surrogate",)


def test_what_uses_nothing_of_ours_does_not_pass(rng):
    report = og.verify(keras.layers.Dense(2), rng.standard_normal((3, 4), np.float32))
    assert not report.passed
    assert "nothing was verified" in "".join(check.message for check in report.not_run)


def test_what_was_traced_before_is_looked_at_anyway(compile_c, rng):
    arithmetic = og.c_function(compile_c(TRANSPOSED))
    function = tf.function(functools.partial(og.matmul, arithmetic=arithmetic))
    inputs = [rng.standard_normal(shape, np.float32) for shape in ((5, 4), (4, 3))]
    function(*inputs)
    assert not og.verify(function, inputs).forward.passed


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"limit": -1}, r"limit=-1\): it must be a number of at least 0"),
        ({"limit": float("nan")}, "limit=nan"),
        ({"limit": "0.1"}, "limit='0.1'.*must be a number"),
        ({"multiply": 3}, "multiply=.*a function of two numbers"),
        ({"surrogate": 3}, "surrogate=3.*a function of the inputs"),
        ({"large": 1}, "large=1.*True or False"),
        ({"time_limit": 0}, "time_limit=0.*above 0"),
        ({"memory_limit": float("inf")}, "memory_limit=inf"),
    ],
)
def test_a_wrong_option(options, text, c_matmul):
    with pytest.raises(ArgumentError, match=text):
        og.verify(c_matmul, **options)


@pytest.mark.parametrize(
    ("target", "inputs", "text"),
    [
        ("kernel.c", None, r"this is a path; give og.c_function\('kernel.c'\)"),
        (og.layers.Dense, None, "Dense.*this is a class; give an instance"),
        (3, None, r"verify\(3\): give an og.Arithmetic"),
        (product, None, "needs inputs to try it on"),
        (keras.layers.Dense(2), None, "needs inputs to try it on"),
        (keras.layers.Dense(2), {"x": 1}, "give an array, or a list of arrays"),
        (og.exact, [1.0], "tried on a table of cases"),
    ],
)
def test_a_wrong_target_or_input(target, inputs, text):
    with pytest.raises(ArgumentError, match=text):
        og.verify(target, inputs)


def test_it_does_not_run_inside_a_graph(c_matmul):
    with pytest.raises(ArgumentError, match=r"call it outside of tf\.function"):
        tf.function(lambda: og.verify(c_matmul))()
