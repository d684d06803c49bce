"""What quantizers remember: running ranges as weights of layers, as arguments of operations."""

import dataclasses
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

import opgraft as og
from opgraft import quantizers, values
from opgraft.backends.tensorflow import quantize
from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.quantizers import Affine, Scaled, State, Symmetric

MULTIPLIERS = {"signed": og.multipliers.broken_array(0, 0, 3, signed=True),
               "unsigned": og.multipliers.mitchell()}  # fmt: skip
RUNNING = {"signed": Symmetric(8, momentum=0.75), "unsigned": Affine(8, momentum=0.75)}
KINDS = {kind: og.approximate(MULTIPLIERS[kind], input=RUNNING[kind]) for kind in RUNNING}
every_kind = pytest.mark.parametrize("kind", KINDS)


def normals(*shape, seed=1, scale=1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.2, scale, shape).astype(np.float32)


def range_of(quantizer, x) -> tuple[float, ...]:
    """Its states after one tensor."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    return (low, high) if isinstance(quantizer, Affine) else (max(-low, high),)


def average(quantizer, tensors) -> np.ndarray:
    """Its states after several tensors, by the formula."""
    found = np.array(range_of(quantizer, tensors[0]))
    for each in tensors[1:]:
        found = quantizer.momentum * found + (1 - quantizer.momentum) * np.array(
            range_of(quantizer, each)
        )
    return found


def after(quantizer, states, x) -> list:
    states = [tf.constant(s, tf.float32) for s in states]
    return [float(s) for s in quantizer.next_states(states, x)]


def fixed(arithmetic, states) -> og.Arithmetic:
    """The same with the range that the states are, as one that is given."""
    return dataclasses.replace(arithmetic, input=arithmetic.input.with_states(states))


def remembered(layer) -> dict[str, float]:
    return {w.name: float(w.numpy()) for w in layer.remembered.weights}


def states_of(layer) -> list[float]:
    return list(remembered(layer).values())


# ---- quantizers ------------------------------------------------------------------------------


def test_what_is_declared():
    assert Symmetric(8).states == Affine(8).states == quantizers.identity.states == ()
    assert Symmetric(8, momentum=0.9).states == (State("limit", (), 0.0, False),)
    assert [s.name for s in Affine(8, momentum=0).states] == ["low", "high"]
    for quantizer in RUNNING.values():
        assert values.from_config(quantizer.to_config()) == quantizer
        assert quantizer.dynamic() == type(quantizer)(8)
        assert quantizer.calibrated(-1, 2).states == ()
    assert Symmetric(8).next_states((), np.ones(3)) == ()


@pytest.mark.parametrize("momentum", [-0.1, 1, 1.5, np.nan, "0.9", True])
@pytest.mark.parametrize("kind", [Symmetric, Affine])
def test_momenta_that_are_none(kind, momentum):
    with pytest.raises(
        ArgumentError, match=r"it must be a number from 0 to below 1, such as 0\.99"
    ):
        kind(8, momentum=momentum)


def test_one_range_only():
    for options in ({"limit": 1.0}, {"per_channel": True}):
        with pytest.raises(ArgumentError, match=r"momentum=\.\.\.\): give one of the two"):
            Symmetric(8, momentum=0.9, **options)
    with pytest.raises(ArgumentError, match="give a range or a momentum"):
        Affine(8, 0, 1, momentum=0.9)


@every_kind
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.99])
def test_the_average(kind, momentum):
    quantizer = dataclasses.replace(RUNNING[kind], momentum=momentum)
    tensors = [normals(4, 3 + i, seed=i, scale=1 + i) for i in range(6)]
    states = [0.0] * len(quantizer.states)
    for i, x in enumerate(tensors):
        states = after(quantizer, states, x)
        np.testing.assert_allclose(states, average(quantizer, tensors[: i + 1]), rtol=1e-5)


@every_kind
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e35])
def test_what_has_no_range_changes_nothing(kind, bad):
    quantizer, x = RUNNING[kind], normals(5, 3)
    states = after(quantizer, [0.0] * len(quantizer.states), x)
    spoilt = normals(64, 33, seed=2)
    spoilt[17, 5] = bad
    assert after(quantizer, states, spoilt) == states
    assert after(quantizer, states, np.zeros((0, 3), np.float32)) == states
    nothing = [0.0] * len(states)
    assert after(quantizer, nothing, spoilt) == nothing


@every_kind
def test_zeros_count_but_are_no_range_of_their_own(kind):
    quantizer, x = RUNNING[kind], normals(5, 3)
    nothing = [0.0] * len(quantizer.states)
    assert after(quantizer, nothing, np.zeros((2, 3), np.float32)) == nothing
    found = after(quantizer, nothing, x)
    np.testing.assert_allclose(found, range_of(quantizer, x))
    shrunk = after(quantizer, found, np.zeros((2, 3), np.float32))
    np.testing.assert_allclose(shrunk, np.multiply(found, 0.75), rtol=1e-6)


STATES = {
    "found": {"signed": [1.5], "unsigned": [-0.5, 1.25]},
    "unknown": {"signed": [0], "unsigned": [0, 0]},
    "tiny": {"signed": [1e-33], "unsigned": [-1e-33, 0]},
    "spoilt": {"signed": [np.nan], "unsigned": [np.nan, 1]},
    "negative": {"signed": [-1.0], "unsigned": [2, 1]},
    "one side": {"signed": [3], "unsigned": [1, 3]},
}  # fmt: skip


@every_kind
@pytest.mark.parametrize("which", STATES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("graph", [False, True])
def test_a_range_that_is_remembered_is_one_that_is_given(kind, which, dtype, graph):
    quantizer, states = RUNNING[kind], STATES[which][kind]
    x = normals(7, 5).astype(dtype)
    states = [np.asarray(s, dtype) for s in states]

    def run(x, *states):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = quantize.encode(quantizer, x, None, states)
        return (*found[:4], tape.gradient(found.values, x))

    if graph:
        shapes = [tf.TensorSpec(None, dtype), *[tf.TensorSpec([], dtype)] * len(states)]
        run = tf.function(run, input_signature=shapes, autograph=False)
    *found, gradient = run(tf.constant(x), *map(tf.constant, states))
    meaning = quantizer.with_states(states)
    assert meaning.states == ()
    assert (meaning == quantizer.dynamic()) == (which not in ("found", "one side"))
    for got, due in zip(found, meaning.encode(x), strict=True):
        np.testing.assert_array_equal(got, due)
    np.testing.assert_array_equal(gradient, meaning.passes(x))
    assert which != "found" or 0 < gradient.numpy().sum() < x.size


# ---- operations ------------------------------------------------------------------------------


def of_operations() -> dict:
    image, kernel = normals(2, 5, 6, 4), normals(3, 2, 2, 6, seed=2)
    return {
        "matmul": (og.matmul, normals(5, 7), normals(7, 3, seed=2), {}),
        "transposed": (og.matmul, normals(5, 7), normals(3, 7, seed=2), {"transpose_b": True}),
        "conv2d": (og.conv2d, image, kernel, {"groups": 2, "padding": "SAME", "strides": 2}),
        "depthwise": (og.depthwise_conv2d, image, normals(2, 3, 4, 2, seed=2), {}),
        "conv1d": (og.conv1d, normals(3, 9, 2), normals(3, 2, 5, seed=2), {"padding": "CAUSAL"}),
    }


@every_kind
@pytest.mark.parametrize("name", of_operations())
def test_operations_take_a_range(kind, name):
    operation, x, w, options = of_operations()[name]
    arithmetic, states = KINDS[kind], STATES["found"][kind]
    given = tuple(np.float32(s) for s in states)
    y = operation(x, w, arithmetic=arithmetic, state=(given, ()), **options)
    due = operation(x, w, arithmetic=fixed(arithmetic, states), **options)
    np.testing.assert_array_equal(y, due)
    alone = operation(x, w, arithmetic=arithmetic, **options)  # the operand's own range
    own = operation(x, w, arithmetic=fixed(arithmetic, ()), **options)
    np.testing.assert_array_equal(alone, own)
    assert np.any(np.asarray(y) != np.asarray(own))


@every_kind
def test_the_gradient_is_masked_by_the_range(kind):
    x, w, states = normals(6, 5), normals(5, 3, seed=2), STATES["found"][kind]
    given = tuple(tf.constant(s, tf.float32) for s in states)

    def gradients(arithmetic, state=None):
        a, b = tf.constant(x), tf.constant(w)
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            y = og.matmul(a, b, arithmetic=arithmetic, state=state)
            loss = tf.reduce_sum(y**2)
        return tape.gradient(loss, [a, b])

    found = gradients(KINDS[kind], (given, ()))
    for got, due in zip(found, gradients(fixed(KINDS[kind], states)), strict=True):
        np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-5)
    assert 0 < np.count_nonzero(found[0]) < x.size


def test_einsum_dense_and_functional_models():
    arithmetic, limit = KINDS["signed"], tf.constant(1.25)
    x, w = normals(2, 4, 5), normals(5, 3, seed=2)
    inputs = keras.Input((4, 5))
    state = ((limit,), ())
    y = og.einsum_dense("abc,cd->abd", inputs, w, arithmetic=arithmetic, state=state)
    z = og.matmul(inputs, w, arithmetic=arithmetic, state=state)
    model = keras.Model(inputs, [y, z])
    due = og.matmul(x, w, arithmetic=fixed(arithmetic, (1.25,)))
    for got in model(x):
        np.testing.assert_array_equal(got, due)


@pytest.mark.parametrize(
    "state", [3, (), ((), ()), ((1.0, 2.0), ()), ((1.0,), (1.0,)), ((np.ones(2),), ()), (None, ())],
    ids=str,
)  # fmt: skip
def test_states_that_do_not_fit(state):
    with pytest.raises(
        ArgumentError, match=r"of the kernel remember.*due.*\(\(limit \(\)\), \(\)\)"
    ):
        og.matmul(normals(2, 3), normals(3, 2), arithmetic=KINDS["signed"], state=state)


def test_gradients_that_would_quantize_anew():
    for gradient in (og.gradients.slopes(), og.gradients.custom(lambda i, o, u: i)):
        with pytest.raises(UnsupportedError, match="cannot know the range that a layer remembers"):
            dataclasses.replace(KINDS["signed"], gradient=gradient)
    same = og.gradients.by_contraction(og.gradients.same, og.gradients.same)
    layer = og.layers.Dense(3, arithmetic=dataclasses.replace(KINDS["signed"], gradient=same))
    x = tf.constant(normals(4, 5))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x, training=True) ** 2)
    assert np.isfinite(tape.gradient(loss, x)).all()


def test_verify():
    assert og.verify(KINDS["unsigned"]).passed


# ---- layers ----------------------------------------------------------------------------------


def of_layers() -> dict:
    native = keras.layers
    return {
        "Dense": (lambda: native.Dense(3, activation="tanh"), (5,)),
        "Dense of sequences": (lambda: native.Dense(3), (2, 5)),
        "EinsumDense": (lambda: native.EinsumDense("abc,cd->abd", (None, 3)), (4, 5)),
        "Conv1D": (lambda: native.Conv1D(4, 3, padding="causal"), (7, 2)),
        "Conv2D": (lambda: native.Conv2D(4, 3, strides=2, activation="relu"), (7, 6, 2)),
        "DepthwiseConv2D": (lambda: native.DepthwiseConv2D(2, depth_multiplier=2), (5, 4, 3)),
    }  # fmt: skip


every_layer = pytest.mark.parametrize("name", of_layers())


def batches(shape, count=3) -> list[np.ndarray]:
    return [normals(6, *shape, seed=i, scale=1 + i) for i in range(count)]


@every_kind
@every_layer
@pytest.mark.parametrize("when", ["built", "not built"])
def test_layers_own_and_train_their_ranges(kind, name, when):
    make, shape = of_layers()[name]
    keras.utils.set_random_seed(3)
    model = keras.Sequential([make()])
    if when == "built":
        model.build((None, *shape))
    og.swap(model, KINDS[kind])
    layer, xs = model.layers[0], batches(shape)
    y = model(xs[0], training=False)
    assert states_of(layer) == [0.0] * len(RUNNING[kind].states)
    np.testing.assert_array_equal(y, fixed_layer(layer, ())(xs[0]))  # its own range
    for i, x in enumerate(xs):
        y = model(x, training=True)
        due = average(RUNNING[kind], xs[: i + 1])
        np.testing.assert_allclose(states_of(layer), due, rtol=1e-5)
        np.testing.assert_array_equal(y, fixed_layer(layer, states_of(layer))(x))
    before = remembered(layer)
    assert list(before) == [f"input_{state.name}" for state in RUNNING[kind].states]
    y = model.predict(xs[2], verbose=0)
    np.testing.assert_allclose(y, fixed_layer(layer, list(before.values()))(xs[2]), atol=1e-5)
    assert remembered(layer) == before


def fixed_layer(layer, states):
    """A layer of the same weights with a given range."""
    config = {**layer.get_config(), "arithmetic": fixed(layer.arithmetic, states)}
    made = type(layer).from_config(config)
    made.build(layer.get_build_config()["input_shape"])
    kernels = [w for w in layer.weights if "remembered" not in w.path]
    made.set_weights([w.numpy() for w in kernels])
    return made


def test_a_separable_convolution_has_a_range_for_each_contraction():
    layer = og.layers.SeparableConv2D(3, 2, depth_multiplier=2, arithmetic=KINDS["signed"])
    xs = batches((5, 6, 3))
    between = []
    for x in xs:
        layer(x, training=True)
        how = {"arithmetic": KINDS["signed"], "state": ((layer.remembered.weights[0],), ())}
        between.append(np.asarray(og.depthwise_conv2d(x, layer.depthwise_kernel, **how)))
    due = [average(RUNNING["signed"], each)[0] for each in (xs, between)]
    found = remembered(layer)
    assert list(found) == ["depthwise_input_limit", "pointwise_input_limit"]
    np.testing.assert_allclose(list(found.values()), due, rtol=1e-5)


def test_kernels_can_have_a_range_too():
    arithmetic = og.approximate(MULTIPLIERS["signed"], kernel=Symmetric(8, momentum=0.5))
    layer = og.layers.Dense(3, arithmetic=arithmetic)
    layer(normals(4, 5), training=True)
    limit = abs(layer.kernel.numpy()).max()
    assert remembered(layer) == {"kernel_limit": pytest.approx(limit)}


def test_what_is_frozen_keeps_its_range():
    layer = og.layers.Dense(3, arithmetic=KINDS["signed"])
    layer(normals(4, 5), training=True)
    before = remembered(layer)
    layer.trainable = False
    layer(10 * normals(4, 5), training=True)
    assert remembered(layer) == before
    assert layer.trainable_weights == []


def test_one_bad_batch_spoils_no_range():
    layer, x = og.layers.Dense(3, arithmetic=KINDS["unsigned"]), normals(4, 5)
    layer(x, training=True)
    before, y = remembered(layer), layer(x)
    x[1, 2] = np.nan
    assert np.isnan(layer(x, training=True)).all()  # and it does not hide
    assert remembered(layer) == before
    x[1, 2] = 0.0
    assert layer(np.zeros_like(x), training=True).shape == (4, 3)
    assert np.isfinite(layer(x)).all()
    assert y.shape == (4, 3)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64", "float16"])
def test_dtypes(policy):
    layer = og.layers.Conv2D(3, 2, arithmetic=KINDS["signed"], dtype=policy)
    xs = batches((5, 4, 2))
    for x in xs:
        y = layer(x, training=True)
    wide = "float64" if policy == "float64" else "float32"
    assert [w.dtype for w in layer.remembered.weights] == [wide]
    assert keras.backend.standardize_dtype(y.dtype) == policy.replace("mixed_", "")
    seen = [tf.cast(tf.cast(x, y.dtype), wide).numpy() for x in xs]
    np.testing.assert_allclose(states_of(layer), average(RUNNING["signed"], seen), rtol=1e-6)


# ---- training, files, surgery ----------------------------------------------------------------


def network() -> keras.Model:
    keras.utils.set_random_seed(5)
    inputs = keras.Input((9, 8, 2))
    h = keras.layers.Conv2D(3, 3, name="first")(inputs)
    h = keras.layers.SeparableConv2D(4, 2, activation="relu", name="separable")(h)
    inner = keras.Sequential([keras.Input((6 * 5 * 4,)), keras.layers.Dense(3, name="inside")])
    return keras.Model(inputs, inner(keras.layers.Flatten()(h)))


def trained(kind="unsigned") -> keras.Model:
    model = og.swap(network(), KINDS[kind])
    model.compile("sgd", "mse")
    x = normals(20, 9, 8, 2)
    model.fit(x, normals(20, 3, seed=2), batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model


IMAGES = normals(11, 9, 8, 2, seed=9, scale=2)


def test_fit():
    model = trained("signed")
    x = normals(20, 9, 8, 2)
    steps = [x[:8], x[8:16], x[16:]] * 2
    due = average(RUNNING["signed"], steps)
    np.testing.assert_allclose(states_of(model.get_layer("first")), due, rtol=1e-5)
    assert all(s > 0 for s in states_of(model.get_layer("separable")))
    assert sum("remembered" in w.path for w in model.non_trainable_weights) == 4
    assert not [w for w in model.trainable_weights if "remembered" in w.path]


def test_files(tmp_path):
    model = trained()
    y = model.predict(IMAGES, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(IMAGES, verbose=0), y)
    loaded.fit(IMAGES, normals(11, 3), verbose=0)  # and goes on
    assert states_of(loaded.get_layer("first")) != states_of(model.get_layer("first"))
    model.save_weights(tmp_path / "model.weights.h5")
    other = og.swap(network(), KINDS["unsigned"])
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other.predict(IMAGES, verbose=0), y)
    clone = keras.models.clone_model(model)
    assert states_of(clone.get_layer("first")) == [0.0, 0.0]
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone.predict(IMAGES, verbose=0), y)


def test_export(tmp_path):
    model = trained("signed")
    model.export(tmp_path / "saved")
    saved = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(saved.serve(IMAGES), model.predict(IMAGES, verbose=0), atol=1e-6)


@every_kind
def test_calibrate_fixes_the_range(kind):
    model = trained(kind)
    first = model.get_layer("first")
    og.calibrate(model, IMAGES)
    assert first.remembered is None
    assert first.arithmetic.input == RUNNING[kind].calibrated(*og.calibration.min_max(
        og.calibration.Seen(float(IMAGES.min()), float(IMAGES.max())), None))  # fmt: skip
    assert not [w for w in model.weights if "remembered" in w.path]
    assert np.isfinite(model.predict(IMAGES, verbose=0)).all()


def test_restore_takes_the_weights_away(tmp_path):
    model = trained()
    og.restore(model)
    plain = network()
    assert [w.shape for w in model.weights] == [w.shape for w in plain.weights]
    assert [type(layer) for layer in model.layers] == [type(layer) for layer in plain.layers]
    plain.set_weights(model.get_weights())
    np.testing.assert_array_equal(
        model.predict(IMAGES, verbose=0), plain.predict(IMAGES, verbose=0)
    )
    first = model.get_layer("first")
    assert not hasattr(first, "remembered")
    assert not list(first._flatten_layers(include_self=False))
    model.save(tmp_path / "plain.keras")
    first(IMAGES, training=True)
    og.swap(model, KINDS["signed"])  # and again
    first(IMAGES, training=True)
    np.testing.assert_allclose(states_of(first), range_of(RUNNING["signed"], IMAGES))


def test_another_arithmetic_keeps_the_range_of_the_same_quantizers():
    model = trained("unsigned")
    first = model.get_layer("first")
    before = remembered(first)
    og.swap(model, og.approximate(og.multipliers.exact(), input=RUNNING["unsigned"]))
    assert remembered(first) == before
    og.swap(model, KINDS["signed"])
    assert remembered(first) == {"input_limit": 0.0}
    og.swap(model, og.exact)
    assert first.remembered is None
    assert not [w for w in model.weights if "remembered" in w.path]


def test_an_arithmetic_without_states_adds_no_weights():
    layer = og.layers.Dense(3, arithmetic=og.approximate(MULTIPLIERS["signed"]))
    layer.build((None, 4))
    assert layer.remembered is None
    assert len(layer.weights) == 2


# ---- what an optimizer trains ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Learned(quantizers.Linear):
    """Symmetric codes whose limit is trained, as W. Choi et al. do ("PACT", 2018)."""

    type_name: ClassVar[str] = "test_learned"
    signed: ClassVar[bool] = True
    per_channel: ClassVar[bool] = False
    bits: int = 8

    @property
    def states(self) -> tuple[State, ...]:
        return (State("limit", (), 1.5, trainable=True),)

    def with_states(self, states) -> Scaled:
        return Symmetric(self.bits, float(states[0]))

    def dynamic(self) -> Scaled:
        return Symmetric(self.bits)


@quantize.encode.register
def _(q: Learned, x, axes, states=()):
    if not states:
        return quantize.encode(q.dynamic(), x, axes)
    (limit,) = states
    fixed = quantize.encode(Symmetric(q.bits, momentum=0), x, axes, [tf.stop_gradient(limit)])
    clipped = tf.clip_by_value(x, -limit, limit)
    return fixed._replace(values=clipped + tf.stop_gradient(fixed.values - clipped))


def test_states_that_are_trained():
    layer = og.layers.Dense(3, arithmetic=og.approximate(MULTIPLIERS["signed"], input=Learned()))
    model, x = keras.Sequential([keras.Input((5,)), layer]), normals(16, 5, scale=2)
    assert [w.name for w in model.trainable_weights] == ["kernel", "bias", "input_limit"]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x, training=True))
    limit = layer.remembered.weights[0]
    kernel = layer.arithmetic.kernel.encode(layer.kernel.numpy()).values
    upstream = np.broadcast_to(kernel.sum(1), x.shape)
    due = (upstream * np.sign(x) * (abs(x) > 1.5)).sum()
    np.testing.assert_allclose(tape.gradient(loss, limit.value), due, rtol=1e-4)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model.fit(x, normals(16, 3, seed=2), verbose=0)
    assert float(limit.numpy()) != 1.5
    y = layer(x)
    np.testing.assert_array_equal(y, fixed_layer(layer, states_of(layer))(x))
