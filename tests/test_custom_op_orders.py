"""Custom ops under control flow, tapes, higher orders and threads; nothing is left behind."""

import gc
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from tapes import MODES, every_mode, gradients, without_xla
from tensorflow.python.framework import ops as framework_ops
from test_custom_op import UPSTREAM, A, W, check, due, integers, multiply, square

import opgraft as og
from opgraft.errors import UnsupportedError

# ---- inside control flow -----------------------------------------------------------------

AROUND = {
    "while_loop": lambda x: tf.while_loop(
        lambda i, y: i < 3, lambda i, y: [i + 1, square(y)], [0, x], maximum_iterations=3
    )[1],
    "cond": lambda x: tf.cond(
        tf.reduce_sum(x) < 1e9,
        lambda: tf.cond(tf.reduce_sum(x) > 1e8, lambda: x, lambda: square(x)),
        lambda: x,
    ),
    "map_fn": lambda x: tf.map_fn(square, x),
    "vectorized_map": lambda x: tf.vectorized_map(square, x),
    "recompute_grad": lambda x: tf.recompute_grad(lambda y: square(square(y)))(x),
    "function": lambda x: tf.function(square)(x),
}
EXPECTED = {"while_loop": lambda x: 8 * x**7, "recompute_grad": lambda x: 4 * x**3}


# Where TensorFlow cannot differentiate its own operations either.
NOT_BY_TENSORFLOW = {("while_loop", "xla"), ("map_fn", "xla")}


@pytest.mark.parametrize(
    ("around", "mode"),
    [(a, m) for a in AROUND for m in MODES if (a, m) not in NOT_BY_TENSORFLOW],
)
def test_inside(around, mode):
    x = integers(3, 2)
    if around == "vectorized_map" and "xla" in mode:
        text = r"a custom op inside tf\.vectorized_map, or in a Jacobian by it, would lose its " \
            r"gradient under XLA\. Ask for jit_compile=False, or use tf\.map_fn"  # fmt: skip
        with pytest.raises(UnsupportedError, match=text):
            gradients(AROUND[around], [x], mode)
        return
    _, (got,) = gradients(AROUND[around], [x], mode)
    np.testing.assert_array_equal(got, EXPECTED.get(around, lambda x: 2 * x)(x))


@pytest.mark.skipif(not hasattr(keras, "remat"), reason="this Keras has no remat")
@without_xla
def test_inside_remat(mode):
    _, (got,) = gradients(lambda x: keras.remat(lambda y: square(square(y)))(x), [A], mode)
    np.testing.assert_array_equal(got, 4 * A**3)


@pytest.mark.parametrize("around", [tf.recompute_grad, getattr(keras, "remat", tf.recompute_grad)])
@without_xla
def test_recomputed_with_a_tape_inside_the_vjp(around, mode):
    def vjp(inputs, output, upstream):
        with tf.GradientTape() as tape:
            tape.watch(inputs.x)
            y = inputs.x**2
        return tape.gradient(y, inputs.x, 5 * upstream)

    op = og.custom_op(lambda x: x * x, vjp=vjp)
    _, (got,) = gradients(around(lambda x: op(x)), [A], mode)
    np.testing.assert_array_equal(got, 10 * A)


def test_a_function_traced_outside_xla_fails_inside_and_says_so():
    """TensorFlow does not trace it anew; the operation itself, called inside, is compiled."""
    inner = tf.function(square)
    inner(tf.constant(A))
    with pytest.raises(tf.errors.InvalidArgumentError, match="No registered 'OpgraftCustomOp'"):
        gradients(inner, [A], "tape in xla")
    _, (got,) = gradients(square, [A], "tape in xla")
    np.testing.assert_array_equal(got, 2 * A)


@without_xla
def test_outputs_that_are_dropped_take_no_gradient_along(mode):
    """Even of a vjp that no file could hold: nothing but the live operation knows it."""

    def vjp(inputs, output, upstream):
        return tf.numpy_function(lambda first: 7 * first, [upstream[0]], tf.float32)

    op = og.custom_op(lambda x: (x, 2 * x), vjp=vjp)

    def first_only(x):
        first, rest = op(x)
        del rest
        gc.collect()
        return first

    def in_loops(x):
        body = lambda i, y: (i + 1, tf.cond(i > -1, lambda: first_only(y), lambda: y))  # noqa: E731
        return tf.while_loop(lambda i, y: i < 2, body, (0, x))[1]

    for function, factor in ((first_only, 7), (in_loops, 49)):
        _, (got,) = gradients(function, [A], mode)
        np.testing.assert_array_equal(got, np.full_like(A, factor))


class Cell(keras.layers.Layer):
    """Of a recurrent layer, by a custom op or by the native operation."""

    def __init__(self, op, size=4):
        super().__init__()
        self.op, self.state_size, self.output_size = op, size, size

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1] + self.state_size, self.state_size))

    def call(self, x, states):
        state = tf.tanh(self.op(tf.concat([x, states[0]], 1), self.kernel))
        return state, [state]


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_in_a_recurrent_layer(jit):
    native_vjp = lambda i, o, u: (u @ tf.transpose(i.w), tf.transpose(i.a) @ u)  # noqa: E731
    x, y = integers(7, 5, 3), integers(7, 4)
    losses = []
    for op in (og.custom_op(multiply.function, vjp=native_vjp), tf.matmul):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((5, 3)), keras.layers.RNN(Cell(op))])
        model.compile("sgd", "mse", jit_compile=jit)
        fit = model.fit(x, y, batch_size=3, epochs=3, shuffle=False, verbose=0)
        losses.append(fit.history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert losses[0][-1] < losses[0][0]


def test_in_a_data_pipeline():
    rows = tf.data.Dataset.from_tensor_slices(A).map(square)
    np.testing.assert_array_equal(np.stack(list(rows.as_numpy_iterator())), A * A)


# ---- tapes and higher orders ---------------------------------------------------------------


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("graph", [False, True])
def test_jacobian(graph, vectorised):
    def run(a, w):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([a, w])
            y = multiply(a, w)
        return tape.jacobian(y, [a, w], experimental_use_pfor=vectorised)

    got = (tf.function(run) if graph else run)(tf.constant(A), tf.constant(W))
    units = np.eye(5 * 4, dtype=np.float32).reshape(-1, 5, 4)
    for ours, rows in zip(got, zip(*(due(A, W, unit) for unit in units), strict=True), strict=True):
        np.testing.assert_array_equal(ours, np.reshape(rows, ours.shape))


def test_batch_jacobian():
    x = tf.constant(A)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = square(x)
    np.testing.assert_array_equal(tape.batch_jacobian(y, x), 2 * A[:, :, None] * np.eye(3))


def test_a_persistent_tape_gives_the_same_again():
    a, w = tf.constant(A), tf.constant(W)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([a, w])
        y = multiply(a, w)
    for _ in range(2):
        da, dw = tape.gradient(y, [a, w], tf.constant(UPSTREAM))
        np.testing.assert_array_equal(da, due(A, W, UPSTREAM)[0])
        np.testing.assert_array_equal(dw, tape.gradient(y, w, tf.constant(UPSTREAM)))


def test_two_tapes_side_by_side():
    a, w = tf.constant(A), tf.constant(W)
    with tf.GradientTape() as one, tf.GradientTape() as other:
        one.watch(a)
        other.watch(w)
        y = multiply(a, w)
    np.testing.assert_array_equal(one.gradient(y, a, tf.constant(UPSTREAM)), due(A, W, UPSTREAM)[0])
    np.testing.assert_array_equal(
        other.gradient(y, w, tf.constant(UPSTREAM)), due(A, W, UPSTREAM)[1]
    )


def derivative(function, order):
    def run(x):
        if order == 0:
            return function(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(derivative(function, order - 1)(x))
        return tape.gradient(y, x)

    return run


@og.custom_op(vjp=lambda inputs, output, upstream: 5 * upstream * cube_slope(inputs.x))
def cube(x):
    return x**3


def cube_slope(x):
    return 3 * x**2


@pytest.mark.parametrize(("order", "expected"), [(1, 15 * A**2), (2, 30 * A), (3, 30 + 0 * A)])
@every_mode
def test_higher_orders(order, expected, mode):
    run = derivative(cube, order)
    if mode != "eager":
        run = tf.function(run, jit_compile="xla" in mode)
    if mode in ("graph", "xla"):  # the tape of the highest order stays outside
        inner = tf.function(derivative(cube, order - 1), jit_compile=mode == "xla")
        run = derivative(inner, 1)
    np.testing.assert_array_equal(run(tf.constant(A)), expected)


@every_mode
def test_second_order_flows_through_upstream_inputs_and_output(mode):
    """For g = u·y of y = w·x: dg/du = y, and dg/dx = u·w by the operation's own gradient."""

    def vjp(inputs, output, upstream):
        return upstream * output, upstream * output

    op = og.custom_op(lambda x, w: x * w, vjp=vjp)

    def run(x, w, u):
        with tf.GradientTape() as outer:
            outer.watch([x, w, u])
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = op(x, w)
            gradient = inner.gradient(y, x, u)
        return outer.gradient(gradient, [x, w, u])

    if mode != "eager":
        run = tf.function(run, jit_compile="xla" in mode)
    x, w, u = (integers(5, salt=i) for i in range(3))
    dx, dw, du = run(*map(tf.constant, (x, w, u)))
    np.testing.assert_array_equal(du, x * w)
    np.testing.assert_array_equal(dx, u * (x * w))  # u through the output, whose gradient is u·y
    np.testing.assert_array_equal(dw, u * (x * w))


# ---- threads ---------------------------------------------------------------------------


def test_two_threads():
    a, w, upstream = integers(40, 30), integers(30, 20), integers(40, 20)
    traced = tf.function(multiply)
    failures = []

    def work():
        try:
            for _ in range(10):
                check(multiply, a=a, w=w, upstream=upstream)
                check(traced, a=a, w=w, upstream=upstream)
                check(multiply, "tape in graph", a=a, w=w, upstream=upstream)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- nothing is left behind ------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["eager", "tape in graph", "tape in xla"])
def test_the_gradient_registry_does_not_grow(mode):
    registry = framework_ops.gradient_registry._registry
    check(multiply, mode)
    before = set(registry)
    for _ in range(2):
        check(multiply, mode)
        check(og.custom_op(multiply.function, vjp=multiply.vjp), mode)
    assert set(registry) == before


@pytest.mark.parametrize("mode", ["eager", "graph", "tape in xla"])
def test_no_operation_and_no_tensor_is_kept(mode):
    def run():
        def vjp(inputs, output, upstream):
            return 2 * upstream * inputs.x

        op = og.custom_op(lambda x: x * x, vjp=vjp)
        x = tf.constant(integers(30, 20))
        y, (got,) = gradients(op, [x], mode)
        np.testing.assert_array_equal(got, 2 * integers(30, 20))
        return [weakref.ref(value) for value in (vjp, op, x, y, got)]

    kept = run()
    gc.collect()
    assert [ref() for ref in kept] == [None] * len(kept)


def test_eager_results_do_not_keep_their_inputs():
    """A chain without a tape, as in a simulation, holds its last tensor only."""
    x, refs = tf.constant(A), []
    for _ in range(10):
        x = square(x)
        refs.append(weakref.ref(x))
    gc.collect()
    assert [ref() is x for ref in refs] == [False] * 9 + [True]
    assert all(ref() is None for ref in refs[:-1])


def test_a_tape_that_is_gone_keeps_nothing():
    x, refs = tf.Variable(A), []
    for _ in range(3):
        with tf.GradientTape() as tape:
            hidden = square(x)
            refs.append(weakref.ref(hidden))
            y = tf.reduce_sum(square(hidden))
        x.assign_sub(0 * tape.gradient(y, x))
    del hidden, y, tape
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3
