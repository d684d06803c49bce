"""Verifying an arithmetic: its functions alone in another process, then through the framework."""

import contextlib
from collections.abc import Sequence

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
from opgraft.verification.gradient import GradientChecks, integers
from opgraft.verification.messages import told
from opgraft.verification.parts import Options, Parts, named, not_run
from opgraft.verification.raw import (
    evaluator,
    is_raw,
    raw_call,
    raw_cases,
    size,
    small_operands,
    unwritten,
    variants,
)
from opgraft.verification.reloading import Reloading
from opgraft.verification.safety import check_safety
from opgraft.verification.sandbox import Sandbox


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
    served = sorted({c for c in (*cases, *own) if serves(arithmetic, c)}, key=size)
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
    try:
        arithmetic.check(case.contraction)
    except UnsupportedError:
        return False
    return True


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
        safety = check_safety(symbol, sandbox, large=options.large)
        parts.contract += named(safety.checks, prefix)
        refuses = any(c.name == "returns zero" and c.passed is False for c in safety.checks)
        parts.safe &= safety.safe and not refuses
        own = [case for case in own if is_raw(symbol, case)]
        parts.contract += named(_own_sizes(symbol, sandbox, own, parts), prefix)
        if "never returns" in safety.findings:  # each case that hangs takes its time
            why = "not run: the function does not always return"
            parts.forward.append(Check(f"{prefix}small integers", None, why))
        else:
            parts.add_forward(_raw_forward(symbol, sandbox, own, options), prefix)
    parts.find(*safety.findings)


def _own_sizes(symbol: CSymbol, sandbox: Sandbox, own, parts: Parts) -> list[Check]:
    """The user's own sizes, before anything of them runs in this process."""
    name = "runs on your sizes"
    proves = "It comes back on the sizes of the inputs that were given."
    for case in own:
        call = raw_call(symbol, case, *small_operands(symbol, case))
        outcome = None if call is None else sandbox.run(call)
        if outcome is not None and outcome.failure:
            parts.safe = False
            parts.find(outcome.failure)
            message = f"{sandbox.describe(call)} {outcome.failure}"  # type: ignore[arg-type]
            return [Check(name, False, message, proves, case.id)]
    return [Check(name, True, f"{len(own)} calls", proves)] if own else []


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
    meaning = due.Meaning(options.multiply and due.elementwise(options.multiply, np.dtype("f4")))
    for case in cases:
        left, right = integers(arithmetic, case)
        try:
            got = np.asarray(ops.contract(case.contraction, arithmetic, left, right))
        except Exception as raised:
            message = f"{told(raised)}"
            parts.forward.append(Check(name, False, message, proves, case.id))
            return
        allowed = (options.limit or 0.0) * meaning.magnitude(case, left, right)
        expected = meaning.due(case, left, right)
        if got.shape != case.output or not np.all(abs(got - expected) <= allowed):
            message = "gives something else than is due"
            parts.forward.append(Check(name, False, message, proves, case.id))
            return
    parts.forward.append(Check(name, True, f"as due in {len(cases)} cases", proves))


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
