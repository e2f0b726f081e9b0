"""Splits that do not leak: whole components go to one side, shares are counted in samples, infeasible is an error."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradledger.data._search import Task, obstacles, search
from gradledger.data.errors import SplitError
from gradledger.data.groups import components

ALGORITHM = "components-search/1"
PURGED = "purged"


@dataclass(frozen=True)
class Split:
    """Which side each sample is on.

    sides: (N,) names, "purged" for samples that are on none. groups: (N,) component numbers. reasons: why each sample
    is where it is. shares: what was asked; held: what each side got, as a share of the samples that were not purged.
    """

    sides: tuple[str, ...]
    groups: tuple[int, ...]
    reasons: tuple[str, ...]
    shares: dict[str, float]
    held: dict[str, float]
    tolerance: float
    rng_seed: int

    def indices(self, side: str) -> NDArray[np.int64]:
        """Samples of one side, ascending.

        Raises:
            SplitError: there is no such side.
        """
        return positions(self.sides, side, self.shares, where="Split.indices")


def positions(sides: Sequence[str], side: str, known: Collection[str], *, where: str) -> NDArray[np.int64]:
    """Where `side` stands in `sides`, ascending.

    Raises:
        SplitError: `side` is none of those that are known, nor the purged one.
    """
    if side not in known and side != PURGED:
        raise SplitError(got=repr(side), wanted=f"one of {', '.join(known)}", where=where, next_step="name a side")
    return np.flatnonzero(np.array(sides, dtype="U") == side)


def split(
    groups: Mapping[str, Sequence[Hashable]],
    *,
    shares: Mapping[str, float] | None = None,
    labels: Sequence[Hashable] | None = None,
    edges: NDArray[np.int64] | None = None,
    pinned: Mapping[tuple[str, Hashable], str] | None = None,
    times: Sequence[float] | None = None,
    purge: float = 0.0,
    tolerance: float = 0.05,
    rng_seed: int = 0,
) -> Split:
    """Put every sample on one side, related ones on the same.

    Args:
        groups: key name -> one value a sample, several keys at once: samples that share any value stay together, see
            `groups.components`. Use `groups.bursts` where only times are known.
        shares: side -> share of the samples, sum 1; 0.8 train, 0.1 val, 0.1 test when not given. The first is the one
            that is purged.
        labels: one class a sample: each side gets every class, in shares as equal as the components allow.
        edges: (P, 2) further pairs that belong together, such as near duplicates.
        pinned: (key, value) -> side: for example ("day", "friday") to "test".
        times: one time a sample, for `purge`.
        purge: samples of the first side nearer in time than this to a sample of another side are put on none, and so
            for each side against those after it. Neighbours in time are alike even across a group's border.
        tolerance: how far each side may be from its share, in share of all samples.
        rng_seed: of the search; equal arguments give equal splits.

    Raises:
        SplitError: no assignment keeps the shares and the classes (the text says why: too few groups, a class in one
            group, a group too large), or a purge empties a side, or an argument contradicts another.
    """
    wanted = dict(shares) if shares is not None else {"train": 0.8, "val": 0.1, "test": 0.1}
    count = _count(groups, labels, times)
    _check(wanted, count, tolerance, purge, times, rng_seed)
    which = components(count, groups, edges=edges)
    names = list(wanted)
    classes, of = _classes(labels, count)
    counts = np.zeros((int(which.max()) + 1, len(classes)))
    np.add.at(counts, (which, of), 1.0)
    fixed = _pins(pinned or {}, groups, which, names)
    task = Task(counts, np.array([wanted[name] for name in names]), tolerance, fixed)
    told = classes if labels is not None else []
    why = list(obstacles(task, told, _titles(groups, which), names))
    if why:
        raise _infeasible("; ".join(why), wanted, tolerance)
    found = search(task, np.random.default_rng(rng_seed))
    if not found.fits:
        raise _infeasible(_closest(task, found.sides, found.complete, names, told), wanted, tolerance)
    sides = [names[found.sides[component]] for component in which]
    pinned_to = dict.fromkeys(fixed, "pinned")
    reasons = [pinned_to.get(int(component), "searched") for component in which]
    if purge > 0 and times is not None:
        _purge(sides, reasons, names, np.asarray(times, dtype=np.float64), purge)
        _after_purge(sides, names, labels, purge)
    kept = max(1, sum(side != PURGED for side in sides))
    held = {name: sum(side == name for side in sides) / kept for name in names}
    return Split(tuple(sides), tuple(which.tolist()), tuple(reasons), wanted, held, tolerance, rng_seed)


def _count(
    groups: Mapping[str, Sequence[Hashable]], labels: Sequence[Hashable] | None, times: Sequence[float] | None
) -> int:
    sizes = {f"group key {name!r}": len(values) for name, values in groups.items()}
    sizes |= {name: len(values) for name, values in (("labels", labels), ("times", times)) if values is not None}
    if not groups or len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise SplitError(
            got=f"{sizes or 'no group key'}",
            wanted="at least one group key, and one value a sample in every argument",
            where="split",
            next_step="pass groups={'episode': [...]}; where every sample stands for itself, its own id is the key",
        )
    return next(iter(sizes.values()))


def _check(
    shares: Mapping[str, float],
    count: int,
    tolerance: float,
    purge: float,
    times: Sequence[float] | None,
    rng_seed: int,
) -> None:
    problems = []
    if len(shares) < 2 or any(not 0.0 < share < 1.0 for share in shares.values()) or PURGED in shares:
        problems.append(f"shares {dict(shares)}")
    elif abs(sum(shares.values()) - 1.0) > 1e-9:
        problems.append(f"shares that sum to {sum(shares.values()):.6g}")
    if not 0.0 <= tolerance < 1.0 or rng_seed < 0:
        problems.append(f"tolerance {tolerance}, rng_seed {rng_seed}")
    if purge < 0 or (purge > 0 and times is None):
        problems.append(f"purge {purge} {'without times' if times is None else ''}".strip())
    if times is not None and not np.all(np.isfinite(np.asarray(times, dtype=np.float64))):
        problems.append("times that are no numbers")
    if problems:
        raise SplitError(
            got="; ".join(problems),
            wanted="two or more shares that sum to 1, a tolerance in [0, 1), a seed of at least 0, times for a purge",
            where=f"split of {count} samples",
            next_step="for example shares={'train': 0.8, 'val': 0.1, 'test': 0.1}",
        )


def _classes(labels: Sequence[Hashable] | None, count: int) -> tuple[list[str], NDArray[np.int64]]:
    if labels is None:
        return ["all"], np.zeros(count, np.int64)
    number: dict[Hashable, int] = {}
    of = np.array([number.setdefault(label, len(number)) for label in labels], np.int64)
    return [str(label) for label in number], of


def _pins(
    pinned: Mapping[tuple[str, Hashable], str],
    groups: Mapping[str, Sequence[Hashable]],
    which: NDArray[np.int64],
    names: list[str],
) -> dict[int, int]:
    fixed: dict[int, tuple[int, tuple[str, Hashable]]] = {}
    for (key, value), side in pinned.items():
        members = [at for at, one in enumerate(groups.get(key, ())) if one == value]
        if side not in names or not members:
            raise SplitError(
                got=f"{key}={value!r} pinned to {side!r}",
                wanted=f"a value of {', '.join(groups)} and one of the sides {', '.join(names)}",
                where="split(pinned=...)",
                next_step="name a key, a value that some sample has, and a side",
            )
        for component in {int(which[at]) for at in members}:
            other, by = fixed.setdefault(component, (names.index(side), (key, value)))
            if other != names.index(side):
                raise SplitError(
                    got=f"{key}={value!r} pinned to {side!r}, {by[0]}={by[1]!r} to {names[other]!r}",
                    wanted="one side for what belongs together",
                    where="split(pinned=...)",
                    next_step="pin both to one side, or drop the key that ties them together",
                )
    return {component: side for component, (side, _) in fixed.items()}


def _titles(groups: Mapping[str, Sequence[Hashable]], which: NDArray[np.int64]) -> list[str]:
    """A name a person knows for each component: the values of its first sample."""
    _, first = np.unique(which, return_index=True)
    return [", ".join(f"{name}={values[at]}" for name, values in groups.items()) for at in first]


def _infeasible(why: str, shares: Mapping[str, float], tolerance: float) -> SplitError:
    asked = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return SplitError(
        got=why,
        wanted=f"{asked}, each within {tolerance:.1%}, every class on every side",
        where="split",
        next_step="record more groups, ask for fewer sides or other shares, or allow a larger tolerance",
    )


def _closest(task: Task, sides: NDArray[np.int64], complete: bool, names: list[str], classes: list[str]) -> str:
    filled = task.fill(sides)
    total = task.totals.sum()
    parts = [f"{name} {filled[at].sum() / total:.1%}" for at, name in enumerate(names)]
    absent = [
        f"{name} without class {classes[c]}" if classes else f"{name} empty"
        for at, name in enumerate(names)
        for c in np.flatnonzero(filled[at] <= 0)
    ]
    how = "every assignment was tried" if complete else "no assignment was found"
    return f"{len(task.counts)} groups that do not divide so ({how}); the closest is {', '.join(parts + absent)}"


def _purge(sides: list[str], reasons: list[str], names: list[str], times: NDArray[np.float64], purge: float) -> None:
    for rank, name in enumerate(names[:-1]):
        later = set(names[rank + 1 :])
        others = np.sort(times[[at for at, side in enumerate(sides) if side in later]])
        for at, side in enumerate(sides):
            if side != name or not len(others):
                continue
            place = int(np.searchsorted(others, times[at]))
            near = min(abs(float(others[k]) - float(times[at])) for k in (place - 1, place) if 0 <= k < len(others))
            if near < purge:
                sides[at] = PURGED
                reasons[at] = f"purged from {name}: {near:.6g} from another side"


def _after_purge(sides: list[str], names: list[str], labels: Sequence[Hashable] | None, purge: float) -> None:
    lost = [name for name in names if name not in sides]
    if labels is not None:
        there = {(side, label) for side, label in zip(sides, labels, strict=True)}
        lost += [
            f"{name} without class {label}"
            for name in names
            for label in dict.fromkeys(labels)
            if (name, label) not in there and name not in lost
        ]
    if lost:
        raise SplitError(
            got=f"after the purge: {', '.join(lost)}",
            wanted="samples of every class on every side",
            where=f"split(purge={purge})",
            next_step="purge less, or group by longer stretches of time so that fewer borders are cut",
        )
