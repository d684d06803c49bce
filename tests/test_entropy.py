"""Ranges by the least divergence, against loops and where the answer is known."""

import math

import numpy as np
import pytest

import opgraft as og
from opgraft import calibration
from opgraft.quantizers import Affine, Levels, Symmetric

QUANTIZERS = [Symmetric(3), Affine(3), Levels.of([0, 0.5, 1, 2, 3, -1, -2, None])]
NAMES = ["symmetric", "affine", "levels"]
every_quantizer = pytest.mark.parametrize("quantizer", QUANTIZERS, ids=NAMES)


def seen_of(values) -> calibration.Seen:
    seen = calibration.Seen()
    seen.add(np.asarray(values, np.float32), np.random.default_rng(0))
    return seen


def draw(kind: str, size: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "one sided":
        return np.maximum(rng.normal(0.3, 1, size), 0)
    return getattr(rng, kind)(0.4, 1, size)


def divergences(values: np.ndarray, quantizer, count: int) -> dict[tuple[float, float], float]:
    """For every range what is lost, number by number and bin by bin."""
    values = np.asarray(values, np.float32)
    least, most = float(values.min()), float(values.max())
    sizes = [float(abs(v)) for v in values if v != 0]
    edges = np.linspace(0, max(sizes), count + 1)
    bins = [0] * count
    for size in sizes:
        bins[next(i for i in range(count) if size < edges[i + 1] or i == count - 1)] += 1
    side = 1 if most >= -least else -1
    found = {}
    for kept in range(1, count + 1):
        end = float(edges[kept]) if kept < count else math.inf
        low, high = max(least, -end), min(most, end)
        middles = [np.float32(side * (edges[i] + edges[i + 1]) / 2) for i in range(kept)]
        coded = quantizer.calibrated(low, high)
        codes = [int(coded.encode(np.array([middle])).codes[0]) for middle in middles]
        if kept == count:
            distinct = len(set(codes))
        own = bins[:kept]
        own[-1] = max(own[-1], 1)
        p = [float(each) for each in own]
        p[-1] += sum(bins[kept:])
        q = []
        for i in range(kept):
            same = [own[j] for j in range(kept) if codes[j] == codes[i] and own[j]]
            q.append(sum(same) / len(same) if own[i] else 0)
        total = sum(p)  # of q, too: its other numbers lie beyond
        terms = [a / total * math.log(a / b) for a, b in zip(p, q, strict=True) if a]
        found[low, high] = sum(terms)
    return dict(list(found.items())[distinct - 1 :])


@every_quantizer
@pytest.mark.parametrize("kind", ["normal", "laplace", "one sided", "gumbel"])
def test_the_range_is_the_one_that_loops_find(kind, quantizer, monkeypatch):
    monkeypatch.setattr(calibration, "_BINS", 31)
    for seed in (1, 2):
        values = draw(kind, 500, seed)
        due = divergences(values, quantizer, 31)
        found = calibration.entropy(seen_of(values), quantizer)
        key = min(
            due, key=lambda ends: np.ptp([*found, *ends]) + abs(np.subtract(found, ends)).sum()
        )
        np.testing.assert_allclose(found, key, rtol=1e-5)
        assert due[key] <= min(due.values()) + 1e-9


@pytest.mark.parametrize("quantizer", [Symmetric(8), Affine(8)], ids=str)
@pytest.mark.parametrize("sides", [1, 2])
def test_a_few_far_numbers_are_cut_off(quantizer, sides):
    values = np.random.default_rng(4).normal(0, 1, 40_000)
    values = abs(values) if sides == 1 else values
    usual = abs(values).max()
    low, high = calibration.entropy(seen_of([*values, 70.0, 50.0]), quantizer)
    assert low == pytest.approx(max(values.min(), -high))
    assert 0.6 * usual < high < 12  # 256 bins of the histogram end at 8.75
    assert (low, high) != calibration.min_max(seen_of([*values, 70.0, 50.0]), quantizer)


@pytest.mark.parametrize("quantizer", [Symmetric(8), Symmetric(4), Affine(8), Affine(5)], ids=str)
@pytest.mark.parametrize("low", [0.0, -1.0, -3.0])
def test_nothing_of_a_uniform_distribution_is_cut_off(quantizer, low):
    values = np.random.default_rng(5).uniform(low, 1 if low > -3 else 3, 60_000)
    seen = seen_of(values)
    assert calibration.entropy(seen, quantizer) == (seen.low, seen.high)


def test_with_more_codes_than_bins_nothing_is_cut_off():
    seen = seen_of(np.random.default_rng(6).laplace(0, 1, 5_000))
    assert calibration.entropy(seen, Symmetric(14)) == (seen.low, seen.high)


def test_zeros_have_a_code_and_change_nothing():
    values = draw("one sided", 20_000)
    positive = values[values > 0]
    ends = [calibration.entropy(seen_of(each), Symmetric(6))[1] for each in (values, positive)]
    assert ends[0] == ends[1] < values.max()


def test_a_narrow_distribution_far_from_zero_is_kept():
    values = np.random.default_rng(8).uniform(0.9, 1, 3_000)
    _, high = calibration.entropy(seen_of(values), Affine(8))
    assert np.mean(values <= high) > 0.99


@pytest.mark.parametrize("values", [[0.0, 0.0], [2.5], [-2.5, 0], [1.0, 2.5]], ids=str)
def test_few_numbers(values):
    assert calibration.entropy(seen_of(values), Affine(8)) == (min(values), max(values))


def test_in_a_model():
    x = np.random.default_rng(7).normal(0, 1, (400, 6)).astype(np.float32)
    x[0, 0] = 40.0
    layer = og.layers.Dense(3, arithmetic=og.approximate(og.multipliers.exact(signed=True)))
    og.calibrate(layer, x, rule=calibration.entropy)
    assert abs(x[1:]).max() * 0.6 < layer.arithmetic.input.limit < 10
