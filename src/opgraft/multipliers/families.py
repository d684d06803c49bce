"""Families of approximate multipliers with their sources, each as a table.

Every function returns an `og.Multiplier`. Those of unsigned numbers become signed ones by
`sign_magnitude`, which multiplies the magnitudes and puts the sign back.
"""

from collections.abc import Callable

import numpy as np

from opgraft.errors import ArgumentError
from opgraft.multipliers import codes
from opgraft.multipliers._multiplier import Multiplier, Widths


def exact(widths: Widths = 8, *, signed: bool = False) -> Multiplier:
    """f(a, b) = a b.

    Args:
        widths: bits of both operands, or of each; 2 to 8.
        signed: whether they are two's complement numbers.
    """
    name = f"exact {'signed ' if signed else ''}{_sizes(widths)}"
    return Multiplier.from_function(np.multiply, signed=signed, widths=widths, name=name)


def truncated(
    widths: Widths = 8, *, operands: int = 0, columns: int = 0, signed: bool = False
) -> Multiplier:
    """An array multiplier with its lowest bits left out.

    Args:
        widths: bits of both operands, or of each.
        operands: so many low bits of both operands are taken for 0.
        columns: partial products a_i b_j with i + j < columns are left out.
        signed: two's complement, with the array of Baugh and Wooley.

    Source: M. J. Schulte and E. E. Swartzlander, "Truncated multiplication with correction
    constant", VLSI Signal Processing VI, 1993; here without the constant.
    """
    name = f"truncated {_sizes(widths)}, {operands} bits, {columns} columns"
    return _array(widths, operands, operands, columns, signed, name)


def broken_array(
    h1: int = 0, h2: int = 0, v: int = 0, *, widths: Widths = 8, signed: bool = False
) -> Multiplier:
    """A broken array: the partial product a_i b_j is kept iff i >= h1, j >= h2 and i + j >= v.

    Args:
        h1, h2: lowest bits of the first and of the second operand that are kept.
        v: lowest column that is kept.
        widths: bits of both operands, or of each.
        signed: two's complement: a partial product with exactly one sign bit counts negatively.

    Source: H. R. Mahdiani et al., "Bio-inspired imprecise computational blocks for efficient
    VLSI implementation of soft-computing applications", IEEE TCAS I 57(4), 2010. All inexact
    signed 8 x 8 circuits of EvoApproxLib are of this form.
    """
    name = f"broken array {_sizes(widths)} ({h1}, {h2}, {v})"
    return _array(widths, h1, h2, v, signed, name)


def _array(widths: Widths, h1: int, h2: int, v: int, signed: bool, name: str) -> Multiplier:
    m, n = codes.both_widths(widths)
    for number, most, what in ((h1, m, "bits"), (h2, n, "bits"), (v, m + n, "columns")):
        _whole(number, 0, most, what)
    a, b = (np.arange(2**bits)[:, None] >> np.arange(bits) & 1 for bits in (m, n))
    i, j = np.arange(m)[:, None], np.arange(n)[None]
    kept = (i >= h1) & (j >= h2) & (i + j >= v)
    weights = np.where(kept, 2 ** (i + j), 0)
    if signed:
        weights = np.where((i == m - 1) != (j == n - 1), -weights, weights)
    return Multiplier.from_array(a @ weights @ b.T, signed=signed, name=name)


def mitchell(widths: Widths = 8) -> Multiplier:
    """Logarithms by straight lines, added, and the power of two by straight lines; rounded down.

    Source: J. N. Mitchell, "Computer multiplication and division using binary logarithms", IRE
    Transactions on Electronic Computers EC-11(4), 1962. For 8 bits: MAE 606.398, MRE 3.78 %.
    """

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        ka, kb = _leading(a), _leading(b)
        xa, xb = a - 2.0**ka, b - 2.0**kb  # what is below the leading one
        low = 2.0 ** (ka + kb) + xa * 2.0**kb + xb * 2.0**ka
        carry = xa * 2.0**kb + xb * 2.0**ka >= 2.0 ** (ka + kb)
        return np.floor(np.where(carry, 2 * (xa * 2.0**kb + xb * 2.0**ka), low))

    return _of_nonzero(product, widths, f"Mitchell {_sizes(widths)}")


def drum(k: int, widths: Widths = 8) -> Multiplier:
    """The k bits from the leading one on are multiplied, the lowest of them set to 1.

    Args:
        k: bits that are kept of each operand, 2 and more.

    Source: S. Hashemi, R. I. Bahar and S. Reda, "DRUM: a dynamic range unbiased multiplier for
    approximate applications", ICCAD 2015. For 8 bits: k = 4: MRE 5.89 %, k = 6: 1.30 %.
    """
    _whole(k, 2, max(codes.both_widths(widths)), "bits")

    def short(a: np.ndarray) -> np.ndarray:
        shift = np.maximum(_leading(a) - k + 1, 0)
        return np.where(shift > 0, (a >> shift | 1) << shift, a)

    return _of_nonzero(lambda a, b: short(a) * short(b), widths, f"DRUM-{k} {_sizes(widths)}")


def roba(widths: Widths = 8) -> Multiplier:
    """Both operands rounded to the nearest power of two, A and B: a B + A b - A B.

    A number half way between two powers is rounded up.

    Source: R. Zendegani et al., "RoBA multiplier: a rounding-based approximate multiplier for
    high-speed yet energy-efficient digital signal processing", IEEE TVLSI 25(2), 2017. For 8
    bits: MRE 2.86 %.
    """

    def nearest(a: np.ndarray) -> np.ndarray:
        low = 1 << _leading(a)
        return np.where(2 * a >= 3 * low, 2 * low, low)

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return nearest(a) * b + a * nearest(b) - nearest(a) * nearest(b)

    return _of_nonzero(product, widths, f"RoBA {_sizes(widths)}")


def kulkarni(widths: Widths = 8) -> Multiplier:
    """Built from 2 x 2 multipliers that give 7 for 3 times 3.

    Source: P. Kulkarni, P. Gupta and M. Ercegovac, "Trading accuracy for power with an
    underdesigned multiplier architecture", VLSI Design 2011. For 8 bits: MRE 3.28 %.
    """
    m, n = codes.both_widths(widths)

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.int64)
        for i in range(0, m, 2):
            for j in range(0, n, 2):
                p, q = a >> i & 3, b >> j & 3
                total += np.where((p == 3) & (q == 3), 7, p * q) << (i + j)
        return total

    return _of_nonzero(product, widths, f"Kulkarni {_sizes(widths)}")


def rounded(bits: int, widths: Widths = 8) -> Multiplier:
    """Both operands rounded to the nearest multiple of 2^bits, a half upwards, then multiplied.

    The simplest multiplier with (nearly) no bias: beside `truncated(operands=bits)` it shows
    what the bias costs.
    """
    _whole(bits, 0, min(codes.both_widths(widths)), "bits")

    def near(a: np.ndarray) -> np.ndarray:
        return (a + (1 << bits >> 1)) >> bits << bits

    return _of_nonzero(lambda a, b: near(a) * near(b), widths, f"rounded {_sizes(widths)}, {bits}")


def sign_magnitude(unsigned: Multiplier) -> Multiplier:
    """The signed multiplier sign(a) sign(b) f(|a|, |b|) of an unsigned f of the same widths.

    Raises:
        ArgumentError: the multiplier is signed already, or is none of integers.
    """
    if unsigned.signed is not False:
        raise ArgumentError(f"sign_magnitude: {unsigned!r} is not one of unsigned integers")
    left, right = (codes.integers(bits, True) for bits in unsigned.widths)
    signs = np.multiply.outer(np.sign(left), np.sign(right))
    table = signs * unsigned.table[np.ix_(abs(left), abs(right))]
    return Multiplier.from_array(
        table, signed=True, name=f"{unsigned.name}, sign-magnitude", cost=unsigned.cost
    )


# ---- the way there -------------------------------------------------------------------------


def _of_nonzero(
    product: Callable[[np.ndarray, np.ndarray], np.ndarray], widths: Widths, name: str
) -> Multiplier:
    """0 where an operand is 0, which has no leading one."""
    m, n = codes.both_widths(widths)
    a, b = np.arange(2**m)[:, None], np.arange(2**n)[None]
    table = np.where((a > 0) & (b > 0), product(np.maximum(a, 1), np.maximum(b, 1)), 0)
    return Multiplier.from_array(table, signed=False, name=name)


def _leading(a: np.ndarray) -> np.ndarray:
    """The position of the leading one."""
    return np.floor(np.log2(a)).astype(np.int64)


def _sizes(widths: Widths) -> str:
    return "x".join(map(str, codes.both_widths(widths)))


def _whole(number: object, least: int, most: int, what: str) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise ArgumentError(f"{number!r} {what}: a whole number from {least} to {most} is needed")
