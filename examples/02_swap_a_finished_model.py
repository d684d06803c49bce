"""Put a C function into a model that was built and trained without it, and take it out again."""

import pathlib
import tempfile

import keras
import numpy as np

import opgraft as og

folder = pathlib.Path(tempfile.mkdtemp())
# A multiplier that is 2 % too large, written as one scalar product.
(folder / "wrong.c").write_text("float multiply(float x, float y) { return 1.02f * x * y; }")
wrong = og.c_function(folder / "wrong.c")

keras.utils.set_random_seed(0)
model = keras.Sequential([
    keras.Input((9, 8, 3)),
    keras.layers.SeparableConv2D(4, 3, activation="relu", name="features"),
    keras.layers.Conv2D(5, (1, 2), strides=2, name="shrink"),
    keras.layers.GlobalAveragePooling2D(),
    keras.layers.Dense(6, use_bias=False, name="logits"),
])  # fmt: skip
images = np.random.default_rng(0).random((7, 9, 8, 3), np.float32)
before = model(images).numpy()
weights = model.get_weights()

# One rule per layer: a name, a glob over names, or a class. What no rule matches stays exact.
og.swap(model, {"logits": wrong})
after = model(images).numpy()
print(f"logits through the wrong multiplier: {np.mean(after / before):.4f} times the exact ones")
np.testing.assert_allclose(after, 1.02 * before, rtol=1e-4, atol=1e-6)

# The same for every layer that can have one, but one. Weights, names and shapes are kept.
og.swap(model, wrong, exclude=["logits"])
print("now", ", ".join(f"{each.name}: {type(each).__module__}" for each in model.layers))
for kept, weight in zip(model.get_weights(), weights, strict=True):
    np.testing.assert_array_equal(kept, weight)
model.compile("sgd", "mse")
model.fit(images, np.zeros((7, 6)), verbose=0)  # trains, with TensorFlow's own gradient

# Back to plain Keras, with what was learnt: nothing of opgraft is left in the file.
og.restore(model)
model.export(folder / "plain", format="tf_saved_model", verbose=False)
assert all(type(layer).__module__.startswith("keras.") for layer in model.layers)
assert b"Opgraft" not in (folder / "plain" / "saved_model.pb").read_bytes()
print("restored and exported without a trace")
