"""`og.testing`: the case table and the checks in a user's own tests."""

import os
import subprocess
import sys

import loaded
import numpy as np
import pytest

import opgraft as og
from opgraft.errors import ArgumentError
from opgraft.spec import MatMul
from opgraft.testing import CASES, CONVOLUTIONS, MATMULS, SELECTION, Case

RIGHT = loaded.product()
LAST_LEFT_OUT = RIGHT.replace("l < k", "l < k - 1")
COARSE = RIGHT.replace("= sum;", "= sum * 1.01f;")
NOT_A_NUMBER = RIGHT.replace("= sum;", "= j ? sum : 0.0f / 0.0f;")
PLAIN = [c for c in MATMULS if c.contraction == MatMul() and 0 not in (*c.left, *c.right)]


@pytest.fixture
def kernel(compile_c):
    """A function: the text of a C source -> its arithmetic."""
    return lambda text, **options: og.c_function(compile_c(text), **options)


# ---- the table -----------------------------------------------------------------------------


def test_the_table():
    assert [*CONVOLUTIONS, *MATMULS] == CASES
    assert set(SELECTION) < set(CASES)
    assert {type(case.contraction) for case in SELECTION} == {
        type(case.contraction) for case in CASES
    }
    ids = {case.id for case in CASES}
    assert len(ids) == len(set(CASES))


def test_every_runs_a_test_once_with_each_case():
    mark = og.testing.every(MATMULS[:3])
    assert mark.name == "parametrize"
    name, cases = mark.args
    assert name == "case"
    assert cases == MATMULS[:3]
    assert [mark.kwargs["ids"](case) for case in cases] == [case.id for case in MATMULS[:3]]


def test_every_takes_any_iterable():
    assert og.testing.every(case for case in MATMULS[:2]).args[1] == MATMULS[:2]


def test_every_without_pytest(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytest", None)
    with pytest.raises(ArgumentError, match=r"needs pytest: `pip install pytest`, or loop over"):
        og.testing.every(MATMULS)


# ---- one case ------------------------------------------------------------------------------


@og.testing.every([*MATMULS[::4], *CONVOLUTIONS[::12]])
def test_a_right_kernel(case, c_both):
    og.testing.assert_forward(case, c_both)
    og.testing.assert_gradient(case, c_both)


def test_a_kernel_of_bytes(kernel):
    bytewise = kernel(
        "#include <stdint.h>" + RIGHT.replace("const float", "const uint8_t").replace(
            "float *out", "int32_t *out").replace("float sum", "int32_t sum")
    )  # fmt: skip
    for case in PLAIN[:3]:
        og.testing.assert_forward(case, bytewise)
        og.testing.assert_gradient(case, bytewise)


def test_a_wrong_kernel_names_the_case_and_the_element(kernel):
    case = Case(MatMul(), (3, 5), (5, 4))
    with pytest.raises(AssertionError) as raised:
        og.testing.assert_forward(case, kernel(LAST_LEFT_OUT))
    text = str(raised.value)
    assert text.startswith("matmul-3x5-5x4: ")
    assert "of 12 elements are wrong; the first, (" in text
    left, right = case.integers()
    expected = left.astype(np.float64) @ right
    at = tuple(int(i) for i in text.partition("the first, (")[2].partition(")")[0].split(","))
    assert f"where {expected[at]:g} is due" in text
    assert f"is {(expected - np.outer(left[:, -1], right[-1]))[at]:g} where" in text


def test_what_is_not_a_number_is_wrong(kernel):
    arithmetic = kernel(NOT_A_NUMBER)
    for limit in (0.0, 0.5):
        with pytest.raises(AssertionError, match="nan where"):
            og.testing.assert_forward(PLAIN[0], arithmetic, limit=limit)


def test_a_limit_in_units_of_the_terms(kernel):
    arithmetic = kernel(COARSE)
    for case in PLAIN:
        og.testing.assert_forward(case, arithmetic, limit=0.011)
    with pytest.raises(AssertionError, match="elements are wrong"):
        og.testing.assert_forward(PLAIN[0], arithmetic, limit=0.001)


def test_the_product_that_is_claimed(kernel):
    truncated = kernel("float mul(float a, float b) { return (int)(a / 2) * 2 * b; }")

    def multiply(a, b):
        return np.trunc(a / 2) * 2 * b

    for case in PLAIN:
        og.testing.assert_forward(case, truncated, multiply=multiply)
    with pytest.raises(AssertionError, match="elements are wrong"):
        og.testing.assert_forward(PLAIN[0], truncated)
    with pytest.raises(AssertionError, match="elements are wrong"):
        og.testing.assert_forward(PLAIN[0], og.exact, multiply=multiply)


def test_a_kernel_that_raises_fails_with_what_it_raised():
    def raises(a, b):
        raise RuntimeError("no such product")

    with pytest.raises(Exception, match="no such product"):
        og.testing.assert_forward(PLAIN[0], og.python_function(raises))


@pytest.mark.parametrize(
    ("vjp", "text"),
    [
        (lambda i, o, u: (2 * u @ i.b.numpy().T, i.a.numpy().T @ u), "the gradient of a at"),
        (lambda i, o, u: (u @ i.b.numpy().T, None), "the gradient of b is None"),
        (lambda i, o, u: u, "1 gradient"),
        (lambda i, o, u: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda i, o, u: (u @ i.b.numpy().T, u), "of the shape (3, 4) where float32 of (5, 4)"),
    ],
    ids=["scaled", "None", "one", "raises", "another shape"],
)
def test_a_wrong_gradient(vjp, text):
    arithmetic = og.Arithmetic(gradient=og.gradients.custom(vjp))
    case = Case(MatMul(), (3, 5), (5, 4))
    with pytest.raises(AssertionError) as raised:
        og.testing.assert_gradient(case, arithmetic)
    assert str(raised.value).startswith("matmul-3x5-5x4: ")
    assert text in str(raised.value)


def test_none_is_the_exact_arithmetic():
    og.testing.assert_forward(PLAIN[0], None)
    og.testing.assert_gradient(PLAIN[0], None)


def test_what_is_no_arithmetic():
    for check in (og.testing.assert_forward, og.testing.assert_gradient):
        with pytest.raises(ArgumentError, match=r"og\.Arithmetic"):
            check(PLAIN[0], "kernel.c")


# ---- all of it -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def contraction():
    """One geometry: cheaper to verify than the whole table."""
    return lambda arithmetic: og.ops.Contract(MatMul(), arithmetic)


def test_assert_verified_returns_the_report(kernel, contraction):
    report = og.testing.assert_verified(contraction(kernel(RIGHT)))
    assert report.passed
    assert report.findings == ()


def test_assert_verified_passes_its_options_on(kernel, contraction):
    target = contraction(kernel(COARSE))
    assert og.testing.assert_verified(target, limit=0.02).passed
    with pytest.raises(ArgumentError, match="limit=-1"):
        og.testing.assert_verified(target, limit=-1)


def test_assert_verified_shows_the_whole_report(kernel, contraction):
    with pytest.raises(AssertionError) as raised:
        og.testing.assert_verified(contraction(kernel(LAST_LEFT_OUT)))
    text = str(raised.value)
    first, _, report = text.partition("\n\n")
    assert first.startswith("mm of ")
    assert first.endswith("is not verified")
    assert "agrees with the last term left out" in report
    for verdict in ("Forward: failed", "Gradient: passed", "Contract: passed"):
        assert verdict in report


def test_in_a_repository_of_your_own(tmp_path):
    """The three lines of the documentation, run by pytest in a new process without a terminal."""
    (tmp_path / "right.c").write_text(RIGHT)
    (tmp_path / "wrong.c").write_text(LAST_LEFT_OUT)
    (tmp_path / "test_mine.py").write_text("""
import opgraft as og

def test_right():
    og.testing.assert_verified(og.c_function("right.c"))

def test_wrong():
    og.testing.assert_verified(og.c_function("wrong.c"))

@og.testing.every(og.testing.MATMULS[:2])
def test_each(case):
    og.testing.assert_forward(case, og.c_function("right.c"))
    og.testing.assert_gradient(case, og.c_function("wrong.c"))
""")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 3 passed" in done.stdout
    assert "AssertionError: mm of" in done.stdout
    assert "agrees with the last term left out" in done.stdout
    assert "FAILED test_mine.py::test_wrong" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix) == [
        "right.c", "test_mine.py", "wrong.c",
    ]  # fmt: skip
