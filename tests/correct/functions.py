"""Right arithmetics and gradients that are Python: functions, Numba cfuncs, vjps by hand."""

import pathlib

import keras
import numpy as np
import tensorflow as tf
from planting import numbers

import opgraft as og

KERNELS = pathlib.Path(og.__file__).parent / "kernels"

# ---- forward ------------------------------------------------------------------------------


def matmul_in_double(a, b):
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)


def matmul_by_einsum(a, b):
    return np.einsum("ik,kj->ij", a[:, ::-1], b[::-1])


def conv2d_by_taps(x, kernel, strides, padding, dilations):
    """One tap after the other, on slices of the padded image."""
    x = np.pad(x, ((0, 0), *padding, (0, 0)))

    def taken(axis: int, tap: int) -> slice:
        last = x.shape[axis + 1] - (kernel.shape[axis] - 1 - tap) * dilations[axis]
        return slice(tap * dilations[axis], last, strides[axis])

    total = 0
    for i in reversed(range(kernel.shape[0])):
        for j in range(kernel.shape[1]):
            total = total + x[:, taken(0, i), taken(1, j)] @ kernel[i, j]
    return total


def numba_matmul():
    """A cfunc, which lives in the memory of this process only."""
    import numba
    from numba import types

    floats = types.CPointer(types.float32)
    signature = types.void(floats, floats, types.int32, types.int32, types.int32, floats)

    @numba.cfunc(signature)
    def matmul(a, b, m, k, n, out):
        for i in range(m):
            for j in range(n):
                total = np.float64(0)
                for l in range(k):
                    total += a[i * k + l] * b[l * n + j]
                out[i * n + j] = total

    return og.python_function(matmul), {}


# ---- backward -----------------------------------------------------------------------------


def product_by_hand():
    def vjp(inputs, output, upstream):
        A, W = inputs
        return tf.einsum("ij,kj->ik", upstream, W), tf.einsum("ik,ij->kj", A, upstream)

    @og.custom_op(vjp=vjp)
    def product(A, W):  # noqa: N803
        return keras.ops.matmul(A, W)

    return product, {"inputs": (numbers(5, 3), numbers(3, 4))}


def softmax_by_hand():
    def vjp(inputs, output, upstream):
        return output * (upstream - tf.reduce_sum(output * upstream, -1, keepdims=True))

    @og.custom_op(vjp=vjp)
    def softmax(x):
        return tf.nn.softmax(x)

    return softmax, {"inputs": (numbers(3, 4),)}


def sign_clipped():
    def vjp(inputs, output, upstream):
        return upstream * tf.cast(abs(inputs.x) <= 1, upstream.dtype)

    @og.custom_op(vjp=vjp)
    def sign(x):
        return tf.where(x < 0, -1.0, 1.0)

    inputs = (1.5 * numbers(4, 6),)
    return sign, {"inputs": inputs, "surrogate": lambda x: tf.clip_by_value(x, -1, 1)}


def steep_cube():
    """A second derivative of many thousands, which no absolute tolerance fits."""

    @og.custom_op(vjp=lambda inputs, output, upstream: 3e4 * inputs.x**2 * upstream)
    def cube(x):
        return 1e4 * x**3

    return cube, {"inputs": (numbers(3, 4),)}


def bias_by_hand():
    @og.custom_op(vjp=lambda inputs, output, upstream: (upstream, tf.reduce_sum(upstream, 0)))
    def add(x, b):
        return x + b

    return add, {"inputs": (numbers(5, 3), numbers(3))}


def two_outputs():
    """Of which the second is the square root of numbers that are never near zero."""

    def vjp(inputs, output, upstream):
        x, y = inputs
        of_product, of_root = upstream
        return of_product * y + of_root * x / output[1], of_product * x

    @og.custom_op(vjp=vjp)
    def both(x, y):
        return x * y, tf.sqrt(x**2 + 4)

    return both, {"inputs": (numbers(3, 4), numbers(3, 4, seed=1))}


def integer_indices():
    """An input that has no gradient, because it is of integers."""

    def vjp(inputs, output, upstream):
        rows = tf.expand_dims(inputs.indices, 1)
        return tf.scatter_nd(rows, upstream, tf.shape(inputs.table)), None

    @og.custom_op(vjp=vjp)
    def take(table, indices):
        return tf.gather(table, indices)

    return take, {"inputs": (numbers(5, 3), np.array([4, 0, 4, 2], np.int32))}


# ---- layers and models --------------------------------------------------------------------


def dense_by_hand():
    def vjp(inputs, output, upstream):
        a, b = inputs
        return tf.einsum("ij,kj->ik", upstream, b), tf.einsum("ik,ij->kj", a, upstream)

    arithmetic = og.c_function(KERNELS / "matmul.c", gradient=og.gradients.custom(vjp))
    return og.layers.Dense(4, arithmetic=arithmetic), {"inputs": numbers(5, 3)}


def small_model():
    """Both C examples in one model, between layers of Keras's own."""
    both = og.c_function(KERNELS / "conv2d.c") | og.c_function(KERNELS / "matmul.c")
    layers = [
        keras.Input((6, 7, 2)),
        og.layers.Conv2D(3, (3, 2), strides=2, padding="same", activation="relu", arithmetic=both),
        og.layers.DepthwiseConv2D((2, 3), arithmetic=both),
        keras.layers.Flatten(),
        og.layers.Dense(5, activation="softmax", arithmetic=both),
    ]
    return keras.Sequential(layers), {}
