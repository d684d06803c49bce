"""An arithmetic is used whole, or refused: no part of it is ignored."""

import dataclasses
from typing import ClassVar

import keras
import numpy as np
import pytest

import opgraft as og
from opgraft.errors import UnsupportedError


@dataclasses.dataclass(frozen=True)
class Rounding(og.quantizers.Quantizer):
    """A quantizer that no product applies."""

    type_name: ClassVar[str] = "rounding_of_the_tests"


@pytest.mark.parametrize("part", ["input", "kernel"])
@pytest.mark.parametrize("symbolic", [False, True])
def test_a_quantizer_that_would_be_ignored_is_refused(part, symbolic, c_matmul):
    random = np.random.default_rng(0)
    a = keras.Input((3,)) if symbolic else random.normal(size=(2, 3)).astype(np.float32)
    b = random.normal(size=(3, 4)).astype(np.float32)
    for arithmetic in (og.exact, c_matmul):
        quantized = dataclasses.replace(arithmetic, **{part: Rounding()})
        with pytest.raises(UnsupportedError, match=rf"{part}=Rounding\(\).*Quantize the tensor"):
            og.matmul(a, b, arithmetic=quantized)


def test_swap_refuses_such_an_arithmetic_and_changes_nothing(c_matmul):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(og.errors.ArgumentError, match="Quantize the tensor"):
        og.swap(model, dataclasses.replace(c_matmul, input=Rounding()))
    assert type(model.layers[0]) is keras.layers.Dense
