"""`custom_op`: any function of tensors as an operation whose gradient is yours."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import keras

from opgraft import calls, functions, recording
from opgraft.backends import backend, opaque
from opgraft.errors import ArgumentError, UnsupportedError


class CustomOp(calls.Function):
    """A function of tensors with a gradient of its own. Made by `custom_op`.

    Attributes:
        function, vjp: the two functions.
        non_differentiable: names of parameters that have no gradient.
        check_finite: whether a NaN or an infinity in a gradient is an error.
    """

    def __reduce__(self) -> str:
        """Pickled and copied by its name, as the function is that it decorates."""
        return self.__qualname__  # type: ignore[attr-defined]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method, the instance is the first argument, which the vjp need not take."""
        if instance is None:
            return self
        method = object.__new__(type(self))
        method.__dict__.update(self.__dict__)
        method.implicit = frozenset(list(self.signature.parameters)[:1])
        return functools.partial(method, instance)

    @opaque
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        bound = self.bind(args, keywords)
        if any(isinstance(value, keras.KerasTensor) for value in bound.tensors.values()):
            return Call(self).symbolic_call(*args, **keywords)
        recording.note(bound)
        return backend().custom_op(bound)


def custom_op(
    function: Callable | None = None,
    *,
    vjp: Callable[..., Any],
    non_differentiable: Iterable[str] = (),
    check_finite: bool = False,
) -> Any:
    """Decorate a function of tensors: its value is the function's, its gradient your `vjp`'s.

        @og.custom_op(vjp=my_vjp)
        def my_op(A, W):
            return keras.ops.matmul(A, W)

    It works eagerly and in graphs, under XLA where its function does, on KerasTensors
    and in layers, with keyword arguments and with variables as arguments, and its
    gradient is saved in SavedModels.

    Args:
        function: the function, where it is not decorated: `og.custom_op(f, vjp=...)`.
        vjp: `vjp(inputs, output, upstream)` returns the vector-Jacobian product: one
            gradient per input, each of the shape and dtype of its input. `inputs` is a
            named tuple of the tensors (`inputs.A`), in the order of the signature;
            `output` is what the function returned; `upstream` is dL/d(output), of the
            same structure (zeros for a floating output that nobody uses, None for an
            integer one). For one input, the gradient alone may be returned. Arguments
            that are no tensors are options: `vjp` gets them by keyword.
        non_differentiable: names of inputs for which `vjp` returns None. Integer inputs
            need not be named.
        check_finite: fail where a gradient has a NaN or an infinity.

    Every tensor that matters must be an argument: a tensor or a trainable variable that
    the function captures would never get a gradient, and is an error.

    Raises:
        ArgumentError: `vjp` is no function of three arguments, or a name is unknown.
            When called: a captured tensor or variable; not one gradient per input;
            None, or a gradient of another shape.
        DtypeError: a gradient has another dtype than its input.
        UnsupportedError: a second derivative is asked for that `vjp` cannot give,
            because it leaves TensorFlow.
    """
    functions.check_vjp(vjp)
    if isinstance(non_differentiable, str):
        non_differentiable = (non_differentiable,)

    def decorate(decorated: Callable) -> CustomOp:
        if not callable(decorated):
            raise ArgumentError(f"custom_op decorates a function, not {decorated!r}")
        return CustomOp(decorated, vjp, non_differentiable, bool(check_finite))

    return decorate if function is None else decorate(function)


@keras.saving.register_keras_serializable("opgraft")
class Call(keras.Operation):
    """A call of a custom op as a Keras operation, for Functional models."""

    def __init__(self, op: CustomOp, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.op = op

    def call(self, *args: Any, **keywords: Any) -> Any:
        return self.op(*args, **keywords)

    def get_config(self) -> dict[str, Any]:
        try:
            return {"op": functions.registered_name(self.op, "the custom op")}
        except UnsupportedError as error:
            raise UnsupportedError(f"{error}, above @og.custom_op") from None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Call":
        config = dict(config)
        return cls(functions.registered(config.pop("op")), **config)
