"""The case table as the tests use it: computed through the public operations, as parameters."""

import dataclasses

import opgraft as og
from opgraft.spec import Contraction, DepthwiseConv2D, MatMul
from opgraft.testing import every
from opgraft.verification.cases import (
    CASES,
    CONVOLUTIONS,
    MATMULS,
    SELECTION,
    Case,
    exact_meaning,
    meaning,
)


def compute(contraction: Contraction, arithmetic, left, right):
    """The contraction through the public operations."""
    if isinstance(contraction, MatMul):
        transposes = dataclasses.asdict(contraction)
        return og.matmul(left, right, arithmetic=arithmetic, **transposes)
    geometry = dataclasses.asdict(contraction)
    first = geometry.pop("channels_first")
    geometry["data_format"] = "channels_first" if first else "channels_last"
    op = og.depthwise_conv2d if isinstance(contraction, DepthwiseConv2D) else og.conv2d
    return op(left, right, arithmetic=arithmetic, **geometry)


__all__ = [
    "CASES", "CONVOLUTIONS", "MATMULS", "SELECTION", "Case", "compute", "every", "exact_meaning",
    "meaning",
]  # fmt: skip
