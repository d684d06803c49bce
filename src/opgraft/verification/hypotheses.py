"""Alternative meanings of a contraction, each with a name: what a wrong kernel may compute.

A name has several forms, because one mistake comes in several shapes: a kernel
that swaps its strides may or may not look whether it is inside of the image.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable

import numpy as np

from opgraft.spec import Conv2D, MatMul
from opgraft.verification.due import Product, compute
from opgraft.verification.forms import (
    Form,
    by_matrices,
    multiplied,
    of_other_geometry,
    rearranged,
    rewritten,
    then,
)
from opgraft.verification.loops import Loops, to_layout


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A named mistake in all its forms.

    `by_matrices` are those of a product of two matrices, which may serve
    convolutions too: not to be thought of for something that computes only convolutions.
    """

    name: str
    forms: tuple[Form, ...]
    by_matrices: tuple[Form, ...] = ()


# ---- padding -----------------------------------------------------------------------------


def _starting(
    start: Callable[[int, int, int, int], int], modes: Iterable[bool]
) -> Callable[[Loops], Loops]:
    """Windows that start at `start(before, after, kernel, dilation)` where SAME is in `modes`."""
    modes = tuple(modes)

    def rewrite(loops: Loops) -> Loops:
        if (loops.c.padding == "SAME") not in modes:
            return loops
        before = []
        for i in (0, 1):
            size, kernel = loops.x.shape[i + 1], loops.kernel.shape[i]
            axis = loops.c.axis(i, size, kernel)
            before.append(start(axis.before, axis.after, kernel, loops.c.dilations[i]))
        return dataclasses.replace(loops, before=(before[0], before[1]))

    return rewrite


def _where_padded(start: Callable[[int, int, int, int], int]):
    return lambda before, after, k, d: start(before, after, k, d) if before + after else 0


def _symmetric() -> Iterable[Form]:
    """By half a kernel, whatever the image and the stride; rounded and dilated in every way."""
    halves = (
        lambda before, after, k, d: k // 2,
        lambda before, after, k, d: (k - 1) // 2,
        lambda before, after, k, d: k // 2 * d,
        lambda before, after, k, d: (k - 1) * d // 2,
        lambda before, after, k, d: ((k - 1) * d + 1) // 2,
    )
    for half in halves:
        yield rewritten(_starting(_where_padded(half), [True]))
        yield rewritten(_starting(half, [True]))


def odd_first(modes: Iterable[bool]) -> Callable[[Loops], Loops]:
    """With the larger half of the padding above and left, where SAME is in `modes`."""
    return _starting(lambda before, after, k, d: after, modes)


def _valid() -> Iterable[Form]:
    """Without padding, up to the output size that is due; or a smaller output."""
    for modes in ([True], [True, False]):
        start = _starting(lambda before, after, k, d: 0, modes)
        yield rewritten(start)
        yield rewritten(functools.partial(then, start, Loops.reading_on))
    yield rewritten(lambda l: l.change(padding="VALID").resolved())
    yield rewritten(lambda l: l.change(padding="VALID").resolved() if l.c.padding == "SAME" else l)


# ---- the order of the operands in memory -------------------------------------------------


def _kernel(rewrite: Callable[[np.ndarray], np.ndarray]) -> Form:
    return rewritten(lambda l: dataclasses.replace(l, kernel=rewrite(l.kernel)))


def _image(rewrite: Callable[[np.ndarray], np.ndarray]) -> Form:
    return rewritten(lambda l: dataclasses.replace(l, x=rewrite(l.x)))


def _read_as(order: str) -> Form:
    """A kernel that takes the memory of HWIO for another order."""

    def rewrite(kernel: np.ndarray) -> np.ndarray:
        sizes = dict(zip("HWIO", kernel.shape, strict=True))
        return kernel.reshape([sizes[a] for a in order]).transpose([order.index(a) for a in "HWIO"])

    return _kernel(rewrite)


def _height_width_swapped(array: np.ndarray, axis: int) -> np.ndarray:
    """Memory read with the two axes from `axis` on in the other order."""
    shape = list(array.shape)
    shape[axis : axis + 2] = shape[axis : axis + 2][::-1]
    return array.reshape(shape).swapaxes(axis, axis + 1)


def _nchw_image(x: np.ndarray) -> np.ndarray:
    batch, height, width, channels = x.shape
    return x.reshape(batch, channels, height, width).transpose(0, 2, 3, 1)


def _nchw_output(y: np.ndarray) -> np.ndarray:
    return y.transpose(0, 3, 1, 2).reshape(y.shape)


# ---- groups ------------------------------------------------------------------------------


def _first_group_for_all(loops: Loops) -> Loops:
    per_group = loops.kernel.shape[2]
    x = np.tile(loops.x[..., :per_group], loops.groups)
    return dataclasses.replace(loops, x=x)


def _one_group(loops: Loops) -> Loops:
    kernel = np.tile(loops.kernel, (1, 1, loops.groups, 1))
    return dataclasses.replace(loops, kernel=kernel, groups=1)


def reverse_groups(array: np.ndarray, groups: int, axis: int) -> np.ndarray:
    """The blocks of an axis in reverse order, each as it is."""
    return np.concatenate(np.split(array, groups, axis)[::-1], axis)


def _groups_reversed(loops: Loops) -> Loops:
    return dataclasses.replace(loops, x=reverse_groups(loops.x, loops.groups, 3))


def _kernel_groups_reversed(loops: Loops) -> Loops:
    return dataclasses.replace(loops, kernel=reverse_groups(loops.kernel, loops.groups, 3))


def _output_groups_reversed(case, left, right, product):
    if not isinstance(case.contraction, Conv2D):
        return None
    loops = Loops.of(case, left, right)
    return to_layout(case, reverse_groups(loops.compute(product), loops.groups, 3))


# ---- shifted outputs ---------------------------------------------------------------------


def _rolled(y: np.ndarray, by: int, axis: int) -> np.ndarray:
    return np.roll(y, by, axis)


def _moved(y: np.ndarray, by: int, axis: int) -> np.ndarray:
    """Nothing is known of the row that nothing was moved to."""
    rows = np.moveaxis(np.roll(y, by, axis), axis, 0)
    rows[0 if by > 0 else -1] = np.nan
    return np.moveaxis(rows, 0, axis)


def _moved_in_memory(y: np.ndarray, by: int, axis: int) -> np.ndarray:
    """One row of one image runs over into the next image."""
    step = by * int(np.prod(y.shape[axis + 1 :]))
    flat = np.roll(y.reshape(-1), step)
    if step > 0:
        flat[:step] = np.nan
    else:
        flat[step:] = np.nan
    return flat.reshape(y.shape)


def _next_window(axis: int, by: int) -> Form:
    """The windows of the row before or after."""

    def rewrite(loops: Loops) -> Loops:
        before = list(loops.before)
        before[axis] += by * loops.c.strides[axis]
        return dataclasses.replace(loops, before=(before[0], before[1]))

    return rewritten(rewrite)


def _shifted(axis: int) -> tuple[Form, ...]:
    """By a row (axis 0) or a column (axis 1), either way."""
    forms: list[Form] = []
    for by in (1, -1):
        forms.append(_next_window(axis, by))
        for move in (_rolled, _moved, _moved_in_memory):
            forms.append(rearranged(functools.partial(move, by=by, axis=axis + 1)))
    return tuple(forms)


def _shifted_matrix(axis: int) -> tuple[Form, ...]:
    wraps = (
        functools.partial(_moved_after, move, by, axis)
        for by in (1, -1)
        for move in (_rolled, _moved, _moved_in_memory)
    )
    return tuple(form for wrap in wraps for form in by_matrices(wrap))


def _moved_after(move: Callable, by: int, axis: int, product: Product) -> Product:
    return lambda a, b: move(product(a, b), by, axis)


# ---- matrices, and terms left out --------------------------------------------------------


def _turned(matrix: np.ndarray) -> np.ndarray:
    """The memory of a matrix read as that of its transpose."""
    return matrix.reshape(matrix.shape[::-1]).T


def _flag_ignored(name: str, side: int) -> Form:
    """An operand that should be transposed first, read as if it had been."""

    def form(case, left, right, product):
        c = case.contraction
        if not isinstance(c, MatMul):
            return None
        if getattr(c, name):
            operands = [left, right]
            turned = operands[side]
            shape = (*turned.shape[:-2], turned.shape[-1], turned.shape[-2])
            operands[side] = turned.reshape(shape)
            left, right = operands
            c = dataclasses.replace(c, **{name: False})
        return compute(c, left, right, product)

    return form


def _without(taken: slice) -> Form:
    """Only some of the terms of each sum."""
    return multiplied(lambda p: lambda a, b: p(a[:, taken], b[taken]))


def _kernel_part(*index: slice) -> Form:
    return _kernel(lambda kernel: kernel[index])


def _last_input_channel_left_out(loops: Loops) -> Loops:
    per_group = loops.kernel.shape[2]
    kept = np.arange(loops.x.shape[3]) % per_group != per_group - 1
    return dataclasses.replace(loops, x=loops.x[..., kept], kernel=loops.kernel[:, :, :-1])


def _exactly(case, left, right, product):
    exact = (operand.astype(np.float64) for operand in (left, right))
    return compute(case.contraction, *exact, np.matmul)


# ---- the table ---------------------------------------------------------------------------

_ALL, _BUT_LAST = slice(None), slice(None, -1)

EXACT = Hypothesis("agrees with exact multiplication", (_exactly,))

_GEOMETRY: dict[str, Iterable[Form]] = {
    "symmetric padding": _symmetric(),
    "the odd padding above and left": [
        rewritten(odd_first([True])),
        rewritten(odd_first([True, False])),
    ],
    "VALID padding": _valid(),
    "strides swapped": of_other_geometry(lambda l: l.change(strides=l.c.strides[::-1])),
    "stride 1 and the output cut": of_other_geometry(lambda l: l.change(strides=(1, 1))),
    "dilation ignored": of_other_geometry(lambda l: l.change(dilations=(1, 1))),
    "dilations swapped": of_other_geometry(lambda l: l.change(dilations=l.c.dilations[::-1])),
    "the pad value ignored": [rewritten(lambda l: l.change(pad_value=0.0))],
    "groups ignored": [rewritten(_first_group_for_all), rewritten(_one_group)],
    "groups in reverse order": [
        rewritten(_groups_reversed),
        rewritten(_kernel_groups_reversed),
        _output_groups_reversed,
    ],
}
_ORDER: dict[str, Iterable[Form]] = {
    "the kernel rotated by 180°": [_kernel(lambda k: k[::-1, ::-1])],
    "the kernel's height and width swapped": [
        _kernel(functools.partial(_height_width_swapped, axis=0))
    ],
    "OIHW": [_read_as("OIHW")],
    "OHWI": [_read_as("OHWI")],
    "HWOI": [_read_as("HWOI")],
    "an NCHW input": [_image(_nchw_image)],
    "an NCHW output": [rearranged(_nchw_output)],
    "the image's height and width swapped": [
        _image(functools.partial(_height_width_swapped, axis=1))
    ],
}
_LEFT_OUT: dict[str, Iterable[Form]] = {
    "the last kernel row left out": [_kernel_part(_BUT_LAST)],
    "the last kernel column left out": [_kernel_part(_ALL, _BUT_LAST)],
    "the last input channel left out": [rewritten(_last_input_channel_left_out)],
    "the last term left out": [_without(_BUT_LAST)],
    "the first term left out": [_without(slice(1, None))],
    "the output shifted by one row": _shifted(0),
    "the output shifted by one column": _shifted(1),
}
_BY_MATRICES: dict[str, Iterable[Form]] = {
    "the first operand transposed": [
        *by_matrices(lambda p: lambda a, b: p(_turned(a), b)),
        _flag_ignored("transpose_a", 0),
    ],
    "the second operand transposed": [
        *by_matrices(lambda p: lambda a, b: p(a, _turned(b))),
        _flag_ignored("transpose_b", 1),
    ],
    "the result transposed": by_matrices(lambda p: lambda a, b: p(a, b).T.reshape(len(a), -1)),
    "the output shifted by one row": _shifted_matrix(0),
    "the output shifted by one column": _shifted_matrix(1),
}

_OF_ALL = _GEOMETRY | _ORDER | _LEFT_OUT

HYPOTHESES = tuple(
    Hypothesis(
        f"agrees with {name}", tuple(_OF_ALL.get(name, ())), tuple(_BY_MATRICES.get(name, ()))
    )
    for name in _OF_ALL | _BY_MATRICES
)
