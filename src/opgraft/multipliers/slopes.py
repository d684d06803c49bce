"""Slopes of a table of products: what a small step of one operand adds."""

from typing import NamedTuple

import numpy as np

_NEGLIGIBLE = 1e-7  # of the largest slope: what float32 does not tell apart


class Slopes(NamedTuple):
    """Slopes along p of a table f(p, q), arrays indexed by codes.

    The slope is q, as that of p q, and besides that of the error f - p q:

        mean[q] + sum over r of own[p, r] other[q, r].

    Attributes:
        mean: [codes of q], over all p.
        own, other: [codes of p, rank] and [codes of q, rank].
    """

    mean: np.ndarray
    own: np.ndarray
    other: np.ndarray

    @property
    def of_error(self) -> np.ndarray:
        """[codes of p, codes of q]"""
        return self.mean + self.own @ self.other.T


def slopes_along_first(
    table: np.ndarray, values: tuple[np.ndarray, np.ndarray], half_width: int | None,
    rank: int | None,
) -> Slopes:  # fmt: skip
    """Slopes along the first operand; `opgraft.gradients.slopes` has the formula.

    Args:
        table: [codes of p, codes of q], integers.
        values: the integers that the codes of p, and those of q, stand for.
        half_width: of the window of the moving average; None: a 16th of the codes, at least 1.
        rank: at most so many products, besides the mean; None: as many as float32 can tell apart.
    """
    if half_width is None:
        half_width = max(1, len(table) // 16)
    rows, columns = (in_order(each) for each in values)
    error = (table - np.multiply.outer(*values))[np.ix_(rows, columns)]
    mean, own, other = _factored(_differences(error, half_width), values[1][columns], rank)
    return Slopes(
        _by_code(mean, columns, table.shape[1]),
        _by_code(own, rows, table.shape[0]),
        _by_code(other, columns, table.shape[1]),
    )


def in_order(values: np.ndarray) -> np.ndarray:
    """The codes by their numbers; without that of the most negative, which no quantizer makes."""
    order = np.argsort(values)
    return order[1:] if values.min() < 0 else order


def _differences(f: np.ndarray, half_width: int) -> np.ndarray:
    """Central differences of a moving average along the first axis."""
    reach = half_width + 1
    # An odd reflection: what is linear goes on linear.
    padded = np.pad(f.astype(float), ((reach, reach), (0, 0)), "reflect", reflect_type="odd")
    # Of the two averages, that around p + 1 and that around p - 1, all but two terms cancel.
    pairs = padded[1:] + padded[:-1]
    return (pairs[2 * reach - 1 :] - pairs[: len(f)]) / (2 * (2 * half_width + 1))


def _factored(steps: np.ndarray, exact: np.ndarray, rank: int | None):
    """`Slopes` of an error, by position; `exact` are the slopes of the exact product."""
    mean = steps.mean(0)
    rest, limit = steps - mean, _NEGLIGIBLE * abs(exact + steps).max()
    if rank == 0 or abs(rest).max() <= limit:
        return mean, np.zeros((len(steps), 0)), np.zeros((len(mean), 0))
    own, sizes, other = np.linalg.svd(rest, full_matrices=False)
    most = len(sizes) if rank is None else min(rank, len(sizes))
    for taken in range(most):
        if abs(rest).max() <= limit:
            most = taken
            break
        rest = rest - sizes[taken] * np.outer(own[:, taken], other[taken])
    return mean, own[:, :most] * sizes[:most], other[:most].T


def _by_code(part: np.ndarray, codes: np.ndarray, count: int) -> np.ndarray:
    found = np.zeros((count, *part.shape[1:]))
    found[codes] = part
    return found
