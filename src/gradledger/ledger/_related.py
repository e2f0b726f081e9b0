"""Whether rows on two sides of a split belong together, from their values alone.

Three ways to belong together: *groups* (rows cluster tightly, with empty space between the clusters), *runs* (stored in
order, neighbours are near each other and the order jumps now and then: recordings) and *windows* (items hold the very
same numbers, shifted).  Plain numpy on at most a few thousand rows; draws nothing from the program's generators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

ROWS = 1600  # compared pair by pair
ORDERED = 20_000  # looked at in stored order
COLUMNS = 64
GROUPS = 8  # fewer groups or runs may be anything
LABELS = 1.5  # groups for each label: fewer are the classes themselves
INSIDE, OUTSIDE = 0.25, 0.5  # of the typical distance: steps within a run are shorter, jumps are longer
WIDTHS = (0.04, 0.06, 0.08, 0.12, 0.18, 0.25)  # of groups, of the typical distance
BAND = 0.05  # pairs between one and two widths, for each pair nearer than one
_GRAM = 4  # numbers in a row that are compared by value

Table = Any


@dataclass(frozen=True, slots=True)
class Related:
    """`how`; `groups` found among `rows`; `shared`: share of the held-out rows that belong together with training rows;
    `within`: how near related rows are, as a share of the typical distance."""

    how: str
    groups: int
    rows: int
    held: int
    shared: float
    within: float


def columns_of(values: Any) -> Table:
    """[N, columns] in float64, at most `COLUMNS`, scaled; None when nothing varies or some value is not finite."""
    flat = values.reshape(len(values), -1)
    flat = flat[:, :: max(1, flat.shape[1] // COLUMNS)][:, :COLUMNS].astype(np.float64)
    if not np.isfinite(flat).all():
        return None
    spread = flat.std(0)
    varies = spread > 1e-9 * (1.0 + np.abs(flat).max(0))
    if not varies.any():
        return None
    return (flat[:, varies] - flat[:, varies].mean(0)) / spread[varies]


def related(values: Any, labels: list[Any], train: Any, held: Any, stored: bool = True) -> Related | None:
    """Look for rows that belong together among `values` [N, ...].

    `train`, `held`: row numbers.  `labels`: what is predicted, each [N, ...]; `stored`: the rows are in stored order.
    """
    if len(train) < 20 or len(held) < 8 or values.dtype.kind != "f":
        return None
    windows = _windows(values, train, held)
    if windows is not None:
        return windows
    table = columns_of(values)
    if table is None or _grid(values):
        return None
    labels = [y for y in labels if len(y) == len(values)]
    groups = _groups(table, labels, train, held)
    return groups or (_runs(table, labels, train, held) if stored else None)


def same_rows(one: Any, other: Any) -> bool:
    """Whether two tables hold exactly the same rows, in any order."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    a, b = (x[np.lexsort(x.T)] for x in (one.reshape(len(one), -1), other.reshape(len(other), -1)))
    return bool(np.array_equal(a, b))


def _kinds(labels: Any) -> int:
    """How many classes a label column has; 1 for what is no class."""
    flat = labels.reshape(len(labels), -1)
    if flat.dtype.kind == "f" and not (flat == np.round(flat)).all():
        return 1
    if flat.shape[1] > 1 and not ((flat == 0) | (flat == 1)).all():
        return 1
    found = len(np.unique(flat, axis=0))
    return found if found <= len(labels) // 3 else 1


def _are_classes(group: Any, labels: list[Any]) -> bool:
    """Whether the groups are no more than the classes of a label (or nothing says what is to be predicted).

    A column with one value a group may also number the groups; then another label is the same all over a group.
    """
    if not labels:
        return True
    as_classes = [y for y in labels if _one_to_one(group, y)]
    others = [y for y in labels if not any(y is c for c in as_classes)]
    return bool(as_classes) and not any(_constant(group, y) for y in others)


def _one_to_one(group: Any, labels: Any) -> bool:
    """Whether there are hardly more groups than classes."""
    if _kinds(labels) < 2:
        return False
    kinds = np.unique(labels.reshape(len(labels), -1), axis=0, return_inverse=True)[1].reshape(-1)
    return len(np.unique(kinds)) * LABELS >= len(np.unique(group))


def _constant(group: Any, labels: Any) -> bool:
    """Whether a label is the same for nearly all rows of a group, and differs between groups."""
    flat = labels.reshape(len(labels), -1)[:, :8].astype(np.float64)
    order = np.argsort(group, kind="stable")
    same = (flat[order][1:] == flat[order][:-1]).all(1)
    inside = group[order][1:] == group[order][:-1]
    return bool(inside.any() and same[inside].mean() > 0.9 and not same.all())


def _grid(values: Any) -> bool:
    """Whether every column takes few values: tables of truth, grids, counted things."""
    flat = values.reshape(len(values), -1)[:, :COLUMNS]
    return all(len(np.unique(column)) <= len(flat) / 3 for column in flat.T)


def _groups(table: Table, labels: list[Any], train: Any, held: Any) -> Related | None:
    draw = np.random.Generator(np.random.PCG64(0))
    mine = held if len(held) <= ROWS // 3 else np.sort(draw.choice(held, ROWS // 3, replace=False))
    room = ROWS - len(mine)
    theirs = train if len(train) <= room else np.sort(draw.choice(train, room, replace=False))
    rows = np.concatenate([theirs, mine])
    x = table[rows]
    square = (x**2).sum(1)
    far = np.sqrt(np.maximum(square[:, None] + square[None] - 2.0 * x @ x.T, 0.0))
    upper = far[np.triu_indices(len(rows), 1)]
    typical = float(np.median(upper))
    if typical <= 0:
        return None
    width = next((w for w in WIDTHS if _is_gap(upper, w * typical, len(rows))), None)
    if width is None:
        return None
    group = _components(far < width * typical)
    sizes = np.bincount(group)
    count = int((sizes > 1).sum())
    if count < GROUPS or _are_classes(group, [y[rows] for y in labels]):
        return None
    known = np.isin(group[len(theirs) :], group[: len(theirs)])
    within = float(np.median(upper[upper < width * typical])) / typical
    return Related("groups", len(sizes), len(table), len(held), float(known.mean()), within)


def _is_gap(distances: Any, width: float, rows: int) -> bool:
    """Whether many pairs are nearer than `width` and hardly any between that and twice as much.

    Of independent rows in d dimensions there are 2**d - 1 times as many between.
    """
    inside = (distances < width).sum()
    band = ((distances >= width) & (distances < 2 * width)).sum()
    return bool(inside >= rows / 4 and band <= BAND * inside)


def _components(near: Any) -> Any:
    """The connected component of each row of a symmetric table of neighbours."""
    group = np.full(len(near), -1)
    count = 0
    for start in range(len(near)):
        if group[start] >= 0:
            continue
        front = np.zeros(len(near), bool)
        front[start] = True
        while front.any():
            group[front] = count
            front = near[front].any(0) & (group < 0)
        count += 1
    return group


def _runs(table: Table, labels: list[Any], train: Any, held: Any) -> Related | None:
    n = min(len(table), ORDERED)
    table = table[:n]
    if table.shape[1] < 2 or n < 64:
        return None
    draw = np.random.Generator(np.random.PCG64(0))
    a, b = draw.integers(0, n, 2000), draw.integers(0, n, 2000)
    typical = float(np.median(np.sqrt(((table[a] - table[b]) ** 2).sum(1))))
    step = np.sqrt(((table[1:] - table[:-1]) ** 2).sum(1))
    jump = step > OUTSIDE * typical
    count = int(jump.sum()) + 1
    calm = step[~jump]
    if not GROUPS <= count <= n / 4 or not len(calm) or np.median(calm) > INSIDE / 2 * typical:
        return None
    if ((step > INSIDE * typical) & ~jump).sum() > 0.25 * count:
        return None  # no clear line between a step and a jump
    run = np.concatenate([[0], np.cumsum(jump)])
    if _are_classes(run, [y[:n] for y in labels]):
        return None
    train, held = train[train < n], held[held < n]
    if len(held) < 8:
        return None
    known = np.isin(run[held], np.unique(run[train]))
    return Related("runs", count, n, len(held), float(known.mean()), float(np.median(calm)) / typical)


def _windows(values: Any, train: Any, held: Any) -> Related | None:
    """Items that hold the very numbers of other items, shifted: windows over one series, [N, T], [N, T, channels] or
    [N, channels, T]."""
    if values.ndim == 2:
        shapes = [values[:, :, None]]
    elif values.ndim == 3:
        shapes = [values, values.transpose(0, 2, 1)]
    else:
        return None
    for units in shapes:
        gram = max(1, _GRAM // units.shape[2])
        found = _shifted(units, gram, train, held) if units.shape[1] >= 2 * gram + 1 else None
        if found is not None:
            return found
    return None


def _shifted(units: Any, gram: int, train: Any, held: Any) -> Related | None:
    """units: [N, T, channels]"""
    if units.size > 4_000_000:
        return None
    sample = np.ascontiguousarray(units.reshape(len(units), -1)[:500])
    if len(np.unique(sample)) < 0.02 * sample.size + 50 or (np.diff(sample, axis=1) == 0).mean() > 0.2:
        return None  # counted or constant values: equal numbers say nothing
    train, held = train[:6000], held[:400]
    grams = _grams(units, gram)
    known = set(grams[train].ravel().tolist())
    hits = np.array([[g in known for g in row] for row in grams[held].tolist()])
    shifted = {g for row in grams[train[:400]][:, 1:].tolist() for g in row} & set(grams[train][:, 0].tolist())
    share = float((hits.mean(1) >= 0.5).mean())
    if len(shifted) < 5 or share == 0:
        return None
    return Related("windows", 0, len(units), len(held), share, 0.0)


def _grams(units: Any, gram: int) -> Any:
    """Hashes of `gram` units in a row, for each item.  [N, T - gram + 1]"""
    packed = np.ascontiguousarray(units)
    raw = packed.view(np.uint8).reshape(packed.shape[0], packed.shape[1], -1).astype(np.uint64)
    weights = np.random.Generator(np.random.PCG64(1)).integers(1, 2**63, raw.shape[2], dtype=np.uint64)
    one = (raw * weights).sum(2, dtype=np.uint64)
    steps = packed.shape[1] - gram + 1
    found = np.zeros((len(one), steps), np.uint64)
    for i in range(gram):
        found = found * np.uint64(1_000_003) + one[:, i : i + steps]
    return found


def fitted_together(train: Any, held: list[Any]) -> tuple[str, int]:
    """How `train` and some of `held` (each [N, columns]) were scaled by statistics of both: "standardised" or "scaled
    to a range", "" when they were not, or when the training rows alone look as if they had been; and of how many
    rows."""
    x = train.reshape(len(train), -1).astype(np.float64)
    choices = [[h] for h in held[:4]] + ([list(held[:2]), list(held[:3]), list(held)] if len(held) > 1 else [])
    for chosen in choices:
        both = np.concatenate([x, *(h.reshape(len(h), -1).astype(np.float64) for h in chosen)])
        varies = both.std(0) > 1e-9
        if not varies.any() or not np.isfinite(both).all():
            continue
        a, b = x[:, varies], both[:, varies]
        if _standard(b) and not _standard(a, 1e-3):
            return "standardised", len(both)
        low, high = b.min(0), b.max(0)
        for bottom in (0.0, -1.0):
            if np.allclose(low, bottom, atol=1e-6) and np.allclose(high, 1.0, atol=1e-6):
                missed = ((a.min(0) > bottom + 1e-4) | (a.max(0) < 1.0 - 1e-4)) & _measured(b)
                if missed.any():
                    return "scaled to a range", len(both)
    return "", 0


def _measured(x: Any) -> Any:
    """Which columns hold measured values, whose range somebody took.  Truth values, one-hot words and bytes over 255
    lie between 0 and 1 by what they are.  [columns]"""
    coded = np.abs(255.0 * x - np.rint(255.0 * x)).max(0) < 1e-3
    return np.asarray([not c and 4 * len(np.unique(column)) > len(x) for c, column in zip(coded, x.T, strict=True)])


def _standard(x: Any, tolerance: float = 2e-5) -> bool:
    spread = x.std(0)
    other = spread * np.sqrt(len(x) / max(len(x) - 1, 1))
    near = (np.abs(spread - 1) < tolerance) | (np.abs(other - 1) < tolerance)
    return bool((np.abs(x.mean(0)) < tolerance).all() and near.all())


__all__ = ["Related", "columns_of", "fitted_together", "related", "same_rows"]
