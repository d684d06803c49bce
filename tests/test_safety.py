"""What C functions do to their process, from the smallest case on; and cases as raw calls."""

import platform
import re

import numpy as np
import pytest
from cases import compute, meaning
from loaded import KERNELS, TESTS, loader, product

import opgraft as og
from opgraft.spec import Conv2D, DepthwiseConv2D, MatMul
from opgraft.verification import raw
from opgraft.verification.cases import CONVOLUTIONS, Case, exact_meaning
from opgraft.verification.safety import check_safety
from opgraft.verification.sandbox import Sandbox

NAMES = [
    "runs", "terminates", "memory", "returns zero", "stays inside its output",
    "reads only its inputs", "leaves its inputs alone", "writes every element",
    "repeats itself", "threads",
]  # fmt: skip
INDICES = "indices beyond 2^31"
rng = np.random.default_rng(20264)


@pytest.fixture
def load(compile_c):
    return loader(compile_c)


@pytest.fixture
def examine(load):
    """A function: the text of a C source, or a path -> what was found."""

    def find(source, prototype=None, *, time_limit=5.0, memory_limit=200 << 20, large=False,
             **options):  # fmt: skip
        symbol = load(source, prototype, **options)
        with Sandbox(symbol, time_limit=time_limit, memory_limit=memory_limit) as sandbox:
            return check_safety(symbol, sandbox, large=large)

    return find


def by_name(safety):
    return {check.name: check for check in safety.checks}


# ---- what is wrong ---------------------------------------------------------------------------

BEHIND, BEFORE = "reads beyond the end of its", "reads before the start of its"


@pytest.mark.parametrize(
    ("before", "after", "check", "finding", "safe"),
    [
        ("if (m > 3) abort()", "", "runs", "crashes (SIGABRT)", False),
        ("if (n % 5 == 4) exit(0)", "", "runs", "crashes (exit(0))", False),
        ("", "if (m % 2 == 0) out[m * n] = 1", "stays inside its output",
         "writes beyond the end of its output", False),
        ("", "out[-1] = 0", "stays inside its output", "writes before the start of its output",
         False),
        ("volatile float x = a[m * k]; (void)x", "", "reads only its inputs", f"{BEHIND} input",
         False),
        ("volatile float x = b[k * n]; (void)x", "", "reads only its inputs", f"{BEHIND} kernel",
         False),
        ("volatile float x = b[-1]; (void)x", "", "reads only its inputs", f"{BEFORE} kernel",
         False),
        ("", "((float *)a)[0] += 1", "leaves its inputs alone", "writes to its input", False),
        ("((float *)b)[0] += 1", "((float *)b)[0] -= 1", "leaves its inputs alone",
         "writes to its kernel", False),
        ("static float last[1 << 16]", "out[0] += last[0]; last[0] = out[0]", "repeats itself",
         "keeps state between calls", True),
        ("static int first; if (!first) first = n", "out[0] += n != first", "repeats itself",
         "keeps state between calls", True),
        ("", "out[m * n - 1] += rand() % 100", "repeats itself", "is not deterministic", True),
        ("float *p = malloc(m * n * 4)", "out[0] += p[m * n - 1]; free(p)", "repeats itself",
         "is not deterministic", True),
    ],
)  # fmt: skip
def test_a_mistake_is_found_and_named(before, after, check, finding, safe, examine):
    safety = examine(product(before, after))
    assert safety.findings == (finding,)
    assert [name for name, found in by_name(safety).items() if found.passed is False] == [check]
    assert finding in by_name(safety)[check].message or check in ("runs", "repeats itself")
    assert by_name(safety)[check].case
    assert safety.safe == safe


@pytest.mark.parametrize(
    ("expression", "finding"),
    [
        ("out[i * n + j] + sum", "adds to what was in the output"),
        ("0 * out[i * n + j] + sum", "reads its output before writing it"),
    ],
)
def test_an_output_that_is_read_first_is_found(expression, finding, examine):
    safety = examine(product(sum=expression))
    assert safety.findings == (finding,)
    assert finding in by_name(safety)["writes every element"].message
    assert safety.safe


def test_elements_that_are_not_written_are_counted(examine):
    source = product().replace("out[i * n + j] =", "if (j == 2) continue; out[i * n + j] =")
    safety = examine(source)
    check = by_name(safety)["writes every element"]
    assert check.passed is False
    found = re.search(
        r"m=(\d+), k=\d+, n=(\d+), .* does not write (\d+) of the (\d+)", check.message
    )
    m, n, missing, total = map(int, found.groups())
    assert (missing, total) == (m, m * n)
    assert safety.findings == ()  # the forward's part


def test_a_status_is_found(examine):
    safety = examine(product(returns="int", after="return m > 2 ? 3 : 0"))
    assert safety.findings == ("returns 3",)
    assert "declare it void" in by_name(safety)["returns zero"].message
    assert not safety.safe


def test_the_smallest_case_that_crashes_is_named_with_its_arguments(load):
    symbol = load(product("if (k > 1 && n > 2) *(volatile int *)8 = 1"))
    with Sandbox(symbol) as sandbox:
        check = by_name(safety := check_safety(symbol, sandbox))["runs"]
    m, k, n = map(int, re.search(r"m=(\d+), k=(\d+), n=(\d+)", check.message).groups())
    assert k > 1
    assert n > 2
    assert check.message.startswith(f"mm(a=float[{m}x{k}], b=float[{k}x{n}], m={m}, k={k}, n={n}")
    assert "SIGSEGV" in check.message
    assert "-fsanitize=address" in check.message
    found = {case.id: raw.size(case) for case in raw.raw_cases(symbol)}
    for case in raw.raw_cases(symbol):
        numbers = raw.raw_call(symbol, case, *case.integers()).numbers
        if numbers["k"] > 1 and numbers["n"] > 2:
            assert raw.size(case) >= found.get(check.case, (0, ""))
    assert by_name(safety)["reads only its inputs"].passed  # in the cases that came back


@pytest.mark.parametrize(
    ("mistake", "check", "finding", "text"),
    [
        ("while (n == 2) { }", "terminates", "never returns", "has not returned after 0.5 s"),
        ("if (m == 3) for (;;) memset(malloc(1 << 22), 1, 1 << 22)", "memory",
         "takes too much memory", "the limit is 200 MB"),
    ],
)  # fmt: skip
def test_what_does_not_come_back_ends_the_examination(mistake, check, finding, text, examine):
    safety = examine(product(mistake), time_limit=0.5 if check == "terminates" else 60)
    assert safety.findings == (finding,)
    assert text in by_name(safety)[check].message
    assert not safety.safe
    for name in ("reads only its inputs", "repeats itself", "threads"):
        assert by_name(safety)[name].passed is None
        assert "does not always return" in by_name(safety)[name].message


def test_nothing_is_said_of_a_function_that_always_crashes(examine):
    safety = examine(product("abort()"))
    assert safety.findings == ("crashes (SIGABRT)",)
    passed = {name: check.passed for name, check in by_name(safety).items()}
    assert passed == {name: False if name == "runs" else None for name in NAMES}
    assert "no call came back" in by_name(safety)["threads"].message


SHARED = product(
    "static float room[1 << 17]; float *const own = out; out = room", "memcpy(own, room, m * n * 4)"
)


def test_a_scratch_that_all_threads_share_is_found(examine):
    safety = examine(SHARED)
    assert safety.findings == ("is not safe to call from two threads at once",)
    assert "thread_safe=False" in by_name(safety)["threads"].message


def test_a_function_that_asks_for_one_thread_is_not_called_from_two(examine):
    safety = examine(SHARED, thread_safe=False)
    assert safety.findings == ()
    assert by_name(safety)["threads"].passed
    assert "thread_safe=False" in by_name(safety)["threads"].message


def test_a_double_behind_a_float_is_found(examine):
    declared = "void mm(const float *a, const float *b, int m, int k, int n, float *out)"
    safety = examine(product(operand="double", result="double"), declared)
    assert "writes beyond the end of its output" in safety.findings
    assert f"{BEHIND} input" in safety.findings
    assert f"{BEHIND} kernel" in safety.findings
    assert not safety.safe


# ---- what is right ---------------------------------------------------------------------------

SIGNATURE = "void {}(const float *a, const float *b, int m, int k, int n, float *out)"


@pytest.mark.parametrize(
    ("source", "symbol"),
    [
        (KERNELS / "matmul.c", None),
        (KERNELS / "conv2d.c", None),
        (TESTS / "c" / "conv2d_full.c", None),
        (TESTS / "c" / "conv2d_narrow.c", None),
        (TESTS / "correct" / "threads.c", "threaded"),
        (TESTS / "correct" / "threads.c", "scratch_per_thread"),
        (TESTS / "correct" / "matmul.c", "in_blocks"),
        (TESTS / "correct" / "matmul.c", "output_as_scratch"),
    ],
)
def test_a_right_function_raises_no_alarm(source, symbol, examine):
    prototype = symbol and SIGNATURE.format(symbol)
    safety = examine(source, prototype, flags=("-O2", "-pthread"))
    assert safety.findings == ()
    assert [check.name for check in safety.checks] == NAMES
    assert [check.passed for check in safety.checks] == [True] * len(NAMES)
    assert all(check.proves and check.message for check in safety.checks)
    assert safety.safe


ALIGNED = """#include <immintrin.h>
__attribute__((target("avx")))
void mm(const float *a, const float *b, int m, int k, int n, float *out) {
  const int vectors = n % 8 == 0;
  for (int i = 0; i < m; i++) {
    int j = 0;
    for (; vectors && j < n; j += 8) {
      __m256 sum = _mm256_setzero_ps();
      for (int l = 0; l < k; l++)
        sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_set1_ps(a[i * k + l]),
                                               _mm256_load_ps(b + l * n + j)));
      _mm256_store_ps(out + i * n + j, sum);
    }
    for (; j < n; j++) {
      float sum = 0;
      for (int l = 0; l < k; l++) sum += a[i * k + l] * b[l * n + j];
      out[i * n + j] = sum;
    }
  }
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX")
@pytest.mark.parametrize("beyond", ["", "volatile float x = b[k * n]; (void)x;"])
def test_aligned_vectors_are_right_where_tensors_are_aligned(beyond, examine):
    safety = examine(ALIGNED.replace("const int vectors", f"{beyond} const int vectors"))
    assert safety.findings == ((f"{BEHIND} kernel",) if beyond else ())
    assert by_name(safety)["runs"].passed


# ---- scalar products ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "findings"),
    [
        ("uint16_t f(uint8_t a, uint8_t b) { return a * b; }", ()),
        ("float f(float a, float b) { return a * b; }", ()),
        ("int f(int a, int b) { return a / (b - 3 ? 1 : 0); }", ("crashes (SIGFPE)",)),
        ("float f(float a, float b) { static float last; return last = last / 2 + a * b; }",
         ("keeps state between calls",)),
        ("float f(float a, float b) { return a * b + rand() % 3; }", ("is not deterministic",)),
        ("int16_t f(int8_t a, int8_t b) { while (a == -7 && b == 100) { } return a * b; }",
         ("never returns",)),
    ],
)  # fmt: skip
def test_a_scalar_product_is_examined(source, findings, examine):
    zero = "volatile int zero = 0;\n"
    text = f"#include <stdint.h>\n#include <stdlib.h>\n{zero}{source.replace('1 : 0', '1 : zero')}"
    safety = examine(text, time_limit=1.0)
    assert safety.findings == findings
    assert [check.name for check in safety.checks] == NAMES
    named = {"crashes (SIGFPE)": "f(0, 3) ", "never returns": "f(-7, 100) "}
    for finding in findings:
        failed = next(check for check in safety.checks if check.passed is False)
        assert failed.message.startswith(named.get(finding, "f "))
    assert safety.safe == (not set(findings) & set(named))


# ---- large inputs ------------------------------------------------------------------------------

STRIDED = """#include <stdint.h>
void conv(const float *x, const float *kernel, int batch, int h, int w, int in_ch, int kh, int kw,
          int out_ch, int stride_h, int stride_w, int out_h, int out_w, float *y) {{
  for (int n = 0; n < batch; n++) for (int r = 0; r < out_h; r++) for (int c = 0; c < out_w; c++)
  for (int o = 0; o < out_ch; o++, y++) {{
    *y = 0;
    for (int i = 0; i < kh; i++) for (int j = 0; j < kw; j++) for (int l = 0; l < in_ch; l++) {{
      {index} row = {start} + r * stride_h + i, column = c * stride_w + j;
      *y += x[({index})((row * w + column) * in_ch + l)]
            * kernel[((i * kw + j) * in_ch + l) * out_ch + o];
    }}
  }}
}}
"""


@pytest.mark.parametrize(
    ("index", "start", "found"),
    [
        ("int64_t", "(int64_t)n * h", False),
        ("int", "n * h", True),
        ("int64_t", "(int)((unsigned)n * h * w) / w", True),  # between images only
    ],
)
def test_indices_that_overflow_are_found(index, start, found, examine):
    safety = examine(
        STRIDED.format(index=index, start=start), large=True, flags=("-O1", "-fwrapv")
    )  # fmt: skip
    assert [check.name for check in safety.checks] == [*NAMES, INDICES]
    check = by_name(safety)[INDICES]
    assert check.passed is not found
    assert safety.findings == (("indices overflow beyond 2^31 elements",) if found else ())
    assert ("batch=3" in check.message) == ("unsigned" in start)
    if found:
        assert "size_t" in check.message
    else:
        assert check.message == "2 large inputs"


@pytest.mark.slow
@pytest.mark.parametrize(("index", "found"), [("size_t", False), ("int", True)])
def test_indices_of_a_matrix_product_that_overflow_are_found(index, found, examine):
    source = product().replace("a[i * k + l]", f"a[({index})i * k + l]")
    safety = examine(source, large=True, flags=("-O2", "-fwrapv"), time_limit=20)
    assert safety.findings == (("indices overflow beyond 2^31 elements",) if found else ())


def test_a_large_input_that_the_parameters_cannot_hold_is_not_tried(examine):
    safety = examine(product().replace("int m, int k, int n", "short m, short k, short n"),
                     large=True)  # fmt: skip
    assert by_name(safety)[INDICES].passed is None
    assert "allow no such input" in by_name(safety)[INDICES].message


# ---- cases as raw calls ------------------------------------------------------------------------

SOURCES = [
    KERNELS / "conv2d.c", KERNELS / "matmul.c", TESTS / "c" / "conv2d_full.c",
    TESTS / "c" / "conv2d_narrow.c", TESTS / "c" / "conv2d_square.c",
]  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_raw_calls_give_what_the_cases_mean(path, load):
    symbol = load(path)
    cases = raw.raw_cases(symbol)
    assert len(cases) >= 15
    assert cases == sorted(cases, key=raw.size)
    with Sandbox(symbol) as sandbox:
        evaluate = raw.evaluator(symbol, sandbox)
        for case in cases:
            np.testing.assert_array_equal(evaluate(case, *case.integers()), exact_meaning(case))


RECORDER = """#include <string.h>
void record(const float *x, const float *kernel, {parameters}, float *y) {{
  const double numbers[] = {{{names}}};
  double sum = x[0] + 2 * x[1] + 5 * kernel[0];
  for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
    sum += numbers[i] * (3 + i * i + 7 * i);
  for (int i = 0; i < {count}; i++) y[i] = sum + i;
}}
"""
GEOMETRY = ["batch", "h", "w", "in_ch", "filter_h", "filter_w", "out_ch", "out_h", "out_w"]


@pytest.mark.parametrize(
    "extra",
    [
        "stride_h stride_w padding",
        "stride pad_top pad_bottom pad_left pad_right",
        "stride_w stride_h pad_h pad_w dilation",
        "stride_h stride_w pad pad_value groups dilation_w dilation_h",
        "stride_h stride_w padding pad_value groups pad_top pad_left pad_bottom pad_right dilation",
        "",
    ],
)
def test_a_raw_call_passes_what_the_core_passes(extra, load):
    names = [*GEOMETRY, *extra.split()]
    declared = ["const char *padding" if n == "padding" else
                "float pad_value" if n == "pad_value" else f"int {n}" for n in names]  # fmt: skip
    numbers = [f"padding[0] + strlen({n})" if n == "padding" else n for n in names]
    source = RECORDER.format(
        parameters=", ".join(declared), names=", ".join(numbers),
        count="batch * out_h * out_w * out_ch",
    )  # fmt: skip
    symbol = load(source)
    arithmetic = og.Arithmetic(product=og.products.CFunction((symbol,)))
    cases = [case for case in CONVOLUTIONS if raw.is_raw(symbol, case)]
    assert len(cases) > 5
    with Sandbox(symbol) as sandbox:
        evaluate = raw.evaluator(symbol, sandbox)
        for case in cases:
            left, right = (operand.astype(np.float32) for operand in case.integers())
            through_core = compute(case.contraction, arithmetic, left, right)
            np.testing.assert_array_equal(evaluate(case, left, right), through_core, case.id)


@pytest.mark.parametrize(
    ("path", "case"),
    [
        ("conv2d.c", Case(Conv2D(channels_first=True), (1, 2, 5, 4), (2, 3, 2, 1))),
        ("conv2d.c", Case(Conv2D(groups=2), (1, 5, 4, 2), (2, 3, 1, 4))),
        ("conv2d.c", Case(Conv2D(dilations=(2, 1)), (1, 5, 4, 2), (2, 3, 2, 4))),
        ("conv2d.c", Case(DepthwiseConv2D(), (1, 5, 4, 2), (2, 3, 2, 2))),
        ("conv2d.c", Case(MatMul(), (3, 4), (4, 2))),
        ("conv2d.c", Case(Conv2D(), (1, 2, 4, 2), (3, 3, 2, 4))),  # no output
        ("matmul.c", Case(MatMul(transpose_a=True), (4, 3), (4, 2))),
        ("matmul.c", Case(MatMul(), (2, 3, 4), (2, 4, 2))),
        ("matmul.c", Case(MatMul(), (3, 0), (0, 2))),
        ("matmul.c", Case(Conv2D(groups=2), (1, 5, 4, 2), (2, 3, 1, 4))),
    ],
    ids=str,
)
def test_a_case_that_the_core_composes_is_no_raw_call(path, case, load):
    symbol = load(KERNELS / path)
    assert not raw.is_raw(symbol, case)
    with Sandbox(symbol) as sandbox:
        assert raw.evaluator(symbol, sandbox)(case, *case.integers()) is None


@pytest.mark.parametrize(
    ("values", "dtype", "kept"),
    [
        ([1.5, -2], "float32", True), ([1e300], "float32", True), ([1.5], "int8", False),
        ([127, -128], "int8", True), ([128], "int8", False), ([-1], "uint8", False),
        ([float("nan")], "int32", False), ([2.0**31], "int32", False), ([2.0**31], "uint32", True),
        ([2**24 + 1], "float32", False), ([2**24 + 2], "float32", True),
        ([2**53 + 1], "float64", False), ([-(2**63)], "int64", True), ([1e19], "uint64", True),
        ([2.0**64], "uint64", False), ([2**63 - 1], "float64", False),
    ],
)  # fmt: skip
def test_a_cast_keeps_whole_numbers_or_is_refused(values, dtype, kept):
    array = np.array(values)
    cast = raw.as_c_type(array, dtype)
    assert (cast is not None) == kept
    if kept:
        assert cast.dtype == dtype
        with np.errstate(over="ignore"):
            expected = np.float32(array) if dtype == "float32" else array
        np.testing.assert_array_equal(cast, expected)


def test_operands_that_the_element_type_cannot_hold_give_nothing(load):
    symbol = load(product(operand="int8_t", result="int32_t"))
    case = Case(MatMul(), (3, 4), (4, 2))
    with Sandbox(symbol) as sandbox:
        evaluate = raw.evaluator(symbol, sandbox)
        assert evaluate(case, *case.normals()) is None
        left, right = case.integers()
        np.testing.assert_array_equal(evaluate(case, left * 1.0, right), left @ right)


@pytest.mark.parametrize("name", ["f_int8_t_int16_t", "f_float_double", "f_uint8_t_int64_t"])
def test_a_scalar_product_computes_every_contraction(name, load):
    _, operand, result = re.fullmatch(r"(f)_(\w+?(?:_t)?)_(\w+)", name).groups()
    symbol = load(TESTS / "c" / "scalar_types.c", f"{result} {name}({operand} a, {operand} b)")
    case = Case(Conv2D((2, 1), "SAME"), (2, 5, 4, 3), (3, 2, 3, 2))
    grouped = Case(Conv2D(groups=2, channels_first=True), (1, 4, 5, 4), (2, 3, 2, 4))
    batched = Case(MatMul(transpose_b=True), (2, 3, 4), (5, 4))
    with Sandbox(symbol) as sandbox:
        evaluate = raw.evaluator(symbol, sandbox)
        (swapped,) = raw.variants(symbol, sandbox).values()
        for each in (case, grouped, batched):
            left, right = raw.small_operands(symbol, each)
            a, b = left.astype(np.float64), right.astype(np.float64)
            np.testing.assert_array_equal(evaluate(each, left, right), skewed(each, a, b, 1))
            np.testing.assert_array_equal(swapped(each, left, right), skewed(each, a, b, 0))


def skewed(case, a, b, first):
    """The meaning of a case under a * b + a, or under a * b + b."""
    return meaning(case, lambda x, y: x * y + (x if first else y), a, b)


def test_variants_name_every_pair_of_one_type(load):
    with Sandbox(load(KERNELS / "matmul.c")) as sandbox:
        assert list(raw.variants(sandbox.symbol, sandbox)) == [
            *(f"agrees with '{p}' and '{q}' exchanged" for p, q in (
                ("a", "b"), ("a", "out"), ("b", "out"), ("batch_size", "in_size"),
                ("batch_size", "out_size"), ("in_size", "out_size"))),
            "agrees with double instead of float",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "finding"),
    [
        ("const float *a, const float *b, int k, int m, int n, float *out",
         "agrees with 'k' and 'm' exchanged"),
        ("const float *b, const float *a, int m, int k, int n, float *out",
         "agrees with 'b' and 'a' exchanged"),
        ("const float *out, const float *b, int m, int k, int n, float *a",
         "agrees with 'out' and 'a' exchanged"),
    ],
)  # fmt: skip
def test_a_wrong_order_of_parameters_is_one_of_the_variants(declared, finding, load):
    text = re.sub(r"const float \*out", "float *out", declared)
    text = text.replace(" float *a", " const float *a") if "*out, const" in declared else text
    symbol = load(product(), f"void mm({text})")
    case = Case(MatMul(), (3, 5), (5, 4))
    left, right = case.integers()
    with Sandbox(symbol) as sandbox:
        got = {name: f(case, left, right) for name, f in raw.variants(symbol, sandbox).items()}
        plain = raw.evaluator(symbol, sandbox)(case, left, right)
    assert plain is None or not np.array_equal(plain, left @ right)
    right_ones = [n for n, y in got.items() if y is not None and np.array_equal(y, left @ right)]
    assert right_ones == [finding]


@pytest.mark.parametrize(("real", "declared"), [("double", "float"), ("float", "double")])
def test_another_floating_type_is_one_of_the_variants(real, declared, load):
    text = (
        f"void mm(const {declared} *a, const {declared} *b, int m, int k, int n, {declared} *out)"
    )
    symbol = load(product(operand=real, result=real), text)
    case = Case(MatMul(), (3, 5), (5, 4))
    left, right = case.integers()
    with Sandbox(symbol) as sandbox:
        variant = raw.variants(symbol, sandbox)[f"agrees with {real} instead of {declared}"]
        np.testing.assert_array_equal(variant(case, left, right), left @ right)


def test_what_hangs_is_not_called_again(load):
    symbol = load(product("while (k == 5) { }"))
    hangs, comes_back = (Case(MatMul(), (3, k), (k, 4)) for k in (5, 6))
    with Sandbox(symbol, time_limit=0.5) as sandbox:
        evaluate = raw.evaluator(symbol, sandbox)
        left, right = comes_back.integers()
        np.testing.assert_array_equal(evaluate(comes_back, left, right), left @ right)
        assert evaluate(hangs, *hangs.integers()) is None
        assert evaluate(comes_back, left, right) is None


def test_masks_have_the_shape_of_the_output(load):
    source = product().replace("out[i * n + j] =", "if (i == m - 1) continue; out[i * n + j] =")
    symbol = load(source)
    case = Case(Conv2D((1, 2), "SAME"), (2, 3, 5, 2), (2, 3, 2, 3))
    with Sandbox(symbol) as sandbox:
        mask = raw.unwritten(symbol, sandbox)(case)
        assert mask.shape == case.output
        expected = np.zeros(case.output, bool)
        expected[-1, -1, -1] = True
        np.testing.assert_array_equal(mask, expected)
        assert raw.unwritten(symbol, sandbox)(Case(MatMul(True), (4, 3), (4, 2))) is None
