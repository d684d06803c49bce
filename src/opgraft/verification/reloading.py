"""Saving something, and loading it in a new process, which starts early and is asked late."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from opgraft.backends import backend
from opgraft.errors import UnsupportedError
from opgraft.verification.findings import Check
from opgraft.verification.isolated import environment, exit_name
from opgraft.verification.messages import told

_SECONDS = 120.0
# What a new process says to what it cannot have, and why that is not the target's fault.
_REFUSED = {
    "Could not locate class": "a new process does not find the class. Register it "
    "(@keras.saving.register_keras_serializable) in a module that can be imported",
    "has the type": "a new process does not know a class in it. Define it in a module that is "
    "imported where the file is loaded",
    "has no file": "the C function has no file that a new process could load",
}
_PROVES = "A new process that loads the file computes the same."


class Reloading:
    """A new process that loads what was saved and computes the outputs for some inputs.

    It starts with the `with`; `check` compares. Until then nothing is computed here.
    """

    def __init__(
        self,
        name: str,
        save: Callable[[str], str],
        call: Callable[[], Sequence],
        inputs: list,
        tolerance: float = 0.0,
    ) -> None:
        self._name, self._save, self._call, self._inputs = name, save, call, inputs
        self._tolerance = tolerance
        self._early: Check | None = None
        self._process: subprocess.Popen | None = None

    @classmethod
    def of_model(cls, make: Callable[[], keras.Model], inputs: list[np.ndarray]) -> "Reloading":
        """Of a Keras model, as a .keras file."""
        made: list[keras.Model] = []

        def save(folder: str) -> str:
            made.append(make())
            path = os.path.join(folder, "model.keras")
            made[0].save(path)
            return path

        def call() -> Sequence:
            return flat(made[0](inputs if len(inputs) > 1 else inputs[0]))

        return cls("saved and loaded", save, call, inputs)

    @classmethod
    def of_function(cls, function: Callable, inputs: list[np.ndarray]) -> "Reloading":
        """Of a function of tensors, as a SavedModel."""
        probe = backend().probe

        def save(folder: str) -> str:
            path = os.path.join(folder, "function")
            probe.save(function, inputs, path)
            return path

        def call() -> Sequence:
            return probe.outputs(function, inputs)

        # A graph may round otherwise than the eager call beside it.
        return cls("exported and loaded", save, call, inputs, tolerance=1e-5)

    def __enter__(self) -> "Reloading":
        self._folder = tempfile.TemporaryDirectory(prefix="opgraft-verify-")
        folder = self._folder.name
        try:
            path = self._save(folder)
        except UnsupportedError as refused:
            message = f"not tried, since saving is refused as it must be: {refused}"
            self._early = Check(self._name, True, message, _PROVES)
            return self
        except Exception as raised:
            message = f"cannot be saved: {told(raised)}"
            self._early = Check(self._name, False, message, _PROVES)
            return self
        given, self._found = (os.path.join(folder, n) for n in ("inputs.npz", "outputs.npz"))
        np.savez(given, *self._inputs)
        code = "import sys; from opgraft.verification.reloading import load; load(*sys.argv[1:])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, path, given, self._found], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._folder.cleanup()

    def check(self) -> Check:
        """Whether the new process gives the bits that this one gives."""
        if self._early is not None:
            return self._early
        try:
            passed, message = self._compared()
        except Exception as raised:
            passed, message = False, f"{told(raised)}"
        return Check(self._name, passed, message, _PROVES)

    def _compared(self) -> tuple[bool, str]:
        assert self._process is not None
        try:
            said = self._process.communicate(timeout=_SECONDS)[1]
        except subprocess.TimeoutExpired:
            return False, f"the new process has not come back after {_SECONDS:g} s"
        if code := self._process.returncode:
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
            lines = errors or lines  # Keras writes the arguments of the call below its errors
            for text, reason in _REFUSED.items():
                if lines and text in lines[-1]:
                    return True, f"not tried: {reason}"
            why = f": {lines[-1]}" if lines else ""
            return False, f"the new process fails ({exit_name(code)}){why}"
        with np.load(self._found) as loaded:
            outputs = [loaded[name] for name in loaded.files]
        for here, there in zip(map(_plain, self._call()), outputs, strict=True):
            if not np.allclose(here, there, self._tolerance, self._tolerance, equal_nan=True):
                return False, "a new process that loads it gives another output"
        same = "the same, to rounding" if self._tolerance else "the same bits"
        return True, f"a new process that loads it gives {same}"


def flat(value: Any) -> list:
    """The entries of a list, tuple or dict, however nested."""
    if isinstance(value, dict):
        value = list(value.values())
    return [e for part in value for e in flat(part)] if isinstance(value, list | tuple) else [value]


def _plain(value: Any) -> np.ndarray:
    """An array of a type that NumPy's own files know."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def load(path: str, given: str, found: str) -> None:
    """What the new process does: load, call, write."""
    with np.load(given) as loaded:
        inputs = [loaded[name] for name in loaded.files]
    if path.endswith(".keras"):
        model = keras.models.load_model(path)
        outputs = flat(model(inputs if len(inputs) > 1 else inputs[0]))
    else:
        outputs = backend().probe.load(path)(*inputs)
    np.savez(found, *map(_plain, outputs))
