"""A function of tensors with a gradient of its own, wherever TensorFlow and Keras may call it."""

import copy
import inspect
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from tapes import every_mode, few_modes, gradients, without_xla

import opgraft as og

# ---- operations; small integers, so that every mode gives the same bits --------------------


def integers(*shape, salt=0):
    rng = np.random.default_rng([salt, *shape])
    return rng.integers(-4, 5, shape).astype("float32")


def not_the_native_gradient(inputs, output, upstream):
    """Twice and three times what is due, so that nothing else can have computed it."""
    return 2 * upstream @ tf.transpose(inputs.w), 3 * tf.transpose(inputs.a) @ upstream


@og.custom_op(vjp=not_the_native_gradient)
def multiply(a, w):
    """A matrix product."""
    return a @ w


def due(a, w, upstream):
    return 2 * upstream @ w.T, 3 * a.T @ upstream


@og.custom_op(vjp=lambda inputs, output, upstream: 2 * upstream * inputs.x)
def square(x):
    return x * x


A, W, UPSTREAM = integers(5, 3), integers(3, 4), integers(5, 4)


def check(function, mode="eager", a=A, w=W, upstream=UPSTREAM):
    y, got = gradients(function, [a, w], mode, tf.constant(upstream))
    np.testing.assert_array_equal(y, np.asarray(a) @ np.asarray(w))
    for ours, expected in zip(got, due(np.asarray(a), np.asarray(w), upstream), strict=True):
        np.testing.assert_array_equal(ours, expected)


# ---- calls -----------------------------------------------------------------------------


CALLS = {
    "by position": lambda a, w: multiply(a, w),
    "by keyword": lambda a, w: multiply(a=a, w=w),
    "keywords exchanged": lambda a, w: multiply(w=w, a=a),
    "mixed": lambda a, w: multiply(a, w=w),
}


@pytest.mark.parametrize("call", CALLS)
@every_mode
def test_calls(call, mode):
    check(CALLS[call], mode)


@pytest.mark.parametrize("make", [tf.Variable, lambda w: keras.Variable(w, name="kernel")])
@every_mode
def test_a_variable_as_argument(make, mode):
    kernel = make(W)
    variable = getattr(kernel, "value", kernel) if isinstance(kernel, keras.Variable) else kernel

    def run(a):
        with tf.GradientTape() as tape:
            tape.watch(a)
            y = multiply(a, w=kernel)
        return tape.gradient(y, [a, variable], tf.constant(UPSTREAM))

    if mode in ("graph", "tape in graph"):
        run = tf.function(run)
    elif mode != "eager":
        run = tf.function(run, jit_compile=True)
    for ours, expected in zip(run(tf.constant(A)), due(A, W, UPSTREAM), strict=True):
        np.testing.assert_array_equal(ours, expected)


@every_mode
def test_an_array_as_argument(mode):
    _, (got,) = gradients(lambda a: multiply(a, W), [A], mode, tf.constant(UPSTREAM))
    np.testing.assert_array_equal(got, due(A, W, UPSTREAM)[0])
    assert multiply(A, W).dtype == "float32"
    assert multiply(A.astype(float), W.astype(float)).dtype == "float64"


@few_modes
def test_any_number_of_tensors(mode):
    seen = []

    def vjp(inputs, output, upstream):
        seen.append(inputs._fields)
        return [upstream * (i + 1) for i in range(len(inputs))]

    @og.custom_op(vjp=vjp)
    def total(*parts):
        return tf.add_n(parts)

    parts = [integers(2, 3, salt=i) for i in range(3)]
    y, got = gradients(total, parts, mode)
    np.testing.assert_array_equal(y, sum(parts))
    for i, gradient in enumerate(got):
        np.testing.assert_array_equal(gradient, np.full((2, 3), i + 1))
    assert set(seen) == {("parts_0", "parts_1", "parts_2")}


def test_tensors_by_any_keyword():
    @og.custom_op(vjp=lambda inputs, output, upstream, *, scale: (upstream, -upstream * scale))
    def difference(**named):
        return named["a"] - named["scale"] * named["b"]

    a, b = integers(2, 3), integers(2, 3, salt=1)
    y, (da, db) = gradients(lambda a, b: difference(a=a, scale=3, b=b), [a, b])
    np.testing.assert_array_equal(y, a - 3 * b)
    np.testing.assert_array_equal(da, np.ones((2, 3)))
    np.testing.assert_array_equal(db, np.full((2, 3), -3.0))


OPTIONS = [
    {"times": 3, "how": "plain", "axis": None},
    {"times": 2, "how": "twice", "axis": 1},
    {"how": "twice"},
    {},
]


@pytest.mark.parametrize("options", OPTIONS)
@few_modes
def test_options_reach_function_and_vjp_by_name(options, mode):
    told = []

    def vjp(inputs, output, upstream, *, times, how, axis):
        told.append((times, how, axis))
        return upstream * (10 * times if how == "plain" else 20 * times)

    @og.custom_op(vjp=vjp)
    def scale(x, times=1, *, how="plain", axis=None):
        assert not isinstance(times, tf.Tensor)
        return x * (times if how == "plain" else 2 * times)

    y, (got,) = gradients(lambda x: scale(x, **options), [A], mode)
    times, twice = options.get("times", 1), options.get("how") == "twice"
    np.testing.assert_array_equal(y, A * times * (1 + twice))
    np.testing.assert_array_equal(got, np.full_like(A, 10 * times * (1 + twice)))
    assert set(told) == {(times, options.get("how", "plain"), options.get("axis"))}


def test_an_option_at_its_default_need_not_be_known_to_the_vjp():
    @og.custom_op(vjp=lambda inputs, output, upstream: upstream * 5)
    def power(x, exponent=2, name=None, pads=(0, 1)):
        return x**exponent

    for call in (
        lambda x: power(x),
        lambda x: power(x, 2, pads=(0, 1)),
        lambda x: power(x, name=None),
    ):
        _, (got,) = gradients(call, [A])
        np.testing.assert_array_equal(got, np.full_like(A, 5))


@pytest.mark.parametrize("times", [np.int64(3), np.int32(3), np.prod((3, 1))])
def test_a_numpy_integer_is_an_option(times):
    op = og.custom_op(lambda x, n: x * int(n), vjp=lambda i, o, u, *, n: u * 10 * int(n))
    _, (got,) = gradients(lambda x: op(x, times), [A], "tape in graph")
    np.testing.assert_array_equal(got, np.full_like(A, 30))


def test_a_tensor_as_default_is_an_input():
    @og.custom_op(vjp=lambda inputs, output, upstream: (upstream * 3, upstream * inputs.x))
    def scale(x, factor=np.float32(3)):  # noqa: B008 (of no interest here)
        return x * factor

    y, (got,) = gradients(lambda x: scale(x), [np.float32(7)])
    assert (y.numpy(), got.numpy()) == (21, 3)
    _, (_, factor) = gradients(scale, [np.float32(7), np.float32(2)])
    assert factor.numpy() == 7


def test_a_method_knows_its_instance():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        @og.custom_op(vjp=lambda inputs, output, upstream, *, self: upstream * (self.factor + 100))
        def apply(self, x):
            return x * self.factor

    two, three = Scale(2), Scale(3)
    for scale in (two, three):
        y, (got,) = gradients(scale.apply, [A])
        np.testing.assert_array_equal(y, A * scale.factor)
        np.testing.assert_array_equal(got, np.full_like(A, scale.factor + 100))
    _, (got,) = gradients(lambda x: two.apply(x=x), [A])
    np.testing.assert_array_equal(got, np.full_like(A, 102))
    assert isinstance(Scale.apply, type(multiply))


def test_a_method_whose_vjp_does_not_need_the_instance():
    class Twice:
        @og.custom_op(vjp=lambda inputs, output, upstream: upstream * 7)
        def apply(self, x):
            return x * 2

    _, (got,) = gradients(Twice().apply, [A])
    np.testing.assert_array_equal(got, np.full_like(A, 7))


def test_it_stays_the_function_to_look_at():
    assert multiply.__name__ == "multiply"
    assert multiply.__doc__ == "A matrix product."
    assert list(inspect.signature(multiply).parameters) == ["a", "w"]
    assert str(multiply) == "'multiply'"


def test_it_is_copied_and_pickled_by_its_name():
    for again in (copy.deepcopy(multiply), pickle.loads(pickle.dumps(multiply))):
        assert again is multiply


def test_without_decoration():
    op = og.custom_op(lambda x: x * 3, vjp=lambda inputs, output, upstream: upstream * 4)
    y, (got,) = gradients(op, [A])
    np.testing.assert_array_equal(y, 3 * A)
    np.testing.assert_array_equal(got, np.full_like(A, 4))


def test_the_vjp_sees_inputs_output_and_upstream():
    seen = []

    def vjp(inputs, output, upstream):
        seen.append((inputs.a.numpy(), inputs.w.numpy(), output.numpy(), upstream.numpy()))
        return inputs.a, inputs.w

    gradients(og.custom_op(lambda a, w: 3 * a @ w, vjp=vjp), [A, W], upstream=tf.constant(UPSTREAM))
    for ours, expected in zip(seen[0], (A, W, 3 * A @ W, UPSTREAM), strict=True):
        np.testing.assert_array_equal(ours, expected)


# ---- outputs ---------------------------------------------------------------------------


def both(inputs, output, upstream):
    return upstream["sum"] + upstream["difference"], upstream["sum"] - 2 * upstream["difference"]


@og.custom_op(vjp=both)
def sum_and_difference(a, b):
    return {"sum": a + b, "difference": a - b}


@every_mode
def test_a_dict_of_outputs(mode):
    a, b = integers(2, 3), integers(2, 3, salt=1)
    y, (da, db) = gradients(sum_and_difference, [a, b], mode)
    np.testing.assert_array_equal(y["sum"], a + b)
    np.testing.assert_array_equal(y["difference"], a - b)
    np.testing.assert_array_equal(da, np.full((2, 3), 2))
    np.testing.assert_array_equal(db, np.full((2, 3), -1))


@every_mode
def test_an_output_that_nobody_uses_has_zeros_as_upstream(mode):
    a, b = integers(2, 3), integers(2, 3, salt=1)
    _, (da, db) = gradients(lambda a, b: sum_and_difference(a, b)["difference"] * 5, [a, b], mode)
    np.testing.assert_array_equal(da, np.full((2, 3), 5))
    np.testing.assert_array_equal(db, np.full((2, 3), -10))


@every_mode
def test_nested_outputs_some_of_them_integers(mode):
    seen = []

    def vjp(inputs, output, upstream):
        (first, second), rest = upstream
        seen.append((first is None, rest["names"] is None, output[0][0].dtype.name))
        return second + 2 * rest["rows"]

    @og.custom_op(vjp=vjp)
    def parts(x):
        return [
            (tf.argmax(x, 1), 3 * x),
            {"rows": tf.identity(x), "names": tf.cast(x, tf.int32)},
        ]

    y, _ = gradients(parts, [A], mode)
    assert isinstance(y, list)
    np.testing.assert_array_equal(y[0][0], np.argmax(A, 1))
    np.testing.assert_array_equal(y[1]["names"], A.astype(int))

    def loss(x):
        (_, y), rest = parts(x)
        return tf.reduce_sum(5 * y) + tf.reduce_sum(7 * rest["rows"])

    _, (got,) = gradients(loss, [A], mode)
    np.testing.assert_array_equal(got, np.full_like(A, 5 + 2 * 7))
    assert set(seen) == {(True, True, "int64")}


@without_xla
def test_only_integer_outputs_have_no_gradient(mode):
    @og.custom_op(vjp=lambda inputs, output, upstream: inputs.x)
    def rounded(x):
        return tf.cast(x, tf.int32)

    y = rounded(A) if mode == "eager" else tf.function(rounded)(A)
    np.testing.assert_array_equal(y, A.astype(int))


def test_a_list_of_one_stays_a_list():
    @og.custom_op(vjp=lambda inputs, output, upstream: upstream[0] * 3)
    def one(x):
        return [x * 2]

    y, (got,) = gradients(one, [A])
    assert isinstance(y, list)
    assert len(y) == 1
    np.testing.assert_array_equal(got, np.full_like(A, 3))


# ---- inputs ----------------------------------------------------------------------------


@every_mode
def test_integer_inputs_have_no_gradient_and_need_not_be_named(mode):
    @og.custom_op(
        vjp=lambda inputs, output, upstream: (2 * tf.gather(upstream, inputs.back), None, None)
    )
    def permute(x, order, back):
        return tf.gather(x, order)

    order = np.array([2, 0, 1, 4, 3])
    back = np.argsort(order)
    _, got = gradients(lambda x: permute(x, order, back), [A], mode, tf.constant(A))
    np.testing.assert_array_equal(got[0], 2 * A[back])
    with tf.GradientTape() as tape:
        whole = [tf.constant(A), tf.constant(order), tf.constant(back)]
        tape.watch(whole[0])
        y = permute(*whole)
    assert tape.gradient(y, whole)[1:] == [None, None]


@without_xla
def test_a_sparse_gradient_is_made_dense(mode):
    """As the gradient of a lookup may be."""

    def vjp(inputs, output, upstream):
        return tf.IndexedSlices(upstream, inputs.rows, tf.shape(inputs.table)), None

    op = og.custom_op(lambda table, rows: tf.gather(table, rows), vjp=vjp)
    _, (got,) = gradients(lambda table: op(table, np.array([2, 0, 2])), [A], mode)
    np.testing.assert_array_equal(got, np.array([1, 0, 2, 0, 0])[:, None] * np.ones((5, 3)))


@every_mode
def test_inputs_declared_non_differentiable(mode):
    def vjp(inputs, output, upstream):
        return upstream * inputs.mask, None

    @og.custom_op(vjp=vjp, non_differentiable="mask")
    def masked(x, mask):
        return x * mask

    mask = (integers(5, 3, salt=2) > 0).astype("float32")
    _, (dx, dmask) = gradients(masked, [A, mask], mode)
    np.testing.assert_array_equal(dx, mask)
    assert dmask is None


def test_all_of_several_tensors_declared_non_differentiable():
    @og.custom_op(
        vjp=lambda inputs, output, upstream: (upstream, None, None), non_differentiable=["rest"]
    )
    def first(x, *rest):
        return x + tf.add_n(rest)

    _, got = gradients(first, [A, A, A])
    np.testing.assert_array_equal(got[0], np.ones_like(A))
    assert got[1:] == [None, None]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
@few_modes
def test_other_dtypes(dtype, mode):
    a, w, upstream = (tf.cast(x, dtype) for x in (A, W, UPSTREAM))

    def vjp(inputs, output, upstream):
        return (
            2 * upstream @ tf.transpose(inputs.w, conjugate=True),
            3 * tf.transpose(inputs.a, conjugate=True) @ upstream,
        )

    y, got = gradients(og.custom_op(lambda a, w: a @ w, vjp=vjp), [a, w], mode, upstream)
    assert y.dtype == dtype
    for ours, expected in zip(got, due(A, W, UPSTREAM), strict=True):
        assert ours.dtype == dtype
        np.testing.assert_array_equal(ours, tf.cast(expected, dtype))


@few_modes
@pytest.mark.parametrize("batch", [0, 1])
def test_empty_and_single_batches(batch, mode):
    check(multiply, mode, a=integers(batch, 3), upstream=integers(batch, 4))


@few_modes
def test_scalars(mode):
    y, (got,) = gradients(square, [np.float32(3)], mode)
    assert (y.shape, got.shape) == ((), ())
    assert (float(y), float(got)) == (9, 6)


SIGNATURES = {
    "batch": ([None, 3], [3, 4]),
    "every size": ([None, None], [None, None]),
    "rank": (None, None),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("signature", SIGNATURES)
def test_unknown_shapes(signature, jit):
    specs = [tf.TensorSpec(shape) for shape in SIGNATURES[signature]]

    @tf.function(input_signature=[*specs, tf.TensorSpec(None)], jit_compile=jit)
    def run(a, w, upstream):
        return gradients(multiply, [a, w], upstream=upstream)[1]

    for rows in (5, 2):
        operands = integers(rows, 3), W, integers(rows, 4)
        for ours, expected in zip(run(*operands), due(*operands), strict=True):
            np.testing.assert_array_equal(ours, expected)


def test_static_shapes_are_kept():
    traced = tf.function(multiply).get_concrete_function(
        tf.TensorSpec([None, 3]), tf.TensorSpec([3, 4])
    )
    assert traced.output_shapes.as_list() == [None, 4]


# ---- what it is made of ------------------------------------------------------------------


@few_modes
def test_operations_inside_operations(mode):
    @og.custom_op(vjp=lambda inputs, output, upstream: 5 * multiply(upstream, WIDE.T))
    def outer(a):
        return multiply(a, WIDE)

    y, (got,) = gradients(outer, [A], mode, tf.constant(integers(5, 6)))
    np.testing.assert_array_equal(y, A @ WIDE)
    np.testing.assert_array_equal(got, 5 * integers(5, 6) @ WIDE.T)


WIDE = integers(3, 6)


@tf.function
def transposed_product(a, b):
    return tf.matmul(a, b, transpose_b=True)


@every_mode
def test_functions_of_a_module_may_be_used(mode):
    def helper(x):
        return tf.function(lambda y: y * 2)(x)

    def vjp(inputs, output, upstream):
        return transposed_product(helper(upstream), inputs.w), 3 * tf.transpose(inputs.a) @ upstream

    check(og.custom_op(lambda a, w: transposed_product(a, tf.transpose(w)), vjp=vjp), mode)


@few_modes
def test_control_flow_inside(mode):
    def branch(x, scale):
        return tf.cond(tf.reduce_sum(x) > 1e6, lambda: x, lambda: x * scale)

    def vjp(inputs, output, upstream):
        return tf.while_loop(lambda i, g: i < 3, lambda i, g: (i + 1, g * 2), [0, upstream])[1]

    y, (got,) = gradients(og.custom_op(lambda x: branch(x, 3.0), vjp=vjp), [A], mode)
    np.testing.assert_array_equal(y, 3 * A)
    np.testing.assert_array_equal(got, np.full_like(A, 8))


@without_xla
def test_functions_that_leave_tensorflow(mode):
    @og.custom_op(
        vjp=lambda inputs, output, upstream: tf.numpy_function(np.negative, [upstream], tf.float32)
    )
    def flipped(x):
        return tf.numpy_function(np.flip, [x], tf.float32)

    y, (got,) = gradients(flipped, [A], mode, tf.constant(A))
    np.testing.assert_array_equal(y, np.flip(A))
    np.testing.assert_array_equal(got, -A)


def test_plain_numpy_works_eagerly():
    @og.custom_op(vjp=lambda inputs, output, upstream: np.negative(upstream.numpy()))
    def flipped(x):
        return np.flip(x.numpy())

    y, (got,) = gradients(flipped, [A], upstream=tf.constant(A))
    np.testing.assert_array_equal(y, np.flip(A))
    np.testing.assert_array_equal(got, -A)
