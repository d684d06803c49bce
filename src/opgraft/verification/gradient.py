"""The gradient verdict of an arithmetic: is it the vector-Jacobian product that is declared?

Matrix products and convolutions are bilinear, so with small integers the identity
<dy, C(v, w)> = <dx, v> holds exactly in float32: no step size, no tolerance. Numeric
differences have no part in it, and a step function is never differentiated numerically.
"""

from collections.abc import Callable, Sequence

import numpy as np

from opgraft import ops, reference
from opgraft.arithmetic import Arithmetic, exact
from opgraft.backends import backend
from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.gradients import ByContraction, Custom, CVjp
from opgraft.products.quantized import shared_axes
from opgraft.quantizers import Scaled
from opgraft.spec import MatMul
from opgraft.verification.cases import Case
from opgraft.verification.findings import Check
from opgraft.verification.flows import (
    Flow,
    described,
    deviations,
    exact_product,
    is_adjoint,
    padded_with,
)
from opgraft.verification.messages import number_of, told
from opgraft.verification.operands import integers, operand_dtype, quantizes
from opgraft.verification.parts import Outcome

_EPS = 2.0**-24  # one rounding to float32, relative
_EVERY = 6  # of the cases: for what is traced or differentiated twice


class GradientChecks:
    """The checks of one arithmetic over cases, smallest first."""

    def __init__(
        self,
        arithmetic: Arithmetic,
        cases: Sequence[Case],
        surrogate: Callable | None = None,
        limit: float | None = None,
    ) -> None:
        self.arithmetic, self.surrogate = arithmetic, surrogate
        self._limits = _limits(arithmetic, limit)
        self.cases = [case for case in cases if 0 not in (*case.left, *case.right, *case.output)]

    def run(self) -> Outcome:
        flows = [self.flow(case) for case in self.cases]
        wrong = [flow for flow in flows if flow.wrong]
        checks = [self._product(flows, wrong), self._adjoint(flows), self._numbers()]
        second, second_found = self._second_order(bool(wrong))
        checks.append(second)
        checks.append(self._graph())
        return Outcome(
            tuple(checks), (*self._diagnosed(flows, wrong), *second_found), deviations(wrong)
        )

    # ---- what flows back -----------------------------------------------------------------

    def function(self, case: Case) -> Callable:
        return lambda a, b: ops.contract(case.contraction, self.arithmetic, a, b)

    def due(self, case: Case, left, right, upstream) -> tuple[np.ndarray, np.ndarray]:
        """The declared gradient: of the exact contraction, of a table, or of the surrogate."""
        if self._is_of_codes:
            flows_back = self.arithmetic.gradient.of(self.arithmetic)
            return flows_back.meaning(case.contraction, left, right, upstream)
        if self.surrogate is None:
            due = reference.vjp(case.contraction, *self._used(case, left, right), upstream)
            return self._passed(due[0], left, self.arithmetic.input), self._passed(
                due[1], right, self.arithmetic.kernel
            )
        operands = [left.astype(np.float64), right.astype(np.float64)]
        try:
            found = backend().probe.gradients(
                self.surrogate, operands, [upstream.astype(np.float64)]
            )
        except Exception as raised:
            raise ArgumentError(
                f"verify(surrogate=...): the surrogate fails on the operands of {case.id}: "
                f"{told(raised)}"
            ) from raised
        return tuple(np.zeros(x.shape) if g is None else g
                     for g, x in zip(found, (left, right), strict=True))  # type: ignore[return-value]  # fmt: skip

    def _used(self, case: Case, left, right) -> tuple[np.ndarray, np.ndarray]:
        """The operands as the arithmetic uses them: at these its gradient is declared."""
        input, kernel = self.arithmetic.input, self.arithmetic.kernel
        if isinstance(input, Scaled):
            left = input.encode(left).values
        if isinstance(kernel, Scaled):
            right = kernel.encode(right, shared_axes(case.contraction)).values
        return left, right

    @staticmethod
    def _passed(gradient, operand, quantizer) -> np.ndarray:
        return gradient * quantizer.passes(operand) if isinstance(quantizer, Scaled) else gradient

    def flow(self, case: Case) -> Flow:
        left, right = integers(self.arithmetic, case)
        upstream = case.integer_upstream().astype(np.float32)
        due = self.due(case, left, right, upstream)
        try:
            got, error = tuple(self.raw(case, left, right, upstream)), ""
        except Exception as raised:
            got, error = (), f"{told(raised)}"
        return Flow(
            case, left, right, upstream, due, got, error, self._allowed(case, left, right, upstream)
        )

    def _allowed(self, case: Case, left, right, upstream) -> tuple:
        """Nothing; else the limit, in units of the terms; of a surrogate, what rounding leaves."""
        rounded = self.surrogate is not None or quantizes(self.arithmetic)
        rounding = 1e-5 if rounded else 0.0
        of_all = np.max if self._is_of_codes else np.asarray  # slopes may cancel in a sum
        if not rounding and not any(self._limits):
            return 0.0, 0.0
        c = padded_with(case.contraction, abs)
        sizes = reference.vjp(c, abs(left), abs(right), abs(upstream))
        expected = self.due(case, left, right, upstream)
        return tuple(
            limit * size + rounding * (1 + of_all(abs(d)))
            for limit, size, d in zip(self._limits, sizes, expected, strict=True)
        )

    @property
    def _is_exact(self) -> bool:
        return not self._why_not_exact

    @property
    def _why_not_exact(self) -> str:
        """What is given that makes a gradient of small integers no integer."""
        if self.surrogate is not None:
            return "a surrogate is given"
        if quantizes(self.arithmetic):
            return "operands are quantized"
        return "a limit is given" if any(self._limits) else ""

    def raw(self, case: Case, left, right, upstream) -> list:
        """The gradients; those of a user's vjp as they are, before their contract is enforced."""
        probe = backend().probe
        if not isinstance(self.arithmetic.gradient, Custom):
            return probe.gradients(self.function(case), [left, right], [upstream])
        function = backend().with_python_gradient(case.contraction, self.arithmetic)
        return probe.raw_gradients(function.bind((left, right), {}), [left, right], [upstream])

    # ---- the checks ----------------------------------------------------------------------

    def _product(self, flows: list[Flow], wrong: list[Flow]) -> Check:
        name = "vector-Jacobian product"
        proves = (
            "On small integers the gradient of each operand is, element for element, that of "
            f"the {self._declared}. It says nothing about sizes beyond those tried."
        )
        if not wrong:
            how = "exact" if self._is_exact else "within what is allowed"
            return Check(name, True, f"{how} in {len(flows)} cases", proves)
        first = wrong[0]
        message = f"wrong in {len(wrong)} of {len(flows)} cases; {described(first)}"
        return Check(name, False, message, proves, first.case.id)

    @property
    def _is_of_codes(self) -> bool:
        return self.surrogate is None and self.arithmetic.gradient.of_codes

    @property
    def _declared(self) -> str:
        if self.surrogate is not None:
            return "surrogate"
        return "table's slopes" if self._is_of_codes else "exact operation"

    def _adjoint(self, flows: list[Flow]) -> Check:
        name = "adjoint identity"
        proves = (
            "<dy, C(v, w)> = <dx, v> and <dy, C(x, u)> = <dw, u> for random integer v and u, "
            "exactly: forward and gradient belong together, with no code in common."
        )
        if not self._is_exact:
            return Check(name, True, f"not asked: {self._why_not_exact}", proves)
        for flow in flows:
            if not is_adjoint(flow):
                return Check(name, False, "does not hold", proves, flow.case.id)
        return Check(name, True, f"exact in {len(flows)} cases", proves)

    def _numbers(self) -> Check:
        name = "random numbers"
        proves = "With random normal numbers, no gradient is off by more than rounding can be."
        if operand_dtype(self.arithmetic, self.cases[0]).kind != "f":
            return Check(name, True, "not tried: the function takes integers", proves)
        for case in self.cases[:: _EVERY // 2]:
            left, right = case.normals()
            upstream = case.upstream()
            try:
                got = self.raw(case, left, right, upstream)
            except Exception as raised:
                return Check(name, False, f"{told(raised)}", proves, case.id)
            due = self.due(case, left, right, upstream)
            for i, (g, d) in enumerate(zip(got, due, strict=False)):
                allowed = self._bound(case, left, right, upstream)[i]
                allowed = np.maximum(allowed, self._allowed(case, left, right, upstream)[i])
                if g is None or g.shape != d.shape or not np.all(abs(g - d) <= allowed):
                    who = case.contraction.operand_names[i]
                    return Check(name, False, f"the gradient of {who} is off", proves, case.id)
        return Check(name, True, f"within rounding in {len(self.cases[:: _EVERY // 2])} cases",
                     proves)  # fmt: skip

    @staticmethod
    def _bound(case: Case, left, right, upstream):
        """By how much each element may be off: a rounding of every term and of every sum."""
        c = padded_with(case.contraction, abs)
        sizes = reference.vjp(c, abs(left), abs(right), abs(upstream))
        ones = reference.vjp(c, *(np.ones_like(x) for x in (left, right, upstream)))
        return [(abs(n) + 4) * _EPS * size for n, size in zip(ones, sizes, strict=True)]

    def _second_order(self, first_is_wrong: bool) -> tuple[Check, tuple[str, ...]]:
        name = "second order"
        proves = (
            "Differentiating the gradient again is exact on small integers, or refused with an "
            "error; it is never silently None or zero."
        )
        if first_is_wrong:
            return Check(name, None, "not run: the first order is wrong", proves), ()
        if not self._is_exact:
            return Check(name, True, f"not compared: {self._why_not_exact}", proves), ()
        cases = self.cases[::_EVERY]
        for case in cases:
            try:
                wrong = self._second_is_wrong(case)
            except UnsupportedError as refused:
                return Check(name, True, f"refused, as it must be: {refused}", proves), ()
            except Exception as raised:
                message = f"fails with {told(raised)}"
                return Check(name, False, message, proves, case.id), ("second order: fails",)
            if wrong:
                message = f"the derivative of the gradient for {wrong} is wrong"
                return Check(name, False, message, proves, case.id), ("second order: wrong",)
        return Check(name, True, f"exact in {len(cases)} cases", proves), ()

    def _second_is_wrong(self, case: Case) -> str:
        """The name of what <dx, v> + <dw, u> has a wrong gradient for; "" if it is right."""
        c = case.contraction
        x, w = integers(self.arithmetic, case)
        v, u = (o.astype(np.float32) for o in case.integers("direction"))
        dy = case.integer_upstream().astype(np.float32)
        got = backend().probe.second_order(self.function(case), [x, w], [dy], [v, u])
        plain = padded_with(c, lambda _: 0.0)
        due = [
            reference.vjp(c, x, u, dy)[0],
            reference.vjp(plain, v, w, dy)[1],
            exact_product(plain, v, w) + exact_product(c, x, u),
        ]
        names = (*c.operand_names, "the upstream gradient")
        for name, g, d in zip(names, got, due, strict=True):
            if g is None or not np.array_equal(g, d):
                return name
        return ""

    def _graph(self) -> Check:
        name = "eager = graph"
        proves = "In a graph, and with sizes unknown until it runs, the same gradient comes out."
        cases = self.cases[:: 4 * _EVERY]
        probe = backend().probe
        for case in cases:
            upstream = case.integer_upstream().astype(np.float32)
            operands = [*integers(self.arithmetic, case), upstream]
            try:
                run = probe.graph_gradients(self.function(case), operands[:2], operands[2:])
                eager = probe.gradients(self.function(case), operands[:2], operands[2:])
            except UnsupportedError:  # said by name, which is no wrong gradient
                continue
            except Exception as raised:
                return Check(name, False, f"{told(raised)}", proves, case.id)
            for a, b in zip(eager, run, strict=True):
                if (a is None) != (b is None) or (a is not None and not np.array_equal(a, b)):
                    return Check(name, False, "a graph gives another gradient", proves, case.id)
        return Check(name, True, f"the same in {len(cases)} cases", proves)

    def _telling(self, flows: list[Flow]) -> list[Flow]:
        """What a C function for matrix products gets wrong has its name there, and not behind
        the im2col through which it serves convolutions."""
        gradient = self.arithmetic.gradient
        if not isinstance(gradient, CVjp) or any(s.kind != "matmul_vjp" for s in gradient.symbols):
            return flows
        plain = [f for f in flows if f.case.contraction == MatMul() and len(f.case.left) == 2]
        return plain if any(flow.wrong for flow in plain) else flows

    def _diagnosed(self, flows: list[Flow], wrong: list[Flow]) -> tuple[str, ...]:
        if not wrong:
            return ()
        counts = {len(flow.got) for flow in wrong if not flow.error}
        if counts - {2}:
            return (f"the vjp returns {number_of(max(counts - {2}))} for 2 inputs",)
        results = [
            (f.case, f.left, f.right, f.upstream, f.got)
            for f in self._telling(flows)
            if not f.error
        ]
        if not results:
            return (f"the gradient fails: {wrong[0].error}",)
        if self._declared != "exact operation":
            names = wrong[0].case.contraction.operand_names
            return tuple(
                f"gradient of {name}: is not that of the {self._declared}"
                for i, name in enumerate(names)
                if any(not f.is_due(i) for f in wrong if not f.error)
            )
        from opgraft.verification.gradient_diagnoses import diagnose_gradient

        return diagnose_gradient(results, names=wrong[0].case.contraction.operand_names)


def _limits(arithmetic: Arithmetic, limit: float | None) -> tuple[float, float]:
    """By how much each gradient may be off: by something only where an arithmetic computes it."""
    gradient = arithmetic.gradient.of(arithmetic)
    if limit is None or not isinstance(gradient, ByContraction):
        return 0.0, 0.0
    parts = (gradient.grad_input, gradient.grad_kernel)
    return tuple(0.0 if part == exact else limit for part in parts)  # type: ignore[return-value]
