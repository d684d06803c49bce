"""Products by a table: every geometry and engine against the table read by NumPy; gradients."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CASES, CONVOLUTIONS, MATMULS, Case, every
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

import opgraft as og
from opgraft import multipliers, reference, values
from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.multipliers import Multiplier
from opgraft.multipliers.codes import integers
from opgraft.products import table as product_table
from opgraft.products.quantized import shared_axes
from opgraft.quantizers import Affine, Symmetric
from opgraft.spec import Conv2D, MatMul

rng = np.random.default_rng(20265)
ODD = Multiplier.from_array(rng.integers(-30000, 30000, (256, 256)), signed=True)  # f(0, b) != 0
NARROW = Multiplier.from_array(rng.integers(-90, 90, (16, 64)), signed=True)
WIDE = Multiplier.from_array(rng.integers(-(2**24), 2**24, (256, 256)), signed=True)
same = og.gradients.by_contraction(og.gradients.same, og.gradients.same)

ARITHMETICS = {
    "exact": og.approximate(multipliers.exact(signed=True)),
    "unsigned": og.approximate(multipliers.mitchell()),
    "odd": og.approximate(ODD),
    "odd, exchanged": og.approximate(ODD, exchanged=True),
    "odd, padding kept": og.approximate(ODD, keeps_padding=True),
    "unsigned, padding kept": og.approximate(multipliers.drum(4), keeps_padding=True),
    "per channel": og.approximate(ODD, kernel=Symmetric(8, per_channel=True)),
    "narrow": og.approximate(NARROW),
    "calibrated": og.approximate(ODD, input=Symmetric(8, limit=1.5)),
    "calibrated, unsigned": og.approximate(multipliers.roba(), input=Affine(8, -0.7, 1.9)),
    "beyond 16 bits": og.approximate(WIDE),
}
SERVED = [
    c for c in CASES
    if not getattr(c.contraction, "pad_value", 0) and 0 not in (*c.left, *c.right, *c.output)
]  # fmt: skip


def codes_of(arithmetic, case: Case, x, w):
    """Both operands as `opgraft.quantizers.Codes`."""
    axes = shared_axes(case.contraction)
    return arithmetic.input.encode(x), arithmetic.kernel.encode(w, axes)


def meaning(arithmetic, case: Case, x, w):
    product = arithmetic.product
    return product.meaning(case.contraction, arithmetic.input, arithmetic.kernel, x, w)


def check(arithmetic, case: Case, x, w):
    got = np.asarray(og.ops.contract(case.contraction, arithmetic, x, w))
    due = meaning(arithmetic, case, x, w)
    assert got.shape == due.shape
    np.testing.assert_allclose(got, due, rtol=2e-6, atol=1e-6 * abs(due).max())


# ---- the meaning, number by number -----------------------------------------------------------


@pytest.mark.parametrize("name", ["odd", "odd, exchanged", "unsigned", "narrow"])
def test_the_meaning_of_a_matrix_product(name):
    arithmetic = ARITHMETICS[name]
    case = Case(MatMul(), (3, 5), (5, 4))
    x, w = case.normals()
    a, b = codes_of(arithmetic, case, x, w)
    product = arithmetic.product
    first, second = (integers(bits, product.multiplier.signed) for bits in product.widths)
    for i, j in np.ndindex(3, 4):
        total = 0
        for k in range(5):
            p, q = int(a.codes[i, k]), int(b.codes[k, j])
            looked_up = product.multiplier(*((q, p) if product.exchanged else (p, q)))
            total += looked_up - a.zero_point * second[q] - b.zero_point * first[p]
            total += a.zero_point * b.zero_point
        due = total * float(a.scale.item()) * float(b.scale.item())
        assert meaning(arithmetic, case, x, w)[i, j] == pytest.approx(due, rel=1e-12)


@pytest.mark.parametrize("keeps", [False, True])
def test_the_meaning_of_what_is_padded(keeps):
    """A corner of an image sees one tap of four: three are padding."""
    arithmetic = og.approximate(ODD, keeps_padding=keeps)
    case = Case(Conv2D(padding=((1, 1), (1, 1))), (1, 2, 3, 1), (2, 2, 1, 1))
    x, w = case.normals()
    a, b = codes_of(arithmetic, case, x, w)
    total = int(ODD(a.codes[0, 0, 0, 0], b.codes[1, 1, 0, 0]))
    if keeps:
        total += sum(int(ODD(0, b.codes[i, j, 0, 0])) for i, j in ((0, 0), (0, 1), (1, 0)))
    due = total * float(a.scale.item()) * float(b.scale.item())
    assert meaning(arithmetic, case, x, w)[0, 0, 0, 0] == pytest.approx(due, rel=1e-12)


# ---- forward ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARITHMETICS)
@every(SERVED[::4])
def test_every_geometry(case, name):
    check(ARITHMETICS[name], case, *case.normals())


@pytest.mark.slow
@pytest.mark.parametrize("name", ARITHMETICS)
@every(SERVED)
def test_every_geometry_of_the_whole_table(case, name):
    check(ARITHMETICS[name], case, *case.normals())


@pytest.mark.parametrize("engine", ["expanded", "rows"])
@pytest.mark.parametrize("name", ["unsigned", "odd", "odd, padding kept", "narrow"])
@every(SERVED[::16])
def test_every_engine(case, name, engine, monkeypatch):
    monkeypatch.setenv("OPGRAFT_TABLE_ENGINE", engine)
    check(ARITHMETICS[name], case, *case.normals())


@pytest.mark.parametrize(
    "shapes", [((300, 70), (70, 65)), ((65, 131), (131, 33)), ((50, 9), (9, 31))]
)
def test_blocks_that_do_not_come_out_even(shapes):
    x, w = (rng.standard_normal(shape, np.float32) for shape in shapes)
    for name in ("unsigned", "odd", "narrow"):
        check(ARITHMETICS[name], Case(MatMul(), *shapes), x, w)


def tables():
    bits = st.integers(2, 8)
    return st.tuples(bits, bits).flatmap(
        lambda bits: of_numpy.arrays(
            np.int64, (2 ** bits[0], 2 ** bits[1]), elements=st.integers(-(2**15), 2**15)
        )
    )


@given(tables(), st.booleans(), st.sampled_from(["expanded", "rows"]), st.data())
def test_any_table(table, signed, engine, data):
    table = table if signed else abs(table)
    arithmetic = og.approximate(Multiplier.from_array(table, signed=signed))
    case = data.draw(st.sampled_from(SERVED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPGRAFT_TABLE_ENGINE", engine)
        check(arithmetic, case, *case.normals())


def test_an_exact_multiplier_gives_the_product_of_the_quantized_operands():
    case = Case(Conv2D((2, 1), "SAME"), (2, 7, 8, 3), (3, 2, 3, 4))
    for multiplier in (multipliers.exact(signed=True), multipliers.exact()):
        arithmetic = og.approximate(multiplier)
        x, w = case.normals()
        a, b = codes_of(arithmetic, case, x, w)
        due = og.ops.contract(case.contraction, og.exact, a.values, b.values)
        got = og.ops.contract(case.contraction, arithmetic, x, w)
        np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-5)


def test_sums_beyond_32_bits():
    k = 40_000
    arithmetic = og.approximate(Multiplier.from_array(np.full((256, 256), -(2**23)), signed=True))
    x, w = np.ones((2, k), np.float32), np.ones((k, 3), np.float32)
    got = np.asarray(og.matmul(x, w, arithmetic=arithmetic))
    np.testing.assert_allclose(got, -k * 2.0**23 / 127**2, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats(dtype):
    x, w = (tf.cast(rng.standard_normal(s), dtype) for s in ((9, 6), (6, 5)))
    got = og.matmul(x, w, arithmetic=ARITHMETICS["exact"])
    assert got.dtype == dtype
    due = og.matmul(tf.cast(x, tf.float32), tf.cast(w, tf.float32), arithmetic=ARITHMETICS["exact"])
    np.testing.assert_allclose(tf.cast(got, tf.float32), due, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["odd", "unsigned", "per channel"])
def test_a_graph_that_knows_no_sizes_gives_the_same_bits(name):
    case = Case(Conv2D(padding="SAME"), (3, 6, 7, 2), (3, 2, 2, 5))
    x, w = case.normals()

    def run(x, w):
        return og.ops.contract(case.contraction, ARITHMETICS[name], x, w)

    graph = tf.function(run, input_signature=[tf.TensorSpec([None] * 4), tf.TensorSpec([None] * 4)])
    np.testing.assert_array_equal(graph(x, w), run(x, w))


# ---- what is odd in an operand -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["odd", "unsigned", "calibrated", "calibrated, unsigned"])
def test_a_nan_is_not_lost(name):
    x, w = rng.standard_normal((5, 4), np.float32), rng.standard_normal((4, 3), np.float32)
    x[2, 1] = np.nan
    assert np.isnan(og.matmul(x, w, arithmetic=ARITHMETICS[name])).all()


@pytest.mark.parametrize("name", ["odd", "unsigned", "per channel"])
def test_zeros_and_empty_batches(name):
    w = rng.standard_normal((4, 3), np.float32)
    y = og.matmul(np.zeros((5, 4), np.float32), w, arithmetic=ARITHMETICS[name])
    assert np.isfinite(y).all()
    y = og.matmul(np.zeros((0, 4), np.float32), w, arithmetic=ARITHMETICS[name])
    assert y.shape == (0, 3)
    y = og.matmul(np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32),
                  arithmetic=ARITHMETICS[name])  # fmt: skip
    np.testing.assert_array_equal(y, np.zeros((2, 3)))


def test_padding_is_refused_that_is_not_zero():
    case = Case(Conv2D(padding="SAME", pad_value=1.0), (1, 4, 5, 2), (2, 2, 2, 3))
    with pytest.raises(UnsupportedError, match="pad_value=1: a product of quantized op"):
        og.ops.contract(case.contraction, ARITHMETICS["odd"], *case.normals())


# ---- backward ------------------------------------------------------------------------------------


def gradients(function, *operands):
    with tf.GradientTape() as tape:
        tensors = [tf.convert_to_tensor(x) for x in operands]
        tape.watch(tensors)
        y = function(*tensors)
    upstream = np.random.default_rng(3).standard_normal(y.shape).astype(np.float32)
    return tape.gradient(y, tensors, upstream), upstream


@pytest.mark.parametrize("name", ["odd", "unsigned", "per channel", "calibrated"])
@every([*CONVOLUTIONS[::24], *MATMULS[1::6]])
def test_the_gradient_is_native_at_the_quantized_operands(case, name):
    if case not in SERVED:
        pytest.skip("padded with another value, or without elements")
    arithmetic, c = ARITHMETICS[name], case.contraction
    x, w = case.normals()
    got, upstream = gradients(lambda a, b: og.ops.contract(c, arithmetic, a, b), x, w)
    a, b = codes_of(arithmetic, case, x, w)
    due = list(reference.vjp(c, a.values, b.values, upstream))
    if name == "calibrated":
        due[0] = due[0] * (abs(x) <= 1.5)
    for g, d in zip(got, due, strict=True):
        np.testing.assert_allclose(g, d, rtol=1e-4, atol=1e-4 * (1 + abs(d).max()))


def test_what_is_clipped_sends_nothing_back():
    x = np.array([[-0.8, -0.69, 0.0, 1.89, 2.5]], np.float32)
    arithmetic = og.approximate(multipliers.exact(), input=Affine(8, -0.7, 1.9))
    (gx, _), _ = gradients(lambda a, b: og.matmul(a, b, arithmetic=arithmetic), x,
                           np.ones((5, 1), np.float32))  # fmt: skip
    np.testing.assert_array_equal(np.asarray(gx)[0] != 0, [False, True, True, True, False])


def test_back_through_the_same_table():
    case = Case(MatMul(), (7, 5), (5, 4))
    x, w = case.normals()
    arithmetic = og.approximate(ODD, input=Symmetric(8, limit=1.5), gradient=same)
    got, upstream = gradients(lambda a, b: og.matmul(a, b, arithmetic=arithmetic), x, w)
    a, b = codes_of(arithmetic, case, x, w)
    anew = og.approximate(ODD)  # what flows back has ranges of its own
    due_x = meaning(anew, Case(MatMul(transpose_b=True), (7, 4), (5, 4)), upstream, b.values)
    due_w = meaning(anew, Case(MatMul(transpose_a=True), (7, 5), (7, 4)), a.values, upstream)
    np.testing.assert_allclose(got[0], due_x * (abs(x) <= 1.5), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(got[1], due_w, rtol=1e-4, atol=1e-3)


def test_the_operation_carries_no_table_that_its_gradient_does_not_use():
    graph = tf.function(lambda a, b: og.matmul(a, b, arithmetic=ARITHMETICS["odd"]))
    nodes = graph.get_concrete_function(tf.TensorSpec([3, 4]), tf.TensorSpec([4, 2])).graph
    (node,) = [n for n in nodes.as_graph_def().node if n.op == "OpgraftGraft"]
    assert json.loads(node.attr["arithmetic"].s)["product"] == {"type": "exact"}


# ---- verified --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["odd, exchanged", "calibrated, unsigned"])
def test_verify_judges_it_by_its_table(name):
    report = og.verify(ARITHMETICS[name])
    assert report.passed, str(report)


def test_verify_sees_a_product_that_is_not_that_of_its_table(monkeypatch):
    """One entry of 65,536, which small integers would not reach."""
    arithmetic = og.approximate(ODD)
    true = product_table.Table.meaning

    def other(self, c, input, kernel, left, right):
        table = self.multiplier.table.copy()
        if not left.size or not right.size:
            return true(self, c, input, kernel, left, right)
        code = kernel.encode(right, shared_axes(c)).codes.flat[0]
        table[input.encode(left).codes.flat[0], code] += 3000
        changed = Multiplier.from_array(table, signed=True)
        return true(dataclasses.replace(self, multiplier=changed), c, input, kernel, left, right)

    monkeypatch.setattr(product_table.Table, "meaning", other)
    report = og.verify(arithmetic)
    assert not report.forward.passed
    (check,) = report.forward.checks
    assert "elements are wrong; the first" in check.message


# ---- a value, in layers and files ------------------------------------------------------------


@pytest.mark.parametrize("name", ARITHMETICS)
def test_it_is_a_value(name):
    arithmetic = ARITHMETICS[name]
    again = values.from_json(values.to_json(arithmetic))
    assert again == arithmetic
    assert hash(again) == hash(arithmetic)
    assert len({arithmetic, again}) == 1
    assert not arithmetic.supports_jit


def network(arithmetic):
    return keras.Sequential([
        keras.Input((8, 9, 3)), og.layers.Conv2D(4, 3, strides=2, arithmetic=arithmetic),
        keras.layers.ReLU(), og.layers.DepthwiseConv2D(2, arithmetic=arithmetic),
        keras.layers.Flatten(), og.layers.Dense(5, arithmetic=arithmetic),
    ])  # fmt: skip


def test_a_network_trains_is_saved_and_exported(tmp_path):
    x, y = rng.standard_normal((20, 8, 9, 3), np.float32), rng.standard_normal((20, 5), np.float32)
    model = network(ARITHMETICS["exact"])
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    losses = model.fit(x, y, batch_size=8, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    og.calibrate(model, x)
    due = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), due)
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.serve(x), due, rtol=1e-5, atol=1e-6)


# ---- bad input -------------------------------------------------------------------------------


def test_what_is_no_multiplier():
    with pytest.raises(ArgumentError, match=r"an og\.Multiplier is needed; og\.Multiplier\.from_"):
        og.approximate(np.zeros((256, 256)))
    floats = Multiplier.from_array(rng.standard_normal((256, 256)), signed=True)
    with pytest.raises(UnsupportedError, match="no integers for operands that are; scale"):
        og.approximate(floats)
    large = Multiplier.from_array(np.full((4, 4), -(2**25)), signed=True)
    with pytest.raises(UnsupportedError, match="holds 33554432; products beyond 16777216"):
        og.approximate(large)


@pytest.mark.parametrize(
    ("multiplier", "options", "text"),
    [
        (ODD, {"input": Affine(8)}, r"signed codes of 8 bits there, as from og.quantizers.Symm"),
        (ODD, {"kernel": Symmetric(7)}, "signed codes of 8 bits there"),
        (NARROW, {"input": Symmetric(8)}, "signed codes of 4 bits there"),
        (multipliers.roba(), {"kernel": Symmetric(8)}, r"unsigned codes .* og.quantizers.Affine"),
        (ODD, {"input": Symmetric(8, per_channel=True)}, "only a kernel has channels of its own"),
        (ODD, {"input": og.quantizers.identity}, r"Arithmetic\(input=Identity\(\)\)"),
    ],
)
def test_quantizers_that_do_not_make_its_codes(multiplier, options, text):
    with pytest.raises(ArgumentError, match=text):
        og.approximate(multiplier, **options)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Symmetric(17), "bits=17: a whole number from 2 to 16"),
        (lambda: Symmetric(8, limit=0), r"limit=0\): it must be a number above 0"),
        (lambda: Symmetric(8, limit=float("nan")), "it must be a number above 0"),
        (lambda: Symmetric(8, limit=1.0, per_channel=True), "give one of the two"),
        (lambda: Affine(8, 0.5, 1.0), "give both, low below high and 0 between them"),
        (lambda: Affine(8, None, 1.0), "give both, low below high"),
        (lambda: Affine(True), "bits=True"),
    ],
)
def test_quantizers_refuse_what_is_no_range(make, text):
    with pytest.raises(ArgumentError, match=text):
        make()


def test_an_engine_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("OPGRAFT_TABLE_ENGINE", "fast")
    with pytest.raises(og.errors.SettingError, match="'fast' is not one of auto, expanded, rows"):
        og.matmul(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32),
                  arithmetic=ARITHMETICS["odd"])  # fmt: skip


def test_xla_is_refused_by_name():
    run = tf.function(lambda a, b: og.matmul(a, b, arithmetic=ARITHMETICS["odd"]), jit_compile=True)
    with pytest.raises(UnsupportedError, match="runs through Table, which XLA cannot compile yet"):
        run(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32))
