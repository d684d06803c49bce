"""Exact whole-number factors of tables that have a low rank."""

import dataclasses
import functools
from typing import Any

import numpy as np

MOST = 8  # of the rank
_ROUNDS = 100  # each finds a vector that is not in the lattice; one for each rank is usual


@dataclasses.dataclass(frozen=True, eq=False)
class Factors:
    """table == left @ right.T, in whole numbers.

    Attributes:
        left: [rows, rank], int64.
        right: [columns, rank], int64.
    """

    left: np.ndarray
    right: np.ndarray

    @property
    def rank(self) -> int:
        return self.left.shape[1]

    @property
    def transposed(self) -> "Factors":
        return Factors(self.right, self.left)

    @functools.cached_property
    def largest(self) -> int:
        """The most that the absolute values of an entry's terms add up to."""
        return int((abs(self.left.astype(np.float64)) @ abs(self.right.T)).max(initial=0))


def factors(table: np.ndarray, most: int = MOST) -> Factors | None:
    """Whole numbers F and G of the fewest columns with table == F G^T, and small terms.

    The rows of the table span a lattice. The columns of G are a short basis of it, and F are
    the rows' coordinates; the same is tried with the table's columns, and the one with the
    smaller `largest` is taken.

    Args:
        table: [rows, columns] integers, below 2^31.
        most: the largest rank.

    Returns:
        Factors, whose product was compared with the table; None where the rank is larger, or
        no basis was found.
    """
    table = np.asarray(table, np.int64)
    by_rows, by_columns = _by_rows(table, most), _by_rows(table.T, most)
    found = [by_rows, by_columns and by_columns.transposed]
    return min(filter(None, found), key=lambda f: f.largest, default=None)


def _by_rows(table: np.ndarray, most: int) -> Factors | None:
    """With a short basis of the lattice that the rows span.

    What remains of a row after rounding its coordinates (L. Babai, "On Lovász' lattice
    reduction and the nearest lattice point problem", Combinatorica 6, 1986) is in the lattice,
    and joins the basis, until nothing remains. Floats only choose; all vectors are exact.
    """
    basis = np.zeros((0, table.shape[1]), np.int64)
    for _ in range(_ROUNDS):
        coordinates = np.rint(table @ np.linalg.pinv(basis)).astype(np.int64)
        rest = table - coordinates @ basis
        outside = rest[rest.any(1)]
        if not len(outside):
            found = Factors(coordinates, basis.T)
            return found if found.largest < 2**53 else None  # so no integer wrapped
        shortest = outside[np.argmin(np.square(outside, dtype=np.float64).sum(1))]
        basis = _reduced(np.vstack([basis, shortest]))
        if len(basis) > most:
            return None
    return None


def _reduced(vectors: np.ndarray) -> np.ndarray:
    """A short basis of the lattice that a few vectors span, which may depend on each other.

    Sources: A. K. Lenstra, H. W. Lenstra and L. Lovász, "Factoring polynomials with rational
    coefficients", Mathematische Annalen 261, 1982; for dependent vectors M. Pohst, "A
    modification of the LLL reduction algorithm", Journal of Symbolic Computation 4, 1987.
    """
    vectors = np.pad(vectors, ((0, 0), (0, 1)))  # so that no more of them than numbers in each
    k = 0
    while k < len(vectors):
        r: Any = np.linalg.qr(vectors[: k + 1].T.astype(np.float64), mode="r")
        for j in reversed(range(k)):
            steps = np.rint(r[j, k] / r[j, j])
            vectors[k] -= int(steps) * vectors[j]
            r[:, k] -= steps * r[:, j]
        if not vectors[k].any():  # it depended on those before
            vectors = np.delete(vectors, k, 0)
            k = max(k - 1, 0)
        elif k and r[k - 1, k] ** 2 + r[k, k] ** 2 < 0.99 * r[k - 1, k - 1] ** 2:
            vectors[[k - 1, k]] = vectors[[k, k - 1]]
            k -= 1
        else:
            k += 1
    return vectors[:, :-1]
