"""The picture of a training: its curves, its first-layer filters, and what it still gets wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from opgraft.data import Dataset
from opgraft.report import Results
from opgraft.style import CURVES, NATIVE, OURS, TITLE
from opgraft.training import Run, Score

LINES: tuple[
    dict[str, Any], ...
] = (  # the kernel run broad and light, so that a native run on top of it does not hide it
    {"color": OURS, "linewidth": 3.2, "alpha": 0.55},
    {"color": NATIVE, "linewidth": 1.1},
)
WRONG_SHOWN = 10


def draw(path: Path, title: str, results: Results) -> None:
    """Draw `results`, the kernel run first, and save the picture at `path`."""
    runs = results.runs
    with matplotlib.rc_context(CURVES):
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
        figure = Figure(figsize=(11, 5.8), dpi=150, layout=layout)
        figure.suptitle(title, **TITLE)
        upper, lower = figure.subfigures(2, 1, height_ratios=(5, 2.4), squeeze=False).flat
        losses, accuracies, filters = upper.subplots(1, 3, width_ratios=(4, 4, 3))
        _losses(losses, runs)
        _accuracies(accuracies, runs)
        _filters(filters, runs[0].model)
        _wrong(lower, results.data, results.scores[0])
        figure.savefig(path)


def _losses(axes, runs: list[Run]) -> None:
    width = max(1, max(run.steps for run in runs) // 60)
    for run, line in zip(runs, LINES, strict=False):
        steps = range(1, run.steps + 1)
        axes.plot(steps, _smooth(run.losses, width), label=run.title, **line)
    axes.set(title="Training loss", xlabel="step", yscale="log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.legend()


def _smooth(values: list[float], width: int) -> np.ndarray:
    """At each place the mean of the last `width` values, of fewer at the start."""
    sums = np.cumsum([0, *values])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - width, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _accuracies(axes, runs: list[Run]) -> None:
    for run, line in zip(runs, LINES, strict=False):
        percent = [100 * epoch["test_accuracy"] for epoch in run.epochs]
        epochs = range(1, len(percent) + 1)
        axes.plot(epochs, percent, marker="o", markersize=3 * line["linewidth"] ** 0.5, **line)
    axes.set(title="Test accuracy, %", xlabel="epoch")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, min_n_ticks=1))


def _filters(axes, model: keras.Model) -> None:
    """The kernels of the first convolution, side by side on one scale."""
    axes.set_axis_off()
    kernel = next((weight for weight in model.get_weights() if weight.ndim == 4), None)
    if kernel is None:
        return
    height, width, channels, count = kernel.shape
    columns = int(np.sqrt(count))
    rows = -(-count // columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), np.nan)
    for index in range(count):
        top, left = (index // columns) * (height + 1), (index % columns) * (width + 1)
        sheet[top : top + height, left : left + width] = kernel[..., index].mean(axis=2)
    limit = np.abs(np.nan_to_num(sheet)).max() or 1
    axes.imshow(sheet, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set_anchor("N")
    axes.set_title("First-layer filters" + " (mean)" * (channels > 1))


def _wrong(figure, data: Dataset, result: Score) -> None:
    wrong = result.wrong
    shown = wrong[np.linspace(0, len(wrong) - 1, min(WRONG_SHOWN, len(wrong)), dtype=int)]
    figure.suptitle(
        f"Wrong in the test: {len(wrong):,} of {len(result.labels):,}  (true → answered)",
        **{**TITLE, "fontsize": 10},
    )
    for index, axes in enumerate(figure.subplots(1, WRONG_SHOWN)):
        axes.set_axis_off()
        if index >= len(shown):
            continue
        image, label = data.x_test[shown[index]], result.labels[shown[index]]
        # Three channels are a colour; of any other number show the mean.
        seen = image if image.shape[-1] == 3 else image.mean(axis=-1)
        axes.imshow(seen, cmap="gray_r", vmin=0, vmax=1)
        answer = f"{label} → {result.predicted[shown[index]]}"
        axes.set_title(answer, loc="center", fontweight="normal")
