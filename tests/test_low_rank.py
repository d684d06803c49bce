"""Products by a table of a low rank: exact factors, and sums equal to those of the core."""

import pathlib
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CASES, every
from hypothesis import given
from hypothesis import strategies as st

import opgraft as og
from opgraft import multipliers
from opgraft.backends.tensorflow import low_rank, native, tables
from opgraft.errors import UnsupportedError
from opgraft.multipliers import Multiplier
from opgraft.multipliers.factors import factors
from opgraft.products import Table
from opgraft.spec import Conv2D, DepthwiseConv2D, MatMul

CIRCUITS = pathlib.Path(__file__).parents[2] / "shared" / "data" / "evoapprox8_tables.npz"
rng = np.random.default_rng(20266)


def with_error(bits, rank, size, signed=True):
    """A multiplier whose error has this rank, and factors of up to this size."""
    rows, columns = (2**b for b in bits)
    error = rng.integers(-size, size + 1, (rows, rank)) @ rng.integers(
        -size, size + 1, (rank, columns)
    )
    if not signed:
        error = abs(error) if rank == 1 else error - error.min()  # a constant: one rank more
    return Multiplier.from_array(
        multipliers.exact(bits, signed=signed).table + error, signed=signed
    )


PRODUCTS = {
    "signed": Table(with_error((8, 8), 3, 9)),
    "unsigned": Table(with_error((8, 8), 2, 9, signed=False)),
    "exchanged": Table(with_error((4, 6), 3, 9), exchanged=True),
    "unsigned, exchanged": Table(with_error((6, 8), 2, 9, signed=False), exchanged=True),
    "large errors": Table(with_error((8, 8), 2, 700)),
    "without error": Table(multipliers.exact()),
    "by the table's factors": Table(multipliers.sign_magnitude(multipliers.drum(4))),
    "nothing but zeros": Table(Multiplier.from_array(np.zeros((4, 8), int), signed=True)),
}


# ---- factors ---------------------------------------------------------------------------------


def check_factors(table, rank):
    found = factors(table)
    assert found is not None
    assert found.rank == rank
    assert (found.left.shape, found.right.shape) == ((len(table), rank), (table.shape[1], rank))
    assert (found.left.dtype, found.right.dtype) == (np.int64, np.int64)
    np.testing.assert_array_equal(found.left @ found.right.T, table)
    assert found.largest == (abs(found.left) @ abs(found.right).T).max()
    return found


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 8), st.integers(0, 2**32 - 1),
       st.sampled_from([1, 4, 60, 1000]))  # fmt: skip
def test_factors_of_any_table_of_a_low_rank(rows, columns, rank, seed, size):
    draw = np.random.default_rng(seed).integers
    table = draw(-size, size + 1, (rows, rank)) @ draw(-size, size + 1, (rank, columns))
    check_factors(table, np.linalg.matrix_rank(table.astype(np.float64)))


def test_factors_are_of_the_lattice_and_not_only_of_the_space():
    """No row is a basis here: 2 and 3 have the common divisor 1."""
    table = np.multiply.outer([6, 10, 15, -35], [4, 6, -9])
    found = check_factors(table, 1)
    assert found.largest == abs(table).max()


def test_factors_of_large_numbers():
    table = np.multiply.outer([2**12, 4095, -7], [4093, -(2**12)])
    check_factors(table + np.multiply.outer([1, -1, 1], [3, 5]), 2)


def test_a_rank_that_is_too_high():
    table = rng.integers(-9, 10, (30, 5)) @ rng.integers(-9, 10, (5, 20))
    assert factors(table, most=4) is None
    assert factors(table, most=5).rank == 5
    assert factors(rng.integers(-9, 10, (30, 20))) is None


FAMILIES = [
    multipliers.exact((3, 7)), multipliers.truncated(columns=4), multipliers.truncated(operands=3),
    multipliers.truncated((6, 8), operands=1, columns=5, signed=True),
    multipliers.broken_array(1, 0, 4), multipliers.broken_array(2, 1, 5, signed=True),
    multipliers.broken_array(0, 3, 6, widths=(8, 5), signed=True), multipliers.drum(4),
    multipliers.drum(6), multipliers.roba(), multipliers.kulkarni(), multipliers.rounded(2),
    multipliers.sign_magnitude(multipliers.kulkarni()),
]  # fmt: skip


@pytest.mark.parametrize("multiplier", FAMILIES, ids=lambda m: m.name)
def test_factors_of_the_families(multiplier):
    check_error(multiplier)


@pytest.mark.parametrize("table", ["error", "table"])
def test_mitchells_logarithms_have_a_high_rank(table):
    mitchell = multipliers.mitchell()
    assert factors(mitchell.table - (mitchell.exact if table == "error" else 0)) is None


@pytest.mark.skipif(not CIRCUITS.exists(), reason="../shared/data has no evoapprox8 files")
def test_factors_of_the_circuits():
    with np.load(CIRCUITS) as file:
        assert len(file.files) == 18
        for name in file.files:
            multiplier = Multiplier.from_array(file[name], signed="8s_" in name, name=name)
            rank = check_error(multiplier)
            assert rank is None or rank <= 8
            assert not multiplier.signed or rank <= 4


def check_error(multiplier):
    """Its rank, by floats; terms are hardly larger than the error that they make."""
    error = multiplier.table - multiplier.exact
    rank = np.linalg.matrix_rank(error.astype(np.float64))
    if rank > 8:
        assert factors(error) is None
        return None
    assert check_factors(error, rank).largest <= 1.5 * abs(error).max()
    return rank


# ---- sums, equal to the core's -----------------------------------------------------------------


def random_codes(product, *shapes):
    return [
        tf.constant(rng.integers(0, 2**bits, shape), tf.uint8)
        for bits, shape in zip(product.widths, shapes, strict=True)
    ]


def both(monkeypatch, c, product, a, b, zeros=(0, 0)):
    """The sums by this engine, and by the core's."""
    found = []
    for engine in ("low_rank", "rows"):
        monkeypatch.setenv("OPGRAFT_TABLE_ENGINE", engine)
        found.append(tables.sums(c, product, a, b, tf.constant(zeros)))
    return found


def check(monkeypatch, c, product, a, b, zeros=(0, 0)):
    got, due = both(monkeypatch, c, product, a, b, zeros)
    assert (got.dtype, got.shape) == (due.dtype, due.shape)
    np.testing.assert_array_equal(got, due)


@pytest.fixture
def contractions(monkeypatch):
    """What was computed by TensorFlow's own contractions: the shapes of the operands."""
    seen = []

    def spy(c, left, right):
        seen.append((tuple(left.shape), tuple(right.shape)))
        return native.contract(c, left, right)

    monkeypatch.setattr(low_rank, "native", types.SimpleNamespace(contract=spy))
    return seen


SERVED = [c for c in CASES if not getattr(c.contraction, "pad_value", 0)]


@pytest.mark.parametrize("zeros", [(0, 0), (3, 2)])
@every(SERVED[::6])
def test_every_geometry(case, zeros, monkeypatch):
    for name, product in PRODUCTS.items():
        if name == "large errors" and isinstance(case.contraction, DepthwiseConv2D):
            continue  # few of its products fit, and taps are not split
        codes = random_codes(product, case.left, case.right)
        if low_rank.why_not(case.contraction, product, [x.shape for x in codes], zeros):
            assert name == "large errors"
            continue
        check(monkeypatch, case.contraction, product, *codes, zeros)


@given(st.data(), st.integers(0, 4), st.booleans())
def test_any_table_of_a_low_rank(data, rank, exchanged):
    bits = data.draw(st.tuples(st.integers(2, 8), st.integers(2, 8)))
    size = data.draw(st.sampled_from([1, 20, 300]))
    product = Table(with_error(bits, rank, size), exchanged)
    case = data.draw(st.sampled_from(SERVED))
    zeros = data.draw(st.tuples(st.integers(-2, 1), st.integers(-2, 1)))
    codes = random_codes(product, case.left, case.right)
    if low_rank.why_not(case.contraction, product, [x.shape for x in codes], zeros):
        assert size == 300
        return
    with pytest.MonkeyPatch.context() as patch:
        check(patch, case.contraction, product, *codes, zeros)


def near_the_bound(product, shape):
    """Codes whose products are nearly as large as any, and nearly all odd in their last bits."""
    codes = rng.integers(128, 131, shape) if product.multiplier.signed else (
        rng.integers(253, 256, shape)
    )  # fmt: skip
    return tf.constant(codes, tf.uint8)


@pytest.mark.parametrize("image", [(1, 6, 7), (2, 14, 15), (3, 5, 8)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
def test_sums_near_the_bound_in_a_convolution_of_three_by_three(
    image, strides, monkeypatch, contractions
):
    """Where a transform such as Winograd's would round."""
    product, c = Table(multipliers.exact(signed=True)), Conv2D(strides, "SAME")
    a, b = (near_the_bound(product, shape) for shape in ((*image, 113), (3, 3, 113, 19)))
    got, due = both(monkeypatch, c, product, a, b)
    np.testing.assert_array_equal(got, due)
    assert 0.97 * 2**24 < due.numpy().max() <= 2**24
    assert len(contractions) == 1


@pytest.mark.parametrize("k", [1024, 1025, 2600])
def test_sums_near_the_bound_in_a_matrix_product(k, monkeypatch, contractions):
    product = Table(multipliers.exact(signed=True))
    a, b = near_the_bound(product, (7, k)), near_the_bound(product, (k, 5))
    check(monkeypatch, MatMul(), product, a, b)
    assert sum(left[-1] for left, _ in contractions) == k
    assert len(contractions) == -(-k // 1024)  # 2^24 / 128^2 products in a block
    sizes = [left[-1] for left, _ in contractions]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("zeros", "blocks"), [((0, 0), 3), ((255, 255), 3), ((128, 127), 1)])
def test_zero_points_in_the_middle_leave_room_for_more(zeros, blocks, monkeypatch, contractions):
    product = Table(multipliers.exact())
    a, b = near_the_bound(product, (4, 600)), near_the_bound(product, (600, 3))
    check(monkeypatch, MatMul(), product, a, b, zeros)
    assert len(contractions) == blocks


def test_a_graph_that_does_not_know_the_zero_points(monkeypatch, contractions):
    monkeypatch.setenv("OPGRAFT_TABLE_ENGINE", "low_rank")
    product = Table(multipliers.exact())
    a, b = near_the_bound(product, (4, 600)), near_the_bound(product, (600, 3))
    run = tf.function(lambda zeros: tables.sums(MatMul(), product, a, b, zeros))
    got = run.get_concrete_function(tf.TensorSpec([2], tf.int32))
    for zeros in ((0, 0), (255, 0), (130, 131)):
        _, due = both(monkeypatch, MatMul(), product, a, b, zeros)
        np.testing.assert_array_equal(got(tf.constant(zeros)), due)
    assert contractions[0] == ((4, 200), (200, 3))


SPLIT = [
    (MatMul(transpose_a=True), (2, 1, 90, 4), (3, 90, 5)),
    (MatMul(transpose_b=True), (7, 91), (6, 91)),
    (Conv2D((2, 1), "SAME"), (2, 7, 6, 37), (2, 3, 37, 3)),
    (Conv2D(padding=((1, 0), (2, 1)), dilations=(1, 2), channels_first=True), (1, 26, 5, 8),
     (2, 2, 26, 4)),
    (Conv2D(groups=3, padding="SAME"), (2, 4, 5, 51), (2, 2, 17, 6)),
]  # fmt: skip


@pytest.mark.parametrize(("c", "left", "right"), SPLIT)
@pytest.mark.parametrize("zeros", [(0, 0), (-3, 60)])
def test_long_sums_are_split(c, left, right, zeros, monkeypatch, contractions):
    product = PRODUCTS["large errors"]
    a, b = random_codes(product, left, right)
    check(monkeypatch, c, product, a, b, zeros)
    assert len(contractions) > 2 * getattr(c, "groups", 1)


def test_depthwise_convolutions_are_added(monkeypatch, contractions):
    product, c = PRODUCTS["signed"], DepthwiseConv2D((2, 2), "SAME", channels_first=True)
    check(monkeypatch, c, product, *random_codes(product, (2, 5, 7, 8), (3, 2, 5, 2)), (1, -7))
    assert len(contractions) == 4  # the centred product, and an error of rank 3


def test_the_table_itself_is_taken_where_it_has_the_lower_rank(monkeypatch, contractions):
    product = PRODUCTS["by the table's factors"]
    a, b = random_codes(product, (5, 11), (11, 4))
    check(monkeypatch, MatMul(), product, a, b)
    check(monkeypatch, MatMul(), product, a, b, (1, 0))
    assert contractions == [((5, 11), (11, 4)), ((5, 33), (33, 4))]


def test_sums_beyond_32_bits(monkeypatch):
    table = multipliers.exact(signed=True).table - 2**22
    product = Table(Multiplier.from_array(table, signed=True))
    a, b = near_the_bound(product, (2, 700)), near_the_bound(product, (700, 3))
    got, due = both(monkeypatch, MatMul(), product, a, b)
    assert got.dtype == due.dtype == tf.int64
    assert due.numpy().min() < -(2**31)
    np.testing.assert_array_equal(got, due)


# ---- chosen and refused ------------------------------------------------------------------------


def refused(monkeypatch, text, c, product, *shapes):
    monkeypatch.setenv("OPGRAFT_TABLE_ENGINE", "low_rank")
    with pytest.raises(UnsupportedError, match=text) as caught:
        tables.sums(c, product, *random_codes(product, *shapes), tf.constant((0, 0)))
    assert str(caught.value).endswith("OPGRAFT_TABLE_ENGINE=auto takes an engine that can")


def test_a_high_rank_is_refused(monkeypatch):
    product = Table(multipliers.mitchell())
    text = (
        r"=low_rank: this matmul cannot be computed so: the rank of <Multiplier Mitchell .*>'s "
        r"error is too high; 8 is the most"
    )
    refused(monkeypatch, text, MatMul(), product, (3, 5), (5, 2))
    with pytest.raises(UnsupportedError, match=text):
        og.approximate(multipliers.mitchell())


def test_padding_that_goes_through_the_table_is_refused(monkeypatch):
    product = Table(PRODUCTS["signed"].multiplier, keeps_padding=True)
    shapes = (1, 5, 6, 2), (2, 3, 2, 3)
    text = "this conv2d .*: keeps_padding=True sends padded taps through the table"
    for padding in ("SAME", ((0, 1), (0, 0))):
        refused(monkeypatch, text, Conv2D(padding=padding), product, *shapes)
    for padding in ("VALID", ((0, 0), (0, 0))):
        codes = random_codes(product, *shapes)
        check(monkeypatch, Conv2D(padding=padding), product, *codes)


def test_a_kernel_whose_taps_do_not_fit_is_refused(monkeypatch):
    c, product = Conv2D(), PRODUCTS["large errors"]
    text = "float32 is exact for sums of at most .* such products, and the fewest that .* are 49"
    refused(monkeypatch, text, c, product, (1, 8, 9, 2), (7, 7, 2, 3))


def test_sizes_that_are_not_known_are_refused(monkeypatch):
    monkeypatch.setenv("OPGRAFT_TABLE_ENGINE", "low_rank")
    arithmetic = og.approximate(multipliers.drum(4))
    run = tf.function(lambda x, w: og.matmul(x, w, arithmetic=arithmetic))
    with pytest.raises(UnsupportedError, match="sizes that are summed over are not known while"):
        run.get_concrete_function(tf.TensorSpec([None, None]), tf.TensorSpec([None, None]))
    run.get_concrete_function(tf.TensorSpec([None, None]), tf.TensorSpec([70, None]))


def test_it_is_listed(capsys):
    og.show_config()
    assert "(of: auto expanded rows low_rank)" in capsys.readouterr().out


# ---- in networks -------------------------------------------------------------------------------


def network(arithmetic):
    return keras.Sequential([
        keras.Input((None, None, 3)), og.layers.Conv2D(40, 3, strides=2, arithmetic=arithmetic),
        keras.layers.ReLU(), og.layers.DepthwiseConv2D(2, arithmetic=arithmetic),
        og.layers.Conv2D(4, (2, 3), groups=2, padding="same", arithmetic=arithmetic),
        keras.layers.GlobalAveragePooling2D(), og.layers.Dense(5, arithmetic=arithmetic),
    ])  # fmt: skip


def test_a_network_gives_the_same_bits_and_is_exported(tmp_path, monkeypatch):
    model = network(og.approximate(multipliers.drum(4)))
    x = rng.standard_normal((5, 8, 9, 3), np.float32)

    def computed():
        with tf.GradientTape() as tape:
            y = model(x)
        fresh = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec([None] * 3 + [3])])
        return y, fresh(x), *tape.gradient(y, model.trainable_variables)

    due = computed()
    monkeypatch.setenv("OPGRAFT_TABLE_ENGINE", "low_rank")
    got = computed()
    for g, d in zip(got, due, strict=True):
        np.testing.assert_array_equal(g, d)
    model.export(tmp_path / "exported", verbose=False)
    monkeypatch.delenv("OPGRAFT_TABLE_ENGINE")
    exported = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.serve(x), due[0], rtol=1e-6, atol=1e-6)


# ---- chosen by itself --------------------------------------------------------------------------


def test_one_term_is_preferred():
    cut = og.multipliers.broken_array(h1=2, signed=True)
    plain, grouped = Conv2D(padding="SAME"), Conv2D(groups=2)
    for multiplier, contraction, zeros, preferred in (
        (cut, plain, (0, 0), True),
        (cut, MatMul(), (0, 0), True),
        (cut, grouped, (0, 0), False),
        (cut, DepthwiseConv2D(), (0, 0), False),
        (cut, plain, None, False),  # beside the centred codes
        (og.multipliers.exact(), plain, None, True),
        (og.multipliers.broken_array(v=3, signed=True), plain, (0, 0), False),
        (og.multipliers.mitchell(), plain, (0, 0), False),
    ):
        product = og.approximate(multiplier).product
        assert low_rank.is_preferred(contraction, product, zeros) == preferred


def test_not_where_tensorflow_may_round(monkeypatch):
    product = og.approximate(og.multipliers.broken_array(h1=2, signed=True)).product
    shapes = tf.TensorShape((3, 7)), tf.TensorShape((7, 4))
    assert low_rank.why_not(MatMul(), product, shapes, (0, 0)) == ""
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    why = low_rank.why_not(MatMul(), product, shapes, (0, 0))
    assert why == "ONEDNN_DEFAULT_FPMATH_MODE lets TensorFlow round what it multiplies"
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "strict")
    assert low_rank.why_not(MatMul(), product, shapes, (0, 0)) == ""
