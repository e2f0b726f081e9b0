"""When to abstain, and how wide an answer is: a threshold for a registered risk, and conformal intervals.

Both are fitted on calibration groups and hold for new groups: within a group rows are related, so the number of
groups is what counts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradledger.evidence.errors import StatisticsError
from gradledger.evidence.stats import REPLICATES


@dataclass(frozen=True)
class Threshold:
    """Answer where score <= value. value: None where no threshold keeps the risk. risk: registered. bound: what the
    mean loss of answered calibration rows stays below with `level`. coverage: share of calibration rows answered."""

    value: float | None
    risk: float
    bound: float | None
    coverage: float
    level: float
    groups: int

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Selected:
    """Answers on test rows. n: rows; rejected: by the contract; abstained: by the threshold; risk: mean loss of what
    was answered, None where nothing was. kept: whether the risk is at most the registered one."""

    n: int
    rejected: int
    abstained: int
    answered: int
    coverage: float
    risk: float | None
    registered: float
    kept: bool | None

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Conformal:
    """Answers are prediction +- half_width, infinite where there are too few groups for the level. alpha: share of new
    rows that may lie outside."""

    half_width: float
    alpha: float
    groups: int
    rows: int

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "half_width": self.half_width if math.isfinite(self.half_width) else None}


def choose_threshold(
    scores: ArrayLike,
    losses: ArrayLike,
    groups: Sequence[Hashable],
    *,
    risk: float,
    level: float = 0.95,
    candidates: int = 50,
    replicates: int = REPLICATES,
    rng_seed: int = 0,
) -> Threshold:
    """The highest threshold up to which every tried one has an upper bound on the risk of at most the registered one.

    Thresholds are tried from the strictest on and the search stops at the first that fails (fixed sequence testing), so
    trying many costs no level. The bound is by bootstrap over groups.

    Args:
        scores: uncertainty of each calibration row, lower is surer. losses: of each, if answered.
        risk: mean loss of answered rows that may not be exceeded, registered before.
    """
    score, loss, of_groups = _columns(scores, losses, groups)
    count = int(of_groups.max()) + 1
    rng = np.random.default_rng(rng_seed)
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=replicates).astype(np.float64)
    best = Threshold(None, risk, None, 0.0, level, count)
    marks = np.unique(np.quantile(score, np.linspace(0.02, 1.0, candidates), method="inverted_cdf"))
    for mark in marks.tolist():
        answered = score <= mark
        held = np.bincount(of_groups[answered], minlength=count).astype(np.float64)
        if (held > 0).sum() < 5:
            continue  # too few groups to bound anything by; a looser threshold has more
        sums = np.bincount(of_groups[answered], weights=loss[answered], minlength=count)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (drawn @ sums) / (drawn @ held)
        bound = float(np.quantile(means[np.isfinite(means)], level))
        if bound > risk:
            break
        best = Threshold(mark, risk, bound, float(answered.mean()), level, count)
    return best


def evaluate(
    threshold: Threshold, scores: ArrayLike, losses: ArrayLike, *, accepted: Sequence[bool] | None = None
) -> Selected:
    """What the threshold does on test rows. accepted: of each row, whether the contract let it in (default: all)."""
    score, loss = np.asarray(scores, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    let_in = np.ones(len(score), dtype=bool) if accepted is None else np.asarray(accepted, dtype=bool)
    if not len(score) == len(loss) == len(let_in) or not len(score):
        raise _refused(f"{len(score)} scores, {len(loss)} losses, {len(let_in)} accepted", "equal lengths, one or more")
    sure = score <= threshold.value if threshold.value is not None else np.zeros(len(score), dtype=bool)
    answered = let_in & sure
    risk = float(loss[answered].mean()) if answered.any() else None
    return Selected(
        len(score),
        int((~let_in).sum()),
        int((let_in & ~sure).sum()),
        int(answered.sum()),
        float(answered.mean()),
        risk,
        threshold.risk,
        None if risk is None else risk <= threshold.risk,
    )


def evaluate_by_slice(
    threshold: Threshold,
    scores: ArrayLike,
    losses: ArrayLike,
    slices: Sequence[str],
    *,
    accepted: Sequence[bool] | None = None,
) -> dict[str, Selected]:
    """`evaluate` within each slice, by name."""
    score, loss, names = np.asarray(scores), np.asarray(losses), np.array([str(one) for one in slices])
    let_in = np.ones(len(score), dtype=bool) if accepted is None else np.asarray(accepted, dtype=bool)
    return {
        name: evaluate(threshold, score[names == name], loss[names == name], accepted=let_in[names == name].tolist())
        for name in sorted(set(names.tolist()))
    }


def conformal(residuals: ArrayLike, *, alpha: float = 0.1) -> Conformal:
    """Split conformal half width from |target - prediction| of independent calibration rows.

    The ceil((n + 1)(1 - alpha))-th smallest: a new row lies within it with chance 1 - alpha or more.
    """
    row = _residuals(residuals, alpha)
    return conformal_by_group(row, list(range(len(row))), alpha=alpha)


def conformal_by_group(residuals: ArrayLike, groups: Sequence[Hashable], *, alpha: float = 0.1) -> Conformal:
    """Conformal half width for rows of a new group: each of K calibration groups has weight 1 / (K + 1), shared by its
    rows, and the new group's weight lies at infinity.

    With chance 1 - alpha or more a row of a new group lies within, if groups are exchangeable and rows within a group
    are. For groups of one row it is split conformal prediction. K below 1 / alpha - 1 gives an infinite width.

    Reference: Lee, Barber, Willett: Distribution-free inference with hierarchical data, 2023.
    """
    row = _residuals(residuals, alpha)
    _, _, of_groups = _columns(row, row, groups)
    sizes = np.bincount(of_groups)
    order = np.argsort(row, kind="stable")
    reached = np.cumsum((1.0 / sizes[of_groups])[order])  # in units of one group
    wanted = (1 - alpha) * (len(sizes) + 1)
    at = int(np.searchsorted(reached, wanted - 1e-9))
    width = float(row[order[at]]) if at < len(row) else math.inf
    return Conformal(width, alpha, len(sizes), len(row))


def covered(fitted: Conformal, residuals: ArrayLike, groups: Sequence[Hashable]) -> float:
    """Share of held-out rows within the half width, each group counting the same."""
    row, _, of_groups = _columns(np.abs(np.asarray(residuals, dtype=np.float64)), residuals, groups)
    inside = np.bincount(of_groups, weights=(row <= fitted.half_width).astype(np.float64))
    return float((inside / np.bincount(of_groups)).mean())


def _residuals(residuals: ArrayLike, alpha: float) -> NDArray[np.float64]:
    if not 0 < alpha < 1:
        raise _refused(f"alpha={alpha}", "a number between 0 and 1")
    return np.abs(np.asarray(residuals, dtype=np.float64))


def _columns(
    first: ArrayLike, second: ArrayLike, groups: Sequence[Hashable]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.ndim != 1 or not one.size or one.shape != other.shape or len(groups) != len(one):
        raise _refused(f"shapes {one.shape}, {other.shape} and {len(groups)} groups", "equal lengths, one row or more")
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise _refused("values that are not finite", "finite scores, losses and residuals")
    place: dict[Hashable, int] = {}
    return one, other, np.array([place.setdefault(group, len(place)) for group in groups], dtype=np.int64)


def _refused(got: str, wanted: str) -> StatisticsError:
    return StatisticsError(got=got, wanted=wanted, where="abstain", next_step="check the columns")
