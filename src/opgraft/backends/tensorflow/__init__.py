"""TensorFlow's room: op types of our own, and TensorFlow's gradients for them."""

import tensorflow as tf

from opgraft.backends.tensorflow import library, probe
from opgraft.backends.tensorflow.contraction import contract, with_python_gradient
from opgraft.backends.tensorflow.custom import custom_op
from opgraft.backends.tensorflow.self_check import check as check_product

VERSION = tf.__version__
opaque = tf.autograph.experimental.do_not_convert


def is_variable(value) -> bool:
    """Whether a value is a variable of the framework."""
    return isinstance(value, tf.Variable)


def is_tracing() -> bool:
    """Whether a graph is being made."""
    return not tf.executing_eagerly()


def set_threads_from_framework() -> int:
    """Let the core use as many threads as TensorFlow's operations may; return that number."""
    return library.follow_intra_op_setting()


__all__ = [
    "VERSION", "check_product", "contract", "custom_op", "is_tracing", "is_variable", "opaque",
    "probe", "set_threads_from_framework", "with_python_gradient",
]  # fmt: skip
