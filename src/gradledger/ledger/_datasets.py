"""What a map-style data set keeps for some of its items, found in its attributes without running its code."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from gradledger.core.site import Site
from gradledger.ledger import _site

_CALL = "__call__"  # of an object that collates

DEPTH = 4
NUMBERS = 65_536  # of one item, at most
ATTRIBUTES = 64
_BLANK = b"blank:"


def readable(dataset: Any) -> bool:
    """Whether it can be looked at what this keeps: a data set, whatever its class, or a list of items."""
    if isinstance(dataset, (Dataset, list, tuple)):
        return True
    plain = isinstance(dataset, (torch.Tensor, np.ndarray)) or not hasattr(dataset, "__dict__")
    return not plain and hasattr(type(dataset), "__getitem__")


def class_of(dataset: Any) -> str:
    """Its class, so that two of one name in two modules are two."""
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}"


def layers(dataset: Any, index: Sequence[int]) -> Iterator[tuple[Any, list[int]]]:
    """(data set, indices in it) of a data set and those that it wraps, outermost first."""
    for _ in range(DEPTH):
        yield dataset, list(index)
        inner = getattr(dataset, "__dict__", {}).get("dataset")
        if not isinstance(inner, Dataset) and not (isinstance(dataset, Subset) and readable(inner)):
            return
        if isinstance(dataset, Subset):
            index = [int(dataset.indices[i]) for i in index]
        dataset = inner


def kept(dataset: Any, index: Sequence[int]) -> dict[tuple[str, str, int], bytes]:
    """(class, attribute, item) -> digest of the values that stand there now; see `blank`."""
    found: dict[tuple[str, str, int], bytes] = {}
    for layer, items in layers(dataset, index):
        if isinstance(layer, (list, tuple)):
            found |= {("list", "", item): d for item in items if item < len(layer) and (d := _of(layer[item]))}
        for name, value in list(getattr(layer, "__dict__", {}).items())[:ATTRIBUTES]:
            for item in items:
                digest = _digest(value, item)
                if digest:
                    found[type(layer).__qualname__, name, item] = digest
    return found


def blank(digest: bytes) -> bool:
    """Whether the values of a digest look like a place that nothing was put into yet: one number all over, or a single
    number that stands for none."""
    return digest.startswith(_BLANK)


def _digest(store: Any, item: int) -> bytes:
    """Of the values that `store` has for one item; empty when it has none that can be looked at."""
    if type(store) is torch.Tensor or isinstance(store, np.ndarray):
        if store.ndim == 0 or item >= store.shape[0] or item < 0:
            return b""
        return _of(store[item])
    if type(store) is dict and item in store and type(next(iter(store))) is int:
        return _of(store[item])  # what was made of items, by their number
    if type(store) is list and item < len(store):
        return _of(store[item])
    if type(store) in (list, tuple, dict) and len(store) <= 8:
        members = store.values() if isinstance(store, dict) else store
        return b"".join(_digest(m, item) for m in members if isinstance(m, (torch.Tensor, np.ndarray)))
    return b""


def _of(value: Any, depth: int = 0) -> bytes:
    if type(value) is torch.Tensor:
        if value.device.type != "cpu" or value.layout != torch.strided or value.numel() > NUMBERS or value.is_conj():
            return b""
        if value.dtype == torch.bfloat16:
            value = value.view(torch.int16)
        value = value.detach().numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        if value.size > NUMBERS or value.dtype == object:
            return b""
        made = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=8).digest()
        return _BLANK + made if _is_blank(value) else made
    if type(value) in (tuple, list, dict) and depth < 2 and len(value) <= 8:
        return b"".join(_of(v, depth + 1) for v in (value.values() if isinstance(value, dict) else value))
    return b""


def _is_blank(value: Any) -> bool:
    if not value.size or value.dtype.kind not in "biufc":
        return False
    first = value.flat[0] if value.ndim else value
    if value.size == 1 and first not in (0, -1) and np.isfinite(first):
        return False
    return bool((value == first).all()) or bool(first != first and (value != value).all())


def readers(dataset: Any, collate: Any) -> tuple[Site, ...]:
    """The program's own code that items pass through: `__getitem__`s, outermost first, then its collate function."""
    found = []
    for layer, _ in layers(dataset, []):
        for name in ("__getitems__", "__getitem__"):
            code = getattr(getattr(type(layer), name, None), "__code__", None)
            if code is not None and _site.is_user_code(code):
                found.append(Site(code.co_filename, code.co_firstlineno, name, code.co_firstlineno))
    if type(collate) is functools.partial:
        collate = collate.func
    code = getattr(collate, "__code__", None) or getattr(getattr(type(collate), _CALL, None), "__code__", None)
    if code is not None and _site.is_user_code(code):
        found.append(Site(code.co_filename, code.co_firstlineno, code.co_name, code.co_firstlineno))
    return tuple(found)
