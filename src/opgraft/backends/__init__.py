"""One room per framework; the only ones that import a framework directly.

A backend offers `contract(contraction, arithmetic, left, right)`: the result of
a contraction under an arithmetic, with the gradient that the arithmetic
declares. `backend()` is the one that Keras runs on.
"""

import functools
import types
from collections.abc import Callable

import keras

from opgraft.errors import UnsupportedError


@functools.cache
def backend() -> types.ModuleType:
    """The backend of the framework that Keras is configured for.

    Raises:
        UnsupportedError: Keras runs on a framework that has no backend here.
    """
    name = keras.config.backend()
    if name != "tensorflow":
        raise UnsupportedError(
            f"Keras runs on the '{name}' backend, and opgraft has one for TensorFlow only. Set "
            "KERAS_BACKEND=tensorflow before importing keras"
        )
    from opgraft.backends import tensorflow

    return tensorflow


def opaque(function: Callable) -> Callable:
    """Decorate a function that a framework's source transformations must leave alone."""
    return backend().opaque(function)
