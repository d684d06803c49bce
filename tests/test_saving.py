"""What is saved comes back in a new process: equal outputs, equal gradients, or a clear error."""

import copy
import ctypes
import functools
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import opgraft as og
from opgraft import values

KERNELS = pathlib.Path(og.__file__).parent / "kernels"
TESTS = pathlib.Path(__file__).parent
PROTOTYPE = (
    "void custom_matmul(const float *a, const float *b, int batch_size, int in_size, int out_size, "
    "float *out)"
)
SHAPE = (8, 9, 2)
FORMS = ("layers.keras", "operations.keras", "layers.export", "layers.saved")

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler called cc")


# ---- models --------------------------------------------------------------------


def build_library(path, factor=1):
    """A matrix product times `factor`, compiled; another factor makes another library."""
    source = (KERNELS / "matmul.c").read_text().replace("+= a_row", f"+= {factor}.0f * a_row")
    text = path.with_suffix(".c")
    text.write_text(source)
    part = path.with_suffix(".part")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", part, text], check=True)
    part.replace(path)  # as linkers do: never into a file that a process has mapped
    return path


def layers_model(arithmetic):
    """One layer of each kind; no two weights have one shape."""
    keras.utils.set_random_seed(6)
    layers = functools.partial
    kinds = [
        layers(og.layers.SeparableConv2D, 4, 3, depth_multiplier=3, activation="relu"),
        layers(og.layers.DepthwiseConv2D, 2, depth_multiplier=2),
        layers(og.layers.Conv2D, 5, (3, 2), strides=2, padding="same", activation="relu"),
        layers(keras.layers.Reshape, (9, 5)),
        layers(og.layers.Conv1D, 6, 3, padding="causal"),
        layers(og.layers.EinsumDense, "abc,cd->abd", (9, 7), bias_axes="d"),
        layers(keras.layers.Flatten),
        layers(og.layers.Dense, 3),
    ]
    model = keras.Sequential([keras.Input(SHAPE)])
    for kind in kinds:
        ours = kind.func.__module__.startswith("opgraft")
        model.add(kind(arithmetic=arithmetic) if ours else kind())
    rng = np.random.default_rng(2)
    model.set_weights([rng.normal(0, 0.5, weight.shape) for weight in model.weights])
    return model


def small_model(arithmetic):
    keras.utils.set_random_seed(8)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            og.layers.Conv2D(3, 4, strides=3, arithmetic=arithmetic),
            keras.layers.Flatten(),
            og.layers.Dense(2, arithmetic=arithmetic),
        ]
    )


def operations_model(arithmetic):
    """The operations themselves, called on KerasTensors."""
    rng = np.random.default_rng(3)

    def constant(*shape):
        return rng.normal(0, 0.5, shape).astype("float32")

    keras.utils.set_random_seed(7)
    symbol = keras.Input(SHAPE)
    pads = ((1, 0), (2, 1))
    x = og.conv2d(
        symbol,
        constant(3, 2, 2, 4),
        arithmetic=arithmetic,
        strides=(2, 1),
        padding=pads,
        pad_value=0.5,
    )
    x = og.depthwise_conv2d(x, constant(2, 3, 4, 2), arithmetic=arithmetic, padding="SAME")
    x = keras.layers.Reshape((-1, 8))(x)
    x = og.conv1d(x, constant(3, 4, 6), arithmetic=arithmetic, padding="CAUSAL", groups=2)
    x = og.matmul(x, constant(5, 6), arithmetic=arithmetic, transpose_b=True)
    x = og.matmul(x, x, arithmetic=arithmetic, transpose_a=True)
    return keras.Model(symbol, keras.layers.Dense(3)(keras.layers.Flatten()(x)))


def inputs():
    return np.random.default_rng(1).normal(size=(5, *SHAPE)).astype("float32")


def save(folder, arithmetic, build=layers_model):
    model = build(arithmetic)
    model.save(folder / "layers.keras")
    model.export(folder / "layers.export", verbose=False)
    tf.saved_model.save(model, folder / "layers.saved")
    operations = operations_model(arithmetic)
    operations.save(folder / "operations.keras")
    return {"layers": model, "operations": operations}


def outcome(function, weights, x):
    """The outputs, and the gradients for the input and for each weight, by its shape."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
        upstream = np.random.default_rng(5).normal(size=y.shape).astype("float32")
        loss = tf.reduce_sum(y * upstream)
    shapes = [str(tuple(weight.shape)) for weight in weights]
    assert len(set(shapes)) == len(shapes)
    input_gradient, *gradients = tape.gradient(loss, [x, *weights])
    named = {"outputs": y, "input": input_gradient, **dict(zip(shapes, gradients, strict=True))}
    return {name: value.numpy() for name, value in named.items()}


def outcome_of_model(model, x):
    return outcome(model, [weight.value for weight in model.trainable_weights], x)


def outcome_as_in(form, models):
    """Of the model that was saved, run as its form is: SavedModels are graphs, where oneDNN fuses
    the gradients of kernel and bias and sums them in another order than operation by operation."""
    model = models[form.split(".")[0]]
    function = model if form.endswith(".keras") else tf.function(model)
    return outcome(function, [weight.value for weight in model.trainable_weights], inputs())


def load_outcome(path):
    """Load what `save` wrote, and run it."""
    path = pathlib.Path(path)
    if path.suffix == ".keras":
        return outcome_of_model(keras.models.load_model(path), inputs())
    loaded = tf.saved_model.load(path)
    if path.suffix == ".export":
        return outcome(loaded.serve, loaded.trainable_variables, inputs())
    serving = loaded.signatures["serving_default"]
    (name,) = serving.structured_input_signature[1]
    return outcome(
        lambda x: next(iter(serving(**{name: x}).values())), serving.trainable_variables, inputs()
    )


# ---- new processes -------------------------------------------------------------


def run(code, **variables):
    """Run a program that may use this file as `here`; give the last line that it printed."""
    code = f"import sys; sys.path.insert(0, {os.fspath(TESTS)!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def outcomes_or_errors(paths, result):
    """In a new process: load every path, write the outcomes to `result`, return the errors."""
    arrays, errors = {}, {}
    for path in paths:
        try:
            found = load_outcome(path)
        except Exception as error:
            errors[path] = [type(error).__name__, str(error)]
        else:
            arrays |= {f"{path}|{name}": value for name, value in found.items()}
    np.savez(result, **arrays)
    return errors


def loaded_elsewhere(paths, result, prelude="", **variables):
    """Outcomes and errors, by path, of a new process."""
    paths = [os.fspath(path) for path in paths]
    line = run(
        f"{prelude}\nimport json, test_saving as here\n"
        f"print(json.dumps(here.outcomes_or_errors({paths!r}, {os.fspath(result)!r})))",
        **variables,
    )
    outcomes = {}
    with np.load(result) as arrays:
        for key in arrays.files:
            path, name = key.split("|")
            outcomes.setdefault(path, {})[name] = arrays[key]
    return outcomes, json.loads(line)


def assert_same_bits(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """Models saved here, and what a new process makes of each form."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler called cc")
    folder = tmp_path_factory.mktemp("saved")
    arithmetic = og.c_function(build_library(folder / "product.so", 2), PROTOTYPE)
    models = save(folder, arithmetic)
    # Before it imports opgraft, the new process tries to read the exported model without it.
    prelude = (
        "import tensorflow as tf\n"
        f"try: tf.saved_model.load({os.fspath(folder / 'layers.export')!r})\n"
        f"except Exception as error: open({os.fspath(folder / 'plain')!r}, 'w').write(str(error))\n"
    )
    outcomes, errors = loaded_elsewhere(
        [folder / form for form in FORMS], folder / "result.npz", prelude
    )
    return folder, models, outcomes, errors


@pytest.mark.parametrize("form", FORMS)
def test_a_new_process_gives_the_same_bits(form, reloaded):
    folder, models, outcomes, errors = reloaded
    path = os.fspath(folder / form)
    assert errors.get(path) is None
    expected = outcome_as_in(form, models)
    assert np.ptp(expected["outputs"]) > 0.1
    assert_same_bits(outcomes[path], expected)


def test_without_opgraft_a_saved_model_names_the_operation_it_needs(reloaded):
    assert "Opgraft" in (reloaded[0] / "plain").read_text()


# ---- the same process ----------------------------------------------------------


@pytest.mark.parametrize("build", [layers_model, operations_model])
def test_keras_file(build, c_both, tmp_path):
    model = build(c_both)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [type(layer) for layer in again.layers] == [type(layer) for layer in model.layers]
    assert_same_bits(outcome_of_model(again, inputs()), outcome_of_model(model, inputs()))


@pytest.mark.parametrize("build", [layers_model, operations_model])
def test_clone_model(build, c_both):
    model = build(c_both)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert [type(layer) for layer in clone.layers] == [type(layer) for layer in model.layers]
    assert_same_bits(outcome_of_model(clone, inputs()), outcome_of_model(model, inputs()))


def test_weights_go_to_any_arithmetic_and_to_keras_itself(c_both, tmp_path):
    model = layers_model(c_both)
    model.save_weights(tmp_path / "model.weights.h5")
    exact = layers_model(og.exact)
    native = og.restore(layers_model(og.exact))
    for other in (exact, native):
        other.set_weights([np.zeros(weight.shape) for weight in other.weights])
        other.load_weights(tmp_path / "model.weights.h5")
        for ours, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(model(inputs()), other(inputs()), rtol=1e-4, atol=1e-4)


def test_training_goes_on_where_it_was_saved(c_both, tmp_path):
    x, y = inputs(), np.arange(5) % 3
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train(model):
        model.fit(x, y, batch_size=2, epochs=1, shuffle=False, verbose=0)

    model = layers_model(c_both)
    model.compile("adam", loss)
    train(model)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, again):
        train(each)
    assert again.optimizer.iterations == 6
    for ours, theirs in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_a_dense_einsum_of_symbols_is_saved_too(c_both, tmp_path):
    symbol = keras.Input((4, 5))
    kernel = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    model = keras.Model(symbol, og.einsum_dense("abc,cd->abd", symbol, kernel, arithmetic=c_both))
    assert model.output_shape == (None, 4, 3)
    model.save(tmp_path / "model.keras")
    x = np.random.default_rng(1).normal(size=(2, 4, 5)).astype("float32")
    np.testing.assert_allclose(model(x), x @ kernel, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(x), model(x))


def test_each_layer_keeps_its_own_arithmetic(c_matmul, c_both, tmp_path):
    kinds = [c_both, og.exact, c_matmul]
    model = keras.Sequential(
        [keras.Input((4,)), *(og.layers.Dense(3, arithmetic=arithmetic) for arithmetic in kinds)]
    )
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [layer.arithmetic for layer in again.layers] == kinds
    assert [layer.supports_jit for layer in again.layers] == [False, True, False]


# ---- libraries that are not what they were -------------------------------------


FLOATS = ctypes.POINTER(ctypes.c_float)


@ctypes.CFUNCTYPE(None, FLOATS, FLOATS, ctypes.c_int, ctypes.c_int, ctypes.c_int, FLOATS)
def in_memory(a, b, m, k, n, out):
    """A C function of this process that lies in no file."""
    left, right = np.ctypeslib.as_array(a, (m, k)), np.ctypeslib.as_array(b, (k, n))
    np.ctypeslib.as_array(out, (m, n))[:] = left @ right


@pytest.fixture(scope="module")
def displaced(tmp_path_factory):
    """Models saved here, their libraries changed, deleted or moved, then a new process."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler called cc")
    root = tmp_path_factory.mktemp("displaced")
    expected, paths = {}, []
    (root / "elsewhere").mkdir()
    for factor, case in enumerate(("rebuilt", "deleted", "moved", "moved and rebuilt"), 3):
        folder = root / case
        folder.mkdir()
        library = build_library(folder / f"product{factor}.so", factor)
        expected[case] = save(folder, og.c_function(library, PROTOTYPE), small_model)
        paths += [folder / form for form in FORMS]
        if "moved" in case:
            library = library.rename(root / "elsewhere" / library.name)
        if "rebuilt" in case:
            build_library(library, 10 * factor)
        if case == "deleted":
            library.unlink()
    paths.append(root / "memory" / "layers.keras")
    paths[-1].parent.mkdir()
    expected["memory"] = small_model(og.c_function(in_memory))
    with pytest.warns(UserWarning, match="lives in the memory of this process only"):
        expected["memory"].save(paths[-1])
    search = f"{root}:{root / 'elsewhere'}"
    outcomes, errors = loaded_elsewhere(paths, root / "result.npz", OPGRAFT_LIBRARY_PATH=search)
    return root, expected, outcomes, errors


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ["rebuilt", "moved and rebuilt"])
def test_a_rebuilt_library_is_refused(case, form, displaced):
    root, _, _, errors = displaced
    kind, text = errors[os.fspath(root / case / form)]
    assert kind == "LibraryError"
    folder = "elsewhere" if "moved" in case else case
    assert f"the library '{root / folder / 'product'}" in text
    assert "has changed since 'custom_matmul' was taken from it (SHA-256 was " in text
    assert "Call og.c_function again to use the new one, or put the old one back" in text


@pytest.mark.parametrize("form", FORMS)
def test_a_library_that_is_gone_is_named(form, displaced):
    root, _, _, errors = displaced
    kind, text = errors[os.fspath(root / "deleted" / form)]
    assert kind == "LibraryError"
    assert f"the library '{root / 'deleted' / 'product4.so'}' (SHA-256 " in text
    assert "that holds 'custom_matmul' cannot be read: No such file or directory" in text
    assert "name the folder where it lies now in OPGRAFT_LIBRARY_PATH" in text


@pytest.mark.parametrize("form", FORMS)
def test_the_search_path_finds_a_moved_library(form, displaced):
    root, expected, outcomes, errors = displaced
    path = os.fspath(root / "moved" / form)
    assert path not in errors
    assert_same_bits(outcomes[path], outcome_as_in(form, expected["moved"]))


@needs_compiler
def test_a_source_is_compiled_again_where_the_cache_is_empty(tmp_path):
    source = build_library(tmp_path / "product.so", 9).with_suffix(".c")
    layer = og.layers.Dense(3, arithmetic=og.c_function(source))
    model = keras.Sequential([keras.Input((4,)), layer])
    model.save(tmp_path / "model.keras")
    x = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
    line = run(
        "import json, keras, numpy as np, opgraft as og\n"
        f"def load(): return keras.models.load_model({os.fspath(tmp_path / 'model.keras')!r})\n"
        "try: error = load() and ''\n"
        "except og.errors.LibraryError as caught: error = str(caught)\n"
        f"og.c_function({os.fspath(source)!r})\n"
        f"print(json.dumps([error, load()(np.array({x.tolist()}, 'float32')).numpy().tolist()]))",
        OPGRAFT_CACHE_DIR=os.fspath(tmp_path / "cache"),
    )
    error, outputs = json.loads(line)
    # Either it is compiled by itself, or the error says how to have it compiled.
    assert error == "" or f"Call og.c_function('{source}', ...) once" in error
    np.testing.assert_array_equal(np.array(outputs, "float32"), model(x).numpy())


def test_a_function_in_memory_does_not_outlive_its_process(displaced):
    root, expected, _, errors = displaced
    path = root / "memory" / "layers.keras"
    again = keras.models.load_model(path)  # this process still has it
    assert_same_bits(
        outcome_of_model(again, inputs()), outcome_of_model(expected["memory"], inputs())
    )
    kind, text = errors[os.fspath(path)]
    assert kind == "LibraryError"
    assert "it lived in the memory of the process that saved this model" in text


# ---- values --------------------------------------------------------------------


@pytest.fixture(params=["exact", "c_matmul", "c_both"])
def arithmetic(request):
    return og.exact if request.param == "exact" else request.getfixturevalue(request.param)


def test_an_arithmetic_survives_every_way_of_copying_it(arithmetic):
    copies = [
        values.from_json(values.to_json(arithmetic)),
        values.from_config(json.loads(json.dumps(arithmetic.to_config()))),
        og.Arithmetic.from_config(arithmetic.get_config()),
        keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(arithmetic)),
        pickle.loads(pickle.dumps(arithmetic)),
        copy.deepcopy(arithmetic),
        copy.copy(arithmetic),
    ]
    assert all(each == arithmetic and hash(each) == hash(arithmetic) for each in copies)
    assert len({arithmetic, *copies}) == 1
    assert all(repr(each) == repr(arithmetic) for each in copies)


def test_arithmetics_are_equal_where_all_they_say_is_equal(c_matmul, c_conv2d, c_both):
    assert c_conv2d | c_matmul == c_both
    assert len({og.exact, og.Arithmetic(), c_matmul, c_conv2d, c_both}) == 4
    again = og.c_function(KERNELS / "matmul.c")
    assert again == c_matmul
    assert og.c_function(KERNELS / "matmul.c", thread_safe=False) != c_matmul
    assert og.c_function(KERNELS / "matmul.c", flags=["-O1"]) != c_matmul
    with pytest.raises(AttributeError, match="cannot assign"):
        c_matmul.product = og.exact.product


def test_a_value_of_an_unknown_type_is_refused():
    config = {**og.exact.to_config(), "product": {"type": "telepathy"}}
    with pytest.raises(
        og.errors.ArgumentError, match=r"'telepathy'.*not known.*c_function, .*exact"
    ):
        values.from_config(config)
