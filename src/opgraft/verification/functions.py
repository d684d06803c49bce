"""The gradient verdict of a function with a gradient of its own: a custom op."""

from collections.abc import Callable, Sequence

import numpy as np

from opgraft.backends import backend
from opgraft.calls import Bound, Function
from opgraft.errors import ArgumentError
from opgraft.verification.findings import Check, Deviation
from opgraft.verification.messages import number_of, told
from opgraft.verification.parts import Outcome
from opgraft.verification.smooth import Smooth, is_float

_SURROGATE_TOLERANCE = 1e-5


class CustomOpChecks:
    """The checks of one custom op at given inputs."""

    def __init__(self, op: Function, bound: Bound, inputs: list[np.ndarray],
                 surrogate: Callable | None) -> None:  # fmt: skip
        self.op, self.bound, self.surrogate = op, bound, surrogate
        self.names = list(bound.tensors)
        self.inputs = inputs
        self.random = np.random.default_rng(len(inputs))
        self.smooth = Smooth(bound, inputs)
        self._probe = backend().probe
        self._findings: list[str] = []
        self._deviations: list[Deviation] = []

    def run(self) -> Outcome:
        checks = [self.contract()]
        name = "surrogate" if self.surrogate else "directional derivatives"
        if not checks[0].passed:
            why = "not run: the vjp breaks its contract"
            checks += [Check(other, None, why) for other in (name, "second order")]
        elif self.surrogate:
            checks.append(self._against_surrogate())
            why = "not compared: the surrogate declares the first"
            checks.append(Check("second order", True if checks[-1].passed else None, why))
        else:
            checks.append(self.smooth.first_order())
            if checks[-1].passed:
                checks.append(self.smooth.second_order())
            else:
                why = "not run: the first order was not found right"
                checks.append(Check("second order", None, why))
        findings = (*self._findings, *self.smooth.findings)
        return Outcome(tuple(checks), findings, (*self._deviations, *self.smooth.deviations))

    # ---- what the vjp returns ------------------------------------------------------------

    def outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The floating outputs."""
        found = self._probe.outputs(lambda *tensors: self.bound.run(list(tensors)), list(inputs))
        return [y for y in found if is_float(y)]

    def weights(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        draw = self.random.standard_normal
        return [draw(y.shape).astype(y.dtype) for y in self.outputs(inputs)]

    def contract(self) -> Check:
        """One gradient per input, of its shape and dtype, finite."""
        name = "gradient contract"
        proves = (
            "The vjp returns one gradient per input, of the input's shape and dtype, finite, and "
            "None only where it is declared. It says nothing about their values."
        )
        try:
            weights = self.weights(self.inputs)
            got = self._probe.raw_gradients(self.bound, self.inputs, weights)
            nothing = self._probe.raw_gradients(self.bound, self.inputs, [0 * w for w in weights])
        except Exception as raised:
            return Check(name, False, f"fails with {told(raised)}", proves)
        if len(got) != len(self.names):
            count = f"{number_of(len(got))} for {number_of(len(self.names), 'input')}"
            self._findings.append(f"the vjp returns {count}")
            return Check(name, False, f"the vjp returned {count}: {', '.join(self.names)}", proves)
        for i, (who, x, g) in enumerate(zip(self.names, self.inputs, got, strict=True)):
            problem, message = self._problem(x, g, i in self.smooth.wanted())
            if problem:
                self._findings.append(f"gradient of {who}: {problem}")
                return Check(name, False, f"the gradient of {who} {message}", proves)
        for who, g in zip(self.names, nothing, strict=False):
            if g is not None and np.any(g.astype(np.float64) != 0):  # NaN too
                finite = np.all(np.isfinite(g.astype(np.float64)))
                self._findings.append(
                    f"gradient of {who}: "
                    + ("is not linear in the upstream gradient" if finite else "is NaN or infinite")
                )
                message = f"the gradient of {who} is not zero where the upstream gradient is"
                return Check(name, False, message, proves)
        return Check(name, True, f"for {', '.join(self.names)}", proves)

    @staticmethod
    def _problem(x: np.ndarray, g: np.ndarray | None, wanted: bool) -> tuple[str, str]:
        if not wanted:
            extra = "must be None: the input is declared non-differentiable, or holds integers"
            return ("", "") if g is None else ("must be None", extra)
        if g is None:
            return "frozen (None)", "is None; declare it with non_differentiable=, or return one"
        if g.shape != x.shape:
            what = f"has the shape {g.shape}, and the input {x.shape}"
            return ("broadcast shape" if _broadcasts(g, x) else "wrong shape"), what
        if g.dtype != x.dtype:
            return "wrong dtype", f"is {g.dtype}, and the input {x.dtype}"
        if not np.all(np.isfinite(g.astype(np.float64))):
            return "is NaN or infinite", "is not finite"
        return "", ""

    # ---- their values ----------------------------------------------------------------------

    def _against_surrogate(self) -> Check:
        name = "surrogate"
        proves = (
            "The gradient is that of the declared surrogate at these inputs, at others beside, "
            "and at zero. Whether the surrogate suits the function is not asked."
        )
        points = [self.inputs, self._elsewhere(self.inputs), [0 * x for x in self.inputs]]
        for point in points:
            weights = self.weights(point)
            got = self._probe.raw_gradients(self.bound, point, weights)
            due = self._declared(point, weights)
            for i in self.smooth.wanted():
                expected = np.zeros_like(point[i]) if due[i] is None else due[i]
                if not np.allclose(got[i], expected, rtol=_SURROGATE_TOLERANCE,
                                   atol=_SURROGATE_TOLERANCE):  # fmt: skip
                    who = self.names[i]
                    self._findings.append(f"gradient of {who}: is not that of the surrogate")
                    self._deviations.append(Deviation(f"gradient of {who}", "", expected, got[i]))
                    return Check(name, False, f"the gradient of {who} is another", proves)
        return Check(name, True, f"equal at {len(points)} points", proves)

    def _declared(self, point: list[np.ndarray], weights: list[np.ndarray]) -> list:
        assert self.surrogate is not None
        try:
            return self._probe.gradients(self.surrogate, point, weights)
        except Exception as raised:
            raise ArgumentError(
                f"verify(surrogate=...): the surrogate fails on the inputs of {self.op}: "
                f"{told(raised)}"
            ) from raised

    def _elsewhere(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        draw = self.random.standard_normal
        return [(2 * draw(x.shape)).astype(x.dtype) if x.dtype.kind == "f" else x for x in inputs]


def _broadcasts(g: np.ndarray, x: np.ndarray) -> bool:
    try:
        return np.broadcast_shapes(g.shape, x.shape) == x.shape
    except ValueError:
        return False
