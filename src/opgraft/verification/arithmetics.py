"""Verifying an arithmetic: its functions alone in another process, then through the framework."""

import contextlib
from collections.abc import Callable, Sequence

import numpy as np

from opgraft import gradients, ops
from opgraft.arithmetic import Arithmetic
from opgraft.errors import UnsupportedError
from opgraft.products import CFunction, CSymbol, PythonFunction
from opgraft.spec import Conv2D, MatMul
from opgraft.verification import contract, due, isolated, python_functions
from opgraft.verification.cases import CASES, Case, like
from opgraft.verification.findings import Check
from opgraft.verification.forward import Forward, check_forward
from opgraft.verification.gradient import GradientChecks
from opgraft.verification.messages import told
from opgraft.verification.operands import integers, operand_dtype, quantizes
from opgraft.verification.parts import Options, Parts, named, not_run
from opgraft.verification.raw import (
    evaluator,
    is_raw,
    raw_cases,
    size,
    unwritten,
    variants,
)
from opgraft.verification.reloading import Reloading
from opgraft.verification.safety import check_safety
from opgraft.verification.sandbox import Sandbox

_LARGEST = 10_000_000  # elements of a case that is also computed in NumPy


def verify_arithmetic(
    arithmetic: Arithmetic,
    options: Options,
    cases: Sequence[Case] = CASES,
    own: Sequence[Case] = (),
    *,
    alone: bool = True,
) -> Parts:
    """All three verdicts of an arithmetic over the cases that it serves.

    Args:
        arithmetic, options: what, and how.
        cases: small ones.
        own: cases of the user's, of any size; they are tried in the sandbox too.
        alone: whether it is not part of something that is saved and loaded as a whole.
    """
    parts = Parts()
    small = (*cases, *(case for case in own if size(case)[0] <= _LARGEST))
    served = sorted({case for case in small if serves(arithmetic, case)}, key=size)
    if not served:
        parts.contract.append(Check("serves a contraction", False, f"{arithmetic!r} serves none"))
        return parts
    with contextlib.ExitStack() as processes:
        reloading = isolating = None
        if alone:
            reloading = processes.enter_context(_reloading(arithmetic, served))
        if _runs_apart(arithmetic):
            apart = isolated.Gradient(arithmetic, served, options.limit, options.time_limit)
            isolating = processes.enter_context(apart)
        _product(arithmetic, served, own, parts, options)
        if isolating is not None and parts.safe:
            found, parts.safe = isolating.outcome()
            parts.add_gradient(found)
        if not parts.safe:
            parts.forward += not_run("through the operation")
            parts.gradient += [] if parts.gradient else not_run("vector-Jacobian product")
            parts.contract += not_run("through the framework")
            return parts
        _through_operation(arithmetic, served, parts, options)
        told = _told(arithmetic, served, options)
        if isolating is None:
            checks = GradientChecks(arithmetic, told, options.surrogate, options.limit)
            parts.add_gradient(checks.run())
        parts.contract += contract.arithmetic_checks(arithmetic, told)
        if reloading is not None:
            parts.contract.append(reloading.check())
    return parts


def serves(arithmetic: Arithmetic, case: Case) -> bool:
    """Whether it computes the case, and its function's type can hold the pad value."""
    try:
        arithmetic.check(case.contraction)
    except UnsupportedError:
        return False
    return due.can_hold(case, operand_dtype(arithmetic, case))


def _reloading(arithmetic: Arithmetic, served: Sequence[Case]) -> Reloading:
    """Of a layer that asks for the smallest of the cases."""
    case = next(c for c in served if 0 not in (*c.left, *c.right, *c.output))
    x = integers(arithmetic, case)[0]
    if getattr(case.contraction, "channels_first", False):
        x = np.moveaxis(x, 1, 3)
    return Reloading.of_model(lambda: contract.model(arithmetic, case.contraction, x), [x])


# ---- the function alone ----------------------------------------------------------------------


def _product(arithmetic: Arithmetic, served, own, parts: Parts, options: Options) -> None:
    product = arithmetic.product
    if isinstance(product, CFunction):
        for symbol in dict.fromkeys(product.symbol_for(case.contraction) for case in served):
            prefix = f"{symbol.symbol}: " if len(product.symbols) > 1 else ""
            _c_function(symbol, own, prefix, parts, options)
    elif isinstance(product, PythonFunction):
        python_functions.check(product, served, parts, options)


def _c_function(symbol: CSymbol, own, prefix: str, parts: Parts, options: Options) -> None:
    with Sandbox(
        symbol, time_limit=options.time_limit, memory_limit=options.memory_limit
    ) as sandbox:
        safety = check_safety(symbol, sandbox, own=own, large=options.large)
        parts.contract += named(safety.checks, prefix)
        refuses = any(c.name == "returns zero" and c.passed is False for c in safety.checks)
        parts.safe &= safety.safe and not refuses
        if "never returns" in safety.findings:  # each case that hangs takes its time
            why = "not run: the function does not always return"
            parts.forward.append(Check(f"{prefix}small integers", None, why))
        else:
            more = [case for case in own if size(case)[0] <= _LARGEST and is_raw(symbol, case)]
            parts.add_forward(_raw_forward(symbol, sandbox, more, options), prefix)
    parts.find(*safety.findings)


def _raw_forward(symbol: CSymbol, sandbox: Sandbox, own, options: Options) -> Forward:
    return check_forward(
        evaluator(symbol, sandbox),
        [*raw_cases(symbol), *own],
        dtype=symbol.operand_dtype,
        multiply=options.multiply,
        limit=options.limit,
        variants=variants(symbol, sandbox),
        unwritten=None if symbol.kind == "scalar" else unwritten(symbol, sandbox),
    )


# ---- through the framework ---------------------------------------------------------------------


def _through_operation(arithmetic, cases, parts: Parts, options: Options) -> None:
    """Everything that the library composes around the function: layouts, groups, casts."""
    name = "through the operation"
    proves = (
        "The operation gives what is due in every geometry: padding, strides, dilations, groups, "
        "layouts, transposes and batches that are composed around the function included."
    )
    for case in cases:
        # Of small integers, quantization leaves a few codes alone.
        left, right = case.normals() if quantizes(arithmetic) else integers(arithmetic, case)
        expected, allowed = claimed(
            arithmetic, case, left, right, multiply=options.multiply, limit=options.limit
        )
        try:
            got = np.asarray(ops.contract(case.contraction, arithmetic, left, right))
        except Exception as raised:
            message = f"{told(raised)}"
            parts.forward.append(Check(name, False, message, proves, case.id))
            return
        if wrong := unlike(got, expected, allowed):
            parts.forward.append(Check(name, False, wrong, proves, case.id))
            return
    parts.forward.append(Check(name, True, f"as due in {len(cases)} cases", proves))


def claimed(
    arithmetic: Arithmetic, case: Case, left, right, *, multiply: Callable | None,
    limit: float | None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """What is due for these operands, and by how much each element may be off.

    Of products by a table that is what the table gives, unless `multiply` is claimed.
    Otherwise operands are integers; `multiply` gets numbers of the type that the arithmetic's
    function multiplies. `limit` is in units of the sum of the absolute terms.
    """
    dtype = operand_dtype(arithmetic, case)
    meaning = due.Meaning(multiply and due.elementwise(multiply, dtype))
    operands = left.astype(dtype), right.astype(dtype)
    allowed = (limit or 0.0) * meaning.magnitude(case, *operands)
    quantizers = arithmetic.input, arithmetic.kernel
    expected = arithmetic.product.meaning(case.contraction, *quantizers, left, right)
    if multiply is not None or expected is None:
        return meaning.due(case, *operands), allowed
    return expected, allowed + 1e-5 * np.max(abs(expected), initial=1.0)  # the scales' rounding


def unlike(got: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> str:
    """Where an output is not what is due, in words; "" where it is."""
    if got.shape != expected.shape:
        return f"the output has the shape {got.shape}, due is {expected.shape}"
    wrong = ~(abs(got - expected) <= allowed)  # NaN is wrong
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} elements are wrong; the first, {at}, is {got[at]:g} "
        f"where {expected[at]:g} is due"
    )


def _runs_apart(arithmetic: Arithmetic) -> bool:
    """Whether the gradient is C code that another process can find."""
    gradient = arithmetic.gradient
    if not isinstance(gradient, gradients.CVjp) or arithmetic.product.in_python:
        return False
    symbols = (*gradient.symbols, *getattr(arithmetic.product, "symbols", ()))
    return all(symbol.library for symbol in symbols)


def _told(arithmetic: Arithmetic, cases: Sequence[Case], options: Options) -> Sequence[Case]:
    """The cases whose gradient the vjp, or the surrogate, can know.

    One that sees the operands and nothing else knows neither strides nor transposes; where
    matrix products are served, it is taken for the vjp of a matrix product.
    """
    gradient = arithmetic.gradient
    blind = isinstance(gradient, gradients.Custom) and not gradient.knows_geometry
    if not blind and options.surrogate is None:
        return cases
    plain = [c for c in cases if c.contraction == MatMul() and len(c.left) == len(c.right) == 2]
    if plain:
        more = [c for c in like(MatMul()) if len(c.left) == len(c.right) == 2]
        return sorted({*plain, *more}, key=size)
    return [c for c in cases if c.contraction == Conv2D()] or cases
