"""What belongs together: components of samples that share an episode, a scene, an operator, a burst, or a near twin."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data._array import as_array
from gradledger.data._needs import needs
from gradledger.data.errors import SplitError


def components(
    count: int, keys: Mapping[str, Sequence[Hashable]], *, edges: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """The component of each sample, (N,), numbered by first appearance.

    Two samples are in one component when any key has the same value for both, when an edge joins them, or through a
    chain of such samples: an operator who recorded two episodes ties them together.

    Args:
        count: N.
        keys: name -> one value a sample. None is no value and ties nothing together.
        edges: (P, 2) pairs of sample indices, such as near duplicates.

    Raises:
        SplitError: a key of another length, or an edge to a sample that does not exist.
    """
    starts: list[NDArray[np.int64]] = []
    ends: list[NDArray[np.int64]] = []
    for name, values in keys.items():
        if len(values) != count:
            raise SplitError(
                got=f"{len(values)} values of {name!r}",
                wanted=f"one for each of {count} samples",
                where="groups.components",
                next_step="pass a value for every sample, None where there is none",
            )
        first: dict[Hashable, int] = {}
        pairs = [(first.setdefault(value, at), at) for at, value in enumerate(values) if value is not None]
        if pairs:
            both = np.array(pairs, dtype=np.int64)
            starts.append(both[:, 0])
            ends.append(both[:, 1])
    if edges is not None and len(edges):
        if edges.min() < 0 or edges.max() >= count:
            raise SplitError(
                got=f"an edge to sample {int(edges.max())}",
                wanted=f"samples 0 to {count - 1}",
                where="groups.components",
                next_step="pass indices into the samples",
            )
        starts.append(edges[:, 0])
        ends.append(edges[:, 1])
    sparse = needs("scipy.sparse", purpose="groups")
    graph = needs("scipy.sparse.csgraph", purpose="groups")
    a = np.concatenate(starts) if starts else np.zeros(0, np.int64)
    b = np.concatenate(ends) if ends else np.zeros(0, np.int64)
    matrix = sparse.coo_matrix((np.ones(len(a), np.int8), (a, b)), shape=(count, count))
    _, labels = graph.connected_components(matrix, directed=False)
    _, where, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(where), np.int64)
    rank[np.argsort(where)] = np.arange(len(where))
    return np.asarray(rank[inverse.reshape(-1)])


def bursts(times: Sequence[float], gap: float, *, stream: Sequence[Hashable] | None = None) -> list[str]:
    """A burst name for each sample, where no key says what was recorded in one go.

    A silence of more than `gap` ends a burst.

    Args:
        times: one time a sample, in any order; unit as `gap`.
        stream: samples of different streams (cameras, cells) are never in one burst.

    Raises:
        SplitError: a time that is no finite number, or a gap that is not above 0.
    """
    values = np.asarray(times, dtype=np.float64)
    if not np.all(np.isfinite(values)) or not gap > 0:
        raise SplitError(
            got=f"gap={gap}, {int(np.sum(~np.isfinite(values)))} times that are no numbers",
            wanted="finite times and a gap above 0",
            where="groups.bursts",
            next_step="drop samples without a time, or give them a key of their own",
        )
    names = [""] * len(values)
    streams = list(stream) if stream is not None else [None] * len(values)
    for number, one in enumerate(dict.fromkeys(streams)):
        members = np.array([at for at, other in enumerate(streams) if other == one], dtype=np.int64)
        order = members[np.argsort(values[members], kind="stable")]
        burst = np.concatenate([[0], np.cumsum(np.diff(values[order]) > gap)])
        for at, which in zip(order, burst, strict=True):
            names[at] = f"burst {number}.{which}"
    return names


def content_hash(sample: Any) -> str:
    """SHA-256 of what a sample holds: dtype, shape and bytes of arrays, in mappings and sequences too.

    Raises:
        SplitError: something that is neither.
    """
    digest = hashlib.sha256()
    _feed(digest, sample)
    return digest.hexdigest()


def _feed(digest: Any, part: Any) -> None:
    if isinstance(part, Mapping):
        digest.update(b"{")
        for name in sorted(part, key=str):
            digest.update(f"{name}:".encode())
            _feed(digest, part[name])
        digest.update(b"}")
    elif isinstance(part, str | bytes | bool | int | float | None):
        # numpy's text and float64 are python's too, and must not differ from them.
        kind: Any = next((kind for kind in (str, bytes, bool, int, float) if isinstance(part, kind)), None)
        plain: Any = kind(part) if kind is not None else None
        digest.update(f"{type(plain).__name__} {plain!r};".encode())
    else:
        array, dtype = as_array(part)
        if array is not None:
            digest.update(f"{dtype} {array.shape};".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        elif isinstance(part, Sequence | np.ndarray):
            digest.update(b"[")
            for item in part:
                _feed(digest, item)
            digest.update(b"]")
        else:
            raise SplitError(
                got=f"a {type(part).__name__}",
                wanted="arrays, numbers, text, and mappings or sequences of them",
                where="groups.content_hash",
                next_step="hash what the sample is loaded from, such as the bytes of its file",
            )
