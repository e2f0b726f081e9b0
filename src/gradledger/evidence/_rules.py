"""The rules of the baselines as functions of arrays: nearest neighbour, a line, metadata as numbers, shuffled labels.

Axis letters: N training rows, M rows that are asked, D features, A outputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradledger.evidence.errors import StatisticsError

Rows = NDArray[np.float64]
PENALTIES = tuple(10.0**power for power in range(-6, 3))  # times the number of rows; the best is chosen
BLOCK = 64 * 2**20  # bytes of one block of distances
CANDIDATES = 4  # nearest by products, told apart by exact distances


def rows_of(value: ArrayLike, where: str) -> Rows:
    """(N, D) finite numbers; every axis after the first is flattened, a single row of numbers is a column.

    Raises:
        StatisticsError: no rows, or numbers that are not finite (names the first row).
    """
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _refused(f"{error}", "numbers", where) from error
    if array.ndim < 1 or not array.size:
        raise _refused(f"shape {array.shape}", "(N, ...), one row or more", where)
    rows = array.reshape(len(array), -1)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise _refused(f"{bad.size} rows with NaN or Inf, the first at {bad[0]}", "finite numbers", where)
    return rows


def nearest(inputs: Rows, targets: Rows, asked: Rows, *, standardise: bool = True) -> Rows:
    """(M, A): the target of the nearest training row, the first of equally near ones.

    Args:
        inputs: (N, D). targets: (N, A). asked: (M, D). standardise: distances in standard deviations of the training
            column; without, in its unit.
    """
    x, q = _scaled(inputs, asked) if standardise else (inputs, asked)
    squares = np.einsum("nd,nd->n", x, x)
    block = max(1, BLOCK // (8 * len(x)))
    found = np.empty(len(q), dtype=np.int64)
    for at in range(0, len(q), block):
        part = q[at : at + block]
        near = squares[None, :] - 2.0 * (part @ x.T)  # the square of `part` is the same for all
        few = np.argpartition(near, min(CANDIDATES, len(x)) - 1, axis=1)[:, :CANDIDATES]
        few.sort(axis=1)  # of equals, the first
        # Products lose digits where rows are close: the few that were chosen are told apart exactly.
        exact = np.square(part[:, None, :] - x[few]).sum(axis=2)
        found[at : at + block] = few[np.arange(len(part)), exact.argmin(axis=1)]
    return np.asarray(targets[found])


def linear(
    inputs: Rows,
    targets: Rows,
    asked: Rows,
    *,
    penalty: float | None = None,
    groups: Sequence[Hashable] | None = None,
) -> Rows:
    """(M, A): the line with intercept through standardised columns, of least squares plus penalty * |weights|^2.

    A penalty of 0 gives plain least squares, of least norm where rows are fewer than columns. None chooses one of
    PENALTIES * N by the squared error of what was left out (closed form), over the training rows alone. Costs a
    singular value decomposition, about N D min(N, D) multiplications: hand over reduced features, not raw pixels.

    Args:
        groups: which group each training row is of: whole groups are left out in the choice, for a row whose siblings
            stay is no test. None: single rows are.

    Raises:
        StatisticsError: a negative penalty.
    """
    if penalty is not None and penalty < 0:
        raise _refused(f"penalty={penalty}", "0 or more, or None", "linear")
    x, q = _scaled(inputs, asked)
    middle = targets.mean(axis=0)
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    kept = s > (s[0] if len(s) else 0.0) * max(x.shape) * np.finfo(np.float64).eps
    u, s, vt = u[:, kept], s[kept], vt[kept]
    along = u.T @ (targets - middle)  # (rank, A)
    if penalty is None:
        rows = list(members(groups if groups is not None else range(len(x))).values())
        penalty = min(
            (one * len(x) for one in PENALTIES), key=lambda one: _left_out(u, s, along, targets, middle, one, rows)
        )
    weights = vt.T @ ((s / (s**2 + penalty))[:, None] * along)
    return np.asarray(q @ weights + middle)


def _left_out(
    u: Rows, s: Rows, along: Rows, targets: Rows, middle: Rows, penalty: float, groups: Sequence[NDArray[np.int64]]
) -> float:
    """Mean squared error of the rows of each group by the line through all others: residual = (1 - hat)^-1 residual,
    where hat is the group's own block of the hat matrix; a single row's is its leverage."""
    shrunk = s**2 / (s**2 + penalty)
    residual = targets - middle - u @ (shrunk[:, None] * along)
    if len(groups) == len(u):
        leverage = 1.0 / len(u) + np.square(u) @ shrunk
        room = np.maximum(1.0 - leverage, 1e-12)  # a row that the line goes through by itself
        return float(np.mean(np.square(residual / room[:, None])))
    root = np.hstack([np.full((len(u), 1), len(u) ** -0.5), u * np.sqrt(shrunk)])  # hat = root @ root.T
    total = 0.0
    for rows in groups:
        own = root[rows]
        # hat = P diag(d) P^T by the decomposition of its root: (1 - hat)^-1 = 1 + P diag(d / (1 - d)) P^T
        p, d, _ = np.linalg.svd(own, full_matrices=False)
        room = np.maximum(1.0 - d**2, 1e-12)  # as above
        out = residual[rows] + p @ ((d**2 / room)[:, None] * (p.T @ residual[rows]))
        total += float(np.sum(np.square(out)))
    return total / residual.size


def members(groups: Sequence[Hashable]) -> dict[Hashable, NDArray[np.int64]]:
    """Group -> its rows, in the order in which groups and rows come."""
    found: dict[Hashable, list[int]] = {}
    for at, group in enumerate(groups):
        found.setdefault(group, []).append(at)
    return {group: np.array(rows, dtype=np.int64) for group, rows in found.items()}


def encoded(
    train: Mapping[str, Sequence[Any] | NDArray[Any]], held: Mapping[str, Sequence[Any] | NDArray[Any]]
) -> tuple[Rows, Rows]:
    """Metadata as columns of numbers, of both sides: a column of finite numbers stays one; any other becomes a column
    of 0 and 1 for each value of the training rows. A value that only the held-out rows have is 0 in all of them."""
    ours: list[Rows] = []
    theirs: list[Rows] = []
    for name in sorted(train):
        a, b = _numbers(train[name]), _numbers(held[name])
        if a is not None and b is not None:
            ours.append(a[:, None])
            theirs.append(b[:, None])
            continue
        texts, others = [str(one) for one in train[name]], [str(one) for one in held[name]]
        for value in sorted(set(texts)):
            ours.append(np.array([[one == value] for one in texts], dtype=np.float64))
            theirs.append(np.array([[one == value] for one in others], dtype=np.float64))
    return np.concatenate(ours, axis=1), np.concatenate(theirs, axis=1)


def shuffled(targets: ArrayLike, *, rng_seed: int, groups: Sequence[Hashable] | None = None) -> NDArray[Any]:
    """The targets in another order: what a model reaches on them, it does not have from the inputs.

    Args:
        targets: (N, ...). groups: shuffle within each group alone, so that its share of each label stays: what is
            reached then comes from telling groups apart.
    """
    array, rng = np.asarray(targets), np.random.default_rng(rng_seed)
    if groups is None:
        return np.asarray(array[rng.permutation(len(array))])
    if len(groups) != len(array):
        raise _refused(f"{len(groups)} groups for {len(array)} rows", "a group for each row", "shuffled")
    order = np.arange(len(array))
    for own in members(groups).values():
        order[own] = rng.permutation(own)
    return np.asarray(array[order])


def _scaled(inputs: Rows, asked: Rows) -> tuple[Rows, Rows]:
    """Both with the mean and standard deviation of the first; columns that never change there are 0."""
    if inputs.shape[1] != asked.shape[1]:
        raise _refused(f"{inputs.shape[1]} and {asked.shape[1]} columns", "the same columns", "inputs of both sides")
    mean, deviation = inputs.mean(axis=0), inputs.std(axis=0)
    # a column of equal numbers has a deviation of rounding errors
    moves = deviation > 1e-12 * np.maximum(np.abs(mean), np.finfo(np.float64).tiny)
    scale = np.where(moves, deviation, 1.0)
    return (inputs - mean) / scale * moves, (asked - mean) / scale * moves


def _numbers(column: Sequence[Any] | NDArray[Any]) -> Rows | None:
    array = np.asarray(column)
    if array.ndim != 1 or array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        return None
    return array.astype(np.float64)


def _refused(got: str, wanted: str, where: str) -> StatisticsError:
    return StatisticsError(got=got, wanted=wanted, where=where, next_step="check what is passed")
