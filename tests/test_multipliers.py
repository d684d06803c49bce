"""`og.Multiplier`: its table, its errors, what surprises in it, and the value that it is."""

import copy
import math
import pickle

import numpy as np
import pytest

import opgraft as og
from opgraft.errors import ArgumentError
from opgraft.multipliers import Cost, ZeroBehaviour, codes
from opgraft.values import from_json, to_json

rng = np.random.default_rng(20264)


def integers(bits, signed):
    return [c - 2**bits if signed and c >= 2 ** (bits - 1) else c for c in range(2**bits)]


def products(m=8, n=8, signed=False):
    """The exact table, by loops."""
    return np.array([[a * b for b in integers(n, signed)] for a in integers(m, signed)])


def noisy(m, n, signed=False, size=3):
    table = products(m, n, signed)
    return np.maximum(table + rng.integers(-size, size + 1, table.shape), -(2**31) * signed)


def minifloat():
    """Numbers of four bits with infinities, a NaN and two zeros, and their saturated products."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, np.inf, -0.0, -0.5, -1, -1.5, -2, -3, -4, np.nan])
    with np.errstate(invalid="ignore"):
        table = np.clip(np.multiply.outer(values, values), -4, 4)
    return og.Multiplier.from_array(table, values=(values, values), name="fp4")


def refused(*arguments, **keywords):
    with pytest.raises(ArgumentError) as error:
        og.Multiplier.from_array(*arguments, **keywords)
    return str(error.value)


# ---- the table ---------------------------------------------------------------------------


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("m", "n"), [(8, 8), (2, 7), (5, 3), (2, 2)])
def test_the_table_is_indexed_by_codes(m, n, signed):
    table = noisy(m, n, signed) if signed else abs(noisy(m, n))
    found = og.Multiplier.from_array(table, signed=signed, name="noisy")
    np.testing.assert_array_equal(found.table, table)
    np.testing.assert_array_equal(found.exact, products(m, n, signed))
    assert found.widths == (m, n)
    assert found.signed is signed
    assert found.notes == ()
    for a, b in rng.integers(0, (2**m, 2**n), (20, 2)):
        assert found(a, b) == table[a, b]
    rows, columns = rng.integers(0, 2**m, (3, 1)), rng.integers(0, 2**n, (1, 5))
    np.testing.assert_array_equal(found(rows, columns), table[rows, columns])
    kind = "signed" if signed else "unsigned"
    assert repr(found) == f"<Multiplier noisy: {kind} {m}x{n}, {found.sha256[:12]}>"


def test_the_table_is_a_copy_that_cannot_be_written():
    table = products(4, 3)
    found = og.Multiplier.from_array(table, signed=False)
    table[3, 2] = 99
    assert found.table[3, 2] == 6
    for array in (found.table, *found.values):
        with pytest.raises(ValueError, match="read-only"):
            array[1] = 0


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "float32", "float64"])
def test_whole_numbers_of_every_type_are_integers(dtype):
    table = products(4, 4).astype(dtype)
    found = og.Multiplier.from_array(table, signed=False)
    assert found.table.dtype == np.int64
    assert found == og.Multiplier.from_array(table.tolist(), signed=False)


def test_a_table_of_fractions_stays_one():
    table = products(3, 4) + 0.25
    found = og.Multiplier.from_array(table, signed=False)
    assert found.table.dtype == np.float64
    assert found(3, 5) == 15.25
    assert found.metrics()["mean_error"] == 0.25


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (np.zeros((256,)), "the table has the shape (256,); it needs one row for each code"),
        (np.zeros((4, 4, 4)), "the table has the shape (4, 4, 4)"),
        (np.zeros((255, 256)), "the table has 255 rows; it must have 2^bits of them, from 4 to"),
        (np.zeros((4, 512)), "the table has 512 columns; it must have 2^bits of them"),
        (np.zeros((2, 4)), "the table has 2 rows"),
        (np.zeros((0, 4)), "the table has 0 rows"),
        (np.zeros((4, 4), bool), "the table holds bool; it must hold integers or floats"),
        (np.zeros((4, 4), complex), "the table holds complex128"),
        ([["0"] * 4] * 4, "the table holds <U1"),
        (np.full((4, 4), 2**31 + 1), "the table holds numbers beyond 2^31"),
        (np.full((4, 4), -(2**33)), "the table holds numbers beyond 2^31"),
        (np.full((4, 4), 2**64 - 1, np.uint64), "the table holds numbers beyond 2^31"),
        (np.full((4, 4), 1e12), "the table holds numbers beyond 2^31"),
    ],
)
def test_what_is_no_table_is_refused(table, told):
    assert told in refused(table)


def test_wrong_arguments_are_refused():
    table = products(3, 4)
    assert refused(table, signed="yes") == "signed='yes' must be True, False, or None to find out"
    assert refused(table, signed=True, values=(range(8), range(16))) == (
        "give either values, or signed and ascending"
    )
    assert "values have the shapes (16,) and (8,), and the table (8, 16)" in refused(
        table, values=(range(16), range(8))
    )
    assert "values must be two arrays" in refused(table, values=5)
    assert "the table of an unsigned multiplier is so anyhow" in refused(
        table, signed=False, ascending=True
    )
    assert refused(table, name=3) == "name=3 must be text"
    assert "signed=False, and the table holds -3: give signed=True" in refused(
        products(3, 2, signed=True) // 2, signed=False
    )


def test_codes_outside_the_width_are_refused():
    found = og.multipliers.exact((3, 5))
    for a, b, told in (
        (8, 0, "codes of the first operand reach from 8 to 8; it has 3 bits, so they must lie in"),
        (0, [3, -1], "codes of the second operand reach from -1 to 3; it has 5 bits, so they"),
        (1.5, 0, "codes of the first operand must be integers, not float64"),
    ):
        with pytest.raises(ArgumentError) as error:
            found(a, b)
        assert told in str(error.value)
    with pytest.raises(ArgumentError, match=r"A negative number's code is that number \+ 32"):
        found(0, -1)


# ---- signed or not -----------------------------------------------------------------------


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("m", "n"), [(8, 8), (3, 6)])
def test_whether_it_is_signed_is_found_out_and_told(m, n, signed):
    table = products(m, n, signed)
    table = table + (table != 0) * rng.integers(0, 2, table.shape)
    found = og.Multiplier.from_array(table)
    assert found == og.Multiplier.from_array(table, signed=signed)
    words = ("signed", "unsigned") if signed else ("unsigned", "signed")
    (note,) = found.notes
    mae = f"{found.metrics()['MAE']:.6g}"
    assert note.startswith(f"{codes.TAKEN} {words[0]}: read so its mean absolute error is {mae}, ")
    assert f"and read as {words[1]} " in note
    assert note.endswith(f"Say signed={signed} to be sure")
    assert found.surprises()[0] == note


@pytest.mark.parametrize("word", [8, 16, 17])
def test_signed_results_written_as_unsigned_numbers_are_read_as_meant(word):
    table = products(4, 4, signed=True)
    for signed in (True, None):
        found = og.Multiplier.from_array(table & (2**word - 1), signed=signed)
        np.testing.assert_array_equal(found.table, table)
        assert found.signed is True
    told = og.Multiplier.from_array(table & (2**word - 1), signed=True).notes
    assert told == (
        f"its results are written as unsigned {word}-bit numbers, and are read as two's "
        "complement ones, as signed=True asks",
    )


def test_a_table_that_begins_with_the_smallest_number():
    table = products(4, 3, signed=True) + 1
    by_number = np.roll(table, (8, 4), (0, 1))
    found = og.Multiplier.from_array(by_number, ascending=True)
    assert found == og.Multiplier.from_array(table, signed=True)
    (told,) = og.Multiplier.from_array(by_number, signed=True).surprises()[:1]
    assert told.startswith("its rows and columns seem to begin with the smallest number")
    assert told.endswith("give ascending=True")


# ---- errors ------------------------------------------------------------------------------


def by_loops(table, exact, weights, full_scale):
    total = sum(map(sum, weights))
    sums = dict.fromkeys(("MAE", "EP%", "MSE", "mean_error", "of relative", "MRE%"), 0.0)
    worst = {"WCE": 0.0, "WCRE%": 0.0}
    for row, exact_row, weight_row in zip(table, exact, weights, strict=True):
        for entry, product, weight in zip(row, exact_row, weight_row, strict=True):
            error, share = float(entry - product), weight / total
            if not share:
                continue
            sums["MAE"] += share * abs(error)
            sums["EP%"] += 100 * share * (error != 0)
            sums["MSE"] += share * error**2
            sums["mean_error"] += share * error
            worst["WCE"] = max(worst["WCE"], abs(error))
            if product:
                sums["of relative"] += share
                sums["MRE%"] += 100 * share * abs(error / product)
                worst["WCRE%"] = max(worst["WCRE%"], 100 * abs(error / product))
    sums["MRE%"] /= sums.pop("of relative")
    percent = {f"{key}%": 100 * {**sums, **worst}[key] / full_scale for key in ("MAE", "WCE")}
    variance = sums["MSE"] - sums["mean_error"] ** 2
    return {**sums, **worst, **percent, "variance": variance}


@pytest.mark.parametrize("weighted", ["", "operands", "pairs"])
@pytest.mark.parametrize(("m", "n", "signed"), [(5, 3, False), (3, 6, True), (4, 4, True)])
def test_metrics_are_those_of_loops(m, n, signed, weighted):
    table = noisy(m, n, signed=True, size=7) if signed else abs(noisy(m, n, size=7))
    found = og.Multiplier.from_array(table, signed=signed)
    first, second = rng.integers(0, 4, 2**m), rng.integers(0, 4, 2**n)
    pairs = np.multiply.outer(first, second)
    given = {"": None, "operands": (first, second), "pairs": pairs / 3}[weighted]
    weights = pairs if weighted else np.ones_like(pairs)
    due = by_loops(table, products(m, n, signed), weights.tolist(), 2 ** (m + n))
    metrics = found.metrics(given)
    assert list(metrics) == [
        "MAE", "MAE%", "WCE", "WCE%", "WCRE%", "EP%", "MRE%", "MSE", "mean_error", "variance",
    ]  # fmt: skip
    assert metrics == pytest.approx(due, rel=1e-9, abs=1e-12)


def test_weights_that_are_none_are_refused():
    found = og.multipliers.exact((3, 5))
    bad = np.ones((8, 32))
    bad[2, 3] = -1
    for weights, told in (
        (np.ones((32, 8)), "weights have the shape (32, 8), and the table (8, 32): give a pair of"),
        ((np.ones(32), np.ones(8)), "weights have the shape (32, 8)"),
        (np.ones(8), "weights have the shape (8,)"),
        ("even", "weights must be numbers"),
        (bad, "weights must be finite, none below 0, and not all 0"),
        (np.zeros((8, 32)), "not all 0"),
        (np.full((8, 32), math.nan), "must be finite"),
    ):
        with pytest.raises(ArgumentError) as error:
            found.metrics(weights)
        assert told in str(error.value)


def test_products_that_are_not_finite_count_as_wrong_or_right_only():
    found = minifloat()
    finite = [(a, b) for a in range(16) for b in range(16) if np.isfinite(found.exact[a, b])]
    assert len(finite) == 14 * 14
    errors = [found.table[p] - found.exact[p] for p in finite]
    relative = [abs(e / found.exact[p]) for e, p in zip(errors, finite, strict=True)
                if found.exact[p]]  # fmt: skip
    metrics = found.metrics()
    assert metrics["MAE"] == pytest.approx(sum(map(abs, errors)) / 256)
    assert metrics["MAE%"] == pytest.approx(100 * metrics["MAE"] / 16)
    assert metrics["MRE%"] == pytest.approx(100 * np.mean(relative))
    assert metrics["WCE"] == 12
    infinite = int(np.isinf(found.exact).sum())  # those are saturated, and NaN is NaN
    assert metrics["EP%"] == pytest.approx(100 * (np.count_nonzero(errors) + infinite) / 256)
    assert all(map(math.isfinite, metrics.values()))


def test_a_result_that_is_infinite_is_infinitely_wrong_where_it_is_used():
    table = products(3, 3).astype(float)
    table[7, 6] = np.inf
    found = og.Multiplier.from_array(table, signed=False)
    assert found.metrics()["WCE"] == math.inf
    weights = np.arange(8) < 7, np.ones(8)
    assert found.metrics(weights)["WCE"] == found.metrics(weights)["MAE"] == 0


# ---- facts -------------------------------------------------------------------------------


def test_the_rank_is_that_of_the_matrix():
    left, right = rng.integers(-9, 9, (3, 32)), rng.integers(-9, 9, (3, 8))
    table = sum(np.multiply.outer(a, b) for a, b in zip(left, right, strict=True))
    found = og.Multiplier.from_array(table, signed=True)
    assert found.rank == np.linalg.matrix_rank(table.astype(float)) == 3
    assert og.multipliers.exact().rank == 1
    assert og.multipliers.mitchell().rank > 100
    assert minifloat().rank >= 3


def test_commuting():
    table = products(4, 4)
    assert og.Multiplier.from_array(table, signed=False).commutative
    table[3, 5] += 1
    found = og.Multiplier.from_array(table, signed=False)
    assert not found.commutative
    assert found.surprises() == [
        "f(a, b) is not f(b, a) for 1 pairs: which operand is the activation matters",
        "its errors have one sign: products come out too large, by 0.003906 on average, which "
        "adds up over a sum",
    ]
    assert not og.multipliers.exact((3, 5)).commutative
    assert og.multipliers.exact((3, 5)).surprises() == []
    assert minifloat().commutative
    halves = np.arange(16) / 2
    mixed = og.Multiplier.from_array(products(4, 4) / 2, values=(range(16), halves))
    assert not mixed.commutative
    assert mixed.surprises() == [
        "its operands are numbers of different kinds: which is the activation matters"
    ]


def test_what_becomes_of_zero():
    table = products(3, 4)
    assert og.Multiplier.from_array(table, signed=False).zero_behaviour == ZeroBehaviour(0, 0)
    assert og.Multiplier.from_array(table, signed=False).zero_behaviour.keeps_zero
    table[0, 2:5] = 1
    table[6, 0] = 1
    found = og.Multiplier.from_array(table, signed=False)
    assert found.zero_behaviour == (3, 1)
    assert not found.zero_behaviour.keeps_zero
    assert found.surprises()[0].startswith(
        "f(0, b) is not 0 for 3 b and f(a, 0) is not 0 for 1 a: what is padded, or cut off by"
    )
    table[6, 0] = 0
    (told, _) = og.Multiplier.from_array(table, signed=False).surprises()
    assert told.startswith("f(0, b) is not 0 for 3 b: what is padded")
    assert minifloat().zero_behaviour == (0, 0)  # 0 times infinity is no number there
    no_zero = og.Multiplier.from_array(table, values=(np.arange(8) + 1, np.arange(16) + 1))
    assert no_zero.zero_behaviour == (0, 0)


def test_errors_of_one_sign_are_told():
    (told,) = og.multipliers.truncated(columns=4).surprises()
    assert told == (
        "its errors have one sign: products come out too small, by 12.25 on average, which adds "
        "up over a sum"
    )
    assert og.multipliers.drum(4).surprises() == []
    assert og.multipliers.exact().surprises() == []


def test_tables_that_are_read_wrongly_are_told():
    signed = products(8, 8, signed=True)
    (told,) = og.Multiplier.from_array(-signed, signed=True).surprises()[:1]
    assert told == "its sign is wrong: it is near the negative product"
    told = og.Multiplier.from_array(signed & 0xFFFF, signed=False).surprises()
    assert any("it may be a table of something else" in each for each in told)


def test_a_wrong_quadrant_is_told():
    table = products(5, 6, signed=True)
    table[16:, 32:] *= -1
    assert og.Multiplier.from_array(table, signed=True).surprises()[0] == (
        "its mean absolute error is more than half of the mean product for (-, -): it seems to be "
        "wrong for these signs"
    )
    told = og.Multiplier.from_array(products(8, 8), signed=True).surprises()
    assert any("for (+, -), (-, +), (-, -): it seems to be wrong" in each for each in told)


# ---- a value -----------------------------------------------------------------------------


def examples():
    cost = Cost(0.25, 100.5, None, technology="PDK45")
    return [
        og.multipliers.mitchell(),
        og.Multiplier.from_array(noisy(3, 6, signed=True), name="of noise", cost=cost),
        og.Multiplier.from_array(products(4, 3) + 0.125, signed=False),
        minifloat(),
    ]


@pytest.mark.parametrize("copied", [
    pytest.param(lambda value: from_json(to_json(value)), id="json"),
    pytest.param(lambda value: pickle.loads(pickle.dumps(value)), id="pickle"),
    pytest.param(copy.deepcopy, id="deepcopy"),
])  # fmt: skip
@pytest.mark.parametrize("index", range(4))
def test_what_is_written_down_comes_back(index, copied):
    value = examples()[index]
    back = copied(value)
    assert back is not value
    assert back == value
    assert hash(back) == hash(value)
    np.testing.assert_array_equal(back.table, value.table)
    assert back.table.dtype == value.table.dtype
    for own, other in zip(back.values, value.values, strict=True):
        np.testing.assert_array_equal(own, other)
    for name in ("signed", "name", "cost", "notes", "sha256", "widths"):
        assert getattr(back, name) == getattr(value, name)
    assert not back.table.flags.writeable
    assert not any(each.flags.writeable for each in back.values)


def test_equality_is_that_of_what_is_computed():
    table = abs(noisy(4, 4))
    first = og.Multiplier.from_array(table, signed=False, name="one")
    same = og.Multiplier.from_array(table.astype("float32"), signed=False, name="other")
    assert first == same
    assert len({first, same}) == 1
    changed = table.copy()
    changed[2, 3] += 1
    small = np.minimum(table, 60)
    halves = np.arange(16) / 2
    others = [
        og.Multiplier.from_array(changed, signed=False),
        og.Multiplier.from_array(small, signed=False),
        og.Multiplier.from_array(small, signed=True),
        og.Multiplier.from_array(table, values=(range(16), range(16))),
        og.Multiplier.from_array(table, values=(range(16), halves)),
        og.Multiplier.from_array(table.reshape(8, 32), signed=False),
    ]
    assert len({first, *others}) == 7
    assert first != "mul"


def test_a_damaged_table_is_refused():
    good = og.multipliers.mitchell((3, 4)).to_config()
    fields = {key: value for key, value in good.items() if key != "type"}
    for change in ({"table": "@@@"}, {"table": good["table"][:-8]}, {"dtype": "fish"},
                   {"shape": [8, 15]}):  # fmt: skip
        with pytest.raises(ArgumentError, match="the saved multiplier's table cannot be read"):
            og.Multiplier.from_fields(**{**fields, **change})


def test_a_cost_is_a_value_that_can_be_given_later():
    cost = Cost(power=0.425, area=729.8, delay=1.48, technology="45 nm")
    assert from_json(to_json(cost)) == cost
    plain = og.multipliers.exact()
    assert plain.cost is None
    known = plain.with_cost(cost)
    assert known.cost == cost
    assert known == plain
    assert (known.name, known.signed) == (plain.name, plain.signed)
