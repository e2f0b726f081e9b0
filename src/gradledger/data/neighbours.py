"""Nearest neighbours of rows among rows: a tree in few dimensions, blocks of products in many."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data._array import as_array
from gradledger.data._needs import needs
from gradledger.data.errors import DataError

# Above this many dimensions a tree looks at most rows anyway.
TREE = 16
# Bytes of one block of distances.
BLOCK = 64 * 2**20


def features(value: Any, *, where: str) -> NDArray[np.float64]:
    """Rows of finite numbers, (N, D): every axis after the first is flattened.

    Raises:
        DataError: no array, fewer than two rows, or NaN and Inf.
    """
    array, kind = as_array(value)
    if array is None or array.ndim < 1 or len(array) < 2 or array.size == 0:
        raise DataError(
            got=kind if array is None else f"shape {list(array.shape)}",
            wanted="at least two rows of numbers",
            where=where,
            next_step="pass an array (N, ...) with one row a sample",
        )
    rows = array.reshape(len(array), -1).astype(np.float64)
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        raise DataError(
            got=f"{len(bad)} NaN or Inf, the first in row {bad[0][0]}",
            wanted="finite numbers",
            where=where,
            next_step="drop or fill these rows first: a distance to NaN is no distance",
        )
    return rows


def standardised(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each column with mean 0 and standard deviation 1; columns that never change are 0."""
    std = rows.std(axis=0)
    return np.asarray((rows - rows.mean(axis=0)) / np.where(std > 0, std, 1.0))


def nearest(
    rows: NDArray[np.float64],
    count: int,
    *,
    queries: NDArray[np.int64] | None = None,
    groups: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(squared distances, indices), each (Q, count): the nearest other rows of each query row, nearest first.

    queries: which rows ask, all when None. A row is never its own neighbour; an equal one is, at distance 0.
    groups: (N,) numbers; rows of a row's own group are not its neighbours either. Each group leaves at least one row.
    """
    asked = np.arange(len(rows)) if queries is None else queries
    # Of each group as many rows are left as are not in it.
    count = min(count, len(rows) - (1 if groups is None else int(np.bincount(groups).max())))
    if rows.shape[1] <= TREE:
        tree = needs("scipy.spatial", purpose="nearest neighbours").cKDTree(rows)
        if groups is not None:
            return _foreign(tree, rows, count, asked, groups)
        distance, index = tree.query(rows[asked], k=count + 1)
        return _without_self(np.square(distance), index.astype(np.int64), asked)
    squares = np.einsum("nd,nd->n", rows, rows)
    block = max(1, BLOCK // (8 * len(rows)))
    found = [_block(rows, squares, asked[at : at + block], count, groups) for at in range(0, len(asked), block)]
    return np.concatenate([part[0] for part in found]), np.concatenate([part[1] for part in found])


def _foreign(
    tree: Any, rows: NDArray[np.float64], count: int, asked: NDArray[np.int64], groups: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """From a tree that knows no groups: ask for more neighbours until each row has enough of other groups."""
    squares, found = np.empty((len(asked), count)), np.empty((len(asked), count), np.int64)
    open_, width = np.arange(len(asked)), 4 * count
    while len(open_):
        width = min(width, len(rows))
        step = max(1, BLOCK // (16 * width))
        later = []
        for at in range(0, len(open_), step):
            part = open_[at : at + step]
            answer = tree.query(rows[asked[part]], width)
            distance, index = (np.asarray(one).reshape(len(part), width) for one in answer)
            other = groups[index] != groups[asked[part], None]
            enough = other.sum(axis=1) >= count
            # The first `count` foreign ones, in order: a stable sort brings them to the front.
            order = np.argsort(~other[enough], axis=1, kind="stable")[:, :count]
            squares[part[enough]] = np.square(np.take_along_axis(distance[enough], order, 1))
            found[part[enough]] = np.take_along_axis(index[enough], order, 1)
            later.append(part[~enough])
        open_, width = np.concatenate(later), 4 * width
    return squares, found


def _block(
    rows: NDArray[np.float64],
    squares: NDArray[np.float64],
    asked: NDArray[np.int64],
    count: int,
    groups: NDArray[np.int64] | None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    table = squares[asked, None] + squares[None, :] - 2.0 * (rows[asked] @ rows.T)
    table[np.arange(len(asked)), asked] = np.inf
    if groups is not None:
        table[groups[asked, None] == groups[None, :]] = np.inf
    index = np.argpartition(table, count - 1, axis=1)[:, :count]
    # Exact for the few that were chosen: the product form loses digits where rows are close.
    exact = np.square(rows[asked, None, :] - rows[index]).sum(axis=2)
    order = np.argsort(exact, axis=1, kind="stable")
    return np.take_along_axis(exact, order, 1), np.take_along_axis(index, order, 1).astype(np.int64)


def _without_self(
    distance: NDArray[np.float64], index: NDArray[np.int64], asked: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Drop each row's own entry, or the last where equal rows pushed it out."""
    own = index == asked[:, None]
    own[~own.any(axis=1), -1] = True
    kept = ~own
    shape = (len(index), index.shape[1] - 1)
    return distance[kept].reshape(shape), index[kept].reshape(shape)


def near_edges(rows: NDArray[np.float64], radius: float) -> NDArray[np.int64]:
    """Pairs (i, j) of rows not farther apart than `radius`, (P, 2): edges for `groups.components`."""
    tree = needs("scipy.spatial", purpose="near duplicates").cKDTree(rows)
    return np.asarray(tree.query_pairs(radius, output_type="ndarray"), dtype=np.int64).reshape(-1, 2)
