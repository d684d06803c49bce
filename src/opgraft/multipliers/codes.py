"""Codes, the numbers that they stand for, and tables that are indexed by them."""

from typing import Any, NamedTuple

import numpy as np

from opgraft.errors import ArgumentError

NARROWEST, WIDEST = 2, 8
TAKEN = "taken for"  # begins the note on a sign that was found out
_LARGEST = 2**31  # of an entry: sums are kept in 64 bits


class Table(NamedTuple):
    table: np.ndarray
    signed: bool | None
    values: tuple[np.ndarray, np.ndarray]


def integers(bits: int, signed: bool) -> np.ndarray:
    """The number that each code of so many bits stands for."""
    codes = np.arange(2**bits, dtype=np.int64)
    return np.where(codes >= 2 ** (bits - 1), codes - 2**bits, codes) if signed else codes


def both_widths(widths: Any) -> tuple[int, int]:
    """Bits of both operands, from one number or two.

    Raises:
        ArgumentError: they are no numbers from 2 to 8.
    """
    pair = tuple(widths) if isinstance(widths, list | tuple) else (widths, widths)
    fits = len(pair) == 2 and all(
        isinstance(w, int) and not isinstance(w, bool) and NARROWEST <= w <= WIDEST for w in pair
    )
    if not fits:
        raise ArgumentError(
            f"widths={widths!r} must be a number of bits from {NARROWEST} to {WIDEST}, or two"
        )
    return pair


def checked_table(
    table: Any, signed: bool | None, values: Any, ascending: bool
) -> tuple[Table, tuple[str, ...]]:
    """A table in order of the codes, what its codes stand for, and what was found out."""
    if signed is not None and not isinstance(signed, bool | np.bool_):
        raise ArgumentError(f"signed={signed!r} must be True, False, or None to find out")
    array = _numbers(table)
    rows, columns = _width(array.shape[0], "rows"), _width(array.shape[1], "columns")
    if values is not None:
        if signed is not None or ascending:
            raise ArgumentError("give either values, or signed and ascending")
        left, right = _operand_values(values, array.shape)
        left, right = (np.where(np.isnan(v), np.nan, v) for v in (left, right))  # one NaN of many
        return Table(array, None, (left, right)), ()
    if ascending:
        if signed is False:
            raise ArgumentError("ascending=True: the table of an unsigned multiplier is so anyhow")
        signed = True
        array = np.roll(array, (array.shape[0] // 2, array.shape[1] // 2), (0, 1))
    if signed is None:
        signed, array, notes = _found_sign(array, rows, columns)
    else:
        array, notes = _in_range(array, bool(signed), rows + columns)
    numbers = integers(rows, bool(signed)), integers(columns, bool(signed))
    return Table(np.ascontiguousarray(array), bool(signed), numbers), notes


def _numbers(table: Any) -> np.ndarray:
    array = np.asarray(table)
    if array.dtype.kind not in "iuf" and array.dtype.name not in ("bfloat16", "float16"):
        raise ArgumentError(f"the table holds {array.dtype}; it must hold integers or floats")
    if array.ndim != 2:
        raise ArgumentError(
            f"the table has the shape {array.shape}; it needs one row for each code of the first "
            "operand and one column for each of the second, such as (256, 256)"
        )
    if array.dtype.kind in "iu":
        if array.size and int(abs(array.astype(object)).max()) > _LARGEST:
            raise ArgumentError("the table holds numbers beyond 2^31, which no such product has")
        return array.astype(np.int64)
    array = array.astype(np.float64)
    if np.isfinite(array).all() and np.array_equal(array, np.rint(array)):
        if abs(array).max(initial=0) > _LARGEST:
            raise ArgumentError("the table holds numbers beyond 2^31, which no such product has")
        return array.astype(np.int64)
    return array


def _width(size: int, what: str) -> int:
    bits = size.bit_length() - 1
    if size != 2**bits or not NARROWEST <= bits <= WIDEST:
        raise ArgumentError(
            f"the table has {size} {what}; it must have 2^bits of them, from {2**NARROWEST} to "
            f"{2**WIDEST}: one for each code"
        )
    return bits


def _operand_values(values: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    try:
        left, right = (np.asarray(v, np.float64) for v in values)
    except (TypeError, ValueError):
        raise ArgumentError("values must be two arrays: a number for each code") from None
    if (left.shape, right.shape) != ((shape[0],), (shape[1],)):
        raise ArgumentError(
            f"values have the shapes {left.shape} and {right.shape}, and the table {shape}: one "
            "number is needed for each row, and one for each column"
        )
    return left.copy(), right.copy()


# ---- signed or not -----------------------------------------------------------------------


def as_signed(array: np.ndarray, bits: int) -> np.ndarray:
    """The low bits of integers, read as a two's complement number."""
    low = array & (2**bits - 1)
    return np.where(low >= 2 ** (bits - 1), low - 2**bits, low)


def _found_sign(array: np.ndarray, rows: int, columns: int):
    """Which of the two readings is the better product."""
    read = {}
    for signed in (False, True):
        table = array
        if signed and array.dtype.kind == "i" and array.min(initial=0) >= 0:
            table = as_signed(array, rows + columns)
        exact = np.multiply.outer(integers(rows, signed), integers(columns, signed))
        finite = np.nan_to_num(table.astype(np.float64), posinf=1e9, neginf=-1e9, nan=1e9)
        read[signed] = float(np.mean(abs(finite - exact))), table
    signed = read[True][0] < read[False][0]
    best, other = read[signed][0], read[not signed][0]
    words = ("unsigned", "signed")
    note = (
        f"{TAKEN} {words[signed]}: read so its mean absolute error is {best:.6g}, and read as "
        f"{words[not signed]} {other:.6g}. Say signed={signed} to be sure"
    )
    return signed, read[signed][1], (note,)


def _in_range(array: np.ndarray, signed: bool, bits: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Results of a signed multiplier that were written as unsigned numbers are read as meant."""
    if array.dtype.kind != "i":
        return array, ()
    if not signed and array.min(initial=0) < 0:
        raise ArgumentError(
            f"signed=False, and the table holds {int(array.min())}: give signed=True, or the "
            "table that you meant"
        )
    if not signed or array.min(initial=0) < 0 or array.max(initial=0) < 2 ** (bits - 1):
        return array, ()
    word = max(bits, int(array.max()).bit_length())  # a sign may have been extended
    note = (
        f"its results are written as unsigned {word}-bit numbers, and are read as two's "
        "complement ones, as signed=True asks"
    )
    return as_signed(array, word), (note,)


# ---- codes -------------------------------------------------------------------------------


def checked_codes(codes: Any, bits: int, which: str) -> np.ndarray:
    """Codes as indices.

    Raises:
        ArgumentError: they are no integers from 0 to 2^bits - 1.
    """
    array = np.asarray(codes)
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"codes of the {which} operand must be integers, not {array.dtype}")
    if array.size and (array.min() < 0 or array.max() >= 2**bits):
        raise ArgumentError(
            f"codes of the {which} operand reach from {array.min()} to {array.max()}; it has "
            f"{bits} bits, so they must lie in 0 ... {2**bits - 1}. A negative number's code is "
            f"that number + {2**bits}"
        )
    return array.astype(np.int64)


def stored_dtype(table: np.ndarray) -> str:
    """The little-endian type that a table is written down in."""
    if table.dtype.kind == "f":
        return "<f8"
    low, high = int(table.min(initial=0)), int(table.max(initial=0))
    for name in ("<u2", "<i2", "<i4"):
        limits = np.iinfo(name)
        if limits.min <= low and high <= limits.max:
            return name
    return "<i8"
