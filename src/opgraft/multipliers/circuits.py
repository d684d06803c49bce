"""Tables from code: C functions and Python functions of two numbers."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from opgraft import functions
from opgraft.errors import ArgumentError
from opgraft.multipliers import codes
from opgraft.native import loading

_SECONDS = 10.0  # for some thousand pairs
_MEMORY = 1 << 30


# ---- C -------------------------------------------------------------------------------------


def tabulated_c(
    library: Any, prototype: Any, signed: bool | None, widths: Any, flags: Any
) -> tuple[np.ndarray, bool | None, str]:
    """The table of a C function, whether it is signed if that is known, and its name."""
    symbols = loading.load_checked(library, prototype, None, True, flags)
    if len(symbols) != 1 or symbols[0].kind != "scalar":
        kinds = ", ".join(f"{s.symbol} ({s.kind})" for s in symbols)
        raise ArgumentError(
            f"from_c: {kinds}: a function of two numbers is needed, such as uint16_t "
            "f(uint8_t, uint8_t). Name it by its prototype if there are several"
        )
    symbol = symbols[0]
    operand = np.dtype(symbol.operand_dtype)
    pair = codes.both_widths(widths) if widths is not None else _widths(symbol.symbol, operand)
    # Whoever declares unsigned types means codes; the results then tell what they mean.
    by_number = operand.kind in "if" and signed is not False
    if by_number and signed is None:
        signed = not re.match(r"mul\d+(x\d+)?u(_|$)", symbol.symbol)
        by_number = signed
    left, right = (codes.integers(bits, by_number) for bits in pair)
    grids = np.broadcast_arrays(left[:, None], right[None])
    cast = [grid.ravel().astype(operand) for grid in grids]
    table = _called(symbol, *cast).reshape(grids[0].shape)
    if operand.kind == "f" and np.array_equal(table, np.rint(table)):
        table = table.astype(np.int64)
    if table.dtype.kind == "u" and 8 * table.itemsize > sum(pair):
        table = table.view(f"i{table.itemsize}")  # a sign that was extended, in unsigned words
    return table, signed, symbol.symbol


def _widths(name: str, operand: np.dtype) -> tuple[int, int]:
    """Of an EvoApproxLib name, or of types of 8 bits."""
    match = re.match(r"mul(\d+)(?:x(\d+))?[su]?(?:_|$)", name)
    if match:
        first = int(match[1])
        return codes.both_widths((first, int(match[2] or first)))
    if operand.itemsize == 1:
        return 8, 8
    raise ArgumentError(
        f"from_c: {name} takes {operand.name}, and its name does not say how many bits are used; "
        "give widths=8, or widths=(8, 4)"
    )


def _called(symbol: Any, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """All pairs, twice and in two orders, in a process of their own."""
    from opgraft.verification.sandbox import Sandbox

    results = []
    with Sandbox(symbol, time_limit=_SECONDS, memory_limit=_MEMORY) as sandbox:
        for order in (slice(None), slice(None, None, -1)):
            outcome = sandbox.scalar(left[order], right[order])
            if outcome.output is None:
                raise ArgumentError(
                    f"from_c: {symbol.symbol} {outcome.failure or outcome.refused} while all pairs "
                    "of numbers are computed; `opgraft verify` finds the pair"
                )
            results.append(outcome.output[order])
    first, second = results
    differs = _differing(first, second)
    if differs.size:
        (at,) = differs[0]
        raise ArgumentError(
            f"from_c: {symbol.symbol}({left[at]}, {right[at]}) gives {first[at]} and then "
            f"{second[at]}: what it returns depends on earlier calls, and is no table"
        )
    return first


def _differing(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Where two arrays are not the same; NaN is like NaN."""
    return np.argwhere((first != second) & ~((first != first) & (second != second)))


# ---- Python ----------------------------------------------------------------------------------


def tabulated(function: Callable, signed: bool, widths: tuple[int, int]) -> np.ndarray:
    """The table of a Python function of two numbers."""
    if not callable(function):
        raise ArgumentError(f"from_function: {function!r} is no function of two numbers")
    if not isinstance(signed, bool | np.bool_):
        raise ArgumentError(f"signed={signed!r} must be True or False")
    left, right = (codes.integers(bits, bool(signed)) for bits in widths)
    first, second = (_evaluated(function, left, right) for _ in range(2))
    differs = _differing(first, second)
    if differs.size:
        a, b = differs[0]
        raise ArgumentError(
            f"from_function: {functions.describe(function)}({left[a]}, {right[b]}) gives "
            f"{first[a, b]:g} and then {second[a, b]:g}: it is no function of its operands alone"
        )
    return first


def _evaluated(function: Callable, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """For every pair: on arrays if it takes them and gives the same, else one by one."""
    name = functions.describe(function)
    rows = left[:, None] + 0 * right[None], right[None] + 0 * left[:, None]
    try:
        together = np.asarray(function(rows[0].copy(), rows[1].copy()))
        some = [(i, (7 * i) % right.size) for i in range(left.size)]
        alone = np.array([function(int(left[i]), int(right[j])) for i, j in some])
        sampled = together[tuple(zip(*some, strict=True))]
        if together.shape == rows[0].shape and np.array_equal(sampled, alone, equal_nan=True):
            return together
    except Exception:  # whatever it does with arrays, it does not take them
        pass
    try:
        values = [[function(int(a), int(b)) for b in right] for a in left]
        return np.array(values).astype(np.float64 if _holds_floats(values) else np.int64)
    except Exception as error:
        raise ArgumentError(
            f"from_function: {name} fails for a pair of numbers: {type(error).__name__}: {error}"
        ) from None


def _holds_floats(values: list) -> bool:
    return any(not float(x).is_integer() for row in values for x in row)
