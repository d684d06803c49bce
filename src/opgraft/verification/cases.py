"""The case table: contractions with operand shapes, and the values that checks give them.

One table feeds everything that must hold for every geometry: forward, gradient,
contract, unknown sizes, dtypes. Sizes are small, because the meaning of a case
is a loop nest in Python; they are odd and even and never square, because a
square cannot see a swapped axis.
"""

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from opgraft import reference
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """A contraction and the shapes of its two operands."""

    contraction: Contraction
    left: Shape
    right: Shape

    @property
    def id(self) -> str:
        c = self.contraction
        words = [c.type_name, _sizes(self.left), _sizes(self.right)]
        if isinstance(c, MatMul):
            words += [name for name in ("transpose_a", "transpose_b") if getattr(c, name)]
            return "-".join(words)
        assert isinstance(c, Conv2D)
        words.append(
            c.padding if isinstance(c.padding, str) else f"pad{_sizes(sum(c.padding, ()))}"
        )
        for letter, pair in (("s", c.strides), ("d", c.dilations)):
            words += [letter + _sizes(pair)] if pair != (1, 1) else []
        words += [f"g{c.groups}"] if c.groups > 1 else []
        words += ["channels_first"] if c.channels_first else []
        words += [f"value{c.pad_value:g}"] if c.pad_value else []
        return "-".join(words)

    @property
    def output(self) -> Shape:
        return self.contraction.output_shape(self.left, self.right)  # type: ignore[return-value]

    @property
    def axes(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """What the axes of the first operand, the second and the output are."""
        c = self.contraction
        if isinstance(c, Conv2D):
            last = ("image", "row", "column", "channel")
            images = ("image", "channel", "row", "column") if c.channels_first else last
            return images, ("kernel row", "kernel column", "in channel", "out channel"), images
        shapes = (self.left, self.right, self.output)
        return tuple(
            (*(f"batch {i}" for i in range(len(shape) - 2)), "row", "column") for shape in shapes
        )  # type: ignore[return-value]

    def _random(self, salt: str) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(f"{self.id} {salt}".encode()))

    def integers(self, salt: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Operands of small integers: every sum of their products is exact in float32."""
        draw = self._random(salt).integers
        return draw(-3, 4, self.left), draw(-3, 4, self.right)

    def normals(self) -> tuple[np.ndarray, np.ndarray]:
        """Random normal float32 operands."""
        draw = self._random("normal").standard_normal
        return draw(self.left, np.float32), draw(self.right, np.float32)

    def upstream(self) -> np.ndarray:
        """A random normal float32 gradient of the output."""
        return self._random("upstream").standard_normal(self.output, np.float32)

    def integer_upstream(self) -> np.ndarray:
        """Small integers; none is 0, under which a wrong gradient would pass."""
        return self._random("upstream").choice(np.array([-2, -1, 1, 2, 3]), self.output)


def _sizes(numbers: Iterable[int]) -> str:
    return "x".join(map(str, numbers))


# ---- what a case means, and how it is computed ---------------------------------------


def meaning(case: Case, multiply: Callable, left: np.ndarray, right: np.ndarray,
            total: type = np.float64) -> np.ndarray:  # fmt: skip
    """The loop nest of `opgraft.reference`, in NumPy."""
    if isinstance(case.contraction, Conv2D):
        return reference.conv2d(case.contraction, left, right, multiply, total)
    product = functools.partial(reference.matmul, multiply=multiply, total=total)
    return reference.by_matmul(case.contraction, left, right, product)


@functools.cache
def exact_meaning(case: Case) -> np.ndarray:
    """The meaning of the case's small integers under ordinary multiplication, in float64."""
    left, right = (operand.astype(np.float64) for operand in case.integers())
    return meaning(case, np.multiply, left, right)


# ---- the table -----------------------------------------------------------------------


def _conv(x: Shape, kernel: Shape, **geometry) -> Case:
    return Case(Conv2D(**geometry), x, kernel)


def _depthwise(x: Shape, kernel: Shape, **geometry) -> Case:
    return Case(DepthwiseConv2D(**geometry), x, kernel)


STRIDES = ((1, 1), (2, 2), (2, 1))
ASYMMETRIC = (((1, 0), (2, 1)), ((0, 2), (1, 0)), ((2, 1), (0, 1)))


def _plain() -> Iterator[Case]:
    """Kernels x strides x paddings; sizes, batches and channels take turns."""
    kernels = ((1, 1), (2, 2), (3, 2), (2, 4), (3, 3), (5, 3), (4, 1), (1, 5))
    images = itertools.cycle([(5, 8), (8, 5), (7, 6), (6, 9), (9, 7)])
    batches = itertools.cycle([1, 3, 2, 1])
    channels = itertools.cycle([(2, 3), (1, 4), (3, 2)])
    explicit = itertools.cycle(ASYMMETRIC)
    for kernel, strides, mode in itertools.product(kernels, STRIDES, ("SAME", "VALID", "EXPLICIT")):
        ins, outs = next(channels)
        padding = next(explicit) if mode == "EXPLICIT" else mode
        x = (next(batches), *next(images), ins)
        yield _conv(x, (*kernel, ins, outs), strides=strides, padding=padding)


def _even_images() -> Iterator[Case]:
    """Where symmetric padding instead of SAME shows: even sizes, odd kernels, stride 2."""
    for size, kernel in (((8, 6), (3, 3)), ((6, 10), (3, 5)), ((4, 8), (5, 3)), ((8, 4), (1, 3))):
        yield _conv((1, *size, 2), (*kernel, 2, 3), strides=(2, 2), padding="SAME")


def _large_kernels() -> Iterator[Case]:
    yield _conv((2, 2, 3, 2), (5, 4, 2, 3), padding="SAME")
    yield _conv((1, 3, 2, 1), (4, 5, 1, 2), padding="SAME", strides=(2, 2))
    yield _conv((1, 2, 3, 2), (3, 5, 2, 2), padding=((1, 2), (2, 1)))
    yield _conv((1, 1, 4, 1), (5, 2, 1, 2), padding=((3, 2), (0, 1)), strides=(2, 1))
    yield _conv((2, 2, 5, 2), (4, 3, 2, 3), padding="VALID")  # no output at all
    yield _conv((1, 4, 2, 1), (2, 5, 1, 3), padding="VALID", strides=(2, 2))
    yield _depthwise((1, 2, 3, 2), (4, 5, 2, 2), padding="SAME")
    yield _conv((1, 3, 4, 2), (2, 3, 2, 2), padding="VALID", dilations=(3, 1))


def _pad_values() -> Iterator[Case]:
    yield _conv((1, 5, 4, 2), (3, 2, 2, 3), padding="SAME", pad_value=1.0)
    yield _conv((2, 6, 7, 1), (3, 3, 1, 2), padding="SAME", pad_value=-2.0, strides=(2, 2))
    yield _conv((1, 4, 6, 2), (2, 3, 2, 2), padding=((1, 0), (2, 1)), pad_value=3.0)
    yield _conv(
        (3, 5, 6, 2), (3, 1, 2, 2), padding=((0, 2), (0, 0)), pad_value=-1.0, strides=(2, 1)
    )
    yield _conv((1, 5, 6, 2), (3, 2, 2, 2), padding="VALID", pad_value=2.0)
    yield _conv((1, 6, 5, 4), (3, 2, 2, 4), padding="SAME", pad_value=-1.0, groups=2)
    yield _conv((1, 6, 5, 2), (2, 3, 2, 2), padding="SAME", pad_value=2.0, dilations=(2, 1))
    yield _conv((1, 2, 5, 6), (3, 2, 2, 3), padding="SAME", pad_value=1.0, channels_first=True)
    yield _depthwise((1, 5, 6, 3), (3, 2, 3, 2), padding="SAME", pad_value=-1.0, strides=(2, 2))


def _dilations() -> Iterator[Case]:
    sizes = itertools.cycle([(9, 8), (8, 11), (7, 10)])
    dilations = itertools.cycle([(2, 2), (2, 1), (1, 3), (3, 2)])
    kernels = itertools.cycle([(2, 3), (3, 2), (3, 3), (1, 2)])
    explicit = itertools.cycle(ASYMMETRIC)
    for strides, mode in itertools.product(STRIDES, ("SAME", "VALID", "EXPLICIT", "SAME")):
        padding = next(explicit) if mode == "EXPLICIT" else mode
        geometry = {"strides": strides, "padding": padding, "dilations": next(dilations)}
        yield _conv((2, *next(sizes), 2), (*next(kernels), 2, 3), **geometry)
    yield _conv((1, 6, 7, 2), (1, 1, 2, 3), padding="SAME", dilations=(2, 3))


def _groups() -> Iterator[Case]:
    for strides, padding in itertools.product(STRIDES, ("SAME", "VALID", ((1, 0), (0, 2)))):
        yield _conv((2, 5, 6, 4), (3, 2, 2, 6), strides=strides, padding=padding, groups=2)
    yield _conv((1, 6, 5, 3), (2, 3, 1, 3), padding="SAME", groups=3)
    yield _conv((1, 5, 7, 6), (1, 1, 2, 9), padding="SAME", groups=3, strides=(2, 2))
    yield _conv((3, 4, 5, 4), (2, 2, 1, 4), groups=4)
    yield _conv((1, 7, 8, 4), (3, 2, 2, 4), padding="SAME", groups=2, dilations=(2, 1))
    yield _conv((1, 8, 7, 4), (2, 3, 2, 2), groups=2, dilations=(1, 2), strides=(2, 2))
    yield _conv((1, 4, 6, 5), (3, 3, 2, 4), padding="SAME", groups=2, channels_first=True)


def _depthwises() -> Iterator[Case]:
    kernels = itertools.cycle([(3, 3), (2, 3), (4, 2), (1, 3), (5, 1)])
    shapes = itertools.cycle([((5, 8), 2), ((8, 5), 3), ((7, 6), 1)])
    for multiplier, strides in itertools.product((1, 2, 3), STRIDES):
        for padding in ("SAME", "VALID") if multiplier < 3 else ("SAME", ((1, 0), (2, 1))):
            image, channels = next(shapes)
            kernel = (*next(kernels), channels, multiplier)
            yield _depthwise((2, *image, channels), kernel, strides=strides, padding=padding)
    yield _depthwise((1, 8, 9, 2), (3, 2, 2, 2), padding="SAME", dilations=(2, 2))
    yield _depthwise((1, 9, 8, 2), (2, 3, 2, 1), dilations=(2, 1), strides=(2, 2))
    yield _depthwise((1, 3, 6, 5), (3, 2, 3, 2), padding="SAME", channels_first=True)
    yield _depthwise((2, 2, 7, 6), (2, 3, 2, 1), strides=(2, 1), channels_first=True)


def _channels_first() -> Iterator[Case]:
    for strides, padding in itertools.product(STRIDES, ("SAME", "VALID", ((2, 1), (0, 1)))):
        yield _conv((2, 3, 6, 7), (3, 2, 3, 2), strides=strides, padding=padding,
                    channels_first=True)  # fmt: skip
    yield _conv((1, 2, 5, 8), (1, 1, 2, 3), channels_first=True)
    yield _conv((1, 2, 8, 7), (2, 3, 2, 2), padding="SAME", dilations=(2, 1), channels_first=True)
    yield _conv((1, 2, 7, 9), (3, 2, 2, 2), strides=(2, 2), dilations=(1, 2), channels_first=True)


def _no_images() -> Iterator[Case]:
    yield _conv((0, 5, 6, 2), (3, 2, 2, 3), padding="SAME")
    yield _conv((0, 6, 5, 4), (2, 3, 2, 4), strides=(2, 1), groups=2)
    yield _conv((0, 2, 6, 5), (2, 3, 2, 3), padding="SAME", channels_first=True)
    yield _conv((0, 7, 8, 2), (2, 3, 2, 3), padding="SAME", dilations=(2, 2))
    yield _depthwise((0, 6, 5, 2), (3, 2, 2, 2), strides=(2, 2))


def _matmul(
    m: int, k: int, n: int, a: bool, b: bool, batch: tuple[Shape, Shape] = ((), ())
) -> Case:
    left = (*batch[0], *((k, m) if a else (m, k)))
    right = (*batch[1], *((n, k) if b else (k, n)))
    return Case(MatMul(a, b), left, right)


def _matmuls() -> Iterator[Case]:
    transposes = tuple(itertools.product((False, True), repeat=2))
    for (m, k, n), (a, b) in itertools.product([(3, 5, 4), (1, 7, 2), (6, 2, 1)], transposes):
        yield _matmul(m, k, n, a, b)
    batches = (((2,), (2,)), ((3,), ()), ((), (2,)), ((2, 3), (2, 3)))
    for batch, (a, b) in itertools.product(batches, transposes):
        yield _matmul(2, 3, 4, a, b, batch)
    yield _matmul(3, 4, 2, False, False, ((2, 1), (1, 3)))
    yield _matmul(2, 3, 5, True, True, ((4, 1, 2), (3, 1)))
    yield _matmul(2, 3, 2, False, True, ((1, 2), (3, 2)))
    for m, k, n in ((3, 0, 4), (0, 3, 2), (3, 2, 0)):
        yield _matmul(m, k, n, False, False)
    yield _matmul(2, 0, 3, True, True, ((2,), ()))
    yield _matmul(2, 3, 4, False, False, ((0,), ()))
    yield _matmul(2, 3, 4, False, True, ((0,), (0,)))


CONVOLUTIONS = [
    *_plain(), *_even_images(), *_large_kernels(), *_pad_values(), *_dilations(), *_groups(),
    *_depthwises(), *_channels_first(), *_no_images(),
]  # fmt: skip
MATMULS = list(_matmuls())
CASES = CONVOLUTIONS + MATMULS
# About one in six, of every kind: for what multiplies the table by dtypes or modes.
SELECTION = CASES[::6]


# ---- cases of one geometry -----------------------------------------------------------------

_MATRICES = ((1, 1, 2), (2, 3, 4), (4, 3, 2), (5, 2, 3), (7, 5, 2), (3, 8, 5), (4, 6, 4), (9, 4, 7))


def like(
    contraction: Contraction, left: tuple[int | None, ...] = (), right: tuple[int | None, ...] = ()
) -> list[Case]:
    """Small cases of the same contraction, and of the kernel size that `right` tells.

    Args:
        contraction: the geometry.
        left, right: shapes of the operands of one call, where they are known.
    """
    if isinstance(contraction, MatMul):
        a, b = contraction.transpose_a, contraction.transpose_b
        matrices = [_matmul(m, k, n, a, b) for m, k, n in _MATRICES]
        return [*matrices, *(case for case in MATMULS if case.contraction == contraction)]
    assert isinstance(contraction, Conv2D)
    kernels = [(3, 2), (2, 3), (1, 1), (3, 3)]
    if len(right) == 4 and right[0] and right[1]:
        kernels = [(right[0], right[1])]
    return list(_similar(contraction, kernels))


def _similar(c: Conv2D, kernels: list[tuple[int, int]]) -> Iterator[Case]:
    groups = c.groups
    images = ((7, 10), (8, 5), (6, 9), (5, 8))
    for kernel, (h, w), batch, (ins, outs) in itertools.product(
        kernels, images, (1, 2, 3), ((1, 2), (3, 1), (2, 3))
    ):
        reach = [(k - 1) * d for k, d in zip(kernel, c.dilations, strict=True)]
        size = (h + reach[0], w + reach[1])
        if isinstance(c, DepthwiseConv2D):
            channels, taps = ins, (*kernel, ins, outs)
        else:
            channels, taps = groups * ins, (*kernel, ins, groups * outs)
        x = (batch, channels, *size) if c.channels_first else (batch, *size, channels)
        yield Case(c, x, taps)
