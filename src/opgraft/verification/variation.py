"""Cases derived from a case: the same contraction at other sizes, or simpler in one respect."""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from opgraft.spec import Conv2D, DepthwiseConv2D, MatMul
from opgraft.verification.cases import Case

Sizes = dict[str, int]
# Of a convolution: batch, h, w, in (of one group), out (of one group), kh, kw; for a depthwise
# one, in is its channels and out its multiplier. Of a matrix product: m, k, n.


def sizes(case: Case) -> Sizes:
    """The sizes by name, those of the output (oh, ow) too."""
    c = case.contraction
    if isinstance(c, MatMul):
        m, k = case.left[-2:][::-1] if c.transpose_a else case.left[-2:]
        return {"m": m, "k": k, "n": case.output[-1]}
    assert isinstance(c, Conv2D)
    kh, kw, ins, outs = case.right
    (h, w), (oh, ow) = ([s[axis] for axis in c.spatial_axes] for s in (case.left, case.output))
    outs = outs if isinstance(c, DepthwiseConv2D) else outs // c.groups
    return {"batch": case.left[0], "h": h, "w": w, "in": ins, "out": outs,
            "kh": kh, "kw": kw, "oh": oh, "ow": ow}  # fmt: skip


def resized(case: Case, **new: int) -> Case:
    """The same contraction with some sizes replaced; a batched matrix product stays batched."""
    s = sizes(case) | new
    c = case.contraction
    if not isinstance(c, MatMul):
        assert isinstance(c, Conv2D)
        return _convolution(c, s)
    left, right = (s["m"], s["k"]), (s["k"], s["n"])
    return Case(
        c,
        (*case.left[:-2], *(left[::-1] if c.transpose_a else left)),
        (*case.right[:-2], *(right[::-1] if c.transpose_b else right)),
    )


def _convolution(c: Conv2D, s: Sizes) -> Case:
    groups = 1 if isinstance(c, DepthwiseConv2D) else c.groups
    channels = s["in"] * groups
    image = (channels, s["h"], s["w"]) if c.channels_first else (s["h"], s["w"], channels)
    return Case(c, (s["batch"], *image), (s["kh"], s["kw"], s["in"], s["out"] * groups))


def group_count(case: Case) -> int:
    """Groups of channels; a depthwise convolution has one for each channel."""
    c = case.contraction
    assert isinstance(c, Conv2D)
    return case.right[2] if isinstance(c, DepthwiseConv2D) else c.groups


def batch_name(case: Case) -> str:
    """The size that counts what is computed independently: images, or rows."""
    return "m" if isinstance(case.contraction, MatMul) else "batch"


def first_of_batch(case: Case, left: np.ndarray, count: int) -> np.ndarray:
    """The first images or rows of a left operand of this case."""
    c = case.contraction
    if isinstance(c, MatMul):
        return left[..., :count] if c.transpose_a else left[..., :count, :]
    return left[:count]


def has_output(case: Case) -> bool:
    """Whether there is something to compute."""
    return 0 not in (*case.left, *case.right, *case.output)


# ---- at random -------------------------------------------------------------------------


def at_random(case: Case, count: int, seed: int) -> Iterator[Case]:
    """The contraction at small random sizes, square and not, odd and even.

    Sizes of 1 are rare, because most mistakes cannot be seen in them.
    """
    draw = np.random.default_rng(seed)
    matrix = isinstance(case.contraction, MatMul)
    found = 0
    for _ in range(20 * count):
        new = _matrix_sizes(draw) if matrix else _conv_sizes(draw, sizes(case))
        candidate = resized(case, **new)
        if has_output(candidate):
            yield candidate
            found += 1
        if found == count:
            return


def _matrix_sizes(draw: np.random.Generator) -> Sizes:
    m, k, n = (int(v) for v in draw.integers(2, 7, 3))
    alike = draw.integers(4)  # a quarter of all each: all equal, two equal, any
    return {"m": m, "k": m if alike == 0 else k, "n": m if alike <= 1 else n}


def _conv_sizes(draw: np.random.Generator, s: Sizes) -> Sizes:
    h, w = (int(v) for v in draw.integers(4, 10, 2))
    kh, kw = s["kh"], s["kw"]
    if draw.integers(2):
        kh, kw = (int(v) for v in draw.integers(2, 5, 2))
    if draw.integers(2):
        kw = kh
    return {
        "batch": int(draw.integers(1, 4)), "h": h, "w": h if draw.integers(2) else w,
        "kh": kh, "kw": kw, "in": int(draw.integers(2, 5)), "out": int(draw.integers(2, 5)),
    }  # fmt: skip


# ---- smaller -----------------------------------------------------------------------------

Step = Callable[[Case], Case]


def shrunk(case: Case, fails: Callable[[Case], bool], tries: int = 48) -> Case:
    """A case that is as simple as can be found in so many tries, and still fails."""
    left = tries
    for _ in range(2):
        for step in _steps(case):
            while left > 0:
                candidate = step(case)
                if candidate == case or not has_output(candidate):
                    break
                left -= 1
                if not fails(candidate):
                    break
                case = candidate
    return case


def _steps(case: Case) -> Iterator[Step]:
    """Plainer first, then smaller; each is repeated while it changes something and still fails."""
    if isinstance(case.contraction, Conv2D):
        yield _one_group
        for name, value in dataclasses.asdict(Conv2D()).items():
            if name not in ("groups", "channels_first"):
                yield functools.partial(_with, name, value)
    else:
        yield _one_matrix
    names = [name for name in sizes(case) if name not in ("oh", "ow")]
    for smaller in (_to_one, _halved, _less_one):
        yield from (functools.partial(_with_size, name, smaller) for name in names)


def _to_one(_: int) -> int:
    return 1


def _halved(size: int) -> int:
    return (size + 1) // 2


def _less_one(size: int) -> int:
    return max(size - 1, 1)


def _with_size(name: str, smaller: Callable[[int], int], case: Case) -> Case:
    return resized(case, **{name: smaller(sizes(case)[name])})


def _one_matrix(case: Case) -> Case:
    return Case(case.contraction, case.left[-2:], case.right[-2:])


def _one_group(case: Case) -> Case:
    c = case.contraction
    assert isinstance(c, Conv2D)
    return _convolution(dataclasses.replace(c, groups=1), sizes(case))


def _with(name: str, value, case: Case) -> Case:
    c = case.contraction
    assert isinstance(c, Conv2D)
    return Case(dataclasses.replace(c, **{name: value}), case.left, case.right)
