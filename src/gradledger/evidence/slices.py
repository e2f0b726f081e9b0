"""Slices and worst cases: how a mean splits up, which parts are too small to say, and the rows that went worst."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradledger.evidence.errors import StatisticsError
from gradledger.evidence.stats import FEWEST_GROUPS, LEVEL, REPLICATES, Interval, over_groups

FEWEST_ROWS = 20


@dataclass(frozen=True)
class Slice:
    """One part of the rows. p: one-sided, that it is worse (higher) than the rest; p_holm: corrected for how many
    slices were looked at; both None without support. worse: p_holm below 1 - level."""

    name: str
    n: int
    groups: int
    mean: float
    interval: Interval
    support: str
    p: float | None = None
    p_holm: float | None = None
    worse: bool | None = None

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Worst:
    """One row among the worst. rank: from 1; at: its position."""

    rank: int
    id: str
    at: int
    value: float
    group: str


def by_slice(
    losses: ArrayLike,
    slices: Sequence[str],
    groups: Sequence[Hashable],
    *,
    fewest_rows: int = FEWEST_ROWS,
    fewest_groups: int = FEWEST_GROUPS,
    level: float = LEVEL,
    replicates: int = REPLICATES,
    rng_seed: int = 0,
) -> list[Slice]:
    """Each slice with its interval over groups, in order of their names.

    A slice with fewer rows or groups than asked is shown with "insufficient support", and nothing is claimed of it.

    Args:
        losses: one a row, lower is better. slices, groups: of each row.

    Raises:
        StatisticsError: columns of different lengths, no rows, or a loss that is not finite.
    """
    row = _row(losses, len(slices), len(groups))
    names, of_groups = np.array([str(one) for one in slices]), _numbered(groups)
    found: list[Slice] = []
    for name in sorted(set(names.tolist())):
        inside = names == name
        held = len(set(of_groups[inside].tolist()))
        enough = int(inside.sum()) >= fewest_rows and held >= fewest_groups
        support = (
            "sufficient"
            if enough
            else f"insufficient support (fewer than {fewest_rows} rows or {fewest_groups} groups)"
        )
        if enough:
            interval = over_groups(
                row[inside], of_groups[inside].tolist(), level=level, replicates=replicates, rng_seed=rng_seed
            )
        else:
            interval = Interval(None, None, level, "bootstrap over groups", "insufficient support")
        p = None
        rest = len(set(of_groups[~inside].tolist()))
        if enough and rest >= fewest_groups:
            p = worse_than_rest(row, inside, of_groups.tolist(), replicates=replicates, rng_seed=rng_seed)
        found.append(Slice(name, int(inside.sum()), held, float(row[inside].mean()), interval, support, p))
    return _corrected(found, level)


def worse_than_rest(
    losses: ArrayLike,
    inside: NDArray[np.bool_],
    groups: Sequence[Hashable],
    *,
    replicates: int = REPLICATES,
    rng_seed: int = 0,
) -> float:
    """One-sided p that the mean loss inside is no higher than outside: how often a drawn difference, shifted to no
    difference, is as large as the one seen. Whole groups are drawn."""
    row, of_groups = np.asarray(losses, dtype=np.float64), _numbered(groups)
    count = int(of_groups.max()) + 1
    sums = np.stack([np.bincount(of_groups, weights=row * side, minlength=count) for side in (inside, ~inside)])
    sizes = np.stack([np.bincount(of_groups, weights=side * 1.0, minlength=count) for side in (inside, ~inside)])
    seen = sums[0].sum() / sizes[0].sum() - sums[1].sum() / sizes[1].sum()
    rng = np.random.default_rng(rng_seed)
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=replicates).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (drawn @ sums.T) / (drawn @ sizes.T)  # (R, 2)
    differences = means[:, 0] - means[:, 1]
    differences = differences[np.isfinite(differences)]  # a draw without one of the sides says nothing
    return float(((differences - seen >= seen).sum() + 1) / (len(differences) + 1))


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected so that the chance of one false claim or more among them stays below the level.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected, highest = [0.0] * len(p), 0.0
    for rank, at in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[at]))
        corrected[at] = highest
    return corrected


def worst(losses: ArrayLike, ids: Sequence[str], groups: Sequence[Hashable], *, k: int = 10) -> list[Worst]:
    """The k rows of highest loss; equal losses in order of their ids. NaN is worst of all.

    Raises:
        StatisticsError: columns of different lengths, no rows, or k below 1.
    """
    row = np.asarray(losses, dtype=np.float64)
    if row.ndim != 1 or not row.size or len(ids) != len(row) or len(groups) != len(row) or k < 1:
        raise _refused(
            f"losses of shape {row.shape}, {len(ids)} ids, {len(groups)} groups, k={k}", "equal lengths, k >= 1"
        )
    order = sorted(
        range(len(row)), key=lambda i: (not np.isnan(row[i]), -row[i] if not np.isnan(row[i]) else 0, str(ids[i]))
    )
    return [
        Worst(rank, str(ids[at]), at, float(row[at]), str(groups[at])) for rank, at in enumerate(order[:k], start=1)
    ]


def _corrected(found: list[Slice], level: float) -> list[Slice]:
    tested = [one.p for one in found if one.p is not None]
    corrected = iter(holm(tested))
    done = []
    for one in found:
        p = next(corrected) if one.p is not None else None
        worse = None if p is None else p < 1 - level
        done.append(Slice(one.name, one.n, one.groups, one.mean, one.interval, one.support, one.p, p, worse))
    return done


def _numbered(groups: Sequence[Hashable]) -> NDArray[np.int64]:
    place: dict[Hashable, int] = {}
    return np.array([place.setdefault(group, len(place)) for group in groups], dtype=np.int64)


def _row(losses: ArrayLike, slices: int, groups: int) -> NDArray[np.float64]:
    row = np.asarray(losses, dtype=np.float64)
    if row.ndim != 1 or not row.size or slices != len(row) or groups != len(row):
        raise _refused(f"losses of shape {row.shape}, {slices} slices, {groups} groups", "one of each for every row")
    if not np.isfinite(row).all():
        raise _refused(f"{int((~np.isfinite(row)).sum())} losses that are not finite", "finite losses")
    return row


def _refused(got: str, wanted: str) -> StatisticsError:
    return StatisticsError(got=got, wanted=wanted, where="slices", next_step="check the columns")
