"""Sums of products by a table in their order, in the compiled core: by accumulators, and real."""

import ctypes
import dataclasses
import itertools
import math
import re

import numpy as np
import pytest
from abi import (
    CODES,
    CORE,
    INVALID_ARGUMENT,
    UNIMPLEMENTED,
    Accumulator,
    Call,
    Table,
    geometry,
    matmul_spec,
    message,
    run,
)
from cases import CASES, Case, every

import opgraft as og
from opgraft import reference
from opgraft.spec import Conv2D, DepthwiseConv2D, MatMul

ADD = """
#include <stdint.h>
int32_t add(int32_t sum, int32_t product) { return (sum + product) | 1; }
uint8_t narrow(uint8_t sum, uint8_t product) { return sum + (product & 0xfe); }
float real(float a, float b) { return a + b; }
"""


@pytest.fixture(autouse=True)
def restored():
    threads = CORE.og_threads()
    yield
    CORE.og_set_threads(threads)


@dataclasses.dataclass(frozen=True, eq=False)
class Sums:
    """A table, how its products are added, and what is given and returned."""

    entries: np.ndarray
    accumulator: og.accumulators.Accumulator = og.accumulators.exact
    adder: int = 0  # an open function of the core
    keeps: bool = False
    zero: int = 0
    numbers: bool = False  # operands are floats, the table that of their mantissas

    @property
    def is_real(self) -> bool:
        return self.entries.dtype.kind == "f"

    def operands(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(self.entries.size + case.left[-1])
        if self.numbers:
            return tuple(draw.normal(size=s).astype(np.float32) for s in (case.left, case.right))
        rows, columns = self.entries.shape
        return draw.integers(0, rows, case.left, np.uint8), draw.integers(0, columns, case.right,
                                                                          np.uint8)  # fmt: skip

    def meaning(self, case: Case, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        c, nothing = case.contraction, -1
        if isinstance(c, Conv2D):
            pad = 0 if self.numbers else (self.zero if self.keeps else nothing)
            c = dataclasses.replace(c, pad_value=float(pad))
        floats = og.FloatMultiplier.from_array(self.entries) if self.numbers else None

        def product(p, q):
            if floats:
                products, present = floats.multiply(p[:, :, None], q[None]), np.ones(p.shape, bool)
            else:
                present = p != nothing
                products = self.entries[p[:, :, None], q[None]]
            return self.accumulator.add_up(products, present)

        dtype = float if self.numbers else int
        return reference.by_matmul(c, a.astype(dtype), b.astype(dtype), product)

    def prepared(self, case: Case, **changes):
        """(kind, call, spec, what must stay alive)"""
        entries = np.ascontiguousarray(self.entries, np.float64 if self.is_real else np.int32)
        held = self.accumulator
        limits = (getattr(held, "low", -(2**62)), getattr(held, "high", 2**62))
        accumulator = Accumulator(*limits, self.adder or None)
        kind = {"entries": "f64" if self.is_real else "i32", "operand": "f32" if self.numbers
                else "u8", "result": "f64" if self.is_real else "i64", **changes}  # fmt: skip
        adds = not self.is_real or changes.get("adds")
        adds_by = ctypes.addressof(accumulator) if adds else None
        table = Table(entries.ctypes.data, CODES[kind["entries"]], *entries.shape, self.zero, 0,
                      False, self.keeps, 0, adds_by)  # fmt: skip
        call = Call(None, CODES[kind["operand"]], CODES[kind["result"]], 0, 0,
                    ctypes.addressof(table))  # fmt: skip
        alive = (table, entries, accumulator)
        if isinstance(case.contraction, MatMul):
            spec, index = matmul_spec(case)
            return "matmul", call, spec, (*alive, index)
        spec = geometry(case.contraction, case.left, case.right)
        assert CORE.og_conv2d_resolve(ctypes.byref(spec), message()) == 0
        return "conv2d", call, spec, alive

    def compute(self, case: Case, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        kind, call, spec, _alive = self.prepared(case)
        raw, status, text = run(kind, call, spec, a, b, math.prod(case.output))
        assert status == 0, text
        return raw.view(np.float64 if self.is_real else np.int64).reshape(case.output)

    def refusal(self, case: Case, a: np.ndarray, b: np.ndarray) -> str:
        kind, call, spec, _alive = self.prepared(case)
        _, status, text = run(kind, call, spec, a, b, math.prod(case.output))
        assert status == INVALID_ARGUMENT
        return text

    def preparation(self, case: Case, **changes) -> tuple[int, str]:
        kind, call, spec, _alive = self.prepared(case, **changes)
        text = message()
        status = getattr(CORE, f"og_{kind}_prepare")(ctypes.byref(call), ctypes.byref(spec), text)
        return status, text.value.decode()


def integers(rows=256, columns=256, low=-9000, high=9000) -> np.ndarray:
    return np.random.default_rng(rows + columns).integers(low, high, (rows, columns))


def reals(rows=256, columns=256, low=-2.0, high=3.0) -> np.ndarray:
    return np.random.default_rng(rows + columns).uniform(low, high, (rows, columns))


saturate = og.accumulators.saturate
SUMS = {
    "saturates": Sums(integers(), saturate(14)),
    "saturates early": Sums(
        integers(64, 32, 0, 4000), saturate(12, signed=False), keeps=True, zero=9
    ),
    "real": Sums(reals(16, 256)),
    "real, padded": Sums(reals(), keeps=True, zero=3),
    "mantissas": Sums(reals(128, 128, 1, 4), numbers=True),
    "short mantissas": Sums(reals(2, 2, 1, 4), numbers=True),
}
SOME = [c for c in CASES[::3] if not getattr(c.contraction, "pad_value", 0) and 0 not in c.output]


@pytest.mark.parametrize("name", SUMS)
@every(SOME)
def test_every_geometry(case, name):
    sums = SUMS[name]
    a, b = sums.operands(case)
    before = a.tobytes(), b.tobytes()
    due = sums.meaning(case, a, b)
    for threads in (1, 3):
        CORE.og_set_threads(threads)
        np.testing.assert_array_equal(sums.compute(case, a, b), due)
    assert (a.tobytes(), b.tobytes()) == before


@pytest.fixture
def adders(tmp_path):
    """{name: (an accumulator, the core's function)}"""
    source = tmp_path / "add.c"
    source.write_text(ADD)
    held = {
        "add": og.accumulators.c_function(source, "int32_t add(int32_t sum, int32_t product)"),
        "narrow": og.accumulators.c_function(
            source, "uint8_t narrow(uint8_t sum, uint8_t product)"
        ),
    }
    real = og.c_function(source, "float real(float a, float b)").product.symbols[0]
    symbols = {**{name: adder.symbol for name, adder in held.items()}, "real": real}
    found = {}
    for name, symbol in symbols.items():
        function = ctypes.c_void_p()
        assert (
            CORE.og_function_open(ctypes.byref(symbol.spec()), ctypes.byref(function), message())
            == 0
        )
        found[name] = held.get(name), function.value
    return found


def test_an_adder_gives_each_sum(adders):
    accumulator, adder = adders["add"]
    for case, keeps in itertools.product(SOME[::4], (False, True)):
        sums = Sums(integers(32, 16), accumulator, adder, keeps=keeps, zero=5)
        a, b = sums.operands(case)
        due = sums.meaning(case, a, b)
        np.testing.assert_array_equal(sums.compute(case, a, b), due)
        assert (due != dataclasses.replace(sums, accumulator=og.accumulators.exact)
                .meaning(case, a, b)).any()  # fmt: skip


def test_a_sum_that_an_adder_does_not_take(adders):
    accumulator, adder = adders["narrow"]
    case = Case(MatMul(), (3, 5), (5, 4))
    small = Sums(integers(16, 16, 0, 40), accumulator, adder)
    a, b = small.operands(case)
    np.testing.assert_array_equal(small.compute(case, a, b), small.meaning(case, a, b))
    for entries in (integers(16, 16, 256, 300), integers(16, 16, -9, 0)):
        text = Sums(entries, accumulator, adder).refusal(case, a, b)
        assert "narrow: the sum 0 and the product" in text
        assert "not both values of its argument type u8; give an adder of a wider type" in text


def test_the_order_of_the_products_decides():
    entries = np.array([[0, 0, 0, 0], [100, 0, 0, 0], [-100, 0, 0, 0], [7, 0, 0, 0]])
    sums = Sums(entries, saturate(7))
    b = np.zeros((3, 1), np.uint8)
    case = Case(MatMul(), (2, 3), (3, 1))
    a = np.array([[1, 2, 3], [2, 1, 3]], np.uint8)
    np.testing.assert_array_equal(sums.compute(case, a, b), [[63 - 100 + 7], [-64 + 100 + 7]])


def test_numbers_that_are_not_usual():
    special = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-39, 3.4e38, 1.0])
    x, w = special[:, None], special[None]
    for rows in (2, 128, 2048):
        sums = Sums(reals(rows, rows, 1, 4), numbers=True)
        case = Case(MatMul(), x.shape, w.shape)
        got = sums.compute(case, np.ascontiguousarray(x), np.ascontiguousarray(w))
        np.testing.assert_array_equal(got, sums.meaning(case, x, w))
        with np.errstate(all="ignore"):
            exact = (x * w).astype(np.float64)
        unusual = ~np.isfinite(exact) & (abs(x) < 1e38) & (abs(w) < 1e38)
        np.testing.assert_array_equal(got[unusual], exact[unusual])


def test_nothing_to_sum():
    for case in (
        Case(MatMul(), (0, 3), (3, 4)), Case(MatMul(), (3, 0), (0, 4)),
        Case(Conv2D(), (0, 4, 5, 2), (2, 2, 2, 3)),
    ):  # fmt: skip
        for sums in SUMS.values():
            a, b = sums.operands(case)
            np.testing.assert_array_equal(sums.compute(case, a, b), np.zeros(case.output))


# ---- what is refused -------------------------------------------------------------------------

PRODUCT = Case(MatMul(), (3, 5), (5, 4))
CONVOLUTION = Case(DepthwiseConv2D(), (1, 4, 5, 2), (2, 2, 2, 3))


@pytest.mark.parametrize("case", [PRODUCT, CONVOLUTION], ids=["matmul", "depthwise"])
@pytest.mark.parametrize(
    ("sums", "changes", "status", "text"),
    [
        (
            Sums(integers(2, 4), saturate(9)),
            {},
            INVALID_ARGUMENT,
            "a table of 2 x 4 products; each",
        ),
        (Sums(reals(4, 512)), {}, INVALID_ARGUMENT, "a power of two from 4 to 256"),
        (Sums(reals(4, 4096, 1, 2), numbers=True), {}, INVALID_ARGUMENT, "from 2 to 2048"),
        (SUMS["saturates"], {"result": "i32"}, INVALID_ARGUMENT, "of u8 .* do not give i32"),
        (SUMS["saturates"], {"operand": "f32"}, INVALID_ARGUMENT, "of f32 .* do not give i64"),
        (SUMS["real"], {"result": "f32"}, INVALID_ARGUMENT, "do not give f32"),
        (SUMS["real"], {"adds": True}, UNIMPLEMENTED, "real products are added in double"),
        (SUMS["real"], {"operand": "u16"}, INVALID_ARGUMENT, "of u16"),
    ],
)
def test_what_cannot_be_summed(case, sums, changes, status, text):
    found, said = sums.preparation(case, **changes)
    assert found == status
    assert re.search(text, said), said


def test_an_accumulator_that_does_not_hold_0():
    sums = Sums(integers(), dataclasses.make_dataclass("Held", ["low", "high"])(3, 9))
    assert sums.preparation(PRODUCT) == (
        INVALID_ARGUMENT,
        "an accumulator from 3 to 9 does not hold 0",
    )


def test_what_is_no_adder(adders):
    status, text = Sums(integers(), adder=adders["real"][1]).preparation(PRODUCT)
    assert status == INVALID_ARGUMENT
    assert text == "real is no adder: a C function of two integers that returns one is needed"


def test_codes_that_the_table_does_not_have():
    sums = Sums(integers(16, 8), saturate(20))
    for case in (PRODUCT, CONVOLUTION):
        a, b = sums.operands(case)
        a.flat[3] = 16
        assert (
            sums.refusal(case, a, b) == "the input holds the code 16; the table has codes below 16"
        )
        a.flat[3], b.flat[2] = 15, 9
        assert (
            sums.refusal(case, a, b) == "the kernel holds the code 9; the table has codes below 8"
        )
