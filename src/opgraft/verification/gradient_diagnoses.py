"""What is wrong with the gradient of a contraction: named, from what flowed back.

As for forwards, a name is given only if it explains every case in which the
gradient of an operand is wrong, and is right where that is right.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from opgraft import reference
from opgraft.spec import Conv2D, DepthwiseConv2D
from opgraft.verification.cases import Case
from opgraft.verification.diagnoses import factor_text
from opgraft.verification.hypotheses import odd_first, reverse_groups
from opgraft.verification.loops import Loops, to_layout
from opgraft.verification.variation import batch_name, group_count, sizes

Gradients = tuple[np.ndarray, np.ndarray]  # of the left and of the right operand
# A case, its operands, the upstream gradient, and what flowed back to each operand.
Result = tuple[Case, np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray | None, ...]]
_AT_MOST = 2  # names that are equally good


class Flow(NamedTuple):
    """One case, as one operand sees it."""

    case: Case
    left: np.ndarray
    right: np.ndarray
    upstream: np.ndarray
    due: Gradients
    got: np.ndarray  # of the operand in question

    def wrong(self, side: int) -> bool:
        return not _equal(self.got, self.due[side])


Form = Callable[[Flow], Gradients]


def diagnose_gradient(
    results: Sequence[Result], names: Sequence[str] = ("x", "kernel")
) -> tuple[str, ...]:
    """Names for what is wrong with the gradients of both operands; none if nothing is.

    Args:
        results: for each case its operands and the upstream gradient, which hold
            small integers, and the two gradients that came back, None where none did.
        names: of the operands.
    """
    found: list[str] = []
    for side, name in enumerate(names):
        found += (f"gradient of {name}: {what}" for what in _of_operand(results, side, names))
    return tuple(found)


def _of_operand(results: Sequence[Result], side: int, names: Sequence[str]) -> Iterator[str]:
    if results and all(result[4][side] is None for result in results):
        yield "frozen (None)"
        return
    flows = [
        Flow(case, left, right, dy, reference.vjp(case.contraction, left, right, dy), got)
        for case, left, right, dy, both in results
        if (got := both[side]) is not None
    ]
    if flows and all(flow.got.dtype != _dtype(flow, side) for flow in flows):
        yield "wrong dtype"
    if any(flow.wrong(side) for flow in flows):
        with np.errstate(all="ignore"):
            yield from _named(flows, side, names[1 - side])


def _dtype(flow: Flow, side: int) -> np.dtype:
    operand = (flow.left, flow.right)[side].dtype
    return operand if operand.kind == "f" else np.dtype(np.float32)


def _named(flows: Sequence[Flow], side: int, other: str) -> Iterable[str]:
    flows = sorted(flows, key=lambda flow: not flow.wrong(side))  # wrong ones decide soonest
    wrong = [flow for flow in flows if flow.wrong(side)]
    if all(np.all(flow.got == 0) for flow in flows):
        return ("frozen (zeros)",)
    explaining = dict.fromkeys(
        name
        for name, form in _forms(other, flows)
        if all(_explains(form, flow, side) for flow in flows)
    )
    if explaining:
        return tuple(explaining)[:_AT_MOST]
    if all(_broadcasts(flow.got, flow.due[side]) for flow in wrong):
        return ("broadcast shape",)
    if all(not np.all(np.isfinite(flow.got)) for flow in wrong):
        return ("is NaN or infinite",)
    return _constant_factor(flows, side)


def _explains(form: Form, flow: Flow, side: int) -> bool:
    return _equal(flow.got, form(flow)[side])


def _equal(got: np.ndarray, want: np.ndarray) -> bool:
    """In shape and values: whole numbers exactly, others to float32's rounding of the largest."""
    if got.shape != want.shape:
        return False
    whole = np.array_equal(want, np.rint(want))
    slack = 0.0 if whole else 1e-6 * abs(want).max(initial=0.0)
    return bool(np.all(abs(got - want) <= slack))


def _broadcasts(got: np.ndarray, due: np.ndarray) -> bool:
    """Whether another shape is taken for the due one by whatever broadcasts."""
    if got.shape == due.shape:
        return False
    try:
        return np.broadcast_shapes(got.shape, due.shape) == due.shape
    except ValueError:
        return False


def _constant_factor(flows: Sequence[Flow], side: int) -> tuple[str, ...]:
    """One factor, by least squares, that is far nearer than what is due."""
    if any(flow.got.shape != flow.due[side].shape for flow in flows):
        return ()
    got = np.concatenate([flow.got.ravel().astype(np.float64) for flow in flows])
    due = np.concatenate([flow.due[side].ravel() for flow in flows])
    terms = np.concatenate([_magnitude(flow)[side].ravel() for flow in flows])
    factor = float(got @ due / (due @ due))
    left = abs(got - factor * due)
    if not np.all(left <= 1e-6 * abs(factor) * terms) or 4 * left.max() > abs(got - due).max():
        return ()
    if abs(factor + 1) < 1e-6:
        return ("sign reversed",)
    return (f"is {factor_text(factor)} times what is due",)


def _magnitude(flow: Flow) -> Gradients:
    """The sums of the absolute terms behind each element."""
    c = flow.case.contraction
    if isinstance(c, Conv2D):
        c = dataclasses.replace(c, pad_value=abs(c.pad_value))
    return reference.vjp(c, abs(flow.left), abs(flow.right), abs(flow.upstream))


# ---- alternative vector-Jacobian products --------------------------------------------------

Rewrite = Callable[[Loops], Loops]
Where = Callable[[Conv2D], bool]  # the contractions that are mistaken


def _forms(other: str, flows: Sequence[Flow]) -> Iterator[tuple[str, Form]]:
    """Every name with each of its forms, but for those that these cases could not tell apart."""
    for count in (_rows, _outputs, _first_size):
        if len(set(map(count, flows))) > 1:  # else it is no more than a factor
            yield "the mean over the batch", functools.partial(_mean_over, count)
    for turn in (_transposed, _read_as_transposed):
        yield "transposed", functools.partial(_each, turn)
    yield f"is the gradient of {other}", lambda flow: flow.due[::-1]
    for name, change in _GEOMETRIES.items():
        for way, where in itertools.product((_kept, _started_anew, _cut), _WHERE):
            yield f"agrees with {name}", functools.partial(_of_loops, change, way, where)
    yield "agrees with the kernel rotated by 180°", _rotated
    for reverse, where in itertools.product((_groups_reversed, _at_reversed_groups), _WHERE):
        yield "agrees with groups in reverse order", functools.partial(_where, reverse, where)
    for axis in (_row_axis, _axis_one):
        yield "the output's last row sends nothing back", functools.partial(_without_last, axis)
    for change_operand in (_mean, np.ones_like, abs, np.sign, _positive):
        yield "taken at the wrong operand", functools.partial(_at_changed, change_operand)
    yield "taken at the wrong operand", _at_itself


# ---- of all contractions


def _rows(flow: Flow) -> int:
    return sizes(flow.case)[batch_name(flow.case)]


def _outputs(flow: Flow) -> int:
    return math.prod(flow.case.output[:-1])


def _first_size(flow: Flow) -> int:
    return flow.left.shape[0]


def _mean_over(count: Callable[[Flow], int], flow: Flow) -> Gradients:
    return flow.due[0] / max(count(flow), 1), flow.due[1] / max(count(flow), 1)


def _each(change: Callable[[np.ndarray], np.ndarray], flow: Flow) -> Gradients:
    return change(flow.due[0]), change(flow.due[1])


def _transposed(gradient: np.ndarray) -> np.ndarray:
    return np.swapaxes(gradient, -1, -2)


def _read_as_transposed(gradient: np.ndarray) -> np.ndarray:
    return _transposed(gradient).reshape(gradient.shape)


def _row_axis(flow: Flow) -> int:
    c = flow.case.contraction
    return c.spatial_axes[0] if isinstance(c, Conv2D) else -2


def _axis_one(flow: Flow) -> int:
    """What `upstream[:, :-1]` leaves out, whatever it is."""
    return 1


def _without_last(axis: Callable[[Flow], int], flow: Flow) -> Gradients:
    upstream = flow.upstream.copy()
    np.moveaxis(upstream, axis(flow), 0)[-1:] = 0
    return reference.vjp(flow.case.contraction, flow.left, flow.right, upstream)


def _mean(operand: np.ndarray) -> np.ndarray:
    return np.full(operand.shape, operand.mean() if operand.size else 0.0)


def _positive(operand: np.ndarray) -> np.ndarray:
    return np.maximum(operand, 0)


def _at_changed(change: Callable[[np.ndarray], np.ndarray], flow: Flow) -> Gradients:
    """Each gradient at another value of the other operand."""
    c, upstream = flow.case.contraction, flow.upstream
    return (
        reference.vjp(c, flow.left, change(flow.right), upstream)[0],
        reference.vjp(c, change(flow.left), flow.right, upstream)[1],
    )


def _at_itself(flow: Flow) -> Gradients:
    """Each gradient at its own operand instead of the other, where their shapes are the same."""
    if flow.left.shape != flow.right.shape:
        return flow.due
    c, upstream = flow.case.contraction, flow.upstream
    return (
        reference.vjp(c, flow.left, flow.left, upstream)[0],
        reference.vjp(c, flow.right, flow.right, upstream)[1],
    )


# ---- of convolutions

_WHERE: tuple[Where, ...] = (
    lambda c: True,
    lambda c: c.padding == "SAME",
    lambda c: not isinstance(c, DepthwiseConv2D),
)
_GEOMETRIES: dict[str, Rewrite] = {
    "stride 1": lambda l: l.change(strides=(1, 1)),
    "strides swapped": lambda l: l.change(strides=l.c.strides[::-1]),
    "the odd padding above and left": odd_first([True, False]),
    "dilations swapped": lambda l: l.change(dilations=l.c.dilations[::-1]),
    "the pad value ignored": lambda l: l.change(pad_value=0.0),
}


def _kept(loops: Loops, change: Rewrite) -> Loops:
    return change(loops)


def _started_anew(loops: Loops, change: Rewrite) -> Loops:
    return change(loops).started_anew()


def _cut(loops: Loops, change: Rewrite) -> Loops:
    """Without the outputs whose windows reach beyond the padding that is due."""
    changed, out = change(loops), []
    for i, due in enumerate(loops.axes()):
        size, kernel = loops.x.shape[i + 1], loops.kernel.shape[i]
        reach = (kernel - 1) * changed.c.dilations[i] + 1
        room = (size + due.before + due.after - reach) // changed.c.strides[i] + 1
        out.append(max(0, min(room, due.out)))
    return dataclasses.replace(changed, out=(out[0], out[1]))


Way = Callable[[Loops, Rewrite], Loops]


def _of_loops(change: Rewrite, way: Way, where: Where, flow: Flow) -> Gradients:
    c = flow.case.contraction
    if not isinstance(c, Conv2D) or not where(c):
        return flow.due
    loops = way(Loops.of(flow.case, flow.left, flow.right), change)
    upstream = reference.channels_last(c, flow.upstream)[:, : loops.out[0], : loops.out[1]]
    return _in_layout(flow.case, *loops.vjp(upstream))


def _in_layout(case: Case, gx: np.ndarray, gk: np.ndarray) -> Gradients:
    return to_layout(case, gx), gk.reshape(case.right)


def _rotated(flow: Flow) -> Gradients:
    """The kernel, for the input's gradient; its own gradient, for the kernel's."""
    if not isinstance(flow.case.contraction, Conv2D):
        return flow.due
    turned = flow.right[::-1, ::-1]
    gx, _ = reference.vjp(flow.case.contraction, flow.left, turned, flow.upstream)
    return gx, flow.due[1][::-1, ::-1]


def _groups_reversed(flow: Flow) -> Gradients:
    """The gradients themselves, block by block."""
    c = flow.case.contraction
    assert isinstance(c, Conv2D)
    groups = group_count(flow.case)
    gx, gk = flow.due
    gk = gk.reshape(*gk.shape[:2], -1, flow.case.output[c.channel_axis])
    return reverse_groups(gx, groups, c.channel_axis), reverse_groups(gk, groups, 3).reshape(
        flow.case.right
    )


def _at_reversed_groups(flow: Flow) -> Gradients:
    """Each gradient with the blocks of the other operand in reverse order."""
    loops = Loops.of(flow.case, flow.left, flow.right)
    upstream = reference.channels_last(loops.c, flow.upstream)
    kernel = reverse_groups(loops.kernel, loops.groups, 3)
    x = reverse_groups(loops.x, loops.groups, 3)
    gx, _ = dataclasses.replace(loops, kernel=kernel).vjp(upstream)
    _, gk = dataclasses.replace(loops, x=x).vjp(upstream)
    return _in_layout(flow.case, gx, gk)


def _where(form: Form, where: Where, flow: Flow) -> Gradients:
    c = flow.case.contraction
    return form(flow) if isinstance(c, Conv2D) and where(c) else flow.due
