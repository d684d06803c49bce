"""og.python_function: a Python function as product, in eager mode, in graphs and in fit."""

import functools
import inspect
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import opgraft as og
from opgraft import reference, spec
from opgraft.errors import ArgumentError, DtypeError, UnsupportedError

rng = np.random.default_rng(81)


def whole(*shape, dtype="float32"):
    """Random whole numbers: sums of their products are exact in every type."""
    return rng.integers(-4, 5, shape).astype(dtype)


def counted():
    """A matrix product of three times its operands, and the list that grows with each call."""
    calls = []

    def triple(a, b):
        calls.append((a.shape, b.shape))
        return 3 * (a @ b)

    return og.python_function(triple), calls


@pytest.fixture(autouse=True)
def _quiet():
    """The warning about slowness is expected; its own test asks for it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the Python function")
        yield


# ---- where it runs -------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_products_in_both_modes(mode, dtype):
    arithmetic, calls = counted()
    multiply = functools.partial(og.matmul, arithmetic=arithmetic)
    a, b = tf.cast(whole(5, 4), dtype), tf.cast(whole(4, 3), dtype)
    y = (tf.function(multiply) if mode == "graph" else multiply)(a, b)
    assert y.dtype == dtype
    np.testing.assert_array_equal(np.float64(y), 3 * (np.float64(a) @ np.float64(b)))
    assert calls == [((5, 4), (4, 3))]


def test_batches_and_transposes():
    arithmetic, calls = counted()
    a, b = whole(2, 1, 5, 4), whole(3, 6, 5)
    y = og.matmul(a, b, arithmetic=arithmetic, transpose_a=True, transpose_b=True)
    expected = 3 * np.matmul(np.swapaxes(a, 2, 3), np.swapaxes(b, 1, 2))
    np.testing.assert_array_equal(y, expected)
    assert calls == [((4, 5), (5, 6))] * 6


def test_convolutions_come_as_matrices():
    arithmetic, calls = counted()
    x, kernel = whole(2, 7, 6, 4), whole(3, 2, 2, 6)
    how = {"strides": (2, 1), "padding": "SAME", "groups": 2, "pad_value": -1.0}
    y = og.conv2d(x, kernel, arithmetic=arithmetic, **how)
    contraction = spec.Conv2D(**how)
    np.testing.assert_array_equal(y, 3 * reference.by_matmul(contraction, x, kernel, np.matmul))
    assert calls == [((2 * 4 * 6, 3 * 2 * 2), (12, 3))] * 2


@pytest.mark.parametrize("eagerly", [False, True])
def test_fit_equals_the_native_network_bit_for_bit(eagerly):
    x, y, losses = whole(22, 6), whole(22, 1), []
    for arithmetic in (og.exact, og.python_function(tf_matmul)):
        keras.utils.set_random_seed(3)
        layers = [og.layers.Dense(5, "relu", arithmetic=arithmetic), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile("sgd", "mse", run_eagerly=eagerly)
        losses.append(model.fit(x, y, batch_size=8, epochs=3, verbose=0).history["loss"])
    assert losses[0] == losses[1]


def tf_matmul(a, b):
    """The exact product by the framework, so that not a bit differs."""
    with tf.device("CPU"):
        return tf.linalg.matmul(a, b).numpy()


def test_a_swapped_network_predicts_and_is_restored():
    model = keras.Sequential([keras.Input((9, 8, 2)), keras.layers.Conv2D(3, 3, padding="same"),
                              keras.layers.Flatten(), keras.layers.Dense(4)])  # fmt: skip
    x = whole(5, 9, 8, 2)
    before = model.predict(x, batch_size=2, verbose=0)
    arithmetic, calls = counted()
    swapped = og.swap(model, arithmetic)
    assert not np.allclose(swapped.predict(x, batch_size=2, verbose=0), before)
    assert len(calls) >= 6
    np.testing.assert_allclose(og.restore(swapped).predict(x, verbose=0), before, rtol=1e-5)


def test_keras_tensors():
    arithmetic, _ = counted()
    x, w = keras.Input((5,)), whole(5, 2)
    y = og.matmul(x, w, arithmetic=arithmetic)
    assert y.shape == (None, 2)
    a = whole(3, 5)
    np.testing.assert_array_equal(keras.Model(x, y)(a), 3 * (a @ w))


# ---- shape and gradient --------------------------------------------------------------


def test_the_static_shape_is_known():
    arithmetic, _ = counted()
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec((None, 8, None, 2)), tf.TensorSpec((3, 3, 2, 5))])
    def convolve(x, kernel):
        y = og.conv2d(x, kernel, arithmetic=arithmetic, strides=2, padding="SAME")
        shapes.append(tuple(y.shape))
        return y

    x, kernel = whole(2, 8, 7, 2), whole(3, 3, 2, 5)
    assert convolve(x, kernel).shape == (2, 4, 4, 5)
    assert shapes == [(None, 4, None, 5)]


def test_nothing_need_be_known_before_the_call():
    arithmetic, _ = counted()
    anything = [tf.TensorSpec(None), tf.TensorSpec(None)]
    multiply = tf.function(lambda a, b: og.matmul(a, b, arithmetic=arithmetic), anything)
    a, b = whole(2, 5, 4), whole(4, 3)
    np.testing.assert_array_equal(multiply(a, b), 3 * (a @ b))
    with pytest.raises(tf.errors.OpError, match=r"inner sizes.*must be equal"):
        multiply(a, whole(3, 4))


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_the_gradient_is_native(mode):
    arithmetic, calls = counted()

    def gradients(x, kernel, how):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = og.conv2d(x, kernel, arithmetic=how, strides=2, padding="SAME")
            upstream = tf.reshape(tf.cast(tf.range(tf.size(y)) % 7, y.dtype), tf.shape(y))
        return tape.gradient(y, [x, kernel], upstream)

    run = tf.function(gradients) if mode == "graph" else gradients
    x, kernel = tf.constant(whole(2, 7, 6, 3)), tf.constant(whole(3, 2, 3, 4))
    ours, native = run(x, kernel, arithmetic), run(x, kernel, og.exact)
    for left, right in zip(ours, native, strict=True):
        np.testing.assert_array_equal(left, right)
    assert len(calls) == 1  # the backward does not ask Python


def test_second_order_and_jacobian():
    arithmetic, _ = counted()
    x, w = tf.constant(whole(3, 4)), tf.constant(whole(4, 2))
    results = []
    for how in (arithmetic, og.exact):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch([x, w])
                y = og.matmul(x, w, arithmetic=how)
            slope = inner.gradient(y, w, tf.ones_like(y) * x[0, 0])
        results.append(outer.jacobian(slope, x))
    np.testing.assert_array_equal(results[0], results[1])


# ---- pure-ness is not assumed --------------------------------------------------------


def test_constant_operands_are_not_folded():
    arithmetic, calls = counted()
    a, b = whole(3, 4), whole(4, 2)
    product = tf.function(lambda: og.matmul(tf.constant(a), tf.constant(b), arithmetic=arithmetic))
    for _ in range(3):
        np.testing.assert_array_equal(product(), 3 * (a @ b))
    assert len(calls) == 3


def test_equal_calls_are_not_merged_and_unused_ones_not_skipped():
    arithmetic, calls = counted()

    @tf.function
    def twice(a, b):
        og.matmul(b, a, arithmetic=arithmetic)  # nobody reads this one
        product = functools.partial(og.matmul, a, b, arithmetic=arithmetic)
        return product() + product()

    a, b = whole(3, 4), whole(4, 3)
    np.testing.assert_array_equal(twice(a, b), 6 * (a @ b))
    assert sorted(calls) == [((3, 4), (4, 3))] * 2 + [((4, 3), (3, 4))]


def test_a_function_with_a_memory_sees_every_call():
    state = {"calls": 0}

    def counting(a, b):
        state["calls"] += 1
        return np.full((a.shape[0], b.shape[1]), state["calls"], a.dtype)

    product = tf.function(functools.partial(og.matmul, arithmetic=og.python_function(counting)))
    a, b = tf.constant(whole(2, 3)), tf.constant(whole(3, 2))
    assert [float(product(a, b)[0, 0]) for _ in range(3)] == [1, 2, 3]


def test_operands_cannot_be_written():
    def spoil(a, b):
        a[...] = 0
        return a @ b

    arithmetic = og.python_function(spoil)
    a, b = tf.constant(whole(2, 3) + 9), tf.constant(whole(3, 2))
    before = a.numpy().copy()
    for run in (og.matmul, tf.function(og.matmul)):
        with pytest.raises((ValueError, tf.errors.OpError), match="read-only"):
            run(a, b, arithmetic=arithmetic)
    np.testing.assert_array_equal(a, before)


def test_an_empty_batch_never_reaches_the_function():
    arithmetic, calls = counted()
    assert og.matmul(whole(0, 3), whole(3, 2), arithmetic=arithmetic).shape == (0, 2)
    empty = og.conv2d(whole(0, 6, 5, 2), whole(2, 3, 2, 4), arithmetic=arithmetic)
    assert empty.shape == (0, 5, 3, 4)
    assert calls == []


def test_its_limits_are_said_once():
    arithmetic, _ = counted()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            og.matmul(whole(2, 3), whole(3, 2), arithmetic=arithmetic)
        tf.function(og.matmul)(whole(2, 3), whole(3, 2), arithmetic=arithmetic)
    said = [str(entry.message) for entry in seen if "Python function" in str(entry.message)]
    assert len(said) == 1
    for words in ("triple", "slower", "cannot be exported", "og.c_function"):
        assert words in said[0]


# ---- functions with more parameters ----------------------------------------------------


def convolution(parameters):
    """A convolution that takes the given parameters, and the list of what it was given."""
    given = []

    def body(x, kernel, **geometry):
        given.append(geometry)
        pads = geometry.get("padding", ((0, 0), (0, 0)))
        contraction = spec.Conv2D(
            strides=geometry.get("strides", (1, 1)),
            padding=pads,
            dilations=geometry.get("dilations", (1, 1)),
            groups=geometry.get("groups", 1),
            pad_value=geometry.get("pad_value", 0.0),
        )
        return reference.by_matmul(contraction, x, kernel, np.matmul)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ["x", "kernel", *parameters]
    body.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    return body, given


HOW = [
    {},
    {"padding": "SAME"},
    {"padding": ((2, 0), (1, 3)), "pad_value": 2.0},
    {"groups": 2, "padding": "SAME"},
    {"strides": (2, 3), "padding": "SAME"},
    {"dilations": (1, 2), "groups": 2},
]


@pytest.mark.parametrize(
    "parameters",
    [
        ["strides"],
        ["strides", "padding"],
        ["padding", "pad_value", "dilations"],
        ["groups", "strides", "dilations"],
        ["strides", "padding", "dilations", "groups", "pad_value"],
    ],
)
@pytest.mark.parametrize("how", HOW)
def test_parameters_are_bound_by_name_and_the_rest_is_composed(parameters, how):
    function, given = convolution(parameters)
    arithmetic = og.python_function(function)
    x, kernel = whole(2, 8, 9, 4), whole(2, 3, 4 // how.get("groups", 1), 6)
    missing = [name for name in ("strides", "dilations") if name in how and name not in parameters]
    if missing:
        with pytest.raises(UnsupportedError, match=f"has no parameter {missing[0]}"):
            og.conv2d(x, kernel, arithmetic=arithmetic, **how)
        return
    y = og.conv2d(x, kernel, arithmetic=arithmetic, **how)
    contraction = spec.Conv2D(**how)
    np.testing.assert_array_equal(y, reference.by_matmul(contraction, x, kernel, np.matmul))
    assert all(set(entry) == set(parameters) for entry in given)
    assert len(given) == (how.get("groups", 1) if "groups" not in parameters else 1)


def test_depthwise_and_channels_first_through_a_convolution():
    function, _ = convolution(["strides", "groups"])
    arithmetic = og.python_function(function)
    x, kernel = whole(2, 3, 8, 7), whole(2, 3, 3, 2)
    how = {"strides": (2, 1), "padding": "SAME"}
    y = og.depthwise_conv2d(x, kernel, arithmetic=arithmetic, data_format="channels_first", **how)
    contraction = spec.DepthwiseConv2D(channels_first=True, **how)
    np.testing.assert_array_equal(y, reference.by_matmul(contraction, x, kernel, np.matmul))


def test_a_convolution_refuses_a_matrix_product():
    arithmetic = og.python_function(convolution(["strides"])[0])
    with pytest.raises(UnsupportedError, match=r"is a convolution .*strides.*matrix product"):
        og.matmul(whole(2, 3), whole(3, 2), arithmetic=arithmetic)


# ---- what is wrong is said --------------------------------------------------------------


@pytest.mark.parametrize("function", [lambda: 0, lambda a: a, lambda **named: 0])
def test_fewer_than_two_arrays_are_refused(function):
    with pytest.raises(ArgumentError, match="must take two arrays as its first parameters"):
        og.python_function(function)


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (lambda a, b, stride: 0, "stride"),
        (lambda a, b, stride=1: 0, "stride"),
        (lambda a, b, *, dilation=1: 0, "dilation"),
        (lambda a, b, scale: 0, "scale"),
    ],
)
def test_wrong_parameter_names_are_refused(function, word):
    with pytest.raises(ArgumentError) as caught:
        og.python_function(function)
    for known in (f"'{word}'", "strides", "padding", "dilations", "groups", "pad_value"):
        assert known in str(caught.value)


@pytest.mark.parametrize("wrong", [3, "np.matmul", None, np.ones((2, 2)), og.exact])
def test_what_is_no_function_is_refused(wrong):
    with pytest.raises(ArgumentError, match="python_function needs a function"):
        og.python_function(wrong)


class Unhashable:
    __hash__ = None

    def __call__(self, a, b):
        return a @ b


def test_an_unhashable_function_is_refused():
    with pytest.raises(ArgumentError, match="hashable"):
        og.python_function(Unhashable())


def own_words(a, b):
    raise RuntimeError("the user's own words")


@pytest.mark.parametrize("mode", ["eager", "graph", "fit", "fit eagerly"])
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (own_words, "the user's own words"),
        (lambda a, b: a, r"returned the shape \(3, 4\) where \(3, 2\) is due"),
        (lambda a, b: None, r"returned the shape \(\) where \(3, 2\) is due"),
        (lambda a, b: (a @ b)[None], r"returned the shape \(1, 3, 2\)"),
    ],
)
def test_what_goes_wrong_inside_reaches_the_user(mode, function, words):
    arithmetic = og.python_function(function)
    a, b = whole(3, 4), whole(4, 2)
    known = (RuntimeError, ArgumentError, tf.errors.OpError, ValueError)
    if mode.startswith("fit"):
        layer = og.layers.Dense(2, arithmetic=arithmetic)
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile("sgd", "mse", run_eagerly=mode == "fit eagerly")
        with pytest.raises(known, match=words):
            model.fit(a, whole(3, 2), verbose=0)
    else:
        run = tf.function(og.matmul) if mode == "graph" else og.matmul
        with pytest.raises(known, match=words):
            run(a, b, arithmetic=arithmetic)


@pytest.mark.parametrize(
    ("dtype", "function"),
    [
        ("int8", lambda a, b: 100 * np.ones((3, 2), "int32") * 100),
        ("int32", lambda a, b: 1.5 + a @ b),
        ("int32", lambda a, b: np.full((3, 2), np.nan)),
        ("uint8", lambda a, b: -np.ones((3, 2), "int16")),
        ("float32", lambda a, b: a @ b + 1j),
        ("float32", lambda a, b: np.full((3, 2), "text")),
        ("float32", lambda a, b: np.full((3, 2), object())),
        ("float32", lambda a, b: np.full((3, 2), 2**24 + 1)),
    ],
)
def test_a_result_that_the_dtype_cannot_hold_is_an_error(dtype, function):
    with pytest.raises((ArgumentError, DtypeError), match=r"lambda.*returned"):
        og.matmul(
            np.ones((3, 4), dtype), np.ones((4, 2), dtype), arithmetic=og.python_function(function)
        )


def test_floating_results_are_rounded_to_the_operands_dtype():
    arithmetic = og.python_function(lambda a, b: np.float64(a) @ np.float64(b) / 3)
    a, b = whole(3, 4), whole(4, 2)
    y = og.matmul(a, b, arithmetic=arithmetic)
    np.testing.assert_array_equal(y, ((a @ b) / np.float64(3)).astype("float32"))
    listed = og.python_function(lambda a, b: (a @ b).tolist())
    np.testing.assert_array_equal(og.matmul(a, b, arithmetic=listed), a @ b)


# ---- saving ------------------------------------------------------------------------------


def unregistered(a, b):
    return a @ b


@keras.saving.register_keras_serializable("opgraft_tests")
def registered(a, b):
    return 5 * (a @ b)


def network(arithmetic):
    return keras.Sequential([keras.Input((4,)), og.layers.Dense(3, arithmetic=arithmetic)])


@pytest.mark.parametrize("function", [unregistered, np.matmul, lambda a, b: a @ b])
def test_a_function_that_is_not_registered_is_not_saved(function, tmp_path):
    model = network(og.python_function(function))
    with pytest.raises(UnsupportedError, match="register_keras_serializable"):
        model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "only.weights.h5")
    twin = network(og.exact)
    twin.load_weights(tmp_path / "only.weights.h5")
    np.testing.assert_array_equal(twin.get_weights()[0], model.get_weights()[0])


def test_a_registered_function_is_saved_and_loaded(tmp_path):
    model, path, x = network(og.python_function(registered)), tmp_path / "model.keras", whole(6, 4)
    model.save(path)
    loaded = keras.models.load_model(path)
    assert loaded.layers[0].arithmetic == model.layers[0].arithmetic
    np.testing.assert_array_equal(loaded(x), model(x))
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    np.testing.assert_array_equal(copied(x), model(x))


def test_a_process_without_the_function_says_what_to_import(tmp_path):
    path = tmp_path / "model.keras"
    network(og.python_function(registered)).save(path)
    code = f"import keras, opgraft; keras.models.load_model({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "'opgraft_tests>registered', which is not registered" in done.stderr
    assert "Import the module that defines it" in done.stderr


def test_an_exported_model_is_refused_elsewhere(tmp_path):
    model, x = network(og.python_function(registered)), whole(2, 4)
    model.export(tmp_path / "saved", verbose=False)
    code = f"""
import opgraft, tensorflow as tf
loaded = tf.saved_model.load({str(tmp_path / "saved")!r})
print("computed", loaded.serve(tf.constant({x.tolist()})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pyfunc" in done.stderr
    assert "computed" not in done.stdout
