"""A Keras layer whose gradient is written by hand, and equal to TensorFlow's.

y = a·w changes by δa·w + a·δw, so a loss with dy = ∂L/∂y has da = dy·wᵀ and dw = aᵀ·dy.
"""

import keras
import numpy as np
import tensorflow as tf

import opgraft as og


def product_vjp(inputs, output, upstream):
    """One gradient per input, each of the shape and dtype of that input."""
    a, w = inputs  # (32, 16) and (16, 8); upstream is (32, 8), as the output is
    return upstream @ tf.transpose(w), tf.transpose(a) @ upstream


@og.custom_op(vjp=product_vjp)
def product(a, w):
    return a @ w


class CustomLayer(keras.layers.Layer):
    def __init__(self, out_dim):
        super().__init__()
        self.out_dim = out_dim

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], self.out_dim), name="kernel")

    def call(self, inputs):
        return product(inputs, self.kernel)  # the weight is an argument


keras.utils.set_random_seed(0)
x = tf.random.normal((32, 16))
layer = CustomLayer(out_dim=8)
with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    ours, native = layer(x), tf.matmul(x, layer.kernel)
upstream = tf.random.normal(ours.shape)
for name, source in (("input", x), ("kernel", layer.kernel.value)):
    mine, due = (tape.gradient(y, source, upstream) for y in (ours, native))
    np.testing.assert_allclose(mine, due, rtol=1e-5, atol=1e-5)
    print(f"gradient of the {name} {tuple(mine.shape)}: that of tf.matmul")

model = keras.Sequential([keras.Input((16,)), layer])
model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=True)  # XLA compiles both
loss = model.fit(x, x[:, :8], epochs=40, verbose=0).history["loss"]
assert loss[-1] < 0.1 * loss[0]
print(f"loss {loss[0]:.3f} -> {loss[-1]:.3f}")


def broadcasting_vjp(inputs, output, upstream):
    """Summed over the inputs as well: TensorFlow alone would train the kernel with that."""
    return upstream @ tf.transpose(inputs.w), tf.reduce_sum(tf.transpose(inputs.a) @ upstream, 0)


@og.custom_op(vjp=broadcasting_vjp)
def broadcasting(a, w):
    return a @ w


with tf.GradientTape() as tape:
    y = broadcasting(x, layer.kernel)
try:
    tape.gradient(y, layer.kernel.value)
except og.errors.ArgumentError as error:
    print(error)
else:
    raise AssertionError("it was not refused")

# A sign has no gradient worth having, so it takes that of clip(x, -1, 1).
sign = og.custom_op(
    lambda x: tf.where(x < 0, -1.0, 1.0),
    vjp=lambda inputs, output, upstream: tf.where(abs(inputs.x) <= 1, upstream, 0),
)
with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    signs, clipped = sign(x), tf.clip_by_value(x, -1, 1)
np.testing.assert_array_equal(tape.gradient(signs, x), tape.gradient(clipped, x))
print("straight-through estimator: the gradient of the clip")
