"""Multipliers as tables: families, files, circuits, and how far they are from exact."""

from opgraft.multipliers._multiplier import Cost, Multiplier
from opgraft.multipliers.errors import ZeroBehaviour
from opgraft.multipliers.families import (
    broken_array,
    drum,
    exact,
    kulkarni,
    mitchell,
    roba,
    rounded,
    sign_magnitude,
    truncated,
)
from opgraft.multipliers.floating import FloatMultiplier

__all__ = [
    "Cost",
    "FloatMultiplier",
    "Multiplier",
    "ZeroBehaviour",
    "broken_array",
    "drum",
    "exact",
    "kulkarni",
    "mitchell",
    "roba",
    "rounded",
    "sign_magnitude",
    "truncated",
]
