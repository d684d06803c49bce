"""Python functions that users hand in: what they are called, take, and capture."""

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from opgraft.errors import ArgumentError, UnsupportedError


def describe(function: Callable) -> str:
    if isinstance(function, functools.partial):
        return describe(function.func)
    return f"'{getattr(function, '__qualname__', repr(function))}'"


# ---- in files ------------------------------------------------------------------------


def registered_name(function: Callable, what: str) -> str:
    """The name under which Keras finds the function when a file is loaded.

    Raises:
        UnsupportedError: it is not registered, so only a name would be saved.
    """
    import keras

    name = keras.saving.get_registered_name(function)
    if keras.saving.get_registered_object(name) is not function:
        raise UnsupportedError(
            f"{what} {describe(function)} cannot be saved: only its name would be. Decorate it "
            'with @keras.saving.register_keras_serializable("your_package"), so that a new '
            "process finds it"
        )
    return name


def registered(name: str) -> Any:
    """The function that was saved under this name.

    Raises:
        ArgumentError: it is not registered in this process.
    """
    import keras

    found = keras.saving.get_registered_object(name)
    if found is None:
        raise ArgumentError(
            f"the saved model uses the Python function {name!r}, which is not registered in this "
            "process. Import the module that defines it before loading"
        )
    return found


# ---- vector-Jacobian products ----------------------------------------------------------


def check_vjp(vjp: Any) -> None:
    """Raise `ArgumentError` unless it is a function that can take (inputs, output, upstream)."""
    if not callable(vjp):
        raise ArgumentError(
            f"vjp={vjp!r} must be a function vjp(inputs, output, upstream) that returns one "
            "gradient per input"
        )
    try:
        signature = inspect.signature(vjp)
    except (TypeError, ValueError):  # a built-in does not say what it takes
        return
    try:
        signature.bind(None, None, None)
    except TypeError:
        required = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        if len(_positional(signature)) >= 3 and required:
            return  # options of the operation, which it will be given
        raise ArgumentError(
            f"the vjp {describe(vjp)} takes {signature}; it must take three arguments: "
            "vjp(inputs, output, upstream), and options of the operation behind a *"
        ) from None


def _positional(signature: inspect.Signature) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in signature.parameters.values() if p.kind in kinds]


def takes_keyword(function: Callable, name: str) -> bool:
    """Whether the function can be given an argument of this name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(p.kind is p.VAR_KEYWORD or (p.name == name and p.kind in named) for p in parameters)


# ---- what a function captures ------------------------------------------------------------


def captured(function: Any, *, arguments: bool = False) -> Iterator[tuple[str, Any]]:
    """(name, value) of what a function takes from its surroundings: closures and globals.

    With `arguments`, also what a functools.partial gives: it is no parameter to its caller.
    """
    function = inspect.unwrap(function)
    if isinstance(function, functools.partial):
        yield from ((f"argument {i}", value) for i, value in enumerate(function.args))
        if arguments:
            yield from function.keywords.items()
        yield from captured(function.func, arguments=arguments)
        return
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    for name, cell in zip(names, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def defaults(function: Callable) -> Iterator[tuple[str, Any]]:
    """(name, value) of what a function's parameters hold where they are not given."""
    try:
        parameters = inspect.signature(function).parameters.items()
    except (TypeError, ValueError):
        return
    for name, parameter in parameters:
        yield name, parameter.default


@functools.lru_cache(maxsize=4096)
def _global_names(code: types.CodeType) -> frozenset[str]:
    """Names that the code, or a function inside it, loads from its module; not attributes."""
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(own.union(*map(_global_names, inner)))
