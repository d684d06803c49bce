"""The compiled core through ctypes, without a framework in between."""

import ctypes
import fractions
import functools
import hashlib
import itertools
import math
import pathlib
import random

import numpy as np
import pytest
from abi import (
    C_TYPES,
    CODES,
    CORE,
    DTYPES,
    INVALID_ARGUMENT,
    UNIMPLEMENTED,
    Call,
    CopySpec,
    MatmulSpec,
    geometry,
    matmul_spec,
    message,
    run,
)
from cases import CASES, CONVOLUTIONS, Case, every, exact_meaning
from hypothesis import given, settings
from hypothesis import strategies as st

import opgraft as og
from opgraft import reference
from opgraft.native import core, roles
from opgraft.spec import Conv2D, MatMul

C = pathlib.Path(__file__).parent / "c"


def test_the_dtypes_are_those_of_the_header():
    for name, code in CODES.items():
        assert CORE.og_dtype_name(code).decode() == name
        assert CORE.og_dtype_size(code) == np.dtype(DTYPES[name]).itemsize
    assert CORE.og_dtype_size(len(CODES)) == 0
    assert CORE.og_dtype_name(-1).decode() == "?"


def test_the_roles_are_those_of_python():
    tables = (
        roles.POINTERS, roles.VJP_POINTERS, roles.TEXTS, roles.MATMUL, roles.CONV2D,
    )  # fmt: skip
    assert set(core.roles()) == set(itertools.chain(*tables))
    assert len(core.roles()) == len(set(core.roles()))


@pytest.mark.parametrize(
    "length", [0, 1, 3, *range(53, 67), 119, 120, 127, 128, 129, 1000, 200_001]
)
def test_sha256(length, tmp_path):
    content = random.Random(length).randbytes(length)
    path = tmp_path / "file"
    path.write_bytes(content)
    assert core.hash_file(str(path)) == hashlib.sha256(content).hexdigest()


# ---- variants ------------------------------------------------------------------------------


@pytest.fixture(params=["generic", "f16c", "avx2"])
def variant(request):
    """Each variant that there is, in force during the test."""
    if request.param not in CORE.og_variants().decode().split():
        pytest.skip(f"this processor or build has no variant {request.param}")
    before = CORE.og_variant()
    assert CORE.og_select_variant(request.param.encode(), message()) == 0
    yield request.param
    CORE.og_select_variant(before, message())


def test_a_variant_can_be_forced(variant):
    assert CORE.og_variant().decode() == variant


def test_an_unknown_variant_is_refused():
    text, before = message(), CORE.og_variant()
    assert CORE.og_select_variant(b"avx9000", text) == INVALID_ARGUMENT
    assert text.value.decode().startswith("variant 'avx9000' is not one of: auto ")
    assert CORE.og_variant() == before
    assert CORE.og_select_variant(b"auto", text) == 0
    assert CORE.og_select_variant(before, text) == 0


# ---- conversions ---------------------------------------------------------------------------

# Significant bits and largest exponent; the smallest normal exponent is 1 - largest.
FORMATS = {"f32": (24, 127), "f64": (53, 1023), "f16": (11, 15), "bf16": (8, 127)}
AWKWARD = [
    0, 1, 2, 3, 126, 127, 128, 129, 255, 256, 257, 2047, 2048, 2049, 2051, 32767, 32768, 65503,
    65504, 65505, 65519, 65520, 65535, 65536, 2**24 - 1, 2**24, 2**24 + 1, 2**24 + 3, 2**31 - 1,
    2**31, 2**32 - 1, 2**32, 2**53, 2**53 + 1, 2**53 + 3, 2**62 + 2**54, 2**62 + 2**54 + 1,
    2**63 - 1, 2**63, 2**64 - 1,
]  # fmt: skip
FRACTIONS = [
    0.25, 0.5, 0.75, 1.5, 2.5, 3.5, 126.5, 127.5, 127.75, 128.5, 255.5, 65519.5, 1 + 2**-8,
    1 + 3 * 2**-8, 1 + 2**-8 + 2**-40, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-40, 1 + 2**-24,
    1 + 3 * 2**-24, 1 + 2**-24 + 2**-50, 2**-14, 2**-14 - 2**-26, 2**-15, 2**-24, 2**-25,
    3 * 2**-26, 2**-25 + 2**-60, 2**-126, 2**-127, 2**-133, 2**-134, 3 * 2**-135, 2**-149, 2**-150,
    3 * 2**-151, 2.0**-1022, 2.0**-1074, 2.0**64, 2.0**100, 3.3895e38, 3.396e38, 3.4028235e38,
    3.4028236e38, 1e300, math.inf, math.nan,
]  # fmt: skip


@functools.cache
def samples(name: str) -> np.ndarray:
    """300 numbers of a type: all that are awkward, and random ones of every magnitude."""
    rng = random.Random(name)
    if name in FORMATS:
        wanted = [sign * float(v) for v in (*AWKWARD, *FRACTIONS) for sign in (1, -1)]
        wanted += [rng.gauss(0, 1) * 2.0 ** rng.randint(-30, 70) for _ in range(300)]
        with np.errstate(over="ignore"):
            return np.array(wanted[:300], np.float64).astype(DTYPES[name])
    least, most = np.iinfo(DTYPES[name]).min, np.iinfo(DTYPES[name]).max
    wanted = [v for w in AWKWARD for v in (w, -w) if least <= v <= most] + [least, least + 1]
    wanted += [
        rng.randint(least, most) >> rng.randint(0, most.bit_length() - 1) for _ in range(300)
    ]
    return np.array(wanted[:300], DTYPES[name])


def rounded(value, name: str):
    """The number of a floating type that is nearest; ties to even; beyond the largest, infinity."""
    if isinstance(value, float) and not (math.isfinite(value) and value):
        return value  # zeros keep their sign
    if value == 0:
        return 0.0
    precision, largest = FORMATS[name]
    exact = fractions.Fraction(value)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < fractions.Fraction(2) ** exponent
    ulp = fractions.Fraction(2) ** (max(exponent, 1 - largest) - precision + 1)
    nearest = round(size / ulp) * ulp  # a Fraction rounds ties to even
    magnitude = math.inf if nearest >= 2 ** (largest + 1) else float(nearest)
    return math.copysign(magnitude, value)


def saturated(value, name: str) -> int:
    """The integer of a type that is nearest; NaN becomes 0."""
    least, most = np.iinfo(DTYPES[name]).min, np.iinfo(DTYPES[name]).max
    if isinstance(value, float) and not math.isfinite(value):
        return 0 if math.isnan(value) else most if value > 0 else least
    return min(max(round(value), least), most)


def convert(source: np.ndarray, to: str, exact: int, strides=(1, 1)):
    """(result, index of the first element that was refused, or -1)."""
    n = len(source)
    spread = np.zeros(n * strides[1], source.dtype)
    spread[:: strides[1]] = source
    target = np.zeros(n * strides[0], DTYPES[to])
    (name,) = [name for name, dtype in DTYPES.items() if source.dtype == dtype]
    bad = CORE.og_convert(
        target.ctypes.data,
        CODES[to],
        strides[0],
        spread.ctypes.data,
        CODES[name],
        strides[1],
        n,
        exact,
    )
    between = np.delete(target, np.arange(0, len(target), strides[0]))
    assert not between.any(), "wrote between the elements"
    return target[:: strides[0]], bad


@functools.cache
def expected(source: str, to: str):
    """What each sample becomes, and whether it keeps its value."""
    values = [
        v.item() if source in CODES and source != "bf16" else float(v) for v in samples(source)
    ]
    convert_one = rounded if to in FORMATS else saturated
    results = [convert_one(value, to) for value in values]
    return np.array(results).astype(DTYPES[to]) if to in FORMATS else np.array(
        results, DTYPES[to]
    ), [result == value for result, value in zip(results, values, strict=True)]


def same_numbers(got: np.ndarray, wanted: np.ndarray) -> bool:
    """Equal to the bit, but for the payload of a NaN."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        nan = np.isnan(wanted)
        return np.array_equal(np.isnan(got), nan) and got[~nan].tobytes() == wanted[~nan].tobytes()


@pytest.mark.parametrize(("source", "to"), list(itertools.product(CODES, CODES)))
def test_conversion_to_the_nearest(source, to, variant):
    wanted, _ = expected(source, to)
    for strides in ((1, 1), (3, 2)):
        got, bad = convert(samples(source), to, 0, strides)
        assert bad == -1
        assert same_numbers(got, wanted)


@pytest.mark.parametrize(("source", "to"), list(itertools.product(CODES, CODES)))
def test_conversion_that_must_keep_the_value(source, to, variant):
    """Floats still round among themselves; where an integer is involved, nothing may change."""
    wanted, kept = expected(source, to)
    for strides in ((1, 1), (2, 3)):
        if source in FORMATS and to in FORMATS:
            got, bad = convert(samples(source), to, 1, strides)
            assert bad == -1
            assert same_numbers(got, wanted)
            continue
        for i, keeps in enumerate(kept):  # each alone: all of them are asked
            _, bad = convert(samples(source)[i : i + 1], to, 1, strides)
            assert (bad == -1) is keeps
        good = samples(source)[np.array(kept)]
        got, bad = convert(np.resize(good, 700), to, 1, strides)
        assert bad == -1
        assert same_numbers(got, np.resize(wanted[np.array(kept)], 700))
        if not all(kept):
            late = np.append(np.resize(good, 513), samples(source)[kept.index(False)])
            assert convert(late, to, 1, strides)[1] == 513


def test_every_half_and_bfloat16(variant):
    bits = np.arange(65536, dtype=np.uint16)
    for name, to in itertools.product(("f16", "bf16"), ("f32", "f64")):
        numbers = bits.view(DTYPES[name])
        with np.errstate(invalid="ignore"):
            assert same_numbers(convert(numbers, to, 0)[0], numbers.astype(DTYPES[to]))
        assert same_numbers(convert(convert(numbers, "f32", 0)[0], name, 0)[0], numbers)


def test_floats_to_16_bits_agree_with_numpy(variant):
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 300_000, np.uint32)
    near = rng.integers(0, 2**16, 100_000, np.uint32) << 13 | 0x38000000  # ties of halves
    numbers = np.concatenate([bits, near + 0x1000, near]).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for name in ("f16", "bf16"):
            assert same_numbers(convert(numbers, name, 0)[0], numbers.astype(DTYPES[name]))


def test_variants_agree_on_every_bit(variant):
    """NaN payloads included."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    floats = np.random.default_rng(2).integers(0, 2**32, 200_003, np.uint32)
    floats[:1000] |= 0x7F800000  # NaNs
    results = [convert(halves, "f32", 0)[0], convert(floats.view(np.float32), "f16", 0)[0]]
    assert CORE.og_select_variant(b"generic", message()) == 0
    again = [convert(halves, "f32", 0)[0], convert(floats.view(np.float32), "f16", 0)[0]]
    for one, two in zip(results, again, strict=True):
        assert one.tobytes() == two.tobytes()


def copy_spec(target: np.ndarray, source: np.ndarray) -> CopySpec:
    four = ctypes.c_int64 * 4
    strides = [four(*(s // v.itemsize for s in v.strides)) for v in (target, source)]
    codes = [
        next(CODES[name] for name in DTYPES if DTYPES[name] == v.dtype) for v in (target, source)
    ]
    return CopySpec(four(*source.shape), *strides, *codes, 1)


@given(st.data())
@settings(max_examples=100)
def test_copy_moves_any_four_dimensional_array(data):
    shape = data.draw(st.tuples(*[st.integers(0, 5)] * 4))
    order = data.draw(st.permutations(range(4)))
    source = np.random.default_rng(sum(shape)).integers(-99, 99, shape).astype(np.int32)
    target = np.zeros([shape[axis] for axis in order], np.float64)
    view = target.transpose(np.argsort(order))
    spec = copy_spec(view, source)
    assert CORE.og_copy(ctypes.byref(spec), target.ctypes.data, source.ctypes.data) == -1
    np.testing.assert_array_equal(view, source)


def test_copy_says_which_element_it_refuses():
    source = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    source[0, 1, 2, 1] = 0.5
    target = np.zeros(source.shape, np.int16)
    spec = copy_spec(target, source)
    offset = CORE.og_copy(ctypes.byref(spec), target.ctypes.data, source.ctypes.data)
    assert source.ravel()[offset] == 0.5


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("n", [0, 1, 7, 1000])
def test_fill(name, n):
    target = np.full(n + 2, 9, DTYPES[name])
    CORE.og_fill(target[1:].ctypes.data, CODES[name], 3.0, n)
    assert target[0] == target[-1] == 9
    assert (target[1:-1] == 3).all()


# ---- geometry ------------------------------------------------------------------------------


sizes, counts = st.integers(0, 24), st.integers(1, 4)
paddings = st.sampled_from(["SAME", "VALID"]) | st.tuples(
    *[st.tuples(*[st.integers(0, 5)] * 2)] * 2
)


@given(st.tuples(sizes, sizes), st.tuples(*[st.integers(1, 7)] * 2), st.tuples(counts, counts),
       st.tuples(counts, counts), paddings, st.booleans())  # fmt: skip
@settings(max_examples=500)
def test_resolved_geometry_is_that_of_python(image, kernel, strides, dilations, padding, first):
    c = Conv2D(strides, padding, dilations, channels_first=first)
    x = (2, 3, *image) if first else (2, *image, 3)
    spec = geometry(c, x, (*kernel, 3, 4))
    assert CORE.og_conv2d_resolve(ctypes.byref(spec), message()) == 0
    vertical, horizontal = (c.axis(i, image[i], kernel[i]) for i in (0, 1))
    assert (spec.pad_top, spec.pad_bottom, spec.out_h) == vertical
    assert (spec.pad_left, spec.pad_right, spec.out_w) == horizontal


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("stride_h", 0, "stride_h is 0; it must be at least 1"),
        ("stride_w", -2, "stride_w is -2; it must be at least 1"),
        ("dilation_w", 0, "dilation_w is 0; it must be at least 1"),
        ("groups", 0, "groups is 0; it must be at least 1"),
        ("groups", 3, "groups is 3, which does not divide both 4 input and 6 output channels"),
        ("in_h", -1, "height is -1; it must be at least 0"),
        ("pad_left", -1, "padding along the width is (-1, 0); paddings must not be negative"),
        ("padding", 7, "padding mode 7 is unknown"),
    ],
)
def test_impossible_geometry_is_refused(field, value, says):
    spec = geometry(Conv2D(padding=((0, 0), (0, 0))), (1, 5, 6, 4), (3, 2, 4, 6))
    setattr(spec, field, value)
    text = message()
    assert CORE.og_conv2d_resolve(ctypes.byref(spec), text) == INVALID_ARGUMENT
    assert text.value.decode() == says


@pytest.mark.parametrize("dtypes", [("f32", "f32"), ("i8", "f64"), ("f16", "f32"), ("f32", "i16")])
@every([case for case in CONVOLUTIONS if 0 not in case.output])
def test_im2col(case, dtypes):
    c, (x, kernel) = case.contraction, case.integers()
    spec = geometry(c, case.left, case.right)
    assert CORE.og_conv2d_resolve(ctypes.byref(spec), message()) == 0
    source = np.ascontiguousarray(x.astype(DTYPES[dtypes[0]]))
    last = reference.channels_last(c, x)
    padded = reference.pad(last, reference.paddings(c, last, kernel), c.pad_value)
    rows = spec.batch * spec.out_h * spec.out_w
    first = rows // 3  # a tile that starts and ends in the middle
    count = max(rows - first - 1, 1)
    for group, part in enumerate(np.split(padded, spec.groups, 3)):
        columns = reference.im2col(part, kernel.shape[:2], c.strides, c.dilations)
        wanted = columns.reshape(rows, -1)[first : first + count]
        got = np.zeros(wanted.shape, DTYPES[dtypes[1]])
        pointers = source.ctypes.data, CODES[dtypes[0]], got.ctypes.data, CODES[dtypes[1]]
        assert CORE.og_im2col(ctypes.byref(spec), group, first, count, *pointers) == -1
        np.testing.assert_array_equal(got, wanted)


def test_im2col_says_which_element_it_refuses():
    x = np.arange(2 * 4 * 5 * 3, dtype=np.float32).reshape(2, 4, 5, 3)
    x[1, 2, 3, 1] = 0.5
    spec = geometry(Conv2D(padding="SAME", strides=(2, 1)), x.shape, (3, 2, 3, 1))
    assert CORE.og_conv2d_resolve(ctypes.byref(spec), message()) == 0
    rows = 2 * spec.out_h * spec.out_w
    columns = np.zeros((rows, 18), np.int32)
    offset = CORE.og_im2col(ctypes.byref(spec), 0, 0, rows, x.ctypes.data, CODES["f32"],
                            columns.ctypes.data, CODES["i32"])  # fmt: skip
    assert x.ravel()[offset] == 0.5


# ---- calls ---------------------------------------------------------------------------------


def opened(arithmetic, case: Case) -> ctypes.c_void_p:
    symbol = arithmetic.product.symbol_for(case.contraction)
    function, text = ctypes.c_void_p(), message()
    status = CORE.og_function_open(ctypes.byref(symbol.spec()), ctypes.byref(function), text)
    assert status == 0, text.value
    return function


@pytest.mark.parametrize("hook", ["matmul", "conv2d", "scalar"])
@every(CASES)
def test_a_call_stays_in_the_memory_it_is_given(case, hook, c_matmul, c_conv2d_full, c_mul):
    if hook == "conv2d" and isinstance(case.contraction, MatMul):
        hook = "matmul"
    arithmetic = {"matmul": c_matmul, "conv2d": c_conv2d_full, "scalar": c_mul}[hook]
    call = Call(opened(arithmetic, case), CODES["f32"], CODES["f64"])
    left, right = (np.ascontiguousarray(o.astype(np.float32)) for o in case.integers())
    before = left.tobytes(), right.tobytes()
    if isinstance(case.contraction, MatMul):
        kind, (spec, _alive) = "matmul", matmul_spec(case)
    else:
        kind, spec = "conv2d", geometry(case.contraction, case.left, case.right)
        assert CORE.og_conv2d_resolve(ctypes.byref(spec), message()) == 0
    raw, status, text = run(kind, call, spec, left, right, math.prod(case.output))
    assert status == 0, text
    np.testing.assert_array_equal(raw.view(np.float64).reshape(case.output), exact_meaning(case))
    assert (left.tobytes(), right.tobytes()) == before


SCALARS = [name for name in CODES if name not in ("f16", "bf16")]


@pytest.fixture(scope="module")
def scalars() -> ctypes.CDLL:
    arithmetic = og.c_function(C / "scalar_types.c", "float f_float_float(float a, float b)")
    (symbol,) = arithmetic.product.symbols
    return ctypes.CDLL(str(og.environment.cache_folder() / f"{symbol.binary}.so"))


@pytest.mark.parametrize(("argument", "result"), list(itertools.product(SCALARS, SCALARS)))
def test_a_scalar_function_of_any_types(argument, result, scalars):
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 8, shape).astype(DTYPES[argument]) for shape in ((3, 5), (5, 4)))
    is_float = result in ("f32", "f64")
    out = np.zeros((3, 4), np.float64 if is_float else np.int64)
    function = getattr(scalars, f"f_{C_TYPES[argument]}_{C_TYPES[result]}")
    address = ctypes.cast(function, ctypes.c_void_p)
    types, operands = (CODES[argument], CODES[result]), (a.ctypes.data, b.ctypes.data)
    status = CORE.og_scalar_matmul(address, *types, *operands, 3, 5, 4, out.ctypes.data)
    assert status == 0
    wanted = a.astype(int) @ b.astype(int) + a.astype(int).sum(1, keepdims=True)
    np.testing.assert_array_equal(out, wanted)


# ---- the calling convention ------------------------------------------------------------------

NUMBERS = {  # what each role must receive in the call below
    "batch": 2, "in_h": 11, "in_w": 13, "in_ch": 4, "filter_h": 2, "filter_w": 3, "out_ch": 6,
    "out_h": 6, "out_w": 5, "stride_h": 2, "stride_w": 3, "stride": 2, "dilation_h": 3,
    "dilation_w": 2, "dilation": 3, "groups": 2, "pad_top": 1, "pad_bottom": 3, "pad_left": 2,
    "pad_right": 4, "pad_h": 1, "pad_w": 2, "pad": 1, "pad_value": -7,
}  # fmt: skip
INCLUDES = "#include <stddef.h>\n#include <stdint.h>\n"
INTEGERS = ("int8_t", "uint8_t", "short", "int", "unsigned", "long", "size_t", "int64_t")


def recorder(seed: int, left_out: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """A C function with all parameters in a random order and of random types, which writes down
    what it received; and the names of what it writes."""
    rng = random.Random(seed)
    names = [name for name in NUMBERS if name not in left_out]
    floats = {*rng.sample(names, rng.randint(0, 7)), "pad_value"}
    declared = ["const double *input", "const double *kernel", "double *output",
                "const char *padding"]  # fmt: skip
    declared += [
        f"{rng.choice(('float', 'double') if name in floats else INTEGERS)} {name}"
        for name in names
    ]
    rng.shuffle(declared)
    received = [*names, "input[1]", "kernel[2]", "padding[0]"]
    body = " ".join(f"output[{i}] = {name};" for i, name in enumerate(received))
    return f"{INCLUDES}int f({', '.join(declared)}) {{ {body} return 0; }}", received


def call_conv2d(arithmetic, padding=((1, 3), (2, 4)), dtype="f64"):
    c = Conv2D((2, 3), padding, (3, 2), groups=2, pad_value=-7.0)
    case = Case(c, (2, 11, 13, 4), (2, 3, 2, 6))
    spec = geometry(c, case.left, case.right)
    assert CORE.og_conv2d_resolve(ctypes.byref(spec), message()) == 0
    left, right = (np.ascontiguousarray(o.astype(DTYPES[dtype])) for o in case.integers())
    call = Call(opened(arithmetic, case), CODES[dtype], CODES[dtype])
    raw, status, text = run("conv2d", call, spec, left, right, math.prod(case.output))
    return raw.view(DTYPES[dtype]), status, text, left.ravel(), right.ravel()


@pytest.mark.parametrize("seed", range(12))
def test_arguments_in_any_order_and_of_any_type(seed, compile_c):
    source, names = recorder(seed)
    out, status, text, left, right = call_conv2d(og.c_function(compile_c(source)))
    assert status == 0, text
    wanted = {**NUMBERS, "input[1]": left[1], "kernel[2]": right[2], "padding[0]": ord("V")}
    assert dict(zip(names, out, strict=False)) == wanted


def test_padding_as_text_says_same(compile_c):
    sides = ("pad_top", "pad_bottom", "pad_left", "pad_right", "pad_h", "pad_w", "pad")
    source, names = recorder(99, left_out=sides)
    out, status, text, *_ = call_conv2d(og.c_function(compile_c(source)), "SAME")
    assert status == 0, text
    assert out[names.index("padding[0]")] == ord("S")
    assert out[names.index("in_h")] == NUMBERS["in_h"]  # not padded by us


def test_a_whole_number_as_pad_value(compile_c):
    numbers = ", ".join(f"int {name}" for name in NUMBERS)
    source = (
        f"{INCLUDES}void f(const int16_t *input, const int16_t *kernel, {numbers}, int16_t *output)"
        " { output[0] = (int16_t)pad_value; output[1] = (int16_t)pad_right; }"
    )
    out, status, text, *_ = call_conv2d(og.c_function(compile_c(source)), dtype="i16")
    assert status == 0, text
    assert out[:2].tolist() == [-7, 4]


@pytest.mark.parametrize("seed", range(4))
def test_matmul_arguments_in_any_order(seed, compile_c):
    rng = random.Random(seed)
    kinds = ("double", "float", *INTEGERS)
    declared = ["const float *a", "const float *b", "float *out",
                *(f"{rng.choice(kinds)} {name}" for name in "mkn")]  # fmt: skip
    rng.shuffle(declared)
    body = "out[0] = m; out[1] = k; out[2] = n; out[3] = a[1]; out[4] = b[1];"
    source = f"{INCLUDES}void f({', '.join(declared)}) {{ {body} }}"
    case = Case(MatMul(), (3, 5), (5, 4))
    left, right = (np.ascontiguousarray(o.astype(np.float32)) for o in case.integers())
    call = Call(opened(og.c_function(compile_c(source)), case), CODES["f32"], CODES["f32"])
    raw, status, text = run("matmul", call, MatmulSpec(3, 5, 4, 1), left, right, 12)
    assert status == 0, text
    assert raw.view(np.float32)[:5].tolist() == [3, 5, 4, left[0, 1], right[0, 1]]


def test_a_number_that_a_parameter_cannot_hold(c_matmul, compile_c):
    source = (
        "void f(const float *a, const float *b, unsigned char m, int k, int n, float *out) "
        "{ out[0] = m; }"
    )
    case = Case(MatMul(), (300, 1), (1, 1))
    call = Call(opened(og.c_function(compile_c(source)), case), CODES["f32"], CODES["f32"])
    ones = np.ones(300, np.float32)
    _, status, text = run("matmul", call, MatmulSpec(300, 1, 1, 1), ones, ones, 300)
    assert status == INVALID_ARGUMENT
    assert "argument m is 300, which its type u8 cannot hold" in text


def test_too_many_floating_point_numbers_are_refused(compile_c):
    numbers = ", ".join(f"double {name}" for name in list(NUMBERS)[:9])
    source = f"void f(const float *x, const float *kernel, {numbers}, float *y) {{ y[0] = in_h; }}"
    with pytest.raises(og.errors.LibraryError, match=r"9 floating-point ones; at most 32 and 8"):
        og.c_function(compile_c(source))


def test_a_matmul_of_a_convolution_is_refused(c_conv2d_full):
    case = Case(Conv2D(), (1, 4, 5, 1), (2, 2, 1, 1))
    call = Call(opened(c_conv2d_full, case), CODES["f32"], CODES["f32"])
    text = message()
    status = CORE.og_matmul_prepare(ctypes.byref(call), ctypes.byref(MatmulSpec(1, 1, 1, 1)), text)
    assert status == UNIMPLEMENTED
    assert "conv2d_full is a convolution" in text.value.decode()
