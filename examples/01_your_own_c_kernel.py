"""Train a Keras network through a matrix product of your own, in C.

One C function serves the dense layer and, through im2col, the convolution. What flows
back is TensorFlow's own gradient, bit for bit.
"""

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

import opgraft as og

source = pathlib.Path(tempfile.mkdtemp()) / "matmul.c"
source.write_text("""
void matmul(const float *a, const float *b, int m, int k, int n, float *out) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            out[i * n + j] = 0;
            for (int l = 0; l < k; l++)
                out[i * n + j] += a[i * k + l] * b[l * n + j];
        }
}""")
mine = og.c_function(source)  # compiled once, cached by content

# Which half of a noisy image is the brighter one?
keras.utils.set_random_seed(0)
images = np.random.rand(512, 9, 8, 1).astype(np.float32)
labels = images[:, :, 4:].mean((1, 2, 3)) > images[:, :, :4].mean((1, 2, 3))

convolve = og.layers.Conv2D(4, (3, 2), activation="relu", arithmetic=mine)
model = keras.Sequential([convolve, keras.layers.Flatten(), og.layers.Dense(1, arithmetic=mine)])
model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
loss = model.fit(images, labels, epochs=12, verbose=0).history["loss"]
assert loss[-1] < 0.7 * loss[0]

with tf.GradientTape(persistent=True) as tape:
    ours = og.conv2d(images, convolve.kernel, arithmetic=mine, strides=2, padding="SAME")
    native = tf.nn.conv2d(images, convolve.kernel, 2, "SAME")
np.testing.assert_array_equal(*(tape.gradient(y, convolve.kernel.value) for y in (ours, native)))
print(f"loss {loss[0]:.3f} -> {loss[-1]:.3f}, by TensorFlow's own gradient, bit for bit")
