"""A NumPy function as the forward of a network: the quickest way to try an idea.

It runs under Python's lock and cannot be exported; once the idea holds, write it in C.
"""

import warnings

import keras
import numpy as np
import tensorflow as tf

import opgraft as og


def truncated(a, b):
    """A matrix product whose operands have lost all but 4 bits of their mantissa."""
    short = np.uint32(0xFFF80000)
    a, b = ((each.view(np.uint32) & short).view(np.float32) for each in (a, b))
    return a @ b


coarse = og.python_function(truncated)

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.standard_normal((96, 9), np.float32)
y = x @ rng.standard_normal((9, 2), np.float32)
model = keras.Sequential([keras.Input((9,)), og.layers.Dense(2, arithmetic=coarse)])
model.compile(keras.optimizers.SGD(0.1), "mse")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    losses = model.fit(x, y, epochs=30, verbose=0).history["loss"]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
assert losses[-1] < 0.05 * losses[0]
told = [str(each.message) for each in said if "truncated" in str(each.message)]
assert len(told) == 1  # what it costs is said once
print(told[0])

kernel = model.layers[0].kernel
exact, ours = model.layers[0](x) - model.layers[0].bias, tf.matmul(x, kernel)
print(f"forward: off by {np.abs(exact - ours).max():.3f} at most")
assert np.abs(exact - ours).max() > 1e-3

inputs = tf.constant(x)
with tf.GradientTape(persistent=True) as tape:
    tape.watch(inputs)
    ours, exact = og.matmul(inputs, kernel, arithmetic=coarse), tf.matmul(inputs, kernel)
np.testing.assert_array_equal(tape.gradient(ours, inputs), tape.gradient(exact, inputs))
np.testing.assert_array_equal(tape.gradient(ours, kernel), tape.gradient(exact, kernel))
print("gradient: that of the exact product, bit for bit")
