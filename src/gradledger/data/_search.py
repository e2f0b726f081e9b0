"""The search behind `split`: components to sides, shares counted in samples, every class on every side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.float64]

RESTARTS = 24
# All assignments are tried where there are no more than this.
EXHAUSTIVE = 2**18
# Moves evaluated at once are K x S x L numbers; above this many components a pass is cut into random parts.
PART = 4000
# Components that are placed one by one, largest first; the small ones after them are laid out in bulk.
ONE_BY_ONE = 1000


@dataclass(frozen=True)
class Task:
    """counts: (K, L) samples of each component and class. shares: (S,), sum 1. pinned: component -> side."""

    counts: Counts
    shares: NDArray[np.float64]
    tolerance: float
    pinned: Mapping[int, int]

    @property
    def totals(self) -> Counts:
        """(L,) samples of each class."""
        return np.asarray(self.counts.sum(axis=0))

    def fill(self, sides: NDArray[np.int64]) -> Counts:
        """(S, L) samples of each side and class."""
        filled = np.zeros((len(self.shares), self.counts.shape[1]))
        np.add.at(filled, sides, self.counts)
        return filled

    def off(self, filled: Counts) -> NDArray[np.float64]:
        """(S,) how far each side is from its share."""
        return np.asarray(np.abs(filled.sum(axis=1) / self.totals.sum() - self.shares))

    def fits(self, sides: NDArray[np.int64]) -> bool:
        """Shares within the tolerance, no side empty, every class on every side."""
        filled = self.fill(sides)
        return bool(np.all(filled > 0)) and bool(np.all(self.off(filled) <= self.tolerance + 1e-12))


@dataclass(frozen=True)
class Found:
    """sides: (K,). fits: keeps everything asked for. complete: nothing fits because every assignment was tried."""

    sides: NDArray[np.int64]
    fits: bool
    complete: bool


def search(task: Task, rng: np.random.Generator) -> Found:
    """A stratified assignment that fits, or the closest one."""
    best: NDArray[np.int64] | None = None
    lowest = np.inf
    for _ in range(RESTARTS if len(task.counts) <= PART else 3):
        sides = _climb(task, _greedy(task, rng), rng)
        cost = float(_cost(task, task.fill(sides)).sum())
        fits = task.fits(sides)
        if fits and cost < 0.002:
            return Found(sides, True, False)
        cost -= 1e3 * fits
        if cost < lowest:
            best, lowest = sides, cost
    assert best is not None
    if task.fits(best):
        return Found(best, True, False)
    free = len(task.counts) - len(task.pinned)
    if len(task.shares) ** free <= EXHAUSTIVE:
        exact = _exhaustive(task, rng)
        return Found(best if exact is None else exact, exact is not None, exact is None)
    return Found(best, False, False)


def obstacles(task: Task, classes: list[str], groups: list[str], sides: list[str]) -> Iterator[str]:
    """Reasons why nothing can fit, each true whatever the search does."""
    total = task.totals.sum()
    if len(task.counts) < len(task.shares):
        yield f"{_many(len(task.counts), 'group')} cannot be on {len(task.shares)} sides"
    scarce: dict[int, list[str]] = {}
    for at, name in enumerate(classes):
        holders = int(np.sum(task.counts[:, at] > 0))
        if holders < len(task.shares):
            scarce.setdefault(holders, []).append(name)
    for holders, names in scarce.items():
        some = f"{', '.join(names[:5])} and {len(names) - 5} more" if len(names) > 5 else ", ".join(names)
        each = f"class {some} has" if len(names) == 1 else f"classes {some} have"
        owned = f"{_many(holders, 'group')}{'' if len(names) == 1 else ' each'}"
        yield f"{each} {owned}, and {len(task.shares)} sides want {'it' if len(names) == 1 else 'them'}"
    share = task.counts.sum(axis=1) / total
    largest = int(np.argmax(share))
    room = float(task.shares.max() + task.tolerance)
    if share[largest] > room + 1e-12:
        yield (
            f"group {groups[largest]} holds {share[largest]:.1%} of the samples, more than any side may "
            f"({room:.1%} at most)"
        )
    for side, name in enumerate(sides):
        held = sum(share[component] for component, at in task.pinned.items() if at == side)
        if held > task.shares[side] + task.tolerance + 1e-12:
            yield f"what is pinned to {name} holds {held:.1%} of the samples, more than its {task.shares[side]:.1%}"


def _many(count: int, noun: str) -> str:
    return {0: f"no {noun}", 1: f"one {noun}"}.get(count, f"{count} {noun}s")


def _cost(task: Task, filled: Counts) -> NDArray[np.float64]:
    """Cost of each side, (..., S): how far classes and share are off, and much more for what is not allowed."""
    totals = task.totals
    wanted = task.shares[:, None] * totals
    total = totals.sum()
    stratified = (np.abs(filled - wanted) / total).sum(axis=-1) / max(len(totals) ** 0.5, 1.0)
    off = np.abs(filled.sum(axis=-1) / total - task.shares)
    absent = (filled <= 0).sum(axis=-1)
    return np.asarray(stratified + off + 10.0 * np.maximum(off - task.tolerance, 0.0) + absent)


def _greedy(task: Task, rng: np.random.Generator) -> NDArray[np.int64]:
    """Largest first, with some chance; each to the side that it helps most."""
    sizes = task.counts.sum(axis=1)
    order = np.argsort(-sizes * rng.uniform(0.5, 1.0, len(sizes)), kind="stable")
    sides = np.zeros(len(sizes), np.int64)
    filled = np.zeros((len(task.shares), task.counts.shape[1]))
    for component, side in task.pinned.items():
        sides[component] = side
        filled[side] += task.counts[component]
    need = task.shares * sizes.sum()
    order = order[~np.isin(order, list(task.pinned))]
    for component in order[:ONE_BY_ONE]:
        before = _cost(task, filled)
        after = _cost(task, filled + task.counts[component])
        # Where the costs say nothing yet, the side that lacks most.
        lack = (need - filled.sum(axis=1)) / np.maximum(need, 1e-12)
        side = int(np.argmin(after - before - 1e-3 * lack))
        sides[component] = side
        filled[side] += task.counts[component]
    _in_bulk(task, sides, filled, order[ONE_BY_ONE:])
    return sides


def _in_bulk(task: Task, sides: NDArray[np.int64], filled: Counts, rest: NDArray[np.int64]) -> None:
    """The many small ones that are left, class by class: laid end to end and cut where each side has what it lacks."""
    most = np.argmax(task.counts[rest], axis=1)
    for which in range(task.counts.shape[1]):
        mine = rest[most == which]
        if not len(mine):
            continue
        lack = np.maximum(task.shares * task.totals[which] - filled[:, which], 0.0)
        cuts = np.cumsum(lack if lack.sum() > 0 else task.shares)
        held = np.cumsum(task.counts[mine, which])
        # The middle of each component decides.
        places = (held - 0.5 * task.counts[mine, which]) / held[-1] * cuts[-1]
        chosen = np.minimum(np.searchsorted(cuts, places), len(cuts) - 1)
        sides[mine] = chosen
        np.add.at(filled, chosen, task.counts[mine])


def _climb(task: Task, sides: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Move one component, or swap two, while that helps."""
    sides = sides.copy()
    free = np.array([k for k in range(len(sides)) if k not in task.pinned], np.int64)
    if len(free) == 0:
        return sides
    filled = task.fill(sides)
    for _ in range(60):
        movers = free if len(free) <= PART else rng.choice(free, PART, replace=False)
        gain, changes = _best_move(task, sides, filled, movers)
        if gain > -1e-12 and len(free) > 1:
            gain, changes = _best_swap(task, sides, filled, free, rng)
        if gain > -1e-12:
            break
        for component, side in changes:
            filled[sides[component]] -= task.counts[component]
            filled[side] += task.counts[component]
            sides[component] = side
    return sides


def _best_move(
    task: Task, sides: NDArray[np.int64], filled: Counts, movers: NDArray[np.int64]
) -> tuple[float, list[tuple[int, int]]]:
    own = sides[movers]
    now = _cost(task, filled)
    with_it = _cost(task, filled[None] + task.counts[movers][:, None, :])  # (K, S)
    without = _cost(task, filled[None] - task.counts[movers][:, None, :])[np.arange(len(movers)), own]  # (K,)
    gain = (without - now[own])[:, None] + with_it - now[None]
    gain[np.arange(len(movers)), own] = np.inf
    at = np.unravel_index(int(np.argmin(gain)), gain.shape)
    return float(gain[at]), [(int(movers[at[0]]), int(at[1]))]


def _best_swap(
    task: Task, sides: NDArray[np.int64], filled: Counts, free: NDArray[np.int64], rng: np.random.Generator
) -> tuple[float, list[tuple[int, int]]]:
    if len(free) <= 64:
        pairs = np.stack(np.triu_indices(len(free), 1), axis=1)
        a, b = free[pairs[:, 0]], free[pairs[:, 1]]
    else:
        a, b = rng.choice(free, 2000), rng.choice(free, 2000)
    different = sides[a] != sides[b]
    a, b = a[different], b[different]
    if len(a) == 0:
        return np.inf, []
    now = _cost(task, filled)
    change = task.counts[b] - task.counts[a]  # what the side of a gains
    rows = np.arange(len(a))
    to_a = _cost(task, filled[None] + change[:, None, :])[rows, sides[a]]
    to_b = _cost(task, filled[None] - change[:, None, :])[rows, sides[b]]
    gain = to_a + to_b - now[sides[a]] - now[sides[b]]
    at = int(np.argmin(gain))
    return float(gain[at]), [(int(a[at]), int(sides[b[at]])), (int(b[at]), int(sides[a[at]]))]


def _exhaustive(task: Task, rng: np.random.Generator) -> NDArray[np.int64] | None:
    """The fitting assignment of lowest cost, or None where there is none at all."""
    count, sides = len(task.counts), len(task.shares)
    free = [k for k in range(count) if k not in task.pinned]
    base = np.zeros(count, np.int64)
    for component, side in task.pinned.items():
        base[component] = side
    best, lowest = None, np.inf
    total = task.totals.sum()
    for begin in range(0, sides ** len(free), PART):
        numbers = np.arange(begin, min(begin + PART, sides ** len(free)))
        table = np.repeat(base[None], len(numbers), axis=0)
        for place, component in enumerate(free):
            table[:, component] = (numbers // sides**place) % sides
        filled = np.stack([np.einsum("nk,kl->nl", (table == side) * 1.0, task.counts) for side in range(sides)], axis=1)
        off = np.abs(filled.sum(axis=2) / total - task.shares)
        fits = np.all(filled > 0, axis=(1, 2)) & np.all(off <= task.tolerance + 1e-12, axis=1)
        if fits.any():
            cost = np.where(fits, _cost(task, filled).sum(axis=1) + 1e-9 * rng.random(len(numbers)), np.inf)
            if cost.min() < lowest:
                lowest, best = float(cost.min()), table[int(np.argmin(cost))]
    return best
