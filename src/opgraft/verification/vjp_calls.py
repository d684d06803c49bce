"""Raw calls of a C function that computes gradients: what it writes, and whether nothing else.

They run in a process of their own, see `isolated.Gradient`.
"""

import ctypes
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgraft.native.vjp import GRADIENTS
from opgraft.products import CSymbol
from opgraft.spec import Conv2D
from opgraft.verification.cases import Case
from opgraft.verification.findings import Check
from opgraft.verification.raw import conv2d_numbers

_MARGIN = 64  # elements of canary on both sides; a multiple of every vector
_CANARY = 0xA5
_POISONS = (np.nan, 8191.0)
_NUMBERS: dict[str, Any] = {
    "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64,
    "f32": ctypes.c_float, "f64": ctypes.c_double,
}  # fmt: skip
_NO_PADS = ((0, 0), (0, 0))


class Guarded:
    """An array between canaries."""

    def __init__(self, values: np.ndarray) -> None:
        margin = _MARGIN * values.itemsize
        self._bytes = np.full(values.nbytes + 2 * margin + 64, _CANARY, np.uint8)
        start = margin + (-(self._bytes.ctypes.data + margin)) % 64
        self._before, self._after = start, start + values.nbytes
        self.array = self._bytes[start : self._after].view(values.dtype).reshape(values.shape)
        self.array[...] = values

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    def damage(self) -> str:
        """ "before the start", "beyond the end", or ""."""
        if np.any(self._bytes[: self._before] != _CANARY):
            return "before the start"
        return "beyond the end" if np.any(self._bytes[self._after :] != _CANARY) else ""


@dataclasses.dataclass(frozen=True)
class _Case:
    """Shapes by pointer, and numbers by role."""

    shapes: Mapping[str, tuple[int, ...]]
    numbers: dict[str, float]


def check(symbol: CSymbol) -> tuple[list[Check], list[str]]:
    """Checks of what the function writes, and names of what is wrong."""
    findings: list[str] = []
    count = 0
    for case in _cases(symbol):
        findings += [f for f in _call(symbol, case) if f not in findings]
        count += 1
    outside = [f for f in findings if "writes" in f]
    missing = [f for f in findings if "never" in f]
    where = f"{symbol.symbol}: "
    return [
        _check(where + "stays inside its gradients", outside, count, (
            "Canaries around all its arrays are whole, and its inputs unchanged. A write that "
            "goes farther than they are long is not seen."
        )),
        _check(where + "writes every element", missing, count,
               "No element of a gradient keeps what was there before the call."),
    ], findings  # fmt: skip


def _check(name: str, found: list[str], count: int, proves: str) -> Check:
    return Check(name, not found, "; ".join(found) or f"{count} calls", proves)


def _cases(symbol: CSymbol) -> Iterator[_Case]:
    if symbol.kind == "matmul_vjp":
        for m, k, n in ((1, 1, 1), (3, 5, 4), (1, 7, 2), (6, 2, 1), (4, 3, 9)):
            shapes = {"input": (m, k), "kernel": (k, n), "output": (m, n), "upstream": (m, n)}
            yield _Case(shapes, {"m": m, "k": k, "n": n})
        return
    for x, kernel in (((1, 4, 5, 2), (2, 3, 2, 3)), ((2, 5, 3, 1), (3, 1, 1, 2))):
        case = Case(Conv2D(), x, kernel)
        sized = {"input": x, "kernel": kernel, "output": case.output, "upstream": case.output}
        yield _Case(sized, conv2d_numbers(Conv2D(), x, kernel, 1, _NO_PADS, case.output))


def _call(symbol: CSymbol, case: _Case) -> Iterator[str]:
    dtype, draw = np.dtype(symbol.operand_dtype), np.random.default_rng(0)
    given = {role: Guarded(draw.integers(-3, 4, shape).astype(dtype))
             for role, shape in case.shapes.items() if role in symbol.roles}  # fmt: skip
    kept = {role: guarded.array.copy() for role, guarded in given.items()}
    left = []
    for poison in _POISONS:
        written = {
            gradient: Guarded(np.full(case.shapes[role], poison, dtype))
            for gradient, role in zip(GRADIENTS, ("input", "kernel"), strict=True)
            if gradient in symbol.roles
        }
        _run(symbol, case, given | written)
        for guarded in (*given.values(), *written.values()):
            if damage := guarded.damage():
                yield f"writes {damage} of its output"
        for role, guarded in given.items():
            if not np.array_equal(guarded.array, kept[role]):
                yield f"writes to its {role}"
        same = np.isnan if np.isnan(poison) else (lambda a, p=poison: a == p)
        left.append({name: same(guarded.array) for name, guarded in written.items()})
    for name in left[0]:
        count = int(np.sum(left[0][name] & left[1][name]))
        if count:
            yield f"{count} elements of {name} never written"


def _run(symbol: CSymbol, case: _Case, buffers: dict[str, Guarded]) -> None:
    function = getattr(ctypes.CDLL(str(symbol.compiled_file)), symbol.symbol)
    function.restype = None
    arguments: list[Any] = []
    for role, kind in symbol.roles.items():
        if kind.endswith("*"):
            arguments.append(ctypes.c_void_p(buffers[role].address))
        elif kind == "text":
            arguments.append(ctypes.c_char_p(b"VALID"))
        else:
            number = case.numbers.get(role, 0)
            whole = kind.startswith(("i", "u"))
            arguments.append(_NUMBERS[kind](int(number) if whole else number))
    function(*arguments)
