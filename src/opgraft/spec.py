"""Contractions and their geometry: frozen values on plain ints, no framework.

A `Contraction` is what a layer asks for (a matrix product, a convolution and
how it strides and pads); its methods check shapes and say what comes out.
Unknown sizes are None and stay unknown.
"""

import dataclasses
import math
from typing import ClassVar, NamedTuple

from opgraft.errors import ArgumentError, DtypeError
from opgraft.values import Value

Size = int | None
Shape = tuple[Size, ...]
Pair = tuple[int, int]
Padding = str | tuple[Pair, Pair]


DTYPES = (
    "float16", "bfloat16", "float32", "float64",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip


class Contraction(Value):
    """Base of `MatMul`, `Conv2D` and `DepthwiseConv2D`."""

    operand_names: ClassVar[tuple[str, str]] = ("a", "b")

    def output_shape(self, left: Shape, right: Shape) -> Shape:
        """Shape of the result for the shapes of both operands.

        Raises:
            ArgumentError: they do not fit.
        """
        raise NotImplementedError

    def check_dtypes(self, left: str, right: str) -> None:
        """Raise `DtypeError` unless both operands have one dtype that can be multiplied."""
        names = self.operand_names
        if left != right:
            raise DtypeError(
                f"{self.type_name}: {names[0]} is {left} and {names[1]} is {right}; both must have "
                "one dtype. Cast one of them"
            )
        if left not in DTYPES:
            raise DtypeError(
                f"{self.type_name}: operands of dtype {left} cannot be multiplied; use one of: "
                f"{', '.join(DTYPES)}"
            )


@dataclasses.dataclass(frozen=True)
class MatMul(Contraction):
    """`a` [..., m, k] times `b` [..., k, n] (as they are after transposing) is [..., m, n].

    Dimensions before the last two are batch dimensions and broadcast as in NumPy.
    """

    type_name: ClassVar[str] = "matmul"

    transpose_a: bool = False
    transpose_b: bool = False

    def output_shape(self, left: Shape, right: Shape) -> Shape:
        for name, shape in (("a", left), ("b", right)):
            if len(shape) < 2:
                raise ArgumentError(
                    f"matmul: {name} has the shape {shape}; it needs at least 2 dimensions"
                )
        m, k = left[-2:][::-1] if self.transpose_a else left[-2:]
        k_too, n = right[-2:][::-1] if self.transpose_b else right[-2:]
        if None not in (k, k_too) and k != k_too:
            raise ArgumentError(
                f"matmul: the inner sizes of a {left} and b {right} are {k} and {k_too}"
                f"{self._transposes()}; they must be equal"
            )
        return (*self._batch(left, right), m, n)

    def _transposes(self) -> str:
        used = [name for name in ("transpose_a", "transpose_b") if getattr(self, name)]
        return f" (with {' and '.join(used)})" if used else ""

    @staticmethod
    def _batch(left: Shape, right: Shape) -> Shape:
        rank = max(len(left), len(right)) - 2
        a = (1,) * (rank + 2 - len(left)) + left[:-2]
        b = (1,) * (rank + 2 - len(right)) + right[:-2]
        batch = []
        for p, q in zip(a, b, strict=True):
            if None not in (p, q) and p != q and 1 not in (p, q):
                raise ArgumentError(
                    f"matmul: the batch dimensions of a {left} and b {right} do not broadcast"
                )
            known = q if p == 1 else p if q == 1 else p if q is None else q
            batch.append(known)
        return tuple(batch)


class Axis(NamedTuple):
    """One spatial axis of a convolution, resolved: paddings and output size."""

    before: int
    after: int
    out: int


@dataclasses.dataclass(frozen=True)
class Conv2D(Contraction):
    """`x` [batch, h, w, in] (or [batch, in, h, w]) with a kernel [kh, kw, in / groups, out].

    Cross-correlation, as in every framework: the kernel is not rotated.

    Attributes:
        strides, dilations: (vertical, horizontal), at least 1.
        padding: "SAME" (the odd row or column goes below and right), "VALID", or
            ((top, bottom), (left, right)).
        pad_value: the value of padded positions.
    """

    type_name: ClassVar[str] = "conv2d"
    operand_names: ClassVar[tuple[str, str]] = ("x", "kernel")

    strides: Pair = (1, 1)
    padding: Padding = "VALID"
    dilations: Pair = (1, 1)
    groups: int = 1
    channels_first: bool = False
    pad_value: float = 0.0

    @property
    def explicit_padding(self) -> tuple[Pair, Pair]:
        return ((0, 0), (0, 0)) if isinstance(self.padding, str) else self.padding

    @property
    def spatial_axes(self) -> Pair:
        return (2, 3) if self.channels_first else (1, 2)

    @property
    def channel_axis(self) -> int:
        return 1 if self.channels_first else 3

    def axis(self, index: int, size: int, kernel: int) -> Axis:
        """Paddings and output size along spatial axis 0 (vertical) or 1 (horizontal)."""
        stride, dilation = self.strides[index], self.dilations[index]
        reach = (kernel - 1) * dilation + 1 if kernel else 0
        if self.padding == "SAME":
            out = -(-size // stride)
            total = max((out - 1) * stride + reach - size, 0) if out else 0
            return Axis(total // 2, total - total // 2, out)
        before, after = self.explicit_padding[index]
        room = size + before + after - reach
        return Axis(before, after, room // stride + 1 if room >= 0 else 0)

    def output_channels(self, kernel: Shape) -> Size:
        return kernel[3]

    def output_shape(self, left: Shape, right: Shape) -> Shape:
        self._check_ranks(left, right)
        self._check_channels(left, right)
        sizes: list[Size] = [left[0], None, None, None]
        for index, axis in enumerate(self.spatial_axes):
            size, kernel = left[axis], right[index]
            if size is not None and kernel is not None:
                sizes[axis] = self.axis(index, size, kernel).out
            elif size is not None and self.padding == "SAME":
                sizes[axis] = -(-size // self.strides[index])
        sizes[self.channel_axis] = self.output_channels(right)
        return tuple(sizes)

    def _check_ranks(self, left: Shape, right: Shape) -> None:
        for name, shape in zip(self.operand_names, (left, right), strict=True):
            if len(shape) != 4:
                raise ArgumentError(
                    f"{self.type_name}: {name} has the shape {shape}; it needs 4 dimensions: "
                    + ("[kernel_h, kernel_w, in, out]" if name == "kernel" else self._layout())
                )

    def _layout(self) -> str:
        return "[batch, channels, h, w]" if self.channels_first else "[batch, h, w, channels]"

    def _check_channels(self, left: Shape, right: Shape) -> None:
        channels, per_group, out = left[self.channel_axis], right[2], right[3]
        if channels is not None and per_group is not None and channels != per_group * self.groups:
            raise ArgumentError(
                f"conv2d: x {left} has {channels} channels ({self._layout()}), the kernel {right} "
                f"takes {per_group} in each of {self.groups} group(s), "
                f"{per_group * self.groups} in "
                "all. Kernels are [kernel_h, kernel_w, in / groups, out]"
            )
        if out is not None and out % self.groups:
            raise ArgumentError(
                f"conv2d: groups={self.groups} does not divide the {out} output channels of the "
                f"kernel {right}"
            )


@dataclasses.dataclass(frozen=True)
class DepthwiseConv2D(Conv2D):
    """Each channel by itself: a kernel [kh, kw, in, multiplier] gives in * multiplier channels.

    In memory this is the `Conv2D` of `in` groups with the kernel [kh, kw, 1, in * multiplier].
    """

    type_name: ClassVar[str] = "depthwise_conv2d"

    def output_channels(self, kernel: Shape) -> Size:
        return None if None in kernel[2:] else math.prod(kernel[2:])  # type: ignore[arg-type]

    def _check_channels(self, left: Shape, right: Shape) -> None:
        channels = left[self.channel_axis]
        if None not in (channels, right[2]) and channels != right[2]:
            raise ArgumentError(
                f"depthwise_conv2d: x {left} has {channels} channels ({self._layout()}), the "
                "kernel "
                f"{right} has {right[2]}. Depthwise kernels are [kernel_h, kernel_w, in, "
                "multiplier]"
            )


# ---- reading what users write --------------------------------------------------


def pair(value, name: str, channels_first: bool = False, least: int = 1) -> Pair:
    """Strides or dilations: one number, one for all, two, or four with the batch and channels.

    Raises:
        ArgumentError: not such a form, or a number below `least`.
    """
    value = _as_list(value)
    numbers = tuple(value) if isinstance(value, list | tuple) else (value,)
    numbers = tuple(_whole(number, name, value) for number in numbers)
    if len(numbers) == 4:
        spatial = numbers[2:] if channels_first else numbers[1:3]
        others = numbers[:2] if channels_first else (numbers[0], numbers[3])
        if others != (1, 1):
            raise ArgumentError(f"{name}={value!r} must be 1 along the batch and the channels")
        numbers = spatial
    if len(numbers) == 1:
        numbers *= 2
    if len(numbers) != 2:
        raise ArgumentError(f"{name}={value!r} must be 1, 2 or 4 numbers")
    if min(numbers) < least:
        raise ArgumentError(f"{name}={value!r}: every number must be at least {least}")
    return numbers


def _as_list(value):
    """An array as the list that it stands for."""
    return value.tolist() if hasattr(value, "tolist") else value


def _whole(number, name: str, value) -> int:
    """A whole number of any integer type, small enough for sizes to stay within 64 bits."""
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise ArgumentError(f"{name}={value!r} must be whole numbers")
    if abs(number.__index__()) >= _LIMIT:
        raise ArgumentError(f"{name}={value!r}: every number must be below {_LIMIT}")
    return number.__index__()


_LIMIT = 2**31


def group_count(value) -> int:
    """`groups`, a whole number of at least 1.

    Raises:
        ArgumentError: it is not.
    """
    if _whole(value, "groups", value) < 1:
        raise ArgumentError(f"groups={value!r} must be at least 1")
    return value.__index__()


def pad_number(value) -> float:
    """`pad_value`, a finite number.

    Raises:
        ArgumentError: it is not.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentError(f"pad_value={value!r} must be a finite number")
    return number


def padding(value) -> Padding:
    """ "SAME", "VALID" (in any case), or ((top, bottom), (left, right)).

    Raises:
        ArgumentError: anything else, or a negative number.
    """
    value = _as_list(value)
    if isinstance(value, str):
        if value.upper() in ("SAME", "VALID"):
            return value.upper()
    elif isinstance(value, list | tuple) and len(value) == 2:
        sides = tuple(
            tuple(_whole(n, "padding", value) for n in side)
            if isinstance(side, list | tuple)
            else ()
            for side in value
        )
        if all(len(side) == 2 for side in sides):
            if min(min(side) for side in sides) < 0:
                raise ArgumentError(f"padding={value!r}: paddings must not be negative")
            return sides  # type: ignore[return-value]
    raise ArgumentError(
        f'padding={value!r} must be "SAME", "VALID" or ((top, bottom), (left, right))'
    )


def is_channels_first(data_format: str) -> bool:
    """Whether `data_format` is channels_first.

    Raises:
        ArgumentError: it is neither "channels_last" nor "channels_first".
    """
    if data_format not in ("channels_last", "channels_first"):
        raise ArgumentError(
            f'data_format={data_format!r} must be "channels_last" or "channels_first"'
        )
    return data_format == "channels_first"
