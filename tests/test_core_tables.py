"""Products by a table and quantization in the compiled core, without a framework in between."""

import ctypes
import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from abi import (
    CODES,
    CORE,
    INVALID_ARGUMENT,
    UNIMPLEMENTED,
    Call,
    Guarded,
    MatmulSpec,
    QuantizeSpec,
    Table,
    geometry,
    matmul_spec,
    message,
    run,
)
from cases import CASES, CONVOLUTIONS, MATMULS, Case, every
from hypothesis import given
from hypothesis import strategies as st

from opgraft import reference
from opgraft.spec import Conv2D, DepthwiseConv2D, MatMul

VARIANTS = CORE.og_variants().decode().split()
ENGINES = {"auto": 0, "expanded": 1, "rows": 2}
RESULTS = {"i32": np.int32, "i64": np.int64}


@pytest.fixture(autouse=True)
def restored():
    """Variant and threads as they were before the test."""
    before, threads = CORE.og_variant(), CORE.og_threads()
    yield
    CORE.og_select_variant(before, message())
    CORE.og_set_threads(threads)


def select(variant: str, threads: int) -> None:
    assert CORE.og_select_variant(variant.encode(), message()) == 0
    CORE.og_set_threads(threads)


every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_count = pytest.mark.parametrize("threads", [1, 2, 3])


# ---- the meaning ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Multiplier:
    """A table as the core takes it."""

    entries: np.ndarray
    zeros: tuple[int, int] = (0, 0)
    signed: bool = False
    keeps: bool = False

    @functools.cached_property
    def summed(self) -> np.ndarray:
        """f(a, b) - zero_a b - zero_b a + zero_a zero_b."""
        a, b = (numbers(size, self.signed) for size in self.entries.shape)
        za, zb = self.zeros
        return self.entries - za * b[None] - zb * a[:, None] + za * zb

    def codes(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(self.entries.size).integers
        rows, columns = self.entries.shape
        return draw(0, rows, case.left, np.uint8), draw(0, columns, case.right, np.uint8)

    def meaning(self, case: Case, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        table = np.concatenate([self.summed, np.zeros((1, self.summed.shape[1]), np.int64)])
        c, nothing = case.contraction, len(self.summed)
        if isinstance(c, Conv2D):
            zero = self.zeros[0] % nothing if self.keeps else nothing
            c = dataclasses.replace(c, pad_value=float(zero))
        products = lambda rows, columns: table[rows[:, :, None], columns[None]].sum(1)  # noqa: E731
        return reference.by_matmul(c, a.astype(int), b.astype(int), products)

    def structure(self, engine: str = "auto") -> tuple[Table, np.ndarray]:
        entries = np.ascontiguousarray(self.entries, np.int32)
        table = Table(entries.ctypes.data, CODES["i32"], *entries.shape, *self.zeros, self.signed,
                      self.keeps, ENGINES[engine])  # fmt: skip
        return table, entries


def numbers(size: int, signed: bool) -> np.ndarray:
    codes = np.arange(size)
    return np.where(signed & (codes >= size // 2), codes - size, codes)


def random(rows=256, columns=256, low=-9000, high=9000, **options) -> Multiplier:
    draw = np.random.default_rng(rows * 1000 + columns + abs(high)).integers
    return Multiplier(draw(low, high, (rows, columns)), **options)


MULTIPLIERS = {
    "short": random(),
    "signed": random(signed=True, low=-32000, high=32000),
    "zero points": random(low=0, high=65000, zeros=(3, 250)),
    "narrow": random(16, 64, -90, 90, signed=True),
    "narrowest": random(4, 4, -9, 9, zeros=(2, 1)),
    "far from zero": random(low=2**24 - 60000, high=2**24),
    "long": random(low=-(2**24), high=2**24),
}


def prepared(case: Case, multiplier: Multiplier, engine="auto", result="i32", operand="u8"):
    """(kind, call, spec, what must stay alive)"""
    table, entries = multiplier.structure(engine)
    call = Call(None, CODES[operand], CODES[result], 0, 0, ctypes.addressof(table))
    if isinstance(case.contraction, MatMul):
        spec, alive = matmul_spec(case)
        return "matmul", call, spec, (table, entries, alive)
    spec = geometry(case.contraction, case.left, case.right)
    assert CORE.og_conv2d_resolve(ctypes.byref(spec), message()) == 0
    return "conv2d", call, spec, (table, entries)


def compute(case: Case, multiplier: Multiplier, a, b, engine="auto", result="i32") -> np.ndarray:
    kind, call, spec, _alive = prepared(case, multiplier, engine, result)
    raw, status, text = run(kind, call, spec, a, b, math.prod(case.output))
    assert status == 0, text
    return raw.view(RESULTS[result]).reshape(case.output)


def refusal(case: Case, multiplier: Multiplier, a, b, result="i32") -> str:
    kind, call, spec, _alive = prepared(case, multiplier, result=result)
    _, status, text = run(kind, call, spec, a, b, math.prod(case.output))
    assert status == INVALID_ARGUMENT
    return text


def matrices(m: int, k: int, n: int, transposed=False) -> Case:
    left, right = ((k, m), (n, k)) if transposed else ((m, k), (k, n))
    return Case(MatMul(transposed, transposed), left, right)


def unpadded(cases):
    """Without what is refused, and what gives an image without pixels."""
    return [c for c in cases if not getattr(c.contraction, "pad_value", 0) and 0 not in c.output]


# ---- contractions --------------------------------------------------------------------------

SIZES = [  # around the sizes of blocks, tiles and vectors
    (1, 1, 1), (3, 5, 4), (47, 33, 9), (48, 8, 8), (49, 31, 7), (70, 65, 40), (129, 64, 31),
    (60, 100, 66), (1, 130, 200), (2, 3, 1),
]  # fmt: skip


@every_variant
@every_count
@pytest.mark.parametrize("name", MULTIPLIERS)
def test_matrix_products(name, variant, threads):
    select(variant, threads)
    multiplier = MULTIPLIERS[name]
    for (m, k, n), transposed in itertools.product(SIZES, (False, True)):
        case = matrices(m, k, n, transposed)
        a, b = multiplier.codes(case)
        due = multiplier.meaning(case, a, b)
        result = "i64" if abs(multiplier.summed).max() * k >= 2**31 - 2**17 else "i32"
        for engine in ENGINES:
            np.testing.assert_array_equal(compute(case, multiplier, a, b, engine, result), due)


@every_variant
@every([*unpadded(CASES)[::2], *MATMULS[-7:]])
def test_every_geometry(case, variant):
    for threads, (name, engine, result), keeps in (
        (1, ("short", "expanded", "i32"), False),
        (2, ("zero points", "rows", "i32"), True),
        (3, ("narrow", "expanded", "i64"), False),
        (2, ("zero points", "auto", "i64"), False),
        (3, ("long", "auto", "i64"), True),
    ):
        select(variant, threads)
        multiplier = dataclasses.replace(MULTIPLIERS[name], keeps=keeps)
        a, b = multiplier.codes(case)
        before = a.tobytes(), b.tobytes()
        got = compute(case, multiplier, a, b, engine, result)
        np.testing.assert_array_equal(got, multiplier.meaning(case, a, b))
        assert (a.tobytes(), b.tobytes()) == before


@pytest.mark.slow
@every_variant
@every_count
@pytest.mark.parametrize("name", MULTIPLIERS)
@every(unpadded(CASES))
def test_every_geometry_of_the_whole_table(case, name, variant, threads):
    select(variant, threads)
    for keeps, engine in itertools.product((False, True), ENGINES):
        multiplier = dataclasses.replace(MULTIPLIERS[name], keeps=keeps)
        a, b = multiplier.codes(case)
        due = multiplier.meaning(case, a, b)
        np.testing.assert_array_equal(compute(case, multiplier, a, b, engine, "i64"), due)


@pytest.mark.parametrize(("rows", "columns"), itertools.product([4, 8, 32, 128, 256], repeat=2))
def test_every_width(rows, columns):
    for signed, zeros in itertools.product((False, True), ((0, 0), (rows - 1, 1))):
        multiplier = random(rows, columns, zeros=zeros, signed=signed)
        for case in (
            matrices(50, 19, 11),
            Case(Conv2D(padding="SAME"), (2, 6, 5, 3), (3, 2, 3, 9)),
        ):
            a, b = multiplier.codes(case)
            due = multiplier.meaning(case, a, b)
            for engine in ENGINES:
                np.testing.assert_array_equal(compute(case, multiplier, a, b, engine), due)


@every_variant
@pytest.mark.parametrize(
    ("shape", "kernel", "geometry"),
    [
        ((1, 97, 91, 2), (2, 3, 2, 9), {"padding": "SAME"}),  # more rows than a tile has
        ((3, 20, 21, 3), (3, 3, 3, 70), {"padding": "SAME", "strides": (2, 1)}),
        ((2, 9, 8, 24), (3, 2, 6, 80), {"groups": 4, "dilations": (1, 2)}),
        ((1, 7, 6, 130), (2, 2, 130, 33), {"padding": ((1, 0), (2, 1))}),
    ],
)
def test_large_convolutions(shape, kernel, geometry, variant):
    case = Case(Conv2D(**geometry), shape, kernel)
    multiplier = MULTIPLIERS["zero points"]
    a, b = multiplier.codes(case)
    due = multiplier.meaning(case, a, b)
    for threads, engine in ((1, "expanded"), (2, "auto"), (3, "rows")):
        select(variant, threads)
        np.testing.assert_array_equal(compute(case, multiplier, a, b, engine), due)


@st.composite
def problems(draw):
    size = st.integers(1, 80)
    m, k, n = draw(size), draw(size), draw(st.integers(1, 70))
    rows, columns = (2 ** draw(st.integers(2, 8)) for _ in range(2))
    low = draw(st.integers(-(2**23), 2**23))
    high = low + draw(st.sampled_from([1, 200, 65000, 2**23]))
    signed = draw(st.booleans())
    zeros = draw(st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1)))
    options = {"signed": signed, "zeros": (0, 0) if signed else zeros}
    return matrices(m, k, n), random(rows, columns, low, high, **options)


@given(problems(), st.sampled_from(VARIANTS), st.sampled_from([*ENGINES]), st.integers(1, 4))
def test_any_product(problem, variant, engine, threads):
    case, multiplier = problem
    select(variant, threads)
    a, b = multiplier.codes(case)
    got = compute(case, multiplier, a, b, engine, "i64")
    np.testing.assert_array_equal(got, multiplier.meaning(case, a, b))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_few_codes_that_occur(engine):
    """Only what lies between the smallest and the largest code is expanded."""
    multiplier = dataclasses.replace(MULTIPLIERS["short"], keeps=True)
    case = Case(Conv2D(padding="SAME"), (2, 7, 8, 3), (3, 2, 3, 9))
    for low, high in ((0, 1), (200, 203), (255, 256), (7, 9)):
        a = np.random.default_rng(low).integers(low, high, case.left, np.uint8)
        b = multiplier.codes(case)[1]
        got = compute(case, multiplier, a, b, engine)
        np.testing.assert_array_equal(got, multiplier.meaning(case, a, b))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", [2**24, -(2**24)])
def test_sums_beyond_32_bits(engine, value):
    multiplier = Multiplier(np.full((256, 256), value))
    for case in (
        matrices(50, 700, 9),
        Case(Conv2D(padding="SAME"), (1, 3, 4, 300), (3, 3, 300, 2)),
        Case(DepthwiseConv2D(padding="SAME"), (1, 14, 15, 2), (13, 13, 2, 3)),
    ):
        a, b = multiplier.codes(case)
        due = multiplier.meaning(case, a, b)
        assert abs(due).max() > 2**31
        np.testing.assert_array_equal(compute(case, multiplier, a, b, engine, "i64"), due)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_bound_of_32_bits_is_kept_and_used(engine):
    """The largest 8-bit products, as many as a bound says that 32 bits hold."""
    multiplier = Multiplier(np.full((256, 256), 255 * 255))
    case = matrices(49, 13_000, 8)
    a, b = multiplier.codes(case)
    due = multiplier.meaning(case, a, b)
    np.testing.assert_array_equal(compute(case, multiplier, a, b, engine), due)


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_to_compute(engine):
    for case in (
        matrices(0, 3, 4), matrices(3, 0, 4), matrices(3, 4, 0),
        Case(Conv2D(), (2, 2, 5, 2), (4, 3, 2, 3)),
        Case(Conv2D(), (0, 4, 5, 2), (2, 2, 2, 3)), Case(Conv2D(), (2, 4, 5, 0), (2, 2, 0, 3)),
    ):  # fmt: skip
        a, b = MULTIPLIERS["short"].codes(case)
        got = compute(case, MULTIPLIERS["short"], a, b, engine)
        np.testing.assert_array_equal(got, np.zeros(case.output))


# ---- what is refused -----------------------------------------------------------------------


def preparation(case: Case, multiplier: Multiplier, **options) -> tuple[int, str]:
    kind, call, spec, _alive = prepared(case, multiplier, **options)
    text = message()
    status = getattr(CORE, f"og_{kind}_prepare")(ctypes.byref(call), ctypes.byref(spec), text)
    return status, text.value.decode()


PRODUCT, CONVOLUTION = matrices(3, 5, 4), Case(Conv2D(), (1, 4, 5, 2), (2, 2, 2, 3))
BOTH = pytest.mark.parametrize("case", [PRODUCT, CONVOLUTION], ids=["matmul", "conv2d"])


@BOTH
@pytest.mark.parametrize("shape", [(2, 256), (256, 2), (255, 256), (16, 512), (0, 4), (12, 8)])
def test_sizes_of_a_table(case, shape):
    status, text = preparation(case, Multiplier(np.zeros(shape, int)))
    assert status == INVALID_ARGUMENT
    assert text == (
        f"a table of {shape[0]} x {shape[1]} products; each size must be a power of two from 4 to "
        "256"
    )


@BOTH
@pytest.mark.parametrize(
    ("operand", "result"), [("i8", "i32"), ("f32", "i32"), ("u8", "f32"), ("u8", "u32")]
)
def test_types_of_a_call(case, operand, result):
    status, text = preparation(case, MULTIPLIERS["short"], operand=operand, result=result)
    assert status == INVALID_ARGUMENT
    assert text == (
        "products by a table take codes (uint8) and give int32 or int64, not "
        f"{operand} and {result}"
    )


@BOTH
def test_an_engine_that_does_not_exist(case, monkeypatch):
    for number in (-1, 3):
        monkeypatch.setitem(ENGINES, "new", number)
        status, text = preparation(case, MULTIPLIERS["short"], engine="new")
        assert status == INVALID_ARGUMENT
        assert text == f"engine {number} of products by a table is unknown"


def test_a_pad_value():
    case = Case(Conv2D(pad_value=-1.5), (1, 4, 5, 2), (2, 2, 2, 3))
    status, text = preparation(case, MULTIPLIERS["short"])
    assert status == UNIMPLEMENTED
    assert text.startswith("the pad value is -1.5; products by a table pad with 0")


@pytest.mark.parametrize("case", unpadded([*CONVOLUTIONS[::40], *MATMULS[:4], MATMULS[16]]))
def test_codes_outside_the_table(case):
    multiplier = MULTIPLIERS["narrow"]  # 16 x 64
    for operand, name, limit in ((0, "input", 16), (1, "kernel", 64)):
        both = multiplier.codes(case)
        flat = both[operand].reshape(-1)
        flat[flat.size // 2 :] = 0
        flat[flat.size // 2] = limit
        text = refusal(case, multiplier, *both)
        assert text.startswith(f"the {name} holds the code {limit} (element ")
        assert text.endswith(f"); the table has codes below {limit}")
        flat[flat.size // 2] = limit - 1
        compute(case, multiplier, *both)


@BOTH
def test_products_that_are_too_large(case):
    multiplier = Multiplier(np.full((16, 16), 2**25 + 1))
    text = refusal(case, multiplier, *multiplier.codes(case), result="i64")
    assert text == (
        f"the table holds a product of {2**25 + 1}; those of 8-bit numbers stay below {2**25}"
    )


@pytest.mark.parametrize(
    "case",
    [
        matrices(2, 200, 3),
        Case(Conv2D(), (1, 8, 8, 4), (7, 8, 4, 2)),
        Case(DepthwiseConv2D(), (1, 16, 15, 2), (15, 14, 2, 1)),
    ],
)
def test_sums_that_may_leave_32_bits(case):
    multiplier = Multiplier(np.full((256, 256), 2**24))
    text = refusal(case, multiplier, *multiplier.codes(case))
    terms = math.prod(case.right) // case.output[-1]
    assert text == (f"{terms} products of up to {2**24} may leave 32 bits; ask for sums in 64 bits")


# ---- quantization --------------------------------------------------------------------------

EDGES = np.array(
    [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 126.5, 127.0, 127.49, 127.5, 128.0, -127.5, 254.5, 255.5,
     1e-45, -1e-45, 1e-38, 3e38, -3e38, np.inf, -np.inf, 1 / 3, 100.5, 101.5],
    np.float32,
)  # fmt: skip
SPECS = [
    QuantizeSpec(scale, zero, low, high, mask)
    for scale in (1.0, 0.013, 3e-41, 1e36, 1 / 3)
    for zero, low, high, mask in (
        (0, -127, 127, 255), (0, -1, 1, 3), (0, 0, 255, 255), (255, 0, 255, 255), (77, 0, 255, 255),
        (5, 0, 15, 15),
    )
]  # fmt: skip


def quantize(spec: QuantizeSpec, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    codes, values = Guarded(x.size), Guarded(4 * x.size)
    nan = CORE.og_quantize(ctypes.byref(spec), x.ctypes.data, x.size, codes.pointer, values.pointer)
    assert codes.intact()
    assert values.intact()
    return codes.inside, values.inside.view(np.float32), nan


def formula(spec: QuantizeSpec, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scale = np.float32(spec.scale)
    with np.errstate(over="ignore"):
        steps = np.rint(np.clip(x / scale, spec.low - spec.zero_point, spec.high - spec.zero_point))
        values = steps * scale
    return (steps.astype(int) + spec.zero_point & spec.mask).astype(np.uint8), values


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.tobytes() == right.tobytes()


@every_variant
@pytest.mark.parametrize("spec", SPECS)
def test_numbers_at_the_edges(spec, variant):
    scale = np.float32(spec.scale)
    with np.errstate(over="ignore"):
        x = np.concatenate([EDGES, EDGES * scale, np.nextafter(EDGES * scale, np.float32(9))])
    x = x[~np.isnan(x)].astype(np.float32)
    select(variant, 1)
    codes, values, nan = quantize(spec, x)
    due_codes, due_values = formula(spec, x)
    assert nan == 0
    np.testing.assert_array_equal(codes, due_codes)
    np.testing.assert_array_equal(values, due_values)
    select("generic", 1)
    generic = quantize(spec, x)
    assert same_bits(codes, generic[0])
    assert same_bits(values, generic[1])


@every_variant
@every_count
def test_rows_of_any_length(variant, threads):
    select(variant, threads)
    x = np.random.default_rng(7).normal(0, 60, 100_003).astype(np.float32)
    for count in (*range(34), 32767, 32768, 32769, 65543, 100_003):
        for spec in (SPECS[0], SPECS[10]):
            codes, values, nan = quantize(spec, x[:count])
            due_codes, due_values = formula(spec, x[:count])
            assert nan == 0
            np.testing.assert_array_equal(codes, due_codes)
            np.testing.assert_array_equal(values, due_values)


@every_variant
@every_count
def test_a_nan_anywhere_is_found(variant, threads):
    select(variant, threads)
    for count, where in ((19, range(19)), (70_000, (0, 32767, 32768, 69_999))):
        x = np.ones(count, np.float32)
        for i in where:
            x[i] = np.nan if i % 2 else -np.nan
            codes, _, nan = quantize(SPECS[0], x)
            assert nan != 0
            assert (np.delete(codes, i) == 1).all()
            x[i] = 1


def test_an_empty_product_of_a_call_without_a_batch():
    table, _alive = MULTIPLIERS["short"].structure()
    call = Call(None, CODES["u8"], CODES["i32"], 0, 0, ctypes.addressof(table))
    nothing = np.zeros(0, np.uint8)
    raw, status, _ = run("matmul", call, MatmulSpec(3, 4, 2, 0), nothing, nothing, 0)
    assert status == 0
    assert raw.size == 0
