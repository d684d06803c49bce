"""swap and restore: an arithmetic goes into a finished model and comes out again."""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
from keras import layers

import opgraft as og

KERNELS = pathlib.Path(og.__file__).parent / "kernels"
SHAPE = (8, 9, 2)
KINDS = {
    "separable": layers.SeparableConv2D,
    "depthwise": layers.DepthwiseConv2D,
    "conv2d": layers.Conv2D,
    "conv1d": layers.Conv1D,
    "einsum": layers.EinsumDense,
    "dense": layers.Dense,
}


@pytest.fixture
def doubled(compile_c):
    """Every product twice what it should be: no one can take it for the exact one."""
    source = (KERNELS / "matmul.c").read_text()
    return og.c_function(compile_c(source.replace("+= a_row", "+= 2.0f * a_row")))


def chain():
    """Every kind of layer."""
    return [
        layers.SeparableConv2D(4, 3, activation="relu", name="separable"),
        layers.DepthwiseConv2D(2, depth_multiplier=2, name="depthwise"),
        layers.Conv2D(5, (3, 2), strides=2, padding="same", name="conv2d"),
        layers.Reshape((9, 5), name="reshape"),
        layers.Conv1D(6, 3, padding="causal", name="conv1d"),
        layers.EinsumDense("abc,cd->abd", (9, 7), bias_axes="d", name="einsum"),
        layers.Flatten(name="flatten"),
        layers.Dense(3, name="dense"),
    ]


class InLists(keras.Model):
    def __init__(self, steps):
        super().__init__()
        self.first = list(steps[:3])
        self.named = {"middle": steps[3], "then": steps[4]}
        self.rest = tuple(steps[5:])

    def call(self, x):
        for step in [*self.first, self.named["middle"], self.named["then"], *self.rest]:
            x = step(x)
        return x


def in_sequence(steps):
    return keras.Sequential([keras.Input(SHAPE), *steps])


def in_graph(steps):
    symbol = x = keras.Input(SHAPE)
    for step in steps:
        x = step(x)
    return keras.Model(symbol, x)


def nested(steps):
    """The middle of the chain is a model of its own, in a model of its own."""
    symbol = keras.Input(SHAPE)
    middle = keras.Sequential(steps[1:4], name="middle")
    outer = keras.Model(symbol, steps[4](middle(steps[0](symbol))), name="outer")
    return keras.Sequential([keras.Input(SHAPE), outer, *steps[5:]])


STYLES = {"sequential": in_sequence, "functional": in_graph, "nested": nested, "lists": InLists}


def network(style="sequential"):
    keras.utils.set_random_seed(5)
    model = STYLES[style](chain())
    model(inputs())
    rng = np.random.default_rng(4)
    model.set_weights([rng.normal(0, 0.5, weight.shape) for weight in model.weights])
    return model


def inputs(shape=SHAPE, count=5):
    return np.random.default_rng(1).normal(size=(count, *shape)).astype("float32")


def by_name(model):
    found = {layer.name: layer for layer in model._flatten_layers(include_self=False)}
    return {name: layer for name, layer in found.items() if name in KINDS}


def arithmetics(model):
    return {name: getattr(layer, "arithmetic", None) for name, layer in by_name(model).items()}


def assert_equal_to_rounding(ours, native):
    ours, native = np.asarray(ours), np.asarray(native)
    scale = np.abs(native).max()
    assert np.ptp(native) > 1e-3
    np.testing.assert_allclose(ours / scale, native / scale, rtol=0, atol=2e-5)


# ---- into every kind of model --------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_every_layer_becomes_its_counterpart_and_keeps_its_weights(style, c_both):
    model = network(style)
    before, weights = model(inputs()).numpy(), list(model.weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is left exact, so nothing is said
        assert og.swap(model, c_both) is model
    assert {name: type(layer) for name, layer in by_name(model).items()} == {
        name: getattr(og.layers, kind.__name__) for name, kind in KINDS.items()
    }
    assert set(arithmetics(model).values()) == {c_both}
    assert not any(layer.supports_jit for layer in by_name(model).values())
    assert all(now is then for now, then in zip(model.weights, weights, strict=True))
    assert_equal_to_rounding(model(inputs()), before)


@pytest.mark.parametrize("style", STYLES)
def test_restore_gives_back_the_very_model(style, doubled):
    model = network(style)
    before = model(inputs()).numpy()
    og.swap(model, doubled)
    assert np.abs(model(inputs()) - before).max() > 0.1
    assert og.restore(model) is model
    assert {name: type(layer) for name, layer in by_name(model).items()} == KINDS
    for layer in by_name(model).values():
        assert not hasattr(layer, "arithmetic")
        assert "arithmetic" not in layer.get_config()
        assert layer.supports_jit
    np.testing.assert_array_equal(model(inputs()), before)


def test_a_model_that_is_not_built_yet(doubled):
    model = keras.Sequential([layers.Dense(3, use_bias=False), layers.Dense(2, use_bias=False)])
    og.swap(model, doubled)
    x = inputs((4,))
    y = model(x)
    a, b = model.get_weights()
    np.testing.assert_allclose(y, 4 * (x @ a @ b), rtol=1e-5, atol=1e-5)


def test_shared_layers_several_inputs_and_outputs(doubled):
    shared = layers.Dense(4, use_bias=False, name="shared")
    inner_input = keras.Input((4,))
    inner = keras.Model(inner_input, layers.Dense(3, use_bias=False, name="inner")(inner_input))
    left, right = keras.Input((5,)), keras.Input((5,))
    a, b = shared(left), shared(right)
    model = keras.Model([left, right], [inner(a), inner(layers.Add()([a, b])), b])
    x = [inputs((5,)), -2 * inputs((5,), 5) ** 2]
    before = [each.numpy() for each in model(x)]
    og.swap(model, doubled)
    for ours, native, factor in zip(model(x), before, (4, 4, 2), strict=True):
        np.testing.assert_allclose(ours, factor * native, rtol=1e-5, atol=1e-5)
    og.restore(model)
    for ours, native in zip(model(x), before, strict=True):
        np.testing.assert_array_equal(ours, native)


def test_layers_inside_other_layers(c_both, doubled):
    symbol = keras.Input((5, 6))
    x = layers.MultiHeadAttention(2, 3)(symbol, symbol)
    x = layers.TimeDistributed(layers.Dense(4, name="each"))(x)
    model = keras.Model(symbol, x)
    before = model(inputs((5, 6))).numpy()
    with pytest.warns(UserWarning, match=r"stay exact.*\(MultiHeadAttention"):
        og.swap(model, c_both)  # its products of activations have no kernel
    kinds = [type(layer) for layer in model._flatten_layers(include_self=False)]
    assert kinds.count(og.layers.EinsumDense) == 4  # query, key, value and output
    assert kinds.count(og.layers.Dense) == 1
    assert_equal_to_rounding(model(inputs((5, 6))), before)
    og.swap(model, {"each": og.exact, layers.EinsumDense: doubled})
    assert np.abs(model(inputs((5, 6))) - before).max() > 0.1


# ---- rules ---------------------------------------------------------------------


def small():
    keras.utils.set_random_seed(2)
    return keras.Sequential(
        [
            keras.Input((6, 7, 3)),
            layers.Conv2D(4, 3, name="conv_a"),
            layers.Conv2D(4, 3, name="conv_b"),
            layers.Flatten(name="flatten"),
            layers.Dense(5, name="dense_a"),
            layers.Dense(2, name="dense_b"),
        ]
    )


def chosen(model):
    found = {layer.name: getattr(layer, "arithmetic", None) for layer in model.layers}
    return {name: arithmetic for name, arithmetic in found.items() if name != "flatten"}


def test_a_name_goes_before_a_glob_and_a_glob_before_a_class(c_matmul, c_both, doubled):
    rules = {layers.Conv2D: c_both, "conv_*": doubled, "conv_a": c_matmul, "*_b": og.exact}
    for order in itertools.permutations(rules):
        model = og.swap(small(), {rule: rules[rule] for rule in order})
        globs = [rule for rule in order if rule in ("conv_*", "*_b")]
        assert chosen(model) == {
            "conv_a": c_matmul,
            "conv_b": rules[globs[0]],  # among equals the first one counts
            "dense_a": None,
            "dense_b": og.exact,
        }


def test_layers_that_no_rule_matches_stay_as_they_are(c_both):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = og.swap(small(), {layers.Dense: c_both})
    kept, swapped = [layers.Conv2D] * 2 + [layers.Flatten], [og.layers.Dense] * 2
    assert [type(layer) for layer in model.layers] == kept + swapped


def test_a_base_class_matches_what_derives_from_it(c_both, c_matmul):
    model = og.swap(small(), {keras.Layer: c_both, layers.Dense: c_matmul})
    assert set(chosen(model).values()) == {c_both}  # among classes, too, the first one counts


def test_our_own_class_is_the_keras_class_in_rules(c_both):
    for _ in range(2):  # plain layers, then swapped ones
        model = og.swap(small(), {og.layers.Conv2D: c_both})
        assert chosen(model) == {
            "conv_a": c_both,
            "conv_b": c_both,
            "dense_a": None,
            "dense_b": None,
        }
        og.swap(model, {layers.Conv2D: og.exact})
        assert chosen(model)["conv_a"] == og.exact
    assert chosen(og.swap(small(), c_both, exclude=[og.layers.Conv2D]))["conv_a"] is None


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        (["conv_a"], {"conv_a"}),
        ("conv_a", {"conv_a"}),
        (["*_b"], {"conv_b", "dense_b"}),
        ([layers.Dense], {"dense_a", "dense_b"}),
        (layers.Dense, {"dense_a", "dense_b"}),
        (("dense_a", layers.Conv2D), {"conv_a", "conv_b", "dense_a"}),
    ],
)
def test_exclusions(exclude, left, c_both):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what the user excludes needs no warning
        model = og.swap(small(), c_both, exclude=exclude)
    assert {name for name, arithmetic in chosen(model).items() if arithmetic is None} == left
    assert len(left) + list(chosen(model).values()).count(c_both) == 4


def test_an_exclusion_goes_before_any_rule(c_both):
    model = og.swap(small(), {"conv_a": c_both, "conv_*": c_both}, exclude=["conv_a"])
    assert chosen(model) == {"conv_a": None, "conv_b": c_both, "dense_a": None, "dense_b": None}


def test_a_swapped_model_can_be_swapped_again(c_both, doubled):
    model = small()
    x = inputs((6, 7, 3))
    before = model(x).numpy()
    og.swap(model, doubled)
    og.swap(model, {"dense_b": c_both})
    assert chosen(model) == dict.fromkeys(("conv_a", "conv_b", "dense_a"), doubled) | {
        "dense_b": c_both
    }
    og.swap(model, og.exact)
    assert all(layer.supports_jit for layer in model.layers)
    np.testing.assert_array_equal(model(x), before)
    og.swap(model, c_both)
    assert_equal_to_rounding(model(x), before)


def test_a_subclass_of_one_of_our_layers_takes_a_new_arithmetic(c_both):
    class Mine(og.layers.Dense):
        pass

    model = keras.Sequential([keras.Input((4,)), Mine(3), layers.Dense(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        og.swap(model, c_both)
    assert type(model.layers[0]) is Mine
    assert [layer.arithmetic for layer in model.layers] == [c_both, c_both]


# ---- training ------------------------------------------------------------------


def test_functions_are_traced_again(doubled, c_both):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x, zeros = inputs((4,)), np.zeros((5, 3))

    def seen():
        fit = model.fit(x, zeros, verbose=0).history["loss"][0]
        return fit, model.evaluate(x, zeros, verbose=0), model.predict(x, verbose=0)

    before = seen()
    for arithmetic, factor in ((doubled, 2), (c_both, 1), (doubled, 2)):
        og.swap(model, arithmetic)
        fit, evaluated, predicted = seen()
        assert fit == pytest.approx(factor**2 * before[0], rel=1e-5)
        assert evaluated == pytest.approx(factor**2 * before[1], rel=1e-5)
        np.testing.assert_allclose(predicted, factor * before[2], rtol=1e-5, atol=1e-6)
    og.restore(model)
    np.testing.assert_array_equal(model.predict(x, verbose=0), before[2])


@pytest.mark.parametrize("style", ["nested", "lists"])
def test_training_goes_on_with_the_optimizer_as_it_was(style, c_both):
    x, labels = inputs(), np.arange(5) % 3
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    native, swapped = network(style), network(style)
    for model in (native, swapped):
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
        model.fit(x, labels, batch_size=2, shuffle=False, verbose=0)
    state = [variable.numpy() for variable in swapped.optimizer.variables]
    og.swap(swapped, c_both)
    for now, then in zip(swapped.optimizer.variables, state, strict=True):
        np.testing.assert_array_equal(now, then)
    losses = [
        model.fit(x, labels, batch_size=2, shuffle=False, verbose=0).history["loss"][0]
        for model in (native, swapped)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert swapped.optimizer.iterations == 6
    for ours, theirs in zip(swapped.get_weights(), native.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


# ---- saving --------------------------------------------------------------------


@pytest.mark.parametrize("style", ["sequential", "functional", "nested"])
def test_a_swapped_model_is_saved_as_such(style, doubled, tmp_path):
    model = og.swap(network(style), {"*d*": doubled, layers.Conv1D: og.exact})
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert arithmetics(again) == arithmetics(model)
    assert len(set(arithmetics(again).values())) == 2
    np.testing.assert_array_equal(again(inputs()), model(inputs()))
    og.restore(again)
    assert {name: type(layer) for name, layer in by_name(again).items()} == KINDS


def test_a_restored_model_needs_no_opgraft(c_both, tmp_path):
    """A new process that never imports opgraft reads the `.keras` file and the export."""
    model = og.restore(og.swap(network("nested"), c_both))
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "export", verbose=False)
    np.save(tmp_path / "x.npy", inputs())
    code = (
        "import sys, json, os, keras, numpy as np, tensorflow as tf\n"
        f"os.chdir({os.fspath(tmp_path)!r})\n"
        "x = tf.constant(np.load('x.npy'))\n"
        "model, export = keras.models.load_model('model.keras'), tf.saved_model.load('export')\n"
        "found = model(x), export.serve(x)\n"
        "assert 'opgraft' not in sys.modules\n"
        "print(json.dumps([each.numpy().tolist() for each in found]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for found in json.loads(done.stdout.splitlines()[-1]):
        np.testing.assert_allclose(found, model(inputs()), rtol=1e-5, atol=1e-5)


def test_a_model_built_with_our_layers_can_be_restored(c_both):
    model = keras.Sequential(
        [
            keras.Input((6, 7, 3)),
            og.layers.Conv2D(4, 3, activation="relu", arithmetic=c_both),
            layers.Flatten(),
            og.layers.Dense(3, arithmetic=c_both),
        ]
    )
    x = inputs((6, 7, 3))
    before = model(x).numpy()
    og.restore(model)
    assert [type(layer) for layer in model.layers] == [layers.Conv2D, layers.Flatten, layers.Dense]
    assert_equal_to_rounding(model(x), before)
    clone = keras.models.clone_model(model)
    assert [type(layer) for layer in clone.layers] == [type(layer) for layer in model.layers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras names the layers that it cannot quantize
        model.quantize("int8")
    assert model.layers[-1].quantization_mode == "int8"


# ---- everything is checked before anything is changed --------------------------


def state(model):
    everything = list(model._flatten_layers(include_self=False))
    return [(type(layer), getattr(layer, "arithmetic", None)) for layer in everything] + [
        getattr(model, name) for name in ("train_function", "test_function", "predict_function")
    ]


def assert_refused(model, arithmetic, match, error=og.errors.ArgumentError, **options):
    before = state(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error, match=match) as caught:
            og.swap(model, arithmetic, **options)
    assert state(model) == before
    return str(caught.value)


def test_every_layer_that_cannot_be_served_is_listed(c_conv2d, c_both):
    model = in_sequence(
        [
            layers.Conv2D(3, 2, name="plain"),
            layers.Conv2D(3, 2, dilation_rate=2, name="dilated"),
            layers.Reshape((30, 3)),
            layers.Conv1D(3, 2, dilation_rate=2, padding="causal", name="causal"),
            layers.EinsumDense("abc,cd->abd", (30, 4), name="einsum"),
            layers.Flatten(),
            layers.Dense(2, name="dense"),
        ]
    )
    model.compile("sgd", "mse")
    model.predict(inputs(), verbose=0)
    text = assert_refused(model, c_conv2d, "cannot serve these layers; nothing was changed")
    for words in ("dilated (Conv2D)", "causal (Conv1D)", "einsum (EinsumDense)", "dense (Dense)"):
        assert f"- {words}: custom_conv2d" in text
    assert "plain" not in text
    assert "exclude the layers" in text
    og.swap(model, c_both)
    assert_refused(model, {"d*": c_conv2d, "plain": og.exact}, "cannot serve these layers")
    og.swap(model, c_conv2d, exclude=["dilated", "causal", "einsum", "dense"])
    assert chosen(model)["plain"] == c_conv2d


def test_rules_and_exclusions_that_match_nothing(c_both):
    names = r"conv_a \(Conv2D\), conv_b \(Conv2D\), dense_a \(Dense\), dense_b \(Dense\)"
    refused = r"matches no layer that can be swapped.*"
    model = small()
    assert_refused(
        model, {"conv_*": c_both, "conv_c": c_both}, f"the rule 'conv_c' {refused}{names}"
    )
    assert_refused(model, {"flatten": c_both}, f"the rule 'flatten' {refused}")
    assert_refused(model, {layers.Conv1D: c_both}, f"the rule 'Conv1D' {refused}{names}")
    assert_refused(model, c_both, f"the exclusion 'pool_.' {refused}", exclude=["pool_*"])
    assert_refused(model, c_both, f"the exclusion 'Conv1D' {refused}", exclude=layers.Conv1D)
    assert_refused(model, {"conv_a": c_both}, "every matching layer is excluded", exclude="conv_a")


def test_models_that_have_nothing_to_swap(c_both):
    model = keras.Sequential([keras.Input((4, 3)), layers.Flatten(), layers.ReLU()], name="bare")
    text = (
        "model 'bare' has no layer that can be swapped; those that can: Dense, EinsumDense, Conv1D"
    )
    assert_refused(model, c_both, text)
    with pytest.raises(og.errors.ArgumentError, match="'bare' has no layer with an arithmetic"):
        og.restore(model)


@pytest.mark.parametrize("model", ["model", None, 3, [layers.Dense(3)]])
def test_what_is_not_a_model_is_refused(model, c_both):
    with pytest.raises(og.errors.ArgumentError, match="model"):
        og.swap(model, c_both)
    with pytest.raises(og.errors.ArgumentError, match="model"):
        og.restore(model)


def test_arguments_of_a_wrong_type(c_both):
    model = small()
    assert_refused(model, "fast", "arithmetic='fast' is a str; it must be an og.Arithmetic")
    assert_refused(model, {"conv_a": c_both, "conv_b": "fast"}, r"conv_b.*'fast'|'fast'.*conv_b")
    assert_refused(model, {}, "the rules are empty")
    assert_refused(
        model, {3: c_both}, "the rule 3 must be a layer's name, a glob over names or a class"
    )
    assert_refused(model, {int: c_both}, "the rule <class 'int'> must be a layer's name")
    assert_refused(
        model, {model.layers[0]: c_both}, "the rule <Conv2D name=conv_a.*must be a layer's"
    )
    assert_refused(model, c_both, "the rule 3 must be a layer's name", exclude=[3])
    assert_refused(model, c_both, "exclude", exclude=3)


def test_a_model_that_keras_has_quantized_is_refused(c_both):
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, name="a"), layers.Dense(2, name="b")]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.quantize("int8")
    text = assert_refused(model, c_both, "quantized by Keras", og.errors.OpgraftError)
    assert "layer 'a'" in text
    assert "layer 'b'" in text


# ---- what stays exact is named -------------------------------------------------


def test_layers_that_stay_exact_are_named(c_both):
    class Mine(layers.Dense):
        pass

    model = keras.Sequential(
        [
            keras.Input((5, 6, 3)),
            layers.Conv2DTranspose(3, 2, name="up"),
            layers.BatchNormalization(name="norm"),
            layers.Conv2D(4, 3, name="conv"),
            layers.Reshape((-1, 4)),
            layers.Bidirectional(layers.LSTM(3, name="memory")),
            Mine(4, name="mine"),
        ]
    )
    with pytest.warns(UserWarning, match="stay exact, og.layers has no counterpart") as caught:
        og.swap(model, c_both)
    (warning,) = caught
    text = str(warning.message)
    for words in ("up (Conv2DTranspose)", "LSTMCell", "mine (Mine)"):
        assert words in text
    for word in ("norm", "conv (", "reshape"):
        assert word not in text
    assert warning.filename == __file__  # it points at the caller


# ---- networks that people use --------------------------------------------------


def spread(model):
    """Weights under which signals neither die nor explode, and nothing is plain 0 or 1."""
    rng = np.random.default_rng(6)
    for weight in model.weights:
        shape, name = weight.shape, weight.path.rpartition("/")[2]
        if name == "kernel":
            fan_in = np.prod(shape[:2] if "depthwise" in weight.path.lower() else shape[:-1])
            weight.assign(rng.normal(0, np.sqrt(2 / fan_in), shape))
        elif name in ("gamma", "moving_variance"):
            weight.assign(rng.uniform(0.5, 1.5, shape))
        else:
            weight.assign(rng.normal(0, 0.1, shape))


def check_network(model, shape, *arithmetics):
    spread(model)
    x = inputs(shape, 2)
    before = model(x).numpy()
    for arithmetic in arithmetics:
        og.swap(model, arithmetic)
        assert_equal_to_rounding(model(x), before)
    og.restore(model)
    np.testing.assert_array_equal(model(x), before)


def test_mobilenet(c_both):
    keras.utils.set_random_seed(1)
    options = {"alpha": 0.35, "weights": None, "classes": 7, "classifier_activation": None}
    model = keras.applications.MobileNetV2((32, 32, 3), **options)
    check_network(model, (32, 32, 3), og.exact, c_both)


def test_resnet50(c_both):
    keras.utils.set_random_seed(1)
    options = {"weights": None, "classes": 7, "classifier_activation": None}
    model = keras.applications.ResNet50(input_shape=(40, 36, 3), **options)
    check_network(model, (40, 36, 3), og.exact, c_both)


@pytest.mark.parametrize("kind", ["exact", "c"])
def test_trained_resnet8(kind, c_both, shared_data):
    path = shared_data / "resnet8_cifar10.h5"
    if not path.is_file():
        pytest.skip("../shared/data/resnet8_cifar10.h5 is not there")
    model = keras.models.load_model(path, compile=False)
    x = np.random.default_rng(0).uniform(0, 255, (4, 32, 32, 3)).astype("float32")
    logits = keras.Model(model.inputs, model.layers[-1].input)  # the softmax would hide errors
    before, head = model.predict(x, verbose=0), logits.predict(x, verbose=0)
    arithmetic = og.exact if kind == "exact" else c_both
    og.swap(model, arithmetic)
    assert [type(layer) for layer in model.layers].count(og.layers.Conv2D) == 9
    np.testing.assert_allclose(model.predict(x, verbose=0), before, rtol=1e-3, atol=1e-5)
    og.swap(logits, arithmetic)
    assert_equal_to_rounding(logits.predict(x, verbose=0), head)
