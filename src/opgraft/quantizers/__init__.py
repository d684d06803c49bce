"""What the arithmetic sees instead of the float operand."""

from opgraft.quantizers._base import Codes, Identity, Quantizer, identity
from opgraft.quantizers.linear import Affine, Linear, Symmetric

__all__ = ["Affine", "Codes", "Identity", "Linear", "Quantizer", "Symmetric", "identity"]
