"""Statistics over seeds and groups: rows of one burst are one observation many times over, so groups are drawn.

Axis letters: S seeds, G groups, R replicates of a bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradledger.evidence._normal import normal_cdf, t_quantile
from gradledger.evidence.errors import StatisticsError

FEWEST_SEEDS = 3
FEWEST_GROUPS = 5
REPLICATES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """Of a statistic. low, high: None where there is none, and then `why` says why."""

    low: float | None
    high: float | None
    level: float
    method: str
    why: str = ""

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    """Of one number a seed. iqm: mean of the middle half, a quarter (rounded down) cut off at each end."""

    n: int
    mean: float
    iqm: float
    minimum: float
    maximum: float
    interval: Interval

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Paired:
    """Differences first - second on the same seeds. p: two-sided, by exchange of signs; None below three seeds."""

    differences: dict[int, float]
    summary: Summary
    p: float | None
    only_first: tuple[int, ...]
    only_second: tuple[int, ...]

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "differences": {str(seed): value for seed, value in self.differences.items()}}


def iqm(values: ArrayLike) -> float:
    """Mean of the middle half: of n sorted numbers floor(n / 4) are left out at each end.

    Example:
        >>> iqm([100.0, 1.0, 2.0, 3.0])
        2.5
    """
    row = np.sort(_row(values, "iqm"))
    cut = len(row) // 4
    return float(row[cut : len(row) - cut].mean())


def summarise(values: ArrayLike, *, level: float = LEVEL, replicates: int = REPLICATES, rng_seed: int = 0) -> Summary:
    """Describe one number a seed; the interval is of the mean, by bootstrap over seeds.

    Raises:
        StatisticsError: no values, or one that is not finite.
    """
    row = _row(values, "summarise")
    interval = over_seeds(row, level=level, replicates=replicates, rng_seed=rng_seed)
    return Summary(len(row), float(row.mean()), iqm(row), float(row.min()), float(row.max()), interval)


def over_seeds(values: ArrayLike, *, level: float = LEVEL, replicates: int = REPLICATES, rng_seed: int = 0) -> Interval:
    """Interval of the mean over seeds; none for fewer than three seeds, and the interval says so."""
    row = _row(values, "over_seeds")
    method = "bootstrap over seeds"
    if len(row) < FEWEST_SEEDS:
        return _none(level, method, f"{_many(len(row), 'seed')}: no interval below {FEWEST_SEEDS}")
    means = _weights(len(row), replicates, rng_seed) @ row / len(row)
    return _percentile(means, len(row), level, method)


def over_groups(
    values: ArrayLike,
    groups: Sequence[Hashable],
    *,
    level: float = LEVEL,
    replicates: int = REPLICATES,
    rng_seed: int = 0,
) -> Interval:
    """Interval of the mean over rows, for new groups: whole groups are drawn, with all of their rows.

    Args:
        values: one a row. groups: which group each row is of.
    """
    row = _row(values, "over_groups")
    sums, counts = _by_group(row, groups)
    method = "bootstrap over groups"
    if len(sums) < FEWEST_GROUPS:
        return _none(level, method, f"{_many(len(sums), 'group')}: no interval below {FEWEST_GROUPS}")
    drawn = _weights(len(sums), replicates, rng_seed)
    return _percentile(drawn @ sums / (drawn @ counts), len(sums), level, method)


def over_rows(values: ArrayLike, *, level: float = LEVEL, replicates: int = REPLICATES, rng_seed: int = 0) -> Interval:
    """Interval of the mean as if rows were independent. Shown beside `over_groups` to tell what bursts pretend."""
    row = _row(values, "over_rows")
    method = "bootstrap over rows (takes related rows for independent)"
    if len(row) < 2:
        return _none(level, method, "one row")
    means = _weights(len(row), replicates, rng_seed) @ row / len(row)
    return _percentile(means, len(row), level, method)


def over_seeds_and_groups(
    values: Mapping[int, ArrayLike],
    groups: Sequence[Hashable],
    *,
    level: float = LEVEL,
    replicates: int = REPLICATES,
    rng_seed: int = 0,
) -> Interval:
    """Interval of the mean for new seeds and new groups: both are drawn, each on its own, in every replicate.

    Args:
        values: rng_seed -> one value a row, the same rows for every seed. groups: which group each row is of.

    Raises:
        StatisticsError: seeds with different numbers of rows.
    """
    method = "bootstrap over seeds and groups"
    if not values:
        raise _refused("no seeds", "values of one seed or more", "over_seeds_and_groups")
    pairs = [_by_group(_row(row, f"seed {seed}"), groups) for seed, row in values.items()]
    sums, counts = np.stack([pair[0] for pair in pairs]), pairs[0][1]  # (S, G), (G,)
    if len(sums) < FEWEST_SEEDS:
        return _none(level, method, f"{_many(len(sums), 'seed')}: no interval below {FEWEST_SEEDS}")
    if len(counts) < FEWEST_GROUPS:
        return _none(level, method, f"{_many(len(counts), 'group')}: no interval below {FEWEST_GROUPS}")
    of_seeds = _weights(len(sums), replicates, rng_seed)  # (R, S)
    of_groups = _weights(len(counts), replicates, rng_seed + 1)  # (R, G)
    drawn = np.einsum("rs,sg,rg->r", of_seeds, sums, of_groups, optimize=True)
    means = drawn / (len(sums) * (of_groups @ counts))
    return _percentile(means, min(sums.shape), level, method)


def paired(
    first: Mapping[int, float],
    second: Mapping[int, float],
    *,
    level: float = LEVEL,
    replicates: int = REPLICATES,
    rng_seed: int = 0,
) -> Paired:
    """Differences on the seeds that both have; seeds that only one has are named, not dropped in silence.

    Raises:
        StatisticsError: no seed in common.
    """
    common = sorted(first.keys() & second.keys())
    if not common:
        raise _refused(f"seeds {sorted(first)} and {sorted(second)}", "seeds in common", "paired")
    row = _row([first[seed] - second[seed] for seed in common], "paired")
    return Paired(
        dict(zip(common, row.tolist(), strict=True)),
        summarise(row, level=level, replicates=replicates, rng_seed=rng_seed),
        sign_exchange(row, rng_seed=rng_seed) if len(row) >= FEWEST_SEEDS else None,
        tuple(sorted(first.keys() - second.keys())),
        tuple(sorted(second.keys() - first.keys())),
    )


def sign_exchange(differences: ArrayLike, *, replicates: int = 20_000, rng_seed: int = 0) -> float:
    """Two-sided p of a mean difference of zero: how often a mean at least as large comes of signs drawn at random.

    Exact (every pattern of signs) up to 14 differences; by simulation above. The smallest it can be is 2 / 2^n: with
    three seeds never below 0.25.
    """
    row = _row(differences, "sign_exchange")
    seen = abs(row.sum()) * (1 - 1e-12)
    if len(row) <= 14:
        signs = np.array(list(product((1.0, -1.0), repeat=len(row))))
        return float((np.abs(signs @ row) >= seen).mean())
    signs = np.random.default_rng(rng_seed).choice((1.0, -1.0), size=(replicates, len(row)))
    return float(((np.abs(signs @ row) >= seen).sum() + 1) / (replicates + 1))


# -------------------------------------------------------------------------------------------------------------- parts


def _weights(n: int, replicates: int, rng_seed: int) -> NDArray[np.float64]:
    """How often each of n units is drawn, (R, n)."""
    rng = np.random.default_rng(rng_seed)
    return rng.multinomial(n, np.full(n, 1.0 / n), size=replicates).astype(np.float64)


def _percentile(means: NDArray[np.float64], n: int, level: float, method: str) -> Interval:
    """Percentile interval, widened for few units: the tail that Student's t with n - 1 has, as a normal tail, with the
    factor sqrt(n / (n - 1)) by which a bootstrap of n units is too narrow."""
    if not 0 < level < 1:
        raise _refused(f"level={level}", "a number between 0 and 1", method)
    wide = math.sqrt(n / (n - 1)) * t_quantile((1 + level) / 2, n - 1)
    tail = normal_cdf(-wide)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high), level, method)


def _by_group(row: NDArray[np.float64], groups: Sequence[Hashable]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(sum, count) of each group, in the order of their first rows."""
    if len(groups) != len(row):
        raise _refused(f"{len(groups)} groups for {len(row)} rows", "a group for each row", "groups")
    place: dict[Hashable, int] = {}
    at = np.array([place.setdefault(group, len(place)) for group in groups])
    return np.bincount(at, weights=row).astype(np.float64), np.bincount(at).astype(np.float64)


def _row(values: ArrayLike, where: str) -> NDArray[np.float64]:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or not row.size:
        raise _refused(f"values of shape {row.shape}", "a row of one or more numbers", where)
    bad = np.flatnonzero(~np.isfinite(row))
    if bad.size:
        raise _refused(
            f"{bad.size} values that are not finite, the first at {bad[0]}",
            "finite numbers",
            where,
            "show the runs that diverged as such: a mean over the others would hide them",
        )
    return row


def _none(level: float, method: str, why: str) -> Interval:
    return Interval(None, None, level, method, why)


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"


def _refused(got: str, wanted: str, where: str, next_step: str = "check what is passed") -> StatisticsError:
    return StatisticsError(got=got, wanted=wanted, where=where, next_step=next_step)
