"""Own gradients in files, in Keras models, and on several devices: equal in a new process."""

import functools
import json
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import TESTS
from test_custom_op import A, W, integers
from test_own_gradients import BOTH, MATMUL_VJP, registered_vjp
from test_saving import outcome_of_model, run

import opgraft as og
from opgraft.errors import UnsupportedError

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler called cc")

# ---- operations and layers, which a new process imports ---------------------------------------


def native_vjp(inputs, output, upstream):
    return (
        tf.matmul(upstream, inputs.w, transpose_b=True),
        tf.matmul(inputs.x, upstream, transpose_a=True),
    )


def strange_vjp(inputs, output, upstream):
    dx, dw = native_vjp(inputs, output, upstream)
    return 2 * dx, 3 * dw


def register(function):
    return keras.saving.register_keras_serializable("tests_of_gradients")(function)


@register
@og.custom_op(vjp=native_vjp)
def plain_product(x, w):
    return keras.ops.matmul(x, w)


@register
@og.custom_op(vjp=strange_vjp)
def strange_product(x, w):
    return keras.ops.matmul(x, w)


def optional_vjp(inputs, output, upstream, *, times, how, axis):
    return upstream * (10 * times if how == "ten" else times)


@register
@og.custom_op(vjp=optional_vjp)
def optional(x, times=1, how=None, axis=None):
    return x * times


def several_vjp(inputs, output, upstream):
    assert upstream["indices"] is None
    return upstream["pair"][0] + 5 * upstream["pair"][1]


@register
@og.custom_op(vjp=several_vjp)
def several(x):
    return {"pair": (2 * x, 3 * x), "indices": tf.argmax(x, -1)}


def through_numpy(inputs, output, upstream):
    return tf.numpy_function(lambda u: 3 * u, [upstream], tf.float32)


@og.custom_op(vjp=through_numpy)
def numpy_product(x):
    return 2 * x


def through_python(inputs, output, upstream):
    return tf.py_function(lambda u: 3 * u, [upstream], tf.float32)


@og.custom_op(vjp=through_python)
def python_product(x):
    return 2 * x


FACTOR = tf.Variable(3.0, trainable=False)


@og.custom_op(vjp=lambda inputs, output, upstream: upstream * FACTOR)
def variable_product(x):
    return 2 * x


@register
class CustomLayer(keras.layers.Layer):
    """The layer of the documentation: outputs of `out_dim` columns."""

    def __init__(self, out_dim, op=plain_product, **keywords):
        super().__init__(**keywords)
        self.out_dim, self.op = out_dim, op

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.out_dim), name="kernel")

    def call(self, x):
        return self.op(x, w=self.kernel)

    def get_config(self):
        strange = self.op is strange_product
        return {**super().get_config(), "out_dim": self.out_dim, "strange": strange}

    @classmethod
    def from_config(cls, config):
        op = strange_product if config.pop("strange", False) else plain_product
        return cls(**config, op=op)


# ---- in Keras -----------------------------------------------------------------------------


def test_the_example_layer_has_the_native_gradient_bit_for_bit():
    """(32, 16) -> 8."""
    x = tf.constant(np.random.default_rng(4).normal(size=(32, 16)), tf.float32)
    layer = CustomLayer(8)
    assert layer(x).shape == (32, 8)

    def gradients(function, kernel):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            loss = tf.reduce_mean(tf.sin(y))
        return y, *tape.gradient(loss, [x, kernel])

    kernel = layer.kernel.value
    for wrap in (lambda f: f, tf.function):
        ours = wrap(functools.partial(gradients, layer, kernel))()
        native = wrap(functools.partial(gradients, lambda x: tf.matmul(x, kernel), kernel))()
        for mine, due in zip(ours, native, strict=True):
            assert mine.numpy().tobytes() == due.numpy().tobytes()


def small_model(op=plain_product, dtype=None):
    keras.utils.set_random_seed(2)
    layers = [CustomLayer(5, op, dtype=dtype), keras.layers.ReLU(), CustomLayer(2, op, dtype=dtype)]
    return keras.Sequential([keras.Input((7,)), *layers])


def dense_model():
    model = keras.Sequential(
        [
            keras.Input((7,)),
            keras.layers.Dense(5, "relu", use_bias=False),
            keras.layers.Dense(2, use_bias=False),
        ]
    )
    model.set_weights(small_model().get_weights())
    return model


def data(rows=11):
    rng = np.random.default_rng(7)
    return rng.normal(size=(rows, 7)).astype("float32"), rng.normal(size=(rows, 2))


def fitted(model, **mode):
    model.compile(keras.optimizers.SGD(0.1), "mse", **mode)
    x, y = data()
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)  # the last batch has 3
    return model.get_weights()


@pytest.mark.parametrize(
    "mode", [{"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}]
)
def test_fit_trains_as_the_native_layers_do(mode):
    for ours, due in zip(fitted(small_model(), **mode), fitted(dense_model()), strict=True):
        np.testing.assert_allclose(ours, due, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_fit_uses_the_vjp_and_not_the_native_gradient(jit):
    model, native = small_model(strange_product), dense_model()
    x, y = data()
    model.layers[0].trainable = native.layers[0].trainable = False
    model.layers[2].kernel.assign(native.layers[1].kernel)
    before = model.layers[2].kernel.numpy()
    for one in (model, native):
        one.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit)
        one.fit(x, y, batch_size=11, epochs=1, verbose=0)
    step = native.layers[1].kernel.numpy() - before
    assert np.any(step)
    np.testing.assert_allclose(model.layers[2].kernel.numpy() - before, 3 * step, rtol=1e-3)


@pytest.mark.parametrize(
    ("policy", "jit"), [("mixed_float16", False), ("mixed_bfloat16", True), ("float64", False)]
)
def test_fit_under_dtype_policies(policy, jit):
    model = small_model(dtype=policy)
    before = model.get_weights()
    after = fitted(model, jit_compile=jit)
    assert model(data()[0]).dtype == model.layers[0].compute_dtype
    for old, new in zip(before, after, strict=True):
        assert np.all(np.isfinite(new))
        assert np.any(old != new)


def functional_model():
    symbol = keras.Input((7,))
    x = strange_product(symbol, integers(7, 4))
    x = optional(x, 3, how="ten", axis=None)
    out = several(x)
    x = keras.layers.Concatenate()([out["pair"][0], out["pair"][1], optional(x=x, times=2)])
    keras.utils.set_random_seed(9)
    return keras.Model(symbol, [keras.layers.Dense(3)(x), out["indices"]])


def first_output(model):
    return lambda x: model(x)[0]


def input_gradient(function, x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.sin(tf.nest.flatten(function(x))[0]))
    return tape.gradient(y, x).numpy()


def test_operations_on_keras_tensors():
    a = strange_product(x=keras.Input((7,)), w=integers(7, 4))
    assert isinstance(a, keras.KerasTensor)
    assert a.shape == (None, 4)
    out = several(a)
    assert set(out) == {"pair", "indices"}
    assert out["pair"][1].shape == (None, 4)
    assert out["indices"].dtype == "int64"
    both = strange_product(keras.Input((7,), batch_size=3), keras.Input((4,), batch_size=7))
    assert both.shape == (3, 4)
    kernel = keras.Variable(integers(7, 4))
    assert strange_product(keras.Input((7,)), w=kernel).shape == (None, 4)


def test_a_functional_model_differentiates_by_the_vjps():
    model = functional_model()
    dense = model.layers[-1]
    x = data()[0]
    y = x @ integers(7, 4)
    out = np.concatenate([2 * 3 * y, 3 * 3 * y, 2 * 3 * y], 1) @ dense.kernel.numpy()
    got = input_gradient(first_output(model), x)
    back = np.cos(out + dense.bias.numpy()) @ dense.kernel.numpy().T
    pair0, pair1, last = np.split(back, 3, 1)
    due = (pair0 + 5 * pair1 + 2 * last) * 30 @ integers(7, 4).T * 2
    np.testing.assert_allclose(got, due, rtol=1e-3, atol=1e-3)


def test_what_is_not_registered_is_not_saved(tmp_path):
    unregistered = og.custom_op(lambda x: 2 * x, vjp=lambda inputs, output, upstream: 3 * upstream)
    symbol = keras.Input((7,))
    model = keras.Model(symbol, unregistered(symbol))
    text = r"<lambda>' cannot be saved: only its name would be\. Decorate it with " \
        r'@keras\.saving\.register_keras_serializable\("your_package"\), so that a new process ' \
        r"finds it"  # fmt: skip
    with pytest.raises(UnsupportedError, match=f"the custom op .*{text}, above @og.custom_op"):
        model.save(tmp_path / "model.keras")
    gradient = og.gradients.custom(lambda inputs, output, upstream: inputs)
    layer = og.layers.Dense(2, arithmetic=og.Arithmetic(gradient=gradient))
    with pytest.raises(UnsupportedError, match=f"the vjp .*{text}"):
        keras.Sequential([keras.Input((7,)), layer]).save(tmp_path / "model.keras")


# ---- in files and new processes ---------------------------------------------------------------


class Module(tf.Module):
    """A function as a module; no size of its input is known."""

    def __init__(self, function, shape=(None, 3)):
        super().__init__()
        self.run = tf.function(function, input_signature=[tf.TensorSpec(shape)])


def in_control_flow(x):
    def body(i, y):
        return i + 1, tf.cond(i > 0, lambda: strange_product(y, np.eye(3, dtype="f")), lambda: y)

    return tf.while_loop(lambda i, y: i < 3, body, (0, x))[1]


class WithVariable(Module):
    def __init__(self):
        super().__init__(variable_product)
        self.factor = FACTOR


MODULES = {
    "product": lambda: Module(lambda x: strange_product(x, W)),
    "unknown rank": lambda: Module(lambda x: strange_product(x, W), None),
    "options": lambda: Module(lambda x: optional(x, times=4, how="ten")),
    "several": lambda: Module(lambda x: several(x)["pair"]),
    "control flow": lambda: Module(in_control_flow),
    "through NumPy": lambda: Module(numpy_product),
    "through Python": lambda: Module(python_product),
    "with a variable": WithVariable,
}
NOT_SAVED = {
    "through NumPy": "'numpy_product'",
    "through Python": "'python_product'",
    "with a variable": "'variable_product'",
}
MODELS = {
    "layers": lambda: small_model(strange_product),
    "functional": functional_model,
    "custom": lambda: dense_of(og.Arithmetic(gradient=og.gradients.custom(registered_vjp))),
    "by_contraction": lambda: dense_of(
        og.Arithmetic(gradient=og.gradients.by_contraction(twice(), og.gradients.same))
    ),
    "same": lambda: dense_of(
        og.c_function(
            TESTS / "c" / "scalar.c",
            "float twice(float a, float b)",
            gradient=og.gradients.by_contraction(og.gradients.same, None),
        )
    ),
    "C": lambda: dense_of(og.Arithmetic(gradient=og.gradients.c_function(MATMUL_VJP, BOTH))),
}


def twice():
    return og.c_function(TESTS / "c" / "scalar.c", "float twice(float a, float b)")


def dense_of(arithmetic):
    keras.utils.set_random_seed(6)
    layers = [
        og.layers.Dense(5, "relu", arithmetic=arithmetic),
        og.layers.Dense(2, arithmetic=arithmetic),
    ]
    return keras.Sequential([keras.Input((7,)), *layers])


def outcome(model):
    if len(model.outputs) > 1:
        return {"input": input_gradient(first_output(model), data()[0])}
    return outcome_of_model(model, data()[0])


def second_order(function):
    """The error of a second derivative, or "none"."""
    x = tf.constant(A)
    try:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.nest.flatten(function(x))[0]
            first = inner.gradient(y, x)
        outer.gradient(first, x)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


# Of two devices, which can only be made before TensorFlow starts.
NEW_PROCESS = """
import json
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import test_gradients_saved as here
print(json.dumps(here.in_a_new_process({folder!r})))
"""


def in_a_new_process(folder):
    """Load what the fixture saved; texts of what it does, and arrays in a file."""
    texts = {}
    arrays = {f"mirrored|{i}": weight for i, weight in enumerate(mirrored())}
    for name in MODULES:
        loaded = tf.saved_model.load(os.path.join(folder, name)).run
        for graph in (False, True):
            go = tf.function(input_gradient_in_graph) if graph else input_gradient_in_graph
            try:
                arrays[f"{name}|{graph}"] = go(loaded, tf.constant(A)).numpy()
            except Exception as error:
                texts[f"{name}|{graph}"] = f"{type(error).__name__}: {error}"
        texts[f"{name}|second"] = second_order(loaded)
    for name in MODELS:
        model = keras.models.load_model(os.path.join(folder, f"{name}.keras"))
        arrays |= {f"{name}|keras|{key}": value for key, value in outcome(model).items()}
        exported = tf.saved_model.load(os.path.join(folder, f"{name}.export"))
        arrays[f"{name}|export"] = input_gradient(exported.serve, data()[0])
    for name in ("changed", "gone"):
        for form, load in (("keras", keras.models.load_model), ("export", load_and_differentiate)):
            try:
                load(os.path.join(folder, f"{name}.{form}"))
            except Exception as error:
                texts[f"{name}|{form}"] = f"{type(error).__name__}: {error}"
    np.savez(os.path.join(folder, "arrays.npz"), **arrays)
    return texts


def input_gradient_in_graph(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nest.flatten(function(x))
        total = tf.add_n([tf.reduce_sum(tf.sin(part)) for part in y])
    return tape.gradient(total, x)


def load_and_differentiate(path):
    loaded = tf.saved_model.load(path)
    return input_gradient(loaded.serve, data()[0])


def save_with_a_library_of_its_own(folder, name):
    """Two models whose C source is then changed, or removed."""
    source = folder / f"{name}.c"
    source.write_text(f"int {name};\n{MATMUL_VJP.read_text()}")  # no other has these contents
    gradient = og.gradients.c_function(source, BOTH)
    model = dense_of(og.Arithmetic(gradient=gradient))
    model.save(folder / f"{name}.keras")
    model.export(folder / f"{name}.export", verbose=False)
    if name == "gone":
        source.unlink()
    else:
        source.write_text(source.read_text().replace("sum += dy", "sum += 2 * dy"))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """(arrays, texts) of a new process, and (modules, models) of this one."""
    folder = tmp_path_factory.mktemp("saved")
    modules = {name: make() for name, make in MODULES.items()}
    models = {name: make() for name, make in MODELS.items()}
    for name, module in modules.items():
        tf.saved_model.save(module, folder / name)
    for name, model in models.items():
        model.save(folder / f"{name}.keras")
        model.export(folder / f"{name}.export", verbose=False)
    for name in ("changed", "gone"):
        save_with_a_library_of_its_own(folder, name)
    line = run(NEW_PROCESS.format(folder=os.fspath(folder)))
    with np.load(folder / "arrays.npz") as arrays:
        return dict(arrays), json.loads(line), modules, models


@needs_compiler
@pytest.mark.parametrize("name", [name for name in MODULES if name not in NOT_SAVED])
def test_a_saved_module_keeps_its_gradient(name, elsewhere):
    arrays, texts, modules, _ = elsewhere
    due = input_gradient_in_graph(modules[name].run, tf.constant(A))
    for graph in (False, True):
        assert f"{name}|{graph}" not in texts
        np.testing.assert_array_equal(arrays[f"{name}|{graph}"], due)


@needs_compiler
@pytest.mark.parametrize("name", NOT_SAVED)
def test_a_gradient_that_cannot_be_saved_is_an_error_by_name(name, elsewhere):
    _, texts, modules, _ = elsewhere
    assert np.all(np.isfinite(input_gradient_in_graph(modules[name].run, tf.constant(A))))
    for graph in (False, True):
        text = texts[f"{name}|{graph}"]
        assert text.startswith("UnsupportedError: ")
        assert f"the gradient of {NOT_SAVED[name]} is not known here" in text
        assert "captures variables or leaves TensorFlow: differentiate the original model" in text


@needs_compiler
@pytest.mark.parametrize("name", [name for name in MODULES if name not in NOT_SAVED])
def test_the_second_order_of_a_saved_gradient_is_an_error_by_name(name, elsewhere):
    text = elsewhere[1][f"{name}|second"]
    assert text.startswith("UnsupportedError: ")
    assert (
        "was loaded from a saved model, which holds its gradient but not how to differentiate"
        in text
    )
    assert "Use the original model for second derivatives" in text
    op = {"options": "'optional'", "several": "'several'"}.get(name, "'strange_product'")
    assert op in text


@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_a_keras_file_keeps_its_gradients(name, elsewhere):
    arrays, _, _, models = elsewhere
    for key, due in outcome(models[name]).items():
        np.testing.assert_array_equal(arrays[f"{name}|keras|{key}"], due)


@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_keeps_its_gradients(name, elsewhere):
    arrays, _, _, models = elsewhere
    due = input_gradient(models[name], data()[0])
    np.testing.assert_allclose(arrays[f"{name}|export"], due, rtol=1e-6, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("form", ["keras", "export"])
@pytest.mark.parametrize(("name", "said"), [("changed", "has changed"), ("gone", "cannot be read")])
def test_a_gradient_whose_library_has_changed_is_refused(name, said, form, elsewhere):
    text = elsewhere[1][f"{name}|{form}"]
    assert f"{name}.c" in text
    assert said in text


def test_a_keras_file_loads_in_this_process_too(tmp_path):
    model = functional_model()
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for key, due in outcome(model).items():
        np.testing.assert_array_equal(outcome(again)[key], due)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(outcome(clone)["input"], outcome(model)["input"])


def test_a_saved_module_loads_in_this_process_too(tmp_path):
    module = MODULES["product"]()
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    np.testing.assert_array_equal(
        input_gradient_in_graph(loaded.run, tf.constant(A)),
        input_gradient_in_graph(module.run, tf.constant(A)),
    )


def test_a_function_compiled_by_xla_is_not_saved_with_its_gradient(tmp_path):
    module = tf.Module()
    module.run = tf.function(
        lambda x: strange_product(x, W),
        jit_compile=True,
        input_signature=[tf.TensorSpec([None, 3])],
    )
    with pytest.raises(ValueError, match=r"Error when tracing gradients for SavedModel"):
        tf.saved_model.save(module, tmp_path / "with")
    without = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, tmp_path / "without", options=without)
    loaded = tf.saved_model.load(tmp_path / "without")
    np.testing.assert_array_equal(loaded.run(A), A @ W)


# ---- several devices ---------------------------------------------------------------------------


def mirrored():
    """The weights after `fit` on two devices."""
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = small_model(strange_product)
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = data(8)
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


@needs_compiler
def test_mirrored_strategy(elsewhere):
    arrays = elsewhere[0]
    model = small_model(strange_product)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = data(8)
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    for i, due in enumerate(model.get_weights()):
        np.testing.assert_allclose(arrays[f"mirrored|{i}"], due, rtol=1e-4, atol=1e-6)
