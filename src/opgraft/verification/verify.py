"""`verify`: the one question, whatever is asked about."""

import numbers
import os
import reprlib
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from opgraft import functions, ops
from opgraft.arithmetic import Arithmetic
from opgraft.backends import backend
from opgraft.custom_op import CustomOp
from opgraft.errors import ArgumentError
from opgraft.products import CFunction, Product, PythonFunction
from opgraft.verification import targets
from opgraft.verification.arithmetics import verify_arithmetic
from opgraft.verification.cases import like
from opgraft.verification.findings import Report, Verdict
from opgraft.verification.messages import told
from opgraft.verification.parts import Options, Parts


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
    if backend().is_tracing():
        raise ArgumentError("og.verify runs its target; call it outside of tf.function")
    started = time.monotonic()
    if surrogate is not None and not callable(surrogate):
        raise ArgumentError(f"verify(surrogate={surrogate!r}): it must be a function of the inputs")
    seconds, size = _positive("time_limit", time_limit), _positive("memory_limit", memory_limit)
    options = Options(
        _limit(limit), _product(multiply), surrogate, _flag("large", large), seconds,
        max(int(size), 1 << 20),
    )  # fmt: skip
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
    if not 0 <= number < float("inf"):
        raise ArgumentError(f"verify(limit={limit!r}): it must be a number of at least 0, or None")
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"verify({name}={value!r}): it must be True or False")
    return value


def _product(multiply: Any) -> Callable | None:
    """`multiply`, which must give a number for two numbers."""
    if multiply is None:
        return None
    try:
        try:
            found = float(np.asarray(multiply(np.float32(2), np.float32(3))))
        except Exception:  # a look-up in a table takes whole numbers
            found = float(np.asarray(multiply(2, 3)))
    except Exception as raised:
        raise ArgumentError(
            f"verify(multiply=...): it must be a function of two numbers that gives a number, and "
            f"for 2 and 3 it fails with {told(raised)}"
        ) from None
    if np.isnan(found):
        raise ArgumentError("verify(multiply=...): for 2 and 3 it gives NaN")
    return multiply


def _positive(name: str, value: Any) -> float:
    number = _number(name, value)
    if not 0 < number < float("inf"):
        raise ArgumentError(f"verify({name}={value!r}): it must be a number above 0")
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentError(f"verify({name}={value!r}): it must be a number")
    return float(value)


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
        return f"custom op {target}", targets.custom_op(target, _arguments(target, inputs), options)
    if isinstance(target, keras.Layer):
        arrays = _layer_inputs(target, inputs)
        kind = "model" if isinstance(target, keras.Model) else "layer"
        return f"{kind} '{target.name}'", targets.layer(target, arrays, options)
    if isinstance(target, str | os.PathLike):
        raise ArgumentError(
            f"verify({target!r}): this is a path; give og.c_function({target!r}), or use the "
            "command `opgraft verify`"
        )
    if isinstance(target, type):
        raise ArgumentError(
            f"verify({target.__name__}): this is a class; give an instance of it, such as a layer"
        )
    if callable(target):
        arrays = _arrays(inputs, "function")
        return f"function {functions.describe(target)}", targets.function(target, arrays, options)
    raise ArgumentError(
        f"verify({reprlib.repr(target)}): give an og.Arithmetic, a custom op, a Keras layer or "
        "model, or a function of tensors"
    )


def _described(arithmetic: Arithmetic) -> str:
    if isinstance(arithmetic.product, CFunction):
        return " | ".join(
            f"{s.symbol} of {s.library or 'this process'}" for s in arithmetic.product.symbols
        )
    if isinstance(arithmetic.product, PythonFunction):
        return f"Python function {functions.describe(arithmetic.product.function)}"
    return repr(arithmetic.product)


# ---- inputs --------------------------------------------------------------------------------


def _arrays(inputs: Any, kind: str) -> list[np.ndarray]:
    if inputs is None:
        raise ArgumentError(
            f"verify({kind}) needs inputs to try it on: og.verify(target, array), or a list of "
            "arrays for several inputs"
        )
    given = inputs if isinstance(inputs, list | tuple) else [inputs]
    if not given or not all(hasattr(x, "dtype") and hasattr(x, "shape") for x in given):
        raise ArgumentError(
            f"verify({kind}, inputs={reprlib.repr(inputs)}): give an array, or a list of arrays "
            "for several inputs (np.asarray makes one of a list of numbers)"
        )
    return [_as_array(x) for x in given]


def _arguments(op: CustomOp, inputs: Any) -> Any:
    """The call of a custom op: positional arguments in a list, or by name in a mapping."""
    if isinstance(inputs, dict):
        return op.bind((), {name: _as_array(x) for name, x in inputs.items()})
    if inputs is None:
        _arrays(None, "custom_op")
    given = inputs if isinstance(inputs, list | tuple) else [inputs]
    return op.bind(tuple(map(_as_array, given)), {})


def _as_array(value: Any) -> Any:
    if isinstance(value, keras.KerasTensor):
        raise ArgumentError(
            f"verify(inputs={reprlib.repr(value)}): a KerasTensor holds no numbers; give an array "
            "of its shape"
        )
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
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        if dtype == "string":
            raise ArgumentError("verify(model): it takes strings; give inputs to try it on")
        found.append(targets.random_array(draw, shape, dtype))
    return found
