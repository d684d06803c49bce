"""One call of a user's function, and what came of it: plain data."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from opgraft.products.c_function import CSymbol

OPERANDS = ("input", "kernel")
BUFFERS = (*OPERANDS, "output")
DTYPES = {
    "f32": "float32", "f64": "float64", "i8": "int8", "i16": "int16", "i32": "int32",
    "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip
C_NAMES = {"f32": "float", "f64": "double"} | {
    name: f"{dtype}_t" for name, dtype in DTYPES.items() if "int" in dtype
}
_TYPE_WORDS = {
    "const", "signed", "unsigned", "char", "short", "int", "long", "float", "double", "size_t",
    "ssize_t", "ptrdiff_t", "intptr_t", "uintptr_t", *C_NAMES.values(),
}  # fmt: skip

# What an output holds before a call. What is still there after each of three is not written.
# The second is larger, and the third smaller, than any sum of the case table.
_NAN_BITS = {4: 0x7FC5A5A5, 8: 0x7FF8A5A5A5A5A5A5}
_LARGE = 8191.0


# ---- what is called ------------------------------------------------------------------


class Parameter(NamedTuple):
    """One parameter of a C function: its name in the prototype, its role and its C type."""

    name: str
    role: str
    kind: str  # f32, i32*, text ... as in a plan

    @property
    def is_number(self) -> bool:
        return self.kind in DTYPES

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(DTYPES[self.kind.rstrip("*")])


def parameters(symbol: CSymbol) -> tuple[Parameter, ...]:
    """The parameters in order; one without a name in the prototype goes by its role."""
    roles = [word.split(":") for word in symbol.plan.split()[1:]]
    declared = symbol.prototype[symbol.prototype.index("(") + 1 : symbol.prototype.rindex(")")]
    names = [_parameter_name(text) for text in declared.split(",")]
    return tuple(
        Parameter(name or role, role, kind) for name, (role, kind) in zip(names, roles, strict=True)
    )


def _parameter_name(declared: str) -> str:
    words = re.findall(r"[A-Za-z_]\w*", re.sub(r"\[[^\]]*\]", "", declared))
    return "" if len(words) < 2 or words[-1] in _TYPE_WORDS else words[-1]


@dataclasses.dataclass(frozen=True, eq=False)
class Sparse:
    """An array that is too large to be held: zeros, and a few numbers at its end."""

    shape: tuple[int, ...]
    tail: np.ndarray

    @property
    def dtype(self) -> np.dtype:
        return self.tail.dtype

    def astype(self, dtype) -> "Sparse":
        return Sparse(self.shape, self.tail.astype(dtype))


Operand = np.ndarray | Sparse


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One call of a function, as it gets it.

    Attributes:
        left, right: the buffers of both operands, in the C function's element type.
        shape: shape of the output.
        numbers: what is passed for each role that is a number.
        padding: what is passed where padding is text.
        exchanged: names of two parameters whose arguments change places.
        as_dtype: another element type for all three buffers.
    """

    left: Operand
    right: Operand
    shape: tuple[int, ...]
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    padding: str = "VALID"
    exchanged: tuple[str, str] | None = None
    as_dtype: str | None = None


@dataclasses.dataclass(frozen=True)
class Placement:
    """How the operands lie in memory. The output lies between margins, from a page's beginning.

    Attributes:
        flush: they end where a page ends, instead of beginning where one begins.
        guarded: the operands beside which lies a page that nobody may touch: behind them if
            `flush`, else before them.
        readonly: the operands that nobody may write to.
    """

    flush: bool = False
    guarded: frozenset[str] = frozenset()
    readonly: frozenset[str] = frozenset()


# ---- what came of it -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """What a call did.

    Attributes:
        output: the array, or None if the call did not come back.
        crashed: the signal that ended the process, or "exit(1)" if the function ended it; else "".
        timed_out, out_of_memory: it was ended for this.
        refused: why the call could not be made, else "".
        said: the last line on standard error of a process that ended.
        returned: the function's status, 0 for one that returns nothing.
        unwritten: True for each element of the output that was not written.
        overrun, underrun: the buffer that was written to beyond its end, before its start, or "".
        modified: the operands that were changed.
        reads_output: the result depends on what was in the output.
        adds_to_output: in that it is added.
        varies: the same call gave another result at another time.
        peak: the most bytes of memory that the process has taken beyond what it started with.
    """

    output: np.ndarray | None = None
    crashed: str = ""
    timed_out: bool = False
    out_of_memory: bool = False
    refused: str = ""
    said: str = ""
    returned: int = 0
    unwritten: np.ndarray | None = None
    overrun: str = ""
    underrun: str = ""
    modified: tuple[str, ...] = ()
    reads_output: bool = False
    adds_to_output: bool = False
    varies: bool = False
    peak: int = 0

    @property
    def ended(self) -> bool:
        """Whether the call came back."""
        return self.output is not None

    @property
    def failure(self) -> str:
        """Why it did not, as a finding; "" if it did or was not made."""
        if self.crashed:
            return f"crashes ({self.crashed})"
        if self.out_of_memory:
            return "takes too much memory"
        return "never returns" if self.timed_out else ""


def same_bits(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Whether two arrays hold the same bits; NaN equals NaN, 0 does not equal -0."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and bool(np.all(bits_of(a) == bits_of(b)))


def bits_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _poisons(dtype: np.dtype) -> list[Any]:
    """Three numbers; the second is large, the third small."""
    if dtype.kind == "f":
        bits = np.array(_NAN_BITS[dtype.itemsize], f"u{dtype.itemsize}")
        return [bits.view(dtype)[()], dtype.type(_LARGE), dtype.type(-_LARGE)]
    limits = np.iinfo(dtype)
    middle = (limits.max >> 1) - 11
    return [dtype.type(middle), dtype.type(limits.max - 3), dtype.type(limits.min + 3)]


def poisoned(call: Call, dtype: np.dtype, number: int) -> np.ndarray:
    return np.full(call.shape, _poisons(dtype)[number], dtype)


# ---- what three outcomes say together ------------------------------------------------


def combined(outcomes: Sequence[Outcome]) -> Outcome:
    """What three calls that began with the three poisons did; the output is the second's.

    What was not written holds what the first began with.
    """
    first, second = outcomes[:2]
    assert first.output is not None
    assert second.output is not None
    unwritten = _unwritten(outcomes)
    modified = {role for outcome in outcomes for role in outcome.modified}
    return dataclasses.replace(
        second,
        output=np.where(unwritten, first.output, second.output),
        returned=next((o.returned for o in outcomes if o.returned), 0),
        unwritten=unwritten,
        overrun=next((o.overrun for o in outcomes if o.overrun), ""),
        underrun=next((o.underrun for o in outcomes if o.underrun), ""),
        modified=tuple(role for role in OPERANDS if role in modified),
        peak=max(outcome.peak for outcome in outcomes),
    )


def dependent(outcomes: Sequence[Outcome]) -> np.ndarray:
    """Where the three outputs differ and were written."""
    bits = [bits_of(outcome.output) for outcome in outcomes if outcome.output is not None]
    differs = np.logical_or.reduce([a != b for a, b in itertools.pairwise(bits)])
    return differs & ~_unwritten(outcomes)


def _unwritten(outcomes: Sequence[Outcome]) -> np.ndarray:
    masks = [outcome.unwritten for outcome in outcomes if outcome.unwritten is not None]
    return np.logical_and.reduce(masks)


def adds(outcomes: Sequence[Outcome], where: np.ndarray) -> bool:
    """Whether the three outputs are what they began with, and a sum added to it."""
    large, small = (outcome.output for outcome in outcomes[1:])
    assert large is not None
    assert small is not None
    _, high, low = _poisons(large.dtype)
    with np.errstate(all="ignore"):
        sums = (large - high)[where], (small - low)[where]
    return bool(np.allclose(*sums, rtol=1e-3, atol=1e-2))
