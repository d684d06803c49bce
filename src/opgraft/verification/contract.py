"""The part of the contract that shows in the framework: graphs, threads, empty batches."""

import concurrent.futures
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from opgraft import layers, ops
from opgraft.arithmetic import Arithmetic
from opgraft.backends import backend
from opgraft.spec import Contraction, Conv2D, MatMul
from opgraft.verification.cases import Case
from opgraft.verification.findings import Check
from opgraft.verification.messages import told
from opgraft.verification.operands import integers, operand_dtype, quantizes

_ROUNDS = 8  # of calls at once

_GRAPH = "A graph that knows no sizes gives the bits of the eager call."
_EMPTY = "A batch of no images gives an empty output of the right shape, not an error."
_ROUNDED = "A graph that does not know the sizes gives what the eager call gives, to rounding."
_REPEATS = "Two calls with the same inputs give the same bits."
_THREADS = (
    "Calls from several Python threads at once give the bits of single calls. A race that is "
    "rare may stay unseen."
)


def arithmetic_checks(arithmetic: Arithmetic, cases: Sequence[Case]) -> Iterator[Check]:
    """In this process, so only for a function that is known to be safe."""
    cases = [case for case in cases if 0 not in (*case.left, *case.right, *case.output)]
    few = cases[:: max(len(cases) // 6, 1)]

    def function(case: Case) -> Callable:
        return lambda a, b: ops.contract(case.contraction, arithmetic, a, b)

    calls = [(case.id, function(case), list(_operands(arithmetic, case))) for case in few]
    rounding = (
        1e-5 if quantizes(arithmetic) else 0.0
    )  # a graph may multiply scales in another order
    proves = _ROUNDED if rounding else _GRAPH
    yield guarded("eager = graph", proves, lambda: _graph(calls[:3], rounding))
    yield guarded("empty batch", _EMPTY, lambda: _empty(arithmetic, few[0]))
    yield guarded("concurrent calls", _THREADS, lambda: _threads(calls))


def _operands(arithmetic: Arithmetic, case: Case) -> tuple[np.ndarray, np.ndarray]:
    floats = operand_dtype(arithmetic, case).kind == "f"
    return case.normals() if floats else integers(arithmetic, case)


def function_checks(
    function: Callable, inputs: list[np.ndarray], *, only_batch: bool = False
) -> Iterator[Check]:
    """Of any function of tensors; `only_batch` is a size that graphs do not know, or all are."""
    calls = [("", function, inputs)]
    repeated = guarded("repeats itself", _REPEATS, lambda: _repeats(function, inputs))
    yield repeated
    if not repeated.passed:  # the others would say the same
        return
    yield guarded("eager = graph", _ROUNDED, lambda: _graph(calls, 1e-5, only_batch))
    yield guarded("concurrent calls", _THREADS, lambda: _threads(calls))


def guarded(name: str, proves: str, run: Callable[[], tuple[bool, str]]) -> Check:
    """A check that says so where something raises."""
    try:
        passed, message = run()
    except Exception as raised:
        return Check(name, False, f"{told(raised)}", proves)
    return Check(name, passed, message, proves)


def _graph(calls, rtol: float = 0.0, only_batch: bool = False) -> tuple[bool, str]:
    probe = backend().probe
    for case, function, inputs in calls:
        eager, graph = (
            probe.outputs(f, inputs)
            for f in (function, probe.of_any_size(function, inputs, only_batch))
        )
        for a, b in zip(eager, graph, strict=True):
            if not np.allclose(a, b, rtol=rtol, atol=rtol, equal_nan=True):
                return False, f"a graph gives another output{f' ({case})' if case else ''}"
    return True, f"the same in {len(calls)} case{'s' if len(calls) != 1 else ''}"


def _repeats(function: Callable, inputs: list[np.ndarray]) -> tuple[bool, str]:
    first, second = (backend().probe.outputs(function, inputs) for _ in range(2))
    if all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
           for a, b in zip(first, second, strict=True)):  # fmt: skip
        return True, "twice the same"
    return False, "is not deterministic: a second call gives another output"


def _empty(arithmetic: Arithmetic, case: Case) -> tuple[bool, str]:
    left = np.zeros((0, *case.left[1:]), np.float32)
    if isinstance(case.contraction, MatMul) and case.contraction.transpose_a:
        left = np.zeros((*case.left[:-1], 0), np.float32)
    right = integers(arithmetic, case)[1]
    y = np.asarray(ops.contract(case.contraction, arithmetic, left, right))
    due = case.contraction.output_shape(left.shape, right.shape)
    return y.shape == tuple(due), f"the output has the shape {y.shape}"


def _threads(calls) -> tuple[bool, str]:
    probe = backend().probe
    alone = [probe.outputs(function, inputs) for _, function, inputs in calls]
    jobs = [i for _ in range(_ROUNDS) for i in range(len(calls))]

    def run(i: int) -> bool:
        together = probe.outputs(calls[i][1], calls[i][2])
        return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
                   for a, b in zip(alone[i], together, strict=True))  # fmt: skip

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        same = list(pool.map(run, jobs))
    if all(same):
        return True, f"{len(jobs)} calls from 4 threads gave the bits of single calls"
    return False, f"{same.count(False)} of {len(jobs)} calls from 4 threads gave other bits"


def model(arithmetic: Arithmetic, contraction: Contraction, x: np.ndarray) -> keras.Model:
    """One layer that asks the arithmetic for a contraction of this kind.

    Its weights are whole numbers from 0 on, which every C type can hold.
    """
    layer: Any = layers.Dense(3, arithmetic=arithmetic)
    if isinstance(contraction, Conv2D):
        layer = layers.Conv2D(3, 1, arithmetic=arithmetic)
    made = keras.Sequential([keras.Input(x.shape[1:]), layer])
    draw = np.random.default_rng(0).integers
    layer.set_weights([draw(0, 3, w.shape).astype(np.float32) for w in layer.get_weights()])
    return made
