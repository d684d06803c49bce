"""Gradients by the slopes of a multiplier's table: the slopes, what flows back, and refusals."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CASES, Case, every, exact_meaning
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

import opgraft as og
from opgraft import multipliers, reference, values
from opgraft.backends.tensorflow import slopes as in_tensorflow
from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.gradients import mean_slopes, slopes
from opgraft.multipliers import Multiplier
from opgraft.multipliers.codes import integers
from opgraft.multipliers.slopes import slopes_along_first
from opgraft.quantizers import Affine, Symmetric
from opgraft.spec import Conv2D, DepthwiseConv2D, MatMul
from opgraft.verification.gradient import GradientChecks

rng = np.random.default_rng(50921)
NARROW = Multiplier.from_array(rng.integers(-90, 90, (16, 64)), signed=True)
OFFSET = Multiplier.from_array(rng.integers(0, 900, (32, 16)), signed=False)
ROUGH = multipliers.sign_magnitude(multipliers.mitchell())

ARITHMETICS = {
    "signed": og.approximate(NARROW, gradient=slopes(2)),
    "unsigned": og.approximate(OFFSET, gradient=slopes(0)),
    "exchanged": og.approximate(OFFSET, exchanged=True, gradient=slopes(3)),
    "means": og.approximate(multipliers.mitchell(), gradient=mean_slopes()),
    "means, exchanged": og.approximate(NARROW, exchanged=True, gradient=mean_slopes(1)),
    "of rank 3": og.approximate(multipliers.mitchell(), gradient=slopes(8, rank=3)),
    "of rank 1 by itself": og.approximate(multipliers.drum(4), gradient=slopes(4)),
    "per channel": og.approximate(ROUGH, kernel=Symmetric(8, per_channel=True),
                                  gradient=slopes(4, rank=2)),
    "calibrated": og.approximate(NARROW, input=Symmetric(4, limit=1.5), gradient=slopes(1)),
    "calibrated, unsigned": og.approximate(OFFSET, input=Affine(5, -0.7, 1.9), gradient=slopes()),
    "padding kept": og.approximate(OFFSET, keeps_padding=True, gradient=slopes(2, rank=4)),
}  # fmt: skip
SERVED = [
    c for c in CASES
    if not getattr(c.contraction, "pad_value", 0) and 0 not in (*c.left, *c.right, *c.output)
]  # fmt: skip


def flows(arithmetic, c, left, right, upstream):
    """Both gradients, through the operation."""
    with tf.GradientTape() as tape:
        x, w = (tf.convert_to_tensor(each) for each in (left, right))
        tape.watch([x, w])
        y = og.ops.contract(c, arithmetic, x, w)
    return tape.gradient(y, [x, w], tf.cast(upstream, y.dtype))


def meaning(arithmetic, c, left, right, upstream):
    return arithmetic.gradient.of(arithmetic).meaning(c, left, right, upstream)


def operands(case: Case):
    return *case.normals(), case.upstream().astype(np.float32)


def assert_close(got, due, tolerance=4e-6):
    for g, d in zip(got, due, strict=True):
        assert g.shape == d.shape
        np.testing.assert_allclose(g, d, rtol=0, atol=tolerance * abs(d).max())


# ---- the slopes of a table -------------------------------------------------------------------


def by_definition(f: list[float], at: int, half_width: int) -> float:
    """The central difference of a moving average of a sequence, which its ends reflect."""

    def value(i: int) -> float:
        if i < 0:
            return 2 * f[0] - value(-i)
        return f[i] if i < len(f) else 2 * f[-1] - value(2 * (len(f) - 1) - i)

    def average(i: int) -> float:
        window = range(i - half_width, i + half_width + 1)
        return sum(map(value, window)) / len(window)

    return (average(at + 1) - average(at - 1)) / 2


def some_tables():
    bits = st.tuples(st.integers(2, 5), st.integers(2, 5))
    return bits.flatmap(
        lambda bits: of_numpy.arrays(
            np.int64, (2 ** bits[0], 2 ** bits[1]), elements=st.integers(-(2**12), 2**12)
        )
    )


def along_first(table, signed, half_width, rank=None):
    """([codes, codes] slopes, the numbers of both operands)."""
    numbers = tuple(integers(size.bit_length() - 1, signed) for size in table.shape)
    return slopes_along_first(table, numbers, half_width, rank).of_error + numbers[1], numbers


@given(some_tables(), st.booleans(), st.data())
def test_slopes_are_central_differences_of_moving_averages(table, signed, data):
    used = len(table) - signed  # the most negative number has no part in it
    half_width = data.draw(st.integers(0, used - 2))
    found, (rows, columns) = along_first(table, signed, half_width)
    due = np.zeros((used, table.shape[1] - signed))
    first, second = (np.argsort(each)[int(signed) :] for each in (rows, columns))
    for j, b in enumerate(second):
        line = [float(table[a, b]) for a in first]
        due[:, j] = [by_definition(line, i, half_width) for i in range(used)]
    got = found[np.ix_(first, second)]
    np.testing.assert_allclose(got, due, rtol=0, atol=1e-6 * (1 + abs(due).max()))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("half_width", [None, 0, 1, 7])
def test_what_is_linear_has_its_slope_everywhere(signed, half_width):
    a, b = integers(5, signed)[:, None], integers(4, signed)[None]
    found, _ = along_first(3 * a * b - 11 * a + 5 * b + 2, signed, half_width)
    used = a[:, 0] > -16, b[0] > -8
    np.testing.assert_allclose(found[np.ix_(*used)], np.tile(3 * b - 11, (32, 1))[np.ix_(*used)])


def test_fewer_products_are_the_nearest_of_their_rank():
    table = multipliers.mitchell().table
    full = along_first(table, False, 16)[0]
    apart = [np.linalg.norm(along_first(table, False, 16, rank)[0] - full) for rank in range(8)]
    assert np.all(np.diff(apart) < 0)
    mean = full.mean(0)
    sizes = np.linalg.svd(full - mean, compute_uv=False)
    for rank, distance in enumerate(apart):
        assert distance == pytest.approx(np.sqrt(np.sum(sizes[rank:] ** 2)), rel=1e-6)
    alike = along_first(table, False, 16, 0)[0]
    np.testing.assert_allclose(alike, np.tile(mean, (256, 1)), atol=1e-9)


def test_no_more_products_than_the_error_has():
    exact, low = multipliers.exact(), multipliers.drum(4)
    for multiplier, rank in ((exact, 0), (low, 1)):
        numbers = (integers(8, False),) * 2
        assert slopes_along_first(multiplier.table, numbers, 4, None).own.shape == (256, rank)


# ---- what flows back, number by number -------------------------------------------------------


@pytest.mark.parametrize("name", ["signed", "unsigned", "exchanged", "means, exchanged"])
def test_the_meaning_of_a_matrix_product(name):
    arithmetic = ARITHMETICS[name]
    product, gradient = arithmetic.product, arithmetic.gradient
    x, w, dy = (rng.standard_normal(shape, np.float32) for shape in ((3, 5), (5, 4), (3, 4)))
    a, b = arithmetic.input.encode(x), arithmetic.kernel.encode(w)
    signed = bool(product.multiplier.signed)
    first, second = (integers(bits, signed) for bits in product.widths)
    table = product.multiplier.table.T if product.exchanged else product.multiplier.table
    along_a = along_first(table, signed, gradient.half_width, gradient.rank)[0]
    along_b = along_first(table.T, signed, gradient.half_width, gradient.rank)[0]
    dx, dw = np.zeros((3, 5)), np.zeros((5, 4))
    for i, j, k in np.ndindex(3, 4, 5):
        p, q = a.codes[i, k], b.codes[k, j]
        dx[i, k] += (along_a[p, q] - b.zero_point) * float(b.scale.item()) * dy[i, j]
        dw[k, j] += (along_b[q, p] - a.zero_point) * float(a.scale.item()) * dy[i, j]
    assert_close(meaning(arithmetic, MatMul(), x, w, dy), (dx, dw), 1e-12)
    exact = first[:, None] * second
    assert not np.allclose(along_a, exact)


def test_the_meaning_of_what_is_padded():
    """A corner of an image meets one tap of four: three are padding, which sends nothing back."""
    c, arithmetic = Conv2D(padding=((1, 0), (1, 0))), ARITHMETICS["padding kept"]
    x, w = rng.standard_normal((1, 1, 1, 1), np.float32), rng.standard_normal((2, 2, 1, 1))
    dy = np.full((1, 1, 1, 1), 0.75, np.float32)
    w = w.astype(np.float32)
    dx, dw = meaning(arithmetic, c, x, w, dy)
    a, b = arithmetic.input.encode(x), arithmetic.kernel.encode(w)
    of_input, _ = arithmetic.gradient.of(arithmetic).tables()
    p, q = a.codes.item(), b.codes[1, 1, 0, 0]
    due = of_input.of_error[p, q] + q - b.zero_point
    assert dx.item() == pytest.approx(0.75 * due * b.scale.item())
    assert np.flatnonzero(dw).tolist() == [3]
    assert_close(flows(arithmetic, c, x, w, dy), (dx, dw))


def test_the_matrix_products_of_a_contraction():
    for case in SERVED[::9]:
        left, right = case.integers()
        y = np.full(case.output, np.nan)
        for p, q, o in reference.matrices(case.contraction, case.left, case.right):
            taps = np.where(p >= 0, left.ravel()[p], 0)
            y.ravel()[o] = taps @ right.ravel()[q]
        np.testing.assert_array_equal(y, exact_meaning(case))
    empty = reference.matrices(MatMul(), (0, 3, 2), (2, 4))
    assert empty == []


# ---- TensorFlow ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARITHMETICS)
@every(SERVED[::14])
def test_every_geometry(case, name):
    x, w, dy = operands(case)
    got = flows(ARITHMETICS[name], case.contraction, x, w, dy)
    assert_close(got, meaning(ARITHMETICS[name], case.contraction, x, w, dy))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARITHMETICS)
@every(SERVED)
def test_every_geometry_of_the_whole_table(case, name):
    x, w, dy = operands(case)
    got = flows(ARITHMETICS[name], case.contraction, x, w, dy)
    assert_close(got, meaning(ARITHMETICS[name], case.contraction, x, w, dy))


@pytest.mark.parametrize("signed", [True, False])
@every(SERVED[::30])
def test_an_exact_multiplier_has_the_native_gradient_bit_for_bit(case, signed):
    native = og.approximate(multipliers.exact(signed=signed))
    due = flows(native, case.contraction, *operands(case))
    for gradient in (slopes(), slopes(0), mean_slopes(31)):
        mine = dataclasses.replace(native, gradient=gradient)
        for g, d in zip(flows(mine, case.contraction, *operands(case)), due, strict=True):
            np.testing.assert_array_equal(g, d)


def test_what_is_clipped_sends_nothing_back():
    x = np.array([[-0.8, -0.66, 0.0, 1.89, 2.5]], np.float32)
    w, dy = np.ones((5, 1), np.float32), np.ones((1, 1), np.float32)
    gx, _ = flows(ARITHMETICS["calibrated, unsigned"], MatMul(), x, w, dy)
    np.testing.assert_array_equal(np.asarray(gx)[0] != 0, [False, True, True, True, False])


def test_codes_are_those_of_the_forward():
    """A tie: rounding takes the range's ends to codes 0 and 254, whose own range is another."""
    x = np.array([[-0.5, 254.5, 63.2, 127.4, 200.1]], np.float32)
    w, dy = rng.standard_normal((5, 3), np.float32), rng.standard_normal((1, 3), np.float32)
    arithmetic = og.approximate(multipliers.mitchell(), gradient=slopes(0))
    first = arithmetic.input.encode(x)
    assert (arithmetic.input.encode(first.values).codes != first.codes).any()
    due = meaning(arithmetic, MatMul(), x, w, dy)
    assert_close(flows(arithmetic, MatMul(), x, w, dy), due)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats(dtype):
    arithmetic, c = ARITHMETICS["of rank 3"], Conv2D(padding="SAME")
    x, w, dy = (tf.cast(rng.standard_normal(s), dtype) for s in
                ((2, 5, 4, 3), (3, 2, 3, 2), (2, 5, 4, 2)))  # fmt: skip
    got = flows(arithmetic, c, x, w, dy)
    kind = np.float64 if dtype == "float64" else np.float32
    due = meaning(arithmetic, c, *(tf.cast(each, kind).numpy() for each in (x, w, dy)))
    assert [g.dtype for g in got] == [dtype] * 2
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-12}[dtype]
    assert_close([tf.cast(g, tf.float64).numpy() for g in got], due, tolerance)


def test_one_tensor_as_both_operands():
    arithmetic, c = og.approximate(multipliers.mitchell(), gradient=slopes(4, 2)), MatMul()
    x, dy = (rng.standard_normal((4, 4), np.float32) for _ in range(2))
    with tf.GradientTape() as tape:
        both = tf.constant(x)
        tape.watch(both)
        y = og.matmul(both, both, arithmetic=arithmetic)
    assert_close([tape.gradient(y, both, tf.constant(dy))], [sum(meaning(arithmetic, c, x, x, dy))])


@pytest.mark.parametrize("wanted", [0, 1])
def test_only_what_is_asked_for(wanted):
    arithmetic, case = ARITHMETICS["signed"], Case(DepthwiseConv2D(), (2, 5, 6, 3), (2, 3, 3, 2))
    x, w, dy = operands(case)
    with tf.GradientTape() as tape:
        tensors = [tf.constant(x), tf.constant(w)]
        tape.watch(tensors[wanted])
        y = og.ops.contract(case.contraction, arithmetic, *tensors)
    got = tape.gradient(y, tensors[wanted], tf.constant(dy))
    assert_close([got], [meaning(arithmetic, case.contraction, x, w, dy)[wanted]])


@pytest.mark.parametrize("name", ["signed", "per channel", "means", "calibrated, unsigned"])
def test_a_graph_that_knows_no_sizes(name):
    case = Case(Conv2D((2, 1), "SAME"), (3, 6, 7, 2), (3, 2, 2, 5))

    def run(x, w, dy):
        return flows(ARITHMETICS[name], case.contraction, x, w, dy)

    unknown = tf.TensorSpec([None] * 4)
    graph = tf.function(run, input_signature=[unknown, tf.TensorSpec(case.right), unknown])
    for got, due in zip(graph(*operands(case)), run(*operands(case)), strict=True):
        np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-5 * abs(np.asarray(due)).max())
    empty = graph(np.zeros((0, 6, 7, 2), np.float32), operands(case)[1],
                  np.zeros((0, 3, 7, 5), np.float32))  # fmt: skip
    np.testing.assert_array_equal(empty[1], np.zeros(case.right))


@pytest.mark.parametrize("graph", [False, True])
def test_it_can_be_differentiated_again(graph):
    """dx is linear in dy: <d<dx, v>/d dy, u> is <dx of u, v>."""
    arithmetic, case = ARITHMETICS["of rank 3"], Case(Conv2D(), (2, 5, 4, 3), (2, 2, 3, 4))
    x, w, dy = operands(case)
    v, u = rng.standard_normal(x.shape, np.float32), rng.standard_normal(dy.shape, np.float32)

    def run(x, w, dy):
        with tf.GradientTape() as tape:
            tape.watch(dy)
            inner = tf.reduce_sum(flows(arithmetic, case.contraction, x, w, dy)[0] * v)
        return tape.gradient(inner, dy)

    run = tf.function(run) if graph else run
    again = run(*map(tf.constant, (x, w, dy)))
    due = np.vdot(meaning(arithmetic, case.contraction, x, w, u)[0], v)
    assert np.vdot(again, u) == pytest.approx(due, rel=1e-4)


# ---- in layers and files -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARITHMETICS)
def test_it_is_a_value(name):
    arithmetic = ARITHMETICS[name]
    again = values.from_json(values.to_json(arithmetic))
    assert again == arithmetic
    assert hash(again) == hash(arithmetic)
    assert again.gradient != slopes(5, 9)
    assert not arithmetic.supports_jit


def two_layers():
    first = og.approximate(NARROW, input=Symmetric(4, limit=2.0), gradient=slopes(2))
    second = og.approximate(multipliers.mitchell())
    model = keras.Sequential([
        keras.Input((6,)), og.layers.Dense(5, use_bias=False, arithmetic=first),
        og.layers.Dense(3, use_bias=False, arithmetic=second),
    ])  # fmt: skip
    return model, first, second


def kernel_gradients(model, x, dy):
    with tf.GradientTape() as tape:
        y = model(x)
    return tape.gradient(y, model.trainable_variables, tf.constant(dy))


def test_two_layers_with_different_gradients(tmp_path):
    model, first, second = two_layers()
    x, dy = rng.standard_normal((7, 6), np.float32), rng.standard_normal((7, 3), np.float32)
    got = kernel_gradients(model, x, dy)
    kernels = [np.asarray(layer.kernel) for layer in model.layers]
    hidden = np.asarray(model.layers[0](x))
    used = [q.encode(v).values for q, v in ((second.input, hidden), (second.kernel, kernels[1]))]
    due = meaning(first, MatMul(), x, kernels[0], dy @ used[1].T)[1], used[0].T @ dy
    assert_close(got, due, 1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [layer.arithmetic for layer in loaded.layers] == [first, second]
    for mine, theirs in zip(got, kernel_gradients(loaded, x, dy), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_saved_function_keeps_its_gradient(tmp_path):
    arithmetic = ARITHMETICS["calibrated"]
    module = tf.Module()
    module.run = tf.function(
        lambda a, b: og.matmul(a, b, arithmetic=arithmetic),
        input_signature=[tf.TensorSpec([None, 5]), tf.TensorSpec([5, 3])],
    )
    tf.saved_model.save(module, tmp_path / "saved")
    loaded = tf.saved_model.load(tmp_path / "saved")
    x, w, dy = (rng.standard_normal(shape, np.float32) for shape in ((4, 5), (5, 3), (4, 3)))
    with tf.GradientTape() as tape:
        tensors = [tf.constant(x), tf.constant(w)]
        tape.watch(tensors)
        y = loaded.run(*tensors)
    assert_close(tape.gradient(y, tensors, dy), meaning(arithmetic, MatMul(), x, w, dy))


def test_the_operation_says_which_gradient_it_has():
    graph = tf.function(lambda a, b: og.matmul(a, b, arithmetic=ARITHMETICS["of rank 3"]))
    nodes = graph.get_concrete_function(tf.TensorSpec([3, 4]), tf.TensorSpec([4, 2])).graph
    (node,) = [n for n in nodes.as_graph_def().node if n.op == "OpgraftGraft"]
    said = json.loads(node.attr["arithmetic"].s)["gradient"]
    assert said == {"type": "by_slopes", "half_width": 8, "rank": 3}


def test_a_network_trains():
    x, y = rng.standard_normal((24, 6, 7, 2), np.float32), rng.standard_normal((24, 3), np.float32)
    arithmetic = og.approximate(ROUGH, gradient=slopes(8, rank=2))
    model = keras.Sequential([
        keras.Input((6, 7, 2)), og.layers.Conv2D(4, 3, strides=2, arithmetic=arithmetic),
        keras.layers.ReLU(), og.layers.DepthwiseConv2D(2, arithmetic=arithmetic),
        keras.layers.Flatten(), og.layers.Dense(3, arithmetic=arithmetic),
    ])  # fmt: skip
    model.compile(keras.optimizers.Adam(2e-2), "mse")
    losses = model.fit(x, y, batch_size=8, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]


# ---- verified --------------------------------------------------------------------------------


@pytest.mark.slow
def test_verify_judges_it_by_its_slopes():
    report = og.verify(ARITHMETICS["calibrated, unsigned"])
    assert report.passed, str(report)


@pytest.mark.parametrize("name", ["exchanged", "per channel"])
def test_its_gradient_is_as_declared(name):
    outcome = GradientChecks(ARITHMETICS[name], SERVED[::16]).run()
    assert [check.message for check in outcome.checks if not check.passed] == []
    assert "that of the table's slopes" in outcome.checks[0].proves


MISTAKES = {
    "both operands' slopes are exchanged": lambda found: found[::-1],
    "no mean": lambda found: tuple(each._replace(mean=0 * each.mean) for each in found),
    "one product is missing": lambda found: tuple(
        each._replace(own=each.own[:, 1:], other=each.other[:, 1:]) for each in found
    ),
    "one slope is another": lambda found: (
        found[0]._replace(mean=found[0].mean + (np.arange(32) == 7)), found[1]
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_one_is_found(mistake, monkeypatch):
    square = Multiplier.from_array(rng.integers(0, 900, (32, 32)), signed=False)
    arithmetic = og.approximate(square, gradient=slopes(1, rank=5))
    true = in_tensorflow._flow
    of_both = arithmetic.gradient.of(arithmetic).tables()
    wrong = MISTAKES[mistake](of_both)

    def flow(found, *others):
        return true(wrong[0 if found is of_both[0] else 1], *others)

    monkeypatch.setattr(in_tensorflow, "_flow", flow)
    outcome = GradientChecks(arithmetic, SERVED[::16]).run()
    assert outcome.checks[0].passed is False
    assert any("is not that of the table's slopes" in found for found in outcome.findings)


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: slopes(-1), r"slopes\(half_width=-1\): it must be a whole number, 0 or more"),
        (lambda: slopes(1.5), r"slopes\(half_width=1.5\): it must be a whole number"),
        (lambda: mean_slopes(True), r"slopes\(half_width=True\)"),
        (lambda: slopes(2, rank="all"), r"slopes\(rank='all'\): it must be a whole number"),
    ],
)
def test_what_is_no_window(make, text):
    with pytest.raises(ArgumentError, match=text):
        make()


def test_a_window_beyond_the_table():
    x, w = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    with pytest.raises(UnsupportedError, match=r"the activation of .* has 15 numbers; half_width "
                                               "can be at most 13"):  # fmt: skip
        og.matmul(x, w, arithmetic=og.approximate(NARROW, gradient=slopes(14)))
    with pytest.raises(UnsupportedError, match=r"the kernel of .* has 16 numbers; half_width can"):
        og.matmul(x, w, arithmetic=og.approximate(OFFSET, gradient=mean_slopes(15)))
    narrowest = Multiplier.from_array(rng.integers(-4, 5, (4, 4)), signed=True)
    found = og.matmul(x, w, arithmetic=og.approximate(narrowest, gradient=slopes()))
    assert found.shape == (2, 2)


REALS = Multiplier.from_array(
    rng.standard_normal((8, 8)), values=[rng.standard_normal(8) for _ in range(2)], name="reals"
)


@pytest.mark.parametrize(
    ("arithmetic", "given"),
    [
        (og.exact, r"Exact\(\)"),
        (og.python_function(np.matmul), "PythonFunction"),
        (og.approximate(REALS), "<Multiplier reals"),
    ],
)
def test_products_without_a_table_of_integers(arithmetic, given):
    mine = dataclasses.replace(arithmetic, gradient=slopes(4))
    x, w = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    text = (
        r"og.gradients.slopes\(half_width=4, rank=None\) needs a product by a table of integers, "
        rf"as from og.approximate\(multiplier\), and is given {given}"
    )
    with pytest.raises(UnsupportedError, match=text):
        og.matmul(x, w, arithmetic=mine)
    with pytest.raises(UnsupportedError, match=r"mean_slopes\(half_width=4\) needs a product by"):
        og.matmul(x, w, arithmetic=dataclasses.replace(mine, gradient=mean_slopes(4)))


def test_a_range_that_a_layer_remembers():
    """What flows back would be of codes in another range."""
    with pytest.raises(UnsupportedError, match="cannot know the range that a layer remembers"):
        og.approximate(OFFSET, input=Affine(5, momentum=0.9), gradient=slopes())
