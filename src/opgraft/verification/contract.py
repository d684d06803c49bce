"""The part of the contract that shows in the framework: graphs, threads, empty batches, files."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from opgraft import layers, ops
from opgraft.arithmetic import Arithmetic
from opgraft.backends import backend
from opgraft.errors import UnsupportedError
from opgraft.spec import Contraction, Conv2D, MatMul
from opgraft.verification.cases import Case
from opgraft.verification.findings import Check

_ROUNDS = 8  # of calls at once
_LOADING_SECONDS = 120.0

_GRAPH = "A graph that knows no sizes gives the bits of the eager call."
_EMPTY = "A batch of no images gives an empty output of the right shape, not an error."
_THREADS = (
    "Calls from several Python threads at once give the bits of single calls. A race that is "
    "rare may stay unseen."
)
SAVED = "A new process that loads the file computes the same bits."


def arithmetic_checks(
    arithmetic: Arithmetic, cases: Sequence[Case], *, saves: bool
) -> Iterator[Check]:
    """In this process, so only for a function that is known to be safe."""
    cases = [case for case in cases if 0 not in (*case.left, *case.right, *case.output)]
    few = cases[:: max(len(cases) // 6, 1)]

    def function(case: Case) -> Callable:
        return lambda a, b: ops.contract(case.contraction, arithmetic, a, b)

    calls = [(case.id, function(case), list(case.normals())) for case in few]
    yield guarded("eager = graph", _GRAPH, lambda: _graph(calls[:3]))
    yield guarded("empty batch", _EMPTY, lambda: _empty(arithmetic, few[0]))
    yield guarded("concurrent calls", _THREADS, lambda: _threads(calls))
    if saves:
        yield guarded("saved and loaded", SAVED, lambda: _saved_arithmetic(arithmetic, few[0]))


def function_checks(function: Callable, inputs: list[np.ndarray]) -> Iterator[Check]:
    """Of any function of tensors."""
    calls = [("", function, inputs)]
    yield guarded("eager = graph", _GRAPH, lambda: _graph(calls, rtol=1e-5))
    yield guarded("concurrent calls", _THREADS, lambda: _threads(calls))


def guarded(name: str, proves: str, run: Callable[[], tuple[bool, str]]) -> Check:
    """A check that says so where something raises."""
    try:
        passed, message = run()
    except Exception as raised:
        return Check(name, False, f"{type(raised).__name__}: {raised}", proves)
    return Check(name, passed, message, proves)


def _graph(calls, rtol: float = 0.0) -> tuple[bool, str]:
    probe = backend().probe
    for case, function, inputs in calls:
        eager, graph = (
            probe.outputs(f, inputs) for f in (function, probe.of_any_size(function, inputs))
        )
        for a, b in zip(eager, graph, strict=True):
            if not np.allclose(a, b, rtol=rtol, atol=rtol, equal_nan=True):
                return False, f"a graph gives another output{f' ({case})' if case else ''}"
    return True, f"the same in {len(calls)} case{'s' if len(calls) != 1 else ''}"


def _empty(arithmetic: Arithmetic, case: Case) -> tuple[bool, str]:
    left = np.zeros((0, *case.left[1:]), np.float32)
    if isinstance(case.contraction, MatMul) and case.contraction.transpose_a:
        left = np.zeros((*case.left[:-1], 0), np.float32)
    right = case.normals()[1]
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


# ---- files ---------------------------------------------------------------------------------


def _saved_arithmetic(arithmetic: Arithmetic, case: Case) -> tuple[bool, str]:
    x = case.normals()[0][:1] if case.left[0] > 1 else case.normals()[0]
    return saved_model(_model(arithmetic, case.contraction, x), x)


def _model(arithmetic: Arithmetic, contraction: Contraction, x: np.ndarray) -> keras.Model:
    """One layer that asks the arithmetic for a contraction of this kind."""
    layer: Any = layers.Dense(3, arithmetic=arithmetic)
    if isinstance(contraction, Conv2D):
        x = np.moveaxis(x, 1, 3) if contraction.channels_first else x
        layer = layers.Conv2D(3, 1, arithmetic=arithmetic)
    return keras.Sequential([keras.Input(x.shape[1:]), layer])


def saved_model(model: keras.Model, x: Any) -> tuple[bool, str]:
    """Save a Keras model, load it in a new process, compare outputs for `x`."""
    with tempfile.TemporaryDirectory(prefix="opgraft-verify-") as folder:
        path = pathlib.Path(folder) / "model.keras"
        try:
            model.save(path)
        except UnsupportedError as refused:
            return True, f"not tried, since saving is refused as it must be: {refused}"
        inputs = x if isinstance(x, list) else [x]
        return _compared(folder, path, inputs, [np.asarray(y) for y in _flat(model(x))])


def saved_function(function: Callable, inputs: list[np.ndarray]) -> tuple[bool, str]:
    """Export a function as a SavedModel, load it in a new process, compare outputs."""
    probe = backend().probe
    with tempfile.TemporaryDirectory(prefix="opgraft-verify-") as folder:
        path = pathlib.Path(folder) / "function"
        probe.save(function, inputs, os.fspath(path))
        return _compared(folder, path, inputs, probe.outputs(function, inputs))


def _flat(value: Any) -> list:
    return [entry for part in value for entry in _flat(part)] if isinstance(
        value, list | tuple) else [value]  # fmt: skip


def _compared(folder: str, path: pathlib.Path, inputs, due: list[np.ndarray]) -> tuple[bool, str]:
    given, found = (os.path.join(folder, name) for name in ("inputs.npz", "outputs.npz"))
    np.savez(given, *inputs)
    code = (
        "from opgraft.verification.contract import run_saved; import sys; run_saved(*sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, os.fspath(path), given, found],
        capture_output=True, text=True, timeout=_LOADING_SECONDS, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p or "." for p in sys.path),
                          "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        return False, f"the new process fails (exit code {done.returncode}): {last.strip()}"
    with np.load(found) as loaded:
        outputs = [loaded[name] for name in loaded.files]
    for a, b in zip(due, outputs, strict=True):
        if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            return False, "a new process that loads it gives another output"
    return True, "a new process that loads it gives the same bits"


def run_saved(path: str, given: str, found: str) -> None:
    """What the new process does: load, call, write."""
    with np.load(given) as loaded:
        inputs = [loaded[name] for name in loaded.files]
    if path.endswith(".keras"):
        model = keras.models.load_model(path)
        outputs = _flat(model(inputs if len(inputs) > 1 else inputs[0]))
    else:
        outputs = backend().probe.load(path)(*inputs)
    np.savez(found, *(np.asarray(y) for y in outputs))
