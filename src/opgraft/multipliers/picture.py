"""The picture of multipliers: where in the plane of both operands each is wrong, and how far."""

import math
import os
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from opgraft.multipliers._multiplier import Multiplier
from opgraft.style import PLAIN, TITLE

_PANEL = 3.1  # inches, with its scale
_NAME, _LONG = 40, 28  # letters of a name that fit above one; of those that fit in full size
_SHOWN = 99.5  # percent of all errors that lie within the colours' range


def draw(path: str | os.PathLike, multipliers: Sequence[Multiplier], kind: str = "png") -> None:
    """Draw the error of every multiplier over its operands, and save the picture.

    Args:
        path: of the file.
        multipliers: one panel each.
        kind: of the file, as matplotlib names it.
    """
    count = len(multipliers)
    down = max(1, round(math.sqrt(count / 1.8)))
    across = math.ceil(count / down)
    panel = _PANEL if count > 1 else 1.6 * _PANEL
    with matplotlib.rc_context(PLAIN):
        figure = Figure(
            figsize=(panel * across + 0.4, panel * 0.88 * down + 0.7),
            dpi=300,  # two dots and more for each code

            layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1),
        )  # fmt: skip
        figure.suptitle("Error: the table minus the exact product", **TITLE)
        figure.supxlabel("second operand (kernel)", fontsize=10)
        figure.supylabel("first operand (activation)", fontsize=10)
        panels = list(figure.subplots(down, across, squeeze=False).flat)
        for axes, multiplier in zip(panels, multipliers, strict=False):
            draw_panel(figure, axes, multiplier)
        for axes in panels[count:]:
            axes.set_axis_off()
        figure.savefig(path, format=kind)


def draw_panel(figure: Figure, axes: Any, multiplier: Multiplier) -> None:
    """One multiplier: rows and columns in order of the numbers, not of the codes."""
    rows, columns = (_ascending(values) for values in multiplier.values)
    part = np.ix_(rows, columns)
    with np.errstate(invalid="ignore"):
        error = (multiplier.table[part] - multiplier.exact[part]).astype(np.float64)
    error[~np.isfinite(error)] = np.nan
    size = abs(error[np.isfinite(error)])
    largest = float(size.max(initial=0.0))
    usual = float(np.percentile(size, _SHOWN)) if size.size else 0.0
    limit = usual or largest or 1.0
    image = axes.imshow(
        error, cmap="RdBu_r", vmin=-limit, vmax=limit, origin="lower", aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    axes.set_box_aspect(1)
    _ticks(axes.yaxis, multiplier.values[0][rows])
    _ticks(axes.xaxis, multiplier.values[1][columns])
    name = textwrap.shorten(multiplier.name or "no name", _NAME, placeholder=" …")
    axes.set_title(f"{name}\n", fontsize=10 if len(name) < _LONG else 8)
    axes.annotate(_caption(error), (0, 1.03), xycoords="axes fraction", fontsize=7.5)
    if largest:
        bar = figure.colorbar(
            image, cax=axes.inset_axes((1.04, 0, 0.045, 1)), ticks=ticker.MaxNLocator(5),
            extend="both" if largest > limit else "neither", extendfrac=0.03, format=_number,
        )  # fmt: skip
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=7, length=2)


def _ascending(values: np.ndarray) -> np.ndarray:
    """The codes of all finite numbers, the smallest first."""
    order = np.argsort(values, kind="stable")
    return order[np.isfinite(values[order])]


def _caption(error: np.ndarray) -> str:
    finite = error[np.isfinite(error)]
    if not finite.any():
        return "no error"
    mean, low, high = (_number(x) for x in (finite.mean(), finite.min(), finite.max()))
    return f"mean {mean}, from {low} to {high}"


def _number(value: float, position: int | None = None) -> str:
    """As text; the position is what matplotlib adds for each of its ticks."""
    text = f"{value:,.0f}" if abs(value) >= 1e4 else f"{value + 0.0:.4g}"  # no -0
    return text.replace("-", "\N{MINUS SIGN}")


def _ticks(axis: Any, values: np.ndarray) -> None:
    """The smallest number, 0 or the middle, and the largest."""
    at = sorted({0, len(values) // 2, len(values) - 1})
    axis.set_ticks(at, [_number(float(values[i])) for i in at])
