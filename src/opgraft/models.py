"""Networks that `opgraft train` knows: plain Keras, with weights that follow from a seed."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from opgraft.errors import ArgumentError

SMALLEST = 12  # below this side LeNet-5's second pooling has nothing left to pool


def lenet5(
    input_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10, seed: int = 0
) -> keras.Model:
    """LeNet-5 with ReLU and max pooling, uncompiled; its outputs are logits.

    Two networks built with the same seed start from the same weights.
    """
    if min(input_shape[:2]) < SMALLEST:
        raise ArgumentError(
            f"lenet5: the images are {input_shape[0]}x{input_shape[1]}; needed are at least "
            f"{SMALLEST}x{SMALLEST} pixels. Enlarge or pad them."
        )

    seeds = np.random.default_rng(seed)

    def start() -> keras.Initializer:
        # One per layer: layers of one seed and one shape would start out equal.
        return keras.initializers.GlorotUniform(seed=int(seeds.integers(2**31)))

    return keras.Sequential(
        [
            keras.Input(input_shape, name="image"),
            layers.Conv2D(
                6, 5, padding="same", activation="relu", kernel_initializer=start(), name="conv1"
            ),
            layers.MaxPooling2D(name="pool1"),
            layers.Conv2D(16, 5, activation="relu", kernel_initializer=start(), name="conv2"),
            layers.MaxPooling2D(name="pool2"),
            layers.Flatten(name="flatten"),
            layers.Dense(120, activation="relu", kernel_initializer=start(), name="dense1"),
            layers.Dense(84, activation="relu", kernel_initializer=start(), name="dense2"),
            layers.Dense(classes, kernel_initializer=start(), name="logits"),
        ],
        name="lenet5",
    )


NETWORKS = {"lenet5": lenet5}


def network(name: str):
    """The function that builds the network called `name`."""
    if name not in NETWORKS:
        raise ArgumentError(
            f"There is no network called {name!r}. Known are: {', '.join(NETWORKS)}."
        )
    return NETWORKS[name]
