"""`check_forward`: what it lets pass, what it reports, and how it measures."""

import dataclasses
import functools
import math
import time

import numpy as np
import pytest
from cases import CASES, CONVOLUTIONS, MATMULS, SELECTION, Case, every, meaning
from numpy_kernels import convolution, through

from opgraft import reference
from opgraft.spec import Conv2D, MatMul
from opgraft.verification import due
from opgraft.verification.forward import check_forward

FILLED = [case for case in CASES if 0 not in (*case.left, *case.right, *case.output)]
CONV = [case for case in FILLED if case in set(CONVOLUTIONS)]
PRODUCTS = [case for case in FILLED if case in set(MATMULS)]


def by_name(forward):
    return {check.name: check for check in forward.checks}


# ---- what is due -------------------------------------------------------------------------


def cut(a, b):
    """The product of float32 numbers whose lower halves are cut off."""
    a, b = (
        (np.asarray(v, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        for v in (a, b)
    )
    return a * b


def one_by_one(a, b):
    """Of numbers only."""
    return float(a) * float(b) if a > b else 0.5 * float(a) * float(b)


@pytest.mark.parametrize("multiply", [None, cut, one_by_one])
@every(SELECTION[::2])
def test_what_is_due_is_what_the_loop_nest_gives(case, multiply):
    left, right = case.normals()
    vectorised = due.Meaning(multiply and due.elementwise(multiply, left.dtype))
    if multiply is None:
        left, right = left.astype(np.float64), right.astype(np.float64)
    expected = meaning(case, multiply or np.multiply, left, right)
    np.testing.assert_allclose(vectorised.due(case, left, right), expected, rtol=1e-12, atol=1e-12)
    magnitude = meaning(case, lambda a, b: abs((multiply or np.multiply)(a, b)), left, right)
    np.testing.assert_allclose(vectorised.magnitude(case, left, right), magnitude, rtol=1e-12)


def test_that_a_function_takes_arrays_is_not_believed_before_it_is_seen():
    takes = due.elementwise(np.multiply, np.dtype(np.float32))
    assert takes is np.multiply
    for multiply in (
        one_by_one,
        lambda a, b: a * b if np.ndim(a) == 0 else np.zeros(np.broadcast_shapes(a.shape, b.shape)),
        math.fmod,
    ):
        a = np.float32([[1.5], [-2.0]])
        b = np.float32([[3.0, 0.25, -1.0]])
        got = due.elementwise(multiply, np.dtype(np.float32))(a, b)
        np.testing.assert_array_equal(got, [[multiply(p, q) for q in b[0]] for p in a[:, 0]])


@every(SELECTION)
def test_the_number_of_terms(case):
    ones = np.ones(case.left), np.ones(case.right)
    c = case.contraction
    if isinstance(c, Conv2D):
        c = dataclasses.replace(c, pad_value=1.0)
    y = due.Meaning().due(dataclasses.replace(case, contraction=c), *ones)
    assert np.all(y == due.terms(case))
    assert due.work(case) == y.sum()


# ---- what is right -------------------------------------------------------------------------


def in_blocks(a, b):
    out = np.zeros((len(a), b.shape[1]), np.float32)
    for start in range(0, a.shape[1], 3):
        out += a[:, start : start + 3] @ b[start : start + 3]
    return out


def one_after_another(a, b, order):
    out = np.zeros((len(a), b.shape[1]), a.dtype)
    for l in order(a.shape[1]):
        out = (out + a[:, l, None] * b[None, l]).astype(a.dtype)
    return out


def fused(a, b):
    """Each multiply-accumulate rounded once."""
    out = np.zeros((len(a), b.shape[1]), np.float32)
    for l in range(a.shape[1]):
        out = np.float32(out.astype(np.float64) + np.float64(a[:, l, None]) * b[None, l])
    return out


def pairwise(a, b):
    terms = a[:, :, None] * b[None]
    while terms.shape[1] > 1:
        odd = terms[:, -1:] if terms.shape[1] % 2 else terms[:, :0]
        even = terms[:, : terms.shape[1] // 2 * 2]
        terms = np.concatenate([even[:, ::2] + even[:, 1::2], odd], 1)
    return terms.sum(1)


def last_rows_otherwise(a, b):
    """Sums the rows that do not fill a block of four in another order."""
    full = len(a) // 4 * 4
    return np.concatenate([in_blocks(a[:full], b), pairwise(a[full:], b)])


CORRECT = {
    "in blocks": in_blocks,
    "backwards": functools.partial(one_after_another, order=lambda k: range(k)[::-1]),
    "in random order": functools.partial(
        one_after_another, order=np.random.default_rng(5).permutation
    ),
    "pairwise": pairwise,
    "fused": fused,
    "in double": lambda a, b: (np.float64(a) @ np.float64(b)).astype(np.float32),
    "last rows otherwise": last_rows_otherwise,
}


@pytest.mark.parametrize("name", CORRECT)
def test_what_is_right_raises_nothing(name):
    found = check_forward(through(CORRECT[name]), FILLED)
    assert found.findings == ()
    assert [check.passed for check in found.checks] == [True] * 4
    assert list(by_name(found)) == ["small integers", "random numbers", "batch", "special values"]
    assert all(check.message and check.proves for check in found.checks)
    assert found.metrics["cases"] == len(FILLED)
    assert 0 < found.metrics["mean relative error"] < found.metrics["max relative error"] < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int16", "int32"])
def test_other_element_types(dtype):
    kept = [case for case in FILLED if due.can_hold(case, np.dtype(dtype))]
    narrow = functools.partial(one_after_another, order=range)
    product = narrow if dtype.startswith("float") else lambda a, b: np.int64(a) @ np.int64(b)
    operands = []

    def evaluate(case, left, right):
        operands.append((left, right))
        return through(product)(case, left, right)

    found = check_forward(evaluate, kept, dtype=dtype)
    assert all(check.passed for check in found.checks)
    assert found.findings == ()
    assert all(v.dtype == dtype for pair in operands for v in pair)
    if not dtype.startswith("float"):
        largest = max(int(abs(v.astype(np.int64)).max()) for pair in operands for v in pair)
        assert largest > 100
        assert found.metrics["max error"] == 0


def test_time_of_a_check_of_a_fast_kernel():
    start = time.process_time()
    check_forward(through(np.matmul), FILLED)
    wrong = through(lambda a, b: abs(a @ b))
    assert check_forward(wrong, FILLED).findings == ()
    assert time.process_time() - start < 6


# ---- rounding that is not allowed ----------------------------------------------------------


def rounded_to(bits: int, array: np.ndarray) -> np.ndarray:
    significand, exponent = np.frexp(array)
    return np.float32(np.ldexp(np.rint(np.ldexp(significand, bits)), exponent - bits))


@pytest.mark.parametrize(("bits", "name"), [(11, "float16"), (8, "bfloat16")])
def test_sums_in_a_narrow_type_are_named(bits, name):
    def product(a, b):
        out = np.zeros((len(a), b.shape[1]), np.float32)
        for l in range(a.shape[1]):
            out = rounded_to(bits, out + a[:, l, None] * b[None, l])
        return out

    found = check_forward(through(product), FILLED)
    assert by_name(found)["random numbers"].passed is False
    assert found.findings == (f"agrees with sums in {name}",)


def test_sums_in_float32_are_too_narrow_for_float64():
    found = check_forward(through(lambda a, b: np.float64(np.float32(a) @ np.float32(b))), FILLED,
                          dtype=np.float64)  # fmt: skip
    assert by_name(found)["small integers"].passed
    assert found.findings == ("agrees with sums in float32",)


def test_sums_that_wrap_around_are_named():
    wrapping = through(lambda a, b: (np.int64(a) @ np.int64(b)).astype(np.int8).astype(np.int32))
    found = check_forward(wrapping, PRODUCTS, dtype=np.int8)
    assert found.findings == ("agrees with sums in int8",)


def test_operands_of_the_other_sign_are_named():
    reread = through(lambda a, b: np.int64(a.view(np.uint8)) @ np.int64(b.view(np.uint8)))
    found = check_forward(reread, PRODUCTS, dtype=np.int8)
    assert found.findings == ("agrees with uint8_t instead of int8_t",)


# ---- claims and limits ---------------------------------------------------------------------


def by_terms(multiply):
    return through(lambda a, b: multiply(a[:, :, None], b[None]).sum(1))


@pytest.mark.parametrize("claimed", [cut, lambda a, b: cut(float(a), float(b)) + 0.0])
def test_an_approximate_product_that_is_claimed_passes(claimed):
    found = check_forward(by_terms(cut), SELECTION, multiply=claimed)
    assert [check.passed for check in found.checks] == [True] * 3
    assert found.findings == ()
    assert 1e-3 < found.metrics["max relative error"] < 2**-6


def test_exact_multiplication_is_caught_where_another_is_claimed():
    found = check_forward(through(np.matmul), FILLED, multiply=cut)
    assert by_name(found)["random numbers"].passed is False
    assert found.findings == ("agrees with exact multiplication",)
    assert found.metrics["max relative error"] < 1e-6


def test_a_claimed_product_with_its_operands_the_wrong_way_round_is_not_exact():
    def first_halved(a, b):
        return np.trunc(a / 2) * b

    found = check_forward(
        by_terms(lambda a, b: first_halved(b, a)), PRODUCTS, multiply=first_halved
    )
    assert by_name(found)["small integers"].passed is False
    assert found.findings == ()


def test_the_limit_is_in_units_of_the_terms():
    kernel = by_terms(cut)
    worst = check_forward(kernel, CONV[::3], limit=1).metrics["max relative error"]
    wide, narrow = (check_forward(kernel, CONV[::3], limit=f * worst) for f in (1.01, 0.99))
    assert list(by_name(wide)) == ["within the limit", "random numbers", "batch", "deviation"]
    assert all(check.passed for check in wide.checks)
    failed = {name for name, check in by_name(narrow).items() if check.passed is False}
    assert failed == {"random numbers", "deviation"}
    assert f"the limit is {0.99 * worst:.3g}" in by_name(narrow)["random numbers"].message
    assert f"at most {worst:.3g}" in by_name(narrow)["deviation"].message


@pytest.mark.parametrize("limit", [1e-4, 0.02])
def test_a_mistake_of_an_approximate_kernel_is_named(limit):
    def noisy(name, **formulas):
        kernel = convolution(**formulas)
        return lambda case, left, right: kernel(case, cut(left, 1), cut(right, 1))

    wrong = noisy("strides", y=lambda v: v.oy * v.sx + v.i * v.dy - v.top,
                  x=lambda v: v.ox * v.sy + v.j * v.dx - v.left)  # fmt: skip
    found = check_forward(wrong, CONV[::2], limit=limit)
    assert found.findings == ("agrees with strides swapped",)


def test_metrics_are_against_the_exact_operation():
    found = check_forward(through(lambda a, b: 1.25 * (a @ b)), PRODUCTS, limit=0.5)
    assert all(check.passed for check in found.checks)
    assert found.findings == ()
    assert found.metrics["cases"] == len(PRODUCTS)
    assert math.isclose(found.metrics["max relative error"], 0.25, rel_tol=1e-5)
    assert 0 < found.metrics["mean error"] < found.metrics["max error"]


# ---- the smallest failing case -------------------------------------------------------------


def test_the_reported_case_is_smaller_than_any_of_the_table():
    wrong = convolution(counted=lambda v: (v.j != 1) | (v.kw < 2))
    found = check_forward(wrong, CONV)
    check = by_name(found)["small integers"]
    assert check.case == "conv2d-1x1x2x1-1x2x1x1-VALID"
    smallest = found.deviations[0]
    assert (smallest.title, smallest.case) == ("forward, smallest failing case", check.case)
    (at,) = np.argwhere(smallest.actual != smallest.expected)[:1]
    index = ", ".join(map(str, at))
    assert (
        f"{check.case}: element [{index}] is {smallest.actual[tuple(at)]:.9g} where "
        f"{smallest.expected[tuple(at)]:.9g} is due"
    ) in check.message


def test_what_is_needed_to_fail_is_kept():
    wrong = convolution(result=lambda v: v.sum + (v.groups > 1) * (v.sy > 1) * (v.batch > 1))
    case = by_name(check_forward(wrong, CONV))["small integers"].case
    assert "s2x" in case
    assert case.startswith("depthwise_conv2d-2x") or "-g2" in case


def test_few_more_cases_are_tried():
    count = []

    def wrong(case, left, right):
        count.append(case)
        return through(lambda a, b: abs(a @ b))(case, left, right)

    check_forward(wrong, CONV[::3])
    assert len(count) < 2 * len(CONV[::3]) + 250


def test_the_largest_error_is_drawn():
    found = check_forward(through(np.matmul), FILLED)
    (drawn,) = found.deviations
    assert drawn.title == "forward, random numbers"
    assert drawn.case in [case.id for case in FILLED]
    assert drawn.expected.shape == drawn.actual.shape
    assert 0 < abs(drawn.expected - drawn.actual).max() < 1e-4


# ---- what cannot be run, or has another shape ----------------------------------------------


def test_a_thing_that_cannot_run_is_neither_right_nor_wrong_and_soon_left_alone():
    count = []
    found = check_forward(lambda *operands: count.append(operands), FILLED)
    assert by_name(found)["small integers"].passed is None
    assert "could not be run" in by_name(found)["small integers"].message
    assert "the contract's checks say why" in by_name(found)["small integers"].message
    assert found.findings == ()
    assert found.deviations == ()
    assert found.metrics == {"cases": 0}
    assert len(count) == 3


def test_a_case_that_cannot_run_does_not_hide_what_is_wrong():
    def sometimes(case, left, right):
        if case.contraction == Conv2D():
            return None
        return through(lambda a, b: a[:, :-1] @ b[:-1])(case, left, right)

    found = check_forward(sometimes, FILLED[:80])
    assert by_name(found)["small integers"].passed is False
    assert found.findings == ("agrees with the last term left out",)


def test_another_shape_is_said():
    def turned(case, left, right):
        return through(np.matmul)(case, left, right).T

    found = check_forward(turned, PRODUCTS)
    check = by_name(found)["small integers"]
    assert check.passed is False
    assert "the output has the shape (1, 6) where (6, 1) is due" in check.message
    assert found.findings == ()


def test_large_cases_take_little_memory_or_are_said_to_be_left_out():
    large = Case(MatMul(), (300, 200), (200, 60))
    huge = Case(Conv2D(), (2, 600, 500, 8), (3, 3, 8, 2))
    found = check_forward(by_terms(cut), [*PRODUCTS, large, huge], multiply=cut)
    check = by_name(found)["small integers"]
    assert check.passed
    assert check.message == (
        f"{len(PRODUCTS) + 1} cases; not tried: 1 too large to compute what is due for them"
    )


def test_no_case_at_all():
    assert by_name(check_forward(through(np.matmul), []))["small integers"].passed is None


# ---- one image alone, NaN and infinity -------------------------------------------------------


def test_images_that_depend_on_each_other():
    """Within a limit, which allows it: the scale of a batch is that of its largest number."""

    def by_largest(case, left, right):
        step = abs(left).max(initial=0) / 64 or 1
        return through(np.matmul)(case, np.rint(left / step) * np.float32(step), right)

    found = check_forward(by_largest, CONV, limit=1.01)
    assert by_name(found)["random numbers"].passed
    check = by_name(found)["batch"]
    assert check.passed
    assert "changes the result, by less than the limit" in check.message

    def by_largest_of_many(case, left, right):
        return by_largest(case, left, right) * (1 if left.shape[0] > 1 else -5)

    check = by_name(check_forward(by_largest_of_many, CONV, limit=1.01))["batch"]
    assert check.passed is False
    assert "gives something else alone" in check.message
    assert check.case


def test_a_nan_that_is_lost_or_spreads():
    def lost(case, left, right):
        return through(np.matmul)(case, np.nan_to_num(left), right)

    def spread(case, left, right):
        return through(np.matmul)(case, left, right) + 0 * left.sum()

    for wrong, said in ((lost, "does not reach all that use it"),
                        (spread, "changes the outputs of others")):  # fmt: skip
        found = check_forward(wrong, FILLED)
        failed = [check for check in found.checks if not check.passed]
        assert [check.name for check in failed] == ["special values"]
        assert said in failed[0].message


def test_zeros_that_are_multiplied_with_what_is_beside_them_are_right():
    """A kernel that computes every padded position, and one that takes them four at a time."""

    def padded_kernel(case, left, right):
        c = case.contraction
        if isinstance(c, MatMul) or c.groups > 1 or c.channels_first or c.type_name != "conv2d":
            return through(np.matmul)(case, left, right)
        kw = right.shape[1]
        wide = np.pad(right, ((0, 0), (0, -kw % 4), (0, 0), (0, 0)))
        (top, bottom), (first, last) = reference.paddings(c, left, right)
        beyond = c.dilations[1] * (-kw % 4)
        x = np.pad(left, ((0, 0), (top, bottom), (first, last), (0, 0)),
                   constant_values=c.pad_value)  # fmt: skip
        x = np.pad(x, ((0, 0), (0, 0), (0, beyond), (0, 0)))
        plain = dataclasses.replace(c, padding="VALID", pad_value=0.0)
        return through(np.matmul)(Case(plain, x.shape, wide.shape), x, wide)

    found = check_forward(padded_kernel, FILLED)
    assert all(check.passed for check in found.checks)


def test_what_has_no_batch_is_not_asked_for_one():
    alone = [case for case in CONV if case.left[0] == 1]
    found = check_forward(through(np.matmul), alone)
    assert [check.name for check in found.checks] == ["small integers", "random numbers"]
    assert all(check.passed for check in found.checks)
