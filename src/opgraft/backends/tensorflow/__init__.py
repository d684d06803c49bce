"""TensorFlow's room: op types of our own, and TensorFlow's gradients for them."""

import tensorflow as tf

from opgraft.arithmetic import Arithmetic
from opgraft.backends.tensorflow import gradient, library, private, products  # noqa: F401
from opgraft.errors import DtypeError, UnsupportedError
from opgraft.spec import Contraction

VERSION = tf.__version__
opaque = tf.autograph.experimental.do_not_convert


def contract(contraction: Contraction, arithmetic: Arithmetic, left, right) -> tf.Tensor:
    """The contraction of two tensors under an arithmetic, differentiable.

    Raises:
        ArgumentError: the shapes do not fit, as far as they are known.
        DtypeError: the operands differ in dtype.
        UnsupportedError: the arithmetic cannot compute this contraction, or is
            being compiled by XLA and cannot be.
    """
    left, right = _operands(contraction, left, right)
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
    result = products.run(arithmetic.product, contraction, arithmetic, left, right)
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


def set_threads_from_framework() -> int:
    """Let the core use as many threads as TensorFlow's operations may; return that number."""
    return library.follow_intra_op_setting()


__all__ = ["VERSION", "contract", "opaque", "set_threads_from_framework"]
