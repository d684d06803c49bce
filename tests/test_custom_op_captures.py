"""Tensors that matter must be arguments: those captured in another way are refused by name.

And what is captured without harm raises no alarm.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tapes import MODES, every_mode, gradients
from test_custom_op import integers
from test_custom_op_contract import refused

import opgraft as og
from opgraft.errors import ArgumentError

A = integers(5, 3)
ADVICE = "from its surroundings, through which no gradient would flow. Make it an argument."
CONSTANT = " A constant can be a NumPy array"

TENSOR = tf.constant(integers(5, 3, salt=1))
VARIABLE = tf.Variable(integers(5, 3, salt=2))
KERAS_VARIABLE = keras.Variable(integers(5, 3, salt=3))


def upstream_only(inputs, output, upstream):
    return upstream


def op_of(function, vjp=upstream_only):
    return og.custom_op(function, vjp=vjp)


def both_ways(use):
    """Operations whose function, or whose vjp, is `use` of one tensor."""
    return [op_of(use), op_of(lambda x: 2 * x, lambda inputs, output, upstream: use(upstream))]


def check_refused(op, *texts, modes=tuple(MODES)):
    for mode in modes:
        with refused(ArgumentError, *texts, ADVICE):
            gradients(op, [A], mode)


# ---- by name: globals and closures ------------------------------------------------------------


GLOBALS = {
    "TENSOR": [
        op_of(lambda x: x * TENSOR),
        op_of(lambda x: (lambda y: y * TENSOR)(x)),
        op_of(lambda x: sum(y for y in [x, TENSOR])),
        op_of(lambda x: x, lambda i, o, u: u * TENSOR),
        op_of(lambda x: x, lambda i, o, u: [y * TENSOR for y in [u]]),
    ],
    "VARIABLE": [op_of(lambda x: x * VARIABLE), op_of(lambda x: x, lambda i, o, u: u * VARIABLE)],
    "KERAS_VARIABLE": [
        op_of(lambda x: x * KERAS_VARIABLE),
        op_of(lambda x: x, lambda i, o, u: u * KERAS_VARIABLE),
    ],
}


@pytest.mark.parametrize("name", GLOBALS)
def test_a_global(name):
    kind = "tensor" if name == "TENSOR" else "variable"
    for op in GLOBALS[name]:
        check_refused(op, f"captures the {kind} '{name}' ")


@pytest.mark.parametrize("make", [tf.constant, tf.Variable, keras.Variable])
def test_a_closure(make):
    own = make(integers(5, 3))
    kind = "tensor" if make is tf.constant else "variable"
    for op in (op_of(lambda x: x * own), op_of(lambda x: x, lambda i, o, u: u * own)):
        check_refused(op, f"captures the {kind} 'own' ")


def test_the_message_names_the_function_that_captures():
    own = tf.constant(A)

    def with_capture(inputs, output, upstream):
        return upstream * own

    with refused(ArgumentError, "test_the_message_names_the_function_that_captures.<locals>."
                 "with_capture' captures the tensor 'own' ", ADVICE, CONSTANT):  # fmt: skip
        op_of(lambda x: x, with_capture)(A)


def test_a_default_argument_of_the_vjp():
    def vjp(inputs, output, upstream, factor=TENSOR):
        return upstream * factor

    check_refused(op_of(lambda x: 2 * x, vjp), "vjp' captures the tensor 'factor' ")


def test_a_partial():
    def vjp(factor, inputs, output, upstream):
        return upstream * factor

    check_refused(
        op_of(lambda x: 2 * x, functools.partial(vjp, TENSOR)), "captures the tensor 'argument 0' "
    )
    by_name = functools.partial(lambda x, factor: x * factor, factor=TENSOR)
    y, (got,) = gradients(op_of(by_name, lambda i, o, u: (u, u)), [A])  # which is an argument
    np.testing.assert_array_equal(y, A * TENSOR)
    np.testing.assert_array_equal(got, np.ones_like(A))


def test_a_tensor_as_default_of_the_function_is_an_argument():
    op = og.custom_op(lambda x, factor=TENSOR: x * factor, vjp=lambda i, o, u: (u, u * i.x))
    _, (got,) = gradients(op, [A])
    np.testing.assert_array_equal(got, np.ones_like(A))
    with tf.GradientTape() as tape:
        tape.watch(TENSOR)
        y = op(A)
    np.testing.assert_array_equal(tape.gradient(y, TENSOR), A)


def test_a_tensor_of_the_enclosing_function():
    def enclosing(x):
        twice = 2 * x
        return op_of(lambda y: y * twice)(x)

    check_refused(enclosing, "captures the tensor 'twice' ")


def test_a_keras_tensor():
    symbol = keras.Input((3,))
    with refused(ArgumentError, "captures the tensor 'symbol' ", ADVICE):
        op_of(lambda x: x * symbol)(keras.Input((3,)))


# ---- by another way: attributes, lists, helpers, layers ------------------------------------------


class Holder:
    """Something with a kernel."""

    def __init__(self, kernel):
        self.kernel = kernel


@pytest.mark.parametrize("make", [tf.Variable, keras.Variable])
def test_a_variable_in_an_attribute(make):
    held = Holder(make(A, name="own_kernel"))
    for op in both_ways(lambda x: x * held.kernel):
        check_refused(op, "captures the variable 'own_kernel")


def test_a_layer_called_inside():
    layer = keras.layers.Dense(3, name="dense_inside")
    layer(A)
    for op in both_ways(layer):
        check_refused(op, "captures the variable 'dense_inside/")


def test_a_frozen_layer_called_inside():
    """TensorFlow cannot tell it from a trained one. Its weights can be arguments."""
    layer = keras.layers.Dense(3, use_bias=False, name="frozen_inside")
    layer(A)
    layer.trainable = False
    check_refused(op_of(layer), "captures the variable 'frozen_inside/")
    op = og.custom_op(lambda x, w: x @ w, vjp=lambda i, o, u: (3 * u, 0 * i.w))
    _, (got,) = gradients(lambda x: op(x, layer.kernel), [A])
    np.testing.assert_array_equal(got, np.full_like(A, 3))


def test_the_kernel_of_the_layer_that_calls():
    class Layer(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(3, 4), name="own_kernel")

        @og.custom_op(vjp=lambda inputs, output, upstream, *, self: upstream)
        def op(self, x):
            return x @ self.kernel

        def call(self, x):
            return self.op(x)

    with refused(ArgumentError, "Layer.op' captures the variable '", "own_kernel", ADVICE):
        Layer()(A)
    with refused(ArgumentError, "Layer.op' captures the variable '", "own_kernel", ADVICE):
        Layer()(keras.Input((3,)))


def test_a_variable_in_a_function_called_inside():
    def helper(x):
        return x * VARIABLE

    for used in (helper, tf.function(helper)):
        for op in both_ways(lambda x, used=used: used(x)):
            check_refused(op, "captures the variable 'Variable")


@pytest.mark.parametrize("mode", ["graph", "xla", "tape in graph", "tape in xla"])
def test_a_tensor_of_the_graph_in_a_list(mode):
    def enclosing(x, use_in_vjp):
        hidden = [tf.sin(x, name="hidden_sine")]
        function, vjp = lambda y: y * hidden[0], lambda i, o, u: u * hidden[0]
        return (op_of(lambda y: y, vjp) if use_in_vjp else op_of(function))(x)

    for use_in_vjp in (False, True):
        run = functools.partial(enclosing, use_in_vjp=use_in_vjp)
        check_refused(run, "captures the tensor '", "hidden_sine", modes=[mode])


def test_a_watched_tensor_in_a_list():
    hidden = [tf.constant(A)]
    op = op_of(lambda x: x * hidden[0])
    with tf.GradientTape() as tape, refused(ArgumentError, "captures the tensor", ADVICE):
        tape.watch(hidden[0])
        op(A)
    y, (got,) = gradients(op, [A])  # nobody watches: a constant
    np.testing.assert_array_equal(y, A * A)
    np.testing.assert_array_equal(got, np.ones_like(A))


def test_a_watched_tensor_in_a_list_of_the_vjp_is_seen_by_the_second_order():
    hidden = [tf.constant(A)]
    op = op_of(lambda x: 2 * x, lambda i, o, u: u * hidden[0])
    with tf.GradientTape() as outer:
        outer.watch(hidden[0])
        with tf.GradientTape() as inner:
            x = tf.constant(A)
            inner.watch(x)
            y = op(x)
        with refused(ArgumentError, "the vjp of ", "captures the tensor", ADVICE):
            inner.gradient(y, x)


# ---- false alarms ------------------------------------------------------------------------------

MASK = (A > 0).astype("float32")
ORDER = tf.constant([2, 0, 1])
STEP = tf.Variable(3)
COUNTER = tf.Variable(3, dtype=tf.int64)
FROZEN = tf.Variable(3.0, trainable=False)
KERAS_FROZEN = keras.Variable(3.0, trainable=False)
NAME = tf.constant("text")
x_of_a_module = tf.constant(A)
kernel = tf.Variable(A)
reshape = tf.constant(A)


@tf.function
def twice(x):
    return 2 * x


HARMLESS = {
    "an array": lambda x: x * MASK,
    "an array made within": lambda x: x * np.full_like(A, 3),
    "a large array": lambda x: x + np.zeros((100, 5, 3), "float32")[7],
    "a function of a module": lambda x: twice(x) + tf.nn.relu(x) - tf.nn.relu(x),
    "integers": lambda x: tf.gather(tf.gather(x, ORDER, axis=1), [1, 2, 0], axis=1),
    "a step": lambda x: x * tf.cast(STEP, tf.float32) * tf.cast(COUNTER, tf.float32),
    "text": lambda x: tf.cond(NAME == "text", lambda: x, lambda: 2 * x),
    "a variable that is not trained": lambda x: x * FROZEN,
    "one of Keras": lambda x: x * KERAS_FROZEN,
    "a variable in a list": lambda x: x * [FROZEN][0],
    "an attribute named like a global": lambda x: keras.ops.reshape(x, x.shape),
    "a parameter named like a global": lambda kernel: kernel * 2,
    "a local named like a global": lambda x: [kernel for kernel in [x]][0],  # noqa: C416, RUF015
    "an own tensor": lambda x: x * tf.constant(3.0) + tf.ones([5, 3]) * tf.eye(3)[0],
    "random numbers": lambda x: x + 0 * tf.random.normal([5, 3]),
    "a class": lambda x: x * Holder(2.0).kernel,
    "its own gradient": lambda x: own_gradient(x),
    "a layer without weights": lambda x: keras.layers.Rescaling(2.0)(x),
}


def own_gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    return tape.gradient(y, x)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (name, mode)
        for name in HARMLESS
        for mode in ("eager", "graph", "tape in xla")
        if (name, mode) != ("text", "tape in xla")  # XLA has no text
    ],
)
def test_no_false_alarm(name, mode):
    use = HARMLESS[name]
    for op in both_ways(use):
        y, (got,) = gradients(op, [A], mode)
        assert y.shape == got.shape == (5, 3)
    np.testing.assert_allclose(got, use(tf.ones([5, 3])), rtol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "graph", "tape in graph"])
def test_state_that_is_not_trained(mode):
    dropout = keras.layers.Dropout(0.5, seed=1)
    normalise = keras.layers.BatchNormalization(center=False, scale=False)
    normalise.build((None, 3))
    for layer in (dropout, normalise):
        _, (got,) = gradients(op_of(lambda x, layer=layer: layer(x, training=True)), [A], mode)
        np.testing.assert_array_equal(got, np.ones_like(A))


@every_mode
def test_a_name_that_is_a_tensor_elsewhere(mode):
    """`inputs.kernel` is no use of the global `kernel`."""
    op = og.custom_op(lambda x, kernel: x * kernel, vjp=lambda i, o, u: (u * i.kernel, u * i.x))
    _, (dx, dkernel) = gradients(op, [A, MASK], mode)
    np.testing.assert_array_equal(dx, MASK)
    np.testing.assert_array_equal(dkernel, A)


def test_an_alarm_leaves_nothing_open():
    """After an error, tapes around it go on."""
    bad = op_of(lambda x: x * VARIABLE)
    x = tf.constant(A)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(ArgumentError):
            bad(x)
        y = op_of(lambda x: 2 * x)(x)
    np.testing.assert_array_equal(tape.gradient(y, x), np.ones_like(A))
