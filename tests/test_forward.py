"""Forward: every way through C and Python gives the loop nest's numbers, exactly.

Operands are small integers, so that float32 has no rounding and `==` is the test.
"""

import dataclasses
import functools
import pathlib

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from cases import (
    CASES,
    CONVOLUTIONS,
    MATMULS,
    SELECTION,
    Case,
    compute,
    every,
    exact_meaning,
    meaning,
)

import opgraft as og
from opgraft.errors import UnsupportedError
from opgraft.native import core
from opgraft.spec import Conv2D, DepthwiseConv2D, MatMul

HERE = pathlib.Path(__file__).parent
C = HERE / "c"
pytestmark = pytest.mark.filterwarnings("ignore:the Python function")  # that it is slow


@functools.cache
def typed(name: str, operand: str, size: str, result: str):
    """One of the matrix products in matmul_types.c."""
    prototype = (
        f"void {name}(const {operand} *a, const {operand} *b, {size} m, {size} k, {size} n, "
        f"{result} *out)"
    )
    return og.c_function(C / "matmul_types.c", prototype)


@pytest.fixture(scope="module")
def hooks(c_matmul, c_conv2d, c_both, c_conv2d_full, c_mul):
    """The places where a C function can take over."""
    return {
        "conv2d": c_conv2d,
        "conv2d_full": c_conv2d_full,
        "conv2d_narrow": og.c_function(C / "conv2d_narrow.c"),
        "conv2d_square": og.c_function(C / "conv2d_square.c"),
        "matmul": c_matmul,
        "both": c_both,
        "scalar": c_mul,
    }


def check_forward(case: Case, arithmetic) -> None:
    """The check: shape, dtype and every number of a float32 result."""
    left, right = (operand.astype(np.float32) for operand in case.integers())
    got = compute(case.contraction, arithmetic, left, right).numpy()
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, exact_meaning(case), strict=False)
    assert got.shape == case.output


def takes(hook: str, case: Case) -> bool:
    """Whether a C function alone can take the case: only a matmul composes dilations."""
    if not hook.startswith("conv2d"):
        return True
    if isinstance(case.contraction, MatMul):
        return False
    dilations = case.contraction.dilations
    if hook == "conv2d_square":
        return dilations[0] == dilations[1]
    return dilations == (1, 1) or hook == "conv2d_full"


HOOKS = ("conv2d", "conv2d_full", "conv2d_narrow", "conv2d_square", "matmul", "both", "scalar")


def pairs(wanted: bool):
    chosen = [(hook, case) for hook in HOOKS for case in CASES if takes(hook, case) is wanted]
    return pytest.mark.parametrize(
        ("hook", "case"), chosen, ids=[f"{hook}-{case.id}" for hook, case in chosen]
    )


# ---- the table -----------------------------------------------------------------------


def test_the_table_is_what_it_says():
    assert len(CASES) >= 160
    assert len({case.id for case in CASES}) == len(CASES)
    convolutions = [case.contraction for case in CONVOLUTIONS]
    assert {c.strides for c in convolutions} >= {(1, 1), (2, 2), (2, 1)}
    assert {case.left[0] for case in CONVOLUTIONS} >= {0, 1, 3}
    assert {size for case in CONVOLUTIONS for size in case.right[:2]} == {1, 2, 3, 4, 5}
    for images in (case.left[c.spatial_axes[0] : c.spatial_axes[1] + 1]
                   for case, c in zip(CONVOLUTIONS, convolutions, strict=True)):  # fmt: skip
        assert images[0] != images[1]


@pairs(True)
def test_every_hook_computes_the_meaning(case, hook, hooks):
    check_forward(case, hooks[hook])


@pairs(False)
def test_what_a_convolution_cannot_take_is_refused(case, hook, hooks):
    left, right = (operand.astype(np.float32) for operand in case.integers())
    says = "cannot serve a matrix product" if case in MATMULS else "no dilation parameters"
    with pytest.raises(UnsupportedError, match=says):
        compute(case.contraction, hooks[hook], left, right)


@every(CASES)
def test_in_a_graph(case, c_both):
    left, right = (operand.astype(np.float32) for operand in case.integers())
    function = tf.function(lambda a, b: compute(case.contraction, c_both, a, b))
    concrete = function.get_concrete_function(tf.constant(left), tf.constant(right))
    assert tuple(concrete.structured_outputs.shape) == case.output
    np.testing.assert_array_equal(function(left, right), exact_meaning(case))


# ---- element types -------------------------------------------------------------------

FLOATS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("hook", ["both", "conv2d_full", "scalar"])
@every(SELECTION)
def test_other_floats_are_cast_and_come_back(case, hook, dtype, hooks):
    if not takes(hook, case):
        hook = "both"
    left, right = (operand.astype(FLOATS[dtype]) for operand in case.integers())
    got = compute(case.contraction, hooks[hook], left, right)
    assert got.dtype.name == dtype
    np.testing.assert_array_equal(got.numpy(), exact_meaning(case).astype(FLOATS[dtype]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_casts_round_to_nearest_even(dtype, c_matmul):
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(shape).astype(FLOATS[dtype]) for shape in ((5, 7), (7, 6)))
    got = og.matmul(a, b, arithmetic=c_matmul).numpy()
    in_float = og.matmul(a.astype(np.float32), b.astype(np.float32), arithmetic=c_matmul).numpy()
    assert got.tobytes() == in_float.astype(FLOATS[dtype]).tobytes()


def test_a_double_function_keeps_what_float_cannot():
    double = typed("matmul_double", "double", "size_t", "double")
    a, b = np.random.default_rng(8).standard_normal((2, 3, 4, 4))
    got = og.matmul(a, b, arithmetic=double).numpy()
    np.testing.assert_allclose(got, a @ b, rtol=1e-14, atol=1e-15)


TYPED = [
    ("matmul_int32", "int32_t", "int64_t", "int32_t", "int32", "int32"),
    ("matmul_int64", "int64_t", "short", "int64_t", "int64", "int64"),
    ("matmul_int8", "int8_t", "unsigned", "int32_t", "int8", "int32"),
    ("matmul_uint8", "uint8_t", "int", "uint16_t", "uint8", "uint16"),
    ("matmul_float", "float", "int", "float", "int32", "float32"),
    ("matmul_wide", "float", "long", "double", "int16", "float64"),
]


@pytest.mark.parametrize("entry", TYPED, ids=lambda entry: entry[0])
@every(SELECTION)
def test_integer_tensors_get_the_functions_own_type(case, entry):
    *prototype, operand, result = entry
    left, right = case.integers()
    if operand == "uint8":
        left, right = abs(left), abs(right)
        if getattr(case.contraction, "pad_value", 0) < 0:
            case = dataclasses.replace(
                case, contraction=dataclasses.replace(case.contraction, pad_value=2.0)
            )
    got = compute(case.contraction, typed(*prototype), left.astype(operand), right.astype(operand))
    assert got.dtype.name == result
    np.testing.assert_array_equal(got.numpy(), meaning(case, np.multiply, left, right, np.int64))


def test_integers_keep_their_value_or_are_refused():
    narrow = typed("matmul_int8", "int8_t", "unsigned", "int32_t")
    good = np.array([[127, -128]], "int32")
    assert og.matmul(good, good.T, arithmetic=narrow).numpy() == 127 * 127 + 128 * 128
    bad = np.array([[3, 128]], "int32")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"the input holds 128 \(element 1, int32"
    ):
        og.matmul(bad, good.T, arithmetic=narrow)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"the kernel holds 0\.5 .*round"):
        og.matmul(np.ones((1, 2), "f"), np.array([[1], [0.5]], "f"), arithmetic=narrow)


@pytest.fixture(scope="module")
def skew():
    return og.c_function(C / "scalar.c", "int32_t skew(int32_t a, int32_t b)")


@every(CASES)
def test_a_scalar_product_that_does_not_commute(case, skew):
    """Also f(pad value, w) counts: padded positions hold a value like all others."""
    left, right = (operand.astype("int32") for operand in case.integers())
    got = compute(case.contraction, skew, left, right)
    assert got.dtype == tf.int64
    expected = meaning(case, lambda a, b: a * b + 2 * a - b, left, right, np.int64)
    np.testing.assert_array_equal(got.numpy(), expected)


# ---- sizes that are not known --------------------------------------------------------

SOME_CONVOLUTIONS = [case for case in SELECTION if case in CONVOLUTIONS]


@every(SOME_CONVOLUTIONS)
def test_unknown_batch_height_and_width(case, c_both):
    axis = case.contraction.channel_axis
    known = [size if i == axis else None for i, size in enumerate(case.left)]
    function = tf.function(
        lambda x, kernel: compute(case.contraction, c_both, x, kernel),
        input_signature=[tf.TensorSpec(known), tf.TensorSpec(case.right)],
    )
    left, right = (operand.astype("float32") for operand in case.integers())
    np.testing.assert_array_equal(function(left, right), exact_meaning(case))
    wider = np.concatenate([left, left[::-1]])  # another batch, the same trace
    np.testing.assert_array_equal(
        function(wider, right), np.concatenate([exact_meaning(case), exact_meaning(case)[::-1]])
    )
    static = function.get_concrete_function().structured_outputs.shape
    assert static[axis] == case.output[axis]


@every(SELECTION)
def test_nothing_is_known(case, c_both):
    function = tf.function(
        lambda a, b: compute(case.contraction, c_both, a, b),
        input_signature=[tf.TensorSpec([None] * len(shape)) for shape in (case.left, case.right)],
    )
    left, right = (operand.astype("float32") for operand in case.integers())
    np.testing.assert_array_equal(function(left, right), exact_meaning(case))


@pytest.mark.parametrize("python", [False, True], ids=["c", "python"])
def test_not_even_the_rank_is_known(python, c_both):
    arithmetic = og.python_function(np.matmul) if python else c_both
    function = tf.function(
        lambda a, b: og.matmul(a, b, arithmetic=arithmetic),
        input_signature=[tf.TensorSpec(None)] * 2,
    )
    a, b = np.arange(12, dtype="float32").reshape(3, 4), np.arange(8, dtype="float32").reshape(4, 2)
    np.testing.assert_array_equal(function(a, b), a @ b)


def test_shapes_that_do_not_fit_are_found_when_the_sizes_are_known(c_both):
    function = tf.function(
        lambda a, b: og.matmul(a, b, arithmetic=c_both),
        input_signature=[tf.TensorSpec([None, None])] * 2,
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\(3, 4\) and \(5, 2\) do not fit"):
        function(np.ones((3, 4), "f"), np.ones((5, 2), "f"))


# ---- Keras tensors -------------------------------------------------------------------


@every([case for case in SOME_CONVOLUTIONS if case.left[0]])
def test_in_a_functional_model(case, c_both):
    x, kernel = (operand.astype("float32") for operand in case.integers())
    inputs = keras.Input(case.left[1:])
    outputs = compute(case.contraction, c_both, inputs, kernel)
    assert tuple(outputs.shape) == (None, *case.output[1:])
    model = keras.Model(inputs, outputs)
    np.testing.assert_array_equal(model(x), exact_meaning(case))
    np.testing.assert_array_equal(model.predict(x, verbose=0), exact_meaning(case))


def test_a_functional_model_of_unknown_height_and_width(c_both):
    inputs = keras.Input((None, None, 2))
    kernel = np.random.default_rng(3).integers(-2, 3, (3, 2, 2, 3)).astype("float32")
    outputs = og.conv2d(inputs, kernel, arithmetic=c_both, strides=2, padding="same")
    assert tuple(outputs.shape) == (None, None, None, 3)
    model = keras.Model(inputs, outputs)
    for size in ((5, 8), (6, 7)):
        x = np.random.default_rng(4).integers(-2, 3, (2, *size, 2)).astype("float32")
        np.testing.assert_array_equal(model(x), tf.nn.conv2d(x, kernel, 2, "SAME"))


def test_two_keras_tensors(c_matmul):
    a, b = keras.Input((3, 4)), keras.Input((5, 4))
    y = og.matmul(a, b, arithmetic=c_matmul, transpose_b=True)
    assert tuple(y.shape) == (None, 3, 5)
    assert y.dtype == "float32"
    rng = np.random.default_rng(5)
    values = [rng.integers(-3, 4, (2, n, 4)).astype("float32") for n in (3, 5)]
    np.testing.assert_array_equal(
        keras.Model([a, b], y)(values), values[0] @ values[1].swapaxes(1, 2)
    )


def test_the_dtype_of_a_keras_tensor_is_that_of_the_result():
    widening = typed("matmul_int8", "int8_t", "unsigned", "int32_t")
    inputs = keras.Input((4,), dtype="int8")
    outputs = og.matmul(inputs, np.ones((4, 2), "int8"), arithmetic=widening)
    assert outputs.dtype == keras.Model(inputs, outputs)(np.ones((3, 4), "int8")).dtype.name


# ---- Python functions ----------------------------------------------------------------


def python_matmul(a, b):
    return a @ b


def python_convolution(x, kernel, strides, padding, dilations, groups, pad_value):
    """A convolution as a sum over taps."""
    x = np.pad(x, ((0, 0), *padding, (0, 0)), constant_values=pad_value)
    (kh, kw, ins, channels), spatial = kernel.shape, x.shape[1:3]
    rows, columns = (
        np.arange(0, size - (taps - 1) * dilation, stride)
        for size, taps, dilation, stride in zip(spatial, (kh, kw), dilations, strides, strict=True)
    )
    total = 0
    for i, j in np.ndindex(kh, kw):
        tap = x[:, rows + i * dilations[0]][:, :, columns + j * dilations[1]]
        tap = tap.reshape(*tap.shape[:3], groups, ins)
        weights = kernel[i, j].reshape(ins, groups, channels // groups)
        total = total + np.einsum("nyxgc,cgo->nyxgo", tap, weights)
    return total.reshape(*total.shape[:3], channels)


@every(CASES)
def test_python_matmul(case):
    check_forward(case, og.python_function(python_matmul))


@every(CONVOLUTIONS)
def test_python_convolution(case):
    check_forward(case, og.python_function(python_convolution))


@every(SELECTION)
def test_python_function_in_a_graph(case):
    arithmetic = og.python_function(python_matmul)
    left, right = (operand.astype("float32") for operand in case.integers())
    function = tf.function(lambda a, b: compute(case.contraction, arithmetic, a, b))
    concrete = function.get_concrete_function(tf.constant(left), tf.constant(right))
    assert tuple(concrete.structured_outputs.shape) == case.output
    np.testing.assert_array_equal(function(left, right), exact_meaning(case))


# ---- arguments, large calls, threads -------------------------------------------------


@pytest.mark.parametrize("strides", [(2, 1), [2, 1], (1, 2, 1, 1), np.array([2, 1]).tolist()])
def test_ways_to_write_strides(strides, c_both):
    x, kernel = _conv((2, 6, 7, 2), (3, 2, 2, 3))
    got = og.conv2d(x, kernel, arithmetic=c_both, strides=strides, padding="same")
    np.testing.assert_array_equal(got, tf.nn.conv2d(x, kernel, [1, 2, 1, 1], "SAME"))


def test_one_number_and_four_numbers_of_channels_first(c_both):
    x, kernel = _conv((2, 6, 7, 2), (3, 2, 2, 3))
    expected = tf.nn.conv2d(x, kernel, 2, "VALID")
    got = og.conv2d(x, kernel, arithmetic=c_both, strides=2)
    np.testing.assert_array_equal(got, expected)
    got = og.conv2d(x.transpose(0, 3, 1, 2), kernel, arithmetic=c_both, strides=(1, 1, 2, 2),
                    data_format="channels_first")  # fmt: skip
    np.testing.assert_array_equal(got, np.transpose(expected, (0, 3, 1, 2)))


@pytest.mark.parametrize("first", [False, True], ids=["channels_last", "channels_first"])
@pytest.mark.parametrize("padding", ["SAME", "VALID", "CAUSAL", (2, 1)])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 3)])
def test_conv1d(padding, stride, dilation, first, c_matmul):
    rng = np.random.default_rng(11)
    x = rng.integers(-3, 4, (2, 11, 3)).astype("float32")
    kernel = rng.integers(-3, 4, (4, 3, 5)).astype("float32")
    reach = 3 * dilation
    total = max((-(-11 // stride) - 1) * stride + reach + 1 - 11, 0)
    sides = {"SAME": (total // 2, total - total // 2), "VALID": (0, 0), "CAUSAL": (reach, 0)}
    padded = np.pad(x, ((0, 0), sides.get(padding, padding), (0, 0)))
    starts = range(0, padded.shape[1] - reach, stride)
    taps = np.stack([padded[:, s : s + reach + 1 : dilation] for s in starts], 1)
    expected = np.einsum("ntkc,kco->nto", taps, kernel)
    swap = (lambda v: np.swapaxes(v, 1, 2)) if first else (lambda v: v)
    got = og.conv1d(swap(x), kernel, arithmetic=c_matmul, strides=stride, padding=padding,
                    dilations=dilation, data_format=_format(first))  # fmt: skip
    np.testing.assert_array_equal(got, swap(expected))


def _format(first: bool) -> str:
    return "channels_first" if first else "channels_last"


def _conv(x, kernel):
    rng = np.random.default_rng(x[1] * 100 + kernel[0])
    return [rng.integers(-3, 4, shape).astype("float32") for shape in (x, kernel)]


@pytest.mark.parametrize("hook", ["conv2d", "conv2d_full", "conv2d_narrow", "matmul"])
@pytest.mark.parametrize("groups", [1, 2])
def test_images_beyond_one_chunk_of_scratch(hook, groups, hooks):
    """Several megabytes an image: chunks of images, many tiles of im2col, a last partial one."""
    x, kernel = _conv((3, 601, 400, 4), (2, 1, 4 // groups, 2))
    got = og.conv2d(
        x, kernel, arithmetic=hooks[hook], padding="SAME", groups=groups, strides=(2, 1)
    )
    np.testing.assert_array_equal(got, tf.nn.conv2d(x, kernel, [1, 2, 1, 1], "SAME"))


def test_matrices_of_many_tiles(hooks):
    rng = np.random.default_rng(12)
    a, b = (rng.integers(-2, 3, shape).astype("float16") for shape in ((130, 3001), (3001, 7)))
    expected = a.astype("float64") @ b.astype("float64")
    for hook in ("matmul", "scalar"):
        got = og.matmul(a.T, b, arithmetic=hooks[hook], transpose_a=True)
        np.testing.assert_array_equal(got, expected.astype("float16"))


@pytest.fixture
def threads():
    before = core.core().og_threads()
    yield core.set_threads
    core.set_threads(before)


@pytest.mark.parametrize("hook", ["matmul", "scalar", "conv2d_narrow"])
def test_any_number_of_threads_gives_the_same_bits(hook, hooks, threads):
    rng = np.random.default_rng(13)
    x = rng.standard_normal((3, 61, 40, 5), np.float32)
    kernel = rng.standard_normal((3, 2, 5, 7), np.float32)
    a, b = rng.standard_normal((700, 90), np.float32), rng.standard_normal((90, 11), np.float32)
    results = set()
    for number in (1, 2, 3, 8):
        threads(number)
        assert core.core().og_threads() == number
        outputs = [og.conv2d(x, kernel, arithmetic=hooks[hook], padding="SAME", strides=(1, 2))]
        if hook != "conv2d_narrow":
            outputs.append(
                og.matmul(a.astype("float64"), b.astype("float64"), arithmetic=hooks[hook])
            )
        results.add(b"".join(output.numpy().tobytes() for output in outputs))
    assert len(results) == 1


def test_an_empty_batch_never_reaches_the_function(compile_c):
    source = (
        "int mm(const float *a, const float *b, int m, int k, int n, float *out) "
        "{ (void)a; (void)b; (void)m; (void)k; (void)n; (void)out; return 7; }"
    )
    fails = og.c_function(compile_c(source))
    with pytest.raises(tf.errors.AbortedError, match="mm returned 7"):
        og.matmul(np.ones((1, 2), "f"), np.ones((2, 3), "f"), arithmetic=fails)
    assert og.matmul(np.ones((0, 2), "f"), np.ones((2, 3), "f"), arithmetic=fails).shape == (0, 3)
    empty = og.conv2d(np.ones((0, 5, 4, 2), "f"), np.ones((2, 2, 2, 3), "f"), arithmetic=fails)
    assert empty.shape == (0, 4, 3, 3)


# ---- the checks catch what is wrong --------------------------------------------------

WRONG = {
    "conv2d": (
        "SYMMETRIC_SAME", "ODD_PADDING_FIRST", "SWAPPED_STRIDES", "LAST_ROW_UNWRITTEN",
        "LAST_IMAGE_UNWRITTEN", "ROTATED_KERNEL", "TRANSPOSED_KERNEL", "OUTPUT_CHANNELS_FIRST",
        "SWAPPED_HEIGHT_AND_WIDTH",
    ),
    "matmul": (
        "SECOND_OPERAND_TRANSPOSED", "LAST_TERM_LEFT_OUT", "LAST_ROW_UNWRITTEN",
        "RESULT_TRANSPOSED",
    ),
}  # fmt: skip


def broken(kind: str, flag: str | None):
    flags = ("-O1", f"-D{flag}") if flag else ("-O1",)
    return og.c_function(HERE / "broken" / f"{kind}.c", flags=flags)


def first_caught(kind: str, arithmetic) -> str | None:
    """The first case on which the check fails that one call of the function computes."""
    for case in CASES:
        whole = isinstance(case.contraction, MatMul) or case.contraction.groups == 1
        if takes(kind, case) and whole and not isinstance(case.contraction, DepthwiseConv2D):
            try:
                check_forward(case, arithmetic)
            except AssertionError:
                return case.id
    return None


@pytest.mark.parametrize("kind", WRONG)
def test_the_kernel_without_a_mistake_passes(kind):
    assert first_caught(kind, broken(kind, None)) is None


@pytest.mark.parametrize(
    ("kind", "flag"), [(kind, flag) for kind, flags in WRONG.items() for flag in flags]
)
def test_a_wrong_kernel_is_caught(kind, flag):
    assert first_caught(kind, broken(kind, flag)) is not None


def test_every_kind_of_contraction_is_in_the_selection():
    kinds = {type(case.contraction) for case in SELECTION}
    assert kinds == {Conv2D, DepthwiseConv2D, MatMul}
    convolutions = [case.contraction for case in SELECTION if case in CONVOLUTIONS]
    assert any(c.groups > 1 for c in convolutions)
    assert any(c.channels_first for c in convolutions)
    assert any(c.dilations != (1, 1) for c in convolutions)
    assert any(c.pad_value for c in convolutions)
