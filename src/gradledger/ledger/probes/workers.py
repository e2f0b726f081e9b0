"""Random generators that a loader hands to its worker processes as copies."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from gradledger.core.events import WorkerGenerator
from gradledger.core.site import Site
from gradledger.ledger import _datasets, _site
from gradledger.ledger._often import Often
from gradledger.ledger._patch import Undo, observe
from gradledger.ledger._session import Session

_ENTRIES = ("__getitem__", "__getitems__", "__iter__", "__call__")
METHODS = 50


def _kinds() -> tuple[type, ...]:
    """Of numpy only when the program has loaded that part of it: it has no generator otherwise."""
    of_numpy = sys.modules.get("numpy.random")
    more = () if of_numpy is None else (of_numpy.Generator, of_numpy.RandomState)
    return (random.Random, torch.Generator, *more)


def _code(owner: type, name: str) -> CodeType | None:
    code = getattr(getattr(owner, name, None), "__code__", None)
    return code if isinstance(code, CodeType) and _site.is_user_code(code) else None


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= _names(inner)
    return found


def _reached(owner: type) -> Iterator[tuple[CodeType, Any]]:
    """Code that runs when an item is fetched: the entry methods and what they call of the same class."""
    seen: set[str] = set()
    queue = list(_ENTRIES)
    while queue and len(seen) < METHODS:
        name = queue.pop(0)
        code = _code(owner, name)
        if code is None or name in seen:
            continue
        seen.add(name)
        yield code, getattr(owner, name).__globals__
        queue += sorted(_names(code))


def _generators(thing: Any, depth: int = 0) -> Iterator[tuple[str, Any, Site, set[str]]]:
    """(name, generator, the method that draws from it, every name that the fetch uses)."""
    own, kinds = getattr(thing, "__dict__", {}), _kinds()
    reached = list(_reached(type(thing)))
    every = {name for code, _ in reached for name in _names(code)}
    for code, scope in reached:
        site = Site(code.co_filename, code.co_firstlineno, code.co_name, code.co_firstlineno)
        for name in sorted(_names(code)):
            value = own.get(name, scope.get(name))
            if isinstance(value, kinds):
                yield (f"self.{name}" if name in own else name), value, site, every
            elif depth < 2 and name in own and not isinstance(value, (torch.nn.Module, Dataset)):
                parts = value if isinstance(value, (list, tuple)) else [value]
                for part in parts[:16]:
                    if _code(type(part), "__call__") is not None:
                        yield from _generators(part, depth + 1)


def install(session: Session) -> Undo:
    """Look at the data set when a loader with workers begins its first passes."""
    recorder = session.recorder
    often = Often()

    def begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loader = args[0]
        number = recorder.objects.number(loader)
        if not often.worth_telling(number, first=1):
            return
        for layer, _ in _datasets.layers(loader.dataset, []):
            for name, value, reader, names in _generators(layer):
                if "get_worker_info" in names or "manual_seed" in names:
                    continue
                recorder.emit(
                    WorkerGenerator,
                    _site.here(1),
                    loader=number,
                    workers=loader.num_workers,
                    name=name,
                    kind=f"{type(value).__module__.split('.')[0]}.{type(value).__name__}",
                    reader=reader,
                    init_fn=loader.worker_init_fn is not None,
                    persistent=bool(loader.persistent_workers),
                )

    def skip(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return bool(args[0].num_workers == 0)

    return observe(recorder, DataLoader, "__iter__", before=begins, skip=skip)
