"""The contract of a custom op: what breaks it is an error that names the user's own inputs."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from tapes import every_mode, few_modes, gradients, without_xla
from test_custom_op import integers

import opgraft as og
from opgraft.errors import ArgumentError, DtypeError, UnsupportedError

A, W, UPSTREAM = integers(5, 3), integers(3, 4), integers(5, 4)


def product(vjp, **options):
    @og.custom_op(vjp=vjp, **options)
    def product(a, w):
        return a @ w

    return product


def refused(kind, *texts):
    """`pytest.raises` of an error of exactly this class with all these texts in it, in order."""
    pattern = "(?s)" + ".*".join(map(re.escape, texts))
    return pytest.raises(kind, match=pattern)


# ---- when it is decorated -----------------------------------------------------------------


def test_a_vjp_that_is_no_function():
    with refused(ArgumentError,
                 "vjp='twice' must be a function vjp(inputs, output, upstream) that returns one "
                 "gradient per input"):  # fmt: skip
        og.custom_op(vjp="twice")


def two(inputs, upstream):
    return upstream


def four(inputs, output, upstream, more):
    return upstream


@pytest.mark.parametrize("vjp", [two, four])
def test_a_vjp_of_other_than_three_arguments(vjp):
    with refused(ArgumentError, f"the vjp '{vjp.__name__}' takes (inputs, ",
                 "it must take three arguments: vjp(inputs, output, upstream)"):  # fmt: skip
        og.custom_op(vjp=vjp)
    with pytest.raises(ArgumentError):
        og.gradients.custom(vjp)


@pytest.mark.parametrize(
    "vjp",
    [
        lambda inputs, output, upstream: upstream,
        lambda *three: three[2],
        lambda inputs, output, upstream, scale=1: upstream,
        lambda inputs, output, upstream, **options: upstream,
        functools.partial(lambda scale, inputs, output, upstream: scale * upstream, 1),
    ],
)
def test_other_vjps_of_three_arguments_are_fine(vjp):
    _, (got,) = gradients(og.custom_op(lambda x: 2 * x, vjp=vjp), [A])
    np.testing.assert_array_equal(got, np.ones_like(A))


def test_decorating_no_function():
    with refused(ArgumentError, "custom_op decorates a function, not 3"):
        og.custom_op(vjp=lambda inputs, output, upstream: upstream)(3)


def test_an_unknown_name_among_the_non_differentiable():
    with refused(ArgumentError, "non_differentiable names 'kernel', which is no parameter "
                 "of ", "product'; it has: a, w"):  # fmt: skip
        product(lambda *_: None, non_differentiable=("kernel",))


# ---- when it is called ---------------------------------------------------------------------

right = product(
    lambda inputs, output, upstream: (
        upstream @ tf.transpose(inputs.w),
        tf.transpose(inputs.a) @ upstream,
    )
)


def test_arguments_that_do_not_fit():
    with refused(ArgumentError, "product'(a, w): missing a required argument: 'w'"):
        right(A)
    with refused(ArgumentError, "product'(a, w): got an unexpected keyword argument 'b'"):
        right(A, W, b=W)
    with refused(ArgumentError, "product'(a, w): too many positional arguments"):
        right(A, W, W)


def test_no_tensor_at_all():
    op = og.custom_op(lambda x=3, y=None: x, vjp=lambda inputs, output, upstream: upstream)
    with refused(ArgumentError, "was called without a tensor; give its inputs as tensors "
                 "or arrays (x, y)"):  # fmt: skip
        op()


def test_an_option_that_the_vjp_does_not_know():
    op = og.custom_op(lambda x, times=1: x * times, vjp=lambda inputs, output, upstream: upstream)
    with refused(ArgumentError, "was called with times=3, which is no tensor, and its vjp ",
                 "has no parameter 'times' to know of it",
                 "vjp(inputs, output, upstream, *, times"):  # fmt: skip
        op(A, times=3)


def test_a_number_where_a_tensor_belongs():
    with refused(ArgumentError, "was called with a=2.0, which is no tensor", "tensor or an array"):
        right(2.0, W)


@pytest.mark.parametrize("several", [[A, A], (A, A), {"x": A}])
def test_a_parameter_that_holds_several_tensors(several):
    op = og.custom_op(
        lambda parts, x: tf.add_n([*parts, x]),
        vjp=lambda inputs, output, upstream: (upstream, upstream),
    )
    with refused(ArgumentError, f"'parts' is a {type(several).__name__} of tensors; give each "
                 "tensor a parameter of its own, or write *parts in the signature"):  # fmt: skip
        op(several, A)


@pytest.mark.parametrize(
    "value", [tf.sparse.from_dense(A), tf.ragged.constant([[1.0], [2.0, 3.0]])]
)
def test_tensors_that_are_not_dense(value):
    with refused(ArgumentError, "product': 'a' is a ", "Make it dense first"):
        right(value, W)


@pytest.mark.parametrize("returned", ["text", [], {}])
def test_a_function_that_returns_no_tensor(returned):
    op = og.custom_op(lambda x: returned if returned != "text" else object(), vjp=right.vjp)
    text = "returned no tensor; it must return at least one"
    if returned == "text":
        text = "which is no tensor"
    with refused(ArgumentError, text):
        op(A)


def test_none_among_the_outputs():
    op = og.custom_op(lambda x: (x, None), vjp=lambda inputs, output, upstream: upstream[0])
    with refused(ArgumentError, "returned None, which is no tensor", "it must return a "
                 "tensor, or a list, tuple or dict of tensors"):  # fmt: skip
        op(A)


# ---- what the vjp returns --------------------------------------------------------------------

MUST = "it must return one for each of the 2 inputs: a, w"
SHAPE = "It must have exactly that shape: one that broadcasts would be trained with, and be wrong"


def only_first(change):
    """The right gradients, the first of them changed."""
    return lambda *three: (change(right.vjp(*three)[0]), right.vjp(*three)[1])


def only_second(change):
    return lambda *three: (right.vjp(*three)[0], change(right.vjp(*three)[1]))


BROKEN = {
    "one of two": (
        lambda *three: right.vjp(*three)[:1], ArgumentError, f"returned 1 gradient; {MUST}"
    ),
    "a tensor for two": (
        lambda i, o, u: tf.stack([u, u]), ArgumentError, f"returned 1 gradient; {MUST}"
    ),
    "three of two": (
        lambda i, o, u: (*right.vjp(i, o, u), u), ArgumentError, f"returned 3 gradients; {MUST}"
    ),
    "nothing": (lambda i, o, u: None, ArgumentError, f"returned None; {MUST}"),
    "a dict": (
        lambda *three: dict(zip("aw", right.vjp(*three), strict=True)),
        ArgumentError, f"returned a dict; {MUST}",
    ),
    "None": (
        only_second(lambda g: None), ArgumentError,
        "returned None for w, which would then never be trained. Return a gradient of the shape "
        "(3, 4), or declare it: non_differentiable=('w',)",
    ),
    "transposed": (
        only_first(tf.transpose), ArgumentError,
        f"returned a gradient of another shape than a. {SHAPE} ((3, 5) for (5, 3))",
    ),
    "broadcastable": (
        only_second(lambda g: tf.reduce_sum(g, 0)), ArgumentError,
        f"returned a gradient of another shape than w. {SHAPE} ((4,) for (3, 4))",
    ),
    "broadcastable, of the same rank": (
        only_second(lambda g: tf.reduce_mean(g, 0, keepdims=True)), ArgumentError,
        f"returned a gradient of another shape than w. {SHAPE} ((1, 4) for (3, 4))",
    ),
    "a number": (
        only_first(lambda g: 0.0), ArgumentError,
        f"returned a gradient of another shape than a. {SHAPE} (() for (5, 3))",
    ),
    "float64": (
        only_second(lambda g: tf.cast(g, tf.float64)), DtypeError,
        "returned a gradient of dtype float64 for w, which is float32. Cast it",
    ),
    "an array of float64": (
        only_first(lambda g: np.zeros((5, 3))), DtypeError,
        "returned a gradient of dtype float64 for a, which is float32. Cast it",
    ),
    "integers": (
        only_first(lambda g: tf.cast(g, tf.int32)), DtypeError,
        "returned a gradient of dtype int32 for a, which is float32. Cast it",
    ),
    "no tensor": (
        only_second(lambda g: object), ArgumentError,
        "returned <class 'object'> for w, which is no tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
@every_mode
def test_a_broken_contract(name, mode):
    vjp, kind, text = BROKEN[name]
    with refused(kind, "the vjp of ", "product' ", text):
        gradients(product(vjp), [A, W], mode, tf.constant(UPSTREAM))


@pytest.mark.parametrize("name", BROKEN)
def test_a_graph_finds_it_with_the_forward(name):
    """Without asking for a gradient: a model that cannot train fails in its first call."""
    vjp, kind, text = BROKEN[name]
    with refused(kind, text):
        tf.function(product(vjp)).get_concrete_function(
            tf.TensorSpec([5, 3]), tf.TensorSpec([3, 4])
        )


@few_modes
def test_a_gradient_where_none_is_due(mode):
    op = og.custom_op(
        lambda x, order: tf.gather(x, order),
        vjp=lambda inputs, output, upstream: (tf.gather(upstream, inputs.order), upstream),
    )
    with refused(ArgumentError, "returned a gradient for order, which has no gradient (int64). "
                 "Return None for it"):  # fmt: skip
        gradients(lambda x: op(x, np.arange(5)), [A], mode)
    op = product(right.vjp, non_differentiable="w")
    with refused(ArgumentError, "returned a gradient for w, which is declared "
                 "non-differentiable (float32). Return None for it"):  # fmt: skip
        gradients(op, [A, W], mode)


@few_modes
def test_messages_name_one_of_several_tensors(mode):
    @og.custom_op(vjp=lambda inputs, output, upstream: (upstream, upstream, None))
    def total(*parts):
        return tf.add_n(parts)

    with refused(ArgumentError, "the vjp of ", "total' returned None for parts[2], which"):
        gradients(total, [A, A, A], mode)


@few_modes
def test_variables_do_not_count_as_more_inputs(mode):
    kernel = tf.Variable(W)
    op = product(lambda inputs, output, upstream: upstream)
    with refused(
        ArgumentError,
        "returned 1 gradient; it must return one for each of the 2 inputs: a, w",
    ):
        gradients(lambda a: op(a, kernel), [A], mode)


# ---- at run time, where shapes are not known before -------------------------------------------

UNKNOWN = {
    "batch": [tf.TensorSpec([None, 3]), tf.TensorSpec([None, 4])],
    "every size": [tf.TensorSpec([None, None]), tf.TensorSpec([None, None])],
    "rank": [tf.TensorSpec(None), tf.TensorSpec(None)],
}
SHRUNK = {
    "broadcastable": only_first(lambda g: tf.reduce_sum(g, 0, keepdims=True)),
    "one row less": only_first(lambda g: g[1:]),
    "as many elements": only_first(lambda g: tf.reshape(g, tf.reverse(tf.shape(g), [0]))),
}


@pytest.mark.parametrize("shrunk", SHRUNK)
@pytest.mark.parametrize("unknown", UNKNOWN)
def test_a_wrong_shape_at_run_time(shrunk, unknown):
    op = product(SHRUNK[shrunk])

    @tf.function(input_signature=UNKNOWN[unknown])
    def run(a, w):
        return gradients(op, [a, w])[1]

    kinds = (ArgumentError, tf.errors.InvalidArgumentError)  # the first if it can be told before
    with pytest.raises(kinds, match=r"product\\?' returned a gradient of another shape than a\."):
        run(A, W)


@pytest.mark.parametrize("shrunk", SHRUNK)
@pytest.mark.parametrize("unknown", UNKNOWN)
def test_a_wrong_shape_under_xla_does_not_pass(shrunk, unknown):
    op = product(SHRUNK[shrunk])

    @tf.function(input_signature=UNKNOWN[unknown], jit_compile=True)
    def run(a, w):
        return gradients(op, [a, w])[1]

    with pytest.raises(
        (ArgumentError, tf.errors.InvalidArgumentError), match=r"another.shape.than"
    ):
        run(A, W)


def test_a_wrong_shape_in_fit():
    @og.custom_op(vjp=lambda inputs, output, upstream: tf.reduce_mean(upstream, 0, keepdims=True))
    def plain(x):
        return 1 * x

    for jit in (False, True):
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4), keras.layers.Lambda(lambda x: plain(x))]
        )
        model.compile("sgd", "mse", jit_compile=jit)
        kinds = (ArgumentError, tf.errors.InvalidArgumentError)
        with pytest.raises(kinds, match=r"another.shape.than"):
            model.fit(A, UPSTREAM, verbose=0)


# ---- non-finite ----------------------------------------------------------------------------

NOT_FINITE = {
    "NaN": lambda i, o, u: (right.vjp(i, o, u)[0], right.vjp(i, o, u)[1] * np.float32("nan")),
    "infinite": lambda i, o, u: (right.vjp(i, o, u)[0], right.vjp(i, o, u)[1] / 0.0),
}


@pytest.mark.parametrize("name", NOT_FINITE)
@without_xla
def test_a_gradient_that_is_not_finite(name, mode):
    op = product(NOT_FINITE[name], check_finite=True)
    with refused(tf.errors.InvalidArgumentError, "opgraft: the vjp of ",
                 "product' returned a gradient for w that is not finite"):  # fmt: skip
        gradients(op, [A, W], mode, tf.constant(UPSTREAM))


@pytest.mark.parametrize("mode", ["eager", "tape in graph"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_what_is_finite_passes_the_check(dtype, mode):
    op = og.custom_op(lambda x: 2 * x, vjp=lambda i, o, u: 3 * u, check_finite=True)
    _, (got,) = gradients(op, [tf.cast(A, dtype)], mode)
    np.testing.assert_array_equal(got, 3 * np.ones_like(A))
    op = og.custom_op(lambda x: 2 * x, vjp=lambda i, o, u: u / tf.zeros_like(u), check_finite=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="for x that is not finite"):
        gradients(op, [tf.cast(A, dtype)], mode)


@every_mode
def test_it_is_checked_only_where_asked(mode):
    _, got = gradients(product(NOT_FINITE["NaN"]), [A, W], mode)
    assert np.isnan(got[1]).all()


@pytest.mark.parametrize("mode", ["xla", "tape in xla"])
def test_under_xla_there_is_no_such_check(mode):
    op = product(NOT_FINITE["NaN"], check_finite=True)
    with refused(UnsupportedError, "product' has check_finite=True, and XLA leaves such "
                 "checks out. Ask for jit_compile=False"):  # fmt: skip
        gradients(op, [A, W], mode)


# ---- second order ---------------------------------------------------------------------------


def through_numpy(stateful):
    return lambda i, o, u: tf.numpy_function(
        lambda u, x: 2 * u * x, [u, i.x], u.dtype, stateful=stateful
    )


OPAQUE = {
    "numpy_function": through_numpy(True),
    "numpy_function, stateless": through_numpy(False),
    "inside a function": lambda i, o, u: tf.function(through_numpy(True))(i, o, u),
    "inside a branch": lambda i, o, u: tf.cond(
        tf.reduce_sum(u) > 1e9, lambda: u, lambda: through_numpy(True)(i, o, u)
    ),
}


def second_order(op, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = op(x)
        first = inner.gradient(y, x)
        assert first is not None
    return outer.gradient(first, x)


@pytest.mark.parametrize("name", OPAQUE)
@pytest.mark.parametrize("graph", [False, True])
def test_no_second_order_through_numpy(name, graph):
    op = og.custom_op(lambda x: x * x, vjp=OPAQUE[name])
    run = functools.partial(second_order, op)
    with refused(UnsupportedError, "a second derivative was asked for, and the vjp of ",
                 "cannot be differentiated: it goes through NumPy (PyFunc",
                 "Write the vjp in TensorFlow or keras.ops operations"):  # fmt: skip
        (tf.function(run) if graph else run)(tf.constant(A))


@pytest.mark.parametrize(
    "vjp",
    [
        lambda i, o, u: 2 * u.numpy() * i.x.numpy(),
        lambda i, o, u: np.multiply(u, 2 * i.x),
    ],
)
def test_no_second_order_through_arrays(vjp):
    op = og.custom_op(lambda x: x * x, vjp=vjp)
    _, (got,) = gradients(op, [A])
    np.testing.assert_array_equal(got, 2 * A)
    with refused(UnsupportedError, "a second derivative was asked for, and the vjp of ",
                 "cannot be differentiated: it leaves TensorFlow ("):  # fmt: skip
        second_order(op, tf.constant(A))


def test_arrays_that_are_constants_do_not_hinder_second_order():
    mask = (A > 0).astype("float32")
    op = og.custom_op(lambda x: mask * x**3, vjp=lambda i, o, u: u * mask * 3 * i.x**2)
    np.testing.assert_array_equal(second_order(op, tf.constant(A)), mask * 6 * A)


def test_a_py_function_can_be_differentiated_again():
    op = og.custom_op(
        lambda x: x * x,
        vjp=lambda i, o, u: tf.py_function(lambda u, x: 2 * u * x, [u, i.x], u.dtype),
    )
    np.testing.assert_array_equal(second_order(op, tf.constant(A)), 2 * np.ones_like(A))


def test_forward_mode_is_refused_by_name():
    op = og.custom_op(lambda x: x * x, vjp=lambda i, o, u: 2 * u * i.x)
    x = tf.constant(A)
    with (
        refused(UnsupportedError, "ForwardAccumulator", "use a tf.GradientTape"),
        tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)),
    ):
        op(x)


# ---- the vjp's own errors --------------------------------------------------------------------


class OwnError(Exception):
    """Of a user."""


@pytest.mark.parametrize("error", [OwnError("mine"), KeyError("mine"), ArgumentError("mine")])
def test_an_error_in_the_vjp_passes_through(error):
    def vjp(inputs, output, upstream):
        raise error

    op = og.custom_op(lambda x: 2 * x, vjp=vjp)
    with pytest.raises(type(error), match="mine") as caught:
        gradients(op, [A])
    assert caught.value is error
    with pytest.raises(type(error), match="mine"):
        gradients(op, [A], "tape in graph")


def test_an_error_in_the_function_passes_through():
    def broken(x):
        raise OwnError("mine")

    with pytest.raises(OwnError, match="mine"):
        og.custom_op(broken, vjp=lambda i, o, u: u)(A)
