"""What the arithmetic sees instead of the float operand."""

from opgraft.quantizers._base import (
    Codes,
    Identity,
    Quantizer,
    Scaled,
    State,
    codes_dtype,
    identity,
)
from opgraft.quantizers.levels import Levels
from opgraft.quantizers.linear import Affine, Linear, Symmetric

__all__ = [
    "Affine", "Codes", "Identity", "Levels", "Linear", "Quantizer", "Scaled", "State", "Symmetric",
    "codes_dtype", "identity",
]  # fmt: skip
