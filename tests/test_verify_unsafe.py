"""Verifying what crashes, hangs, or is gone: the process that asks survives it, and stays clean."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import loaded
import numpy as np
import pytest

import opgraft as og
from opgraft.spec import MatMul

CRASH = "*(volatile int *)0 = 1;"


@pytest.fixture
def interruptible():
    """A process started in the background of a shell ignores interrupts, and so would Python."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def source(before="", after="", head=""):
    return f"{head}\n{loaded.product(before, after)}"


def in_new_process(folder, code):
    """Run a script that ends with `report`; what it says of it. It may die."""
    script = f"""
import os
import numpy as np
import tensorflow as tf
import opgraft as og
x = np.random.default_rng(3).standard_normal((4, 200), np.float32)
{code}
print("REPORT", report.to_json().replace("\\n", " "))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("REPORT")]
    return json.loads(line.removeprefix("REPORT"))


def check_of(told, name):
    verdicts = (told[verdict]["checks"] for verdict in ("forward", "gradient", "contract"))
    (found,) = [check for checks in verdicts for check in checks if check["name"] == name]
    return found


# ---- kernels that take their process along --------------------------------------------------


TARGETS = {
    "layer": "report = og.verify(og.layers.Dense(3, arithmetic=kernel), x)",
    "function": """
w = np.ones((200, 3), np.float32)
report = og.verify(lambda x: og.matmul(x, w, arithmetic=kernel), x)
""",
    "custom op": """
def vjp(inputs, output, upstream):
    x, w = inputs
    return upstream @ tf.transpose(w), tf.transpose(x) @ upstream

@og.custom_op(vjp=vjp)
def product(x, w):
    return og.matmul(x, w, arithmetic=kernel)

report = og.verify(product, [x, np.ones((200, 3), np.float32)])
""",
}


@pytest.mark.parametrize("target", ["layer", *(pytest.param(t, marks=pytest.mark.slow)
                                              for t in ("function", "custom op"))])  # fmt: skip
@pytest.mark.parametrize("when", [pytest.param("", marks=pytest.mark.slow), "if (k > 100) "])
def test_a_crash(target, when, tmp_path):
    """Also where only the user's own sizes crash, as they do with a buffer that is too small."""
    (tmp_path / "mm.c").write_text(source(when + CRASH))
    told = in_new_process(tmp_path, "kernel = og.c_function('mm.c')\n" + TARGETS[target])
    assert told["passed"] is False
    assert told["findings"] == ["crashes (SIGSEGV)"]
    check = check_of(told, "runs on your sizes")
    assert check["passed"] is False
    assert "mm(a=float[4x200], b=float[200x3], m=4, k=200, n=3, out=float[4x3])" in check["message"]
    whole = check_of(told, "finite" if target == "custom op" else "through the operation")
    assert whole["passed"] is None


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        ("", "if (k > 100) out[m * n] = 0;", "writes beyond the end of its output"),
        ("", "if (k > 100) ((float *)a)[0] = 7;", "writes to its input"),
        ("if (k > 100) { for (int i = 0; i < m; i++) for (int j = 0; j < n; j++) out[i * n + j] = "
         "a[m * k] + 0 * out[i * n + j]; return; }", "", "reads beyond the end of its input"),
    ],
    ids=["past its output", "into its input", "past its input"],
)  # fmt: skip
def test_what_a_function_does_at_the_users_sizes_only(before, after, finding, compile_c):
    layer = og.layers.Dense(3, arithmetic=og.c_function(compile_c(source(before, after))))
    report = og.verify(layer, np.random.default_rng(1).standard_normal((4, 200), np.float32))
    assert finding in report.findings
    assert not report.contract.passed


def test_sizes_too_large_to_be_computed_beside_are_called_elsewhere_first(tmp_path):
    (tmp_path / "mm.c").write_text(source("if (k > 40000) " + CRASH))
    told = in_new_process(
        tmp_path,
        """
kernel = og.c_function("mm.c")
report = og.verify(og.layers.Dense(1, arithmetic=kernel), np.ones((250, 50_000), np.float32))
""",
    )
    assert told["findings"] == ["crashes (SIGSEGV)"]


VJP = """
void mm_vjp(const float *a, const float *b, const float *dy, int m, int k, int n, float *da,
            float *db)
{
    %s
    for (int i = 0; i < m * k; i++) {
        da[i] = 0;
        for (int j = 0; j < n; j++) da[i] += dy[i / k * n + j] * b[i %% k * n + j];
    }
    for (int i = 0; i < k * n; i++) {
        db[i] = 0;
        for (int l = 0; l < m; l++) db[i] += a[l * k + i / n] * dy[l * n + i %% n];
    }
    %s
}
"""


@pytest.mark.parametrize(
    ("before", "after", "findings"),
    [
        ("", "", []),
        (CRASH, "", ["crashes (SIGSEGV)"]),
        ("if (k > 100) " + CRASH, "", ["crashes (SIGSEGV)"]),
        ("while (m) *(volatile float *)da = 0;", "", ["never returns"]),
        ("", "db[k * n] = 0;", ["writes beyond the end of its output"]),
    ],
    ids=["right", "crashes", "crashes for large ones", "loops", "past its end"],
)
@pytest.mark.slow
def test_a_gradient_in_c(before, after, findings, tmp_path):
    (tmp_path / "mm.c").write_text(source())
    (tmp_path / "vjp.c").write_text(VJP % (before, after))
    told = in_new_process(
        tmp_path,
        """
kernel = og.c_function("mm.c", gradient=og.gradients.c_function("vjp.c"))
report = og.verify(og.layers.Dense(3, arithmetic=kernel), x, time_limit=2)
""",
    )
    assert told["passed"] is not bool(findings), told
    assert told["findings"] == findings


# ---- Python functions -----------------------------------------------------------------------


def multiplied(a, b):
    return (a @ b).astype(a.dtype)


def loops(a, b):
    while True:
        pass


def allocates(a, b):
    kept = []
    while True:
        kept.append(np.ones(10_000_000))


def closes_everything_and_loops(a, b):
    os.closerange(3, 1000)
    while True:
        time.sleep(0.1)


def verify_matrices(function, **options):
    return og.verify(og.ops.Contract(MatMul(), og.python_function(function)), **options)


@pytest.mark.filterwarnings("ignore:the Python function")
@pytest.mark.parametrize(
    ("function", "options", "finding"),
    [
        (loops, {"time_limit": 0.7}, "never returns"),
        (closes_everything_and_loops, {"time_limit": 0.7}, "never returns"),
        (allocates, {"memory_limit": 1 << 28, "time_limit": 20.0}, "takes too much memory"),
        (lambda a, b: os._exit(0), {}, "crashes (exit(0))"),
        (lambda a, b: os._exit(77), {}, "crashes (exit(77))"),
        (lambda a, b: os.abort(), {}, "crashes (SIGABRT)"),
        (lambda a, b: os.kill(os.getpid(), signal.SIGKILL), {}, "crashes (SIGKILL)"),
    ],
    ids=["loops", "closes its files", "allocates", "exit 0", "exit 77", "aborts", "killed"],
)
def test_a_python_function_that_does_not_come_back(function, options, finding):
    started = time.monotonic()
    report = verify_matrices(function, **options)
    assert time.monotonic() - started < 30
    assert report.findings == (finding,)
    assert not report.contract.passed
    assert all(check.passed is None for check in report.gradient.checks)
    assert children() == []


def raises_for_one_row(a, b):
    if a.shape[0] == 1:
        raise RuntimeError("one row")
    return multiplied(a, b)


def raises_for_integers(a, b):
    if np.array_equal(a, np.rint(a)):
        raise ValueError("whole numbers")
    return multiplied(a, b)


@pytest.mark.filterwarnings("ignore:the Python function")
@pytest.mark.parametrize(
    ("function", "finding", "text"),
    [
        (lambda a, b: 1 / 0, "raises ZeroDivisionError", "division by zero"),
        (lambda a, b: (a @ b)[:-1], "raises ArgumentError", "returned the shape"),
        (lambda a, b: None, "raises ArgumentError", "returned the shape () where"),
        (lambda a, b: (a @ b) * 1j, "raises ArgumentError", "returned complex64"),
        (raises_for_one_row, "raises RuntimeError", "one row"),
        (raises_for_integers, "raises ValueError", "whole numbers"),
    ],
    ids=["raises", "shape", "None", "complex", "for one row", "for integers"],
)
def test_a_python_function_that_raises_is_reported(function, finding, text):
    report = verify_matrices(function)
    assert finding in report.findings
    (check,) = [c for c in report.contract.checks if c.name == "runs"]
    assert check.passed is False
    assert text in check.message
    assert check.case.startswith("matmul-")
    assert all(len(finding) < 330 for finding in report.findings)


@pytest.mark.filterwarnings("ignore:the Python function")
def test_a_python_function_is_not_called_without_terms():
    """Whoever quantises by the largest number cannot have none."""

    def quantised(a, b):
        steps = [float(np.max(abs(x))) / 127 or 1.0 for x in (a, b)]
        codes = [np.rint(x / step) for x, step in zip((a, b), steps, strict=True)]
        return (codes[0] @ codes[1] * steps[0] * steps[1]).astype(a.dtype)

    report = verify_matrices(quantised, limit=0.05)
    assert report.passed, str(report)


@pytest.mark.filterwarnings("ignore:the Python function")
@pytest.mark.slow
def test_a_slow_python_function_is_not_taken_for_an_endless_one():
    def slow(a, b):
        time.sleep(0.05)
        return multiplied(a, b)

    report = verify_matrices(slow, time_limit=1.0)
    assert report.passed, str(report)


@pytest.mark.filterwarnings("ignore:the Python function")
def test_a_python_function_that_may_not_run_in_a_copy_of_this_process():
    """As OpenMP's threads do not, once they have run."""
    numba = pytest.importorskip("numba")

    @numba.njit(parallel=True)
    def product(a, b):
        y = np.zeros((a.shape[0], b.shape[1]), a.dtype)
        for i in numba.prange(a.shape[0]):
            for j in range(b.shape[1]):
                for l in range(a.shape[1]):
                    y[i, j] += a[i, l] * b[l, j]
        return y

    product(np.ones((2, 3), np.float32), np.ones((3, 4), np.float32))
    report = verify_matrices(lambda a, b: product(a, b))
    assert not any(finding.startswith("crashes") for finding in report.findings), str(report)


# ---- functions that have no file, or no longer ----------------------------------------------


@pytest.mark.filterwarnings("ignore:.*lives in the memory of this process only")
def test_a_function_in_memory_can_pass():
    numba = pytest.importorskip("numba")
    t = numba.types
    floats = t.CPointer(t.float32)

    @numba.cfunc(t.void(floats, floats, t.int32, t.int32, t.int32, floats))
    def mm(a, b, m, k, n, out):
        for i in range(m):
            for j in range(n):
                total = np.float32(0)
                for l in range(k):
                    total += a[i * k + l] * b[l * n + j]
                out[i * n + j] = total

    prototype = "void mm(const float *a, const float *b, int m, int k, int n, float *out)"
    report = og.verify(og.ops.Contract(MatMul(), og.c_function(mm, prototype)))
    assert report.passed, str(report)


@pytest.mark.parametrize("change", ["deleted", "changed"])
def test_a_source_that_is_not_what_it_was(change, compile_c):
    path = compile_c(source())
    target = og.ops.Contract(MatMul(), og.c_function(path))
    if change == "deleted":
        path.unlink()
    else:
        path.write_text(source() + "/* changed */\n")
    report = og.verify(target)
    assert report.forward.passed
    assert report.gradient.passed
    (failed,) = report.failures
    assert failed.name == "saved and loaded"
    assert str(path) in failed.message


# ---- what it leaves behind ------------------------------------------------------------------


def children():
    """Ids of the processes that this one has started and not yet reaped."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            words = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found += [entry.parent.name] if int(words[1]) == os.getpid() else []
    return found


def belongings():
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": children(),
        "threads": threading.active_count(),
        "files": sorted(pathlib.Path(tempfile.gettempdir()).glob("opgraft-*")),
    }


def test_nothing_is_left_behind(compile_c, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target = og.ops.Contract(MatMul(), og.c_function(compile_c(source())))
    assert og.verify(target).passed
    before = belongings()
    assert before["children"] == []
    assert before["files"] == []
    assert og.verify(target).passed
    assert belongings() == before


@pytest.mark.parametrize("seconds", [0.4, *(pytest.param(s, marks=pytest.mark.slow)
                                           for s in (1.0, 2.0, 3.0))])  # fmt: skip
def test_nothing_is_left_behind_by_an_interrupt(
    seconds, compile_c, tmp_path, monkeypatch, interruptible
):
    arithmetic = og.c_function(compile_c(source("for (volatile int i = 0; i < 1000000; i++);")))
    og.ops.matmul(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), arithmetic=arithmetic)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = belongings()
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        og.verify(arithmetic)
    timer.join()
    assert belongings() == before


@pytest.mark.filterwarnings("ignore:the Python function")
def test_nothing_is_left_behind_by_an_interrupt_of_a_python_function(interruptible):
    before = belongings()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        verify_matrices(loops, time_limit=60)
    timer.join()
    assert belongings() == before


@pytest.mark.slow
def test_memory_does_not_grow(compile_c):
    target = og.ops.Contract(MatMul(), og.c_function(compile_c(source())))

    def resident():
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(2):
        og.verify(target)
    before = resident()
    for _ in range(4):
        og.verify(target)
    assert resident() - before < 16 << 20
