"""One training run, what is measured while it goes on, and what is measured after it.

Keras's `fit` is the loop. Two runs with the same plan see the same batches in the same order.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import keras
import numpy as np

from opgraft.data import Dataset
from opgraft.errors import OpgraftError


class KernelError(OpgraftError, RuntimeError):
    """A C function has failed while a network ran."""


@dataclass(frozen=True)
class Plan:
    """How to train: shared by every run that is to be compared."""

    epochs: int = 5
    batch_size: int = 128
    seed: int = 0


@dataclass
class Run:
    """A network and what its training has shown so far; filled in while it goes on."""

    title: str
    model: keras.Model
    step_seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    epochs: list[dict[str, float]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """How many steps have been made."""
        return len(self.step_seconds)


@dataclass(frozen=True)
class Score:
    """What a network says of labelled images."""

    predicted: np.ndarray
    labels: np.ndarray

    @property
    def accuracy(self) -> float:
        """The share of right answers, from 0 to 1."""
        return float(np.mean(self.predicted == self.labels))

    @property
    def wrong(self) -> np.ndarray:
        """The positions of the wrong answers."""
        return np.flatnonzero(self.predicted != self.labels)


@dataclass(frozen=True)
class Deviation:
    """How far one layer's kernel is from TensorFlow's own operation at the same inputs."""

    layer: str
    largest: float
    mean: float
    scale: float  # the mean magnitude of the native result, to set the other two against


class Batches(keras.utils.PyDataset):
    """The training images, shuffled anew for each epoch in an order that the seed alone decides."""

    def __init__(self, data: Dataset, plan: Plan):
        super().__init__()
        self._data, self._plan, self._epoch = data, plan, 0
        self._shuffle()

    def _shuffle(self) -> None:
        order = np.random.default_rng((self._plan.seed, self._epoch))
        self._order = order.permutation(len(self._data.x_train))

    def __len__(self) -> int:
        return math.ceil(len(self._data.x_train) / self._plan.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        start = index * self._plan.batch_size
        chosen = self._order[start : start + self._plan.batch_size]
        return self._data.x_train[chosen], self._data.y_train[chosen]

    def on_epoch_end(self) -> None:
        self._epoch += 1
        self._shuffle()


class Recorder(keras.callbacks.Callback):
    """Writes the time and loss of every step, and the results of every epoch, into a `Run`."""

    def __init__(self, run: Run):
        super().__init__()
        self._run, self._total = run, 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self._total = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self._run.step_seconds.append(time.perf_counter() - self._start)
        # Keras reports the mean since the epoch began; the difference is this step's own loss.
        total = logs["loss"] * (batch + 1)
        self._run.losses.append(total - self._total)
        self._total = total

    def on_epoch_end(self, epoch, logs=None):
        names = {"val_loss": "test_loss", "val_accuracy": "test_accuracy"}
        self._run.epochs.append({names.get(k, k): float(v) for k, v in logs.items()})


@contextmanager
def kernel_errors() -> Iterator[None]:
    """Turn the failure of an operation of ours into its own words.

    TensorFlow wraps them into a page about its graph, of a class that differs with the cause.
    """
    try:
        yield
    except Exception as error:
        said = re.search(r"opgraft: (.+)", str(error))
        if said is None:
            raise
        raise KernelError(said[1]) from error


@kernel_errors()
def fit(
    run: Run,
    data: Dataset,
    plan: Plan,
    *callbacks: keras.callbacks.Callback,
    optimizer: str | keras.Optimizer = "adam",
    from_logits: bool = True,
) -> None:
    """Train the network of `run` as `plan` says, testing it after every epoch."""
    keras.utils.set_random_seed(plan.seed)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    run.model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    run.model.fit(
        Batches(data, plan),
        epochs=plan.epochs,
        validation_data=(data.x_test, data.y_test),
        validation_batch_size=plan.batch_size,
        callbacks=[Recorder(run), *callbacks],
        verbose=0,
    )


@kernel_errors()
def score(model: keras.Model, data: Dataset, batch_size: int) -> Score:
    """Classify the test images."""
    answers = model.predict(data.x_test, batch_size=batch_size, verbose=0)
    return Score(answers.argmax(axis=-1), data.y_test)


@kernel_errors()
def deviations(
    model: keras.Model, native: keras.Model, images: np.ndarray, kinds: tuple[type, ...]
) -> list[Deviation]:
    """Set each layer of `kinds` against the layer of the same name in `native`.

    Both get the weights and the inputs that the layer has in `model`.
    """
    layers: list[keras.Layer] = [layer for layer in model.layers if isinstance(layer, kinds)]
    inputs = keras.Model(model.inputs, [layer.input for layer in layers])([images])
    return [
        _deviation(layer, native.get_layer(layer.name), seen)
        for layer, seen in zip(layers, keras.tree.flatten(inputs), strict=True)
    ]


def _deviation(layer: keras.Layer, native: keras.Layer, inputs) -> Deviation:
    ours, theirs = (
        keras.ops.convert_to_numpy(_without_activation(each, layer.get_weights(), inputs)(inputs))
        for each in (layer, native)
    )
    apart = np.abs(ours - theirs)
    scale = np.abs(theirs).mean()
    return Deviation(layer.name, float(apart.max()), float(apart.mean()), float(scale))


def _without_activation(layer: keras.Layer, weights: list[np.ndarray], inputs) -> keras.Layer:
    """A copy that ends before its activation: a ReLU would hide half of what deviates."""
    copy = type(layer).from_config({**layer.get_config(), "activation": "linear"})
    copy.build(inputs.shape)
    copy.set_weights(weights)
    return copy
