"""The gradient verdict of a function with a gradient of its own: a custom op."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from opgraft.backends import backend
from opgraft.calls import Bound, Function
from opgraft.errors import UnsupportedError
from opgraft.verification import numeric
from opgraft.verification.findings import Check, Deviation
from opgraft.verification.parts import Outcome

_SURROGATE_TOLERANCE = 1e-5
_TRIES = 3  # random points, where the first lies on a kink


class CustomOpChecks:
    """The checks of one custom op at given inputs."""

    def __init__(self, op: Function, bound: Bound, inputs: list[np.ndarray],
                 surrogate: Callable | None) -> None:  # fmt: skip
        self.op, self.bound, self.surrogate = op, bound, surrogate
        self.names = list(bound.tensors)
        self.inputs = inputs
        self.random = np.random.default_rng(len(inputs))
        self._probe = backend().probe
        self._findings: list[str] = []
        self._deviations: list[Deviation] = []

    def run(self) -> Outcome:
        contract = self.contract()
        checks = [contract]
        if contract.passed:
            checks.append(self._against_surrogate() if self.surrogate else self._derivatives())
            checks.append(self._second_order(bool(checks[-1].passed)))
        else:
            name = "surrogate" if self.surrogate else "directional derivatives"
            for other in (name, "second order"):
                checks.append(Check(other, None, "not run: the vjp breaks its contract"))
        return Outcome(tuple(checks), tuple(self._findings), tuple(self._deviations))

    # ---- what the vjp returns ------------------------------------------------------------

    def wanted(self, inputs: Sequence[np.ndarray]) -> list[int]:
        return [i for i, x in enumerate(inputs)
                if x.dtype.kind in "fV" and self.bound.differentiable(self.names[i])]  # fmt: skip

    def outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The floating outputs."""
        found = self._probe.outputs(lambda *tensors: self.bound.run(list(tensors)), list(inputs))
        return [y for y in found if y.dtype.kind in "fV"]

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
        weights = self.weights(self.inputs)
        try:
            got = self._probe.raw_gradients(self.bound, self.inputs, weights)
            nothing = self._probe.raw_gradients(self.bound, self.inputs, [0 * w for w in weights])
        except Exception as raised:
            return Check(
                name, False, f"the vjp fails with {type(raised).__name__}: {raised}", proves
            )
        if len(got) != len(self.names):
            count = (
                f"{len(got)} gradient{'s' if len(got) != 1 else ''} for {len(self.names)} inputs"
            )
            self._findings.append(f"the vjp returns {count}")
            return Check(name, False, f"the vjp returned {count}: {', '.join(self.names)}", proves)
        for i, (who, x, g) in enumerate(zip(self.names, self.inputs, got, strict=True)):
            problem, message = self._problem(x, g, i in self.wanted(self.inputs))
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
            assert self.surrogate is not None
            due = self._probe.gradients(self.surrogate, point, weights)
            for i in self.wanted(point):
                expected = np.zeros_like(point[i]) if due[i] is None else due[i]
                if not np.allclose(got[i], expected, rtol=_SURROGATE_TOLERANCE,
                                   atol=_SURROGATE_TOLERANCE):  # fmt: skip
                    who = self.names[i]
                    self._findings.append(f"gradient of {who}: is not that of the surrogate")
                    self._deviations.append(Deviation(f"gradient of {who}", "", expected, got[i]))
                    return Check(name, False, f"the gradient of {who} is another", proves)
        return Check(name, True, f"equal at {len(points)} points", proves)

    def _elsewhere(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        draw = self.random.standard_normal
        return [(2 * draw(x.shape)).astype(x.dtype) if x.dtype.kind == "f" else x for x in inputs]

    def _derivatives(self) -> Check:
        name = "directional derivatives"
        proves = (
            "In float64, along random directions of each input, the gradient is the derivative "
            "to one part in a million. It says nothing about points that were not tried."
        )
        inputs = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in self.inputs]
        try:
            self.outputs(inputs)
        except Exception as raised:
            message = f"not run: the function does not take float64 ({raised}). Give surrogate="
            return Check(name, None, message, proves)
        for i in self.wanted(inputs):
            passed, message = self._derivative(i, inputs)
            if not passed:
                return Check(name, passed, message, proves)
        return Check(name, True, f"equal for {len(self.wanted(inputs))} inputs", proves)

    def _derivative(self, i: int, inputs: list[np.ndarray]) -> tuple[bool | None, str]:
        who = self.names[i]
        kinks = 0
        for _ in range(_TRIES):
            direction: list[Any] = [None] * len(inputs)
            direction[i] = self.random.standard_normal(inputs[i].shape)
            weights = self.weights(inputs)
            gradient = np.asarray(self._probe.raw_gradients(self.bound, inputs, weights)[i])
            claimed = float(np.vdot(gradient, direction[i]))
            if numeric.is_step(self.outputs, inputs, direction):
                if not np.any(gradient):
                    continue
                return None, (
                    f"not run: for small changes of {who} the function stays as it is, a step "
                    "function, whose gradient no difference can judge. Declare the function whose "
                    "gradient it is: og.verify(..., surrogate=...)"
                )
            found = numeric.directional(self.outputs, inputs, direction, weights)
            if not numeric.is_smooth(found):
                kinks += 1
                inputs = [x if j != i else x + 0.1 * self.random.standard_normal(x.shape)
                          for j, x in enumerate(inputs)]  # fmt: skip
            elif not numeric.agrees(claimed, found):
                self._findings.append(f"gradient of {who}: {self._named(i, inputs)}")
                return False, (
                    f"along a random direction of {who} the derivative is {found.value:.8g}, and "
                    f"the gradient says {claimed:.8g}"
                )
        if kinks == _TRIES:
            return None, f"not run: the function is not smooth in {who} at {_TRIES} random points"
        return True, ""

    def _named(self, i: int, inputs: list[np.ndarray]) -> str:
        """What is wrong with a gradient, beside the one that the function's own operations have."""
        weights = self.weights(inputs)
        mine = np.asarray(self._probe.raw_gradients(self.bound, inputs, weights)[i])
        own = self._own(inputs, weights)
        if not np.any(mine):
            return "frozen (zeros)"
        due = own[i]
        if due is None or due.shape != mine.shape:
            return "is not the derivative"
        self._deviations.append(Deviation(f"gradient of {self.names[i]}", "", due, mine))
        factor = float(np.vdot(due, mine) / max(float(np.vdot(due, due)), 1e-300))
        if np.allclose(mine, factor * due, rtol=1e-9, atol=1e-12):
            if np.isclose(factor * inputs[0].shape[0], 1, rtol=1e-9):
                return "the mean over the batch"
            return "sign reversed" if factor == -1 else f"is {factor:.6g} times what is due"
        for name, other in self._alternatives(i, inputs, weights, own):
            if other is not None and other.shape == mine.shape and np.allclose(mine, other):
                return name
        return "is not the derivative"

    def _own(self, inputs: list[np.ndarray], weights: list[np.ndarray]) -> list:
        """The gradients that the function's own operations have."""
        return self._probe.gradients(lambda *t: self.bound.run(list(t)), inputs, weights)

    def _alternatives(self, i: int, inputs, weights, own) -> Iterator[tuple[str, Any]]:
        """Gradients that are right for something else, by name."""
        for j, other in enumerate(own):
            if j != i:
                yield f"is the gradient of {self.names[j]}", other
        if own[i].ndim == 2 and own[i].shape[0] == own[i].shape[1]:
            yield "transposed", own[i].T
        cut = [w.copy() for w in weights]
        for w in cut:
            if w.ndim:
                w[(slice(None),) * (w.ndim > 2) + (-1,)] = 0
        yield "the output's last row sends nothing back", self._own(inputs, cut)[i]
        for k, l in itertools.permutations(range(len(inputs)), 2):
            if inputs[k].shape == inputs[l].shape:
                moved = [inputs[l] if n == k else x for n, x in enumerate(inputs)]
                yield "taken at the wrong operand", self._own(moved, weights)[i]

    def _second_order(self, first_is_right: bool) -> Check:
        name = "second order"
        proves = (
            "The derivative of the gradient, in float64, is that of differences of the gradient; "
            "or it is refused with an error. It is never silently None."
        )
        if not first_is_right:
            return Check(name, None, "not run: the first order was not found right", proves)
        if self.surrogate:
            return Check(name, True, "not compared: the surrogate declares the first", proves)
        inputs = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in self.inputs]
        wanted = self.wanted(inputs)
        weights = self.weights(inputs)
        along = [self.random.standard_normal(x.shape) if i in wanted else 0 * x
                 for i, x in enumerate(inputs)]  # fmt: skip
        try:
            got = self._probe.second_order(self._enforced, inputs, weights, along)
        except UnsupportedError as refused:
            return Check(name, True, f"refused, as it must be: {refused}", proves)
        except Exception as raised:
            self._findings.append("second order: fails")
            return Check(name, False, f"fails with {type(raised).__name__}: {raised}", proves)

        def first(moved: list[np.ndarray]) -> list[np.ndarray]:
            gradients = self._probe.raw_gradients(self.bound, moved, weights)
            return [np.asarray(gradients[i]) for i in wanted]

        floats = [i for i, x in enumerate(inputs) if x.dtype.kind == "f"]
        for gradient, i in zip(got, floats, strict=False):
            direction: list[Any] = [None] * len(inputs)
            direction[i] = self.random.standard_normal(inputs[i].shape)
            found = numeric.directional(first, inputs, direction, [along[j] for j in wanted])
            claimed = 0.0 if gradient is None else float(np.vdot(gradient, direction[i]))
            if numeric.is_smooth(found) and not numeric.agrees(claimed, found):
                self._findings.append("second order: wrong")
                return Check(name, False, (
                    f"along a random direction of {self.names[i]} the gradient changes by "
                    f"{found.value:.8g}, and its derivative says {claimed:.8g}"
                ), proves)  # fmt: skip
        return Check(name, True, f"equal for {len(floats)} inputs", proves)

    def _enforced(self, *tensors: Any) -> Any:
        """The op itself, its contract in force."""
        return backend().custom_op(self.bound.with_tensors(tensors))


def _broadcasts(g: np.ndarray, x: np.ndarray) -> bool:
    try:
        return np.broadcast_shapes(g.shape, x.shape) == x.shape
    except ValueError:
        return False
