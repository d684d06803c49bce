"""The gradient verdict: of arithmetics, of custom ops, and the differences it is judged by."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import opgraft as og
from opgraft import gradients
from opgraft.errors import ArgumentError
from opgraft.spec import Conv2D, MatMul
from opgraft.testing import CONVOLUTIONS, MATMULS
from opgraft.verification.functions import CustomOpChecks
from opgraft.verification.gradient import GradientChecks

# Matrix products that a vjp can know which sees two operands and nothing else.
PLAIN = [
    c for c in MATMULS
    if c.contraction == MatMul() and len(c.left) == len(c.right) == 2
    and 0 not in (*c.left, *c.right)
]  # fmt: skip
FEW = [c for c in (*MATMULS[::5], *CONVOLUTIONS[::16]) if 0 not in (*c.left, *c.right, *c.output)]


def numbers(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def by_name(outcome):
    return {check.name: check for check in outcome.checks}


def assert_right(outcome):
    assert outcome.findings == ()
    assert outcome.deviations == ()
    for check in outcome.checks:
        assert check.passed is True, f"{check.name}: {check.message}"


# ---- arithmetics ---------------------------------------------------------------------------


def due(inputs, output, upstream):
    """dA = dy · Wᵀ and dW = Aᵀ · dy."""
    a, b = inputs
    return tf.matmul(upstream, b, transpose_b=True), tf.matmul(a, upstream, transpose_a=True)


def changed(change):
    """The right vjp, its two gradients changed."""
    return lambda inputs, output, upstream: change(*due(inputs, output, upstream))


def custom(vjp, **options):
    return dataclasses.replace(og.exact, gradient=gradients.custom(vjp, **options))


def of_geometry(inputs, output, upstream, *, contraction):
    """The native vjp of any contraction, written as a vjp of one's own."""
    with tf.GradientTape() as tape:
        tape.watch(list(inputs))
        y = og.ops.contract(contraction, og.exact, *inputs)
    return tape.gradient(y, list(inputs), upstream)


@pytest.mark.parametrize(
    "gradient",
    [
        gradients.native,
        gradients.by_contraction(),
        gradients.by_contraction(gradients.same, None),
        gradients.by_contraction(None, gradients.same),
        gradients.custom(of_geometry),
    ],
    ids=["native", "exact", "same input", "same kernel", "custom"],
)
def test_a_right_gradient_of_any_geometry(gradient, c_both):
    outcome = GradientChecks(dataclasses.replace(c_both, gradient=gradient), FEW).run()
    assert_right(outcome)
    checks = by_name(outcome)
    assert checks["vector-Jacobian product"].message == f"exact in {len(FEW)} cases"
    assert checks["adjoint identity"].message == f"exact in {len(FEW)} cases"
    assert checks["second order"].message.startswith("exact in")
    assert all(check.proves for check in outcome.checks)


@pytest.mark.parametrize("check_finite", [False, True])
def test_a_right_vjp_of_matrix_products(check_finite):
    assert_right(GradientChecks(custom(due, check_finite=check_finite), PLAIN).run())


def test_a_c_function_of_bytes_is_given_what_bytes_can_hold(compile_c):
    source = compile_c("""
        #include <stdint.h>
        void mm(const uint8_t *a, const uint8_t *b, int m, int k, int n, int32_t *out)
        {
            for (int i = 0; i < m * n; i++) {
                out[i] = 0;
                for (int l = 0; l < k; l++) out[i] += a[i / n * k + l] * b[l * n + i % n];
            }
        }""")
    outcome = GradientChecks(og.c_function(source), PLAIN).run()
    assert by_name(outcome)["vector-Jacobian product"].passed, outcome.checks
    assert by_name(outcome)["adjoint identity"].passed
    assert by_name(outcome)["second order"].passed


def test_cases_without_elements_are_left_out():
    empty = [case for case in MATMULS if 0 in (*case.left, *case.right)]
    assert empty
    outcome = GradientChecks(og.exact, [*PLAIN, *empty]).run()
    assert by_name(outcome)["vector-Jacobian product"].message == f"exact in {len(PLAIN)} cases"


WRONG = [
    ("scaled", changed(lambda a, b: (a, 1.0005 * b)), "gradient of b: is 1.0005 times what is due",
     "the gradient of b at"),
    ("negative", changed(lambda a, b: (-a, b)), "gradient of a: sign reversed",
     "the gradient of a at"),
    ("none", changed(lambda a, b: (None, b)), "gradient of a: frozen (None)",
     "the gradient of a is None"),
    ("zeros", changed(lambda a, b: (a, 0 * b)), "gradient of b: frozen (zeros)", "is 0 where"),
    ("rows", changed(lambda a, b: (a[:1], b)), "gradient of a: broadcast shape",
     "float32 of the shape (1, 5) where float32 of (3, 5) is due"),
    ("double", changed(lambda a, b: (a, tf.cast(b, tf.float64))), "gradient of b: wrong dtype",
     "float64 of the shape (5, 4) where float32 of (5, 4) is due"),
    ("nan", changed(lambda a, b: (a * np.nan, b)), "gradient of a: is NaN or infinite", "is nan"),
    ("infinite", changed(lambda a, b: (a, b + np.inf)), "gradient of b: is NaN or infinite",
     "is inf"),
    ("one", changed(lambda a, b: a), "the vjp returns 1 gradient", "1 gradient"),
    ("three", changed(lambda a, b: (a, b, a)), "the vjp returns 3 gradients", "3 gradients"),
]  # fmt: skip


@pytest.mark.parametrize(("vjp", "finding", "message"), [w[1:] for w in WRONG],
                         ids=[w[0] for w in WRONG])  # fmt: skip
def test_a_wrong_vjp_is_named(vjp, finding, message):
    outcome = GradientChecks(custom(vjp), PLAIN).run()
    (found,) = outcome.findings
    assert found.startswith(finding)
    check = by_name(outcome)["vector-Jacobian product"]
    assert check.passed is False
    assert message in check.message
    assert check.case in [case.id for case in PLAIN]
    second = by_name(outcome)["second order"]
    assert second.passed is None
    assert second.message == "not run: the first order is wrong"


@given(st.floats(-8, 8).filter(lambda f: min(abs(f), abs(f - 1), abs(f + 1)) > 1e-2))
def test_any_factor_is_named(factor):
    outcome = GradientChecks(custom(changed(lambda a, b: (factor * a, b))), PLAIN[:1]).run()
    (found,) = outcome.findings
    assert found.startswith("gradient of a: is ")
    assert float(found.split()[4]) == pytest.approx(factor, rel=1e-4)


def test_the_deviation_of_a_wrong_gradient_is_there_to_be_drawn():
    outcome = GradientChecks(custom(changed(lambda a, b: (2 * a, b))), PLAIN).run()
    (deviation,) = outcome.deviations
    assert deviation.title == "gradient of a"
    np.testing.assert_array_equal(deviation.actual, 2 * deviation.expected)


@pytest.mark.parametrize(
    "vjp",
    [
        lambda inputs, output, upstream: 1 / 0,
        lambda inputs, output, upstream: None,
        lambda inputs, output, upstream: {"a": 0 * inputs.a, "b": 0 * inputs.b},
        lambda inputs, output, upstream: (object(), "text"),
        lambda inputs, output, upstream: [[]],
        lambda inputs, output, upstream: (tf.SparseTensor([[0, 0]], [1.0], [3, 5]), 0 * inputs.b),
    ],
    ids=["raises", "None", "a dict", "objects", "an empty list", "sparse"],
)
def test_a_vjp_that_breaks_down_is_reported(vjp):
    outcome = GradientChecks(custom(vjp), PLAIN).run()
    assert by_name(outcome)["vector-Jacobian product"].passed is False
    assert by_name(outcome)["adjoint identity"].passed is False
    assert outcome.findings
    for text in (*outcome.findings, *(check.message for check in outcome.checks)):
        assert len(text) < 420, text
        assert "\n" not in text
        assert "1 gradients" not in text


def test_what_works_eagerly_only_fails_in_a_graph():
    def by_numpy(inputs, output, upstream):
        a, b, dy = inputs.a.numpy(), inputs.b.numpy(), upstream.numpy()
        return tf.constant(dy @ b.T), tf.constant(a.T @ dy)

    checks = by_name(GradientChecks(custom(by_numpy), PLAIN).run())
    assert checks["vector-Jacobian product"].passed
    assert checks["eager = graph"].passed is False
    assert "numpy" in checks["eager = graph"].message


def test_wrong_for_other_numbers_than_small_integers():
    def vjp(inputs, output, upstream):
        whole = tf.reduce_all(inputs.a == tf.round(inputs.a))
        da, db = due(inputs, output, upstream)
        return tf.where(whole, da, 2 * da), db

    checks = by_name(GradientChecks(custom(vjp), PLAIN).run())
    assert checks["vector-Jacobian product"].passed
    assert checks["random numbers"].passed is False
    assert "the gradient of a is off" in checks["random numbers"].message


def test_wrong_for_one_size_of_the_batch_only():
    def vjp(inputs, output, upstream):
        da, db = due(inputs, output, upstream)
        return da, db if inputs.a.shape[0] != 1 else 3 * db

    check = by_name(GradientChecks(custom(vjp), PLAIN).run())["vector-Jacobian product"]
    single = [case for case in PLAIN if case.left[0] == 1 and 0 not in (*case.left, *case.right)]
    assert check.message.startswith(f"wrong in {len(single)} of ")
    assert check.case == single[0].id


# ---- second order --------------------------------------------------------------------------


def test_a_second_order_that_is_refused_passes():
    def through_numpy(inputs, output, upstream):
        def compute(a, b, dy):
            return dy @ b.T, a.T @ dy

        return tuple(tf.numpy_function(compute, [*inputs, upstream], [tf.float32] * 2))

    outcome = GradientChecks(custom(through_numpy), PLAIN).run()
    assert_right(outcome)
    message = by_name(outcome)["second order"].message
    assert message.startswith("refused, as it must be")
    assert "goes through NumPy" in message


def test_a_second_order_that_is_cut_off_is_wrong():
    def detached(inputs, output, upstream):
        return due(type(inputs)(*map(tf.stop_gradient, inputs)), output, upstream)

    outcome = GradientChecks(custom(detached), PLAIN).run()
    assert outcome.findings == ("second order: wrong",)
    assert by_name(outcome)["vector-Jacobian product"].passed
    check = by_name(outcome)["second order"]
    assert check.passed is False
    assert "the derivative of the gradient for a is wrong" in check.message


# ---- limits --------------------------------------------------------------------------------


@pytest.fixture
def coarse(compile_c):
    """Every product is too large by one percent."""
    return og.c_function(compile_c("float mul(float a, float b) { return a * b * 1.01f; }"))


def test_a_backward_of_another_arithmetic_needs_a_limit(coarse):
    arithmetic = dataclasses.replace(og.exact, gradient=gradients.by_contraction(coarse, coarse))
    outcome = GradientChecks(arithmetic, FEW[::2]).run()
    kinds = {name: check.passed for name, check in by_name(outcome).items()}
    assert kinds["vector-Jacobian product"] is False
    assert "gradient of a: is 1.01 times what is due" in outcome.findings
    assert_right(GradientChecks(arithmetic, FEW[::2], limit=0.011).run())
    outcome = GradientChecks(arithmetic, FEW[::2], limit=0.009).run()
    assert not by_name(outcome)["vector-Jacobian product"].passed


def test_the_same_arithmetic_needs_a_limit_too(coarse):
    arithmetic = dataclasses.replace(coarse, gradient=gradients.by_contraction(gradients.same))
    outcome = GradientChecks(arithmetic, PLAIN).run()
    assert outcome.findings == ("gradient of a: is 1.01 times what is due",)
    assert_right(GradientChecks(arithmetic, PLAIN, limit=0.011).run())


@pytest.mark.parametrize("limit", [None, 0.5])
def test_a_limit_does_not_loosen_a_gradient_that_is_computed_exactly(limit, coarse):
    scaled = changed(lambda a, b: (1.05 * a, b))
    arithmetic = dataclasses.replace(coarse, gradient=gradients.custom(scaled))
    outcome = GradientChecks(arithmetic, PLAIN, limit=limit).run()
    assert outcome.findings == ("gradient of a: is 1.05 times what is due",)
    native = dataclasses.replace(coarse, gradient=gradients.native)
    assert_right(GradientChecks(native, PLAIN, limit=limit).run())


# ---- surrogates ----------------------------------------------------------------------------


def test_a_surrogate_declares_the_gradient():
    def vjp(inputs, output, upstream):
        da, db = due(inputs, output, upstream)
        return 2 * da, 2 * db

    checks = GradientChecks(custom(vjp), PLAIN, lambda a, b: 2 * tf.matmul(a, b))
    assert_right(checks.run())
    outcome = GradientChecks(custom(vjp), PLAIN, lambda a, b: tf.matmul(tf.stop_gradient(a), b)
                             + tf.matmul(a, tf.stop_gradient(b))).run()  # fmt: skip
    assert outcome.findings == tuple(
        f"gradient of {name}: is not that of the surrogate" for name in ("a", "b")
    )
    outcome = GradientChecks(custom(vjp), PLAIN, lambda a, b: 2 * tf.matmul(a, tf.stop_gradient(b)))
    assert outcome.run().findings == ("gradient of b: is not that of the surrogate",)


@pytest.mark.parametrize(
    ("surrogate", "text"),
    [
        (lambda a, b: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda a: a, "TypeError"),
        (lambda a, b: None, "the surrogate fails on the operands of matmul-"),
        (lambda a, b: tf.reduce_sum(a), "the surrogate fails on the operands of matmul-"),
    ],
    ids=["raises", "one parameter", "None", "another shape"],
)
def test_a_surrogate_that_fails_is_the_callers_mistake(surrogate, text):
    with pytest.raises(ArgumentError, match=r"verify\(surrogate=") as raised:
        GradientChecks(custom(due), PLAIN, surrogate).run()
    assert text in str(raised.value)
    assert len(str(raised.value)) < 450


# ---- custom ops ----------------------------------------------------------------------------


def verified(function, vjp, *inputs, surrogate=None, **options):
    """The outcome for a custom op at some inputs."""
    op = og.custom_op(function, vjp=vjp, **options)
    bound = op.bind(inputs, {})
    arrays = [np.asarray(x) for x in bound.tensors.values()]
    return CustomOpChecks(op, bound, arrays, surrogate).run()


def own_vjp(function):
    """The vjp that the function's own operations have, so the right one."""

    def vjp(inputs, output, upstream):
        with tf.GradientTape() as tape:
            tape.watch(list(inputs))
            y = function(*inputs)
        zero = tf.UnconnectedGradients.ZERO
        return tape.gradient(y, list(inputs), upstream, unconnected_gradients=zero)

    return vjp


PROBABILITIES = tf.nn.softmax(3 * numbers(4, 10)).numpy()
RIGHT = {
    "product": (tf.matmul, numbers(4, 5), numbers(5, 3)),
    "power": (lambda x: x**3, numbers(4, 5)),
    "a number": (lambda x: x**2, np.float32(3)),
    "to a number": (lambda x: tf.reduce_mean(x**2), numbers(3, 7)),
    "many": (lambda x: tf.reduce_sum(x**3), numbers(90, 110)),
    "two outputs": (lambda x: (x**2, tf.sin(x)), numbers(4, 5)),
    "a dict": (lambda x: {"square": x**2, "sine": tf.sin(x)}, numbers(5, 4)),
    "empty": (lambda x: x**2, numbers(0, 5)),
    "constant": (tf.zeros_like, numbers(2, 3)),
    "relu of many": (tf.nn.relu, numbers(40, 50)),
    "relu at zeros": (tf.nn.relu, np.maximum(numbers(6, 7), 0)),
    "absolute zeros": (tf.abs, np.zeros((3, 4), np.float32)),
    "largest of equals": (lambda x: tf.reduce_max(x, -1), np.round(numbers(5, 6))),
    "max pool": (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), numbers(2, 4, 6, 3)),
    "logarithm": (tf.math.log, PROBABILITIES * 1e-3),
    "entropy": (lambda p: -tf.reduce_sum(p * tf.math.log(p), -1), PROBABILITIES),
    "only above zero": (lambda x: (tf.debugging.assert_positive(x), tf.sqrt(x))[1], PROBABILITIES),
    "large numbers": (lambda x: x * x, 1e7 * numbers(4, 5)),
    "small numbers": (tf.exp, 1e-7 * numbers(4, 5)),
    "fast": (lambda x: tf.sin(1000 * x), numbers(4, 5)),
    "a float32 constant": (lambda x: x * tf.constant(2.0), numbers(4, 5)),
    "cast to float32": (lambda x: tf.cast(tf.cast(x, tf.float32) ** 3, x.dtype), numbers(4, 5)),
    "float16": (lambda x: x**2, numbers(4, 5).astype(np.float16)),
    "bfloat16": (lambda x: x**2, tf.cast(numbers(4, 5), tf.bfloat16).numpy()),
    "float64": (lambda x: tf.sin(x) ** 2, numbers(4, 5).astype(np.float64)),
    "inverse": (tf.linalg.inv, numbers(4, 4)),
    "a step with zeros": (tf.sign, numbers(4, 5)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_vjp_of_a_function(name):
    function, *inputs = RIGHT[name]
    assert_right(verified(lambda *tensors: function(*tensors), own_vjp(function), *inputs))


def test_a_contraction_inside_is_judged_as_the_exact_one(coarse):
    def function(a, b):
        return og.matmul(a, b, arithmetic=coarse) ** 2

    def vjp(inputs, output, upstream):
        through = 2 * og.matmul(*inputs, arithmetic=og.exact) * upstream
        return due(inputs, output, through)

    assert_right(verified(function, vjp, numbers(4, 5), numbers(5, 3)))


def test_arguments_of_every_kind():
    def scaled_rows(x, rows, power=1, *, offset=0.0):
        return tf.gather(x, rows) ** power + offset

    def vjp(inputs, output, upstream, power=1):
        rows = power * tf.gather(inputs.x, inputs.rows) ** (power - 1) * upstream
        return tf.math.unsorted_segment_sum(rows, inputs.rows, tf.shape(inputs.x)[0]), None

    assert_right(verified(scaled_rows, vjp, numbers(6, 3), np.array([1, 4, 4, 0], np.int32), 3))


@pytest.mark.parametrize("options", [{}, {"non_differentiable": "x"}], ids=["integers", "declared"])
def test_nothing_has_a_gradient(options):
    x = numbers(3, 2) if options else np.arange(6)
    assert_right(verified(lambda x: x * 2, lambda inputs, output, upstream: None, x, **options))


MISTAKES = {
    "scaled": (lambda x: x**2, lambda i, o, u: 2.0002 * u * i.x, "is 1.0001 times what is due"),
    "factor forgotten": (lambda x: x**3, lambda i, o, u: u * i.x**2, "is 0.333333 times"),
    "negative": (tf.sin, lambda i, o, u: -u * tf.cos(i.x), "sign reversed"),
    "zeros": (lambda x: x**2, lambda i, o, u: 0 * i.x, "frozen (zeros)"),
    "None": (lambda x: x**2, lambda i, o, u: None, "frozen (None)"),
    "rows": (lambda x: x**2, lambda i, o, u: (2 * u * i.x)[:1], "broadcast shape"),
    "reshaped": (lambda x: x**2, lambda i, o, u: tf.reshape(2 * u * i.x, [-1]), "wrong shape"),
    "double": (lambda x: x**2, lambda i, o, u: tf.cast(2 * u * i.x, tf.float64), "wrong dtype"),
    "NaN": (lambda x: x**2, lambda i, o, u: u * np.nan, "is NaN or infinite"),
    "not linear": (lambda x: 2 * x, lambda i, o, u: 2 * u + 1, "is not linear in the upstream"),
    "leaking": (tf.nn.relu, lambda i, o, u: tf.where(i.x > 0, u, 0.01 * u), "is not the deriv"),
    "half slope": (tf.nn.relu, lambda i, o, u: u / 2, "is not the derivative"),
    "float32": (lambda x: x * tf.constant(2.0), lambda i, o, u: u, "is 0.5 times what is due"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_vjp_of_a_function_is_named(name):
    function, vjp, finding = MISTAKES[name]
    outcome = verified(lambda x: function(x), vjp, numbers(5, 7))
    assert len(outcome.findings) == 1
    assert outcome.findings[0].startswith(f"gradient of x: {finding}")
    assert any(check.passed is False for check in outcome.checks)
    assert by_name(outcome)["second order"].passed is None


def test_one_wrong_element_among_many():
    slopes = np.full((30, 40), 2.0)
    slopes[17, 5] = 2.1
    outcome = verified(lambda x: x**2, lambda i, o, u: u * i.x * tf.constant(slopes, u.dtype),
                       numbers(30, 40))  # fmt: skip
    assert outcome.findings == ("gradient of x: is not the derivative",)
    (deviation,) = outcome.deviations
    assert np.argwhere(abs(deviation.actual - deviation.expected) > 1e-9).tolist() == [[17, 5]]


@pytest.mark.parametrize(("count", "word"), [(1, "1 gradient"), (3, "3 gradients")])
def test_the_number_of_gradients(count, word):
    outcome = verified(tf.matmul, lambda i, o, u: [*due(i, o, u), u][:count] if count > 1
                       else due(i, o, u)[0], numbers(2, 3), numbers(3, 4))  # fmt: skip
    assert outcome.findings[0].startswith(f"the vjp returns {word} for 2 inputs")
    assert by_name(outcome)["gradient contract"].passed is False


def test_an_input_declared_without_a_gradient_must_have_none():
    outcome = verified(lambda x, y: x * y, lambda i, o, u: (u * i.y, u * i.x), numbers(3, 2),
                       numbers(3, 2, seed=1), non_differentiable="y")  # fmt: skip
    assert outcome.findings == ("gradient of y: must be None",)
    assert "declared non-differentiable" in by_name(outcome)["gradient contract"].message


def test_a_function_or_vjp_that_raises_is_reported():
    raising = verified(lambda x: x**2, lambda i, o, u: 1 / 0, numbers(2, 3))
    assert by_name(raising)["gradient contract"].passed is False
    assert "ZeroDivisionError: division by zero" in by_name(raising)["gradient contract"].message
    partial = verified(lambda x: (tf.debugging.assert_positive(x), x)[1], lambda i, o, u: u,
                       numbers(2, 3))  # fmt: skip
    assert by_name(partial)["gradient contract"].passed is False


def test_a_step_function_is_not_differentiated():
    outcome = verified(tf.sign, lambda i, o, u: u, numbers(4, 5))
    check = by_name(outcome)["directional derivatives"]
    assert check.passed is None
    assert "a step function" in check.message
    assert "og.verify(..., surrogate=...)" in check.message
    assert outcome.findings == ()


# ---- custom ops: second order --------------------------------------------------------------


def test_second_order_of_a_function():
    def cut(inputs, output, upstream):
        return 3 * tf.stop_gradient(inputs.x) ** 2 * upstream

    outcome = verified(lambda x: x**3, cut, numbers(3, 5))
    assert outcome.findings == ("second order: wrong",)
    assert by_name(outcome)["directional derivatives"].passed
    assert "its derivative says 0" in by_name(outcome)["second order"].message


def test_a_vjp_through_numpy_has_no_second_order():
    def vjp(inputs, output, upstream):
        return tf.numpy_function(lambda x, u: 2 * x * u, [inputs.x, upstream], upstream.dtype)

    outcome = verified(lambda x: x**2, vjp, numbers(3, 5))
    assert_right(outcome)
    assert by_name(outcome)["second order"].message.startswith("refused, as it must be")


def test_a_vjp_through_numpy_in_float32_only():
    def vjp(inputs, output, upstream):
        return tf.numpy_function(lambda x, u: 2 * x * u, [inputs.x, upstream], tf.float32)

    outcome = verified(lambda x: x**2, vjp, numbers(3, 5))
    assert_right(outcome)
    assert by_name(outcome)["second order"].message.startswith("refused, as it must be")


# ---- custom ops: surrogates ----------------------------------------------------------------


def clipped(inputs, output, upstream):
    return tf.where(abs(inputs.x) <= 1, upstream, tf.zeros_like(upstream))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_a_step_function_beside_its_surrogate(dtype):
    x = tf.cast(1.5 * numbers(6, 7), dtype).numpy()
    outcome = verified(tf.sign, clipped, x, surrogate=lambda x: tf.clip_by_value(x, -1, 1))
    assert_right(outcome)
    checks = by_name(outcome)
    assert checks["surrogate"].message == "equal at 3 points"
    assert checks["second order"].message.startswith("not compared")


@pytest.mark.parametrize("surrogate", [tf.tanh, lambda x: 2 * x, lambda x: tf.stop_gradient(x)])
def test_another_surrogate(surrogate):
    outcome = verified(tf.sign, clipped, 1.5 * numbers(6, 7), surrogate=surrogate)
    assert outcome.findings == ("gradient of x: is not that of the surrogate",)
    assert by_name(outcome)["surrogate"].passed is False
    assert outcome.deviations[0].title == "gradient of x"


@pytest.mark.parametrize("surrogate", [lambda x: 1 / 0, lambda: 0, lambda x: tf.reduce_sum(x)])
def test_a_surrogate_of_a_function_that_fails(surrogate):
    with pytest.raises(ArgumentError, match=r"verify\(surrogate=\.\.\.\): the surrogate fails on"):
        verified(tf.sign, clipped, numbers(2, 3), surrogate=surrogate)


def test_convolutions_of_a_custom_vjp_that_knows_no_geometry():
    def vjp(inputs, output, upstream):
        return own_vjp(lambda x, k: tf.nn.conv2d(x, k, 1, "VALID"))(inputs, output, upstream)

    plain = [c for c in CONVOLUTIONS if c.contraction == Conv2D() and 0 not in c.left]
    assert plain
    assert_right(GradientChecks(custom(vjp), plain).run())
