"""Approximate arithmetics beside the exactly summed table: accumulators, wide codes, floats."""

import dataclasses

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from cases import CASES, Case, every
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import opgraft as og
from opgraft.errors import ArgumentError, DtypeError, OpgraftError, PrototypeError, UnsupportedError
from opgraft.native import core
from opgraft.products import accumulators
from opgraft.quantizers import Affine, Levels, Symmetric
from opgraft.spec import Conv2D, DepthwiseConv2D, MatMul

rng = np.random.default_rng(5)
SOURCE = """
#include <stdint.h>
int32_t mul12(int16_t a, int16_t b) { return ((int32_t)a * b) & ~7; }
uint32_t mul10(uint16_t a, uint16_t b) { return (uint32_t)a * b + (a == 0); }
int32_t add(int32_t sum, int32_t product) { return (sum + product) | 1; }
int32_t exact(int16_t a, int16_t b) { return (int32_t)a * b; }
double real(double a, double b) { return a * b; }
"""
FP8 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("functions") / "functions.c"
    path.write_text(SOURCE)
    return path


SIGNED = og.Multiplier.from_array(rng.integers(-9000, 9000, (256, 256)), signed=True)
UNSIGNED = og.Multiplier.from_array(rng.integers(0, 4000, (64, 32)), signed=False)
EIGHT = og.Multiplier.from_array(
    np.nan_to_num(np.multiply.outer(FP8, FP8)) * 1.01, values=(FP8, FP8)
)
FLOATS = og.FloatMultiplier.from_array(rng.uniform(1, 4, (16, 16)), name="any")


def arithmetic(name: str, source) -> og.Arithmetic:
    def function(declared):
        return og.c_function(source, declared)

    held = og.accumulators
    return {
        "wraps": lambda: og.approximate(SIGNED, accumulator=held.wrap(14)),
        "wraps, unsigned": lambda: og.approximate(
            UNSIGNED, accumulator=held.wrap(13, signed=False), keeps_padding=True),
        "saturates": lambda: og.approximate(SIGNED, accumulator=held.saturate(15)),
        "saturates, unsigned": lambda: og.approximate(
            UNSIGNED, accumulator=held.saturate(13, signed=False), keeps_padding=True),
        "saturates, exchanged": lambda: og.approximate(
            UNSIGNED, accumulator=held.saturate(13), exchanged=True),
        "adder": lambda: og.approximate(UNSIGNED, accumulator=held.c_function(
            source, "int32_t add(int32_t sum, int32_t product)")),
        "fp8": lambda: og.approximate(EIGHT),
        "fp8, padding kept": lambda: og.approximate(EIGHT, keeps_padding=True),
        "signed function": lambda: og.approximate(
            function("int32_t mul12(int16_t a, int16_t b)"), input=Symmetric(12),
            kernel=Symmetric(11, per_channel=True)),
        "unsigned function": lambda: og.approximate(
            function("uint32_t mul10(uint16_t a, uint16_t b)"), input=Affine(10), kernel=Affine(9)),
        "unsigned function, padding kept": lambda: og.approximate(
            function("uint32_t mul10(uint16_t a, uint16_t b)"), input=Affine(10), kernel=Affine(9),
            keeps_padding=True),
        "mantissas": lambda: og.approximate(FLOATS),
        "mantissas, exchanged": lambda: og.approximate(FLOATS, exchanged=True),
    }[name]()  # fmt: skip


NAMES = [
    "wraps", "wraps, unsigned", "saturates", "saturates, unsigned", "saturates, exchanged", "adder",
    "fp8", "fp8, padding kept", "signed function", "unsigned function",
    "unsigned function, padding kept", "mantissas", "mantissas, exchanged",
]  # fmt: skip
SOME = [c for c in CASES[::5] if not getattr(c.contraction, "pad_value", 0)]


def meaning(held: og.Arithmetic, case: Case, left, right) -> np.ndarray:
    return held.product.meaning(case.contraction, held.input, held.kernel, left, right)


@pytest.mark.parametrize("name", NAMES)
@every(SOME)
def test_equals_its_meaning(case, name, source):
    held = arithmetic(name, source)
    left, right = case.normals()
    due = meaning(held, case, left, right)
    got = og.ops.contract(case.contraction, held, left, right).numpy()
    assert got.dtype == left.dtype
    np.testing.assert_allclose(got, due, rtol=1e-6, atol=1e-6 * np.max(abs(due), initial=1))


@pytest.mark.parametrize("name", NAMES)
@every(SOME[::6])
def test_graphs_compute_the_same(case, name, source):
    held = arithmetic(name, source)
    left, right = case.normals()
    got = og.ops.contract(case.contraction, held, left, right).numpy()

    @tf.function
    def traced(left, right):
        return og.ops.contract(case.contraction, held, left, right)

    np.testing.assert_array_equal(traced(left, right).numpy(), got)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_native_at_the_operands_used(name, source):
    held = arithmetic(name, source)
    case = Case(Conv2D(padding="SAME", strides=(2, 1)), (2, 7, 6, 3), (3, 2, 3, 4))
    left, right = map(tf.constant, case.normals())
    used = [left, right]
    if not isinstance(held.product, og.products.Mantissas):
        axes = og.products.quantized.shared_axes(case.contraction)
        used = [
            held.input.encode(left.numpy()).values,
            held.kernel.encode(right.numpy(), axes).values,
        ]
    upstream = tf.constant(rng.standard_normal(case.output, np.float32))
    pulled = []
    for kind, operands in ((held, (left, right)), (og.exact, map(tf.constant, used))):
        operands = list(operands)
        with tf.GradientTape() as tape:
            tape.watch(operands)
            y = og.ops.contract(case.contraction, kind, *operands)
        pulled.append(tape.gradient(y, operands, upstream))
    for got, due in zip(*pulled, strict=True):
        np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-5)
        assert np.abs(got).max() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_trains_and_is_saved(name, source, tmp_path):
    model = keras.Sequential([
        keras.Input((7, 6, 2)),
        og.layers.Conv2D(4, (3, 2), padding="same", activation="relu",
                         arithmetic=arithmetic(name, source)),
        keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3),
    ])  # fmt: skip
    x, y = rng.standard_normal((12, 7, 6, 2), np.float32), rng.standard_normal((12, 3), np.float32)
    model.compile(keras.optimizers.Adam(0.02), "mse")
    before = model.layers[0].kernel.numpy()
    losses = model.fit(x, y, batch_size=5, epochs=6, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] or "wraps" in name  # which no gradient can know
    assert (model.layers[0].kernel.numpy() != before).any()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].arithmetic == model.layers[0].arithmetic
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.parametrize("name", NAMES[:11])
def test_bfloat16_and_double_operands(name, source):
    held = arithmetic(name, source)
    case = Case(MatMul(), (3, 7), (7, 4))
    left, right = case.normals()
    for dtype, margin in ((tf.bfloat16, 1e-2), (tf.float64, 1e-6)):
        operands = tf.cast(left, dtype), tf.cast(right, dtype)
        got = og.ops.contract(case.contraction, held, *operands)
        assert got.dtype == dtype
        narrow = np.float32 if dtype == tf.bfloat16 else np.float64
        due = meaning(held, case, *(x.numpy().astype(narrow) for x in operands))
        np.testing.assert_allclose(
            got.numpy().astype(float), due, rtol=margin, atol=margin * abs(due).max()
        )


def test_a_c_gradient_is_given_the_output_of_the_table(compile_c):
    source = """
void vjp(const float *a, const float *b, const float *y, const float *dy, int m, int k, int n,
         float *da, float *db) {
  for (int i = 0; i < m * k; i++) da[i] = y[0];
  for (int i = 0; i < k * n; i++) db[i] = y[m * n - 1] * dy[0];
}
"""
    gradient = og.gradients.c_function(compile_c(source))
    left, right = map(tf.constant, Case(MatMul(), (3, 5), (5, 4)).normals())
    for name in ("limit", "dynamic"):
        input = Symmetric(8, limit=2.0) if name == "limit" else Symmetric(8)
        held = og.approximate(SIGNED, input=input, gradient=gradient)
        with tf.GradientTape() as tape:
            tape.watch((left, right))
            y = og.matmul(left, right, arithmetic=held)
        da, db = tape.gradient(y, (left, right), tf.fill((3, 4), 2.0))
        inside = input.passes(left.numpy())
        np.testing.assert_allclose(da, np.where(inside, y[0, 0], 0), rtol=1e-5)
        np.testing.assert_allclose(db, np.full((5, 4), 2 * y[2, 3]), rtol=1e-5)


def test_what_has_run_is_counted(source, monkeypatch):
    table, low = (
        og.approximate(SIGNED),
        og.approximate(og.multipliers.broken_array(h1=2, signed=True)),
    )
    saturating = arithmetic("saturates", source)
    for held, case, engine in (
        (table, Case(MatMul(), (80, 7), (7, 9)), "expanded"),
        (table, Case(MatMul(), (3, 7), (7, 9)), "rows"),
        (table, Case(DepthwiseConv2D(), (1, 5, 6, 3), (2, 3, 3, 1)), "depthwise"),
        (saturating, Case(Conv2D(), (1, 5, 6, 3), (2, 3, 3, 4)), "in order"),
        (arithmetic("mantissas", source), Case(MatMul(), (3, 7), (7, 9)), "in order"),
        (low, Case(MatMul(), (80, 7), (7, 9)), "low_rank"),
    ):
        before = core.runs()
        og.ops.contract(case.contraction, held, *case.normals())
        assert [name for name, count in core.runs().items() if count > before[name]] == [engine]
    monkeypatch.setenv("OPGRAFT_TABLE_ENGINE", "rows")
    before = core.runs()
    og.matmul(*Case(MatMul(), (80, 7), (7, 9)).normals(), arithmetic=low)
    assert core.runs() == before | {"rows": before["rows"] + 1}


# ---- accumulators ----------------------------------------------------------------------------


@given(
    hnp.arrays(np.int64, (3, 6, 2), elements=st.integers(-300, 300)),
    hnp.arrays(bool, (3, 6)),
    st.integers(2, 12),
    st.booleans(),
)
def test_meanings_by_hand(products, present, bits, signed):
    wraps, saturates = (
        accumulators.wrap(bits, signed=signed),
        accumulators.saturate(bits, signed=signed),
    )
    for i, j in np.ndindex(3, 2):
        wrapped = stopped = 0
        for product in products[i, present[i], j].tolist():
            wrapped += product
            while wrapped > wraps.high:
                wrapped -= 2**bits
            while wrapped < wraps.low:
                wrapped += 2**bits
            stopped = max(saturates.low, min(saturates.high, stopped + product))
        assert wraps.add_up(products, present)[i, j] == wrapped
        assert saturates.add_up(products, present)[i, j] == stopped


def test_a_wide_accumulator_is_exact():
    case = Case(Conv2D(padding="SAME"), (2, 5, 6, 3), (3, 2, 3, 4))
    left, right = case.normals()
    due = og.ops.contract(case.contraction, og.approximate(SIGNED), left, right).numpy()
    for wide in (accumulators.wrap(24), accumulators.saturate(24), accumulators.saturate(30)):
        got = og.ops.contract(
            case.contraction, og.approximate(SIGNED, accumulator=wide), left, right
        )
        np.testing.assert_array_equal(got.numpy(), due)
    narrow = og.approximate(SIGNED, accumulator=accumulators.saturate(12))
    assert (og.ops.contract(case.contraction, narrow, left, right).numpy() != due).any()


@pytest.mark.parametrize("bits", [1, 33, 8.0, "8", True, None])
def test_widths_that_are_none(bits):
    with pytest.raises(ArgumentError, match=r"bits=.*: a whole number from 2 to 32 is needed"):
        accumulators.wrap(bits)
    with pytest.raises(ArgumentError, match="a whole number from 2 to 32 is needed"):
        accumulators.saturate(bits)


def test_what_is_no_accumulator(source):
    with pytest.raises(ArgumentError, match=r"accumulator=12: one of og\.accumulators is needed"):
        og.approximate(SIGNED, accumulator=12)
    with pytest.raises(PrototypeError, match="is no adder: give one function of two integers"):
        accumulators.c_function(source, "double real(double a, double b)")
    with pytest.raises(UnsupportedError, match="these are summed in double, not by Saturate"):
        og.approximate(EIGHT, accumulator=accumulators.saturate(12))
    with pytest.raises(
        ArgumentError, match=r"the products of an og\.FloatMultiplier are not added"
    ):
        og.approximate(FLOATS, accumulator=accumulators.wrap(12))
    function = og.c_function(source, "int32_t exact(int16_t a, int16_t b)")
    with pytest.raises(ArgumentError, match="the products of a C function are not added by an"):
        og.approximate(function, accumulator=accumulators.wrap(12))


def test_an_adder_whose_source_is_gone(source):
    adder = accumulators.c_function(source, "int32_t add(int32_t sum, int32_t product)")
    symbol = adder.to_config()["symbol"]
    assert accumulators.Adder.from_fields(symbol) == adder
    symbol[symbol.index(adder.symbol.binary)] = "never_compiled"
    symbol[0] += "_gone"
    with pytest.raises(OpgraftError, match="_gone"):
        accumulators.Adder.from_fields(symbol)


# ---- C functions of wide codes -----------------------------------------------------------------


def test_an_exact_function_gives_the_exact_product_of_what_was_quantized(source):
    held = og.approximate(og.c_function(source, "int32_t exact(int16_t a, int16_t b)"))
    assert held.input == held.kernel == Symmetric(16)
    case = Case(Conv2D(padding="SAME"), (2, 5, 4, 3), (3, 2, 3, 4))
    left, right = case.normals()
    got = og.ops.contract(case.contraction, held, left, right).numpy()
    exact = og.ops.contract(case.contraction, og.exact, left, right).numpy()
    np.testing.assert_allclose(got, exact, atol=2e-3)
    assert (got != exact).any()


def test_what_no_function_of_codes_is(source):
    with pytest.raises(ArgumentError, match="is no product of quantized operands: one C function"):
        og.approximate(og.c_function(source, "double real(double a, double b)"))
    with pytest.raises(ArgumentError, match="is no product of quantized operands"):
        og.approximate(og.exact)
    function = og.c_function(source, "int32_t mul12(int16_t a, int16_t b)")
    with pytest.raises(ArgumentError, match=r"takes signed numbers of at most 16 bits, as from"):
        og.approximate(function, input=Affine(12))
    with pytest.raises(ArgumentError, match="write the C function with its parameters exchanged"):
        og.approximate(function, exchanged=True)


# ---- float multipliers ---------------------------------------------------------------------------


def test_an_exact_table_of_mantissas_is_bfloat16_arithmetic():
    exact = og.FloatMultiplier.from_function(lambda a, b: a * b, 7)
    case = Case(MatMul(), (5, 9), (9, 4))
    left, right = case.normals()
    rounded = [x.astype(ml_dtypes.bfloat16).astype(np.float64) for x in (left, right)]
    got = og.ops.contract(case.contraction, og.approximate(exact), left, right).numpy()
    np.testing.assert_array_equal(got, (rounded[0] @ rounded[1]).astype(np.float32))
    assert exact.bits == 7


def test_an_integer_multiplier_multiplies_mantissas():
    integer = og.multipliers.mitchell(8)
    floating = og.FloatMultiplier.from_multiplier(integer)
    assert (floating.bits, floating.name) == (7, integer.name)
    a, b = 1 + 37 / 128, 1 + 100 / 128
    due = integer(128 + 37, 128 + 100) / 2**14
    assert floating.multiply(np.array(-a * 8), np.array(b / 4)) == -2 * due


@given(hnp.arrays(np.float32, 8, elements=st.floats(width=32, allow_nan=False)), st.integers(1, 11))
def test_operands_are_rounded_to_their_mantissas(x, bits):
    exact = og.FloatMultiplier.from_function(lambda a, b: a * b, bits)
    got = exact.multiply(x, np.float32(1))
    finite = np.isfinite(x)
    np.testing.assert_array_equal(got[~finite], x[~finite])
    spacing = np.exp2(np.frexp(x[finite].astype(float))[1] - 1.0 - bits)
    assert (abs(got[finite] - x[finite]) <= spacing / 2).all()
    steps = got[finite] / spacing
    np.testing.assert_array_equal(steps, np.rint(steps))


def test_backward_through_the_same_mantissas():
    same = og.gradients.by_contraction(og.gradients.same, og.gradients.same)
    held = og.approximate(FLOATS, gradient=same)
    left, right = (tf.constant(x) for x in Case(MatMul(), (5, 7), (7, 4)).normals())
    upstream = tf.constant(rng.standard_normal((5, 4), np.float32))
    with tf.GradientTape() as tape:
        tape.watch((left, right))
        y = og.matmul(left, right, arithmetic=held)
    got = tape.gradient(y, (left, right), upstream)
    due = (
        held.product.meaning(MatMul(False, True), None, None, upstream.numpy(), right.numpy()),
        held.product.meaning(MatMul(True, False), None, None, left.numpy(), upstream.numpy()),
    )
    for one, other in zip(got, due, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_what_is_no_float_multiplier():
    with pytest.raises(ArgumentError, match=r"has the shape \(3, 3\); it must be \[2\^m, 2\^m\]"):
        og.FloatMultiplier.from_array(np.ones((3, 3)))
    for bad in (np.zeros((4, 4)), np.full((4, 4), np.nan), np.full((4, 4), "1")):
        with pytest.raises(ArgumentError, match="must hold finite numbers above 0"):
            og.FloatMultiplier.from_array(bad)
    with pytest.raises(ArgumentError, match="bits=12 of a mantissa must be 1 to 11"):
        og.FloatMultiplier.from_function(lambda a, b: a * b, 12)
    with pytest.raises(ArgumentError, match="does not multiply mantissas: an unsigned multiplier"):
        og.FloatMultiplier.from_multiplier(SIGNED)
    with pytest.raises(ArgumentError, match="a float product with 0 is 0"):
        og.approximate(FLOATS, keeps_padding=True)
    for dtype in (np.float64, np.int32):
        with pytest.raises(DtypeError, match=r"it multiplies float32, bfloat16 or float16\. Cast"):
            og.matmul(
                np.ones((2, 3), dtype), np.ones((3, 2), dtype), arithmetic=og.approximate(FLOATS)
            )
    config = FLOATS.to_config()
    with pytest.raises(ArgumentError, match="the saved multiplier's mantissas cannot be read"):
        og.FloatMultiplier.from_fields(table="AAAA", rows=16, name="")
    assert og.FloatMultiplier.from_fields(config["table"], 16, "other") == FLOATS


# ---- levels --------------------------------------------------------------------------------------


@given(
    hnp.arrays(np.float32, 50, elements=st.floats(-2000, 2000, width=32)),
    st.sampled_from([None, 1.0, 0.37]),
)
def test_the_nearest_level(x, scale):
    for q in (Levels.of(FP8, scale), Levels.of(ml_dtypes.float8_e5m2, scale)):
        found = q.encode(x)
        levels = q.numbers[np.isfinite(q.numbers)]
        scaled = (x / found.scale).astype(np.float64)
        distance = abs(scaled[:, None] - levels).min(1)
        np.testing.assert_allclose(abs(scaled - q.numbers[found.codes]), distance, atol=1e-12)
        np.testing.assert_array_equal(
            found.values, q.numbers[found.codes].astype(np.float32) * found.scale
        )
        again = q.encode(found.values)
        if scale is not None:
            np.testing.assert_array_equal(again.values, found.values)


def test_float8_rounds_as_its_dtype():
    x = np.linspace(-440, 440, 9973, dtype=np.float32)
    np.testing.assert_array_equal(
        Levels.of(FP8, 1.0).encode(x).values, x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    )
    halves = ((FP8[1:120] + FP8[:119]) / 2).astype(np.float32)
    for sign in (1, -1):
        np.testing.assert_array_equal(
            Levels.of(FP8, 1.0).encode(sign * halves).values,
            (sign * halves).astype(ml_dtypes.float8_e4m3fn).astype(np.float32),
        )


def test_levels_are_values_that_can_be_calibrated(tmp_path):
    q = Levels.of(FP8)
    assert q == Levels.of(ml_dtypes.float8_e4m3fn)
    assert hash(q) == hash(Levels.of(FP8))
    assert q != dataclasses.replace(q, scale=2.0)
    assert q.calibrated(-4.48, 1.0) == dataclasses.replace(q, scale=0.01)
    assert q.calibrated(-4.48, 1.0).dynamic() == q
    assert (q.bits, q.largest, q.zero) == (8, 448.0, 0)
    inside = q.calibrated(-448, 448).passes(np.float32([-449, -448, 0, 448, 449]))
    assert inside.tolist() == [False, True, True, True, False]
    model = keras.Sequential(
        [keras.Input((5,)), og.layers.Dense(3, arithmetic=og.approximate(EIGHT))]
    )
    x = rng.standard_normal((40, 5), np.float32)
    og.calibrate(model, x)
    assert model.layers[0].arithmetic.input == q.calibrated(float(x.min()), float(x.max()))


def test_what_are_no_levels():
    with pytest.raises(ArgumentError, match="Levels of 5 numbers: one for each code is needed"):
        Levels((1.0,) * 5)
    with pytest.raises(ArgumentError, match="at least two finite numbers that differ"):
        Levels((1.0, 1.0, float("nan"), None))
    for scale in (0, -1, "1", float("nan")):
        with pytest.raises(ArgumentError, match="must be a number from 1e-30 to 1e30"):
            Levels.of(FP8, scale)
    with pytest.raises(ArgumentError, match=r"takes codes of its own numbers there, as from og"):
        og.approximate(EIGHT, input=Symmetric(8))
    with pytest.raises(ArgumentError, match=r"takes signed codes of 8 bits there"):
        og.approximate(SIGNED, input=Levels.of(FP8))


@pytest.mark.parametrize("name", ["fp8", "mantissas", "signed function", "saturates"])
def test_nan_stays_and_zeros_and_nothing_are_right(name, source):
    held = arithmetic(name, source)
    zeros = og.matmul(np.zeros((2, 5), np.float32), np.zeros((5, 3), np.float32), arithmetic=held)
    if name != "saturates":  # its f(0, 0) is not 0, but its scale is 1
        np.testing.assert_array_equal(zeros, np.zeros((2, 3)))
    bad = np.ones((2, 5), np.float32)
    bad[1, 2] = np.nan
    got = og.matmul(bad, np.ones((5, 3), np.float32), arithmetic=held).numpy()
    assert np.isnan(got[1]).all()
    empty = og.matmul(np.zeros((0, 5), np.float32), np.ones((5, 3), np.float32), arithmetic=held)
    assert empty.shape == (0, 3)


def test_a_table_that_the_core_computes_otherwise_is_refused(monkeypatch):
    from opgraft.backends.tensorflow import self_check, tables

    monkeypatch.setattr(tables, "_in_order", lambda *_: tf.zeros((67, 9), tf.int64))
    self_check.check_engine.cache_clear()
    with pytest.raises(
        OpgraftError, match=r"opgraft does not compute <Multiplier .*a small matrix"
    ):
        og.approximate(SIGNED, accumulator=accumulators.saturate(9))
    monkeypatch.setattr(tables, "mantissas", lambda *_: tf.zeros((7, 9), tf.float64))
    with pytest.raises(OpgraftError, match="opgraft does not compute <FloatMultiplier"):
        og.approximate(FLOATS)
    self_check.check_engine.cache_clear()
