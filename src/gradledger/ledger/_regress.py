"""Whether one table of numbers is a function of another: near rows, and a smooth function tried on held-out rows.

Plain numpy on a few hundred rows; draws nothing from the program's generators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

ROWS = 360  # of a table that is fitted
NEAR_ROWS = 1000  # of a table whose nearest rows are looked up
CLOSEST = 0.1  # share of the rows with the nearest neighbours
NEAR = 0.15  # distance of such neighbours, in standard deviations a column
_WIDTHS = (1.0, 2.0, 4.0)  # of the kernel, in standard deviations
_RIDGES = (1e-8, 1e-4, 1e-2, 1e-1, 1.0)
_BRANCH_SAME, _BRANCH_APART, _BRANCH_SHARE, _BRANCH_BETWEEN = 0.05, 0.5, 0.3, 0.2
_AFTER = 0.05  # of the rows: within so many of a row stand those that follow it in time
_TABLE = 100  # rows that a table has, at least, which is gone through in passes
_DISTINCT = 20  # values of a column that counts as continuous

Table = Any  # [N, columns] in float64


@dataclass(frozen=True, slots=True)
class Near:
    """What stands between the nearest rows.  `apart`: share of each target column's variance that does; `branches`:
    the nearest rows either agree or lie far apart; `close`: they are near enough to say anything."""

    apart: tuple[float, ...]
    branches: tuple[bool, ...]
    close: bool


def scaled(table: Table) -> Table:
    """Columns of mean 0 and deviation 1; those that do not vary are left out.  [N, columns that vary]"""
    spread = table.std(0)
    varies = spread > 1e-9 * (1.0 + np.abs(table).max(0))
    return (table[:, varies] - table[:, varies].mean(0)) / spread[varies]


def distances(x: Table, y: Table) -> Table:
    """Squared distances between the rows of two tables.  [N, M]"""
    found = (x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2.0 * x @ y.T
    return np.maximum(found, 0.0)


def near(x: Table, y: Table) -> Near:
    """Compare the targets `y` of rows whose inputs `x` are nearest.  Both scaled; y keeps its columns.

    Rows that stand near each other in the table are not compared: along a trajectory they are alike in all there is
    (Theiler 1986, on dimensions of attractors, leaves them out likewise).
    """
    x, y = x[:NEAR_ROWS], y[:NEAR_ROWS]
    table = distances(x, x)
    order = np.arange(len(x))
    table[np.abs(order[:, None] - order) <= _AFTER * len(x)] = np.inf
    other = table.argmin(1)
    gap = table[np.arange(len(x)), other]
    chosen = np.argsort(gap)[: max(20, int(CLOSEST * len(x)))]
    close = bool(gap[chosen].max() <= NEAR**2 * x.shape[1])
    step = y[chosen] - y[other[chosen]]
    apart = (step**2).mean(0) / 2.0
    size = np.abs(step)
    same, far = (size < _BRANCH_SAME).mean(0), (size > _BRANCH_APART).mean(0)
    discrete = np.array([len(np.unique(column)) <= _DISTINCT for column in y.T])
    two = (same > _BRANCH_SHARE) & (far > _BRANCH_SHARE) & (1.0 - same - far < _BRANCH_BETWEEN) & ~discrete
    return Near(tuple(float(v) for v in apart), tuple(bool(v) for v in two), close)


def explained(x: Table, y: Table) -> tuple[float, ...]:
    """Share of the variance of each column of `y` that a smooth function of `x` explains on held-out rows.

    Kernel ridge regression; the best of a few widths and ridges for each column.  0 when there is no input.
    """
    x, y = x[:ROWS], y[:ROWS]
    if not x.shape[1]:
        return tuple(0.0 for _ in y.T)
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(x))
    cut = int(0.75 * len(x))
    fit, held = order[:cut], order[cut:]
    base = y[fit].mean(0)
    table = distances(x, x)
    best = np.zeros(y.shape[1])
    spread = np.maximum(((y[held] - base) ** 2).mean(0), 1e-12)
    for width in _WIDTHS:
        kernel = np.exp(-table / (2.0 * width**2 * x.shape[1]))
        values, vectors = np.linalg.eigh(kernel[np.ix_(fit, fit)])
        across = kernel[np.ix_(held, fit)] @ vectors
        weights = vectors.T @ (y[fit] - base)
        for ridge in _RIDGES:
            guess = across @ (weights / np.maximum(values + ridge, 1e-12)[:, None]) + base
            best = np.maximum(best, 1.0 - ((guess - y[held]) ** 2).mean(0) / spread)
    return tuple(float(v) for v in best)


def exchanged(x: Any, y: Any) -> tuple[int, float]:
    """Rows that came again with another target, one that another row has had: how many, and how far the two targets of
    a row lie apart, as a share of the distance of any two.  (0, 0.0) when rows keep their targets, when targets are
    drawn anew (no value comes again), or when one row has several for good (pairs come again).

    x, y: [rows, columns], in the order of training.
    """
    inputs, targets = (np.unique(v, axis=0, return_inverse=True)[1].reshape(-1) for v in (x, y))
    pairs = np.unique(np.stack([inputs, targets], 1), axis=0, return_inverse=True)[1].reshape(-1)
    rows = len(x)
    distinct = [len(np.unique(v)) for v in (inputs, targets, pairs)]
    repeats = [rows - n for n in distinct]
    if not repeats[0] or repeats[1] < repeats[0] / 2 or repeats[2] > 0.1 * repeats[0]:
        return 0, 0.0
    if min(distinct[:2]) < rows / 4 and not (_in_passes(inputs) and _in_passes(targets)):
        return 0, 0.0  # a few inputs over and over: their targets may well vary
    order = np.argsort(inputs, kind="stable")
    twice = inputs[order][1:] == inputs[order][:-1]
    between = ((y[order][1:] - y[order][:-1]) ** 2).sum(1)[twice]
    any_two = 2.0 * y.var(0).sum()
    return int(twice.sum()), float(between.mean() / any_two) if any_two > 0 else 0.0


def _in_passes(numbers: Any) -> bool:
    """Whether a table of many rows was gone through several times, each row once in a pass."""
    counts = np.unique(numbers, return_counts=True)[1]
    return len(counts) >= _TABLE and bool(counts.max() - counts.min() <= 2)


def keys(table: Any) -> Any:
    """A number for each row of a table, by its values.  [N, columns] -> [N, 1], all below 2**52"""
    raw = np.ascontiguousarray(table, dtype=np.float32).view(np.uint32).astype(np.uint64)
    weights = np.random.Generator(np.random.PCG64(1)).integers(1, 2**63, raw.shape[1], dtype=np.uint64)
    return ((raw * weights).sum(1, dtype=np.uint64) >> np.uint64(12)).astype(np.float64)[:, None]


__all__ = ["NEAR_ROWS", "ROWS", "Near", "distances", "exchanged", "explained", "keys", "near", "scaled"]
