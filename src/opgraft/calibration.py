"""Ranges of activations, found by running a model on some data.

A rule is a function of what was seen of one layer's inputs and of the quantizer that is to
cover it; it gives the smallest and the largest value that shall have a code of their own.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np

from opgraft import layers, recording
from opgraft.backends import keras_private
from opgraft.errors import ArgumentError
from opgraft.quantizers import Scaled

_SAMPLE = 1 << 18  # numbers that are kept of each layer's inputs
_CANDIDATES = 100  # ranges that a search tries
_BINS = 2048  # of a histogram


@dataclasses.dataclass
class Seen:
    """What was seen of the inputs of one layer.

    Attributes:
        low, high: the smallest and the largest number.
        count: how many numbers there were.
        sample: a random part of them.
    """

    low: float = np.inf
    high: float = -np.inf
    count: int = 0
    sample: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.float32))

    def add(self, values: np.ndarray, draw: np.random.Generator) -> None:
        flat = np.asarray(values, np.float32).ravel()
        if not flat.size:
            return
        # NaN on either side must stay.
        self.low = float(np.minimum(self.low, flat.min()))
        self.high = float(np.maximum(self.high, flat.max()))
        self.count += flat.size
        if self.count <= _SAMPLE:
            self.sample = np.concatenate([self.sample, flat])
            return
        # Of everything that was seen, each number is as likely to be kept.
        new = min(flat.size, round(_SAMPLE * flat.size / self.count))
        old = min(self.sample.size, _SAMPLE - new)
        kept = draw.choice(self.sample, old, replace=False)
        self.sample = np.concatenate([kept, draw.choice(flat, new, replace=False)])


Rule = Callable[[Seen, Scaled], tuple[float, float]]


def min_max(seen: Seen, quantizer: Scaled) -> tuple[float, float]:
    """Everything that was seen."""
    return seen.low, seen.high


def percentile(percent: float) -> Rule:
    """All but the largest values: `percent` of the absolute values lie in the range.

    Args:
        percent: above 0 and up to 100, such as 99.9.
    """
    if not 0 < percent <= 100:
        raise ArgumentError(f"percentile({percent!r}): it must be above 0 and at most 100")

    def rule(seen: Seen, quantizer: Scaled) -> tuple[float, float]:
        limit = float(np.percentile(abs(seen.sample), percent))
        return max(seen.low, -limit), min(seen.high, limit)

    return rule


def least_squares(seen: Seen, quantizer: Scaled) -> tuple[float, float]:
    """The part of the range with the least mean squared error of the quantized values.

    Source: W. Sung, S. Shin and K. Hwang, "Resiliency of deep neural networks under
    quantization", 2015; here by trying a hundred ranges.
    """

    def error(share: float) -> float:
        values = (
            quantizer.calibrated(share * seen.low, share * seen.high).encode(seen.sample).values
        )
        return float(np.mean((values - seen.sample) ** 2))

    best = min(np.linspace(1 / _CANDIDATES, 1, _CANDIDATES), key=error)
    return best * seen.low, best * seen.high


def entropy(seen: Seen, quantizer: Scaled) -> tuple[float, float]:
    """The part of the range that loses the least information: where the divergence is least.

    That is the Kullback-Leibler divergence of the quantized distribution of the absolute values
    from the clipped one, both as histograms. In the clipped one, everything beyond the range
    lies in the last bin, which holds one number of its own at least. In the quantized one, it
    stays beyond, and what has one code is spread evenly over those of its bins that are not
    empty. Zeros are left out: each quantizer has a code for them. Tried are all ranges of so
    many bins as there are codes or more, out of 2048. Of a range whose sides differ, the codes
    are those of the longer side.

    Source: S. Migacz, "8-bit inference with TensorRT", GTC 2017. There codes are equal groups of
    bins, and what lies beyond is gone; here codes are the quantizer's own.
    """
    sizes = abs(seen.sample[seen.sample != 0].astype(np.float64))
    if not sizes.size:
        return seen.low, seen.high
    counts, edges = np.histogram(sizes, _BINS, (0, sizes.max()))
    middles = ((edges[1:] + edges[:-1]) / 2).astype(np.float32)
    middles *= 1 if seen.high >= -seen.low else -1

    def of_bins(bins: int) -> tuple[float, float]:
        end = float(edges[bins])
        return (max(seen.low, -end), min(seen.high, end)) if bins < _BINS else (seen.low, seen.high)

    def codes(bins: int) -> np.ndarray:
        return quantizer.calibrated(*of_bins(bins)).encode(middles[:bins]).codes

    fewest = np.unique(codes(_BINS)).size
    best = min(range(fewest, _BINS + 1), key=lambda bins: _divergence(counts, codes(bins)))
    return of_bins(best)


def _divergence(counts: np.ndarray, codes: np.ndarray) -> float:
    """Of the first bins, whose codes are given, and of the same quantized; see `entropy`."""
    kept, beyond = np.split(counts.astype(np.float64), [codes.size])
    kept[-1] = max(kept[-1], 1)  # or else nothing could be cut off between two far numbers
    filled = kept > 0
    shared = np.bincount(codes, kept) / np.maximum(np.bincount(codes, filled), 1)
    quantized = np.where(filled, shared[codes], 0)
    clipped = kept.copy()
    clipped[-1] += beyond.sum()
    p, q = clipped[filled], quantized[filled]
    return float(np.sum(p * np.log(p / q)) / p.sum())


def calibrate(model: Any, data: Any, *, rule: Rule = min_max, batch_size: int = 32,
              seed: int = 0) -> Any:  # fmt: skip
    """Give every quantized layer of a model the range of its own inputs, in place.

    The model runs on the data without quantization and without training. Layers keep their
    ranges from then on, in files too; those of kernels are found at each call, so that
    training can go on.

    Args:
        model: with layers whose arithmetic quantizes its input, such as after
            `og.swap(model, og.approximate(multiplier))`.
        data: an array, a list of arrays for several inputs, or batches of either (a
            `tf.data.Dataset`, a generator); of pairs (inputs, labels) the first is taken.
        rule: how the range comes from what was seen: `min_max`, `percentile(99.9)`,
            `least_squares`, `entropy`, or a function of yours (see `Rule`).
        batch_size: of arrays.
        seed: of the sample that rules see.

    Returns:
        The same model.

    Raises:
        ArgumentError: no layer quantizes its input, the data is none or empty, a layer was
            never called or runs in a graph, its inputs hold NaN or infinities, or the rule
            gives no range. The model is then as it was.
    """
    if not isinstance(model, keras.Layer):
        raise ArgumentError(
            f"calibrate: {type(model).__name__} is no Keras model; load a saved one first: "
            "keras.models.load_model(path)"
        )
    if not callable(rule):
        raise ArgumentError(
            f"calibrate: rule={rule!r} is no function; og.calibration has min_max, "
            "percentile(99.9), least_squares and entropy"
        )
    found = [layer for layer in (model, *keras_private.all_layers(model)) if _quantizes(layer)]
    if not found:
        raise ArgumentError(
            f"calibrate: model '{model.name}' has no layer that quantizes its input; put an "
            "arithmetic into it first: og.swap(model, og.approximate(multiplier))"
        )
    seen = _observed(model, found, _batches(data, batch_size), seed)
    # All of them first: where one fails, nothing is changed.
    quantizers = [_calibrated(layer, one, rule) for layer, one in zip(found, seen, strict=True)]
    for layer, quantizer in zip(found, quantizers, strict=True):
        layer.set_arithmetic(dataclasses.replace(layer.arithmetic, input=quantizer))
    keras_private.forget_functions(model)
    return model


def _calibrated(layer: Any, seen: Seen, rule: Rule) -> Scaled:
    """The layer's quantizer with the range that the rule gives."""
    name = getattr(layer, "path", None) or layer.name  # Keras 3.3 has no paths
    where = f"calibrate: layer '{name}'"
    if not seen.count:
        raise ArgumentError(f"{where} was not called, or the data is empty; nothing was changed")
    if not np.isfinite([seen.low, seen.high]).all():
        raise ArgumentError(f"{where} is given NaN or infinities; nothing was changed")
    given = rule(seen, layer.arithmetic.input)
    try:
        low, high = (float(end) for end in given)
    except (TypeError, ValueError):
        low = high = np.nan
    if not (np.isfinite([low, high]).all() and low <= high):
        raise ArgumentError(
            f"{where}: the rule gave {given!r}; it must give two finite numbers, the smaller one "
            "first. Nothing was changed"
        )
    return layer.arithmetic.input.calibrated(low, high)


def _quantizes(layer: Any) -> bool:
    return isinstance(layer, layers.ArithmeticLayer) and isinstance(layer.arithmetic.input, Scaled)


def _observed(model: keras.Layer, found: list, batches: Iterator, seed: int) -> list[Seen]:
    """What each layer is given, when the model runs without quantization."""
    draw = np.random.default_rng(seed)
    seen = [Seen() for _ in found]
    kept = [layer.arithmetic for layer in found]
    owners: dict[int, Seen] = {}

    def observe(arithmetic: Any, left: Any) -> None:
        if id(arithmetic) not in owners:
            return
        try:
            values = keras.ops.convert_to_numpy(left)
        except Exception:
            raise ArgumentError(
                "calibrate: a layer runs inside a graph, where what it is given cannot be seen. "
                "Calibrate the model without the tf.function around it"
            ) from None
        owners[id(arithmetic)].add(values, draw)

    try:
        for layer, one in zip(found, seen, strict=True):
            # An object of its own, by which its calls are told apart.
            layer.arithmetic = dataclasses.replace(layer.arithmetic)
            owners[id(layer.arithmetic)] = one
        with recording.exactly(), recording.observed(observe), warnings.catch_warnings():
            # A model may have been built for a list or a mapping; Keras takes the array too.
            warnings.filterwarnings("ignore", "The structure of")
            for batch in batches:
                model(batch, training=False)
    finally:
        for layer, arithmetic in zip(found, kept, strict=True):
            layer.arithmetic = arithmetic
    return seen


def _batches(data: Any, batch_size: int) -> Iterator[Any]:
    """Batches of inputs."""
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ArgumentError(f"calibrate: batch_size={batch_size!r} must be a number above 0")
    if isinstance(data, tuple):
        raise ArgumentError(
            "calibrate: data is a tuple; give the inputs alone: an array, or a list of arrays for "
            "several inputs"
        )
    parts = list(data.values()) if isinstance(data, dict) else data
    arrays = parts if isinstance(parts, list) else [parts]
    if arrays and all(len(getattr(x, "shape", ())) > 0 for x in arrays):
        return _of_arrays(data, arrays, batch_size)
    if isinstance(data, str | list | dict) or not isinstance(data, Iterable):
        raise ArgumentError(
            f"calibrate: data is a {type(data).__name__}; give an array, a list of arrays for "
            "several inputs, or batches of them (a tf.data.Dataset, a generator)"
        )
    return (batch[0] if isinstance(batch, tuple) else batch for batch in data)


def _of_arrays(data: Any, arrays: list, batch_size: int) -> Iterator[Any]:
    lengths = {len(x) for x in arrays}
    if len(lengths) > 1:
        raise ArgumentError(
            f"calibrate: the inputs have {', '.join(map(str, sorted(lengths)))} examples; they "
            "must have the same number"
        )
    for start in range(0, len(arrays[0]), batch_size):
        parts = [x[start : start + batch_size] for x in arrays]
        if isinstance(data, dict):
            yield dict(zip(data, parts, strict=True))
        else:
            yield parts if isinstance(data, list) else parts[0]


__all__ = ["Rule", "Seen", "calibrate", "entropy", "least_squares", "min_max", "percentile"]
