"""Families of multipliers against loops and closed forms, and circuits against publications."""

import json
import pathlib
from fractions import Fraction

import numpy as np
import pytest

import opgraft as og
from opgraft.errors import ArgumentError
from opgraft.multipliers._multiplier import costs_of

PUBLISHED = pathlib.Path(__file__).parents[2] / "shared" / "data" / "evoapprox8_published.json"
TABLES = PUBLISHED.with_name("evoapprox8_tables.npz")
CIRCUITS = json.loads(PUBLISHED.read_text())["circuits"] if PUBLISHED.exists() else {}
WIDTHS = [8, (3, 7), (8, 2), 4]

needs_circuits = pytest.mark.skipif(
    not (CIRCUITS and TABLES.exists()), reason="../shared/data has no evoapprox8 files"
)


# ---- one product at a time, from the definitions ------------------------------------------


def array(a, b, m, n, h1, h2, v, signed=False):
    total = 0
    for i in range(m):
        for j in range(n):
            if a >> i & 1 and b >> j & 1 and i >= h1 and j >= h2 and i + j >= v:
                negative = signed and (i == m - 1) != (j == n - 1)
                total += -(1 << i + j) if negative else 1 << i + j
    return total


def mitchell(a, b):
    """Fractions: the logarithm of 2^k (1 + x) is k + x, and back."""
    if not a * b:
        return 0
    ka, kb = a.bit_length() - 1, b.bit_length() - 1
    log = ka + kb + Fraction(a, 1 << ka) - 1 + Fraction(b, 1 << kb) - 1
    whole = log.numerator // log.denominator
    return int((1 + log - whole) * 2**whole)


def drum(a, b, k):
    def short(x):
        bits = f"{x:b}"
        return x if len(bits) <= k else int(bits[: k - 1] + "1" + "0" * (len(bits) - k), 2)

    return short(a) * short(b)


def roba(a, b):
    if not a * b:
        return 0
    powers = [2**i for i in range(9)]
    near = [max(powers, key=lambda p, x=x: (-abs(p - x), p)) for x in (a, b)]
    return near[0] * b + near[1] * a - near[0] * near[1]


def kulkarni(a, b, m, n):
    """Recursive, as it is built: halves, down to 2 x 2."""
    if m <= 2 and n <= 2:
        return 7 if a == b == 3 else a * b
    if m >= n:
        low = 2 * ((m + 3) // 4)
        high = kulkarni(a >> low, b, m - low, n)
        return (high << low) + kulkarni(a & (1 << low) - 1, b, low, n)
    return kulkarni(b, a, n, m)


def rounded(a, b, bits):
    if not a * b:
        return 0
    near = [int(np.floor(x / 2**bits + 0.5)) * 2**bits for x in (a, b)]
    return near[0] * near[1]


def both(widths):
    return widths if isinstance(widths, tuple) else (widths, widths)


def table_of(function, widths):
    m, n = both(widths)
    return [[function(a, b) for b in range(2**n)] for a in range(2**m)]


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize(
    ("made", "product"),
    [
        pytest.param(og.multipliers.exact, lambda a, b, m, n: a * b, id="exact"),
        pytest.param(og.multipliers.mitchell, lambda a, b, m, n: mitchell(a, b), id="mitchell"),
        pytest.param(lambda w: og.multipliers.drum(2, w), lambda a, b, m, n: drum(a, b, 2),
                     id="drum-2"),
        pytest.param(lambda w: og.multipliers.drum(4, w), lambda a, b, m, n: drum(a, b, 4),
                     id="drum-4"),
        pytest.param(og.multipliers.roba, lambda a, b, m, n: roba(a, b), id="roba"),
        pytest.param(og.multipliers.kulkarni, kulkarni, id="kulkarni"),
        pytest.param(lambda w: og.multipliers.rounded(2, w), lambda a, b, m, n: rounded(a, b, 2),
                     id="rounded"),
        pytest.param(lambda w: og.multipliers.truncated(w, operands=1, columns=3),
                     lambda a, b, m, n: array(a, b, m, n, 1, 1, 3), id="truncated"),
        pytest.param(lambda w: og.multipliers.broken_array(2, 1, 4, widths=w),
                     lambda a, b, m, n: array(a, b, m, n, 2, 1, 4), id="broken array"),
        pytest.param(lambda w: og.multipliers.broken_array(0, 1, 2, widths=w, signed=True),
                     lambda a, b, m, n: array(a, b, m, n, 0, 1, 2, True), id="signed array"),
    ],
)  # fmt: skip
def test_every_product_is_that_of_the_definition(made, product, widths):
    m, n = both(widths)
    found = made(widths)
    assert found.widths == (m, n)
    due = table_of(lambda a, b: product(a, b, m, n), (m, n))
    np.testing.assert_array_equal(found.table, due)
    kind = "signed" if found.signed else "unsigned"
    assert f"{m}x{n}" in found.name
    assert f": {kind} {m}x{n}," in repr(found)
    assert found.notes == ()


@pytest.mark.parametrize("widths", [8, (4, 7), (6, 3)], ids=str)
def test_signed_products_of_exact_families(widths):
    m, n = both(widths)
    left, right = ([c - 2**w if c >= 2 ** (w - 1) else c for c in range(2**w)] for w in (m, n))
    due = [[a * b for b in right] for a in left]
    for found in (
        og.multipliers.exact(widths, signed=True),
        og.multipliers.truncated(widths, signed=True),
        og.multipliers.sign_magnitude(og.multipliers.exact(widths)),
    ):
        assert found.signed is True
        np.testing.assert_array_equal(found.table, due)


@pytest.mark.parametrize("widths", [8, (4, 7)], ids=str)
def test_sign_and_magnitude(widths):
    m, n = both(widths)
    unsigned = og.multipliers.mitchell(widths)
    found = og.multipliers.sign_magnitude(unsigned)
    assert found.name == f"{unsigned.name}, sign-magnitude"
    for a in range(-(2 ** (m - 1)), 2 ** (m - 1)):
        for b in range(-(2 ** (n - 1)), 2 ** (n - 1)):
            sign = (a > 0) - (a < 0), (b > 0) - (b < 0)
            assert found.table[a, b] == sign[0] * sign[1] * mitchell(abs(a), abs(b))
    with pytest.raises(ArgumentError, match="is not one of unsigned integers"):
        og.multipliers.sign_magnitude(found)


# ---- closed forms --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "mae", "wce", "ep", "mre"),
    [
        (og.multipliers.mitchell(), "606.398", 4096, "93.092", "3.7878"),
        (og.multipliers.kulkarni(), "903.125", 14450, "46.730", "3.2805"),
        (og.multipliers.roba(), "455.056", 4096, "93.092", "2.8622"),
        (og.multipliers.drum(4), "925.858", 7425, "97.717", "5.8868"),
        (og.multipliers.drum(6), "232.831", 2000, "85.431", "1.3013"),
    ],
    ids=["mitchell", "kulkarni", "roba", "drum-4", "drum-6"],
)
def test_published_errors_of_the_families(found, mae, wce, ep, mre):
    metrics = found.metrics()
    assert f"{metrics['MAE']:.3f}" == mae
    assert metrics["WCE"] == wce
    assert f"{metrics['EP%']:.3f}" == ep
    assert f"{metrics['MRE%']:.4f}" == mre


def test_errors_that_follow_from_counting():
    """Each left-out partial product is 1 in a quarter of all pairs."""
    for columns in range(9):
        metrics = og.multipliers.truncated(columns=columns).metrics()
        left_out = sum(2 ** (i + j) for i in range(8) for j in range(8) if i + j < columns)
        assert metrics["MAE"] == -metrics["mean_error"] == left_out / 4
        assert metrics["WCE"] == left_out
    assert og.multipliers.truncated(columns=4).metrics()["MAE"] == 12.25
    exact = og.multipliers.exact().metrics()
    assert set(exact.values()) == {0.0}
    # 3 times 3 is 7 in one of 16 pairs, and 2 too small, times 4^i 4^j.
    kulkarni = og.multipliers.kulkarni().metrics()
    assert kulkarni["MAE"] == -kulkarni["mean_error"] == 2 / 16 * (1 + 4 + 16 + 64) ** 2


def test_rounding_has_less_bias_than_cutting():
    cut = og.multipliers.truncated(operands=3).metrics()["mean_error"]
    assert abs(og.multipliers.rounded(3).metrics()["mean_error"]) < abs(cut) / 5


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: og.multipliers.drum(1), "1 bits: a whole number from 2 to 8 is needed"),
        (lambda: og.multipliers.drum(9), "9 bits: a whole number from 2 to 8 is needed"),
        (lambda: og.multipliers.drum(4.0), "4.0 bits: a whole number"),
        (lambda: og.multipliers.rounded(True), "True bits: a whole number from 0 to 8"),
        (lambda: og.multipliers.rounded(3, (8, 2)), "3 bits: a whole number from 0 to 2"),
        (lambda: og.multipliers.broken_array(0, 9), "9 bits: a whole number from 0 to 8"),
        (lambda: og.multipliers.truncated((4, 3), columns=8), "8 columns: a whole number from 0"),
        (lambda: og.multipliers.exact(9), "widths=9 must be a number of bits from 2 to 8, or two"),
        (lambda: og.multipliers.exact((8, 1)), "widths=(8, 1) must be a number of bits"),
        (lambda: og.multipliers.mitchell((4, 4, 4)), "widths=(4, 4, 4) must be"),
    ],
)
def test_wrong_arguments_are_refused(call, told):
    with pytest.raises(ArgumentError) as error:
        call()
    assert told in str(error.value)


# ---- circuits of EvoApproxLib --------------------------------------------------------------


@pytest.fixture(scope="module")
def tables():
    with np.load(TABLES) as archive:
        return dict(archive)


def printed(value, figure):
    """The value with as many decimals as the figure has."""
    mantissa, e, exponent = figure.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return f"{value / 10 ** int(exponent or 0):.{decimals}f}{e}{exponent}"


@needs_circuits
@pytest.mark.parametrize("name", CIRCUITS)
def test_every_published_figure_is_reproduced_to_the_printed_digit(name, tables):
    circuit = CIRCUITS[name]
    found = og.Multiplier.from_array(tables[name], signed=circuit["signed"], name=name)
    assert found.sha256 == circuit["sha256"]
    metrics = found.metrics()
    published = {k: v for k, v in circuit["published"].items() if not k.startswith("PDK45")}
    assert len(published) == 8
    shown = {key: printed(metrics[key], figure) for key, figure in published.items()}
    if name == "mul8s_1KVA":  # printed from an MAE of 1.2, which is 1.25 unrounded
        assert metrics["MAE"] == 1.25
        assert shown.pop("MAE%") == "0.0019"
        assert published.pop("MAE%") == printed(100 * 1.2 / 2**16, "0.0018") == "0.0018"
    assert shown == published
    cost = costs_of(circuit["published"], "PDK45")
    assert (cost.power, cost.power_unit) == (float(circuit["published"]["PDK45_PWR"]), "mW")
    assert (cost.area, cost.area_unit) == (float(circuit["published"]["PDK45_AREA"]), "um2")
    assert (cost.delay, cost.delay_unit) == (float(circuit["published"]["PDK45_DELAY"]), "ns")


@needs_circuits
@pytest.mark.parametrize("name", CIRCUITS)
def test_the_sign_of_a_circuit_is_found_out(name, tables):
    found = og.Multiplier.from_file(f"{TABLES}:{name}")
    assert found.name == name
    assert found.signed is CIRCUITS[name]["signed"]
    assert found.sha256 == CIRCUITS[name]["sha256"]
    # A signed circuit that is declared unsigned writes the same bits as unsigned words.
    words = og.Multiplier.from_array(tables[name].astype(np.int64) & 0xFFFF)
    assert words == found


@needs_circuits
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("1KV8", (0, 0, 0)), ("1KVA", (0, 0, 2)), ("1KX2", (0, 0, 4)), ("1KR8", (1, 0, 0)),
        ("1L2H", (1, 1, 0)), ("1KVL", (2, 0, 5)), ("1L1G", (3, 3, 0)),
    ],
)  # fmt: skip
def test_signed_circuits_are_broken_arrays(name, parameters, tables):
    circuit = og.Multiplier.from_array(tables[f"mul8s_{name}"], signed=True)
    assert og.multipliers.broken_array(*parameters, signed=True) == circuit
    assert "mul8s_" + name in CIRCUITS
    assert len([each for each in CIRCUITS if "8s" in each]) == 7


@needs_circuits
def test_what_surprises_in_the_circuits(tables):
    found = {
        name: og.Multiplier.from_array(tables[name], signed=CIRCUITS[name]["signed"], name=name)
        for name in CIRCUITS
    }
    assert [name for name, each in found.items() if each.commutative] == [
        "mul8s_1KV8", "mul8s_1KVA", "mul8s_1KX2", "mul8s_1L2H", "mul8s_1L1G", "mul8u_1JFF",
    ]  # fmt: skip
    assert {n: tuple(e.zero_behaviour) for n, e in found.items() if any(e.zero_behaviour)} == {
        "mul8u_2P7": (0, 128),
        "mul8u_2AC": (256, 256),
    }
    one_sided = [n for n, e in found.items() if any("one sign" in s for s in e.surprises())]
    assert one_sided == ["mul8s_1KVA", "mul8s_1KX2", "mul8u_YX7"]
