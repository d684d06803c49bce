"""From a case to a raw call of a C function, and to functions that compute cases by such calls.

A raw call is exactly the one that the core makes where it has nothing to
compose: `core/runtime/conv2d_direct.cc` has the same rules.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from opgraft import reference
from opgraft.products.c_function import CSymbol
from opgraft.spec import Conv2D, MatMul, Pair
from opgraft.verification.calls import Call, Parameter, parameters
from opgraft.verification.cases import CASES, Case
from opgraft.verification.sandbox import Sandbox

Evaluator = Callable[[Case, np.ndarray, np.ndarray], np.ndarray | None]

_NO_PADS = ((0, 0), (0, 0))
_GUESS = 0.2  # of the time limit, for a call that is only a guess


# ---- values that a C type can hold ---------------------------------------------------


def as_c_type(array: np.ndarray, dtype: str) -> np.ndarray | None:
    """The array in a C function's element type, or None if that cannot hold every value.

    As in the core: floating types round, a cast that involves an integer type keeps the value.
    """
    array, target = np.asarray(array), np.dtype(dtype)
    with np.errstate(all="ignore"):
        cast = array.astype(target)
    if not array.size or (target.kind == "f" and array.dtype.kind == "f"):
        return cast
    if target.kind == "f":  # a long double holds every 64-bit integer
        kept = cast.astype(np.longdouble) == array.astype(np.longdouble)
        return cast if kept.all() else None
    if not np.all(np.isfinite(array)) or np.any(np.rint(array) != array):
        return None
    limits = np.iinfo(target)
    return cast if limits.min <= int(array.min()) and int(array.max()) <= limits.max else None


def small_operands(symbol: CSymbol, case: Case, salt: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Small integers that the C function's element type can hold."""
    left, right = case.integers(salt)
    if symbol.operand_dtype.startswith("uint"):
        left, right = abs(left), abs(right)
    return left.astype(symbol.operand_dtype), right.astype(symbol.operand_dtype)


# ---- from a case to a call -----------------------------------------------------------


def raw_call(symbol: CSymbol, case: Case, left: np.ndarray, right: np.ndarray) -> Call | None:
    """The call that computes a case, or None.

    None where the core would compose it of other pieces or would not call the
    function at all, where the element type cannot hold an operand, and for a
    scalar product.
    """
    a, b = (as_c_type(each, symbol.operand_dtype) for each in (left, right))
    if symbol.kind == "scalar" or a is None or b is None or not _computes(case):
        return None
    make = _convolution if symbol.kind == "conv2d" else _product
    call = make(symbol, case, a, b)
    return call if call and holds_numbers(symbol, call) else None


def _computes(case: Case) -> bool:
    """Whether there is anything to compute: otherwise no function is called."""
    return 0 not in (*case.output, *case.left, *case.right)


def holds_numbers(symbol: CSymbol, call: Call) -> bool:
    """Whether every number of a call fits into the type of its parameter."""
    return all(_holds(parameter, call) for parameter in parameters(symbol))


def _holds(parameter: Parameter, call: Call) -> bool:
    if not parameter.is_number or parameter.dtype.kind == "f":
        return True
    value, limits = call.numbers[parameter.role], np.iinfo(parameter.dtype)
    return value == int(value) and limits.min <= value <= limits.max


def _product(symbol: CSymbol, case: Case, left: np.ndarray, right: np.ndarray) -> Call | None:
    """A matrix product as it is, a convolution by the rows of its im2col matrix."""
    c = case.contraction
    if isinstance(c, MatMul):
        if c.transpose_a or c.transpose_b or left.ndim != 2 or right.ndim != 2:
            return None
    else:
        assert isinstance(c, Conv2D)
        _, kernel, groups = reference.as_grouped(c, left, right)
        pads = reference.paddings(c, left, kernel)
        if c.channels_first or groups > 1 or not _holds_pad_value(symbol, c, pads):
            return None
        padded = reference.pad(left, pads, c.pad_value)
        columns = reference.im2col(padded, kernel.shape[:2], c.strides, c.dilations)
        left = np.ascontiguousarray(columns.reshape(-1, columns.shape[3]))
        right = np.ascontiguousarray(kernel.reshape(columns.shape[3], -1))
    (m, k), n = left.shape, right.shape[1]
    return Call(left, right, (m, n), {"m": m, "k": k, "n": n})


def _convolution(symbol: CSymbol, case: Case, left: np.ndarray, right: np.ndarray) -> Call | None:
    c = case.contraction
    if not isinstance(c, Conv2D) or c.channels_first:
        return None
    x, kernel, groups = reference.as_grouped(c, left, right)
    roles = {parameter.role for parameter in parameters(symbol)}
    pads = reference.paddings(c, x, kernel)
    if not _passes_all(roles, c, groups, x.shape[0]) or not _holds_pad_value(symbol, c, pads):
        return None
    padding = "SAME" if c.padding == "SAME" else "VALID"
    if not _passes_padding(roles, c, pads):
        x, pads, padding = reference.pad(x, pads, c.pad_value), _NO_PADS, "VALID"
    numbers = conv2d_numbers(c, x.shape, kernel.shape, groups, pads, case.output)
    return Call(x, np.ascontiguousarray(kernel), case.output, numbers, padding)


def conv2d_numbers(
    c: Conv2D, x: tuple[int, ...], kernel: tuple[int, ...], groups: int,
    pads: tuple[Pair, Pair], output: tuple[int, ...],
) -> dict[str, float]:  # fmt: skip
    """What a convolution passes for each role, for an NHWC input and a grouped kernel."""
    (top, bottom), (left, right) = pads
    return {
        "batch": x[0], "in_h": x[1], "in_w": x[2], "in_ch": x[3],
        "filter_h": kernel[0], "filter_w": kernel[1], "out_ch": kernel[3],
        "out_h": output[1], "out_w": output[2], "groups": groups,
        "stride_h": c.strides[0], "stride_w": c.strides[1], "stride": c.strides[0],
        "dilation_h": c.dilations[0], "dilation_w": c.dilations[1], "dilation": c.dilations[0],
        "pad_top": top, "pad_bottom": bottom, "pad_left": left, "pad_right": right,
        "pad_h": top, "pad_w": left, "pad": top, "pad_value": c.pad_value,
    }  # fmt: skip


def _passes(roles: set[str], name: str, pair: Pair) -> bool:
    """Whether there are parameters for strides or dilations."""
    if pair == (1, 1) or {f"{name}_h", f"{name}_w"} <= roles:
        return True
    return name in roles and pair[0] == pair[1]


def _passes_all(roles: set[str], c: Conv2D, groups: int, batch: int) -> bool:
    return (
        (groups == 1 or "groups" in roles)
        and (batch == 1 or "batch" in roles)
        and _passes(roles, "stride", c.strides)
        and _passes(roles, "dilation", c.dilations)
    )


def _passes_padding(roles: set[str], c: Conv2D, pads: tuple[Pair, Pair]) -> bool:
    (top, bottom), (left, right) = pads
    if not np.any(pads):
        return True
    if c.pad_value and "pad_value" not in roles:
        return False
    if {"pad_top", "pad_bottom", "pad_left", "pad_right"} <= roles:
        return True
    symmetric = top == bottom and left == right
    if {"pad_h", "pad_w"} <= roles:
        return symmetric
    if "pad" in roles:
        return symmetric and top == left
    return "padding" in roles and c.padding == "SAME"


def _holds_pad_value(symbol: CSymbol, c: Conv2D, pads: tuple[Pair, Pair]) -> bool:
    return not np.any(pads) or as_c_type(np.array(c.pad_value), symbol.operand_dtype) is not None


def raw_cases(symbol: CSymbol) -> list[Case]:
    """The cases of the table that are raw calls of this function, smallest first.

    For a scalar product, all cases with something to compute.
    """
    return sorted(filter(functools.partial(is_raw, symbol), dict.fromkeys(CASES)), key=size)


def is_raw(symbol: CSymbol, case: Case) -> bool:
    """Whether a case is one raw call of this function, or several of a scalar product."""
    if not _computes(case):
        return False
    if symbol.kind == "scalar":
        c = case.contraction
        return not isinstance(c, Conv2D) or _holds_pad_value(symbol, c, ((1, 1), (1, 1)))
    zeros = (np.zeros(shape, np.int8) for shape in (case.left, case.right))
    return raw_call(symbol, case, *zeros) is not None


def size(case: Case) -> tuple[int, str]:
    """The order of cases: by the number of elements that they touch."""
    return sum(math.prod(shape) for shape in (case.left, case.right, case.output)), case.id


# ---- functions that compute cases ----------------------------------------------------


def evaluator(symbol: CSymbol, sandbox: Sandbox) -> Evaluator:
    """A function that computes a case through the sandbox, in the C function's result type.

    It gives None where the case is no raw call, the element type cannot hold an
    operand, or the call did not come back or returned an error; and for every case
    once the function has not returned in time, or taken too much memory.
    """
    if symbol.kind == "scalar":
        return _ByScalars(symbol, sandbox)
    return _ByCalls(symbol, sandbox)


def variants(symbol: CSymbol, sandbox: Sandbox) -> dict[str, Evaluator]:
    """Ways in which a prototype can be wrong: finding -> a function that computes a case by it."""
    if symbol.kind == "scalar":
        names = [parameter.name for parameter in sandbox.parameters]
        return {_exchanged(*names): _ByScalars(symbol, sandbox, exchanged=True)}
    changes: dict[str, dict[str, Any]] = {
        _exchanged(*pair): {"exchanged": pair} for pair in _of_one_type(sandbox.parameters)
    }
    if symbol.operand_dtype == symbol.output_dtype == "float32":
        changes["agrees with double instead of float"] = {"as_dtype": "float64"}
    if symbol.operand_dtype == symbol.output_dtype == "float64":
        changes["agrees with float instead of double"] = {"as_dtype": "float32"}
    return {finding: _ByCalls(symbol, sandbox, change) for finding, change in changes.items()}


def unwritten(symbol: CSymbol, sandbox: Sandbox) -> Callable[[Case], np.ndarray | None]:
    """A function that tells which elements of a case's output are never written.

    A mask of the output's shape; None where the case is no raw call or it did not come back.
    """

    def of_case(case: Case) -> np.ndarray | None:
        call = raw_call(symbol, case, *small_operands(symbol, case))
        mask = sandbox.run(call).unwritten if call and not sandbox.is_stuck else None
        return None if mask is None else mask.reshape(case.output)

    return of_case


def _exchanged(first: str, second: str) -> str:
    return f"agrees with '{first}' and '{second}' exchanged"


def _of_one_type(found: tuple[Parameter, ...]) -> Iterator[tuple[str, str]]:
    for first, second in itertools.combinations(found, 2):
        if first.kind == second.kind:
            yield first.name, second.name


class _ByCalls:
    """Computes a case by one call, with something changed in it."""

    def __init__(
        self, symbol: CSymbol, sandbox: Sandbox, change: dict[str, Any] | None = None
    ) -> None:
        self.symbol, self.sandbox, self.change = symbol, sandbox, change or {}
        self.patience = _GUESS if change else 1.0
        self.given_up = False

    def __call__(self, case: Case, left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
        call = raw_call(self.symbol, case, left, right)
        if call is None or self.given_up or self.sandbox.is_stuck:
            return None
        changed = dataclasses.replace(call, **self.change)
        outcome = self.sandbox.once(changed, poison=1, patience=self.patience)
        self.given_up = outcome.timed_out or outcome.out_of_memory
        if outcome.output is None or outcome.returned:
            return None
        return outcome.output.reshape(case.output)


class _DidNotEndError(Exception):
    """A scalar product did not come back."""


class _ByScalars:
    """The loop nest of a contraction over results of a scalar product, summed in its order."""

    def __init__(self, symbol: CSymbol, sandbox: Sandbox, *, exchanged: bool = False) -> None:
        self.symbol, self.sandbox, self.exchanged = symbol, sandbox, exchanged

    def __call__(self, case: Case, left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
        a, b = (as_c_type(each, self.symbol.operand_dtype) for each in (left, right))
        if a is None or b is None or self.sandbox.is_stuck or not is_raw(self.symbol, case):
            return None
        try:
            return reference.by_matmul(case.contraction, a, b, self._product)
        except _DidNotEndError:
            return None

    def _product(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        pairs = np.broadcast_arrays(rows[:, :, None], columns[None])
        first, second = pairs[::-1] if self.exchanged else pairs
        terms = self.sandbox.scalar(first, second).output
        if terms is None:
            raise _DidNotEndError
        sums = np.zeros((rows.shape[0], columns.shape[1]), self.symbol.output_dtype)
        for term in np.moveaxis(terms, 1, 0):
            sums += term.astype(self.symbol.output_dtype)
        return sums
