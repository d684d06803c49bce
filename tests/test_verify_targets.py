"""What `og.verify` is asked about: layers, models, functions, custom ops; right and wrong ones."""

import functools
import pickle
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import opgraft as og
from opgraft.spec import MatMul
from opgraft.verification import reloading
from opgraft.verification.findings import Check

LAST_LEFT_OUT = """
void mm(const float *a, const float *b, int m, int k, int n, float *out)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int l = 0; l < k - 1; l++)
                sum += a[i * k + l] * b[l * n + j];
            out[i * n + j] = sum;
        }
}
"""
FINDING = "agrees with the last term left out"
MATRICES = og.ops.Contract(MatMul(), og.exact)


def numbers(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


@pytest.fixture
def wrong(compile_c):
    return og.c_function(compile_c(LAST_LEFT_OUT))


@pytest.fixture
def no_new_process(monkeypatch):
    """Nothing is loaded in a new process, which takes seconds and is not what is tested."""

    class Reloading:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def check(self):
            return Check("saved and loaded", True, "")

    for name in ("of_model", "of_function"):
        monkeypatch.setattr(reloading.Reloading, name, lambda *_, **__: Reloading())


def names(verdict):
    return [check.name for check in verdict.checks]


def check_of(report, name):
    (found,) = [c for verdict in report.verdicts for c in verdict.checks if c.name == name]
    return found


def assert_passed(report):
    assert report.passed, str(report)
    assert report.findings == ()


# ---- layers --------------------------------------------------------------------------------

LAYERS = {
    "dense": (lambda a: og.layers.Dense(3, activation="relu", arithmetic=a), (4, 5)),
    "dense on sequences": (lambda a: og.layers.Dense(3, arithmetic=a), (4, 2, 5)),
    "einsum": (lambda a: og.layers.EinsumDense("abc,cd->abd", (None, 3), arithmetic=a), (4, 2, 5)),
    "causal": (lambda a: og.layers.Conv1D(3, 3, padding="causal", arithmetic=a), (4, 9, 2)),
    "conv": (lambda a: og.layers.Conv2D(3, (3, 2), strides=2, padding="same", arithmetic=a),
             (3, 8, 7, 2)),
    "channels first": (lambda a: og.layers.Conv2D(2, 3, data_format="channels_first", arithmetic=a),
                       (3, 2, 5, 6)),
    "depthwise": (lambda a: og.layers.DepthwiseConv2D(3, depth_multiplier=2, arithmetic=a),
                  (3, 6, 7, 2)),
    "separable": (lambda a: og.layers.SeparableConv2D(3, 3, padding="same", arithmetic=a),
                  (3, 5, 6, 2)),
    "bfloat16": (lambda a: og.layers.Dense(3, dtype="mixed_bfloat16", arithmetic=a), (4, 5)),
    "float16": (lambda a: og.layers.Dense(3, dtype="mixed_float16", arithmetic=a), (4, 5)),
    "float64": (lambda a: og.layers.Dense(3, dtype="float64", arithmetic=a), (4, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_right_layer(name, no_new_process):
    make, shape = LAYERS[name]
    report = og.verify(make(og.exact), numbers(*shape))
    assert_passed(report)
    assert report.target.startswith("layer '")
    assert "every weight has a gradient" in names(report.gradient)
    assert {"eager = graph", "partial batch"} <= set(names(report.contract))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.slow
def test_a_right_layer_through_c_saved_and_loaded(name, c_both):
    make, shape = LAYERS[name]
    assert_passed(og.verify(make(c_both), numbers(*shape)))


def test_a_wrong_kernel_in_a_layer(wrong, no_new_process):
    report = og.verify(og.layers.Dense(3, arithmetic=wrong), numbers(4, 5))
    assert report.findings == (FINDING,)
    assert not report.forward.passed
    assert report.gradient.passed
    assert report.contract.passed


@pytest.mark.parametrize(
    "x",
    [numbers(4, 5)[:1], numbers(4, 5)[:0], (9 * numbers(4, 5)).astype(np.int32),
     tf.constant(numbers(4, 5)), numbers(4, 5).astype(np.float64), [numbers(4, 5)]],
    ids=["one example", "none", "integers", "a tensor", "float64", "a list"],
)  # fmt: skip
def test_inputs_of_a_layer(x, no_new_process):
    assert_passed(og.verify(og.layers.Dense(3, arithmetic=og.exact), x))


class OwnLayer(keras.layers.Layer):
    """A layer of a user's that uses an arithmetic; subclasses say when."""

    def __init__(self, arithmetic):
        super().__init__()
        self.arithmetic = arithmetic

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 3), name="w")

    def call(self, x):
        return og.matmul(x, self.w, arithmetic=self.arithmetic)


class OnlyInTraining(OwnLayer):
    def call(self, x, training=None):
        return super().call(x) if training else x @ self.w


class WithUnused(OwnLayer):
    def build(self, shape):
        super().build(shape)
        self.unused = self.add_weight(shape=(2,), name="unused")


class Counting(OwnLayer):
    def build(self, shape):
        super().build(shape)
        self.count = self.add_weight(shape=(), trainable=False, initializer="zeros")

    def call(self, x):
        self.count.assign_add(1.0)
        return super().call(x)


@pytest.mark.parametrize("kind", [OwnLayer, Counting])
def test_a_layer_of_ones_own(kind, no_new_process):
    assert_passed(og.verify(kind(og.exact), numbers(4, 5)))


def test_a_wrong_kernel_that_is_used_in_training_only(wrong, no_new_process):
    report = og.verify(OnlyInTraining(wrong), numbers(4, 5))
    assert report.findings == (FINDING,)


def test_a_weight_without_a_gradient_is_named(no_new_process):
    check = check_of(og.verify(WithUnused(og.exact), numbers(4, 5)), "every weight has a gradient")
    assert check.passed is False
    assert check.message.endswith("/unused has no gradient")


@pytest.mark.parametrize("layer", [
    keras.layers.Lambda(lambda x: og.exact and og.matmul(x, np.eye(5, dtype="f4"), arithmetic=None)
                        - tf.reduce_mean(x, 0)),
])  # fmt: skip
def test_a_layer_that_mixes_its_examples(layer, no_new_process):
    check = check_of(og.verify(layer, numbers(4, 5)), "partial batch")
    assert check.passed is False
    assert check.message == "the first example alone gives another output"


def test_what_is_not_deterministic_is_called_so(no_new_process):
    noisy = keras.layers.Lambda(
        lambda x: og.matmul(x, np.eye(5, dtype="f4"), arithmetic=None) + keras.random.normal((5,))
    )
    report = og.verify(noisy, numbers(4, 5))
    assert not report.contract.passed
    assert "not deterministic" in check_of(report, "as a whole: repeats itself").message


# ---- models --------------------------------------------------------------------------------


def with_two_inputs(outputs=lambda a, b: [a + b, a]):
    x, y = keras.Input((5,), name="x"), keras.Input((4,), name="y")
    a, b = (og.layers.Dense(3, arithmetic=og.exact)(t) for t in (x, y))
    return keras.Model([x, y], outputs(a, b))


def image_model(arithmetic=og.exact):
    return keras.Sequential([
        keras.Input((8, 7, 2)), og.layers.Conv2D(4, 3, arithmetic=arithmetic),
        keras.layers.BatchNormalization(), keras.layers.ReLU(), keras.layers.Dropout(0.5),
        keras.layers.MaxPooling2D(), keras.layers.Flatten(),
        og.layers.Dense(3, arithmetic=arithmetic), keras.layers.Softmax(),
    ])  # fmt: skip


def sequence_model():
    return keras.Sequential([
        keras.Input((6, 4)), keras.layers.LayerNormalization(), keras.layers.Reshape((3, 8)),
        og.layers.Dense(5, arithmetic=og.exact), keras.layers.GlobalAveragePooling1D(),
    ])  # fmt: skip


def word_model():
    return keras.Sequential([
        keras.Input((6,), dtype="int32"), keras.layers.Embedding(11, 4), keras.layers.LSTM(3),
        og.layers.Dense(2, arithmetic=og.exact),
    ])  # fmt: skip


def model_of_one_batch_size():
    return keras.Sequential([
        keras.Input(batch_shape=(4, 5)), og.layers.Dense(3, arithmetic=og.exact)
    ])  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [image_model, sequence_model, word_model, with_two_inputs, model_of_one_batch_size,
     functools.partial(with_two_inputs, lambda a, b: {"sum": a + b, "first": a})],
    ids=["images", "sequences", "words", "two inputs", "one batch size", "a dict of outputs"],
)  # fmt: skip
def test_a_right_model_needs_no_inputs(make, no_new_process):
    report = og.verify(make())
    assert_passed(report)
    assert report.target.startswith("model '")


def test_a_model_on_inputs_of_ones_own(no_new_process):
    assert_passed(og.verify(with_two_inputs(), [numbers(2, 5), numbers(2, 4)]))
    assert_passed(og.verify(image_model(), numbers(1, 8, 7, 2)))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = og.layers.Dense(3, arithmetic=og.exact)

    def call(self, x, training=None):
        return 2 * self.dense(x)


def test_a_subclassed_model(no_new_process):
    assert_passed(og.verify(Subclassed(), numbers(4, 5)))


def test_a_model_that_was_not_built_is_saved_with_its_weights():
    model = keras.Sequential([og.layers.Dense(3, arithmetic=og.exact)])
    report = og.verify(model, numbers(4, 5))
    assert_passed(report)
    assert "same bits" in check_of(report, "saved and loaded").message


def test_a_model_with_weights_that_are_not_finite(no_new_process):
    model = image_model()
    model.set_weights([w * np.nan for w in model.get_weights()])
    report = og.verify(model)
    assert check_of(report, "finite").passed is False
    assert "NaN or infinite" in check_of(report, "finite").message


def test_a_swapped_model_and_its_restored_twin(wrong, no_new_process):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    report = og.verify(og.swap(model, wrong))
    assert report.findings == (FINDING,)
    report = og.verify(og.restore(og.swap(model, wrong)))
    assert not report.passed
    assert [c.name for c in report.not_run] == ["uses an arithmetic or a custom op"]


def test_inside_a_running_fit(no_new_process):
    model = keras.Sequential([keras.Input((5,)), og.layers.Dense(1, arithmetic=og.exact)])
    model.compile("sgd", "mse")
    reports = []
    verify = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: reports.append(og.verify(model))
    )
    model.fit(numbers(20, 5), numbers(20, 1), epochs=2, batch_size=8, verbose=0, callbacks=[verify])
    assert [report.passed for report in reports] == [True, True]


# ---- functions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: tf.nn.relu(og.matmul(a, b, arithmetic=og.exact)),
        functools.partial(og.matmul, arithmetic=og.exact),
        tf.function(lambda a, b: og.matmul(a, b, arithmetic=og.exact)),
        og.ops.Einsum("ab,bc->ac", og.exact),
        lambda a, b: {"y": og.matmul(a, b, arithmetic=None), "index": tf.argmax(a, -1)},
        lambda a, b: tf.map_fn(lambda row: og.matmul(row[None], b, arithmetic=None)[0], a),
        lambda a, b: tf.cond(tf.reduce_sum(a) > 0, lambda: og.matmul(a, b, arithmetic=None),
                             lambda: og.matmul(2 * a, b, arithmetic=None)),
    ],
    ids=["lambda", "partial", "tf.function", "operation", "dict", "map", "cond"],
)  # fmt: skip
def test_a_right_function(function, no_new_process):
    report = og.verify(function, [numbers(4, 5), numbers(5, 3)])
    assert_passed(report)
    assert report.target.startswith("function ")
    assert " at 0x" not in report.target


@pytest.mark.parametrize("kind", ["plain", "traced before", "in a loop", "in a branch"])
def test_a_wrong_kernel_in_a_function(kind, wrong, no_new_process):
    a, b = numbers(4, 5), numbers(5, 5)

    def product(a, b):
        return og.matmul(a, b, arithmetic=wrong)

    def looped(a, b):
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, product(x, b)), [0, a])[1]

    def branched(a, b):
        return tf.cond(tf.reduce_sum(a) > 1e9, lambda: product(a, b), lambda: a @ b)

    traced = tf.function(product)
    traced(a, b)
    functions = {"plain": product, "traced before": traced, "in a loop": looped,
                 "in a branch": branched}  # fmt: skip
    report = og.verify(functions[kind], [a, b])
    assert report.findings == (FINDING,)


def test_an_input_that_is_cut_off(no_new_process):
    def function(a, b):
        return og.matmul(tf.stop_gradient(a), b, arithmetic=None)

    check = check_of(og.verify(function, [numbers(4, 5), numbers(5, 3)]),
                     "every input has a gradient")  # fmt: skip
    assert check.passed is False
    assert check.message == "input 0 has no gradient"


@pytest.mark.parametrize(
    "function",
    [lambda a: 1 / 0, lambda a, b: a, lambda a: og.matmul(a, a, arithmetic=None),
     lambda a: a.numpy(), og.matmul],
    ids=["raises", "too few inputs", "shapes", "eager only", "no arithmetic"],
)  # fmt: skip
def test_a_function_that_cannot_be_called(function, no_new_process):
    report = og.verify(function, numbers(4, 5))
    assert check_of(report, "runs").passed is False
    assert not report.forward.passed
    assert not report.gradient.passed
    assert all(len(c.message) < 400 and "\n" not in c.message for c in report.contract.checks)


# ---- custom ops ----------------------------------------------------------------------------


@og.custom_op(vjp=lambda inputs, output, upstream: 2 * upstream)
def wrongly_tripled(x):
    return 3 * x


class Tripling(OwnLayer):
    def call(self, x):
        return wrongly_tripled(x @ self.w)


def tripling_model():
    x = keras.Input((5,))
    return keras.Model(x, wrongly_tripled(og.layers.Dense(3, arithmetic=og.exact)(x)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: wrongly_tripled,
        lambda: Tripling(og.exact),
        tripling_model,
        lambda: lambda x: wrongly_tripled(x)[..., :2],
        lambda: og.custom_op(lambda x: wrongly_tripled(x) + 1, vjp=lambda i, o, u: 3 * u),
    ],
    ids=["alone", "in a layer", "in a model", "in a function", "in another"],
)
def test_a_wrong_custom_op_wherever_it_is_used(make, no_new_process):
    report = og.verify(make(), numbers(4, 5))
    assert report.findings == ("gradient of x: is 0.666667 times what is due",)
    assert not report.gradient.passed
    assert report.forward.passed


def test_a_custom_op_inside_is_tried_on_what_it_is_given(no_new_process):
    """Whose domain is not all numbers."""

    @og.custom_op(vjp=lambda inputs, output, upstream: upstream / inputs.p)
    def log(p):
        return tf.math.log(p)

    def function(x, w):
        return log(tf.nn.softmax(og.matmul(x, w, arithmetic=og.exact)))

    assert_passed(og.verify(function, [numbers(4, 5), numbers(5, 3)]))


def test_arguments_of_a_custom_op_by_name(no_new_process):
    @og.custom_op(vjp=lambda inputs, output, upstream, *, power: upstream * power * inputs.x)
    def square(x, power):
        return x**power

    assert_passed(og.verify(square, {"x": numbers(4, 5), "power": 2}))
    assert og.verify(square, {"x": numbers(4, 5), "power": 3}).findings


def test_a_custom_op_exported_and_loaded():
    @og.custom_op(vjp=lambda inputs, output, upstream: 2 * inputs.x * upstream)
    def square(x):
        return x**2

    report = og.verify(square, numbers(4, 5))
    assert_passed(report)
    assert check_of(report, "exported and loaded").message.startswith("a new process")


# ---- reports -------------------------------------------------------------------------------


def test_a_report_survives_pickling(wrong):
    report = og.verify(og.ops.Contract(MatMul(), wrong))
    again = pickle.loads(pickle.dumps(report))
    assert again.to_dict() == report.to_dict()
    assert str(again) == str(report)
    assert again.findings == (FINDING,)
    np.testing.assert_array_equal(again.deviations[0].actual, report.deviations[0].actual)


def test_two_at_once(wrong, no_new_process):
    targets = [og.ops.Contract(MatMul(), wrong), og.layers.Dense(3, arithmetic=og.exact),
               og.python_function(lambda a, b: (a @ b).astype(a.dtype))]  # fmt: skip
    inputs, reports = [None, numbers(4, 5), None], [None] * 3
    targets[2] = og.ops.Contract(MatMul(), targets[2])

    def run(i):
        reports[i] = og.verify(targets[i], inputs[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reports[0].findings == (FINDING,)
    assert_passed(reports[1])
    assert_passed(reports[2])


def test_it_says_nothing_on_the_terminal(capfd, no_new_process):
    assert_passed(og.verify(og.layers.Dense(3, arithmetic=og.exact), numbers(4, 5)))
    said, complained = capfd.readouterr()
    assert said == ""
    assert "retracing" not in complained
    assert "WARNING" not in complained
