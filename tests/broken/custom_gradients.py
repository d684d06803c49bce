"""Wrong gradients, by the public ways to write one: `custom_op` and `gradients.custom`.

A vjp of the first two parts is made an operation by `product` or `square_product`, one of
the third by `sign`. The functions of the other parts give a target and keywords of
`og.verify` themselves.
"""

import pathlib

import keras
import tensorflow as tf
from planting import numbers

import opgraft as og

KERNELS = pathlib.Path(og.__file__).parent / "kernels"


# ---- of a matrix product A [5, 3] x W [3, 4] -----------------------------------------------


def product(vjp, rows: int = 5, inner: int = 3, columns: int = 4):
    @og.custom_op(vjp=vjp)
    def product(A, W):  # noqa: N803
        return tf.matmul(A, W)

    return product, {"inputs": (numbers(rows, inner), numbers(inner, columns, seed=1))}


def due(inputs, upstream):
    """dA = dy · Wᵀ and dW = Aᵀ · dy."""
    first, second = inputs
    return (
        tf.matmul(upstream, second, transpose_b=True),
        tf.matmul(first, upstream, transpose_a=True),
    )


def slightly_too_large(inputs, output, upstream):
    dA, dW = due(inputs, upstream)
    return dA, dW * 1.0005


def almost_right(inputs, output, upstream):
    dA, dW = due(inputs, upstream)
    return dA * 1.00001, dW


def sign_reversed(inputs, output, upstream):
    dA, dW = due(inputs, upstream)
    return -dA, dW


def frozen_none(inputs, output, upstream):
    return due(inputs, upstream)[0], None


def frozen_zeros(inputs, output, upstream):
    return due(inputs, upstream)[0], tf.zeros_like(inputs.W)


def broadcast_shape(inputs, output, upstream):
    """Broadcasts against W, so that an optimizer would take it."""
    dA, dW = due(inputs, upstream)
    return dA, tf.reduce_sum(dW, 0)


def wrong_dtype(inputs, output, upstream):
    dA, dW = due(inputs, upstream)
    return dA, tf.cast(dW, tf.float64)


def one_gradient(inputs, output, upstream):
    return due(inputs, upstream)[:1]


def three_gradients(inputs, output, upstream):
    return (*due(inputs, upstream), upstream)


def mean_over_the_batch(inputs, output, upstream):
    dA, dW = due(inputs, upstream)
    return dA, dW / inputs.A.shape[0]


def last_row_missing(inputs, output, upstream):
    return due(inputs, tf.concat([upstream[:-1], tf.zeros_like(upstream[-1:])], 0))


def upstream_ignored(inputs, output, upstream):
    return due(inputs, tf.ones_like(upstream))


def upstream_clipped(inputs, output, upstream):
    return due(inputs, tf.clip_by_value(upstream, -1, 1))


def not_finite(inputs, output, upstream):
    """Divides by the upstream, which has zeros behind every ReLU."""
    return due(inputs, upstream * upstream / upstream)


def of_half_precision(inputs, output, upstream):
    dA, dW = due(inputs, upstream)
    return tf.cast(tf.cast(dA, tf.float16), tf.float32), dW


def detached(inputs, output, upstream):
    """Right, but constant for whoever differentiates again."""
    dA, dW = due(inputs, upstream)
    return dA, tf.stop_gradient(dW)


# ---- of square matrices, whose shapes hide what is exchanged --------------------------------


def square_product(vjp):
    return product(vjp, 4, 4, 4)


def transposed(inputs, output, upstream):
    dA, dW = due(inputs, upstream)
    return dA, tf.transpose(dW)


def exchanged(inputs, output, upstream):
    return due(inputs, upstream)[::-1]


def at_the_other_operand(inputs, output, upstream):
    return tf.matmul(upstream, inputs.A, transpose_b=True), due(inputs, upstream)[1]


def operand_not_transposed(inputs, output, upstream):
    return tf.matmul(upstream, inputs.W), due(inputs, upstream)[1]


# ---- of a sign whose declared surrogate is clip(x, -1, 1) -----------------------------------


def sign(vjp):
    @og.custom_op(vjp=vjp)
    def sign(x):
        return tf.where(x < 0, -1.0, 1.0)

    inputs = (1.5 * numbers(4, 6),)
    return sign, {"inputs": inputs, "surrogate": lambda x: tf.clip_by_value(x, -1, 1)}


def identity(inputs, output, upstream):
    return upstream


def of_a_tanh(inputs, output, upstream):
    return upstream * (1 - tf.tanh(inputs.x) ** 2)


def clipped_at_a_half(inputs, output, upstream):
    return tf.where(abs(inputs.x) <= 0.5, upstream, 0.0)


def of_the_sign_itself(inputs, output, upstream):
    return tf.zeros_like(upstream)


def slope_of_two(inputs, output, upstream):
    return tf.where(abs(inputs.x) <= 1, 2 * upstream, 0.0)


# ---- of smooth functions --------------------------------------------------------------------


def cube(vjp):
    @og.custom_op(vjp=vjp)
    def cube(x):
        return x**3

    return cube, {"inputs": (numbers(3, 4),)}


def cube_exponent_forgotten():
    return cube(lambda inputs, output, upstream: upstream * inputs.x**2)


def cube_detached():
    return cube(lambda inputs, output, upstream: upstream * 3 * tf.stop_gradient(inputs.x) ** 2)


@tf.custom_gradient
def _square(x):
    return x**2, lambda upstream: upstream * x  # forgets the factor 2


def cube_wrong_inside():
    return cube(lambda inputs, output, upstream: upstream * 3 * _square(inputs.x))


def mean_not_divided():
    @og.custom_op(vjp=lambda inputs, output, upstream: upstream * 2 * inputs.x)
    def mean_square(x):
        return tf.reduce_mean(x**2)

    return mean_square, {"inputs": (numbers(3, 4),)}


def bias_averaged():
    @og.custom_op(vjp=lambda inputs, output, upstream: (upstream, tf.reduce_mean(upstream, 0)))
    def add(x, b):
        return x + b

    return add, {"inputs": (numbers(5, 3), numbers(3))}


def softmax_without_its_sum():
    @og.custom_op(vjp=lambda inputs, output, upstream: output * (1 - output) * upstream)
    def softmax(x):
        return tf.nn.softmax(x)

    return softmax, {"inputs": (numbers(3, 4),)}


# ---- of the C example, in layers and operations ---------------------------------------------


def vjp_of(op):
    """TensorFlow's vjp of `op`, a function of two tensors and the output's height and width."""

    def vjp(inputs, output, upstream):
        with tf.GradientTape() as tape:
            tape.watch(list(inputs))
            y = op(*inputs, *tf.unstack(tf.shape(output))[1:3])
        return tape.gradient(y, list(inputs), upstream)

    return vjp


def c_arithmetic(kind: str, vjp):
    return og.c_function(KERNELS / f"{kind}.c", gradient=og.gradients.custom(vjp))


def conv_layer(vjp, *shape: int, **geometry):
    arithmetic = c_arithmetic("conv2d", vjp)
    layer = og.layers.Conv2D(3, (3, 2), arithmetic=arithmetic, **geometry)
    return layer, {"inputs": numbers(*shape)}


def valid_conv(x, kernel, height, width):
    return tf.nn.conv2d(x, kernel, 1, "VALID")


def conv_odd_padding_first():
    """Of SAME and stride 2, for which kernels of 3 x 2 pad even images by one row, no column."""

    def op(x, kernel, height, width):
        size, taps = tf.shape(x)[1:3], tf.shape(kernel)[:2]
        total = tf.maximum((tf.stack([height, width]) - 1) * 2 + taps - size, 0)
        sides = tf.stack([total - total // 2, total // 2], 1)
        return tf.nn.conv2d(tf.pad(x, tf.pad(sides, [[1, 1], [0, 0]])), kernel, 2, "VALID")

    return conv_layer(vjp_of(op), 2, 6, 8, 2, strides=2, padding="same")


def conv_stride_one():
    def op(x, kernel, height, width):
        return tf.nn.conv2d(x, kernel, 1, "VALID")[:, :height, :width]

    return conv_layer(vjp_of(op), 2, 7, 8, 2, strides=2)


def conv_strides_swapped():
    """As many rows and columns as are due, by the steps of the other axis."""

    def op(x, kernel, height, width):
        x = tf.pad(x, [[0, 0], [0, height], [0, 2 * width], [0, 0]])
        return tf.nn.conv2d(x, kernel, [1, 1, 2, 1], "VALID")[:, :height, :width]

    return conv_layer(vjp_of(op), 2, 7, 8, 2, strides=(2, 1))


def conv_rotated():
    def vjp(inputs, output, upstream):
        dx, dk = vjp_of(valid_conv)(inputs, output, upstream)
        return dx, tf.reverse(dk, [0, 1])

    return conv_layer(vjp, 2, 5, 6, 2)


def conv_kernel_frozen():
    def vjp(inputs, output, upstream):
        return vjp_of(valid_conv)(inputs, output, upstream)[0], tf.zeros_like(inputs.kernel)

    return conv_layer(vjp, 2, 5, 6, 2)


def conv_pad_value_ignored():
    vjp = vjp_of(lambda x, kernel, height, width: tf.nn.conv2d(x, kernel, 1, "SAME"))
    arithmetic = c_arithmetic("conv2d", vjp)

    def padded_with_two(x, kernel):
        return og.conv2d(x, kernel, arithmetic=arithmetic, padding="SAME", pad_value=2.0)

    return padded_with_two, {"inputs": (numbers(2, 5, 6, 2), numbers(3, 2, 2, 3))}


def dense_layer(vjp, units: int, *shape: int):
    layer = og.layers.Dense(units, arithmetic=c_arithmetic("matmul", vjp))
    return layer, {"inputs": numbers(*shape)}


def dense_transposed():
    def vjp(inputs, output, upstream):
        da, db = due(inputs, upstream)
        return da, tf.transpose(db)

    return dense_layer(vjp, 4, 5, 4)


def dense_slightly_too_large():
    def vjp(inputs, output, upstream):
        da, db = due(inputs, upstream)
        return da, 1.0005 * db

    return dense_layer(vjp, 4, 5, 3)


def model_with_one_wrong_layer():
    """A convolution that is right and a dense layer whose kernel gradient is too large."""
    dense = dense_slightly_too_large()[0]
    conv = og.layers.Conv2D(2, 3, strides=2, arithmetic=og.c_function(KERNELS / "conv2d.c"))
    model = keras.Sequential([keras.Input((6, 7, 2)), conv, keras.layers.Flatten(), dense])
    return model, {"inputs": numbers(3, 6, 7, 2)}
