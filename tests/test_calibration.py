"""Ranges of activations: `og.calibrate` in every kind of model, with every rule, and its errors."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import opgraft as og
from opgraft import calibration
from opgraft.errors import ArgumentError
from opgraft.quantizers import Affine, Symmetric

KERNELS = pathlib.Path(og.__file__).parent / "kernels"
SIGNED = og.approximate(og.multipliers.exact(signed=True))
UNSIGNED = og.approximate(og.multipliers.mitchell())
COARSE = og.approximate(og.multipliers.exact(3, signed=True))
KINDS = {"signed": SIGNED, "unsigned": UNSIGNED}
every_kind = pytest.mark.parametrize("kind", KINDS)


def normals(*shape, seed=1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.2, 1, shape).astype(np.float32)


def dense(units, arithmetic=SIGNED, **options):
    return og.layers.Dense(units, arithmetic=arithmetic, **options)


def sequential(arithmetic=SIGNED, width=6):
    keras.utils.set_random_seed(5)
    layers = [dense(5, arithmetic, activation="relu"), dense(4, arithmetic)]
    return keras.Sequential([keras.Input((width,)), *layers])


def inputs_of(model, x) -> list:
    """What each layer of a Sequential model is given without quantization."""
    exact = keras.models.clone_model(model)
    exact.set_weights(model.get_weights())
    og.swap(exact, og.exact)
    found = []
    for layer in exact.layers:
        found.append(np.asarray(x))
        x = layer(x)
    return found


def range_of(layer) -> tuple[float, float]:
    quantizer = layer.arithmetic.input
    if isinstance(quantizer, Affine):
        return quantizer.low, quantizer.high
    return -quantizer.limit, quantizer.limit


def assert_covers(layer, *seen: np.ndarray) -> None:
    """The layer's range is that of everything in the arrays."""
    low = min(float(each.min()) for each in seen)
    high = max(float(each.max()) for each in seen)
    if isinstance(layer.arithmetic.input, Symmetric):
        high = max(high, -low)
        low = -high
    due = min(low, 0), max(high, 0)
    np.testing.assert_allclose(range_of(layer), due, rtol=1e-5, atol=1e-6)


def arithmetics(model) -> list:
    return [each.arithmetic for each in model._flatten_layers() if hasattr(each, "arithmetic")]


# ---- kinds of models -----------------------------------------------------------------------


@every_kind
def test_a_sequential_model(kind):
    model, x = sequential(KINDS[kind]), normals(45, 6)
    before = model.get_weights()
    seen = inputs_of(model, x)
    assert og.calibrate(model, x) is model
    for layer, each in zip(model.layers, seen, strict=True):
        assert_covers(layer, each)
        assert layer.arithmetic.kernel == KINDS[kind].kernel  # found at each call
        assert layer.arithmetic.product == KINDS[kind].product
    for weight, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, kept)


def test_what_the_layers_see_is_not_quantized():
    """Two bits would leave nothing of the second layer's inputs."""
    coarse = og.approximate(og.multipliers.exact(2, signed=True))
    model, x = sequential(coarse), normals(45, 6)
    seen = inputs_of(model, x)
    og.calibrate(model, x)
    for layer, each in zip(model.layers, seen, strict=True):
        assert_covers(layer, each)


def test_a_model_that_is_not_built_yet():
    x = normals(20, 6)
    model = keras.Sequential([dense(5), dense(4, UNSIGNED)])
    og.calibrate(model, x)
    for layer, each in zip(model.layers, inputs_of(model, x), strict=True):
        assert_covers(layer, each)


def two_inputs():
    keras.utils.set_random_seed(5)
    a, b = keras.Input((6,), name="a"), keras.Input((3,), name="b")
    left, right = dense(4, name="left"), dense(4, UNSIGNED, name="right")
    return keras.Model([a, b], keras.layers.Add()([left(a), right(b)]))


@pytest.mark.parametrize("form", ["list", "dataset", "pairs", "generator", "mapping"])
def test_two_inputs(form):
    a, b = normals(21, 6), 3 * normals(21, 3, seed=2)
    batches = [(a[i : i + 8], b[i : i + 8]) for i in range(0, 21, 8)]
    dataset = tf.data.Dataset.from_tensor_slices(((a, b), np.zeros(21))).batch(8)
    data = {
        "list": [a, b], "dataset": dataset, "generator": (list(batch) for batch in batches),
        "pairs": ((batch, np.zeros(len(batch[0]))) for batch in batches),
        "mapping": {"a": a, "b": b},
    }  # fmt: skip
    model = two_inputs()
    og.calibrate(model, data[form])
    assert_covers(model.get_layer("left"), a)
    assert_covers(model.get_layer("right"), b)


def test_a_layer_that_is_used_twice_has_one_range():
    shared = dense(6, kernel_initializer="ones")
    inputs = keras.Input((6,))
    model = keras.Model(inputs, shared(10.0 * shared(inputs)))
    x = normals(20, 6)
    og.calibrate(model, x)
    assert_covers(shared, x, 10 * np.tile(x.sum(1, keepdims=True), 6))


def test_nested_models_whose_layers_have_one_name():
    """Each keeps its own arithmetic and gets its own range."""

    def part(name, arithmetic):
        inputs = keras.Input((6,))
        layer = dense(6, arithmetic, name="dense", kernel_initializer="ones")
        return keras.Model(inputs, layer(inputs), name=name)

    first, second = part("first", SIGNED), part("second", UNSIGNED)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, second(keras.layers.Rescaling(100.0)(first(inputs))))
    x = normals(40, 6)
    og.calibrate(model, x)
    outer, inner = first.get_layer("dense"), second.get_layer("dense")
    assert outer.arithmetic.product == SIGNED.product
    assert inner.arithmetic.product == UNSIGNED.product
    assert_covers(outer, x)
    assert_covers(inner, 100 * np.tile(x.sum(1, keepdims=True), 6))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = dense(6, name="same", kernel_initializer="ones")
        self.second = dense(3, UNSIGNED, name="same")
        self.drop = keras.layers.Dropout(0.9)

    def call(self, x, training=False):
        return self.second(self.drop(self.first(x), training=training) - 5)


@pytest.mark.parametrize("built", [False, True])
def test_a_subclassed_model(built):
    model, x = Subclassed(), normals(40, 6)
    if built:
        model(x)
    og.calibrate(model, x)
    assert_covers(model.first, x)
    # Dropout does nothing: the model does not train.
    assert_covers(model.second, np.tile(x.sum(1, keepdims=True), 6) - 5)


def test_a_separable_convolution_has_one_range_for_both_contractions():
    layer = og.layers.SeparableConv2D(3, 3, arithmetic=SIGNED)
    model = keras.Sequential([keras.Input((6, 7, 2)), layer])
    x = normals(5, 6, 7, 2)
    middle = og.depthwise_conv2d(x, layer.depthwise_kernel, arithmetic=og.exact)
    layer.depthwise_kernel.assign(20.0 * layer.depthwise_kernel)
    og.calibrate(model, x)
    assert abs(20 * np.asarray(middle)).max() > abs(x).max()
    assert_covers(layer, x, 20 * np.asarray(middle))


def test_every_layer(tmp_path):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([
        keras.Input((8, 9, 3)),
        og.layers.Conv2D(4, 3, strides=2, padding="same", arithmetic=SIGNED),
        og.layers.DepthwiseConv2D(2, arithmetic=UNSIGNED),
        keras.layers.Reshape((-1, 4)),
        og.layers.Conv1D(5, 2, padding="causal", arithmetic=SIGNED),
        og.layers.EinsumDense("abc,cd->abd", (None, 3), arithmetic=UNSIGNED),
        keras.layers.GlobalAveragePooling1D(),
        dense(2),
    ])  # fmt: skip
    x = normals(6, 8, 9, 3)
    og.calibrate(model, x)
    for layer, seen in zip(model.layers, inputs_of(model, x), strict=True):
        if isinstance(layer, og.layers.ArithmeticLayer):
            assert_covers(layer, seen)


def test_layers_that_are_exact_stay_as_they_are():
    c_function = og.python_function(lambda a, b: a @ b)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            dense(5, og.exact),
            dense(4),
            keras.layers.Dense(3),
            dense(2, c_function),
        ]
    )
    with pytest.warns(UserWarning, match="Python function"):
        c_function.product.warn_once()
    og.calibrate(model, normals(10, 6))
    found = [layer.arithmetic for layer in model.layers if hasattr(layer, "arithmetic")]
    assert found[0] == og.exact
    assert found[1].input.limit is not None
    assert found[2] == c_function


# ---- data ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 32, 1000])
def test_batches_do_not_matter(batch_size):
    model, x = sequential(), normals(45, 6)
    seen = inputs_of(model, x)
    og.calibrate(model, x, batch_size=batch_size)
    for layer, each in zip(model.layers, seen, strict=True):
        assert_covers(layer, each)


def forms(x):
    labels = np.zeros(len(x))
    slices = tf.data.Dataset.from_tensor_slices
    return {
        "array": x,
        "tensor": tf.constant(x),
        "dataset": slices(x).batch(7),
        "dataset of pairs": slices((x, labels)).batch(7),
        "dataset of triples": slices((x, labels, labels)).batch(7),
        "generator": (x[i : i + 7] for i in range(0, len(x), 7)),
        "generator of pairs": ((x[i : i + 7], None) for i in range(0, len(x), 7)),
        "list of one": [x],
    }


@pytest.mark.parametrize("form", forms(np.zeros((1, 1))))
def test_every_form_of_data(form):
    model, x = sequential(), normals(24, 6)
    seen = inputs_of(model, x)
    og.calibrate(model, forms(x)[form])
    for layer, each in zip(model.layers, seen, strict=True):
        assert_covers(layer, each)


def test_whole_numbers():
    x = np.random.default_rng(0).integers(0, 255, (20, 6), np.uint8)
    model = sequential()
    og.calibrate(model, x)
    assert range_of(model.layers[0])[1] == x.max()


def test_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = sequential()
    finally:
        keras.config.set_dtype_policy("float32")
    x = normals(20, 6)
    og.calibrate(model, x)
    assert_covers(model.layers[0], x.astype(np.float16).astype(np.float32))


# ---- rules ---------------------------------------------------------------------------------


def seen_of(values) -> calibration.Seen:
    seen = calibration.Seen()
    seen.add(np.asarray(values), np.random.default_rng(0))
    return seen


def test_min_max_is_everything():
    assert calibration.min_max(seen_of([-3, 0.5, 2]), Symmetric(8)) == (-3, 2)


@pytest.mark.parametrize("percent", [50, 90, 99.5, 100])
def test_a_percentile_leaves_out_the_largest(percent):
    values = normals(30_000)
    low, high = calibration.percentile(percent)(seen_of(values), Symmetric(8))
    limit = np.percentile(abs(values), percent)
    np.testing.assert_allclose((low, high), (max(values.min(), -limit), min(values.max(), limit)))
    inside = ((low <= values) & (values <= high)).mean()
    assert inside == pytest.approx(percent / 100, abs=0.01)
    positive = calibration.percentile(percent)(seen_of(abs(values)), Affine(8))
    np.testing.assert_allclose(positive, (abs(values).min(), limit))


@pytest.mark.parametrize("percent", [0, -1, 100.1, np.nan])
def test_percentages_that_are_none(percent):
    with pytest.raises(ArgumentError, match="it must be above 0 and at most 100"):
        calibration.percentile(percent)


@pytest.mark.parametrize("quantizer", [Symmetric(3), Symmetric(8), Affine(3), Affine(6)], ids=str)
def test_least_squares_finds_the_range_with_the_smallest_error(quantizer):
    values = np.random.default_rng(3).laplace(0.3, 1, 20_000).astype(np.float32)
    seen = seen_of(values)

    def error(low, high):
        return ((quantizer.calibrated(low, high).encode(values).values - values) ** 2).mean()

    low, high = calibration.least_squares(seen, quantizer)
    best = error(low, high)
    assert best <= min(error(s * seen.low, s * seen.high) for s in np.linspace(0.02, 1, 50)) * 1.001
    assert 0 < high <= seen.high
    assert best <= error(seen.low, seen.high)
    assert quantizer.bits > 3 or best < 0.7 * error(seen.low, seen.high)


def test_least_squares_of_zeros():
    assert calibration.least_squares(seen_of(np.zeros(5)), Symmetric(8)) == (0, 0)


def test_a_rule_of_yours_and_what_it_is_told():
    told = []

    def rule(seen, quantizer):
        told.append((seen, quantizer))
        return -1.5, 2.5

    model, x = sequential(UNSIGNED), normals(45, 6)
    given = inputs_of(model, x)
    og.calibrate(model, x, rule=rule)
    assert [range_of(layer) for layer in model.layers] == [(-1.5, 2.5)] * 2
    for (seen, quantizer), each in zip(told, given, strict=True):
        assert quantizer == Affine(8)
        assert seen.count == each.size
        np.testing.assert_allclose([seen.low, seen.high], [each.min(), each.max()], rtol=1e-5)
        np.testing.assert_allclose(np.sort(seen.sample), np.sort(each.ravel()), atol=1e-5)


@pytest.mark.parametrize("rule", [calibration.percentile(90.0), calibration.least_squares])
def test_rules_in_a_model(rule):
    wide, narrow = sequential(COARSE), sequential(COARSE)
    x = normals(200, 6)
    x[0, 0] = 20.0  # one that is far from the others
    og.calibrate(wide, x)
    og.calibrate(narrow, x, rule=rule)
    assert range_of(narrow.layers[0])[1] < 0.9 * range_of(wide.layers[0])[1]


def test_a_sample_of_many_numbers(monkeypatch):
    monkeypatch.setattr(calibration, "_SAMPLE", 1000)
    seen, draw = calibration.Seen(), np.random.default_rng(0)
    parts = [np.full(size, i, np.float32) for i, size in enumerate((300, 900, 1500, 300))]
    for part in parts:
        seen.add(part, draw)
        assert len(seen.sample) <= 1000
    assert (seen.count, seen.low, seen.high) == (3000, 0, 3)
    assert len(seen.sample) >= 990
    shares = np.bincount(seen.sample.astype(int)) / len(seen.sample)
    np.testing.assert_allclose(shares, np.array([300, 900, 1500, 300]) / 3000, atol=0.04)


def test_a_small_sample_is_everything():
    values = normals(1000)
    assert sorted(seen_of(values).sample) == sorted(values)


def test_the_seed_decides(monkeypatch):
    monkeypatch.setattr(calibration, "_SAMPLE", 100)
    x, limits = normals(400, 6), []
    for seed in (0, 0, 1):
        model = sequential()
        og.calibrate(model, x, rule=calibration.percentile(70), seed=seed)
        limits.append([range_of(layer) for layer in model.layers])
    assert limits[0] == limits[1] != limits[2]


# ---- afterwards ----------------------------------------------------------------------------


@every_kind
def test_saved_and_loaded(kind, tmp_path):
    model, x = sequential(KINDS[kind]), normals(20, 6)
    og.calibrate(model, x)
    due = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert arithmetics(loaded) == arithmetics(model)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), due)


def test_a_calibrated_model_does_not_depend_on_the_batch():
    model, x = sequential(), normals(20, 6)
    apart = [model(x[i : i + 5]) for i in range(0, 20, 5)]
    assert np.abs(np.concatenate(apart) - model(x)).max() > 1e-4
    og.calibrate(model, x)
    apart = [model(x[i : i + 5]) for i in range(0, 20, 5)]
    np.testing.assert_allclose(np.concatenate(apart), model(x), rtol=1e-5, atol=1e-6)


def test_compiled_functions_are_traced_anew():
    model, x = sequential(), normals(20, 6)
    model.compile("sgd", "mse")
    model.predict(x, verbose=0)
    og.calibrate(model, x, rule=lambda seen, quantizer: (-0.1, 0.1))
    np.testing.assert_allclose(model.predict(x, verbose=0), model(x), rtol=1e-5, atol=1e-6)


def test_training_goes_on():
    model, x = sequential(), normals(40, 6)
    y = normals(40, 4, seed=9)
    og.calibrate(model, x)
    kept = [layer.arithmetic.input for layer in model.layers]
    model.compile(keras.optimizers.Adam(0.02), "mse")
    losses = model.fit(x, y, batch_size=16, epochs=15, verbose=0).history["loss"]
    assert losses[-1] < 0.85 * losses[0]
    assert [layer.arithmetic.input for layer in model.layers] == kept
    og.calibrate(model, 2 * x)  # and anew
    assert range_of(model.layers[0])[1] == pytest.approx(2 * kept[0].limit)


def test_swapped_calibrated_and_restored():
    model = keras.Sequential([
        keras.Input((6, 7, 2)), keras.layers.Conv2D(3, 2, name="first"),
        keras.layers.Conv2D(3, 2, name="second"), keras.layers.Flatten(), keras.layers.Dense(2),
    ])  # fmt: skip
    x = normals(4, 6, 7, 2)
    due = np.asarray(model(x))
    og.swap(model, {"first": SIGNED, keras.layers.Dense: UNSIGNED})
    og.calibrate(model, x)
    assert_covers(model.get_layer("first"), x)
    assert not hasattr(model.get_layer("second"), "arithmetic")
    og.restore(model)
    np.testing.assert_array_equal(model(x), due)


# ---- bad input -----------------------------------------------------------------------------


def assert_refused(model, data, text: str, **options) -> None:
    """Calibrating fails with this text, and every layer keeps the arithmetic that it had."""
    before = arithmetics(model)
    with pytest.raises(ArgumentError, match=text):
        og.calibrate(model, data, **options)
    assert len(before) == len(arithmetics(model))
    assert all(now is then for now, then in zip(arithmetics(model), before, strict=True))


def test_models_that_have_nothing_to_calibrate():
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)], name="plain")
    text = r"model 'plain' has no layer that quantizes its input; .*og\.swap\(model, og\.approx"
    assert_refused(plain, normals(3, 6), text)
    exact = keras.Sequential([keras.Input((6,)), dense(3, og.exact)], name="plain")
    assert_refused(exact, normals(3, 6), text)
    with pytest.raises(ArgumentError, match=r"str is no Keras model; load a saved one first"):
        og.calibrate("model.keras", normals(3, 6))


def test_a_layer_that_is_never_called():
    class Lazy(Subclassed):
        def build(self, shape):
            pass

        def call(self, x, training=False):
            return self.first(x)

    assert_refused(Lazy(), normals(3, 6), "layer '.*same' was not called, or the data is empty")


@pytest.mark.parametrize("data", [np.zeros((0, 6), np.float32), iter([])], ids=["array", "iter"])
def test_no_data(data):
    assert_refused(sequential(), data, "was not called, or the data is empty; nothing was changed")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 20, 39])
def test_inputs_that_are_no_numbers(value, row):
    x = normals(40, 6)
    x[row, 2] = value
    text = "layer '.*' is given NaN or infinities; nothing was changed"
    assert_refused(sequential(), x, text, batch_size=8)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "data is a NoneType; give an array, a list of arrays"),
        (3, "data is a int"),
        ("text", "data is a str"),
        ([], "data is a list"),
        (np.float32(3), "data is a float32"),
        ((normals(3, 6), np.zeros(3)), "data is a tuple; give the inputs alone"),
        ([normals(3, 6), normals(4, 6)], "the inputs have 3, 4 examples; they must have the same"),
    ],
)
def test_data_that_is_none(data, text):
    assert_refused(sequential(), data, f"calibrate: {text}")


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "32", None, True])
def test_sizes_of_batches_that_are_none(batch_size):
    text = f"batch_size={batch_size!r} must be a number above 0"
    assert_refused(sequential(), normals(3, 6), text, batch_size=batch_size)


@pytest.mark.parametrize("given", [None, 5, (1,), (2, 1), ("a", "b"), (0, np.inf), (np.nan, 1)])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_rule_that_gives_no_range(given, layer):
    """Whichever layer it fails for, none is changed."""
    model, calls = sequential(), []

    def rule(seen, quantizer):
        calls.append(seen)
        return given if len(calls) == layer + 1 else (-1, 1)

    text = r"layer '.*': the rule gave .*; it must give two finite numbers, the smaller one first"
    assert_refused(model, normals(3, 6), text, rule=rule)


def test_a_rule_that_is_no_function():
    text = r"rule='min_max' is no function; og.calibration has min_max, percentile"
    assert_refused(sequential(), normals(3, 6), text, rule="min_max")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
@pytest.mark.parametrize("where", ["data", "rule"])
def test_nothing_is_changed_when_it_is_interrupted(error, where):
    model = sequential()

    def interrupt(*_):
        raise error("now")

    def batches():
        yield normals(3, 6)
        interrupt()

    before = arithmetics(model)
    options = {"rule": interrupt} if where == "rule" else {}
    with pytest.raises(error, match="now"):
        og.calibrate(model, batches() if where == "data" else normals(3, 6), **options)
    assert all(now is then for now, then in zip(arithmetics(model), before, strict=True))
    og.calibrate(model, normals(3, 6))
    assert all(each.input.limit is not None for each in arithmetics(model))


def test_a_layer_inside_a_graph():
    class Inside(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = dense(3)

        def build(self, shape):
            self.dense.build(shape)

        def call(self, x):
            return tf.function(self.dense, autograph=False)(x)

    model = keras.Sequential([keras.Input((6,)), Inside()])
    assert_refused(model, normals(3, 6), "a layer runs inside a graph, where what it is given")
