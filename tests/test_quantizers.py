"""Linear quantizers against their formulas, in NumPy and in TensorFlow, forward and backward."""

import fractions

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from opgraft import values
from opgraft.backends.tensorflow import quantize
from opgraft.errors import ArgumentError
from opgraft.quantizers import Affine, Codes, Identity, Symmetric, identity

rng = np.random.default_rng(90210)
BITS = range(2, 9)
FLOATS = [np.float32, np.float64]
SHARED = {  # axes of a kernel that share a scale where each channel has its own
    "matmul": ((7, 5), (-2,)), "transposed": ((5, 7), (-1,)), "batched": ((2, 3, 4, 5), (-2,)),
    "conv2d": ((3, 2, 4, 5), (0, 1, 2)), "depthwise": ((2, 3, 5, 2), (0, 1)),
}  # fmt: skip
every_bits = pytest.mark.parametrize("bits", BITS)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])


def by_tensorflow(quantizer, x, axes=None) -> Codes:
    found = quantize.encode(quantizer, tf.convert_to_tensor(x), axes)
    return Codes(*(part.numpy() for part in found[:4]))


def in_graph(quantizer, x, axes=None, shape=None) -> Codes:
    """The same in a graph that knows `shape` alone of what it is given."""

    def run(tensor):
        return quantize.encode(quantizer, tensor, axes)[:4]

    graph = tf.function(run, input_signature=[tf.TensorSpec(shape, x.dtype)], autograph=False)
    return Codes(*(part.numpy() for part in graph(x)))


def assert_same(got: Codes, due: Codes) -> None:
    assert got.codes.dtype == due.codes.dtype == np.uint8
    assert got.values.dtype == due.values.dtype
    np.testing.assert_array_equal(got.codes, due.codes)
    np.testing.assert_array_equal(np.squeeze(got.scale), np.squeeze(due.scale))
    assert int(got.zero_point) == int(due.zero_point)
    np.testing.assert_array_equal(got.values, due.values)


def numbers(quantizer, codes: np.ndarray) -> np.ndarray:
    """The whole numbers that codes stand for."""
    whole = codes.astype(int)
    half = 2 ** (quantizer.bits - 1)
    return np.where(quantizer.signed & (whole >= half), whole - 2 * half, whole)


def nearest(x, scale: fractions.Fraction, low: int, high: int, zero: int) -> list[int]:
    """round(x / scale) + zero within low and high, exactly; a Fraction rounds halves to even."""
    steps = (round(fractions.Fraction(float(each)) / scale) + zero for each in x.ravel())
    return [min(max(step, low), high) for step in steps]


def around(points: np.ndarray, dtype) -> np.ndarray:
    """The points, and the numbers of the type just below and above; none is subnormal."""
    points = points.astype(dtype)
    beside = [np.nextafter(points, dtype(end)) for end in (-np.inf, np.inf)]
    return (
        np.where(points == 0, np.array([[0], [-1e-30], [1e-30]]), [points, *beside])
        .ravel()
        .astype(dtype)
    )


# ---- formulas: the scales are powers of two, so that every threshold is a number of the type -----


@every_bits
@every_float
def test_symmetric_is_its_formula(bits, dtype):
    top, scale = 2 ** (bits - 1) - 1, fractions.Fraction(1, 8)
    quantizer = Symmetric(bits, limit=float(top * scale))
    steps = np.arange(-top - 3, top + 3.5, 0.5) * float(scale)  # every code, and every tie
    x = np.concatenate([around(steps, dtype), rng.normal(0, top / 16, 200).astype(dtype)])
    due = nearest(x, scale, -top, top, 0)
    for found in (quantizer.encode(x), by_tensorflow(quantizer, x)):
        assert numbers(quantizer, found.codes).tolist() == due
        assert found.zero_point == 0
        assert float(found.scale) == float(scale)
        np.testing.assert_array_equal(found.values, np.array(due) * float(scale))
    assert {-top, 0, top} <= set(due)


@every_bits
@every_float
def test_affine_is_its_formula(bits, dtype):
    top, scale = 2**bits - 1, fractions.Fraction(1, 4)
    for zero in {0, 1, top // 3, top - 1, top}:
        quantizer = Affine(bits, float(-zero * scale), float((top - zero) * scale))
        steps = (np.arange(-3, top + 3.5, 0.5) - zero) * float(scale)
        x = np.concatenate([around(steps, dtype), rng.normal(0, top / 8, 200).astype(dtype)])
        due = nearest(x, scale, 0, top, zero)
        for found in (quantizer.encode(x), by_tensorflow(quantizer, x)):
            assert numbers(quantizer, found.codes).tolist() == due
            assert found.zero_point == zero
            assert float(found.scale) == float(scale)
            np.testing.assert_array_equal(found.values, (np.array(due) - zero) * float(scale))
        assert {0, zero, top} <= set(due)


def test_halves_round_to_even():
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
    for found in (Symmetric(8, 127).encode(x), by_tensorflow(Symmetric(8, 127), x)):
        assert found.values.tolist() == [-2, -2, 0, 0, 2, 2]
    for found in (Affine(8, -5, 250).encode(x), by_tensorflow(Affine(8, -5, 250), x)):
        assert found.codes.tolist() == [3, 3, 5, 5, 7, 7]  # even steps from the zero point


@every_bits
def test_a_zero_point_is_the_nearest_code(bits):
    top = 2**bits - 1
    for low, high in ((-0.3, 1.7), (0, 2.5), (-3, 0), (-1e-6, 1)):
        found = Affine(bits, low, high).encode(np.zeros(3, np.float32))
        assert found.zero_point == round(-low * top / (high - low))
        assert (found.codes == found.zero_point).all()
        assert (found.values == 0).all()  # zero is exact


@every_bits
@every_float
def test_a_range_is_that_of_the_tensor(bits, dtype):
    x = rng.normal(0.3, 2, (6, 7)).astype(dtype)
    top = 2 ** (bits - 1) - 1
    found = Symmetric(bits).encode(x)
    np.testing.assert_allclose(found.scale, abs(x).max() / top, rtol=1e-6)
    assert abs(numbers(Symmetric(bits), found.codes)).max() == top
    found = Affine(bits).encode(x)
    np.testing.assert_allclose(found.scale, (x.max() - x.min()) / (2**bits - 1), rtol=1e-6)
    assert found.codes.max() >= 2**bits - 2
    assert found.codes.min() <= 1
    for low, high in ((1, 3), (-3, -1)):  # a range always holds 0
        found = Affine(bits).encode(np.append(np.clip(x, low, high), [low, high]).astype(dtype))
        np.testing.assert_allclose(found.scale, 3 / (2**bits - 1), rtol=1e-6)


# ---- NumPy and TensorFlow, bit for bit -----------------------------------------------------

QUANTIZERS = [
    kind
    for bits in (2, 5, 8)
    for kind in (
        Symmetric(bits), Symmetric(bits, limit=0.3), Symmetric(bits, limit=1.7), Affine(bits),
        Affine(bits, -0.7, 1.9), Affine(bits, 0, 1.1), Affine(bits, -0.9, 0),
    )
]  # fmt: skip


@every_float
@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=str)
def test_the_same_bits(quantizer, dtype):
    for seed in range(10):
        draw = np.random.default_rng(seed)
        shape = tuple(draw.integers(1, 7, draw.integers(1, 5)))
        x = (draw.normal(0.1, 10.0 ** draw.integers(-3, 3), shape)).astype(dtype)
        due = quantizer.encode(x)
        assert_same(by_tensorflow(quantizer, x), due)
        if seed < 3:
            assert_same(in_graph(quantizer, x, shape=x.shape), due)


@every_float
@every_bits
@pytest.mark.parametrize("name", SHARED)
def test_a_scale_for_each_channel(name, bits, dtype):
    shape, axes = SHARED[name]
    quantizer = Symmetric(bits, per_channel=True)
    x = rng.standard_normal(shape).astype(dtype) * 10.0 ** rng.integers(-2, 3, shape[-1:])
    x = x.astype(dtype)
    due = quantizer.encode(x, axes)
    assert_same(by_tensorflow(quantizer, x, axes), due)
    assert_same(in_graph(quantizer, x, axes, shape), due)
    top = 2 ** (bits - 1) - 1
    np.testing.assert_allclose(due.scale, abs(x).max(axes, keepdims=True) / top, rtol=1e-6)
    whole = numbers(quantizer, due.codes)
    np.testing.assert_array_equal(abs(whole).max(axes), top)  # each channel uses its codes


@pytest.mark.parametrize("shape", [None, (None, None, None), (None, 3, None), (2, 3, 4)])
@pytest.mark.parametrize("quantizer", [QUANTIZERS[i] for i in (0, 4, 8, 18)], ids=str)
@every_float
def test_graphs_that_know_less(quantizer, shape, dtype):
    x = rng.standard_normal((2, 3, 4)).astype(dtype)
    assert_same(in_graph(quantizer, x, shape=shape), quantizer.encode(x))


@pytest.mark.parametrize("rank", [None, 2])
@every_float
def test_channels_in_graphs_that_know_less(rank, dtype):
    quantizer, x = Symmetric(8, per_channel=True), rng.standard_normal((6, 5)).astype(dtype)
    got = in_graph(quantizer, x, (-2,), rank and (None, None))
    assert_same(got, quantizer.encode(x, (-2,)))


def test_static_shapes_are_known_in_graphs():
    shapes = []

    def run(x):
        shapes.extend(part.shape for part in quantize.encode(Affine(8), x, None))

    tf.function(run, autograph=False).get_concrete_function(tf.TensorSpec((None, 3, 4)))
    assert [list(shape) for shape in shapes] == [[None, 3, 4], [], [], [None, 3, 4], []]


finite = st.floats(-(2.0**60), 2.0**60, width=32).filter(lambda x: x == 0 or abs(x) > 1e-25)


@given(of_numpy.arrays(np.float32, of_numpy.array_shapes(max_dims=3), elements=finite),
       st.sampled_from(BITS), st.sampled_from([Symmetric, Affine]))  # fmt: skip
def test_any_tensor(x, bits, kind):
    due = kind(bits).encode(x)
    assert_same(by_tensorflow(kind(bits), x), due)
    half = due.scale.item() * 0.5
    slack = 1.001 if kind is Symmetric else 2.001  # the zero point moves a range by half a step
    assert (abs(due.values.astype(float) - x) <= half * slack + 1e-6 * abs(x)).all()


# ---- laws ----------------------------------------------------------------------------------


@pytest.mark.parametrize("quantizer", [*QUANTIZERS, Symmetric(8, per_channel=True)], ids=str)
def test_they_are_values(quantizer):
    again = values.from_json(values.to_json(quantizer))
    assert again == quantizer
    assert hash(again) == hash(quantizer)
    assert type(quantizer)() in {Symmetric(8), Affine(8)}
    with pytest.raises(AttributeError):
        quantizer.bits = 4


@every_float
@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=str)
def test_shape_dtype_and_idempotence(quantizer, dtype):
    for shape in ((), (3,), (2, 3, 4, 5)):
        x = np.asarray(rng.normal(0, 1, shape), dtype)
        first = quantizer.encode(x)
        assert first.values.shape == first.codes.shape == x.shape
        assert first.values.dtype == x.dtype
        whole = numbers(quantizer, first.codes)
        steps = (whole - first.zero_point).astype(dtype)
        np.testing.assert_array_equal(steps * first.scale.reshape(()), first.values)
        if quantizer != quantizer.dynamic():  # a range is given
            assert_same(quantizer.encode(first.values), first)
            assert_same(by_tensorflow(quantizer, first.values), first)


def test_ranges_given_and_taken():
    assert Symmetric(5, limit=2.0).dynamic() == Symmetric(5)
    assert Affine(5, -1, 2).dynamic() == Affine(5)
    assert Symmetric(5, per_channel=True).dynamic() == Symmetric(5, per_channel=True)
    assert Symmetric(5).calibrated(-3, 2) == Symmetric(5, limit=3)
    assert Symmetric(5, limit=9).calibrated(-1, 2) == Symmetric(5, limit=2)
    assert Affine(5).calibrated(-3, 2) == Affine(5, -3, 2)
    assert Affine(5).calibrated(1, 2) == Affine(5, 0, 2)
    assert Affine(5).calibrated(-2, -1) == Affine(5, -2, 0)
    assert Symmetric(5).calibrated(0, 0) == Symmetric(5, limit=1)
    assert Affine(5).calibrated(0, 0) == Affine(5, 0, 1)
    assert Identity().dynamic() == identity


def test_numbers_of_numpy_are_numbers():
    assert Symmetric(np.int64(4), limit=np.float32(1.5)) == Symmetric(4, limit=1.5)
    assert Affine(np.uint8(4), np.float32(-1), np.int32(2)) == Affine(4, -1, 2)
    assert isinstance(Symmetric(np.int64(4)).bits, int)


@pytest.mark.parametrize("make", [Symmetric, Affine])
@pytest.mark.parametrize("bits", [1, 17, 0, -8, 8.0, "8", None, True])
def test_bits_that_are_none(make, bits):
    with pytest.raises(ArgumentError, match=r"bits=.*: a whole number from 2 to 16 is needed"):
        make(bits)


@pytest.mark.parametrize("limit", [0, -1.5, 1e-31, 1e31, 1e300, np.inf, np.nan, "1", True, [1.0]])
def test_limits_that_are_none(limit):
    with pytest.raises(ArgumentError, match=r"it must be a number above 0, from 1e-30 to 1e30"):
        Symmetric(8, limit=limit)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.5, 1), (-2, -1), (1, -1), (0, 0), (None, 1), (-1, None), (-np.inf, 1), (0, np.nan),
     (0, "1"), (-1e-32, 0), (0, 1e300)],
)  # fmt: skip
def test_ranges_that_are_none(low, high):
    with pytest.raises(ArgumentError, match=r"give both, low below high and 0 between them"):
        Affine(8, low, high)


# ---- gradients -----------------------------------------------------------------------------


def gradient(quantizer, x, axes=None) -> np.ndarray:
    """The upstream was 1, 2, 3 ...: what of it comes back."""
    tensor = tf.convert_to_tensor(x)
    upstream = tf.reshape(tf.range(1, x.size + 1, dtype=x.dtype), x.shape)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        found = quantize.encode(quantizer, tensor, axes)
    back = tape.gradient(found.values, tensor, upstream)
    return (back / upstream).numpy()


@every_float
@every_bits
def test_what_is_clipped_has_no_gradient(bits, dtype):
    top = 2 ** (bits - 1) - 1
    for limit in (top / 8, 0.3, 1.7, 1 / 3, 0.1, 5.3):
        x = around(np.array([-limit, limit, 0.0, 3 * limit, -3 * limit, limit / 2]), dtype)
        due = abs(x) <= dtype(limit)
        assert 0 < due.sum() < due.size
        np.testing.assert_array_equal(gradient(Symmetric(bits, limit=limit), x), due)


@every_float
@every_bits
def test_what_has_a_code_has_a_gradient(bits, dtype):
    top, scale = 2**bits - 1, 0.25
    for zero in {0, 1, top}:
        low, high = -zero * scale, (top - zero) * scale
        x = around(np.array([low, high, (low + high) / 2, low - 1, high + 1]), dtype)
        due = (x >= low) & (x <= high)
        np.testing.assert_array_equal(gradient(Affine(bits, low, high), x), due)


@every_float
@pytest.mark.parametrize(("low", "high"), [(-0.7, 1.9), (0, 1.1), (-0.31, 0.33)])
def test_the_range_of_a_gradient_is_that_of_the_codes(low, high, dtype):
    quantizer = Affine(4, low, high)
    ends = quantizer.encode(np.array([-9, 9], dtype)).values  # moved, so that 0 has a code
    x = around(np.array([*ends, low / 2, high / 2]), dtype)
    due = (x >= ends[0]) & (x <= ends[1])
    np.testing.assert_array_equal(gradient(quantizer, x), due)


@every_float
@pytest.mark.parametrize("quantizer", [Symmetric(4), Affine(4), Symmetric(8, per_channel=True)])
def test_a_range_of_its_own_clips_nothing(quantizer, dtype):
    x = rng.normal(0, 3, (5, 4)).astype(dtype)
    np.testing.assert_array_equal(gradient(quantizer, x, (-2,)), np.ones_like(x))


@every_float
@pytest.mark.parametrize("quantizer", [Symmetric(4), Affine(4), Affine(4, -0.5, 0.5)])
def test_scales_and_zero_points_send_nothing_back(quantizer, dtype):
    x = tf.convert_to_tensor(rng.normal(0, 3, (5, 4)).astype(dtype))
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = quantize.encode(quantizer, x, None)
        loss = found.scale * tf.cast(found.zero_point + 1, dtype)
    assert tape.gradient(loss, x) is None


def test_the_gradient_in_a_graph_and_of_the_second_order():
    x = tf.constant(rng.normal(0, 1, (5, 4)).astype(np.float32))

    def run(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                cubes = quantize.encode(Symmetric(8, limit=1.0), x, None).values ** 3
            first = inner.gradient(cubes, x)
        return first, outer.gradient(first, x)

    used = Symmetric(8, limit=1.0).encode(x.numpy()).values
    mask = abs(x.numpy()) <= 1
    for first, second in (run(x), tf.function(run, autograph=False)(x)):
        np.testing.assert_allclose(first, 3 * used**2 * mask, rtol=1e-6)
        np.testing.assert_allclose(second, 6 * used * mask, rtol=1e-6)


# ---- odd tensors ---------------------------------------------------------------------------

ODD = [Symmetric(8), Symmetric(8, limit=2.0), Affine(8), Affine(8, -1, 2)]


@every_float
@pytest.mark.parametrize("quantizer", ODD, ids=str)
def test_a_nan_spoils(quantizer, dtype):
    for where in range(11):
        x = rng.standard_normal(11).astype(dtype)
        assert quantize.encode(quantizer, tf.constant(x), None).spoilt == 0
        x[where] = np.nan
        assert np.isnan(quantize.encode(quantizer, tf.constant(x), None).spoilt)


@every_float
@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_infinities(infinity, dtype):
    x = np.array([0.5, infinity, -0.25], dtype)
    for quantizer in (Symmetric(8), Affine(8)):  # the range is infinite
        assert not np.isfinite(by_tensorflow(quantizer, x).scale)
    for quantizer in (Symmetric(8, limit=2.0), Affine(8, -1, 2)):  # the largest number is used
        assert_same(by_tensorflow(quantizer, x), quantizer.encode(x))
        clipped = quantizer.encode(np.clip(x, -9, 9)).values
        np.testing.assert_array_equal(by_tensorflow(quantizer, x).values, clipped)
        assert gradient(quantizer, x).tolist() == [1, 0, 1]


@every_float
@pytest.mark.parametrize("quantizer", ODD, ids=str)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0, 2)])
def test_nothing_and_nothing_but_zeros(quantizer, shape, dtype):
    nothing = np.zeros(shape, dtype)
    assert_same(by_tensorflow(quantizer, nothing), quantizer.encode(nothing))
    zeros = np.zeros((2, 3), dtype)
    found = by_tensorflow(quantizer, zeros)
    assert_same(found, quantizer.encode(zeros))
    assert (found.values == 0).all()
    assert found.scale > 0


@pytest.mark.parametrize("channel", [0, 3])
def test_a_channel_of_zeros(channel):
    x = rng.standard_normal((6, 4)).astype(np.float32)
    x[:, channel] = 0
    quantizer = Symmetric(8, per_channel=True)
    found = by_tensorflow(quantizer, x, (-2,))
    assert_same(found, quantizer.encode(x, (-2,)))
    assert found.scale[0, channel] == 1


@pytest.mark.parametrize(("dtype", "size"), [(np.float32, 1e-40), (np.float64, 1e-310)])
@pytest.mark.parametrize("quantizer", ODD, ids=str)
def test_numbers_too_small_for_a_scale(quantizer, dtype, size):
    """TensorFlow may take them for 0; what is used is no farther away than that."""
    x = np.array([size, -size, size / 3, 0], dtype)
    for found in (by_tensorflow(quantizer, x), in_graph(quantizer, x, shape=(4,))):
        assert np.isfinite(found.scale)
        assert found.scale > 0
        assert (abs(found.values) <= 2 * size).all()


@pytest.mark.filterwarnings("ignore:overflow encountered in divide")  # and clipped
@pytest.mark.parametrize(("dtype", "size"), [(np.float32, 1e38), (np.float64, 1e308)])
@pytest.mark.parametrize("quantizer", ODD, ids=str)
def test_large_numbers(quantizer, dtype, size):
    x = np.array([size, -0.3 * size, 0.01 * size], dtype)
    found = by_tensorflow(quantizer, x)
    assert_same(found, quantizer.encode(x))
    assert np.isfinite(found.values).all()
    if quantizer == quantizer.dynamic():
        np.testing.assert_allclose(found.values, x, atol=0.01 * size)
