"""Grafting a gradient: the value of one computation, the gradient that a rule gives.

`apply` is the one way to do it. The rule lives on the result itself, and so as
long as a tape or a graph may ask for it; no registry grows. In a graph the
operation carries the rule as a function besides, which a SavedModel keeps.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from opgraft.backends.tensorflow import private
from opgraft.backends.tensorflow.library import ops
from opgraft.errors import UnsupportedError

Tensors = list[tf.Tensor]
_ATTRIBUTE = "_opgraft_rule"


@dataclasses.dataclass(frozen=True)
class Rule:
    """What flows back through a graft.

    Attributes:
        name: of the operation, for messages.
        backward: (inputs, outputs, upstreams) -> one gradient or None per input. An
            upstream is None for an output without a gradient.
        saved: the same as a function of the tensors that `saved_arguments` lists, one
            gradient per floating input, or None.
        outputs: how many there are, known when it is applied.
    """

    name: str
    backward: Callable[[Tensors, Tensors, list], list]
    saved: Any = None
    outputs: int = 0


def apply(function: Callable[..., Sequence], rule: Rule, inputs: Tensors) -> Tensors:
    """`function(*inputs)`, a list of tensors, whose gradient is the rule's."""
    return attach(rule, inputs, list(function(*map(tf.stop_gradient, inputs))))


def apply_apart(function: Callable[..., Sequence], rules: Callable[[int], Rule],
                inputs: Tensors) -> Tensors:  # fmt: skip
    """As `apply`, each value by itself with a rule of its own: what nobody asks for is pruned."""
    values = list(function(*map(tf.stop_gradient, inputs)))
    return [attach(rules(i), inputs, [value])[0] for i, value in enumerate(values)]


def attach(rule: Rule, inputs: Tensors, values: Tensors) -> Tensors:
    """`values`, which TensorFlow connects to no input, with the rule's gradient for the inputs."""
    rule = dataclasses.replace(rule, outputs=len(values))
    outputs = (_in_xla if private.inside_xla() else _as_operation)(rule, inputs, values)
    setattr(outputs[-1], _ATTRIBUTE, rule)
    return outputs


def _as_operation(rule: Rule, inputs: Tensors, values: Tensors) -> Tensors:
    saved = [] if rule.saved is None else [rule.saved]
    outputs = ops().opgraft_custom_op(
        inputs=inputs, values=values, function=rule.name, backward=saved
    )
    if not tf.executing_eagerly():
        for output, value in zip(outputs, values, strict=True):
            output.set_shape(value.shape)
    return outputs


def _in_xla(rule: Rule, inputs: Tensors, values: Tensors) -> Tensors:
    """An identity of inputs and values, which XLA knows, with the gradient of our op type."""

    def backward(*upstreams):
        return _gradients(rule, inputs, outputs, upstreams[len(inputs) :])

    both = private.identity_n([*inputs, *values], _TYPE, backward)
    outputs = both[len(inputs) :]
    return outputs


_TYPE = "OpgraftCustomOp"


@tf.RegisterGradient(_TYPE)
def _registered(op, *upstreams):
    if op is None:  # TensorFlow, saving, asks for the gradient of an identity made for XLA
        raise UnsupportedError(
            "a custom op inside a tf.function with jit_compile=True cannot be saved with its "
            "gradient. Save a function without jit_compile, or with "
            "tf.saved_model.SaveOptions(experimental_custom_gradients=False)"
        )
    rule = getattr(op.outputs[-1], _ATTRIBUTE, None) or _saved_rule(op)
    count = rule.outputs or len(op.outputs)
    inputs = list(op.inputs)[:-count]
    return _gradients(rule, inputs, list(op.outputs)[-count:], upstreams[-count:])


def _gradients(rule: Rule, inputs: Tensors, outputs: Tensors, upstreams) -> list:
    """One gradient, or None, per input and value."""
    filled = [_filled(u, y) for u, y in zip(upstreams, outputs, strict=True)]
    return [*rule.backward(inputs, outputs, filled), *[None] * len(outputs)]


def _filled(upstream, output):
    """Zeros for a floating output that nobody uses; None for one that has no gradient."""
    if not differentiable(output):
        return None
    return tf.zeros_like(output) if upstream is None else tf.convert_to_tensor(upstream)


def differentiable(tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


# ---- in SavedModels ------------------------------------------------------------------------


def saved_arguments(inputs: Tensors, outputs: Tensors, upstreams: list) -> Tensors:
    return [*inputs, *outputs, *(u for u in upstreams if u is not None)]


def _saved_rule(op) -> Rule:
    """The rule of an operation that was loaded: a function in its attributes."""
    name = op.get_attr("function")
    name = name.decode() if isinstance(name, bytes) else name
    functions = op.get_attr("backward")
    if not functions:
        raise UnsupportedError(
            f"the gradient of {name} is not known here. Neither a saved model nor "
            "tf.vectorized_map holds a vjp that captures variables or leaves TensorFlow: "
            "differentiate the original model, call by call. "
            "Forward-mode differentiation (tf.autodiff.ForwardAccumulator) does not reach it: "
            "use a tf.GradientTape"
        )

    def backward(inputs, outputs, upstreams):
        floats = [i for i, x in enumerate(inputs) if differentiable(x)]

        def call(*arguments):
            return tf.raw_ops.StatefulPartitionedCall(
                args=arguments, Tout=[inputs[i].dtype for i in floats], f=functions[0]
            )

        refuse = Rule(f"the gradient of {name}", _refuse_second_order)
        flat = saved_arguments(inputs, outputs, upstreams)
        gradients = dict(zip(floats, apply(call, refuse, flat), strict=True))
        for i, gradient in gradients.items():
            gradient.set_shape(inputs[i].shape)
        return [gradients.get(i) for i in range(len(inputs))]

    def _refuse_second_order(*_):
        raise UnsupportedError(
            f"{name} was loaded from a saved model, which holds its gradient but not how to "
            "differentiate that again. Use the original model for second derivatives"
        )

    return Rule(name, backward)
