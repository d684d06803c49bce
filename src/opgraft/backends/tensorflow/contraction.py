"""A contraction under an arithmetic: checked, run, and given its gradient."""

import dataclasses
import inspect

import tensorflow as tf

from opgraft.arithmetic import Arithmetic
from opgraft.backends.tensorflow import custom, gradient, private, products
from opgraft.calls import Function
from opgraft.errors import DtypeError, UnsupportedError
from opgraft.gradients import Custom, native
from opgraft.spec import Contraction


def contract(
    contraction: Contraction, arithmetic: Arithmetic, left, right, states=((), ())
) -> tf.Tensor:
    """The contraction of two tensors under an arithmetic, differentiable.

    Args:
        contraction, arithmetic: what is computed, and how.
        left, right: the operands.
        states: of the input's quantizer and of the kernel's; () for none.

    Raises:
        ArgumentError: the shapes do not fit, as far as they are known.
        DtypeError: the operands differ in dtype.
        UnsupportedError: the arithmetic cannot compute this contraction, or is
            being compiled by XLA and cannot be.
    """
    left, right = _operands(contraction, left, right)
    if not left.dtype.is_floating:  # nothing flows back
        arithmetic = dataclasses.replace(arithmetic, gradient=native)
    if arithmetic.gradient.of(arithmetic).in_python:
        function = with_python_gradient(contraction, arithmetic)
        return custom.custom_op(function.bind((left, right), {}))
    if not arithmetic.supports_jit and private.inside_xla():
        raise UnsupportedError(
            f"this {contraction.type_name} runs through {type(arithmetic.product).__name__}, which "
            "XLA cannot compile yet. Ask for jit_compile=False: in model.compile(...), or in the "
            "tf.function around it"
        )
    arithmetic.check(contraction)
    shape = None
    if left.shape.rank is not None and right.shape.rank is not None:
        shape = contraction.output_shape(tuple(left.shape), tuple(right.shape))
    remembered = {"states": states} if any(states) else {}
    result = products.run(arithmetic.product, contraction, arithmetic, left, right, **remembered)
    if shape is not None and not tf.executing_eagerly():
        result.set_shape(shape)
    return result


def _operands(contraction: Contraction, left, right) -> tuple[tf.Tensor, tf.Tensor]:
    names = contraction.operand_names
    left = _tensor(left, None, names[0])
    right = _tensor(right, left.dtype, names[1])
    contraction.check_dtypes(left.dtype.name, right.dtype.name)
    return left, right


def _tensor(value, dtype, name: str) -> tf.Tensor:
    if isinstance(value, tf.Tensor):
        return value
    try:
        # An array or a variable has a dtype of its own; a list takes that of the other operand.
        return tf.convert_to_tensor(value, None if hasattr(value, "dtype") else dtype)
    except (TypeError, ValueError) as error:
        raise DtypeError(f"{name} cannot be made a tensor: {error}") from None


def with_python_gradient(contraction: Contraction, arithmetic: Arithmetic) -> Function:
    """The contraction as a custom op: no operation can carry the code of its gradient.

    A vjp that has a parameter `contraction` is told strides, padding and the like by it.
    """
    flows_back = arithmetic.gradient.of(arithmetic)
    forward = dataclasses.replace(arithmetic, gradient=native)

    def run(left, right, contraction):
        return contract(contraction, forward, left, right)

    def by_rule(inputs, output, upstream):
        return gradient.vjp(flows_back, contraction, upstream, *inputs, frozenset())

    run.__qualname__ = contraction.type_name
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in contraction.operand_names]
    parameters.append(inspect.Parameter("contraction", kind, default=contraction))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    if isinstance(flows_back, Custom):
        return Function(run, flows_back.vjp, (), flows_back.check_finite)
    return Function(run, by_rule, (), False)
