"""Verifying an arithmetic: its functions alone in another process, then through the framework."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from opgraft import gradients, ops
from opgraft.arithmetic import Arithmetic
from opgraft.errors import UnsupportedError
from opgraft.products import CFunction, CSymbol, PythonFunction
from opgraft.spec import Conv2D, MatMul
from opgraft.verification import contract, due, isolated
from opgraft.verification.cases import CASES, Case
from opgraft.verification.findings import Check, Deviation
from opgraft.verification.forward import Forward, check_forward
from opgraft.verification.gradient import GradientChecks, Outcome
from opgraft.verification.raw import evaluator, raw_cases, size, unwritten, variants
from opgraft.verification.safety import check_safety
from opgraft.verification.sandbox import Sandbox


@dataclasses.dataclass(frozen=True)
class Options:
    """What the caller of `og.verify` asked for."""

    limit: float | None = None
    multiply: Callable | None = None
    surrogate: Callable | None = None
    large: bool = False
    time_limit: float = 10.0
    memory_limit: int = 4 << 30


@dataclasses.dataclass
class Parts:
    """A report in the making."""

    forward: list[Check] = dataclasses.field(default_factory=list)
    gradient: list[Check] = dataclasses.field(default_factory=list)
    contract: list[Check] = dataclasses.field(default_factory=list)
    findings: list[str] = dataclasses.field(default_factory=list)
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    deviations: list[Deviation] = dataclasses.field(default_factory=list)

    def add_forward(self, found: Forward, prefix: str = "") -> None:
        self.forward += named(found.checks, prefix)
        self.findings += found.findings
        self.metrics |= {f"{prefix}{name}": value for name, value in found.metrics.items()}
        self.deviations += found.deviations

    def add_gradient(self, found: Outcome) -> None:
        self.gradient += found.checks
        self.findings += found.findings
        self.deviations += found.deviations

    def add(self, other: "Parts", prefix: str) -> None:
        """All of another, its checks under a prefix."""
        for kind in ("forward", "gradient", "contract"):
            getattr(self, kind).extend(named(getattr(other, kind), prefix))
        self.findings += other.findings
        self.metrics |= {f"{prefix}{name}": value for name, value in other.metrics.items()}
        self.deviations += other.deviations


def named(checks: Iterable[Check], prefix: str) -> list[Check]:
    return [dataclasses.replace(check, name=prefix + check.name) for check in checks]


def verify_arithmetic(
    arithmetic: Arithmetic, options: Options, cases: Sequence[Case] = CASES, *, alone: bool = True
) -> Parts:
    """All three verdicts of an arithmetic over the cases that it serves.

    Not `alone`, it is part of something that is saved and loaded as a whole.
    """
    parts = Parts()
    served = sorted((case for case in cases if serves(arithmetic, case)), key=size)
    if not served:
        raise UnsupportedError(f"none of the cases can be computed by {arithmetic!r}")
    product = arithmetic.product
    if isinstance(product, CFunction):
        used = dict.fromkeys(product.symbol_for(case.contraction) for case in served)
        safe = _c_functions(list(used), parts, options)
    elif isinstance(product, PythonFunction):
        safe = _python_function(product, served, parts, options)
    else:
        safe = True
    if not safe:
        why = "not run: the function is not safe to call in this process; see CONTRACT"
        parts.forward.append(Check("through the operation", None, why))
        parts.gradient.append(Check("vector-Jacobian product", None, why))
        parts.contract.append(Check("through the framework", None, why))
        return parts
    _through_operation(arithmetic, served, parts, options)
    parts.contract += contract.arithmetic_checks(arithmetic, served, saves=alone)
    parts.add_gradient(_gradient(arithmetic, served, options))
    return parts


def serves(arithmetic: Arithmetic, case: Case) -> bool:
    try:
        arithmetic.check(case.contraction)
    except UnsupportedError:
        return False
    return True


# ---- the function alone ----------------------------------------------------------------------


def _c_functions(symbols: Sequence[CSymbol], parts: Parts, options: Options) -> bool:
    safe = True
    for symbol in symbols:
        prefix = f"{symbol.symbol}: " if len(symbols) > 1 else ""
        limits = {"time_limit": options.time_limit, "memory_limit": options.memory_limit}
        with Sandbox(symbol, **limits) as sandbox:  # type: ignore[arg-type]
            safety = check_safety(symbol, sandbox, large=options.large)
            parts.contract += named(safety.checks, prefix)
            parts.add_forward(_raw_forward(symbol, sandbox, options), prefix)
        parts.findings += [f for f in safety.findings if f not in parts.findings]
        safe &= safety.safe
    return safe


def _raw_forward(symbol: CSymbol, sandbox: Sandbox, options: Options) -> Forward:
    return check_forward(
        evaluator(symbol, sandbox),
        raw_cases(symbol),
        dtype=symbol.operand_dtype,
        multiply=options.multiply,
        limit=options.limit,
        variants=variants(symbol, sandbox),
        unwritten=None if symbol.kind == "scalar" else unwritten(symbol, sandbox),
    )


def _python_function(product: PythonFunction, cases, parts: Parts, options: Options) -> bool:
    """A Python function first runs in a copy of this process, which may hang or die."""
    done: list[str] = []
    usable = [case for case in cases if 0 not in (*case.left, *case.right, *case.output)]

    def sweep() -> None:
        for case in usable[::4]:
            isolated.say(case.id)
            product.compute(case.contraction, *case.normals())

    checks = [
        Check("runs", True, f"{len(usable[::4])} cases", "It comes back on the cases tried."),
        Check("terminates", True, f"within {options.time_limit:g} s for all of them"),
    ]
    ended = isolated.run(sweep, options.time_limit, options.memory_limit, done.append)
    at = f" in the case {done[-1]}" if done else ""
    if ended == "timed out":
        checks[1] = Check("terminates", False, f"no end after {options.time_limit:g} s{at}", "",
                          done[-1] if done else "")  # fmt: skip
        parts.findings.append("never returns")
    elif ended:
        checks[0] = Check("runs", False, f"{ended}{at}", "", done[-1] if done else "")
        parts.findings.append(ended if ended.startswith("takes") else f"crashes ({ended})")
    parts.contract += checks
    if not ended:
        parts.add_forward(
            check_forward(
                lambda case, left, right: product.compute(case.contraction, left, right),
                usable,
                multiply=options.multiply,
                limit=options.limit,
            )
        )
    return not ended


# ---- through the framework ---------------------------------------------------------------------


def _through_operation(arithmetic, cases, parts: Parts, options: Options) -> None:
    """Everything that the library composes around the function: layouts, groups, casts."""
    name = "through the operation"
    proves = (
        "The operation gives what is due in every geometry: padding, strides, dilations, groups, "
        "layouts, transposes and batches that are composed around the function included."
    )
    meaning = due.Meaning(options.multiply and due.elementwise(options.multiply, np.dtype("f4")))
    tried = 0
    for case in cases:
        left, right = (x.astype(np.float32) for x in case.integers())
        try:
            got = np.asarray(ops.contract(case.contraction, arithmetic, left, right))
        except Exception as raised:
            message = f"{type(raised).__name__}: {raised}"
            parts.forward.append(Check(name, False, message, proves, case.id))
            return
        allowed = (options.limit or 0.0) * meaning.magnitude(case, left, right)
        if got.shape != case.output or not np.all(
            abs(got - meaning.due(case, left, right)) <= allowed
        ):
            message = "gives something else than is due"
            parts.forward.append(Check(name, False, message, proves, case.id))
            return
        tried += 1
    parts.forward.append(Check(name, True, f"as due in {tried} cases", proves))


def _gradient(arithmetic: Arithmetic, cases: Sequence[Case], options: Options) -> Outcome:
    gradient = arithmetic.gradient
    if isinstance(gradient, gradients.Custom) and not gradient.knows_geometry:
        cases = [case for case in cases if _is_plain(case)]
    if isinstance(gradient, gradients.CVjp) and all(s.library for s in gradient.symbols):
        return isolated.gradient(arithmetic, cases, options.time_limit * 3)
    return GradientChecks(arithmetic, cases, options.surrogate).run()


def _is_plain(case: Case) -> bool:
    """Whether a vjp that sees the operands and nothing else can know what was computed."""
    if isinstance(case.contraction, MatMul):
        return case.contraction == MatMul() and len(case.left) == len(case.right) == 2
    return case.contraction == Conv2D()
