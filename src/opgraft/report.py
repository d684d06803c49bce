"""How a training is told: the bar while it goes on, the figures and the table after it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from opgraft.data import Dataset
from opgraft.training import Deviation, Run, Score


@dataclass(frozen=True)
class Results:
    """What is known after a training, however far it came: the kernel run first."""

    data: Dataset
    runs: list[Run]
    scores: list[Score]
    deviations: list[Deviation]


def progress(console: Console) -> Progress:
    """The live display that the `Bar`s of several runs share."""
    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(compact=True),
    )
    return Progress(*columns, console=console, refresh_per_second=4)


class Bar(keras.callbacks.Callback):
    """Shows one run on a `progress` display, and leaves a line behind for every epoch."""

    def __init__(self, display: Progress, title: str):
        super().__init__()
        self._display, self._title = display, title

    def on_train_begin(self, logs=None):
        total = self.params["epochs"] * self.params["steps"]
        self._task = self._display.add_task(self._title, total=total, state="")

    def on_train_batch_end(self, batch, logs=None):
        state = f"loss {logs['loss']:.3f}  accuracy {logs['accuracy']:6.2%}"
        self._display.update(self._task, advance=1, state=state)

    def on_epoch_end(self, epoch, logs=None):
        self._display.console.print(
            f"{self._title:<9} epoch {epoch + 1}/{self.params['epochs']}: loss {logs['loss']:.3f}, "
            f"accuracy {logs['accuracy']:.2%}, test accuracy {logs['val_accuracy']:.2%}",
        )


def figures(results: Results) -> dict[str, Any]:
    """Every figure of a training as plain numbers, ready for JSON."""
    told: dict[str, Any] = {
        "runs": [_run(run, score) for run, score in zip(results.runs, results.scores, strict=True)],
        "deviations": [asdict(each) for each in results.deviations],
    }
    if len(results.runs) == 2:
        kernel, native = told["runs"]
        if kernel["steps"] == native["steps"]:  # else it would compare two lengths of training
            apart = kernel["test_accuracy"] - native["test_accuracy"]
            told["accuracy_difference_points"] = 100 * apart
        told["step_time_ratio"] = kernel["step_ms"]["median"] / native["step_ms"]["median"]
    return told


def plain(value: Any) -> Any:
    """The same figures with None for NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _run(run: Run, score: Score) -> dict[str, Any]:
    low, median, high = 1e3 * np.percentile(run.step_seconds, (10, 50, 90))
    return {
        "title": run.title,
        "steps": run.steps,
        "step_ms": {"p10": float(low), "median": float(median), "p90": float(high)},
        "test_accuracy": score.accuracy,
        "wrong": len(score.wrong),
        "epochs": run.epochs,
    }


def table(told: dict[str, Any], title: str) -> Table:
    """The `figures` of a training in one table, the kernel run set beside the native one."""
    runs = told["runs"]
    accuracy = [f"{run['test_accuracy']:.2%}" for run in runs]
    duration = [f"{run['step_ms']['median']:.1f} ms" for run in runs]
    if "accuracy_difference_points" in told:
        accuracy.append(f"{told['accuracy_difference_points']:+.2f} points")
    if "step_time_ratio" in told:
        duration.append(f"{told['step_time_ratio']:.2f} times")

    sheet = Table(title=title, title_justify="left", title_style="bold")
    sheet.add_column("")
    for heading in (runs[0]["title"], "native", "difference"):
        sheet.add_column(heading, justify="right")
    sheet.add_row("test accuracy", *accuracy)
    sheet.add_row("time per step, median", *duration)
    sheet.add_row("steps trained", *(f"{run['steps']:,}" for run in runs))
    sheet.add_section()
    heads = ("forward |kernel - native|", "largest", "mean", "mean |native|")
    sheet.add_row(*heads, style="bold")
    for each in told["deviations"]:
        cells = (f"{each[key]:.2g}" for key in ("largest", "mean", "scale"))
        sheet.add_row(f"  {each['layer']}", *cells)
    return sheet
