"""The layers: each is the Keras layer of its name, with one more argument."""

import functools
import inspect
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import opgraft as og

KERNELS = pathlib.Path(og.__file__).parent / "kernels"

# Class, arguments, shape of the input. Sizes differ along every axis, odd and even.
CASES = {
    "dense": ("Dense", {"units": 5, "activation": "relu"}, (4, 7)),
    "dense without bias": ("Dense", {"units": 3, "use_bias": False}, (5, 8)),
    "dense on sequences": ("Dense", {"units": 5}, (3, 4, 7)),
    "dense on images": ("Dense", {"units": 4}, (2, 3, 5, 6)),
    "conv1d same": ("Conv1D", {"filters": 4, "kernel_size": 4, "padding": "same"}, (2, 9, 3)),
    "conv1d strided": ("Conv1D", {"filters": 4, "kernel_size": 3, "strides": 2}, (2, 10, 3)),
    "conv1d causal": (
        "Conv1D",
        {"filters": 5, "kernel_size": 3, "padding": "causal", "activation": "tanh"},
        (2, 9, 3),
    ),
    "conv1d causal dilated": (
        "Conv1D",
        {"filters": 5, "kernel_size": 2, "padding": "causal", "dilation_rate": 3},
        (2, 11, 3),
    ),
    "conv1d causal strided": (
        "Conv1D",
        {"filters": 5, "kernel_size": 3, "padding": "causal", "strides": 2},
        (2, 10, 3),
    ),
    "conv1d grouped": ("Conv1D", {"filters": 6, "kernel_size": 3, "groups": 2}, (2, 9, 4)),
    "conv1d channels first": (
        "Conv1D",
        {"filters": 6, "kernel_size": 3, "padding": "same", "data_format": "channels_first"},
        (2, 3, 10),
    ),
    "conv2d": ("Conv2D", {"filters": 5, "kernel_size": 3, "activation": "relu"}, (2, 7, 8, 3)),
    "conv2d same even strided": (
        "Conv2D",
        {"filters": 4, "kernel_size": (4, 2), "padding": "same", "strides": 2},
        (3, 8, 9, 2),
    ),
    "conv2d unequal strides": (
        "Conv2D",
        {"filters": 4, "kernel_size": (3, 5), "padding": "same", "strides": (2, 1)},
        (2, 8, 7, 3),
    ),
    "conv2d pointwise strided": (
        "Conv2D",
        {"filters": 6, "kernel_size": 1, "strides": 2, "use_bias": False},
        (2, 8, 7, 5),
    ),
    "conv2d dilated": (
        "Conv2D",
        {"filters": 4, "kernel_size": 3, "padding": "same", "dilation_rate": (2, 3)},
        (2, 9, 10, 3),
    ),
    "conv2d grouped": ("Conv2D", {"filters": 6, "kernel_size": 3, "groups": 3}, (2, 8, 7, 6)),
    "conv2d channels first": (
        "Conv2D",
        {"filters": 5, "kernel_size": 3, "strides": 2, "data_format": "channels_first"},
        (2, 3, 8, 9),
    ),
    "conv2d channels first grouped": (
        "Conv2D",
        {"filters": 4, "kernel_size": 3, "groups": 2, "data_format": "channels_first"},
        (2, 6, 7, 8),
    ),
    "depthwise": (
        "DepthwiseConv2D",
        {"kernel_size": (3, 2), "depth_multiplier": 2, "activation": "relu"},
        (2, 7, 8, 3),
    ),
    "depthwise same strided": (
        "DepthwiseConv2D",
        {"kernel_size": 3, "strides": 2, "padding": "same"},
        (2, 8, 9, 5),
    ),
    "depthwise dilated": (
        "DepthwiseConv2D",
        {"kernel_size": 3, "dilation_rate": 2, "padding": "same", "use_bias": False},
        (2, 8, 9, 3),
    ),
    "depthwise channels first": (
        "DepthwiseConv2D",
        {"kernel_size": 3, "depth_multiplier": 2, "data_format": "channels_first"},
        (2, 3, 8, 7),
    ),
    "separable": (
        "SeparableConv2D",
        {"filters": 5, "kernel_size": 3, "depth_multiplier": 2, "activation": "relu"},
        (2, 7, 8, 3),
    ),
    "separable same strided": (
        "SeparableConv2D",
        {"filters": 4, "kernel_size": 4, "strides": 2, "padding": "same"},
        (2, 8, 9, 3),
    ),
    "separable dilated": (
        "SeparableConv2D",
        {"filters": 4, "kernel_size": 3, "dilation_rate": 2, "use_bias": False},
        (2, 8, 9, 3),
    ),
    "separable channels first": (
        "SeparableConv2D",
        {"filters": 4, "kernel_size": 3, "padding": "same", "data_format": "channels_first"},
        (2, 3, 8, 7),
    ),
}
EQUATIONS = {
    "ab,bc->ac": (5, "c", (4, 7)),
    "abc,cd->abd": ((None, 5), "d", (2, 3, 7)),
    "abc,dc->abd": ((None, 5), "d", (2, 3, 7)),
    "...x,xy->...y": (4, "y", (2, 3, 5, 6)),
    "btd,dnh->btnh": ((None, 4, 3), "nh", (2, 5, 7)),
    "btnh,nhd->btd": ((None, 5), "d", (2, 3, 4, 6)),
    "abc,bcd->abd": ((3, 5), "d", (4, 3, 7)),
    "abc,bcd->adb": ((5, 3), None, (4, 3, 7)),
    "abc,cb->ab": (3, "b", (4, 3, 7)),
}
CASES |= {
    f"einsum {equation}": (
        "EinsumDense",
        {"equation": equation, "output_shape": shape, "bias_axes": bias, "activation": "relu"},
        inputs,
    )
    for equation, (shape, bias, inputs) in EQUATIONS.items()
}
NAMES = ("Dense", "Conv1D", "Conv2D", "DepthwiseConv2D", "SeparableConv2D", "EinsumDense")
ONE_OF_EACH = (
    "dense on sequences",
    "conv1d causal",
    "conv2d same even strided",
    "depthwise",
    "separable",
    "einsum btnh,nhd->btd",
)


def needs_xla(options):
    """TensorFlow itself computes these, or their gradient, only under XLA on a CPU."""
    return bool({"groups", "dilation_rate", "data_format"} & set(options))


def inputs_of(shape, dtype="float32"):
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


def twins(case, arithmetic, **more):
    """The Keras layer and ours with the same random weights, and an input for both."""
    name, options, shape = CASES[case]
    native = getattr(keras.layers, name)(**options, **more)
    ours = getattr(og.layers, name)(**options, **more, arithmetic=arithmetic)
    for layer in (native, ours):
        layer.build(shape)
    rng = np.random.default_rng(7)
    weights = [rng.normal(size=weight.shape) for weight in native.weights]
    for layer in (native, ours):
        layer.set_weights(weights)
    return native, ours, inputs_of(shape)


def outcome(layer, x, compiled=False):
    """The outputs, and the gradients for the input and every trainable weight."""

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
            loss = tf.reduce_sum(y * tf.cast(inputs_of(tuple(y.shape)), y.dtype))
        return y, tape.gradient(loss, [x, *(weight.value for weight in layer.trainable_weights)])

    y, gradients = (tf.function(run, jit_compile=True) if compiled else run)(tf.constant(x))
    assert all(gradient is not None for gradient in gradients)
    return [y.numpy(), *(gradient.numpy() for gradient in gradients)]


@functools.cache
def native_outcome(case, dtype=None):
    native, _, x = twins(case, og.exact, dtype=dtype)
    return outcome(native, x.astype(dtype or "float32"), needs_xla(CASES[case][1]))


def assert_equal_to_rounding(actual, expected, eps=1e-5):
    assert len(actual) == len(expected)
    for ours, native in zip(actual, expected, strict=True):
        assert ours.shape == native.shape
        assert ours.dtype == native.dtype
        scale = max(1.0, np.abs(native.astype("float64")).max())
        np.testing.assert_allclose(
            ours.astype("float64"), native.astype("float64"), rtol=eps, atol=eps * scale
        )


# ---- the same layer ------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_those_of_keras_and_arithmetic(name):
    native = inspect.signature(getattr(keras.layers, name)).parameters
    ours = dict(inspect.signature(getattr(og.layers, name)).parameters)
    arithmetic = ours.pop("arithmetic")
    assert arithmetic.kind is arithmetic.KEYWORD_ONLY
    assert arithmetic.default is None
    assert list(ours.items()) == list(native.items())  # names, order, defaults, kinds


def test_arguments_may_be_given_by_position():
    ours = og.layers.Conv2D(4, (3, 2), (2, 1), "same", arithmetic=og.exact).get_config()
    assert (ours["filters"], ours["kernel_size"]) == (4, (3, 2))
    assert (ours["strides"], ours["padding"]) == ((2, 1), "same")
    with pytest.raises(ValueError, match="unit"):
        og.layers.Dense(3, unit=4)
    with pytest.raises(TypeError, match="positional argument"):
        og.layers.Conv2D()


@pytest.mark.parametrize("case", CASES)
def test_config_is_that_of_keras_and_the_arithmetic(case, c_both):
    name, options, _ = CASES[case]
    native = getattr(keras.layers, name)(**options, name="layer").get_config()
    ours = getattr(og.layers, name)(**options, name="layer", arithmetic=c_both)
    config = ours.get_config()
    assert {key: value for key, value in config.items() if key != "arithmetic"} == native
    again = type(ours).from_config(config)
    assert again.arithmetic == c_both
    assert again.get_config() == config
    assert keras.layers.deserialize(keras.layers.serialize(ours)).get_config() == config


@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_the_same_seed_gives_the_same_weights(case, c_both):
    name, options, shape = CASES[case]
    weights = []
    for layers, more in ((keras.layers, {}), (og.layers, {"arithmetic": c_both})):
        keras.utils.set_random_seed(5)
        layer = getattr(layers, name)(**options, **more)
        layer.build(shape)
        weights.append(layer.weights)
    native, ours = weights
    assert [weight.name for weight in ours] == [weight.name for weight in native]
    for mine, theirs in zip(ours, native, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


# ---- outputs and gradients -----------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_exact_arithmetic_is_the_keras_layer(case):
    _, ours, x = twins(case, og.exact)
    assert_equal_to_rounding(outcome(ours, x), native_outcome(case), 5e-6)


@pytest.mark.parametrize("case", CASES)
def test_c_functions_give_the_keras_layer_to_rounding(case, c_both):
    _, ours, x = twins(case, c_both)
    assert_equal_to_rounding(outcome(ours, x), native_outcome(case))


@pytest.mark.parametrize("case", CASES)
def test_a_graph_gives_what_eager_execution_gives(case, c_both):
    _, ours, x = twins(case, c_both)
    y = tf.function(ours, autograph=False)(tf.constant(x))
    np.testing.assert_array_equal(y.numpy(), ours(x).numpy())


@pytest.mark.parametrize("strides", [(2, 1), (1, 3)])
def test_depthwise_strides_may_differ_where_tensorflow_refuses_them(strides, c_both):
    native = keras.layers.DepthwiseConv2D(3, 1, "valid", depth_multiplier=2)
    ours = og.layers.DepthwiseConv2D(3, strides, "valid", depth_multiplier=2, arithmetic=c_both)
    x = inputs_of((2, 8, 9, 3))
    whole = native(x)
    ours.build(x.shape)
    ours.set_weights(native.get_weights())
    expected = whole[:, :: strides[0], :: strides[1]]
    np.testing.assert_allclose(ours(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_symbolic_shapes_are_those_of_keras(case, c_both):
    name, options, shape = CASES[case]
    symbol = keras.Input(shape[1:])
    native = getattr(keras.layers, name)(**options)(symbol)
    ours = getattr(og.layers, name)(**options, arithmetic=c_both)(symbol)
    assert (ours.shape, ours.dtype) == (native.shape, native.dtype)


@pytest.mark.parametrize("case", [case for case in CASES if "conv" in case and "first" not in case])
def test_sizes_may_be_unknown_until_the_call(case, c_both):
    name, options, shape = CASES[case]
    layer = getattr(og.layers, name)(**options, arithmetic=c_both)
    symbol = keras.Input((*[None] * (len(shape) - 2), shape[-1]))
    model = keras.Model(symbol, layer(symbol))
    assert model.output_shape == getattr(keras.layers, name)(**options)(symbol).shape
    for extra in (0, 3):
        x = inputs_of((shape[0], *(size + extra for size in shape[1:-1]), shape[-1]))
        np.testing.assert_array_equal(model.predict(x, verbose=0), layer(x).numpy())


# ---- what may be put in --------------------------------------------------------


@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_numpy_arrays_are_inputs_too(case, c_both):
    _, ours, x = twins(case, c_both)
    expected = ours(tf.constant(x)).numpy()
    np.testing.assert_array_equal(ours(x).numpy(), expected)
    np.testing.assert_array_equal(ours(x.astype("float64")).numpy(), expected)  # as Keras casts
    np.testing.assert_array_equal(ours(np.asfortranarray(x)).numpy(), expected)


@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_an_empty_batch_gives_an_empty_result(case, c_both):
    native, ours, x = twins(case, c_both)
    whole = native(x)
    results = outcome(ours, x[:0])
    assert results[0].shape == (0, *whole.shape[1:])
    assert results[1].shape == (0, *x.shape[1:])
    for gradient, weight in zip(results[2:], ours.trainable_weights, strict=True):
        np.testing.assert_array_equal(gradient, np.zeros(weight.shape))


@pytest.mark.parametrize("case", ["dense", "einsum ab,bc->ac"])
@pytest.mark.parametrize("arithmetic", [og.exact, "c"])
def test_integer_inputs_are_taken_as_keras_takes_them(case, arithmetic, c_both):
    native, ours, x = twins(case, c_both if arithmetic == "c" else arithmetic)
    x = np.rint(4 * x).astype("int32")
    y, expected = ours(x), native(x)
    assert y.dtype == expected.dtype
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


# ---- precision -----------------------------------------------------------------


@pytest.mark.parametrize("case", ONE_OF_EACH)
@pytest.mark.parametrize(
    ("policy", "dtype", "eps"),
    [("mixed_float16", "float16", 2**-10), ("mixed_bfloat16", "bfloat16", 2**-7)],
)
def test_mixed_precision(case, policy, dtype, eps, c_both):
    _, ours, x = twins(case, c_both, dtype=policy)
    y, *gradients = outcome(ours, x)
    assert y.dtype == dtype
    assert all(weight.dtype == "float32" for weight in ours.weights)
    assert all(gradient.dtype == np.float32 for gradient in gradients)
    expected, *native_gradients = native_outcome(case)
    expected = [expected.astype(y.dtype), *native_gradients]
    assert_equal_to_rounding([y, *gradients], expected, 8 * eps)


@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_float64_layers_through_float_functions_compute_in_float32(case, c_both):
    _, single, x = twins(case, c_both)
    _, ours, _ = twins(case, c_both, dtype="float64")
    y, *gradients = outcome(ours, x.astype("float64"))
    _, *expected = native_outcome(case, "float64")
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, outcome(single, x)[0], rtol=1e-5, atol=1e-5)
    if CASES[case][1].get("activation") is None:
        assert_equal_to_rounding(gradients, expected, 1e-12)  # the gradient is not the C function's


@pytest.mark.parametrize("case", ["dense on sequences", "einsum btnh,nhd->btd", "conv2d grouped"])
def test_float64_layers_through_double_functions_lose_nothing(case, compile_c):
    source = (KERNELS / "matmul.c").read_text().replace("float", "double").replace("0.0f", "0.0")
    _, ours, x = twins(case, og.c_function(compile_c(source)), dtype="float64")
    actual = outcome(ours, x.astype("float64"))
    assert_equal_to_rounding(actual, native_outcome(case, "float64"), 1e-12)


# ---- the arithmetic ------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_arithmetic_is_exact_unless_given(name, c_both):
    options = next(options for kind, options, _ in CASES.values() if kind == name)
    kind = getattr(og.layers, name)
    assert kind(**options).arithmetic == og.exact
    assert kind(**options).supports_jit is True
    assert kind(**options, arithmetic=c_both).supports_jit is False
    assert kind(**options, arithmetic=c_both.product).arithmetic == c_both
    with pytest.raises(og.errors.ArgumentError, match="arithmetic='fast' is a str; it must be an"):
        kind(**options, arithmetic="fast")


@pytest.mark.parametrize("case", CASES)
def test_the_c_function_is_what_computes(case, compile_c):
    source = (KERNELS / "matmul.c").read_text().replace("+= a_row", "+= 1.5f * a_row")
    _, ours, x = twins(case, og.c_function(compile_c(source)))
    _, exact, _ = twins(case, og.exact)
    for layer in (ours, exact):
        layer.activation = None
        if getattr(layer, "bias", None) is not None:
            layer.bias.assign(tf.zeros_like(layer.bias))
    scale = 2.25 if "separable" in case else 1.5  # two products, one after the other
    np.testing.assert_allclose(ours(x), scale * exact(x), rtol=2e-4, atol=2e-4)


def test_an_arithmetic_that_cannot_serve_the_layer_says_so(c_conv2d):
    dense = og.layers.Dense(3, arithmetic=c_conv2d)
    with pytest.raises(og.errors.UnsupportedError, match="cannot serve a matrix product"):
        dense(inputs_of((2, 5)))
    with pytest.raises(og.errors.UnsupportedError, match="cannot serve a matrix product"):
        og.layers.EinsumDense("ab,bc->ac", 3, arithmetic=c_conv2d)(inputs_of((2, 5)))
    dilated = og.layers.Conv2D(3, 2, dilation_rate=2, arithmetic=c_conv2d)
    with pytest.raises(og.errors.UnsupportedError, match="has no dilation parameters"):
        dilated(inputs_of((2, 5, 6, 3)))


def test_an_equation_that_is_no_matrix_product_is_refused(c_both):
    layer = og.layers.EinsumDense("abc,bd->ad", 5, arithmetic=c_both)
    with pytest.raises(og.errors.ArgumentError, match="'abc,bd->ad' is not a matrix product"):
        layer(inputs_of((2, 3, 4)))


@pytest.mark.parametrize("case", ["dense", "conv2d", "einsum abc,cd->abd"])
def test_low_rank_adaptation_goes_through_the_arithmetic(case, c_both):
    native, ours, x = twins(case, c_both)
    rng = np.random.default_rng(3)
    for layer in (native, ours):
        layer.enable_lora(2)
    weights = [rng.normal(size=weight.shape) for weight in native.weights]
    for layer in (native, ours):
        layer.set_weights(weights)
    assert [w.name for w in ours.trainable_weights] == [w.name for w in native.trainable_weights]
    assert_equal_to_rounding(outcome(ours, x), outcome(native, x), 2e-5)


@pytest.mark.parametrize("case", ["dense", "einsum ab,bc->ac"])
def test_a_quantized_keras_policy_does_not_bypass_the_arithmetic(case, c_both):
    name, options, shape = CASES[case]
    kind = getattr(og.layers, name)
    with pytest.raises(og.errors.UnsupportedError, match="quantized by Keras"):
        kind(**options, dtype="int8_from_float32", arithmetic=c_both)
    layer = kind(**options, arithmetic=c_both)
    layer.build(shape)
    with pytest.raises(og.errors.UnsupportedError, match=r"quantization.*og\.restore"):
        layer.quantize("int8")
    assert layer.arithmetic == c_both
