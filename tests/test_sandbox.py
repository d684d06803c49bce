"""Calls of C functions in a process of their own: what each did, whatever it did."""

import ctypes
import dataclasses
import os
import pathlib
import time

import numba
import numpy as np
import pytest
from loaded import KERNELS, TESTS, loader, product

import opgraft as og
from opgraft.spec import Conv2D
from opgraft.verification import child, raw
from opgraft.verification.calls import Call, Outcome, Placement, Sparse, parameters, same_bits
from opgraft.verification.cases import Case
from opgraft.verification.sandbox import Sandbox

rng = np.random.default_rng(20263)


@pytest.fixture
def load(compile_c):
    return loader(compile_c)


@pytest.fixture
def sandbox_of(load):
    """A function: the text of a C source -> a sandbox, closed at the end of the test."""
    opened = []

    def make(source, prototype=None, time_limit=10.0, memory_limit=1 << 30, **options):
        symbol = load(source, prototype, **options)
        opened.append(Sandbox(symbol, time_limit=time_limit, memory_limit=memory_limit))
        return opened[-1]

    yield make
    for sandbox in opened:
        sandbox.restart()


def call_of(m, k, n, dtype="float32", least=-4):
    left = rng.integers(least, 5, (m, k)).astype(dtype)
    right = rng.integers(least, 5, (k, n)).astype(dtype)
    return Call(left, right, (m, n), {"m": m, "k": k, "n": n})


def due(call):
    return call.left.astype(np.float64) @ call.right.astype(np.float64)


def failures(outcome):
    """The names of all that is wrong with a call that came back."""
    fields = ("returned", "overrun", "underrun", "modified", "reads_output", "varies")
    wrong = [name for name in fields if getattr(outcome, name)]
    return wrong + ["unwritten"] * bool(outcome.unwritten.any())


# ---- what a call does --------------------------------------------------------------------


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 5, 2), (7, 4, 9), (64, 33, 70)])
@pytest.mark.parametrize(
    ("operand", "result"),
    [("float", "float"), ("double", "double"), ("int8_t", "int32_t"), ("float", "double")],
)
def test_a_right_function_gives_its_result_and_nothing_is_wrong(
    m, k, n, operand, result, sandbox_of
):
    sandbox = sandbox_of(product(operand=operand, result=result))
    call = call_of(m, k, n, sandbox.symbol.operand_dtype)
    outcome = sandbox.run(call)
    np.testing.assert_array_equal(outcome.output, due(call))
    assert outcome.output.dtype == sandbox.symbol.output_dtype
    assert failures(outcome) == []
    assert outcome.ended
    assert outcome.failure == ""
    assert 0 <= outcome.peak < 64 << 20


@pytest.mark.parametrize(
    ("mistake", "crashed", "said"),
    [
        ("*(volatile int *)8 = 1", "SIGSEGV", ""),
        ("if (k % 2) abort()", "SIGABRT", ""),
        ("out[0] = 7 / (k - 3 ? 0 : 0)", "SIGFPE", ""),
        ('assert(k == 2 && "an even depth")', "SIGABRT", "an even depth"),
        ("exit(3)", "exit(3)", ""),
        ("_exit(0)", "exit(0)", ""),
        ('fprintf(stderr, "no room\\n"); free((void *)(intptr_t)k), abort()', None, "no room"),
    ],
)
def test_the_end_of_the_process_is_an_outcome(mistake, crashed, said, sandbox_of):
    source = product(f"volatile int zero = 0; (void)zero; if (k == 3) {{ {mistake}; }}")
    sandbox = sandbox_of(source.replace("(k - 3 ? 0 : 0)", "zero"))
    outcome = sandbox.run(call_of(2, 3, 4))
    assert outcome.output is None
    assert outcome.crashed == (crashed or outcome.crashed)
    assert outcome.crashed
    assert said in outcome.said or crashed is None
    assert outcome.failure == f"crashes ({outcome.crashed})"
    again = call_of(2, 4, 3)
    np.testing.assert_array_equal(sandbox.run(again).output, due(again))


def test_an_endless_loop_is_ended_in_time(sandbox_of):
    sandbox = sandbox_of(product("for (volatile int i = 0; k == 3; i++) { }"), time_limit=0.5)
    start = time.monotonic()
    outcome = sandbox.run(call_of(2, 3, 4))
    assert time.monotonic() - start < 10
    assert outcome.timed_out
    assert outcome.failure == "never returns"
    again = call_of(5, 2, 3)
    np.testing.assert_array_equal(sandbox.run(again).output, due(again))


@pytest.mark.parametrize(
    "bomb",
    [
        "for (;;) memset(malloc(1 << 22), 1, 1 << 22)",
        "for (;;) { volatile char *p = malloc(1 << 28); if (p) *p = 1; }",
    ],
)
def test_memory_without_end_is_ended(bomb, sandbox_of):
    sandbox = sandbox_of(product(f"if (n == 4) {bomb}"), memory_limit=200 << 20)
    outcome = sandbox.run(call_of(2, 3, 4))
    assert outcome.out_of_memory
    assert outcome.failure == "takes too much memory"
    again = call_of(5, 2, 3)
    np.testing.assert_array_equal(sandbox.run(again).output, due(again))


def test_memory_that_grows_until_the_time_is_up_is_what_is_wrong(sandbox_of):
    bomb = "if (n == 4) for (;;) { memset(malloc(1 << 20), 1, 1 << 20); usleep(2000); }"
    sandbox = sandbox_of(product(bomb), time_limit=1.5, memory_limit=64 << 30)
    assert sandbox.run(call_of(2, 3, 4)).failure == "takes too much memory"
    assert sandbox.is_stuck


def test_memory_that_is_not_touched_does_not_count(sandbox_of):
    sandbox = sandbox_of(
        product("char *room = malloc(1ull << 31); room[0] = 1; usleep(20000)", "free(room)"),
        memory_limit=100 << 20,
    )
    call = call_of(3, 2, 5)
    np.testing.assert_array_equal(sandbox.run(call).output, due(call))


def test_a_status_is_reported(sandbox_of):
    sandbox = sandbox_of(product(returns="int", after="return n == 4 ? -3 : 0"))
    assert sandbox.run(call_of(2, 3, 4)).returned == -3
    assert sandbox.run(call_of(2, 3, 5)).returned == 0


@pytest.mark.parametrize(
    ("mistake", "field", "value"),
    [
        ("out[m * n] = 0", "overrun", "output"),
        ("out[m * n + 700] = 1", "overrun", "output"),
        ("out[-1] = 0", "underrun", "output"),
        ("(({0} *)a)[m * k] = 1", "overrun", "input"),
        ("(({0} *)b)[-1] += 1", "underrun", "kernel"),
        ("(({0} *)a)[m * k - 1] += 1", "modified", ("input",)),
        ("(({0} *)b)[0] += 1; (({0} *)a)[0] += 1", "modified", ("input", "kernel")),
    ],
)
@pytest.mark.parametrize(("operand", "result"), [("float", "float"), ("int8_t", "int16_t")])
def test_a_write_to_what_is_not_the_output_is_seen(
    mistake, field, value, operand, result, sandbox_of
):
    source = product(after=mistake.replace("{0}", operand), operand=operand, result=result)
    sandbox = sandbox_of(source)
    for sizes in ((1, 1, 1), (3, 5, 7), (16, 4, 8)):
        outcome = sandbox.run(call_of(*sizes, sandbox.symbol.operand_dtype))
        assert getattr(outcome, field) == value
        assert failures(outcome) == [field]


@pytest.mark.parametrize("result", ["float", "double", "int32_t", "uint8_t"])
def test_elements_that_are_not_written_are_known_by_place(result, sandbox_of):
    operand = "uint8_t" if result == "uint8_t" else result
    source = product(operand=operand, result=result)
    skipping = source.replace(
        "out[i * n + j] =", "if (i == m - 1 || j == 1) continue; out[i*n+j] ="
    )
    sandbox = sandbox_of(skipping)
    call = call_of(4, 3, 5, sandbox.symbol.operand_dtype, least=0)
    outcome = sandbox.run(call)
    expected = np.zeros((4, 5), bool)
    expected[3], expected[:, 1] = True, True
    np.testing.assert_array_equal(outcome.unwritten, expected)
    np.testing.assert_array_equal(outcome.output[~expected], due(call)[~expected])
    assert failures(outcome) == ["unwritten"]


@pytest.mark.parametrize("result", ["float", "double", "int32_t", "int8_t"])
@pytest.mark.parametrize(
    ("expression", "adds"),
    [
        ("out[i * n + j] + sum", True),
        ("out[i * n + j] > sum ? out[i * n + j] : sum", False),
        ("out[i * n + j] < sum ? out[i * n + j] : sum", False),
    ],
)
def test_a_result_that_depends_on_the_output_before_is_seen(result, expression, adds, sandbox_of):
    sandbox = sandbox_of(product(operand=result, result=result, sum=expression))
    outcome = sandbox.run(call_of(3, 2, 4, sandbox.symbol.operand_dtype, least=1))
    assert outcome.reads_output
    assert outcome.adds_to_output == adds


def test_a_result_that_changes_by_itself_is_not_taken_for_one_that_depends_on_the_output(
    sandbox_of,
):
    sandbox = sandbox_of(product("static int calls; calls++", "out[0] += calls"))
    outcome = sandbox.run(call_of(3, 2, 4))
    assert outcome.varies
    assert not outcome.reads_output


def test_what_a_function_prints_and_reads_is_kept_apart(sandbox_of, capfd):
    sandbox = sandbox_of(
        product(
            'for (int i = 0; i < 9000; i++) { printf("%d\\n", i); fprintf(stderr, "%d\\n", i); }'
            "fflush(stdout)",
            "if (getchar() != EOF || write(1, a, 4) != 4) abort()",
        )
    )
    call = call_of(5, 3, 2)
    np.testing.assert_array_equal(sandbox.run(call).output, due(call))
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def float_environment():
    """Undoes what loading a library that was linked with -ffast-math does to this thread."""
    yield
    child._reset_floats()


def test_denormal_numbers_are_kept_though_the_library_asks_for_none(sandbox_of, float_environment):
    sandbox = sandbox_of(product(), flags=("-ffast-math", "-O1"))
    left, right = np.float32([[1e-20]]), np.float32([[3e-20]])
    output = sandbox.run(Call(left, right, (1, 1), {"m": 1, "k": 1, "n": 1})).output
    child._reset_floats()
    assert np.all(output > 0)
    np.testing.assert_array_equal(output, left * right)


# ---- where the operands lie ----------------------------------------------------------------

BOTH = frozenset(["input", "kernel"])


@pytest.mark.parametrize(
    ("read", "flush", "role"),
    [
        ("a[m * k]", True, "input"),
        ("b[k * n]", True, "kernel"),
        ("a[-1]", False, "input"),
        ("b[-1]", False, "kernel"),
    ],
)
def test_a_page_beside_an_operand_shows_a_read_of_one_element_more(read, flush, role, sandbox_of):
    sandbox = sandbox_of(product(f"volatile float sink = {read}; (void)sink"))
    call = call_of(3, 5, 7)
    (other,) = BOTH - {role}
    assert sandbox.once(call, place=Placement(flush)).ended
    assert sandbox.once(call, place=Placement(flush, frozenset([other]))).ended
    assert sandbox.once(call, place=Placement(flush, frozenset([role]))).crashed == "SIGSEGV"


def test_every_placement_serves_a_right_function(sandbox_of):
    sandbox = sandbox_of(product())
    for sizes in ((1, 1, 1), (3, 5, 7), (33, 70, 41)):
        call = call_of(*sizes)
        for flush in (False, True):
            outcome = sandbox.once(call, place=Placement(flush, BOTH, BOTH))
            np.testing.assert_array_equal(outcome.output, due(call))


def test_a_function_that_puts_back_what_it_changes_cannot_write(sandbox_of):
    sandbox = sandbox_of(product("((float *)b)[1] += 1; ((float *)b)[1] -= 1"))
    call = call_of(3, 5, 7)
    assert failures(sandbox.run(call)) == []
    assert sandbox.once(call, place=Placement(readonly=frozenset(["input"]))).ended
    assert sandbox.once(call, place=Placement(readonly=BOTH)).crashed == "SIGSEGV"


def test_a_large_input_takes_no_memory(sandbox_of):
    source = product().replace("int m, int k, int n", "long m, long k, long n")
    sandbox = sandbox_of(
        source.replace("for (int l = 0;", "for (long l = k - 5;"), memory_limit=100 << 20
    )
    k = 2**31 + 5
    tail = np.arange(1, 8, dtype=np.float32)
    call = Call(
        Sparse((1, k), tail), Sparse((k, 1), 3 * tail), (1, 1), {"m": 1, "k": k, "n": 1}
    )  # fmt: skip
    outcome = sandbox.once(call)
    assert outcome.output == 3 * np.sum(tail[-5:] ** 2)
    assert outcome.modified == ()


# ---- threads, numbers, other kinds of functions ----------------------------------------------


def test_calls_at_once_give_what_they_give_alone(sandbox_of):
    sandbox = sandbox_of(product(), flags=("-O2",))
    calls = [call_of(40, 50, 60), call_of(40, 50, 60), call_of(3, 70, 5)]
    for call, outcome in zip(calls, sandbox.run_together(calls, seconds=0.05), strict=True):
        np.testing.assert_array_equal(outcome.output, due(call))
        assert failures(outcome) == []


def test_a_scratch_that_all_calls_share_varies(sandbox_of):
    shared = "static float room[1 << 16]; float *const own = out; out = room"
    sandbox = sandbox_of(product(shared, "memcpy(own, room, m * n * 4)"))
    calls = [call_of(60, 50, 60) for _ in range(3)]
    assert all(failures(sandbox.run(call)) == [] for call in calls)
    outcomes = sandbox.run_together(calls, seconds=1.0)
    assert any(
        o.varies or not np.array_equal(o.output, due(c))
        for c, o in zip(calls, outcomes, strict=True)
    )


def test_a_crash_of_one_of_several_calls_is_the_outcome_of_all(sandbox_of):
    sandbox = sandbox_of(product("if (k == 3) abort()"))
    outcomes = sandbox.run_together([call_of(2, 5, 2), call_of(2, 3, 2)])
    assert [outcome.crashed for outcome in outcomes] == ["SIGABRT", "SIGABRT"]


@pytest.mark.parametrize("result", ["float", "double", "int8_t", "uint16_t", "int32_t", "uint64_t"])
@pytest.mark.parametrize("operand", ["float", "double", "int8_t", "uint8_t", "int64_t", "uint32_t"])
def test_a_scalar_product_of_any_types(operand, result, sandbox_of):
    prototype = f"{result} f_{operand}_{result}({operand} a, {operand} b)"
    sandbox = sandbox_of(TESTS / "c" / "scalar_types.c", prototype)
    left, right = rng.integers(0, 11, (2, 5, 7)).astype(sandbox.symbol.operand_dtype)
    outcome = sandbox.scalar(left, right)
    assert outcome.output.dtype == np.dtype(result.removesuffix("_t").replace("float", "float32")
                                            .replace("double", "float64"))  # fmt: skip
    np.testing.assert_array_equal(outcome.output, left * right + left)


def test_a_scalar_product_may_crash(sandbox_of):
    sandbox = sandbox_of("#include <stdint.h>\nint divide(int a, int b) { return a / b; }\n")
    numbers = np.int32([6, 7, 8])
    assert sandbox.scalar(numbers, np.int32([2, 0, 4])).crashed == "SIGFPE"
    assert sandbox.scalar(numbers, np.int32([2, 3, 4])).output.tolist() == [3, 2, 2]


FLOATS = ctypes.POINTER(ctypes.c_float)


@ctypes.CFUNCTYPE(None, FLOATS, FLOATS, ctypes.c_int, ctypes.c_int, ctypes.c_int, FLOATS)
def in_python(a, b, m, k, n, out):
    if k == 3:
        ctypes.string_at(16)
    while k == 4:
        pass
    for i in range(m):
        for j in range(n):
            out[i * n + j] = sum(a[i * k + l] * b[l * n + j] for l in range(k))


def in_numba(a, b, m, k, n, out):
    for i in range(m):
        for j in range(n):
            out[i * n + j] = 0
            for l in range(k):
                out[i * n + j] += a[i * k + l] * b[l * n + j]


@pytest.mark.filterwarnings("ignore:.*lives in the memory of this process only")
def test_a_function_without_a_file_is_called_in_a_copy_of_this_process():
    (symbol,) = og.c_function(in_python).product.symbols
    with Sandbox(symbol, time_limit=1.0) as sandbox:
        call = call_of(2, 5, 3)
        np.testing.assert_array_equal(sandbox.run(call).output, due(call))
        assert sandbox.run(call_of(2, 3, 4)).crashed == "SIGSEGV"
        assert sandbox.run(call_of(2, 4, 4)).timed_out
        np.testing.assert_array_equal(sandbox.run(call).output, due(call))


@pytest.mark.filterwarnings("ignore:.*lives in the memory of this process only")
def test_a_numba_function_is_called_in_a_copy_of_this_process():
    pointer = numba.types.CPointer(numba.float32)
    integers = (numba.int32,) * 3
    compiled = numba.cfunc(numba.void(pointer, pointer, *integers, pointer))(in_numba)
    (symbol,) = og.c_function(compiled).product.symbols
    with Sandbox(symbol) as sandbox:
        call = call_of(4, 5, 3)
        np.testing.assert_array_equal(sandbox.run(call).output, due(call))


def test_a_function_that_is_gone_is_refused(load):
    symbol = dataclasses.replace(load(product()), binary="0" * 64)
    with Sandbox(symbol) as sandbox:
        outcome = sandbox.run(call_of(2, 3, 4))
    assert "it cannot be loaded" in outcome.refused
    assert not outcome.ended
    assert outcome.failure == ""


# ---- the process -----------------------------------------------------------------------------


def children():
    """Process numbers of the sandboxes that this process has started."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if b"child.py" in command and parent == os.getpid():
            found.append(int(entry.name))
    return found


def test_nothing_is_left_behind(load):
    symbol = load(product("if (k == 3) abort(); while (k == 4) { }"))
    before = set(os.listdir("/proc/self/fd"))
    with Sandbox(symbol, time_limit=0.3) as sandbox:
        for k in (2, 3, 3, 4, 5):
            sandbox.run(call_of(2, k, 3))
        assert len(children()) == 1
    assert children() == []
    assert set(os.listdir("/proc/self/fd")) == before
    sandbox.restart()  # once more does no harm


def test_the_process_ends_with_the_one_that_started_it(load):
    """Its end of the connection closes then, also if it is killed."""
    with Sandbox(load(product("while (k == 3) usleep(1000)"))) as sandbox:
        assert sandbox.once(call_of(2, 5, 3)).ended
        request, blocks = sandbox._request(call_of(2, 3, 4), 0, Placement())
        process = sandbox._process
        process._connection.sendall(child.pack({"do": "call", **request}, blocks))
        time.sleep(0.2)
        assert children() == [process.pid]
        process._connection.close()
        how = os.WEXITED | os.WNOWAIT
        assert os.waitid(os.P_PID, process.pid, how).si_status == 0


def test_a_process_starts_quickly(load):
    with Sandbox(load(product())) as sandbox:
        start = time.monotonic()
        assert sandbox.once(call_of(2, 3, 4)).ended
        assert time.monotonic() - start < 5  # some hundredths, on a machine that is idle


# ---- prototypes -----------------------------------------------------------------------------


def test_a_call_is_described_with_the_names_of_its_parameters(load):
    with Sandbox(load(KERNELS / "conv2d.c")) as sandbox:
        case = Case(Conv2D((2, 2), "SAME"), (1, 5, 8, 1), (3, 3, 1, 4))
        call = raw.raw_call(sandbox.symbol, case, *case.integers())
        assert sandbox.describe(call) == (
            "custom_conv2d(inputs=float[1x5x8x1], filters=float[3x3x1x4], batch=1, h=5, w=8, "
            "in_ch=1, filter_h=3, filter_w=3, out_ch=4, stride_h=2, stride_w=2, "
            'padding="SAME", out=float[1x3x4x4])'
        )


def test_parameters_without_a_name_go_by_their_role(load):
    source = "#include <stdint.h>\nuint16_t f(uint8_t a, uint8_t b) { return a * b; }\n"
    for declared, names in {
        "uint16_t f(uint8_t, const unsigned char)": ["input", "kernel"],
        "uint16_t f(uint8_t first, unsigned char)": ["first", "kernel"],
    }.items():
        assert [parameter.name for parameter in parameters(load(source, declared))] == names


def test_same_bits_tells_zeros_and_nans_apart():
    zero, minus = np.float32([0]), np.float32([-0.0])
    nan = np.uint32([0x7FC00001]).view(np.float32)
    assert same_bits(zero, zero.copy())
    assert not same_bits(zero, minus)
    assert same_bits(nan, nan.copy())
    assert not same_bits(nan, np.float32([np.nan]))
    assert not same_bits(zero, None)
    assert not same_bits(zero, zero.astype(np.float64))


def test_an_outcome_that_did_not_come_back_says_so():
    assert Outcome(timed_out=True).failure == "never returns"
    assert not Outcome(refused="no").ended
