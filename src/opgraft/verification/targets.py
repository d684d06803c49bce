"""Verifying what arithmetics are used in: functions of tensors, custom ops, layers, models.

First every arithmetic that is used, on small cases and on the user's own sizes; then, if all
of that is safe to call here, the thing as a whole.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from opgraft import functions, ops, recording
from opgraft.backends import backend
from opgraft.calls import Bound
from opgraft.custom_op import CustomOp
from opgraft.verification import contract
from opgraft.verification.arithmetics import verify_arithmetic
from opgraft.verification.cases import Case, like
from opgraft.verification.findings import Check
from opgraft.verification.functions import CustomOpChecks
from opgraft.verification.messages import told
from opgraft.verification.parts import Options, Parts, named, not_run
from opgraft.verification.raw import size
from opgraft.verification.reloading import Reloading


def custom_op(op: CustomOp, bound: Bound, options: Options) -> Parts:
    inputs = [np.asarray(x) for x in bound.tensors.values()]

    def call(*tensors: Any) -> Any:
        return backend().custom_op(bound.with_tensors(tensors))

    def forward(*tensors: Any) -> Any:
        return bound.run(list(tensors))

    with Reloading.of_function(call, inputs) as reloading:
        parts = _inside([forward], inputs, options, own_ops=True)
        if not parts.safe:
            parts.gradient += not_run("gradient contract", "directional derivatives")
            return parts
        _as_a_whole(parts, call, inputs)
        parts.add_gradient(CustomOpChecks(op, bound, inputs, options.surrogate).run())
        parts.contract.append(reloading.check())
    return parts


def function(call: Callable, inputs: list[np.ndarray], options: Options) -> Parts:
    call = backend().probe.python_function(call)
    with Reloading.of_function(call, inputs) as reloading:
        parts = _inside([call], inputs, options)
        if not parts.safe:
            parts.gradient += not_run(_INPUTS_REACHED)
            return parts
        _as_a_whole(parts, call, inputs)
        parts.gradient.append(_reaches_inputs(call, inputs))
        parts.contract.append(reloading.check())
    return parts


def layer(target: keras.Layer, inputs: list[np.ndarray], options: Options) -> Parts:
    def call(*tensors: Any) -> Any:
        return target(list(tensors) if len(tensors) > 1 else tensors[0])

    def training(*tensors: Any) -> Any:
        return target(list(tensors) if len(tensors) > 1 else tensors[0], training=True)

    def model() -> keras.Model:
        backend().probe.trace(call, inputs)  # builds it: without weights there is nothing to save
        return target if isinstance(target, keras.Model) else _as_model(target, inputs)

    modes = [call, training] if functions.takes_keyword(target.call, "training") else [call]
    with Reloading.of_model(model, inputs) as reloading:
        parts = _inside(modes, inputs, options)
        if not parts.safe:
            parts.gradient += not_run(_WEIGHTS_REACHED)
            return parts
        _as_a_whole(parts, call, inputs, only_batch=True)  # as in Keras, the rest is known
        parts.contract.append(_partial_batch(call, inputs))
        parts.gradient.append(_reaches_weights(target, call, inputs))
        parts.contract.append(reloading.check())
    return parts


def _as_model(target: keras.Layer, inputs: list[np.ndarray]) -> keras.Model:
    tensors = [keras.Input(x.shape[1:], dtype=x.dtype.name) for x in inputs]
    given = tensors if len(tensors) > 1 else tensors[0]
    return keras.Model(given, target(given))


# ---- what is used inside -------------------------------------------------------------------


def _inside(
    calls: Sequence[Callable], inputs: list[np.ndarray], options: Options, *, own_ops: bool = False
) -> Parts:
    """Every arithmetic and custom op that functions use, verified by itself.

    With `own_ops`, it is a custom op whose inside is looked at, and which need not use others.
    """
    parts = Parts()
    try:
        with recording.recorded() as noted:
            ours = [backend().probe.trace(call, inputs) for call in calls]
    except Exception as raised:
        parts.contract.append(Check("runs", False, f"{told(raised)}"))
        why = "not run: the target cannot be called; see the contract"
        parts.forward.append(Check("finite", None, why))
        parts.safe = False
        return parts
    if not noted and not own_ops:
        parts.contract.append(_nothing(any(ours)))
    grouped: dict[Any, list[ops.Use]] = {}
    for use in noted:
        if isinstance(use, ops.Use):
            grouped.setdefault(use.arithmetic, []).append(use)
    for number, (arithmetic, own) in enumerate(grouped.items(), 1):
        prefix = f"{number}. " if len(grouped) > 1 else ""
        small = {case for use in own for case in like(use.contraction, use.left, use.right)}
        found = verify_arithmetic(
            arithmetic, options, sorted(small, key=size), _own_cases(own), alone=False
        )
        parts.add(found, prefix)
    if parts.safe and any(isinstance(entry, Bound) for entry in noted):
        _ops_inside(_called(calls, inputs), parts, options)
    return parts


def _called(calls: Sequence[Callable], inputs: list[np.ndarray]) -> list[Bound]:
    """The calls of custom ops, eagerly: with the values that they are given."""
    with recording.recorded() as noted, contextlib.suppress(Exception):
        for call in calls:  # what it raises is the contract's to say
            backend().probe.outputs(call, inputs)
    return [entry for entry in noted if isinstance(entry, Bound)]


def _nothing(ours: bool) -> Check:
    """That nothing was verified must not look like a pass."""
    name = "uses an arithmetic or a custom op"
    if ours:
        return Check(name, False, (
            "it does, inside a tf.function that was traced before, where it cannot be seen. Give "
            "the Python function, or one that has not been called yet"
        ))  # fmt: skip
    return Check(name, None, "nothing of opgraft is in it, and so nothing was verified")


def _ops_inside(calls: Iterable[Bound], parts: Parts, options: Options) -> None:
    """The custom ops that were called, each once, on what they were given."""
    seen = set()
    for bound in calls:
        prefix = f"{bound.op}: "
        try:
            inputs = [np.asarray(t) for t in bound.tensors.values()]
        except (NotImplementedError, TypeError, ValueError):  # inside a graph it holds no numbers
            why = "not run: it is called in a graph, where its inputs cannot be had"
            parts.gradient.append(Check(f"{prefix}gradient contract", None, why))
            continue
        specs = [(x.shape, x.dtype.name) for x in inputs]
        key = (id(bound.op), repr(bound.options), repr(specs))
        if key in seen:
            continue
        seen.add(key)
        found = CustomOpChecks(bound.op, bound, inputs, options.surrogate).run()
        parts.add_gradient(dataclasses.replace(found, checks=tuple(named(found.checks, prefix))))


def random_array(draw: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Random normal numbers, or zeros and ones for integers."""
    if "float" not in dtype:
        return draw.integers(0, 2, shape).astype(dtype)
    return draw.standard_normal(shape).astype(dtype)


def _own_cases(uses: Iterable[ops.Use]) -> list[Case]:
    """The contractions with the sizes of the user's inputs."""
    shapes = ((u.contraction, u.left, u.right) for u in uses)
    known = {Case(c, left, right) for c, left, right in shapes  # type: ignore[arg-type]
             if left and right and None not in (*left, *right)}  # fmt: skip
    return sorted(known, key=size)


# ---- as a whole ----------------------------------------------------------------------------

_INPUTS_REACHED, _WEIGHTS_REACHED = "every input has a gradient", "every weight has a gradient"


def _as_a_whole(
    parts: Parts, call: Callable, inputs: list[np.ndarray], *, only_batch: bool = False
) -> None:
    parts.forward.append(_finite(call, inputs))
    found = contract.function_checks(call, inputs, only_batch=only_batch)
    parts.contract += named(found, "as a whole: ")


def _finite(call: Callable, inputs: Sequence[np.ndarray]) -> Check:
    proves = "On these inputs no output is NaN or infinite. It says nothing about their values."

    def run() -> tuple[bool, str]:
        outputs = backend().probe.outputs(call, list(inputs))
        floats = [y.astype(np.float64) for y in outputs if y.dtype.kind in "fV"]
        bad = sum(int(np.sum(~np.isfinite(y))) for y in floats)
        if bad:
            return False, f"{bad} elements are NaN or infinite"
        return True, ", ".join(f"{y.dtype} of the shape {y.shape}" for y in outputs)

    return contract.guarded("finite", proves, run)


def _partial_batch(call: Callable, inputs: list[np.ndarray]) -> Check:
    proves = "The first example alone gives what it gives in the batch, to rounding."

    def run() -> tuple[bool, str]:
        probe = backend().probe
        whole = probe.outputs(call, inputs)
        alone = probe.outputs(call, [x[:1] for x in inputs])
        same = all(np.allclose(a[:1], b, rtol=1e-4, atol=1e-5, equal_nan=True)
                   for a, b in zip(whole, alone, strict=True))  # fmt: skip
        return same, "the same" if same else "the first example alone gives another output"

    return contract.guarded("partial batch", proves, run)


def _reaches_inputs(call: Callable, inputs: list[np.ndarray]) -> Check:
    proves = (
        "No floating input is cut off from the output, and every gradient is finite. The values "
        "of the contractions' gradients are judged one by one above."
    )

    def run() -> tuple[bool, str]:
        probe = backend().probe
        outputs = [y for y in probe.outputs(call, inputs) if y.dtype.kind in "fV"]
        found = probe.gradients(call, inputs, [np.ones_like(y) for y in outputs])
        for i, (x, g) in enumerate(zip(inputs, found, strict=True)):
            if x.dtype.kind == "f" and (g is None or not np.all(np.isfinite(g))):
                return False, f"input {i} has {'no' if g is None else 'a non-finite'} gradient"
        return True, f"{len(inputs)} inputs"

    return contract.guarded(_INPUTS_REACHED, proves, run)


def _reaches_weights(target: keras.Layer, call: Callable, inputs: list[np.ndarray]) -> Check:
    proves = (
        "No trainable weight is frozen by accident, and every gradient is finite. The values of "
        "the contractions' gradients are judged one by one above."
    )

    def run() -> tuple[bool, str]:
        weights = target.trainable_weights
        found = backend().probe.weight_gradients(call, inputs, weights)
        for weight, g in zip(weights, found, strict=True):
            if g is None or not np.all(np.isfinite(g)):
                return False, f"{weight.path} has {'no' if g is None else 'a non-finite'} gradient"
        return True, f"{len(found)} weights"

    return contract.guarded(_WEIGHTS_REACHED, proves, run)
