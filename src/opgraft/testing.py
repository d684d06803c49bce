"""Pytest helpers: test your kernel with the cases and the checks that opgraft tests itself with.

    import opgraft as og

    def test_my_kernel():
        og.testing.assert_verified(og.c_function("approx.c"), limit=0.02)

For one test per case:

    @og.testing.every(og.testing.CASES)
    def test_my_gradient(case):
        og.testing.assert_gradient(case, og.c_function("approx.c"))
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from opgraft import ops
from opgraft.arithmetic import standardize
from opgraft.errors import ArgumentError
from opgraft.verification import verify
from opgraft.verification.arithmetics import claimed, unlike
from opgraft.verification.cases import CASES, CONVOLUTIONS, MATMULS, SELECTION, Case
from opgraft.verification.findings import Report
from opgraft.verification.flows import described
from opgraft.verification.gradient import GradientChecks
from opgraft.verification.operands import integers


def assert_verified(target: Any, inputs: Any = None, **options: Any) -> Report:
    """`og.verify`, as an assertion whose message is the whole report.

    Args:
        target, inputs, options: as for `og.verify`.

    Returns:
        The report, which has passed.

    Raises:
        AssertionError: it has not.
    """
    report = verify(target, inputs, **options)
    if not report.passed:
        raise AssertionError(f"{report.target} is not verified\n\n{report}")
    return report


def every(cases: Iterable[Case]) -> Any:
    """A pytest mark that runs a test once with each of these cases as `case`.

    Raises:
        ArgumentError: pytest is not installed.
    """
    try:
        import pytest
    except ImportError:
        raise ArgumentError(
            "og.testing.every needs pytest: `pip install pytest`, or loop over the cases"
        ) from None
    return pytest.mark.parametrize("case", list(cases), ids=lambda case: case.id)


def assert_forward(
    case: Case, arithmetic: Any, *, limit: float = 0.0, multiply: Any = None
) -> None:
    """Assert that an arithmetic computes one case as it claims, on small integers.

    Args:
        case: a contraction and the shapes of its operands.
        arithmetic: an `og.Arithmetic`.
        limit: the largest error, in units of the sum of the absolute terms; 0 is exactly.
        multiply: the product of two numbers that it claims; None is the exact one.

    Raises:
        AssertionError: it does not.
    """
    arithmetic = standardize(arithmetic)
    left, right = integers(arithmetic, case)
    expected, allowed = claimed(arithmetic, case, left, right, multiply=multiply, limit=limit)
    got = np.asarray(ops.contract(case.contraction, arithmetic, left, right))
    wrong = unlike(got, expected, allowed)
    assert not wrong, f"{case.id}: {wrong}"


def assert_gradient(case: Case, arithmetic: Any) -> None:
    """Assert that the gradients of one case are those of the exact operation, on small integers.

    Raises:
        AssertionError: they are not.
    """
    flow = GradientChecks(standardize(arithmetic), [case]).flow(case)
    assert not flow.wrong, f"{case.id}: {described(flow).removeprefix('smallest: ')}"


__all__ = [
    "CASES", "CONVOLUTIONS", "MATMULS", "SELECTION", "Case", "assert_forward", "assert_gradient",
    "assert_verified", "every",
]  # fmt: skip
