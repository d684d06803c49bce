"""Drawings of a deviation as inline SVG: an error map, a histogram, and panels.

Colours are classes (`s0` to `s9` for magnitudes, `d0` to `d10` for signed
values, `nan`), so that the page's style decides them for light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from opgraft.verification.difference import NOISE, number, short

STEPS = 9  # of magnitude above zero
SIDES = 5  # steps of signed values, on each side of zero
CELLS = 64  # at most, along each side of a map
BARS = 31
LENGTH, HEIGHT = 320, 180  # of a map's longer side and a histogram's axis of errors; its height
LARGEST_CELL, SHORTEST_SIDE = 40, 80
LEFT, TOP, RIGHT, BOTTOM = 54, 8, 12, 42
FONT, SMALLEST_FONT, GLYPH = 11, 7.5, 0.62  # sizes of text; a digit's width by its height
SWATCH = 18
Names = tuple[str, str]  # of the axes of rows and of columns


# ---- maps and panels -----------------------------------------------------------------


def error_map(sizes: np.ndarray, names: Names) -> tuple[str, int, int]:
    """A map of magnitudes [rows, columns]; with it the rows and columns that share one cell."""
    rows, columns = (-(-size // CELLS) for size in sizes.shape)
    for axis, block in enumerate((rows, columns)):
        starts = np.arange(0, sizes.shape[axis], block)
        sizes = np.maximum.reduceat(sizes, starts, axis=axis)
    limit = float(sizes[np.isfinite(sizes)].max(initial=0.0))
    grid = _Grid(names, sizes.shape, (rows, columns))
    drawing = grid.draw(sizes, lambda value: _magnitude(value, limit))
    kinds = [f"s{step}" for step in range(STEPS + 1)] if limit else ["s0"]
    labels = ["0", short(limit)] if limit else ["0"]
    return drawing + _legend(kinds, labels, sizes), rows, columns


def panel(values: np.ndarray, limit: float, names: Names) -> str:
    """Signed values [rows, columns], coloured from -limit to limit, written where they fit."""
    grid = _Grid(names, values.shape)
    drawing = grid.draw(values, lambda value: _signed(value, limit), written=True)
    kinds = [f"d{step}" for step in range(2 * SIDES + 1)] if limit else [f"d{SIDES}"]
    labels = [short(-limit), "0", short(limit)] if limit else ["0"]
    return drawing + _legend(kinds, labels, values)


def _magnitude(value: float, limit: float) -> str:
    """Whatever counts as a deviation has another colour than zero."""
    if not math.isfinite(value):
        return "nan"
    return f"s{math.ceil(STEPS * (value / limit))}" if value > NOISE * limit else "s0"


def _signed(value: float, limit: float) -> str:
    if not math.isfinite(value):
        return "nan"
    step = math.ceil(SIDES * abs(value / limit)) if value else 0
    return f"d{SIDES + step if value > 0 else SIDES - step}"


class _Grid:
    """Cells in rows and columns, and where they are drawn.

    Args:
        names: of the two axes.
        shape: how many rows and columns of cells.
        blocks: how many rows and columns of elements share one.
    """

    def __init__(
        self, names: Names, shape: tuple[int, ...], blocks: tuple[int, int] = (1, 1)
    ) -> None:
        self.names, self.blocks = names, blocks
        self.rows, self.columns = rows, columns = shape
        square = min(LARGEST_CELL, LENGTH / max(rows, columns))
        # Not so thin that a single row could be overlooked.
        self.wide = max(square, min(LARGEST_CELL, SHORTEST_SIDE / columns))
        self.high = max(square, min(LARGEST_CELL, SHORTEST_SIDE / rows))

    def draw(self, values: np.ndarray, kind_of, *, written: bool = False) -> str:
        """The cells in the classes that `kind_of` gives them, with their indices beside them."""
        size = self._font([_briefly(value) for value in values.flat]) if written else 0.0
        parts = []
        for (row, column), value in np.ndenumerate(values):
            x, y, kind = LEFT + column * self.wide, TOP + row * self.high, kind_of(value)
            place = ", ".join(map(_span, self.names, (row, column), self.blocks))
            parts.append(_rect(kind, x, y, self.wide, self.high, f"{place}: {number(value)}"))
            if size:
                middle, base = x + self.wide / 2, y + self.high / 2 + 0.36 * size
                parts.append(_label(middle, base, _briefly(value), f"value on-{kind}", size))
        width, height = self.columns * self.wide, self.rows * self.high
        parts += [_rect("edge", LEFT, TOP, width, height), *self._indices(width, height)]
        return _svg(LEFT + width + RIGHT, TOP + height + BOTTOM, parts)

    def _font(self, texts: list[str]) -> float:
        """The size at which all texts fit into a cell, or 0 where they could not be read."""
        fits = 0.92 * self.wide / (GLYPH * max(map(len, texts)))
        return min(FONT, fits) if fits >= SMALLEST_FONT else 0.0

    def _indices(self, width: float, height: float) -> list[str]:
        parts = []
        for column in _ticks(self.columns, 36 / self.wide):
            x, index = LEFT + (column + 0.5) * self.wide, column * self.blocks[1]
            parts.append(_label(x, TOP + height + 15, f"{index}", "middle"))
        for row in _ticks(self.rows, 15 / self.high):
            y, index = TOP + (row + 0.5) * self.high + 4, row * self.blocks[0]
            parts.append(_label(LEFT - 6, y, f"{index}", "end"))
        parts.append(_label(LEFT + width / 2, TOP + height + 33, self.names[1], "middle name"))
        return [*parts, _upright(self.names[0], TOP + height / 2)]


def _span(name: str, index: int, block: int) -> str:
    first = index * block
    return f"{name} {first}" if block == 1 else f"{name} {first}-{first + block - 1}"


def _briefly(value: float) -> str:
    """A number for a cell: whole where it is whole, else of two digits."""
    return number(value) if value == np.round(value) else number(float(f"{value:.2g}"))


def _ticks(count: int, apart: float) -> range:
    """Indices to label, a round step of at least `apart` between them."""
    return range(0, count, round(_round_step(max(1.0, apart))))


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(each * power for each in (1, 2, 5, 10) if each * power >= 0.999 * least)


# ---- the histogram -------------------------------------------------------------------


def histogram(errors: np.ndarray) -> str:
    """How many elements have an error of which size; the counts in powers of ten."""
    errors = np.clip(errors, -1e300, 1e300)  # so that the span is finite, too
    counts, edges = np.histogram(errors, _bins(errors))
    low, high = edges[0], edges[-1]
    top = math.ceil(math.log10(counts.max())) or 1
    ground = TOP + HEIGHT

    def x_of(value: float) -> float:
        return LEFT + LENGTH * ((value - low) / (high - low))

    def y_of(count: float) -> float:  # the ground is half an element, so that one is seen
        return ground - HEIGHT * math.log10(2 * count) / math.log10(2 * 10**top)

    parts = []
    for count in (10**power for power in range(top + 1)):
        y = y_of(count)
        parts.append(f'<path class="line" d="M{LEFT} {y:g}H{LEFT + LENGTH}"/>')
        parts.append(_label(LEFT - 6, y + 4, f"{count:,}", "end"))
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        if count:
            x, y = x_of(left) + 0.5, y_of(count)
            told = f"{count:,} elements: errors from {short(left)} to {short(right)}"
            parts.append(_rect("bar", x, y, x_of(right) - 0.5 - x, ground - y, told))
    parts.append(f'<path class="edge" d="M{LEFT} {ground}H{LEFT + LENGTH}"/>')
    parts.append(f'<path class="zero" d="M{x_of(0):g} {TOP}V{ground}"/>')
    parts += [_label(x_of(v), ground + 15, short(v), "middle") for v in _between(low, high)]
    middle = LEFT + LENGTH / 2
    parts.append(_label(middle, ground + 33, "error (actual &minus; expected)", "middle name"))
    parts.append(_upright("elements", TOP + HEIGHT / 2))
    return _svg(LEFT + LENGTH + RIGHT + 12, ground + BOTTOM, parts)


def _bins(errors: np.ndarray) -> np.ndarray:
    """Edges of bars from the least to the largest error, and zero; whole errors amid a bar each."""
    low, high = min(float(errors.min()), 0.0), max(float(errors.max()), 0.0)
    if high - low < BARS and (errors == np.round(errors)).all():
        return np.arange(low - 1, high + 2) + 0.5
    return np.linspace(low, high, BARS + 1)


def _between(low: float, high: float) -> Iterable[float]:
    """Round values to label, about five."""
    step = _round_step((high - low) / 5)
    return (step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1))


# ---- pieces --------------------------------------------------------------------------


def _rect(kind: str, x: float, y: float, width: float, height: float, told: str = "") -> str:
    title = f"<title>{told}</title>" if told else ""
    box = f'x="{x:.6g}" y="{y:.6g}" width="{width:.6g}" height="{height:.6g}"'
    return f'<rect class="{kind}" {box}>{title}</rect>'


def _label(x: float, y: float, text: str, kind: str, size: float = 0.0) -> str:
    style = f' style="font-size: {size:.3g}px"' if size else ""
    return f'<text class="{kind}" x="{x:.6g}" y="{y:.6g}"{style}>{text}</text>'


def _upright(text: str, y: float) -> str:
    turned = f'transform="rotate(-90 12 {y:.6g})"'
    return f'<text class="middle name" x="12" y="{y:.6g}" {turned}>{text}</text>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {width:.6g} {height:.6g}" width="{width:.6g}" height="{height:.6g}"'
    return f'<svg role="img" {box}>{"".join(parts)}</svg>'


def _legend(kinds: list[str], labels: list[str], values: np.ndarray) -> str:
    """A bar of colours, labelled from end to end, and the colour of what is not finite."""
    length = SWATCH * len(kinds)
    parts = [_rect(kind, LEFT + SWATCH * i, 4, SWATCH, 12) for i, kind in enumerate(kinds)]
    parts.append(_rect("edge", LEFT, 4, length, 12))
    for i, label in enumerate(labels):
        share = i / (len(labels) - 1) if len(labels) > 1 else 0.5
        parts.append(_label(LEFT + length * share, 30, label, "middle"))
    if not np.isfinite(values).all():
        x = LEFT + length + 40
        parts += [_rect("nan", x, 4, SWATCH, 12), _rect("edge", x, 4, SWATCH, 12)]
        parts.append(_label(x + SWATCH / 2, 30, "not finite", "middle"))
        length += 40 + SWATCH
    return _svg(LEFT + length + 30, 36, parts)
