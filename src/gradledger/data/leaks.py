"""Leaks that ids cannot show: bursts in the order of the records, and what a random split adds to a score."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradledger.data._needs import needs
from gradledger.data.errors import SplitError
from gradledger.data.manifest import Manifest
from gradledger.data.neighbours import features, nearest, standardised

# Rows whose neighbours are looked for: more would tell no more.
QUERIES = 2000
# Windows looked at, as shares of the rows on either side, and rows.
WINDOWS = (0.0025, 0.01, 0.03, 0.0725)
# A burst is called at this many standard errors over chance, and at least so many times chance in some window.
SURE, LIFT = 6.0, 1.3


@dataclass(frozen=True)
class Window:
    """Share of rows whose nearest row in feature space lies within `rows` rows in the file, and by chance."""

    rows: int
    share: float
    chance: float
    error: float

    @property
    def sigma(self) -> float:
        """Standard errors over chance."""
        return (self.share - self.chance) / self.error

    def __str__(self) -> str:
        return f"{self.share:.1%} of nearest neighbours within +-{self.rows} rows, {self.chance:.1%} by chance"


@dataclass(frozen=True)
class Bursts:
    """Whether neighbours in feature space are neighbours in the file. found: they are, beyond chance."""

    windows: tuple[Window, ...]
    queries: int

    @property
    def worst(self) -> Window:
        """The window that tells most."""
        return max(self.windows, key=lambda window: window.sigma)

    @property
    def found(self) -> bool:
        """Beyond chance in some window."""
        return any(window.sigma > SURE and window.share > LIFT * window.chance for window in self.windows)

    def __str__(self) -> str:
        verdict = "bursts: a random split leaks" if self.found else "no bursts"
        return f"{verdict}; " + "; ".join(str(window) for window in self.windows)


def burst_test(
    values: Any,
    *,
    labels: Sequence[Hashable] | None = None,
    windows: Sequence[int] | None = None,
    standardise: bool = True,
    rng_seed: int = 0,
) -> Bursts:
    """Look for bursts without group labels: rows in the order they were recorded.

    The nearest row in feature space is looked up in the order of the file. In independent data it lies anywhere; in
    bursts (frames of one scene, pages of one writer) it lies close by. A perceptual hash sees copies only, this sees
    kinship.

    Args:
        values: (N, ...) one row a sample, in recorded order; at least 50 rows.
        labels: classes. With them, chance counts only rows of the neighbour's class, so that a file sorted by class is
            no burst.
        windows: rows on either side to look at; four shares of N when not given.
        standardise: give each feature standard deviation 1 first; not where all have one unit, as pixels have.
        rng_seed: which 2,000 rows ask, where there are more.

    Raises:
        SplitError: too few rows, or a window as wide as the data.
    """
    rows = features(values, where="burst_test")
    rows = standardised(rows) if standardise else rows
    count = len(rows)
    spans = [max(1, round(share * count)) for share in WINDOWS] if windows is None else list(windows)
    if count < 50 or any(not 0 < span < count // 2 for span in spans):
        raise SplitError(
            got=f"{count} rows, windows {spans}",
            wanted="at least 50 rows and windows below half of them",
            where="burst_test",
            next_step="pass more rows, in the order they were recorded",
        )
    rng = np.random.default_rng(rng_seed)
    asked = np.arange(count) if count <= QUERIES else np.sort(rng.choice(count, QUERIES, replace=False))
    _, index = nearest(rows, 1, queries=asked)
    return of_neighbours(asked, index[:, 0], count, labels=labels, windows=spans)


def of_neighbours(
    asked: NDArray[np.int64],
    nearest_row: NDArray[np.int64],
    count: int,
    *,
    labels: Sequence[Hashable] | None = None,
    windows: Sequence[int] | None = None,
) -> Bursts:
    """`burst_test` where the nearest row of each asked row, of `count` rows, is known already."""
    spans = [max(1, round(share * count)) for share in WINDOWS] if windows is None else windows
    gap = np.abs(nearest_row - asked)
    of = None
    if labels is not None:
        number: dict[Hashable, int] = {}
        of = np.array([number.setdefault(label, len(number)) for label in labels], np.int64)
    found = []
    for span in dict.fromkeys(spans):
        chance = _chance(asked, nearest_row, span, count, of)
        # Twice the binomial variance: two rows that are each other's nearest are one piece of evidence.
        error = np.sqrt(2 * np.sum(chance * (1 - chance))) / len(asked) + 1e-9
        found.append(Window(span, float(np.mean(gap <= span)), float(chance.mean()), float(error)))
    return Bursts(tuple(found), len(asked))


def _chance(
    asked: NDArray[np.int64], found: NDArray[np.int64], span: int, count: int, of: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """Probability for each query row that a row drawn at random (of the neighbour's class) lies in its window."""
    low, high = np.maximum(asked - span, 0), np.minimum(asked + span, count - 1)
    if of is None:
        return np.asarray((high - low) / (count - 1))
    chance = np.zeros(len(asked))
    for label in np.unique(of[found]):
        mine = of[found] == label
        before = np.concatenate([[0], np.cumsum(of == label)])
        own = of[asked[mine]] == label
        inside = before[high[mine] + 1] - before[low[mine]] - own
        chance[mine] = inside / np.maximum(before[-1] - own, 1)
    return chance


Task = Literal["classes", "values"]


@dataclass(frozen=True)
class Leak:
    """What a random split adds. random, grouped: error of the same model on the same data under either split.

    error: share of wrong classes, or mean squared error over the variance of the targets. spread: standard error of
    the difference over the repeats.
    """

    random: float
    grouped: float
    spread: float
    task: Task
    model: str
    groups: int

    @property
    def leak(self) -> float:
        """Grouped error minus random error: how much better a random split makes the model look."""
        return self.grouped - self.random

    @property
    def found(self) -> bool:
        """The difference is beyond three standard errors and a tenth of the grouped error."""
        return self.leak > 3 * self.spread and self.leak > 0.1 * self.grouped

    def __str__(self) -> str:
        ratio = f" ({self.grouped / self.random:.2f}x)" if self.random > 0 else ""
        what = "error" if self.task == "classes" else "error / variance"
        return (
            f"leak {self.leak:+.4f}: {what} {self.grouped:.4f} on whole groups, {self.random:.4f} on a random split"
            f"{ratio}, {self.model}, {self.groups} groups"
        )


def group_control(
    values: Any,
    targets: Any,
    groups: Sequence[Hashable],
    *,
    task: Task = "classes",
    model: Any = None,
    folds: int = 5,
    repeats: int = 3,
    rows: int = 5000,
    standardise: bool = True,
    rng_seed: int = 0,
) -> Leak:
    """Score one model twice, on a random split and on one that keeps groups whole; the difference is the leak.

    Args:
        values: (N, ...) features. targets: (N,) classes, or (N,) or (N, A) numbers. groups: one a sample; blocks of
            the recorded order where nothing better is known, see `blocks`.
        model: anything with scikit-learn's fit and predict; three nearest neighbours when not given, which show kinship
            best and need no tuning.
        folds: of each cross-validation. repeats: with other shuffles. standardise: as for `burst_test`.
        rows: where there are more, whole groups are drawn until there are so many (at least two a fold).

    Raises:
        SplitError: fewer groups than folds, or lengths that differ.
    """
    base = needs("sklearn.base", purpose="the group-shuffled control")
    selection = needs("sklearn.model_selection", purpose="the group-shuffled control")
    neighbours = needs("sklearn.neighbors", purpose="the group-shuffled control")
    given = features(values, where="group_control")
    given = standardised(given) if standardise else given
    goal = np.asarray(targets)
    number: dict[Hashable, int] = {}
    which = np.array([number.setdefault(group, len(number)) for group in groups], np.int64)
    if not len(given) == len(goal) == len(which) or len(number) < folds:
        raise SplitError(
            got=f"{len(given)} rows, {len(goal)} targets, {len(which)} group values of {len(number)} groups",
            wanted=f"one target and one group a row, at least {folds} groups",
            where="group_control",
            next_step="pass blocks(N, rows) where no group is known, or fewer folds",
        )
    if len(given) > rows:
        drawn = _whole_groups(which, rows, 2 * folds, np.random.default_rng(rng_seed))
        given, goal, which = given[drawn], goal[drawn], which[drawn]
    if task == "classes" and goal.dtype.kind == "f" and np.any(goal != np.floor(goal)):
        raise SplitError(
            got=f"targets such as {float(goal[goal != np.floor(goal)][0]):g} for classes",
            wanted="classes: text, or whole numbers",
            where="group_control",
            next_step="say that they are values: task='values', on the command line --task values",
        )
    if model is None:
        kind = neighbours.KNeighborsClassifier if task == "classes" else neighbours.KNeighborsRegressor
        model = kind(n_neighbors=3)
    scores: dict[str, list[float]] = {"random": [], "grouped": []}
    for repeat in range(repeats):
        splitters = {
            "random": selection.KFold(folds, shuffle=True, random_state=rng_seed + repeat).split(given),
            "grouped": selection.GroupKFold(folds, shuffle=True, random_state=rng_seed + repeat).split(
                given, groups=which
            ),
        }
        for name, parts in splitters.items():
            errors = [_error(base.clone(model), given, goal, fit, held, task) for fit, held in parts]
            weights = [len(error) for error in errors]
            scores[name].append(float(np.average([error.mean() for error in errors], weights=weights)))
    difference = np.array(scores["grouped"]) - np.array(scores["random"])
    spread = float(difference.std(ddof=1) / np.sqrt(repeats)) if repeats > 1 else 0.0
    return Leak(
        float(np.mean(scores["random"])),
        float(np.mean(scores["grouped"])),
        spread,
        task,
        type(model).__name__,
        len(set(which.tolist())),
    )


def _whole_groups(which: NDArray[np.int64], rows: int, least: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows of groups drawn at random, whole: half a burst shows half its kinship."""
    order = rng.permutation(int(which.max()) + 1)
    held = np.cumsum(np.bincount(which)[order])
    taken = max(int(np.searchsorted(held, rows)), least)
    return np.flatnonzero(np.isin(which, order[:taken]))


def blocks(count: int, rows: int) -> list[int]:
    """Contiguous blocks of `rows` rows: groups for `group_control` where nothing but the order is known."""
    return [at // max(1, rows) for at in range(count)]


def _error(
    model: Any, rows: NDArray[np.float64], goal: NDArray[Any], fit: Any, held: Any, task: Task
) -> NDArray[np.float64]:
    answer = model.fit(rows[fit], goal[fit]).predict(rows[held])
    if task == "classes":
        return np.asarray(answer != goal[held], dtype=np.float64)
    variance = np.maximum(np.var(goal.astype(np.float64), axis=0), 1e-300)
    each = np.square(answer - goal[held]) / variance
    return np.asarray(each.reshape(len(held), -1).mean(axis=1))


def twins(manifest: Manifest, values: Any) -> list[str]:
    """Near twins across sides; [] when there are none worth a look.

    A twin is a row of another side that lies ten times nearer to a row of the first side than rows of the first side
    usually lie to their fifth neighbour. Independent rows of two or more dimensions do so one time in a hundred at
    most, so two in a hundred are reported.

    Args:
        values: (N, ...) features in the order of the manifest.
    """
    rows = standardised(features(values, where="twins"))
    if len(rows) != len(manifest.ids):
        raise SplitError(
            got=f"{len(rows)} rows",
            wanted=f"the {len(manifest.ids)} samples of the split, in its order",
            where="twins",
            next_step="write the features in the order of the manifest's ids",
        )
    first, *others = manifest.shares
    mine = manifest.indices(first)
    own, _ = nearest(rows[mine], 5)
    close = float(np.median(own[:, -1])) * (0.1 if rows.shape[1] > 1 else 0.01) ** 2
    found = []
    for side in others:
        theirs = manifest.indices(side)
        best, which = _across(rows[mine], rows[theirs])
        twin = np.flatnonzero(best <= close)
        if len(twin) > max(1.0, 0.02 * len(theirs)):
            at = int(twin[np.argmin(best[twin])])
            found.append(
                f"{len(twin)} of {len(theirs)} samples of {side} have a near twin in {first}, for example "
                f"{manifest.ids[int(theirs[at])]!r} and {manifest.ids[int(mine[which[at]])]!r}"
            )
    return found


def _across(rows: NDArray[np.float64], asked: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(squared distance, index) of the nearest of `rows` for each row of `asked`."""
    tree = needs("sklearn.neighbors", purpose="near twins").NearestNeighbors(n_neighbors=1).fit(rows)
    distance, index = tree.kneighbors(asked)
    return np.square(distance[:, 0]), index[:, 0].astype(np.int64)
