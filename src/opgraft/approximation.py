"""What an approximate multiplier does to a finished network, and what retraining brings back."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from opgraft import layers, recording, surgery
from opgraft.approximating import approximate
from opgraft.arithmetic import Arithmetic
from opgraft.backends import keras_private
from opgraft.calibration import calibrate
from opgraft.data import Dataset
from opgraft.errors import ArgumentError
from opgraft.multipliers import Multiplier, exact
from opgraft.native import core
from opgraft.quantizers import Symmetric
from opgraft.training import Plan, kernel_errors

CLEARLY = 0.05  # of all images: by how much more a network is right if it is given what it takes


@dataclass(frozen=True)
class Swap:
    """Which layers multiply approximately, and how their operands become codes.

    Attributes:
        layers: class names of Keras, layers' names, or globs over these; none: all that can.
        per_channel: each output channel of a kernel has a scale of its own.
        exchanged: look up table[kernel, activation].
        calibration: how many of the training images decide the ranges of activations.
        batch_size: images at a time.
    """

    layers: tuple[str, ...] = ()
    per_channel: bool = False
    exchanged: bool = False
    calibration: int = 500
    batch_size: int = 32

    def arithmetic(self, multiplier: Multiplier) -> Arithmetic:
        """Raises `ArgumentError`, `UnsupportedError`: what `og.approximate` does not take."""
        kernel = None
        if self.per_channel:
            if not multiplier.signed:
                raise ArgumentError(
                    f"{multiplier!r} is not signed, and kernels of unsigned codes have one scale "
                    "each. Make it signed, by sign-magnitude for one, or leave out per_channel"
                )
            kernel = Symmetric(multiplier.widths[0 if self.exchanged else 1], per_channel=True)
        return approximate(multiplier, kernel=kernel, exchanged=self.exchanged)

    def into(self, model: keras.Model, multiplier: Multiplier, images: np.ndarray) -> list[str]:
        """Swap and calibrate a model in place; what else a user should know comes back.

        Raises:
            ArgumentError: no layer is one of `layers`, or the arithmetic cannot serve one.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._swap(model, multiplier)
        calibrate(model, images[: self.calibration], batch_size=self.batch_size)
        return [str(each.message) for each in caught]

    def check(self, model: keras.Model, multiplier: Multiplier) -> None:
        """Raise what `into` would; a model of Keras layers stays as it is."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._swap(model, multiplier)
        surgery.restore(model)

    def _swap(self, model: keras.Model, multiplier: Multiplier) -> None:
        arithmetic = self.arithmetic(multiplier)
        surgery.swap(model, {_rule(name): arithmetic for name in self.layers} or arithmetic)


def _rule(name: str) -> str | type:
    kind = getattr(layers, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, keras.Layer) else name


def exact_like(multiplier: Multiplier) -> Multiplier:
    """The exact multiplier of the same operands."""
    return exact(multiplier.widths, signed=bool(multiplier.signed))


def approximate_layers(model: keras.Model) -> list[Any]:
    """The layers of a model that have an arithmetic other than exact."""
    found = keras_private.all_layers(model)
    return [
        each for each in found
        if isinstance(each, layers.ArithmeticLayer) and each.arithmetic != Arithmetic()
    ]  # fmt: skip


# ---- how right a network is ----------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """How a network does on labelled images; the loss is the mean cross-entropy."""

    accuracy: float
    loss: float
    wrong: int


@kernel_errors()
def stand(model: keras.Model, images: np.ndarray, labels: np.ndarray, batch_size: int) -> Standing:
    """Classify images. Outputs may be probabilities or logits."""
    outputs = model.predict(images, batch_size=batch_size, verbose=0).astype(np.float64)
    wrong = int(np.sum(outputs.argmax(axis=-1) != labels))
    if not are_probabilities(outputs):
        outputs = _softmax(outputs)
    due = np.take_along_axis(outputs, labels[:, None], axis=-1)
    loss = -np.log(np.maximum(due, keras.config.epsilon())).mean()
    return Standing((len(labels) - wrong) / len(labels), float(loss), wrong)


def are_probabilities(outputs: np.ndarray) -> bool:
    """Whether numbers could be what a softmax gives: none negative, with the sum 1."""
    return bool((outputs >= 0).all() and np.allclose(outputs.sum(axis=-1), 1, atol=1e-3))


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def as_taken(model: keras.Model, data: Dataset, count: int, batch_size: int) -> Dataset:
    """Images from 0 to 255 as they are if the network is right more often so, else scaled.

    Args:
        model: of which one of the two is true.
        data: with images as their source has them.
        count: how many of the training images are tried.
        batch_size: images at a time.
    """
    scaled = data.scaled()
    if data.white in (None, 1.0):
        return data
    labels = data.y_train[:count]
    raw_is, scaled_is = (
        stand(model, each.x_train[:count], labels, batch_size).accuracy for each in (data, scaled)
    )
    return data if raw_is > scaled_is + CLEARLY else scaled


def optimizer(learning_rate: float, plan: Plan, images: int) -> keras.Optimizer:
    """Adam, its rate falling to 0 along a cosine over the whole of the training."""
    steps = plan.epochs * math.ceil(images / plan.batch_size)
    return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(learning_rate, steps))


# ---- how far each layer is off -------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """How far the output of one layer is off, at the inputs it has in the float network.

    Attributes:
        layer, kind: its name and its class.
        exact: the signal-to-noise ratio, in dB, against the exact product of the same codes.
        native: the same against the float layer.
        constant: what part of the first noise's power is the same all over a channel.
        engine: what has computed it; several where it has several contractions.
    """

    layer: str
    kind: str
    exact: float
    native: float
    constant: float
    engine: str


@kernel_errors()
def noises(model: keras.Model, images: np.ndarray) -> list[Noise]:
    """The noise of each approximate layer of a model, before its activation.

    Args:
        model: swapped and, for the ranges that it is to have, calibrated.
        images: that it is given; the inputs of each layer are those of the network without
            quantization.
    """
    found = approximate_layers(model)
    calls = _calls(model, found, images)
    return [_noise(layer, own) for layer, own in zip(found, calls, strict=True) if own]


def _calls(model: keras.Model, found: list, images: np.ndarray) -> list[list[tuple]]:
    """With what arguments each layer is called while the network computes exactly."""
    calls: list[list[tuple]] = [[] for _ in found]

    def watched(call: Callable, noted: list) -> Callable:
        def note(*args: Any, **keywords: Any) -> Any:
            noted.append((args, keywords))
            return call(*args, **keywords)

        return note

    try:
        for layer, own in zip(found, calls, strict=True):
            layer.call = watched(layer.call, own)
        with recording.exactly(), warnings.catch_warnings():
            # A model may have been built for a list or a mapping; Keras takes the array too.
            warnings.filterwarnings("ignore", "The structure of")
            model(images, training=False)
    finally:
        for layer in found:
            vars(layer).pop("call", None)
    return calls


def _noise(layer: Any, calls: Sequence[tuple]) -> Noise:
    arithmetic = layer.arithmetic
    like = exact_like(arithmetic.product.multiplier)
    product = dataclasses.replace(arithmetic.product, multiplier=like)
    with _without_activation(layer):
        before = core.runs()
        ours = _outputs(layer, calls)
        engines = [name for name, count in core.runs().items() if count > before[name]]
        with recording.exactly():
            native = _outputs(layer, calls)
        with _under(layer, dataclasses.replace(arithmetic, product=product)):
            due = _outputs(layer, calls)
    noise = ours - due
    power, constant = np.mean(noise**2), np.mean(noise.mean(axis=0) ** 2)
    share = float(constant / power) if power else 0.0
    kind = layers.native_layer(type(layer)).__name__
    apart = decibels(due, ours), decibels(native, ours)
    return Noise(layer.name, kind, *apart, share, ", ".join(engines))


def decibels(due: np.ndarray, given: np.ndarray) -> float:
    """The signal-to-noise ratio of what is given: infinite where nothing is off."""
    signal, noise = np.mean(np.square(due)), np.mean(np.square(given - due))
    if not noise:
        return math.inf
    return float(10 * np.log10(signal / noise)) if signal else -math.inf


def _outputs(layer: Any, calls: Sequence[tuple]) -> np.ndarray:
    """What a layer gives, as [everything else, channels]."""
    first = getattr(layer, "data_format", None) == "channels_first"
    rows = []
    for args, keywords in calls:
        outputs = keras.ops.convert_to_numpy(layer(*args, **keywords)).astype(np.float64)
        outputs = np.moveaxis(outputs, 1, -1) if first else outputs
        rows.append(outputs.reshape(-1, outputs.shape[-1]))
    return np.concatenate(rows)


@contextlib.contextmanager
def _without_activation(layer: Any) -> Iterator[None]:
    """A ReLU would hide half of what is off."""
    kept = layer.activation
    layer.activation = keras.activations.linear
    try:
        yield
    finally:
        layer.activation = kept


@contextlib.contextmanager
def _under(layer: Any, arithmetic: Arithmetic) -> Iterator[None]:
    kept = layer.arithmetic
    layer.set_arithmetic(arithmetic)
    try:
        yield
    finally:
        layer.set_arithmetic(kept)
