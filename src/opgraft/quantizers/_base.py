"""The contract of a quantizer, and the one that changes nothing."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from opgraft.values import Value


class Codes(NamedTuple):
    """What an arithmetic sees of an operand.

    Attributes:
        codes: uint8, or uint16 beyond 8 bits, of the operand's shape: the bits of whole
            numbers q.
        scale, zero_point: an element's value is scale (q - zero_point); the scale is a
            number, or has one for each channel.
        values: that value, in the operand's dtype.
    """

    codes: np.ndarray
    scale: np.ndarray
    zero_point: int
    values: np.ndarray


class State(NamedTuple):
    """A number, or an array, that a quantizer must remember from call to call.

    Attributes:
        name: of the weight that holds it.
        shape: of that weight.
        initial: what it holds at first.
        trainable: whether the optimizer changes it; else the quantizer says what comes next.
    """

    name: str
    shape: tuple[int, ...] = ()
    initial: float = 0.0
    trainable: bool = False


def codes_dtype(bits: int) -> type[np.unsignedinteger]:
    """What codes of so many bits are kept in."""
    return np.uint8 if bits <= 8 else np.uint16


class Quantizer(Value):
    """Replaces an operand x by decode(q(x)), the value the arithmetic really uses.

    Laws that every quantizer keeps, and that its tests show:
      - a value: frozen, comparable, hashable, serialisable, without variables;
      - decode(q(x)) has the shape and the dtype of x;
      - idempotent: quantizing decode(q(x)) again changes nothing, where the range is given;
      - its pseudo-gradient is declared, by formula and source, in its docstring.

    What a quantizer must remember it declares as `states`. A layer owns these as weights and
    hands them in at each call; an operation takes them as an argument. Without them the range is
    that of the operand.

    How a framework applies a quantizer is registered in that framework's backend.
    """

    @property
    def states(self) -> tuple[State, ...]:
        """What it must remember."""
        return ()

    def next_states(self, states: Sequence[Any], x: Any) -> Sequence[Any]:
        """What its states are after an operand x was seen in training, by `keras.ops`."""
        return states

    def with_states(self, states: Sequence[Any]) -> "Quantizer":
        """What it means while its states have these values: a quantizer without states."""
        return self

    def dynamic(self) -> "Quantizer":
        """The same, its range that of each tensor it is given."""
        return self


class Scaled(Quantizer):
    """Codes of a few bits, whose numbers are multiplied by a scale.

    Attributes:
        bits: of a code.
        per_channel: whether each output channel has a scale of its own.
    """

    bits: int
    per_channel: bool

    @property
    def numbers(self) -> np.ndarray:
        """What each code stands for, before the scale and the zero point."""
        raise NotImplementedError

    def dynamic(self) -> "Scaled":
        raise NotImplementedError

    def calibrated(self, low: float, high: float) -> "Scaled":
        """For values from low to high."""
        raise NotImplementedError

    def encode(self, x: np.ndarray, axes: tuple[int, ...] | None = None) -> Codes:
        """The meaning, in NumPy; `axes` are those that share a scale, None for all."""
        raise NotImplementedError

    def passes(self, x: np.ndarray) -> np.ndarray:
        """Where the pseudo-gradient is 1: where nothing is clipped."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Identity(Quantizer):
    """q(x) = x; its gradient is the identity."""

    type_name: ClassVar[str] = "identity"


identity = Identity()
