"""How the pictures look: inks, sizes and where titles stand."""

from typing import Any

INK, FAINT = "#2b2d33", "#8b9099"
OURS, NATIVE = "#e4572e", "#1b3a5c"
TITLE: Any = {"x": 0.012, "ha": "left", "fontsize": 12, "fontweight": "bold"}
PLAIN: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "text.color": INK,
}
CURVES: Any = PLAIN | {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e8eb",
    "legend.frameon": False,
}
