"""How a network under an approximate multiplier is told: figures, tables, sentences, a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import ticker
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from rich.table import Table
from rich.text import Text

from opgraft import style
from opgraft.approximation import Noise, Standing, Swap
from opgraft.data import Dataset
from opgraft.multipliers import Multiplier
from opgraft.multipliers import picture as maps

METRICS = ("mean_error", "MAE", "MRE%", "WCE")
PICOJOULE = ("mW", "ns")


@dataclass
class Outcome:
    """What is known of a network under a multiplier; filled in while it is measured.

    Attributes:
        model: the path of its file.
        data: images as the network takes them.
        multiplier, swap: what was put in, and how.
        standings: by title, in order: float, exact, approximate, retrained.
        noises, noises_after: of each layer, before and after retraining.
        epochs: what `training.Run` keeps of them.
        notes: what else a user should know.
    """

    model: str
    data: Dataset
    multiplier: Multiplier
    swap: Swap
    standings: dict[str, Standing] = field(default_factory=dict)
    noises: list[Noise] = field(default_factory=list)
    noises_after: list[Noise] = field(default_factory=list)
    epochs: list[dict[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What was measured on what."""
        name, data = Path(self.model).name, Path(self.data.name).name
        return f"{name} on {data}, {len(self.data.y_test):,} test images"


def figures(outcome: Outcome) -> dict[str, Any]:
    """Every figure as plain numbers, ready for JSON."""
    multiplier, data = outcome.multiplier, outcome.data
    return {
        "model": outcome.model,
        "data": data.name,
        "images": len(data.y_test),
        "range": {255.0: "0 to 255", 1.0: "0 to 1", None: "its own"}[data.white],
        "multiplier": {
            "name": multiplier.name,
            "signed": multiplier.signed,
            "widths": list(multiplier.widths),
            "sha256": multiplier.sha256,
            "metrics": multiplier.metrics(),
            "cost": _cost(multiplier),
        },
        "swap": {**asdict(outcome.swap), "layers": list(outcome.swap.layers)},
        "results": {title: asdict(each) for title, each in outcome.standings.items()},
        "layers": [_layer(*pair) for pair in _noises(outcome)],
        "epochs": outcome.epochs,
        "notes": [*data.notes, *outcome.notes],
    }


def _layer(before: Noise, after: Noise | None) -> dict[str, Any]:
    told = {
        "layer": before.layer,
        "class": before.kind,
        "snr_exact_db": before.exact,
        "snr_float_db": before.native,
        "constant_share": before.constant,
        "engine": before.engine,
    }
    return told if after is None else told | {"snr_exact_retrained_db": after.exact}


def _noises(outcome: Outcome) -> Iterator[tuple[Noise, Noise | None]]:
    after: Sequence[Noise | None] = outcome.noises_after or [None] * len(outcome.noises)
    return zip(outcome.noises, after, strict=True)


def _cost(multiplier: Multiplier) -> dict[str, Any] | None:
    cost = multiplier.cost
    if cost is None:
        return None
    told = asdict(cost)
    power, delay = cost.power, cost.delay
    if power is not None and delay is not None and (cost.power_unit, cost.delay_unit) == PICOJOULE:
        told["energy_pJ"] = power * delay
    return told


# ---- tables and sentences --------------------------------------------------------------------


def tables(outcome: Outcome) -> list[tuple[str, Table]]:
    """With their titles: how right the network is, and how far each layer is off."""
    return [
        (outcome.title, _standings(outcome)),
        ("Signal-to-noise ratio of each layer, dB", _layers(outcome)),
    ]


def _standings(outcome: Outcome) -> Table:
    sheet = _sheet("", "accuracy", "loss", "against float")
    names = {
        "exact": f"exact products of {_bits(outcome.multiplier)} bits",
        "approximate": outcome.multiplier.name or "approximate products",
        "retrained": "the same, retrained",
    }
    start = next(iter(outcome.standings.values())).accuracy
    for title, each in outcome.standings.items():
        cells = (f"{each.accuracy:.2%}", f"{each.loss:.3f}")
        apart = "" if title == "float" else f"{100 * (each.accuracy - start):+.2f} points"
        sheet.add_row(Text(names.get(title, title)), *cells, apart)
    return sheet


def _bits(multiplier: Multiplier) -> str:
    return "x".join(map(str, multiplier.widths))


def _layers(outcome: Outcome) -> Table:
    heads = ["layer", "", "against exact", "against float", "constant"]
    if outcome.noises_after:
        heads.append("retrained")
    heads.append("engine")
    sheet = _sheet(*heads)
    for before, after in _noises(outcome):
        cells = [before.kind, *map(decibels, (before.exact, before.native))]
        cells.append(f"{before.constant:.0%}")
        if after is not None:
            cells.append(decibels(after.exact))
        cells.append(before.engine)
        sheet.add_row(Text(before.layer), *cells)
    return sheet


def _sheet(*heads: str) -> Table:
    sheet = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for at, head in enumerate(heads):
        text = at == 0 or head in ("", "engine")
        sheet.add_column(head, justify="left" if text else "right", overflow="fold")
    return sheet


def decibels(value: float) -> str:
    """Of a ratio that may be infinite."""
    return f"{value:.1f}" if math.isfinite(value) else "∞" if value > 0 else "-∞"


def sentences(outcome: Outcome) -> list[str]:
    """What the columns mean, what the multiplier is, and what else there is to know."""
    multiplier = outcome.multiplier
    known = multiplier.metrics()
    facts = ", ".join(f"{name.replace('_', ' ')} {known[name]:.5g}" for name in METRICS)
    kind = f"{'signed' if multiplier.signed else 'unsigned'} {_bits(multiplier)}"
    told = [
        "constant: what part of the noise's power, against exact products, is the same all over "
        "a channel, as a mean error makes it; the layers behind it can be retrained to allow for "
        "that part.",
        f"{multiplier.name or 'the multiplier'}: {kind}, {facts}{_cost_text(multiplier)}.",
    ]
    return told + outcome.notes


def _cost_text(multiplier: Multiplier) -> str:
    told = _cost(multiplier)
    if told is None:
        return ""
    parts = [
        f"{name} {told[name]:g} {told[f'{name}_unit'].replace('um2', 'µm²')}"
        for name in ("power", "area", "delay") if told[name] is not None
    ]  # fmt: skip
    if "energy_pJ" in told:
        parts.append(f"energy (power times delay) {told['energy_pJ']:.3g} pJ")
    return "; " + ", ".join(parts) + f" ({told['technology']})" * bool(told["technology"])


# ---- the picture -----------------------------------------------------------------------------


def draw(path: Path, outcome: Outcome) -> None:
    """Draw the accuracies, the noise of each layer and the multiplier's errors, as a PNG."""
    with matplotlib.rc_context({**style.CURVES, "axes.grid": False, "axes.axisbelow": True}):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
        height = max(3.9, 1.6 + 0.2 * len(outcome.noises))
        figure = Figure(figsize=(12.5, height), dpi=150, layout=layout)
        figure.suptitle(outcome.title, **style.TITLE)
        accuracy, layers, errors = figure.subplots(1, 3, width_ratios=(4, 4, 3.2))
        accuracy.grid(axis="y")
        layers.grid()
        _draw_accuracy(accuracy, outcome)
        _draw_layers(layers, outcome)
        maps.draw_panel(figure, errors, outcome.multiplier)
        errors.set(xlabel="kernel", ylabel="activation")
        if outcome.swap.exchanged:
            errors.set(xlabel="activation", ylabel="kernel")
        figure.savefig(path, format="png")


def _draw_accuracy(axes: Any, outcome: Outcome) -> None:
    percent = {title: 100 * each.accuracy for title, each in outcome.standings.items()}
    if outcome.epochs:
        _draw_epochs(axes, percent, outcome.epochs)
        axes.legend(loc="best")
    else:
        colours = [style.NATIVE, style.NATIVE, style.OURS][: len(percent)]
        bars = axes.bar(list(percent), list(percent.values()), color=colours, width=0.55)
        axes.bar_label(bars, fmt="%.1f", padding=2)
        axes.set_ylim(0, 105)
    axes.set_title("Test accuracy, %")


def _draw_epochs(axes: Any, percent: dict[str, float], epochs: Sequence[dict]) -> None:
    reached = [percent["approximate"], *(100 * each["test_accuracy"] for each in epochs)]
    axes.axhline(percent["float"], color=style.NATIVE, linewidth=1.1, label="float")
    axes.axhline(percent["exact"], color=style.NATIVE, linewidth=1.1, linestyle=":", label="exact")
    axes.plot(
        range(len(reached)), reached, color=style.OURS, linewidth=2, marker="o", markersize=4,
        label="approximate",
    )  # fmt: skip
    axes.set_xlabel("epoch of retraining")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, min_n_ticks=1))


def _draw_layers(axes: Any, outcome: Outcome) -> None:
    rows = range(len(outcome.noises))
    series = [("against float", style.NATIVE, [each.native for each in outcome.noises]),
              ("against exact", style.OURS, [each.exact for each in outcome.noises])]  # fmt: skip
    if outcome.noises_after:
        after = [each.exact for each in outcome.noises_after]
        series.append(("against exact, retrained", style.FAINT, after))
    for title, colour, values in series:
        shown = [value if math.isfinite(value) else math.nan for value in values]
        axes.plot(shown, rows, "o", color=colour, markersize=5, alpha=0.8, label=title)
    axes.set_yticks(rows, [each.layer for each in outcome.noises])
    axes.invert_yaxis()
    axes.set(title="Signal-to-noise ratio of each layer, dB", xlabel="dB")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=len(series), fontsize=7.5)
