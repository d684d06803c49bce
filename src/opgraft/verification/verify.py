"""`verify`: the one question, whatever is asked about."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from opgraft import ops
from opgraft.arithmetic import Arithmetic
from opgraft.backends import backend
from opgraft.custom_op import CustomOp
from opgraft.errors import ArgumentError
from opgraft.products import CFunction, Product
from opgraft.verification import contract
from opgraft.verification.arithmetics import Options, Parts, verify_arithmetic
from opgraft.verification.cases import CASES, like
from opgraft.verification.findings import Check, Report, Verdict
from opgraft.verification.functions import CustomOpChecks
from opgraft.verification.raw import size


def verify(
    target: Any,
    inputs: Any = None,
    *,
    limit: float | None = None,
    multiply: Callable[[Any, Any], Any] | None = None,
    surrogate: Callable[..., Any] | None = None,
    large: bool = False,
    time_limit: float = 10.0,
    memory_limit: int = 4 << 30,
) -> Report:
    """Say whether a kernel and its gradient are right, and what is wrong with them.

    Three verdicts that are never mixed: `report.forward` (does it compute what it claims?),
    `report.gradient` (is the gradient that of the declared reference?), `report.contract`
    (does it touch only what it may, come back, repeat itself, work in graphs and threads, and
    survive a file?). C functions run in a process of their own first, so that a crash, an
    endless loop or a memory leak is a line in the report.

    Args:
        target: an `og.Arithmetic` (`og.c_function(...)`); an operation, as a function of
            tensors or a Keras operation; a Keras layer or model; an `og.custom_op`.
        inputs: for all but an arithmetic, the input or a list of inputs to try it on,
            as arrays. A model that knows its input shape needs none.
        limit: the largest forward error that is allowed, in units of the sum of the
            absolute terms (0.01: each product may be off by one percent). None: only
            rounding is allowed.
        multiply: the product of two numbers that the arithmetic claims to compute; None
            is the exact one.
        surrogate: for a step function, the function of the same inputs whose gradient the
            gradient claims to be.
        large: also try operands of more than 2^31 elements, which may take minutes.
        time_limit: seconds that one call of a C function may take.
        memory_limit: bytes that it may take.

    Returns:
        A report. It never raises for what the target does wrong.

    Raises:
        ArgumentError: there is nothing to verify, inputs are missing, or an option is no
            number it can be.
    """
    started = time.monotonic()
    options = Options(_limit(limit), multiply, surrogate, bool(large),
                      _positive("time_limit", time_limit),
                      int(_positive("memory_limit", memory_limit)))  # fmt: skip
    name, parts = _examined(target, inputs, options)
    return Report(
        name,
        Verdict("forward", tuple(parts.forward)),
        Verdict("gradient", tuple(parts.gradient)),
        Verdict("contract", tuple(parts.contract)),
        tuple(dict.fromkeys(parts.findings)),
        parts.metrics,
        tuple(parts.deviations),
        time.monotonic() - started,
    )


def _limit(limit: Any) -> float | None:
    if limit is None:
        return None
    number = _number("limit", limit)
    if not number >= 0:
        raise ArgumentError(f"verify(limit={limit!r}): it must be 0 or more, or None")
    return number


def _positive(name: str, value: Any) -> float:
    number = _number(name, value)
    if not 0 < number < float("inf"):
        raise ArgumentError(f"verify({name}={value!r}): it must be a number above 0")
    return number


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"verify({name}={value!r}): it must be a number") from None


def _examined(target: Any, inputs: Any, options: Options) -> tuple[str, Parts]:
    """What is verified, in words, and what was found."""
    if isinstance(target, Product):
        target = Arithmetic(product=target)
    if isinstance(target, Arithmetic):
        if inputs is not None:
            raise ArgumentError(
                "verify(arithmetic, inputs): an arithmetic is tried on a table of cases; give a "
                "layer, or a function of tensors, to try it on inputs of yours"
            )
        return _described(target), verify_arithmetic(target, options)
    if isinstance(target, ops.Contract):
        cases = like(target.contraction)
        return _described(target.arithmetic), verify_arithmetic(target.arithmetic, options, cases)
    if isinstance(target, CustomOp):
        return f"custom op {target}", _custom_op(target, _arguments(target, inputs), options)
    if isinstance(target, keras.Layer):
        arrays = _layer_inputs(target, inputs)
        kind = "model" if isinstance(target, keras.Model) else "layer"
        return f"{kind} '{target.name}'", _layer(target, arrays, options)
    if callable(target):
        arrays = _arrays(inputs, "function")
        return f"function {getattr(target, '__qualname__', target)!s}", _function(
            target, arrays, options
        )
    raise ArgumentError(
        f"verify({target!r}): give an og.Arithmetic, a custom op, a Keras layer or model, or a "
        "function of tensors"
    )


def _described(arithmetic: Arithmetic) -> str:
    if isinstance(arithmetic.product, CFunction):
        return " | ".join(
            f"{s.symbol} of {s.library or 'this process'}" for s in arithmetic.product.symbols
        )
    return repr(arithmetic.product)


# ---- inputs --------------------------------------------------------------------------------


def _arrays(inputs: Any, kind: str) -> list[np.ndarray]:
    if inputs is None:
        raise ArgumentError(
            f"verify({kind}) needs inputs to try it on: og.verify(target, array), or a list of "
            "arrays for several inputs"
        )
    given = inputs if isinstance(inputs, list | tuple) else [inputs]
    return [np.asarray(x) for x in given]


def _arguments(op: CustomOp, inputs: Any) -> Any:
    """The call of a custom op: positional arguments in a list, or by name in a mapping."""
    if isinstance(inputs, dict):
        return op.bind((), {name: _as_array(x) for name, x in inputs.items()})
    if inputs is None:
        _arrays(None, "custom_op")
    given = inputs if isinstance(inputs, list | tuple) else [inputs]
    return op.bind(tuple(map(_as_array, given)), {})


def _as_array(value: Any) -> Any:
    return np.asarray(value) if hasattr(value, "dtype") else value


def _layer_inputs(layer: keras.Layer, inputs: Any) -> list[np.ndarray]:
    if inputs is not None:
        return _arrays(inputs, "layer")
    known = getattr(layer, "inputs", None)
    if not known:
        return _arrays(None, "layer")
    draw = np.random.default_rng(0)
    found = []
    for tensor in known:
        shape = [
            3 if size is None and axis == 0 else size for axis, size in enumerate(tensor.shape)
        ]
        if None in shape:
            raise ArgumentError(
                f"verify(model): its input has the shape {tuple(tensor.shape)}; give inputs, "
                "since only the batch size can be chosen here"
            )
        found.append(_random(draw, shape, keras.backend.standardize_dtype(tensor.dtype)))
    return found


def _random(draw: np.random.Generator, shape: Sequence[Any], dtype: str) -> np.ndarray:
    if "int" in dtype:
        return draw.integers(0, 2, shape).astype(dtype)
    return draw.standard_normal(shape).astype(dtype)


# ---- custom ops, functions, layers, models -------------------------------------------------------


def _custom_op(op: CustomOp, bound: Any, options: Options) -> Parts:
    inputs = [np.asarray(x) for x in bound.tensors.values()]

    def call(*tensors: Any) -> Any:
        return backend().custom_op(bound.with_tensors(tensors))

    parts = _inside(call, inputs, options)
    parts.add_gradient(CustomOpChecks(op, bound, inputs, options.surrogate).run())
    return parts


def _function(function: Callable, inputs: list[np.ndarray], options: Options) -> Parts:
    parts = _inside(function, inputs, options)
    parts.gradient.append(_reaches_inputs(function, inputs))
    return parts


def _layer(layer: keras.Layer, inputs: list[np.ndarray], options: Options) -> Parts:
    def call(*tensors: Any) -> Any:
        return layer(list(tensors) if len(tensors) > 1 else tensors[0])

    parts = _inside(call, inputs, options, saves=False)
    parts.contract.append(_partial_batch(call, inputs))
    model = layer if isinstance(layer, keras.Model) else _as_model(layer, inputs)
    given = inputs if len(inputs) > 1 else inputs[0]
    parts.contract.append(
        contract.guarded(
            "saved and loaded", contract.SAVED, lambda: contract.saved_model(model, given)
        )
    )
    parts.gradient.append(_reaches_weights(layer, call, inputs))
    return parts


def _as_model(layer: keras.Layer, inputs: list[np.ndarray]) -> keras.Model:
    tensors = [keras.Input(x.shape[1:], dtype=x.dtype.name) for x in inputs]
    given = tensors if len(tensors) > 1 else tensors[0]
    return keras.Model(given, layer(given))


def _inside(
    call: Callable, inputs: list[np.ndarray], options: Options, saves: bool = True
) -> Parts:
    """The arithmetics that a function uses, each verified; then the function as a whole."""
    parts = Parts()
    try:
        with ops.recorded() as uses:
            backend().probe.trace(call, inputs)
    except Exception as raised:
        parts.contract.append(Check("runs", False, f"{type(raised).__name__}: {raised}"))
        parts.forward.append(Check("runs", None, "not run: it cannot be called"))
        return parts
    cases: dict[Arithmetic, list] = {}
    for use in uses:
        cases.setdefault(use.arithmetic, []).extend(like(use.contraction, use.left, use.right))
    for number, (arithmetic, own) in enumerate(cases.items(), 1):
        prefix = f"{number}. " if len(cases) > 1 else ""
        table = sorted(dict.fromkeys(own), key=size)
        parts.add(verify_arithmetic(arithmetic, options, table, alone=False), prefix)
    safe = all(check.passed is not None for check in parts.contract)
    if not safe:
        return parts
    parts.forward.append(_finite(call, inputs))
    parts.contract += contract.function_checks(call, inputs)
    if saves:
        parts.contract.append(
            contract.guarded(
                "exported and loaded", contract.SAVED, lambda: contract.saved_function(call, inputs)
            )
        )
    return parts


def _finite(call: Callable, inputs: list[np.ndarray]) -> Check:
    name = "finite"
    proves = "On these inputs no output is NaN or infinite. It says nothing about their values."

    def run() -> tuple[bool, str]:
        outputs = backend().probe.outputs(call, inputs)
        floats = [y.astype(np.float64) for y in outputs if y.dtype.kind in "fV"]
        bad = sum(int(np.sum(~np.isfinite(y))) for y in floats)
        return not bad, f"{bad} NaN or infinite elements" if bad else f"{len(outputs)} outputs"

    return contract.guarded(name, proves, run)


def _partial_batch(call: Callable, inputs: list[np.ndarray]) -> Check:
    proves = "The first example alone gives what it gives in the batch, to rounding."

    def run() -> tuple[bool, str]:
        probe = backend().probe
        whole = probe.outputs(call, inputs)
        alone = probe.outputs(call, [x[:1] for x in inputs])
        same = all(np.allclose(a[:1], b, rtol=1e-4, atol=1e-5)
                   for a, b in zip(whole, alone, strict=True))  # fmt: skip
        return same, "the same" if same else "the first example alone gives another output"

    return contract.guarded("partial batch", proves, run)


def _reaches_inputs(function: Callable, inputs: list[np.ndarray]) -> Check:
    name = "every input has a gradient"
    proves = (
        "No floating input is cut off from the output, and every gradient is finite. The values "
        "of the contractions' gradients are judged one by one above."
    )

    def run() -> tuple[bool, str]:
        probe = backend().probe
        outputs = [y for y in probe.outputs(function, inputs) if y.dtype.kind in "fV"]
        found = probe.gradients(function, inputs, [np.ones_like(y) for y in outputs])
        for i, (x, g) in enumerate(zip(inputs, found, strict=True)):
            if x.dtype.kind == "f" and (g is None or not np.all(np.isfinite(g))):
                return False, f"input {i} has {'no' if g is None else 'a non-finite'} gradient"
        return True, f"{len(inputs)} inputs"

    return contract.guarded(name, proves, run)


def _reaches_weights(layer: keras.Layer, call: Callable, inputs: list[np.ndarray]) -> Check:
    name = "every weight has a gradient"
    proves = (
        "No trainable weight is frozen by accident, and every gradient is finite. The values of "
        "the contractions' gradients are judged one by one above."
    )

    def run() -> tuple[bool, str]:
        found = backend().probe.weight_gradients(call, inputs, layer.trainable_weights)
        for weight, g in zip(layer.trainable_weights, found, strict=True):
            if g is None or not np.all(np.isfinite(g)):
                return False, f"{weight.path} has {'no' if g is None else 'a non-finite'} gradient"
        return True, f"{len(found)} weights"

    return contract.guarded(name, proves, run)


__all__ = ["CASES", "verify"]
