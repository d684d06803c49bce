"""Every layer trains in `fit` as the Keras layer does: in each mode, kind of model and strategy."""

import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import opgraft as og

KERNELS = pathlib.Path(og.__file__).parent / "kernels"
BATCH, SAMPLES, CLASSES = 8, 22, 3  # the last batch has 6

# The layer that is to train, and the shape of its input.
KINDS = {
    "Dense": ({"units": 6, "activation": "relu"}, (7,)),
    "Conv1D": ({"filters": 4, "kernel_size": 3, "padding": "causal"}, (9, 3)),
    "Conv2D": ({"filters": 4, "kernel_size": (3, 2), "strides": 2, "padding": "same"}, (8, 7, 2)),
    "DepthwiseConv2D": ({"kernel_size": 3, "depth_multiplier": 2}, (7, 8, 2)),
    "SeparableConv2D": ({"filters": 5, "kernel_size": 2, "activation": "relu"}, (7, 6, 3)),
    "EinsumDense": ({"equation": "abc,cd->abd", "output_shape": (5, 6)}, (5, 4)),
}
# All of them, one after the other.
CHAIN = (
    ("SeparableConv2D", {"filters": 4, "kernel_size": 3, "activation": "relu"}),
    ("DepthwiseConv2D", {"kernel_size": 2, "depth_multiplier": 2}),
    ("Conv2D", {"filters": 5, "kernel_size": (3, 2), "strides": 2, "padding": "same"}),
    ("Reshape", {"target_shape": (9, 5)}),
    ("Conv1D", {"filters": 4, "kernel_size": 3, "padding": "causal", "activation": "relu"}),
    ("EinsumDense", {"equation": "abc,cd->abd", "output_shape": (9, 3), "bias_axes": "d"}),
    ("Flatten", {}),
    ("Dense", {"units": CLASSES}),
)
CHAIN_SHAPE = (8, 9, 2)
MODES = {
    "graph": {},
    "eager": {"run_eagerly": True},
    "steps_per_execution": {"steps_per_execution": 2},
}


def c_functions():
    return og.c_function(KERNELS / "matmul.c") | og.c_function(KERNELS / "conv2d.c")


def data(shape, samples=SAMPLES):
    """Noise, and in it a pattern for each class."""
    rng = np.random.default_rng(11)
    labels = rng.integers(0, CLASSES, samples)
    patterns = rng.normal(size=(CLASSES, *shape))
    x = patterns[labels] + 0.5 * rng.normal(size=(samples, *shape))
    return x.astype("float32"), labels


def layer(name, options, arithmetic):
    """The Keras layer without an arithmetic, ours with one."""
    if arithmetic is not None and hasattr(og.layers, name):
        return getattr(og.layers, name)(**options, arithmetic=arithmetic)
    return getattr(keras.layers, name)(**options)


def small_network(kind, arithmetic):
    keras.utils.set_random_seed(3)
    options, shape = KINDS[kind]
    dense = layer("Dense", {"units": CLASSES}, arithmetic)
    first = layer(kind, options, arithmetic)
    return keras.Sequential([keras.Input(shape), first, keras.layers.Flatten(), dense])


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def call(self, inputs):
        for step in self.steps:
            inputs = step(inputs)
        return inputs


def chain(arithmetic):
    keras.utils.set_random_seed(4)
    return [layer(name, options, arithmetic) for name, options in CHAIN]


def connected(steps):
    symbol = x = keras.Input(CHAIN_SHAPE)
    for step in steps:
        x = step(x)
    return symbol, x


def long_network(style, arithmetic):
    steps = chain(arithmetic)
    if style == "subclassed":
        return Subclassed(steps)
    if style == "sequential":
        return keras.Sequential([keras.Input(CHAIN_SHAPE), *steps])
    return keras.Model(*connected(steps))


def train(model, x, labels, epochs=3, optimizer=None, **mode):
    """The loss of every epoch."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = optimizer or keras.optimizers.SGD(0.05, momentum=0.9)
    model.compile(optimizer, loss, **mode)
    fit = model.fit(x, labels, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    return fit.history["loss"]


@functools.cache
def native_run(kind):
    model = small_network(kind, None)
    losses = train(model, *data(KINDS[kind][1]))
    return losses, model.get_weights()


def assert_same_weights(ours, native, eps=1e-4):
    assert len(ours) == len(native)
    for mine, theirs in zip(ours, native, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=eps, atol=eps)


# ---- one device ----------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_trains_as_the_keras_layer_does(kind, mode, c_both):
    native_losses, native_weights = native_run(kind)
    model = small_network(kind, c_both)
    start = model.get_weights()
    losses = train(model, *data(KINDS[kind][1]), **MODES[mode])
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, native_losses, rtol=1e-4)
    assert_same_weights(model.get_weights(), native_weights)
    moved = [
        np.abs(after - before).max()
        for after, before in zip(model.get_weights(), start, strict=True)
    ]
    assert min(moved) > 1e-3  # nothing is frozen


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_trains_in_mixed_precision(kind, c_both):
    x, labels = data(KINDS[kind][1])
    keras.config.set_dtype_policy("mixed_float16")
    try:
        models = [small_network(kind, arithmetic) for arithmetic in (None, c_both)]
        start = models[1].get_weights()
        losses = [train(model, x, labels, epochs=4) for model in models]
    finally:
        keras.config.set_dtype_policy("float32")
    native, ours = models
    assert isinstance(ours.optimizer, keras.optimizers.LossScaleOptimizer)
    assert ours.layers[0].compute_dtype == "float16"
    assert losses[1][-1] < losses[1][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-2)
    assert_same_weights(ours.get_weights(), native.get_weights(), 2e-2)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(start, ours.get_weights(), strict=True))


@functools.cache
def native_chain():
    model = long_network("functional", None)
    losses = train(model, *data(CHAIN_SHAPE), optimizer="adam")
    return losses, model.get_weights()


@pytest.mark.parametrize("style", ["functional", "sequential", "subclassed"])
def test_all_layers_train_together(style, c_both):
    x, labels = data(CHAIN_SHAPE)
    native_losses, native_weights = native_chain()
    model = long_network(style, c_both)
    losses = train(model, x, labels, optimizer="adam")
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, native_losses, rtol=1e-4)
    assert_same_weights(model.get_weights(), native_weights, 1e-3)
    predicted = model.predict(x, batch_size=BATCH, verbose=0)
    assert predicted.shape == (SAMPLES, CLASSES)
    np.testing.assert_allclose(predicted, model(x), rtol=1e-5, atol=1e-5)
    loss = model.loss(labels, model(x)).numpy()
    assert model.evaluate(x, labels, batch_size=BATCH, verbose=0) == pytest.approx(loss, rel=1e-5)


def test_a_dataset_of_unknown_shapes_trains(c_both):
    x, labels = data(KINDS["Conv2D"][1])
    batches = tf.data.Dataset.from_generator(
        lambda: ((x[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, SAMPLES, BATCH)),
        output_signature=(tf.TensorSpec((None, None, None, 2)), tf.TensorSpec((None,), tf.int64)),
    ).apply(tf.data.experimental.assert_cardinality(3))
    weights = []
    for arithmetic in (None, c_both):
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                layer("Conv2D", KINDS["Conv2D"][0], arithmetic),
                keras.layers.GlobalAveragePooling2D(),
                layer("Dense", {"units": CLASSES}, arithmetic),
            ]
        )
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(batches, epochs=2, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    assert_same_weights(weights[1], weights[0])


def test_frozen_layers_stay_and_the_others_train(c_both):
    model = long_network("sequential", c_both)
    for frozen in model.layers[:3]:
        frozen.trainable = False
    start = model.get_weights()
    train(model, *data(CHAIN_SHAPE), epochs=1)
    changed = [not np.array_equal(a, b) for a, b in zip(start, model.get_weights(), strict=True)]
    count = sum(len(frozen.weights) for frozen in model.layers[:3])
    assert not any(changed[:count])
    assert all(changed[count:])


# ---- XLA -----------------------------------------------------------------------


def test_keras_refuses_jit_for_c_functions_and_says_so(c_both):
    model = small_network("Conv2D", c_both)
    assert not any(each.supports_jit for each in model.layers if isinstance(each, og.layers.Conv2D))
    with pytest.warns(UserWarning, match="Model doesn't support `jit_compile=True`"):
        losses = train(model, *data(KINDS["Conv2D"][1]), jit_compile=True)
    assert model.jit_compile is False
    np.testing.assert_allclose(losses, native_run("Conv2D")[0], rtol=1e-4)


def test_exact_arithmetic_trains_under_jit():
    x, labels = data(CHAIN_SHAPE, 2 * BATCH)
    native, ours = (long_network("sequential", arithmetic) for arithmetic in (None, og.exact))
    expected = train(native, x, labels, epochs=2, jit_compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = train(ours, x, labels, epochs=2, jit_compile=True)
    assert ours.jit_compile is True
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert_same_weights(ours.get_weights(), native.get_weights())


REFUSAL = "which XLA cannot compile yet. Ask for jit_compile=False"


def test_a_function_compiled_by_xla_refuses_c_functions(c_both):
    x = tf.constant(data((5,))[0])
    kernel = tf.constant(data((5,), samples=5)[0])
    dense = og.layers.Dense(4, arithmetic=c_both)
    for compute in (
        lambda x: og.matmul(x, kernel, arithmetic=c_both),
        lambda x: tf.function(lambda y: og.matmul(y, kernel, arithmetic=c_both))(x),
        lambda x: dense(x),
    ):
        with pytest.raises(og.errors.UnsupportedError, match=REFUSAL):
            tf.function(compute, jit_compile=True)(x)
    exact = tf.function(lambda x: og.matmul(x, kernel, arithmetic=og.exact), jit_compile=True)
    np.testing.assert_allclose(exact(x), x @ kernel, rtol=1e-5, atol=1e-5)


def test_a_function_traced_before_xla_comes_is_refused_too(c_both):
    x = tf.constant(data((5,), samples=5)[0])
    traced = tf.function(lambda x: og.matmul(x, x, arithmetic=c_both))
    np.testing.assert_allclose(traced(x), x @ x, rtol=1e-5, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="OpgraftMatMul"):
        tf.function(lambda x: traced(x), jit_compile=True)(x)


def test_raw_operations_in_a_model_compiled_by_xla_are_refused(c_both):
    shape = KINDS["Conv2D"][1]
    symbol = keras.Input(shape)
    kernel = tf.constant(data((3, 3, 2), samples=4)[0].transpose(1, 2, 3, 0))
    y = keras.layers.Flatten()(og.conv2d(symbol, kernel, arithmetic=c_both, strides=2))
    model = keras.Model(symbol, keras.layers.Dense(CLASSES)(y))
    with pytest.raises(og.errors.UnsupportedError, match=REFUSAL):
        train(model, *data(shape), jit_compile=True)
    losses = train(model, *data(shape), jit_compile=False)
    assert losses[-1] < losses[0]


def test_a_model_compiled_for_xla_and_then_swapped_is_refused_too(c_both):
    x, labels = data(KINDS["Dense"][1])
    model = small_network("Dense", None)
    train(model, x, labels, epochs=1, jit_compile=True)
    og.swap(model, c_both)
    with pytest.raises(og.errors.UnsupportedError, match=REFUSAL):
        model.fit(x, labels, verbose=0)
    losses = train(model, x, labels, jit_compile="auto")
    assert losses[-1] < losses[0]


# ---- several devices, in processes of their own --------------------------------


def train_distributed(model, samples=SAMPLES):
    """Train on batches that the strategy shares out; give what is to be compared."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss)
    model.optimizer.build(model.trainable_variables)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = tf.data.Dataset.from_tensor_slices(data(CHAIN_SHAPE, samples)).batch(BATCH)
    fit = model.fit(batches.with_options(options), epochs=2, shuffle=False, verbose=0)
    return {
        "replicas": tf.distribute.get_strategy().num_replicas_in_sync,
        "losses": [float(np.mean(each)) for each in fit.history["loss"]],
        "weights": [weight.tolist() for weight in model.get_weights()],
    }


def mirrored():
    """Two logical processors: importing opgraft has not started TensorFlow yet."""
    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        processor, [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
    )
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        even = train_distributed(long_network("functional", c_functions()))
        # The last batch has one sample: the second device gets none.
        return even, train_distributed(long_network("functional", c_functions()), 2 * BATCH + 1)


class WorkerModel(keras.Model):
    """A model for several workers, by what Keras offers in public.

    Keras's `fit` fails on several workers for every model: it averages each result of
    a step along its first axis, and a loss has none; and it averages a batch to build
    a model that was made in the strategy's scope. So: an axis, and a model made outside.
    """

    def train_step(self, data):
        return {name: tf.expand_dims(value, 0) for name, value in super().train_step(data).items()}


def worker():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        symbol, y = connected(chain(c_functions()))
    model = WorkerModel(symbol, y)
    with strategy.scope():
        return [train_distributed(model)]


def start(function, **variables):
    """Run a function of this file in a new process."""
    code = (
        f"import sys; sys.path.insert(0, {os.fspath(pathlib.Path(__file__).parent)!r})\n"
        f"import json, test_training; print(json.dumps(test_training.{function}()))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def reports_of(process):
    try:
        output, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-3000:]
    return json.loads(output.splitlines()[-1])


def assert_trained_as_one_device_does(report):
    assert report["replicas"] == 2
    native = long_network("functional", None)
    losses = train(native, *data(CHAIN_SHAPE), epochs=2, optimizer=keras.optimizers.SGD(0.05))
    assert losses[-1] < losses[0]
    assert_same_weights(report["weights"], native.get_weights(), 1e-5)
    return losses


def test_two_mirrored_devices_train_as_one_native_device_does():
    # With oneDNN, TensorFlow fuses the gradients of kernel and bias, and writes none of a bias for
    # the empty batch of the second device: a plain Keras network fails in the same way.
    even, odd = reports_of(start("mirrored", TF_ENABLE_ONEDNN_OPTS="0"))
    losses = assert_trained_as_one_device_does(even)
    np.testing.assert_allclose(even["losses"], losses, rtol=0.05)  # a mean of the devices' means
    assert odd["losses"][1] < odd["losses"][0]
    assert all(np.isfinite(weight).all() for weight in odd["weights"])


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_two_workers_train_as_one_native_device_does():
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    settings = [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        for index in range(2)
    ]
    processes = [start("worker", TF_CONFIG=json.dumps(setting)) for setting in settings]
    try:
        (first,), (second,) = (reports_of(process) for process in processes)
    finally:
        for process in processes:
            process.kill()
    assert_trained_as_one_device_does(first)
    assert second["replicas"] == 2
    assert second["weights"] == first["weights"]
