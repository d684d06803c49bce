"""Whether what was built is what runs: a small contraction through the real engine."""

import functools

import numpy as np
import tensorflow as tf

from opgraft import environment
from opgraft.arithmetic import Arithmetic
from opgraft.backends.tensorflow import quantized, tables
from opgraft.errors import OpgraftError
from opgraft.products import Mantissas, Product, Quantized
from opgraft.spec import MatMul


def check(arithmetic: Arithmetic) -> None:
    """Compare a small matrix product with NumPy's.

    Raises:
        OpgraftError: they differ; nothing would be computed as it was claimed.
    """
    check_engine(arithmetic, environment.table_engine())


@functools.lru_cache(maxsize=64)
def check_engine(arithmetic: Arithmetic, engine: int) -> None:
    """`check`, once for each engine that is asked for."""
    with tf.init_scope():  # whatever is being traced
        right = _is_right(arithmetic.product, arithmetic)
    if not right:
        raise OpgraftError(
            f"opgraft does not compute {arithmetic.product.label}: a small matrix product differs "
            "from NumPy's. Reinstall opgraft, and report this with `opgraft config`"
        )


@functools.singledispatch
def _is_right(product: Product, arithmetic: Arithmetic) -> bool:
    raise NotImplementedError(f"there is no check of {type(product).__name__}")


_is_right.register(Quantized, quantized.check_sums)


@_is_right.register
def _(product: Mantissas, arithmetic: Arithmetic) -> bool:
    draw = np.random.default_rng(0).normal
    left, right = draw(size=(7, 5)).astype(np.float32), draw(size=(5, 9)).astype(np.float32)
    got = tables.mantissas(product, MatMul(), tf.constant(left), tf.constant(right)).numpy()
    return np.array_equal(got, product.meaning(MatMul(), None, None, left, right))
