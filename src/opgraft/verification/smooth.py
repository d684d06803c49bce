"""The gradient of a custom op against differences of its function, first and second order."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from opgraft import recording
from opgraft.backends import backend
from opgraft.calls import Bound
from opgraft.errors import DtypeError, UnsupportedError
from opgraft.verification import numeric
from opgraft.verification.findings import Check, Deviation
from opgraft.verification.messages import told

_TRIES = 3  # random points near the inputs
_TINY = 1e-3
_DECLARE = "declare the function whose gradient it is, og.verify(..., surrogate=...)"


def is_float(x: np.ndarray) -> bool:
    return x.dtype.kind == "f" or x.dtype.name == "bfloat16"


class Smooth:
    """Directional derivatives of one op near given inputs.

    Its function is differentiated as declared: contractions under an arithmetic are
    computed exactly, since that is whose gradient they have.
    """

    def __init__(self, bound: Bound, inputs: list[np.ndarray]) -> None:
        self.bound, self.given = bound, inputs
        self.names = list(bound.tensors)
        self.random = np.random.default_rng(len(inputs))
        self.findings: list[str] = []
        self.deviations: list[Deviation] = []
        self._probe = backend().probe
        self._precision = numeric.DOUBLE

    # ---- points and values ---------------------------------------------------------------

    def wanted(self) -> list[int]:
        return [i for i, x in enumerate(self.given)
                if is_float(x) and self.bound.differentiable(self.names[i])]  # fmt: skip

    def near(self) -> list[np.ndarray]:
        """A random point near the inputs: signs kept, zeros moved off the kink they may be."""
        return [self._near(x) if is_float(x) else x for x in self.given]

    def _near(self, x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        size = float(np.sqrt(np.mean(x**2))) if x.size and np.any(x) else 1.0
        draw = self.random.standard_normal
        moved = np.where(x == 0, 0.1 * size * draw(x.shape), x * (1 + 0.1 * draw(x.shape)))
        return moved.astype(self._precision.vjp_dtype).astype(self._precision.dtype)

    def direction(self, i: int, inputs: list[np.ndarray]) -> list[Any]:
        """Along input i, each element in proportion to its size, so that it keeps its sign.

        Where all are tiny and the function hardly sees such a change, as exp does not near 0,
        in proportion to 1.
        """
        draw, sizes = self.random.standard_normal(inputs[i].shape), abs(inputs[i])
        along: list[Any] = [None] * len(inputs)
        along[i] = draw * sizes
        if np.max(sizes, initial=0) < _TINY and not numeric.moves(self.outputs, inputs, along):
            along[i] = draw
        return along

    def outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The floating outputs, contractions computed exactly."""
        with recording.exactly():
            found = self._probe.outputs(lambda *t: self.bound.run(list(t)), list(inputs))
        return [y for y in found if is_float(y)]

    def weights(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        draw = self.random.standard_normal
        return [draw(y.shape).astype(self._precision.vjp_dtype).astype(y.dtype)
                for y in self.outputs(inputs)]  # fmt: skip

    def gradients(self, inputs: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> list:
        """What the vjp returns, in float64; it is given numbers of the type that it follows."""
        dtype = self._precision.vjp_dtype
        given, along = ([x.astype(dtype) if is_float(x) else x for x in each]
                        for each in (inputs, weights))  # fmt: skip
        with recording.exactly():
            found = self._probe.raw_gradients(self.bound, given, along)
        return [None if g is None else g.astype(np.float64) for g in found]

    # ---- first order -----------------------------------------------------------------------

    def first_order(self) -> Check:
        name = "directional derivatives"
        try:
            passed, message = self._first_order()
        except Exception as raised:
            passed, message = None, f"not run: the function fails near the inputs: {told(raised)}"
        proves = (
            "Near the inputs, along random directions of each, the gradient is the derivative to "
            f"{self._precision.said}. It says nothing about points that were not tried."
        )
        return Check(name, passed, message, proves)

    def _first_order(self) -> tuple[bool | None, str]:
        if any(x.dtype.kind == "c" for x in self.given):
            return None, "not run: complex inputs are not judged"
        wanted = self.wanted()
        self._precision = self._found_precision(wanted)
        if not wanted or not self.outputs(self.near()):
            return True, "nothing flows back: no floating input or output has a gradient"
        for i in wanted:
            passed, message = self._along(i)
            if not passed:
                return passed, message
        return True, f"equal for {', '.join(self.names[i] for i in wanted)}"

    def _found_precision(self, wanted: list[int]) -> numeric.Precision:
        try:
            inputs = self.near()
            finely = any(numeric.computes_in_double(self.outputs, inputs, self.direction(i, inputs))
                         for i in wanted)  # fmt: skip
        except Exception:  # the function takes no float64
            return numeric.SINGLE
        steps = all(numeric.is_step(self.outputs, inputs, self.direction(i, inputs),
                                    numeric.DOUBLE) for i in wanted)  # fmt: skip
        if not finely and not steps:
            return numeric.SINGLE
        try:
            with recording.exactly():
                self._probe.gradients(self._enforced, inputs, self.weights(inputs))
        except Exception:  # its vjp takes none
            return numeric.MIXED
        return numeric.DOUBLE

    def _along(self, i: int) -> tuple[bool | None, str]:
        who, precision = self.names[i], self._precision
        wrong, message, kinks = 0, "", 0
        for _ in range(_TRIES):
            inputs = self.near()
            direction, weights = self.direction(i, inputs), self.weights(inputs)
            gradient = self.gradients(inputs, weights)[i]
            if numeric.is_step(self.outputs, inputs, direction, precision):
                if np.any(gradient):
                    return None, _is_a_step(who)
                continue
            claimed = float(np.vdot(gradient, direction[i].astype(np.float64)))
            found = numeric.directional(self.outputs, inputs, direction, weights, precision)
            if not found.is_smooth:
                kinks += 1
            elif not found.agrees(claimed, precision):
                wrong += 1
                message = (
                    f"along a random direction of {who} the derivative is {found.value:.8g}, and "
                    f"the gradient says {claimed:.8g}"
                )
        if wrong + kinks == _TRIES and wrong:  # one point alone may lie on a kink
            self.findings.append(f"gradient of {who}: {self._named(i)}")
            return False, message
        if kinks == _TRIES:
            return None, (
                f"not run: the function is not smooth in {who} at {_TRIES} random points. If it "
                f"rounds or jumps, {_DECLARE}"
            )
        return True, ""

    # ---- names -----------------------------------------------------------------------------

    def _named(self, i: int) -> str:
        """What is wrong with a gradient, beside the one that the function's own operations have."""
        inputs = self.near()
        weights = self.weights(inputs)
        mine, own = self.gradients(inputs, weights)[i], self._own(inputs, weights)
        if not np.any(mine):
            return "frozen (zeros)"
        due = own[i]
        if due is None or due.shape != mine.shape:
            return "is not the derivative"
        self.deviations.append(Deviation(f"gradient of {self.names[i]}", "", due, mine))
        if found := self._factor(i, mine, due):
            return found
        for name, other in self._alternatives(i, inputs, weights, own):
            if other is not None and other.shape == mine.shape and self._close(mine, other):
                return name
        return "is not the derivative"

    def _close(self, a: np.ndarray, b: np.ndarray) -> bool:
        rounding = 10 * float(np.finfo(self._precision.vjp_dtype).eps)
        tolerance = max(self._precision.tolerance / 100, rounding)
        return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * float(np.max(abs(b)))))

    def _follows_batch(self, i: int) -> bool:
        """Whether the gradient changes with the first size of the inputs."""
        try:
            shorter = Smooth(self.bound, [x[:-1] for x in self.given])
            shorter._precision = self._precision
            inputs = shorter.near()
            weights = shorter.weights(inputs)
            mine, due = (f(inputs, weights)[i] for f in (shorter.gradients, shorter._own))
            factor = float(np.vdot(due, mine) / max(float(np.vdot(due, due)), 1e-300))
        except Exception:  # not every input has the batch first
            return True
        batch = self.given[0].shape[0] - 1
        return bool(np.isclose(factor * batch, 1, rtol=self._precision.tolerance))

    def _factor(self, i: int, mine: np.ndarray, due: np.ndarray) -> str:
        factor = float(np.vdot(due, mine) / max(float(np.vdot(due, due)), 1e-300))
        if not self._close(mine, factor * due) or f"{factor:.6g}" == "1":
            return ""
        told_factor = f"is {factor:.6g} times what is due"
        batch = self.given[0].shape[0] if self.given[0].ndim else 0
        if batch > 1 and np.isclose(factor * batch, 1, rtol=self._precision.tolerance):
            # A constant factor stays what it is where the batch is another.
            return "the mean over the batch" if self._follows_batch(i) else told_factor
        if np.isclose(factor, -1, rtol=self._precision.tolerance):
            return "sign reversed"
        return told_factor

    def _own(self, inputs: list[np.ndarray], weights: list[np.ndarray]) -> list:
        """The gradients that the function's own operations have."""
        with recording.exactly():
            found = self._probe.gradients(lambda *t: self.bound.run(list(t)), inputs, weights)
        return [None if g is None else g.astype(np.float64) for g in found]

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

    # ---- second order ------------------------------------------------------------------------

    def second_order(self) -> Check:
        proves = (
            "The derivative of the gradient is that of differences of the gradient; or it is "
            "refused with an error. It is never silently None."
        )
        if self._precision.vjp_dtype == np.float32:
            self._precision = numeric.SINGLE
        try:
            try:
                passed, message = self._second_order()
            except DtypeError:  # the vjp follows float64 only where it is not differentiated
                self._precision = numeric.SINGLE
                passed, message = self._second_order()
        except UnsupportedError as refused:
            passed, message = True, f"refused, as it must be: {told(refused)}"
        except Exception as raised:
            self.findings.append("second order: fails")
            passed, message = False, f"fails with {told(raised)}"
        return Check("second order", passed, message, proves)

    def _second_order(self) -> tuple[bool, str]:
        wanted, precision = self.wanted(), self._precision
        inputs = self.near()
        weights = self.weights(inputs)
        if not wanted or not weights:
            return True, "nothing flows back"
        along = [self.random.standard_normal(x.shape) if i in wanted else 0 * x
                 for i, x in enumerate(inputs)]  # fmt: skip
        with recording.exactly():
            got = self._probe.second_order(self._enforced, inputs, weights, along)

        def first(point: list[np.ndarray]) -> list[np.ndarray]:
            found = self.gradients(point, weights)
            return [np.asarray(found[i]) for i in wanted]

        floats = [i for i, x in enumerate(inputs) if is_float(x)]
        for gradient, i in zip(got, floats, strict=False):
            direction = self.direction(i, inputs)
            found = numeric.directional(
                first, inputs, direction, [along[j] for j in wanted], precision
            )
            along_it = direction[i].astype(np.float64)
            claimed = 0.0 if gradient is None else float(np.vdot(gradient, along_it))
            if found.is_smooth and not found.agrees(claimed, precision):
                self.findings.append("second order: wrong")
                return False, (
                    f"along a random direction of {self.names[i]} the gradient changes by "
                    f"{found.value:.8g}, and its derivative says {claimed:.8g}"
                )
        return True, f"equal for {', '.join(self.names[i] for i in floats)}"

    def _enforced(self, *tensors: Any) -> Any:
        """The op itself, its contract in force."""
        return backend().custom_op(self.bound.with_tensors(tensors))


def _is_a_step(who: str) -> str:
    return (
        f"not run: for small changes of {who} the function stays as it is, a step function, whose "
        f"gradient no difference can judge: {_DECLARE}"
    )
