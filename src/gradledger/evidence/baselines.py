"""Rules that need no model of one's own, on the same rows and the same split: the scale on which a metric is read.

    train = Side(x[train], y[train], metadata={"camera": cameras[train]})
    held = Side(x[held], y[held], groups=episodes[held], metadata={"camera": cameras[held]}, last=previous[held])
    rows = table(train, held, kind="numbers", zero=True)
    placed = place("mse", 0.012, rows)

    rows = table(all, all, kind="numbers", folds=5)  # no split: cross-validation by groups

Axis letters: N rows, D features, A outputs, K classes. A rule is fitted on `train` and measured on `held` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradledger.evidence._rules import encoded, linear, nearest, rows_of
from gradledger.evidence._rules import shuffled as shuffled
from gradledger.evidence.errors import StatisticsError
from gradledger.evidence.stats import LEVEL, REPLICATES, Interval, over_groups

Array = NDArray[Any]
Kind = Literal["numbers", "classes"]
Better = Literal["lower", "higher"]
Metric = Callable[[Array, Array], "float | Array"]
DRAWS = 8_000_000  # of groups in all replicates: many groups are drawn less often


@dataclass(frozen=True)
class Side:
    """One side of a split.

    inputs: (N, ...) numbers, the features that the model sees. targets: (N,) or (N, A) numbers, or (N,) classes.
    groups: which group each row is of; None: each row is a group of its own. Of `train` they say what is left out
    together where a penalty is chosen, and which rows of `held` have siblings there. metadata: name -> (N,) numbers or
    text, what is known of a row beside its input: camera, operator, hour, file size. last: what the target was before,
    of the shape of `targets`: the rule "nothing changes".
    """

    inputs: ArrayLike
    targets: ArrayLike | Sequence[Any]
    groups: Sequence[Hashable] | None = None
    metadata: Mapping[str, Sequence[Any] | Array] = field(default_factory=dict)
    last: ArrayLike | Sequence[Any] | None = None


@dataclass(frozen=True)
class Baseline:
    """What one rule reaches on the held-out rows. n: rows; groups: how many; interval: of the value, over groups.
    shared: how many of these groups were among those that the rule was fitted on: 0, or the value is leaked."""

    name: str
    value: float
    n: int
    groups: int
    interval: Interval
    shared: int = 0

    def record(self) -> dict[str, Any]:
        """Ready for JSON; ten digits, for the last bits of a decomposition can differ from call to call."""
        held = {name: _ten(value) for name, value in self.interval.record().items()}
        return {**asdict(self), "value": _ten(self.value), "interval": held}


@dataclass(frozen=True)
class Placed:
    """A value among the baselines. ratio: value over that of the best of them; None where that is 0. beaten: by more
    than nothing; not_beaten: as good as the value, or better."""

    metric: str
    value: float
    better: Better
    best: str
    best_value: float
    ratio: float | None
    beaten: tuple[str, ...]
    not_beaten: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        told = {name: _ten(value) for name, value in asdict(self).items()}
        return {**told, "beaten": list(self.beaten), "not_beaten": list(self.not_beaten)}


def squared_error(said: Array, wanted: Array) -> Array:
    """(N,) squared error of each row, the mean over its outputs; for numbers."""
    return np.asarray(np.square(said - wanted).reshape(len(said), -1).mean(axis=1))


def wrong(said: Array, wanted: Array) -> Array:
    """(N,) 1 where the class of the highest score, the first of equals, is not the wanted one; for classes."""
    return np.asarray((said.argmax(axis=1) != wanted).astype(np.float64))


def table(
    train: Side,
    held: Side,
    *,
    kind: Kind,
    metric: Metric | None = None,
    zero: bool = False,
    also: Mapping[str, ArrayLike] | None = None,
    penalty: float | None = None,
    standardise: bool = True,
    folds: int = 0,
    level: float = LEVEL,
    replicates: int = REPLICATES,
    rng_seed: int = 0,
) -> list[Baseline]:
    """Every rule that these sides allow, in this order: mean (majority), zero, last value, nearest neighbour, linear,
    metadata only, shuffled labels, and what is given in `also`.

    Of classes every rule gives scores (N, K), columns in the order of `class_names`: shares of the training classes,
    the class of the nearest row, a least-squares line through 0 and 1.

    Args:
        kind: what targets are. metric: (said, wanted) -> a number, or (N,) one a row, whose mean is the value and which
            alone gives an interval; numbers: arrays of the shape of `held.targets`; classes: scores and (N,) indices.
            Default: `squared_error` or `wrong`.
        zero: add the rule that says 0, such as the action that does nothing.
        also: name -> predictions of rules of your own, such as the model trained on `shuffled` labels.
        penalty: of the linear rule, see `_rules.linear`. standardise: distances of inputs in standard deviations; False
            where the columns have one unit, or were scaled before. rng_seed: of the shuffled labels and the intervals.
        folds: 0 fits each rule on all training rows. From 2 on, the groups that stand on both sides are divided into so
            many folds, and the held-out rows of a fold are answered by rules that were fitted without it: no rule
            answers for a group that it has seen. With the same rows on both sides: cross-validation by groups.

    Raises:
        StatisticsError: columns of different lengths or widths, numbers that are not finite, metadata that one side
            lacks, `zero` of classes, a metric that gives neither a number nor one a row, or folds without groups of
            both sides, or without a training row in one of them.
    """
    names = class_names(train, held) if kind == "classes" else None
    goal, wanted = _goals(train.targets, names, "train.targets"), _goals(held.targets, names, "held.targets")
    x, asked = rows_of(train.inputs, "train.inputs"), rows_of(held.inputs, "held.inputs")
    _check(train, held, (len(x), len(goal)), (len(asked), len(wanted)), zero and kind == "classes")
    last = None if held.last is None else _goals(held.last, names, "held.last")
    if last is not None and last.shape != wanted.shape:
        raise _refused(f"predictions of shape {last.shape} of 'last value'", f"{wanted.shape}", "table")
    parts, shared = _parts(train.groups, held.groups, folds, (len(x), len(asked)), rng_seed)
    said: dict[str, Array] = {}
    for ours, theirs in parts:
        answers = _answers(
            "mean of the training targets" if names is None else "shares of the training classes (majority)",
            (x[ours], goal[ours], None if train.groups is None else [train.groups[at] for at in ours]),
            asked[theirs],
            _columns(train.metadata, ours),
            _columns(held.metadata, theirs),
            zero=zero,
            last=None if last is None else last[theirs],
            penalty=penalty,
            standardise=standardise,
            rng_seed=rng_seed,
        )
        for name, values in answers.items():
            said.setdefault(name, np.empty_like(wanted))[theirs] = values
    for name, given in (also or {}).items():
        said[name] = rows_of(given, f"also: {name}")
    measure = metric or (squared_error if names is None else wrong)
    flat = names is None and np.ndim(held.targets) == 1
    right = wanted[:, 0] if flat else (wanted if names is None else wanted.argmax(axis=1))
    groups: list[Hashable] = list(held.groups if held.groups is not None else range(len(asked)))
    found = []
    for name, values in said.items():
        if values.shape != wanted.shape:
            raise _refused(f"predictions of shape {values.shape} of {name!r}", f"{wanted.shape}", "table")
        answer = np.asarray(measure(values[:, 0] if flat else values, right), dtype=np.float64)
        found.append(replace(_measured(name, answer, groups, level, replicates, rng_seed), shared=shared))
    return found


def class_names(train: Side, held: Side) -> list[Any]:
    """The classes of both sides, sorted: what the columns of scores stand for."""
    return sorted({*np.asarray(train.targets).ravel().tolist(), *np.asarray(held.targets).ravel().tolist()})


def place(metric: str, value: float, baselines: Sequence[Baseline], *, better: Better = "lower") -> Placed:
    """A metric's value with its scale.

    Example:
        >>> none = Interval(None, None, 0.95, "bootstrap over groups", "one group")
        >>> rows = [Baseline("mean", 4.0, 9, 1, none), Baseline("linear", 2.0, 9, 1, none)]
        >>> placed = place("mse", 3.0, rows)
        >>> placed.best, placed.ratio, placed.not_beaten
        ('linear', 1.5, ('linear',))

    Raises:
        StatisticsError: no baselines, or a value that is not finite.
    """
    if not baselines or not np.isfinite(value):
        raise _refused(f"{value} beside {len(baselines)} baselines", "a finite value and one baseline or more", "place")
    sign = 1.0 if better == "lower" else -1.0
    best = min(baselines, key=lambda one: sign * one.value)
    under = tuple(one.name for one in baselines if sign * value < sign * one.value)
    rest = tuple(one.name for one in baselines if one.name not in under)
    ratio = value / best.value if best.value != 0 else None
    return Placed(metric, float(value), better, best.name, best.value, ratio, under, rest)


def _answers(
    middle: str,
    fitted: tuple[Array, Array, list[Hashable] | None],
    asked: Array,
    known: Mapping[str, Array],
    met: Mapping[str, Array],
    *,
    zero: bool,
    last: Array | None,
    penalty: float | None,
    standardise: bool,
    rng_seed: int,
) -> dict[str, Array]:
    """Rule -> (M, A) of what it says to the rows that are asked, fitted on (inputs, targets, groups)."""
    x, goal, groups = fitted
    said: dict[str, Array] = {middle: np.tile(goal.mean(axis=0), (len(asked), 1))}
    if zero:
        said["zero"] = np.zeros((len(asked), goal.shape[1]))
    if last is not None:
        said["last value"] = last
    said["nearest neighbour"] = nearest(x, goal, asked, standardise=standardise)
    said["linear"] = linear(x, goal, asked, penalty=penalty, groups=groups)
    if known:
        a, b = encoded(known, met)
        said["metadata only, nearest neighbour"] = nearest(a, goal, b)
        said["metadata only, linear"] = linear(a, goal, b, penalty=penalty, groups=groups)
    mixed = goal[shuffled(np.arange(len(goal)), rng_seed=rng_seed)]
    said["shuffled labels, nearest neighbour"] = nearest(x, mixed, asked, standardise=standardise)
    said["shuffled labels, linear"] = linear(x, mixed, asked, penalty=penalty, groups=groups)
    return said


def _columns(metadata: Mapping[str, Sequence[Any] | Array], rows: NDArray[np.int64]) -> dict[str, Any]:
    """These rows of each column."""
    return {name: [column[at] for at in rows] for name, column in metadata.items()}


def _parts(
    train: Sequence[Hashable] | None,
    held: Sequence[Hashable] | None,
    folds: int,
    counts: tuple[int, int],
    rng_seed: int,
) -> tuple[list[tuple[NDArray[np.int64], NDArray[np.int64]]], int]:
    """[(training rows, held-out rows that they answer)], and how many groups stand on both sides of a part."""
    everything = (np.arange(counts[0]), np.arange(counts[1]))
    both = [] if train is None or held is None else [one for one in dict.fromkeys(held) if one in set(train)]
    if folds == 0:
        return [everything], len(both)
    if folds < 2 or train is None or held is None:
        of = "both sides" if train is not None and held is not None else "one side or none"
        raise _refused(f"folds={folds}, groups of {of}", "2 folds or more, and groups of both sides", "folds")
    order = np.random.default_rng(rng_seed).permutation(len(both))
    fold = {both[at]: number % folds for number, at in enumerate(order)}
    parts = []
    for number in range(-1, min(folds, len(both))):
        theirs = np.array([at for at, one in enumerate(held) if fold.get(one, -1) == number], dtype=np.int64)
        ours = np.array([at for at, one in enumerate(train) if number < 0 or fold.get(one) != number], dtype=np.int64)
        if theirs.size and not ours.size:
            raise _refused(f"{len(both)} groups in {folds} folds", "training rows outside of each fold", "folds")
        if theirs.size:
            parts.append((ours, theirs))
    return parts, 0


def _measured(
    name: str, answer: NDArray[np.float64], groups: list[Hashable], level: float, replicates: int, rng_seed: int
) -> Baseline:
    count = len(set(groups))
    if answer.shape == ():
        none = Interval(None, None, level, "none", "the metric is of all rows together")
        return Baseline(name, float(answer), len(groups), count, none)
    if answer.shape != (len(groups),):
        raise _refused(f"a metric of shape {answer.shape}", f"a number, or one for each of {len(groups)} rows", name)
    draws = max(200, min(replicates, DRAWS // count))
    interval = over_groups(answer, groups, level=level, replicates=draws, rng_seed=rng_seed)
    return Baseline(name, float(answer.mean()), len(groups), count, interval)


def _goals(targets: Any, names: list[Any] | None, where: str) -> NDArray[np.float64]:
    """(N, A) numbers, or (N, K) with 1 at the class."""
    if names is None:
        return rows_of(targets, where)
    column = np.asarray(targets)
    if column.ndim != 1:
        raise _refused(f"classes of shape {column.shape}", "(N,), one a row", where)
    unknown = [one for one in column.tolist() if one not in names]
    if unknown:
        raise _refused(f"the class {unknown[0]!r}", f"one of {names}", where)
    place = {name: at for at, name in enumerate(names)}
    return np.eye(len(names))[[place[one] for one in column.tolist()]]


def _check(train: Side, held: Side, of_train: tuple[int, int], of_held: tuple[int, int], zero: bool) -> None:
    for where, counts in (("train", of_train), ("held", of_held)):
        if counts[0] != counts[1]:
            raise _refused(f"{counts[0]} inputs and {counts[1]} targets", "one target an input", where)
    for where, groups, rows in (("train", train.groups, of_train[0]), ("held", held.groups, of_held[0])):
        if groups is not None and len(groups) != rows:
            raise _refused(f"{len(groups)} groups for {rows} rows", "a group for each row", f"{where}.groups")
    if set(train.metadata) != set(held.metadata):
        raise _refused(f"metadata {sorted(train.metadata)} and {sorted(held.metadata)}", "the same names", "metadata")
    for side, count in ((train, of_train[0]), (held, of_held[0])):
        for name, column in side.metadata.items():
            if len(column) != count:
                raise _refused(f"{len(column)} values of {name!r}", f"one for each of {count} rows", "metadata")
    if zero:
        raise _refused("zero=True of classes", "zero=True of numbers alone", "table")


def _ten(value: Any) -> Any:
    return float(f"{value:.10g}") if isinstance(value, float) else value


def _refused(got: str, wanted: str, where: str) -> StatisticsError:
    return StatisticsError(got=got, wanted=wanted, where=f"baselines: {where}", next_step="check what is passed")
