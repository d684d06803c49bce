"""How far a table is from the exact product, and what in it will surprise."""

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opgraft.errors import ArgumentError

if TYPE_CHECKING:
    from opgraft.multipliers._multiplier import Multiplier

_ONE_SIDED = 0.99  # of the errors, in absolute terms, have one sign


def metrics(
    table: np.ndarray, exact: np.ndarray, weights: Any, full_scale: float | None
) -> dict[str, float]:
    """See `Multiplier.metrics`; `full_scale` is what percentages refer to."""
    share = _share(weights, table.shape)
    wrong = (table != exact) & ~(np.isnan(table) & np.isnan(exact))
    finite = np.isfinite(exact)
    if full_scale is None:
        full_scale = float(np.max(abs(exact[finite]), initial=0.0)) or 1.0
    used = finite & (share > 0)
    parts, of_zero = share[used], exact[used] == 0
    error = table[used] - exact[used].astype(np.float64)
    size = abs(error)
    relative, of_relative = size[~of_zero] / abs(exact[used][~of_zero]), parts[~of_zero]
    with np.errstate(invalid="ignore"):  # some results may be infinite
        mean = float(np.sum(parts * error))
        variance = float(np.sum(parts * (error - mean) ** 2))
    mae, wce = float(np.sum(parts * size)), float(np.max(size, initial=0.0))
    mse = float(np.sum(parts * error**2))
    return {
        "MAE": mae,
        "MAE%": 100 * mae / full_scale,
        "WCE": wce,
        "WCE%": 100 * wce / full_scale,
        "WCRE%": 100 * float(np.max(relative, initial=0.0)),
        "EP%": 100 * float(np.sum(share[wrong])),
        "MRE%": 100 * float(np.sum(relative * of_relative) / max(np.sum(of_relative), 1e-300)),
        "MSE": mse,
        "mean_error": mean,
        "variance": variance,
    }


def _share(weights: Any, shape: tuple[int, ...]) -> np.ndarray:
    """How often each pair is used; the sum is 1."""
    if weights is None:
        return np.full(shape, 1 / (shape[0] * shape[1]))
    try:
        if isinstance(weights, list | tuple) and len(weights) == 2:
            share = np.multiply.outer(*(np.asarray(w, np.float64) for w in weights))
        else:
            share = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError("weights must be numbers") from None
    if share.shape != shape:
        raise ArgumentError(
            f"weights have the shape {share.shape}, and the table {shape}: give a pair of arrays "
            f"of {shape[0]} and {shape[1]} numbers, or one of {shape}"
        )
    if not np.isfinite(share).all() or share.min() < 0 or share.sum() == 0:
        raise ArgumentError("weights must be finite, none below 0, and not all 0")
    return share / share.sum()


class ZeroBehaviour(NamedTuple):
    """For how many numbers a product with 0 is not 0.

    Attributes:
        first: of f(0, b).
        second: of f(a, 0).
    """

    first: int
    second: int

    @property
    def keeps_zero(self) -> bool:
        return self == (0, 0)


def zero_behaviour(table: np.ndarray, values: tuple[np.ndarray, np.ndarray]) -> ZeroBehaviour:
    rows, columns = (np.flatnonzero(v == 0) for v in values)
    finite = np.isfinite(values[0]), np.isfinite(values[1])  # 0 times infinity is NaN
    return ZeroBehaviour(
        int(np.count_nonzero(table[rows][:, finite[1]].any(axis=0))) if rows.size else 0,
        int(np.count_nonzero(table[finite[0]][:, columns].any(axis=1))) if columns.size else 0,
    )


# ---- surprises -----------------------------------------------------------------------------


def surprises(multiplier: "Multiplier") -> list[str]:
    """See `Multiplier.surprises`."""
    table, exact = multiplier.table, multiplier.exact
    found = []
    if multiplier.signed is not None:
        found += _misread(multiplier)
    counts = zip(("f(0, b)", "f(a, 0)"), "ba", multiplier.zero_behaviour, strict=True)
    of_zero = [f"{f} is not 0 for {count} {x}" for f, x, count in counts if count]
    if of_zero:
        found.append(
            f"{' and '.join(of_zero)}: what is padded, or cut off by a ReLU, adds to the sums if "
            "it goes through the table"
        )
    if table.shape[0] == table.shape[1] and not multiplier.commutative:
        differs = (table != table.T) & ~(np.isnan(table) & np.isnan(table.T))
        pairs = int(np.count_nonzero(differs)) // 2
        found.append(
            f"f(a, b) is not f(b, a) for {pairs} pairs: which operand is the activation matters"
            if pairs
            else "its operands are numbers of different kinds: which is the activation matters"
        )
    with np.errstate(invalid="ignore"):
        error = np.nan_to_num(table - exact, posinf=0.0, neginf=0.0)
    total = abs(error).sum()
    if total and abs(error.sum()) >= _ONE_SIDED * total:
        side = "large" if error.sum() > 0 else "small"
        found.append(
            f"its errors have one sign: products come out too {side}, by "
            f"{abs(error.mean()):.4g} on average, which adds up over a sum"
        )
    return found


def _misread(multiplier: "Multiplier") -> list[str]:
    """Whether another reading of the same table would be a far better product."""
    table, exact = multiplier.table.astype(np.float64), multiplier.exact
    own = np.mean(abs(table - exact))
    half = table.shape[0] // 2, table.shape[1] // 2
    others = {
        "its rows and columns seem to begin with the smallest number, not with code 0: give "
        "ascending=True": np.roll(table, half, (0, 1)),
        "its sign is wrong: it is near the negative product": -table,
    }
    for said, other in others.items():
        if 4 * np.mean(abs(other - exact)) < own:
            return [said]
    signs = _wrong_signs(multiplier) if multiplier.signed else []
    if 0 < len(signs) < 4:
        return [
            f"its mean absolute error is more than half of the mean product for {', '.join(signs)}"
            ": it seems to be wrong for these signs"
        ]
    if own > np.mean(abs(exact)) / 2:
        return [
            f"its mean absolute error, {own:.6g}, is more than half of the mean product: it may be "
            "a table of something else, or of another sign or order of the codes"
        ]
    return []


def _wrong_signs(multiplier: "Multiplier") -> list[str]:
    """Signs of the operands for which a signed table is no product."""
    negative = [values < 0 for values in multiplier.values]
    found = []
    for signs in itertools.product((False, True), repeat=2):
        part = np.ix_(*(each == sign for each, sign in zip(negative, signs, strict=True)))
        table, exact = multiplier.table[part], multiplier.exact[part]
        if np.mean(abs(table - exact)) > np.mean(abs(exact)) / 2:
            found.append("({}, {})".format(*("-" if sign else "+" for sign in signs)))
    return found
