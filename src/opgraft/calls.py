"""A function with a gradient of its own, and the arguments of one call of it."""

import collections
import copy
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from opgraft import functions
from opgraft.backends import backend
from opgraft.errors import ArgumentError


class Function:
    """A function of tensors with a gradient of its own.

    Attributes:
        function, vjp: the two functions.
        non_differentiable: names of parameters that have no gradient.
        check_finite: whether a NaN or an infinity in a gradient is an error.
        implicit: names of options that the vjp need not take.
    """

    implicit: frozenset[str] = frozenset()

    def __init__(self, function: Callable, vjp: Callable, non_differentiable: Iterable[str],
                 check_finite: bool) -> None:  # fmt: skip
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self.function, self.vjp, self.check_finite = function, vjp, check_finite
        self.signature = inspect.signature(function)
        self.non_differentiable = frozenset(non_differentiable)
        for name in sorted(self.non_differentiable - set(self.signature.parameters)):
            raise ArgumentError(
                f"non_differentiable names '{name}', which is no parameter of {self}; it has: "
                f"{', '.join(self.signature.parameters)}"
            )

    def __str__(self) -> str:
        return functions.describe(self.function)

    def bind(self, args: tuple, keywords: dict[str, Any]) -> "Bound":
        """The arguments of one call, by parameter.

        Raises:
            ArgumentError: they do not fit the signature; a parameter holds several
                tensors; no tensor is given; the vjp does not take an option.
        """
        try:
            arguments = self.signature.bind(*args, **keywords)
        except TypeError as error:
            raise ArgumentError(f"{self}{self.signature}: {error}") from None
        arguments.apply_defaults()
        bound = Bound(self, arguments)
        if not bound.tensors:
            raise ArgumentError(
                f"{self} was called without a tensor; give its inputs as tensors or arrays "
                f"({', '.join(self.signature.parameters)})"
            )
        return bound


_SLOT = object()


class Bound:
    """The arguments of one call: tensors, which have gradients, and options, which have none.

    Attributes:
        op: the operation.
        tensors: by the name that messages use, such as "A" or "parts[1]".
        options: everything else, by parameter.
    """

    def __init__(self, op: Function, arguments: inspect.BoundArguments) -> None:
        self.op = op
        self.tensors: dict[str, Any] = {}
        self.options: dict[str, Any] = {}
        self._template: dict[str, Any] = {}  # by parameter; a slot where a tensor stands
        for name, value in arguments.arguments.items():
            kind = op.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                self._template[name] = tuple(
                    self._take(f"{name}[{i}]", entry) for i, entry in enumerate(value)
                )
            elif kind is inspect.Parameter.VAR_KEYWORD:
                self._template[name] = {k: self._take(k, entry) for k, entry in value.items()}
            else:
                default = op.signature.parameters[name].default
                self._template[name] = self._take(name, value, default)

    def _take(self, name: str, value: Any, default: Any = inspect.Parameter.empty) -> Any:
        """Sort one argument; a slot in the place of a tensor."""
        if is_tensor(value):
            self.tensors[name] = value
            return _SLOT
        entries = value.values() if isinstance(value, dict) else value
        if isinstance(value, list | tuple | dict) and any(map(is_tensor, entries)):
            raise ArgumentError(
                f"{self.op}: '{name}' is a {type(value).__name__} of tensors; give each tensor a "
                f"parameter of its own, or write *{name} in the signature"
            )
        if name not in self.op.implicit and value is not default and value != default:
            self._check_option(name, value)
        self.options[name] = value
        return value

    def _check_option(self, name: str, value: Any) -> None:
        if not functions.takes_keyword(self.op.vjp, name):
            raise ArgumentError(
                f"{self.op} was called with {name}={value!r}, which is no tensor, and its vjp "
                f"{functions.describe(self.op.vjp)} has no parameter '{name}' to know of it. Give "
                f"a tensor or an array, or write vjp(inputs, output, upstream, *, {name})"
            )

    def with_tensors(self, tensors: Iterable[Any]) -> "Bound":
        """The same call with other tensors."""
        other = copy.copy(self)
        other.tensors = dict(zip(self.tensors, tensors, strict=True))
        return other

    def without_tensors(self) -> "Bound":
        """The same call, keeping no tensor alive."""
        return self.with_tensors([None] * len(self.tensors))

    def differentiable(self, name: str) -> bool:
        """Whether the input of this name may have a gradient."""
        return name.split("[")[0] not in self.op.non_differentiable

    def run(self, tensors: list) -> Any:
        """The function, with these tensors in the place of those that were given."""
        rest = iter(tensors)

        def filled(value: Any) -> Any:
            return next(rest) if value is _SLOT else value

        arguments: dict[str, Any] = {}
        for name, value in self._template.items():
            kind = self.op.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                arguments[name] = tuple(map(filled, value))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                arguments[name] = {key: filled(entry) for key, entry in value.items()}
            else:
                arguments[name] = filled(value)
        call = inspect.BoundArguments(self.op.signature, arguments)
        return self.op.function(*call.args, **call.kwargs)

    def gradients(self, inputs: list, output: Any, upstream: Any) -> Any:
        """What the vjp returns for these inputs."""
        options = {name: value for name, value in self.options.items()
                   if functions.takes_keyword(self.op.vjp, name)}  # fmt: skip
        return self.op.vjp(_inputs_type(tuple(self.tensors))(*inputs), output, upstream, **options)


@functools.cache
def _inputs_type(names: tuple[str, ...]) -> type:
    """A named tuple; `parts[1]` is its field `parts_1`."""
    fields = [name.replace("[", "_").replace("]", "") for name in names]
    return collections.namedtuple("Inputs", fields, rename=True)


def is_tensor(value: Any) -> bool:
    """Whether an argument is a tensor, a variable, an array or a KerasTensor."""
    if isinstance(value, np.ndarray | np.generic):
        return value.ndim > 0 or value.dtype.kind not in "iub"  # a whole number is an option
    if isinstance(value, keras.KerasTensor | keras.Variable):
        return True
    return keras.ops.is_tensor(value) or backend().is_variable(value)
