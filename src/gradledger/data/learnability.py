"""Is the target a function of the input? Looked up among nearest pairs, before anything is trained.

A regression target that is no function of its input has a floor set by the variance that is left when the input is
known. No architecture and no learning rate moves it, and the loss curve that it gives looks like a converged one.

Nearest pairs say something of new data only where they are no neighbours in time: two frames of one recording share
what the inputs do not tell, so any target seems to follow from any input. With `groups`, pairs are looked for across
recordings; without, the order of the rows is looked at, and where pairs lie side by side nothing is called learnable.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data._array import as_array
from gradledger.data.errors import LearnabilityError
from gradledger.data.leaks import Bursts, of_neighbours
from gradledger.data.neighbours import features, nearest, standardised

# Neighbours of a row that the line is drawn through, and rows that are asked at most.
NEIGHBOURS, QUERIES = 10, 20_000
# A floor above this share of the variance is said to be no function of the input.
NO_FUNCTION = 0.5
# Nearest pairs farther apart than this, in standard deviations, leave much to the line.
FAR = 0.5


@dataclass(frozen=True)
class Floor:
    """What no model of these inputs can get below.

    floor: (A,) mean squared error left for each target, unit of the target squared, by the Gamma test: the mean over
    outputs is the floor of an MSE loss. For an angle: of its point on the unit circle, about rad^2 while it is small.
    nearest: (A,) half the mean squared difference of nearest pairs, an upper bound (up to chance) that needs no line.
    variance: (A,) of the targets. distance: of nearest pairs, in standard deviations of the inputs: where it is not
    small, the data are too few to tell. duplicates: pairs of exactly equal inputs; contradictions: those with
    different targets. bursts: where the nearest rows lie in the file, None where groups were given.
    """

    floor: tuple[float, ...]
    nearest: tuple[float, ...]
    variance: tuple[float, ...]
    names: tuple[str, ...]
    distance: float
    duplicates: int
    contradictions: int
    samples: int
    bursts: Bursts | None = None

    @property
    def mse(self) -> float:
        """Floor of the mean squared error over all outputs."""
        return float(np.mean(self.floor))

    @property
    def ratio(self) -> float:
        """Floor over variance, all outputs together: 0 for a function, 1 where the input says nothing."""
        total = float(np.sum(self.variance))
        return float(np.sum(self.floor)) / total if total > 0 else 0.0

    @property
    def side_by_side(self) -> bool:
        """Nearest rows are neighbours in the file and no groups were given: the floor may be that of one recording."""
        return self.bursts is not None and self.bursts.found

    @property
    def learnable(self) -> bool:
        """Below half of the variance for all outputs together, and not only among rows side by side."""
        return self.ratio < NO_FUNCTION and not self.side_by_side

    def __str__(self) -> str:
        if self.ratio >= NO_FUNCTION:
            verdict = "the target does not follow from the input"
        elif self.side_by_side:
            verdict = "not known of new recordings"
        elif self.ratio < 0.05:
            verdict = "the target is a function of the input"
        else:
            verdict = "part of the target follows from the input"
        each = ", ".join(
            f"{name} {floor / variance if variance > 0 else 0.0:.4f}"
            for name, floor, variance in zip(self.names, self.floor, self.variance, strict=True)
        )
        text = f"floor/variance {self.ratio:.4f} ({verdict}); floor of the MSE {self.mse:.4g}; per output: {each}"
        if self.contradictions:
            text += f"; {self.contradictions} of {self.duplicates} pairs of equal inputs have different targets"
        if self.distance > FAR:
            total = float(np.sum(self.variance))
            left = float(np.sum(self.nearest)) / total if total > 0 else 0.0
            text += (
                f"; the floor is a guess: nearest pairs are {self.distance:.2g} standard deviations apart, and they "
                f"themselves leave {left:.2g} of the variance"
            )
        return text + _beside(self.bursts)


def noise_floor(
    inputs: Any,
    targets: Any,
    *,
    names: Sequence[str] | None = None,
    angles: Sequence[str] = (),
    groups: Sequence[Hashable] | None = None,
    neighbours: int = NEIGHBOURS,
    rng_seed: int = 0,
) -> Floor:
    """The Gamma test (Stefansson, Koncar and Jones, 1997) for every output.

    For the p-th nearest neighbours, delta(p) is the mean squared distance of the inputs and gamma(p) half the mean
    squared difference of the targets. A smooth function makes gamma fall to 0 with delta; the value of the fitted line
    at distance 0 is the variance of what the inputs do not explain.

    Args:
        inputs: (N, ...) numbers, standardised here column by column. targets: (N,) or (N, A) numbers.
        names: of the outputs, "0", "1", ... when not given.
        angles: names of outputs that are angles in rad, compared on the circle: -pi and pi are one joint position.
        groups: the recording (episode, burst, writer) of each row; pairs are then of two recordings. A value of its own
            for each row says that rows are independent and merely sorted. See `Floor.side_by_side`.
        neighbours: p runs from 1 to this.
        rng_seed: which 20,000 rows ask, where there are more.

    Raises:
        LearnabilityError: lengths that differ, fewer than 100 rows, or a single group. DataError: NaN or Inf.
    """
    rows = standardised(features(inputs, where="noise_floor inputs"))
    goal = features(targets, where="noise_floor targets")
    titles = tuple(names) if names is not None else tuple(str(at) for at in range(goal.shape[1]))
    unknown = sorted(set(angles) - set(titles))
    if len(rows) != len(goal) or len(rows) < 100 or len(titles) != goal.shape[1] or neighbours < 2 or unknown:
        raise LearnabilityError(
            got=f"{len(rows)} inputs, {len(goal)} targets of {goal.shape[1]} outputs, names {titles}, angles {unknown}",
            wanted="one target an input, at least 100 of them, a name for each output, two neighbours or more",
            where="noise_floor",
            next_step="pass the inputs and targets of one and the same set of samples",
        )
    asked = _asked(len(rows), rng_seed)
    of = _numbers(groups, len(rows), "noise_floor")
    square, index = nearest(rows, neighbours, queries=asked, groups=of)
    half = 0.5 * np.square(goal[index] - goal[asked][:, None, :])  # (Q, P, A)
    turns = [at for at, title in enumerate(titles) if title in angles]
    # Half the squared chord, which is half the squared difference of (cos, sin).
    half[..., turns] = 1.0 - np.cos(goal[index][..., turns] - goal[asked][:, None, turns])
    delta, gamma = square.mean(axis=0), half.mean(axis=0)
    floor = np.clip(_intercept(delta, gamma), 0.0, None)
    variance = goal.var(axis=0)
    variance[turns] = 1.0 - np.square(np.abs(np.exp(1j * goal[:, turns]).mean(axis=0)))
    duplicates, contradictions = _equal_inputs(rows, [row.tobytes() for row in goal])
    return Floor(
        tuple(np.minimum(floor, variance).tolist()),
        tuple(gamma[0].tolist()),
        tuple(variance.tolist()),
        titles,
        float(np.sqrt(np.median(square[:, 0]))),
        duplicates,
        contradictions,
        len(rows),
        of_neighbours(asked, index[:, 0], len(rows)) if of is None else None,
    )


@dataclass(frozen=True)
class Conflicts:
    """Classes among nearest pairs.

    share: of nearest pairs with different classes; close: the same among the tenth of pairs that are nearest; chance:
    what independent classes would give. duplicates, contradictions: as in `Floor`. pairs: up to ten (i, j) of closest
    pairs with different classes. classes: how many there are. bursts: as in `Floor`.
    """

    share: float
    close: float
    chance: float
    duplicates: int
    contradictions: int
    pairs: tuple[tuple[int, int], ...]
    classes: int
    samples: int
    bursts: Bursts | None = None

    @property
    def side_by_side(self) -> bool:
        """As of `Floor`; rows sorted by class are none."""
        return self.bursts is not None and self.bursts.found

    @property
    def learnable(self) -> bool:
        """Fewer than half as many pairs disagree as by chance, and not only among rows side by side."""
        return self.share < 0.5 * self.chance and not self.side_by_side

    @property
    def error(self) -> float:
        """The error that is left for a classifier with this many pairs in conflict, at best.

        In the limit, nearest pairs of M classes disagree at most e* (2 - e* M / (M - 1)) of the time, where e* is the
        Bayes error (Cover and Hart, 1967); this solves for e*, a lower bound.
        """
        most = 1.0 - 1.0 / max(self.classes, 2)
        return most * (1.0 - float(np.sqrt(max(0.0, 1.0 - self.close / most))))

    def __str__(self) -> str:
        text = (
            f"{self.share:.1%} of nearest pairs disagree on the class ({self.chance:.1%} by chance), "
            f"{self.close:.1%} of the closest tenth; about {self.error:.1%} error is left to any classifier"
        )
        if self.contradictions:
            text += f"; {self.contradictions} of {self.duplicates} pairs of equal inputs have different classes"
        return text + _beside(self.bursts)


def label_conflicts(
    inputs: Any, labels: Any, *, groups: Sequence[Hashable] | None = None, rng_seed: int = 0
) -> Conflicts:
    """Nearest pairs whose classes differ.

    Args:
        inputs: (N, ...) numbers. labels: (N,) classes: numbers or text. groups: as for `noise_floor`.

    Raises:
        LearnabilityError: lengths that differ, fewer than 100 rows, or a single group.
    """
    rows = standardised(features(inputs, where="label_conflicts inputs"))
    array, _ = as_array(labels)
    words = [str(label) for label in (labels if array is None else array.reshape(-1).tolist())]
    if len(words) != len(rows) or len(rows) < 100:
        raise LearnabilityError(
            got=f"{len(rows)} inputs, {len(words)} labels",
            wanted="one label an input, at least 100 of them",
            where="label_conflicts",
            next_step="pass the inputs and labels of one and the same set of samples",
        )
    kinds, of = np.unique(np.array(words, dtype="U"), return_inverse=True)
    of = of.reshape(-1)
    asked = _asked(len(rows), rng_seed)
    apart = _numbers(groups, len(rows), "label_conflicts")
    square, index = nearest(rows, 1, queries=asked, groups=apart)
    other = of[index[:, 0]] != of[asked]
    order = np.argsort(square[:, 0], kind="stable")
    closest = order[: max(1, len(order) // 10)]
    shares = np.bincount(of, minlength=len(kinds)) / len(of)
    duplicates, contradictions = _equal_inputs(rows, words)
    torn = [at for at in order if other[at]][:10]
    return Conflicts(
        float(other.mean()),
        float(other[closest].mean()),
        float(1.0 - np.sum(np.square(shares))),
        duplicates,
        contradictions,
        tuple((int(asked[at]), int(index[at, 0])) for at in torn),
        len(kinds),
        len(rows),
        of_neighbours(asked, index[:, 0], len(rows), labels=words) if apart is None else None,
    )


def require_reachable(threshold: float, floor: float, *, metric: str = "MSE") -> None:
    """Refuse to register a goal below what the data allow.

    Args:
        threshold: the goal, smaller is better. floor: `Floor.mse` or `Conflicts.error`, in the same unit.

    Raises:
        LearnabilityError: the goal is below the floor, or is no number.
    """
    if threshold >= floor and np.isfinite(threshold):
        return
    raise LearnabilityError(
        got=f"a goal of {metric} {threshold:.4g}",
        wanted=f"at least the floor of these data, {floor:.4g}",
        where="require_reachable",
        next_step="add inputs that tell these samples apart, restrict the targets, or state another goal",
    )


def _numbers(groups: Sequence[Hashable] | None, count: int, where: str) -> NDArray[np.int64] | None:
    """Groups as numbers from 0; None is no value, and such a row a group of its own."""
    if groups is None:
        return None
    known: dict[Hashable, int] = {}
    alone = (("alone", at) if group is None else group for at, group in enumerate(groups))
    of = np.array([known.setdefault(group, len(known)) for group in alone], np.int64)
    if len(of) != count or len(known) < 2:
        raise LearnabilityError(
            got=f"{len(of)} group values of {len(known)} groups for {count} rows",
            wanted="a group for each row, at least two groups",
            where=where,
            next_step="pass the recording of each row; with one recording, what holds in another cannot be told",
        )
    return of


def _beside(bursts: Bursts | None) -> str:
    """What the user has to know of rows whose nearest row lies beside them."""
    if bursts is None or not bursts.found:
        return ""
    return (
        f". Rows lie beside their nearest rows in the file ({bursts.worst}), as frames of one recording do: among "
        "those any target seems to follow from any input. Next: pass the groups (the recording of each row), or a "
        "value of its own for each row if rows are independent and only sorted"
    )


def _asked(count: int, rng_seed: int) -> NDArray[np.int64]:
    if count <= QUERIES:
        return np.arange(count)
    return np.sort(np.random.default_rng(rng_seed).choice(count, QUERIES, replace=False))


def _intercept(delta: NDArray[np.float64], gamma: NDArray[np.float64]) -> NDArray[np.float64]:
    """Value at 0 of the least-squares line of gamma (P, A) over delta (P,)."""
    centred = delta - delta.mean()
    scale = float(centred @ centred)
    slope = (centred @ (gamma - gamma.mean(axis=0))) / scale if scale > 0 else np.zeros(gamma.shape[1])
    return np.asarray(gamma.mean(axis=0) - slope * delta.mean())


def _equal_inputs(rows: NDArray[np.float64], targets: Sequence[Any]) -> tuple[int, int]:
    """(pairs of equal rows, those with different targets), neighbours in a group of equals paired up."""
    _, group, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    if counts.max() == 1:
        return 0, 0
    first: dict[int, Any] = {}
    contradictions = 0
    for which, target in zip(group.reshape(-1).tolist(), targets, strict=True):
        if counts[which] > 1 and first.setdefault(which, target) != target:
            contradictions += 1
    return int(np.sum(counts - 1)), contradictions
