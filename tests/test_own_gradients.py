"""Gradients of one's own through contractions: over the case table, and what they refuse."""

import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CASES, SELECTION, Case, compute, every
from conftest import TESTS
from tapes import every_mode, without_xla
from tapes import gradients as by_tape
from test_gradient import check_gradient, gradients

import opgraft as og
from opgraft import reference, values
from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.gradients import CVjp, by_contraction, c_function, custom, same
from opgraft.spec import Conv2D, MatMul

pytestmark = pytest.mark.filterwarnings("ignore:the Python function")  # that it is slow

MATMUL_VJP = TESTS / "c" / "matmul_vjp.c"
CONV2D_VJP = TESTS / "c" / "conv2d_vjp.c"
BOTH = "void matmul_vjp(const float *a, const float *b, const float *dy, int m, int k, int n, " \
    "float *da, float *db)"  # fmt: skip


def with_gradient(arithmetic, gradient):
    return dataclasses.replace(arithmetic, gradient=gradient)


def product(arithmetic):
    return lambda a, b: og.matmul(a, b, arithmetic=arithmetic)


def prototypes(source, *names):
    """The declarations of functions in a C source."""
    text = source.read_text()
    found = [re.search(rf"^\w+ {name}\([^)]*\)", text, re.M).group() for name in names]
    return ";".join(found)


# ---- over the table, in small integers -----------------------------------------------------


def signature(case: Case, unknown):
    """Tensor specs of operands and upstream; None for a graph of static shapes."""
    if unknown is None:
        return None
    first = {"batch": 1, "sizes": len(case.left)}[unknown]
    specs = [[None] * min(first, len(s)) + list(s[first:]) for s in (case.left, case.output)]
    return [tf.TensorSpec(specs[0]), tf.TensorSpec(case.right), tf.TensorSpec(specs[1])]


def check_integers(case: Case, arithmetic, expected, how="eager"):
    """Both gradients of a contraction, eagerly or in a graph that does not know all sizes."""
    operands = [tf.constant(o, tf.float32) for o in (*case.integers(), case.integer_upstream())]

    def run(left, right, upstream):
        return gradients(
            lambda a, b: compute(case.contraction, arithmetic, a, b), left, right, upstream
        )

    if how != "eager":
        unknown = None if how == "graph" else how
        run = tf.function(run, input_signature=signature(case, unknown), autograph=False)
    for ours, due in zip(run(*operands), expected(case), strict=True):
        assert ours.dtype == tf.float32
        np.testing.assert_array_equal(ours, due)


def native(case):
    return reference.vjp(case.contraction, *case.integers(), case.integer_upstream())


@pytest.fixture(scope="module")
def twice():
    """Products twice as large, in C."""
    return og.c_function(TESTS / "c" / "scalar.c", "float twice(float a, float b)")


def input_only(case):
    gx, gw = native(case)
    return 2 * gx, gw


def kernel_only(case):
    gx, gw = native(case)
    return gx, 2 * gw


def surrogate(inputs, output, upstream):
    """Of the right shapes, and unlike any gradient."""
    return 2 * inputs[0] + tf.reduce_sum(upstream), 3 * inputs[1] - tf.reduce_sum(output)


def of_surrogate(case):
    x, w = case.integers()
    y = compute(case.contraction, og.exact, *(o.astype(np.float32) for o in (x, w)))
    return 2 * x + case.integer_upstream().sum(), 3 * w - np.sum(y)


@pytest.fixture(scope="module")
def own(c_both, twice):
    """{name: (gradient, what is due)}."""
    python = og.python_function(np.matmul)
    return {
        "exact": (by_contraction(), native),
        "same": (by_contraction(same, same), native),
        "python": (by_contraction(python, None), native),
        "input twice": (by_contraction(grad_input=twice), input_only),
        "kernel twice": (by_contraction(grad_kernel=twice), kernel_only),
        "input twice, kernel same": (by_contraction(twice, same), input_only),
        "custom": (custom(surrogate), of_surrogate),
        "C matmul": (c_function(MATMUL_VJP, BOTH), native),
        "C matmul in double": (
            c_function(MATMUL_VJP, prototypes(MATMUL_VJP, "matmul_vjp_double")), native
        ),
        "two C functions": (
            c_function(MATMUL_VJP, prototypes(MATMUL_VJP, "matmul_da", "matmul_dw")), native
        ),
        "C conv2d": (c_function(CONV2D_VJP, prototypes(CONV2D_VJP, "conv2d_vjp")), native),
    }  # fmt: skip


NAMES = [
    "exact", "same", "custom", "C matmul", "C conv2d", "C matmul in double", "two C functions",
    "python", "input twice", "kernel twice", "input twice, kernel same",
]  # fmt: skip
HOWS = ("graph", "batch", "sizes")
IN_INTEGERS = [name for name in NAMES if name != "custom"]  # whose sums are too large for bfloat16
EVERYWHERE = ("same", "C matmul", "C conv2d")  # composed of many operations


def pairs(cases, names=NAMES, slow=()):
    """Run a test with each of these `case`s and `name`s but those that are refused."""
    served = [
        pytest.param(case, name, id=f"{name}-{case.id}", marks=marks)
        for part, marks in ((cases, ()), (slow, pytest.mark.slow))
        for i, name in enumerate(names)
        for case in (part(i) if callable(part) else part)
        if name != "C conv2d" or isinstance(case.contraction, Conv2D)
    ]
    return pytest.mark.parametrize(("case", "name"), served)


@pairs(lambda i: CASES[::4] if NAMES[i] in EVERYWHERE else SELECTION[::2], slow=CASES)
def test_through_a_c_function(case, name, own, c_both):
    gradient, expected = own[name]
    check_integers(case, with_gradient(c_both, gradient), expected)


def batched(case):
    """A stack of products, each with a kernel of its own."""
    return isinstance(case.contraction, MatMul) and len(case.right) > 2


@pairs(lambda i: SELECTION[3 * i % 16 :: 16], slow=SELECTION)
def test_in_a_graph(case, name, own, c_both):
    how = HOWS[(NAMES.index(name) + SELECTION.index(case)) % 3]
    gradient, expected = own[name]
    if how != "graph" and batched(case) and isinstance(gradient, CVjp):
        with pytest.raises(UnsupportedError, match="needs a batch size that is known when"):
            check_integers(case, with_gradient(c_both, gradient), expected, how)
    else:
        check_integers(case, with_gradient(c_both, gradient), expected, how)


@pairs(SELECTION[::6], slow=SELECTION)
def test_through_the_exact_product(case, name, own):
    gradient, expected = own[name]
    check_integers(case, og.Arithmetic(gradient=gradient), expected)


@pairs(lambda i: SELECTION[2 * i + 5 :: 40], slow=SELECTION)
def test_through_the_exact_product_in_a_graph(case, name, own):
    gradient, expected = own[name]
    check_integers(case, og.Arithmetic(gradient=gradient), expected, "graph")


@pairs(SELECTION[1::6])
def test_through_a_python_function(case, name, own):
    gradient, expected = own[name]
    check_integers(case, og.python_function(np.matmul, gradient=gradient), expected)


@every(CASES)
def test_exact_contractions_have_the_native_bits(case, c_both):
    check_gradient(case, with_gradient(c_both, by_contraction()))


@every(SELECTION[::3])
def test_exact_contractions_have_the_native_bits_in_a_graph(case, c_both):
    check_gradient(case, with_gradient(c_both, by_contraction()), "graph")


@every(SELECTION)
def test_only_the_gradient_that_is_asked_for_changes(case, c_both, twice):
    """The other one keeps the native bits."""
    operands = [tf.constant(o) for o in (*case.normals(), case.upstream())]

    def both(gradient):
        arithmetic = with_gradient(c_both, gradient)
        return gradients(lambda a, b: compute(case.contraction, arithmetic, a, b), *operands)

    exact, inputs, kernels = map(
        both, (by_contraction(), by_contraction(twice), by_contraction(None, twice))
    )
    assert exact[1].numpy().tobytes() == inputs[1].numpy().tobytes()
    assert exact[0].numpy().tobytes() == kernels[0].numpy().tobytes()
    np.testing.assert_allclose(inputs[0], 2 * exact[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(kernels[1], 2 * exact[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pairs(SELECTION[::12], IN_INTEGERS, slow=SELECTION)
def test_other_floats(case, name, dtype, own, c_both):
    gradient, expected = own[name]
    arithmetic = with_gradient(c_both, gradient)
    operands = [tf.constant(o, dtype) for o in (*case.integers(), case.integer_upstream())]
    got = gradients(lambda a, b: compute(case.contraction, arithmetic, a, b), *operands)
    for ours, due in zip(got, expected(case), strict=True):
        assert ours.dtype == dtype
        np.testing.assert_array_equal(ours, tf.cast(due, dtype))


def test_integer_operands_have_no_gradient(own, c_matmul):
    a, b = tf.constant([[1, 2]]), tf.constant([[3], [4]])
    for gradient, _ in own.values():
        assert gradients(product(with_gradient(c_matmul, gradient)), a, b, None) == [None, None]


# ---- custom --------------------------------------------------------------------------------

A, B = Case(MatMul(), (5, 3), (3, 4)).normals()
UPSTREAM = Case(MatMul(), (5, 3), (3, 4)).upstream()


def test_the_operands_have_names():
    seen = []

    def vjp(inputs, output, upstream):
        seen.append(inputs._fields)
        return tuple(map(tf.zeros_like, inputs))

    arithmetic = og.Arithmetic(gradient=custom(vjp))
    gradients(product(arithmetic), A, B, None)
    x, w = Case(Conv2D(), (1, 4, 5, 2), (2, 3, 2, 3)).normals()
    gradients(lambda a, b: og.conv2d(a, b, arithmetic=arithmetic), x, w, None)
    assert seen == [("a", "b"), ("x", "kernel")]


def test_the_vjp_can_be_told_the_contraction():
    def vjp(inputs, output, upstream, *, contraction):
        assert contraction == Conv2D(strides=(2, 1), padding="SAME")
        return inputs.x * contraction.strides[0], inputs.kernel * 0

    arithmetic = og.Arithmetic(gradient=custom(vjp))
    x, w = Case(Conv2D(), (1, 4, 5, 2), (2, 3, 2, 3)).normals()
    got, _ = gradients(
        lambda a, b: og.conv2d(a, b, strides=(2, 1), padding="SAME", arithmetic=arithmetic),
        x,
        w,
        None,
    )
    np.testing.assert_array_equal(got, 2 * x)


@without_xla
def test_the_output_is_what_the_forward_gave(mode):
    """Not what an exact product would have given."""
    arithmetic = og.python_function(
        lambda a, b: 3 * a @ b, gradient=custom(lambda i, o, u: (0 * i.a, tf.transpose(i.a) @ o))
    )
    _, (_, got) = by_tape(product(arithmetic), [A, B], mode)
    np.testing.assert_allclose(got, A.T @ (3 * A @ B), rtol=1e-5)


@every_mode
def test_custom_through_the_exact_product_in_every_mode(mode):
    arithmetic = og.Arithmetic(gradient=custom(lambda i, o, u: (7 * i.a, 0 * i.b)))
    _, (da, db) = by_tape(product(arithmetic), [A, B], mode)
    np.testing.assert_array_equal(da, 7 * A)
    np.testing.assert_array_equal(db, 0 * B)


@every_mode
def test_the_contract_names_the_operands(mode):
    arithmetic = og.Arithmetic(gradient=custom(lambda i, o, u: (i.a, None)))
    with pytest.raises(ArgumentError, match="the vjp of 'matmul' returned None for b, which would"):
        by_tape(product(arithmetic), [A, B], mode)
    arithmetic = og.Arithmetic(gradient=custom(lambda i, o, u: (i.x, i.kernel[..., :1])))
    x, w = Case(Conv2D(), (1, 4, 5, 2), (2, 3, 2, 3)).normals()
    text = (
        r"the vjp of 'conv2d' returned a gradient of another shape than kernel\. .*\(\(2, 3, 2, 1\)"
    )
    with pytest.raises(ArgumentError, match=text):
        by_tape(lambda x, w: og.conv2d(x, w, arithmetic=arithmetic), [x, w], mode)


def test_check_finite():
    for check in (False, True):
        gradient = custom(lambda i, o, u: (i.a / 0.0, i.b), check_finite=check)
        arithmetic = og.Arithmetic(gradient=gradient)
        if check:
            with pytest.raises(tf.errors.InvalidArgumentError, match="for a that is not finite"):
                gradients(product(arithmetic), A, B, None)
        else:
            da, _ = gradients(product(arithmetic), A, B, None)
            assert np.isinf(da).all()


# ---- higher orders ---------------------------------------------------------------------------


def penalty(arithmetic, a, b):
    """d/db of the squared gradient for a."""
    with tf.GradientTape() as outer:
        outer.watch(b)
        with tf.GradientTape() as inner:
            inner.watch(a)
            y = tf.tanh(og.matmul(a, b, arithmetic=arithmetic))
        total = tf.reduce_sum(inner.gradient(y, a) ** 2)
    return outer.gradient(total, b)


DIFFERENTIABLE = {
    "exact": by_contraction(),
    "same": by_contraction(same, same),
    "custom": custom(
        lambda i, o, u: (tf.matmul(u, i.b, transpose_b=True), tf.matmul(i.a, u, transpose_a=True))
    ),
}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_order(name, graph, c_matmul):
    run = tf.function(penalty) if graph else penalty
    got = run(with_gradient(c_matmul, DIFFERENTIABLE[name]), tf.constant(A), tf.constant(B))
    due = penalty(og.exact, tf.constant(A), tf.constant(B))
    assert np.any(due)
    np.testing.assert_allclose(got, due, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graph", [False, True])
def test_no_second_order_through_a_c_function(graph, c_matmul):
    gradient = c_function(MATMUL_VJP, prototypes(MATMUL_VJP, "matmul_da", "matmul_dw"))
    for arithmetic in (with_gradient(c_matmul, gradient), og.Arithmetic(gradient=gradient)):
        run = tf.function(penalty) if graph else penalty
        with pytest.raises(UnsupportedError, match="a second derivative was asked for, and the C "
                           "function matmul_da and matmul_dw gives the first only. Use "
                           r"og\.gradients\.native, or a vjp in TensorFlow operations: "
                           r"og\.gradients\.custom\(\.\.\.\)"):  # fmt: skip
            run(arithmetic, tf.constant(A), tf.constant(B))


def test_no_second_order_through_a_python_function(c_matmul):
    gradient = by_contraction(og.python_function(np.matmul), None)
    with pytest.raises(UnsupportedError, match="a second derivative was asked for"):
        penalty(with_gradient(c_matmul, gradient), tf.constant(A), tf.constant(B))


# ---- refusals of by_contraction and custom ------------------------------------------------------


@pytest.mark.parametrize("name", ["grad_input", "grad_kernel"])
@pytest.mark.parametrize("value", [3, "same", np.matmul])
def test_a_part_that_is_no_arithmetic(name, value):
    text = rf"by_contraction\({name}=.*\): an og\.Arithmetic is needed, or og\.gradients\.same"
    with pytest.raises(ArgumentError, match=text):
        by_contraction(**{name: value})


def test_a_vjp_that_is_no_function():
    with pytest.raises(ArgumentError, match=r"vjp=3 must be a function vjp\("):
        custom(3)
    text = r"takes \(inputs, upstream\); it must take three arguments"
    with pytest.raises(ArgumentError, match=text):
        custom(lambda inputs, upstream: upstream)


@pytest.mark.parametrize("gradient", ["native", None, surrogate])
def test_a_gradient_that_is_none(gradient):
    with pytest.raises(
        ArgumentError, match=r"Arithmetic\(gradient=.*\): a Gradient is needed, not "
    ):
        og.Arithmetic(gradient=gradient)


def forward(arithmetic, case):
    return compute(case.contraction, arithmetic, *case.normals())


STRIDED = Case(Conv2D(strides=(2, 1), padding="SAME"), (1, 6, 5, 2), (3, 2, 2, 3))
DILATED = Case(Conv2D(dilations=(1, 2)), (1, 4, 7, 2), (3, 2, 2, 3))


def test_a_backward_contraction_that_cannot_be_served_is_refused_by_the_forward(c_both, c_conv2d):
    """The kernel's gradient of a strided convolution is dilated, of a dilated one strided."""
    text = r"grad_kernel, a Conv2D\(.*dilations=\(2, 1\).* in itself: custom_conv2d has no " \
        r"dilation parameters, and the call has dilations \(2, 1\)\. Add dilation_h"  # fmt: skip
    for arithmetic in (c_both, og.exact, og.python_function(np.matmul)):
        own = with_gradient(arithmetic, by_contraction(None, c_conv2d))
        with pytest.raises(UnsupportedError, match=text):
            forward(own, STRIDED)
        with pytest.raises(UnsupportedError, match="grad_kernel"):
            tf.function(lambda own=own: forward(own, STRIDED)).get_concrete_function()
    own = with_gradient(c_both, by_contraction(c_conv2d, None))
    assert forward(own, STRIDED).shape == STRIDED.output
    with pytest.raises(UnsupportedError, match=r"grad_input, a Conv2D\(.*dilations=\(1, 2\)"):
        forward(own, DILATED)
    assert forward(with_gradient(c_both, by_contraction(None, c_conv2d)), DILATED) is not None


def test_a_matmul_beside_it_serves_what_a_convolution_cannot(c_both):
    for case in (STRIDED, DILATED):
        check_integers(case, with_gradient(og.exact, by_contraction(c_both, c_both)), native)


def test_the_gradient_of_a_part_is_not_used_for_the_first_order(c_both):
    """A part says how a contraction is computed; its own gradient is for the second order."""
    inner = with_gradient(c_both, custom(surrogate))
    for case in SELECTION[::8]:
        check_integers(case, with_gradient(c_both, by_contraction(inner, inner)), native)


# ---- as values -------------------------------------------------------------------------------


@keras.saving.register_keras_serializable("tests")
def registered_vjp(inputs, output, upstream):
    return 2 * inputs[0], 3 * inputs[1]


def test_they_are_values(c_both):
    made = [
        by_contraction, lambda: by_contraction(same, c_both), lambda: custom(registered_vjp),
        lambda: custom(registered_vjp, check_finite=True), lambda: c_function(MATMUL_VJP, BOTH),
        lambda: c_function(MATMUL_VJP, BOTH, thread_safe=False),
    ]  # fmt: skip
    for i, make in enumerate(made):
        one, again = make(), make()
        assert one == again
        assert hash(one) == hash(again)
        assert values.from_config(one.to_config()) == one
        assert values.from_json(values.to_json(with_gradient(c_both, one))).gradient == one
        assert [make() == one for make in made] == [j == i for j in range(len(made))]


def test_arithmetics_with_different_gradients_are_not_joined(c_matmul, c_conv2d):
    with pytest.raises(ArgumentError, match="must agree in quantizers and gradient"):
        with_gradient(c_matmul, by_contraction()) | c_conv2d
    both = with_gradient(c_matmul, by_contraction()) | with_gradient(c_conv2d, by_contraction())
    assert both.gradient == by_contraction()


# ---- in layers ---------------------------------------------------------------------------------


def trained(arithmetic):
    keras.utils.set_random_seed(5)
    layers = [
        og.layers.Conv2D(3, (3, 2), strides=2, padding="same", arithmetic=arithmetic),
        og.layers.DepthwiseConv2D(2, depth_multiplier=2, arithmetic=arithmetic),
        keras.layers.Flatten(),
        og.layers.Dense(2, arithmetic=arithmetic),
    ]
    model = keras.Sequential([keras.Input((6, 7, 2)), *layers])
    model.compile("sgd", "mse")
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(7, 6, 7, 2)), rng.normal(size=(7, 2))
    model.fit(x, y, batch_size=3, epochs=2, shuffle=False, verbose=0)  # the last batch has 1
    return model.get_weights()


def test_layers_train_alike(c_both):
    """Exact contractions to the same bits, a VJP in C to the same weights but for rounding."""
    due = trained(c_both)
    for mine, right in zip(trained(with_gradient(c_both, by_contraction())), due, strict=True):
        assert mine.tobytes() == right.tobytes()
    in_c = with_gradient(c_both, c_function(MATMUL_VJP, BOTH))
    for mine, right in zip(trained(in_c), due, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_a_custom_gradient_trains(jit):
    """In `fit` under XLA, too, if the product can be compiled."""
    zero = og.Arithmetic(gradient=custom(lambda i, o, u: (0 * i[0], 0 * i[1])))
    assert zero.supports_jit
    model = keras.Sequential(
        [keras.Input((3,)), og.layers.Dense(4, use_bias=False, arithmetic=zero)]
    )
    before = model.get_weights()
    model.compile("sgd", "mse", jit_compile=jit)
    model.fit(A, UPSTREAM, batch_size=2, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])


def test_what_runs_in_c_is_not_compiled_by_xla(twice):
    """Though the forward could be."""
    for gradient in (
        by_contraction(twice),
        by_contraction(None, twice),
        c_function(MATMUL_VJP, BOTH),
    ):
        arithmetic = og.Arithmetic(gradient=gradient)
        assert not arithmetic.supports_jit
        assert not og.layers.Dense(2, arithmetic=arithmetic).supports_jit
        with pytest.raises(UnsupportedError, match="jit_compile=False"):
            by_tape(product(arithmetic), [A, B], "tape in xla")
