"""Objects that the data sets of several loaders hold together (a transform, a configuration), and their settings."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from gradledger.core.events import SharedPart
from gradledger.core.site import Site
from gradledger.ledger import _site
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session

DEPTH = 3
ATTRIBUTES = 64  # looked at of one object
MEMBERS = 16  # of a list, such as that of a composed transform
KEPT = 256  # parts
TOLD = 16  # of one part: data sets and settings that are told
_PLAIN = (bool, int, float, str, type(None))
_NO_PART = (
    torch.Tensor,
    np.ndarray,
    torch.Generator,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
)


_Pass = tuple[int, tuple[tuple[str, str], ...]]


@dataclass
class _Part:
    """One object: by which attribute it was reached, the data sets that hold it, where their loaders were made; the
    first passes over them (data set, settings: line, loader), which wait until there is a second holder."""

    part: Callable[[], Any]
    attribute: str
    number: int
    holders: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    begun: dict[_Pass, tuple[Site, int] | None] = field(default_factory=dict)


def parts_of(dataset: Any) -> Iterator[tuple[str, Any]]:
    """(attribute, object) of everything with settings that a data set holds, itself or by way of what it holds. None of
    its code runs."""
    todo = [(dataset, 0)]
    seen = {id(dataset)}
    while todo:
        at, depth = todo.pop(0)
        for name, value in list(vars(at).items())[:ATTRIBUTES]:
            members = value[:MEMBERS] if type(value) in (list, tuple) else [value]
            for member in members:
                if id(member) in seen or isinstance(member, _NO_PART) or not hasattr(type(member), "__dict__"):
                    continue  # numpy's generators have no `__dict__`; to name their class here would load that part
                if not isinstance(getattr(member, "__dict__", None), dict):
                    continue
                seen.add(id(member))
                # the data set behind subsets is watched for whatever is set on it
                if not (isinstance(at, Subset) and name == "dataset"):
                    yield name, member
                if depth + 1 < DEPTH:
                    todo.append((member, depth + 1))


def _weak(part: Any, holder: weakref.ref[Any]) -> Callable[[], Any]:
    """The object for as long as it lives; one that allows no weak reference (`SimpleNamespace`) for as long as the data
    set holds it."""
    try:
        return weakref.ref(part)
    except TypeError:
        number = id(part)

    def held() -> Any:
        dataset = holder()
        return next((p for _, p in parts_of(dataset) if id(p) == number), None) if dataset is not None else None

    return held


def settings_of(part: Any) -> tuple[tuple[str, str], ...]:
    """(name, value as Python writes it) of the attributes that are a number, a text, a truth value or nothing; of
    lists, how long they are; of dictionaries, which may be caches that grow, only that they are there."""
    found = []
    for name, value in list(vars(part).items())[:ATTRIBUTES]:
        if type(value) is list:
            found.append((name, f"a list of {len(value)}"))
        elif type(value) is dict:
            found.append((name, "a dict"))
        elif type(value) in _PLAIN and len(str(value)) < 80:
            found.append((name, repr(value)))
    return tuple(found)


def install(session: Session) -> Undo:
    """Watch the making of loaders and the passes over them."""
    recorder = session.recorder
    known: dict[int, _Part] = {}

    def made(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        dataset = args[0].dataset
        if not isinstance(dataset, Dataset) or not isinstance(getattr(dataset, "__dict__", None), dict):
            return
        site = _site.here(1)
        for attribute, part in parts_of(dataset):
            try:
                holder = weakref.ref(dataset)
            except TypeError:  # a class without weak references
                return
            kept = known.get(id(part))
            if kept is None or kept.part() is not part:
                if len(known) >= KEPT:
                    return
                kept = known[id(part)] = _Part(_weak(part, holder), attribute, len(known))
            kept.holders[id(dataset)] = holder
            if len(kept.sites) < TOLD:
                kept.sites.append(site)

    def begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loader = args[0]
        for kept in known.values():
            alive = [dataset for ref in kept.holders.values() if (dataset := ref()) is not None]
            part = kept.part()
            if part is None or not any(dataset is loader.dataset for dataset in alive):
                continue
            now = (id(loader.dataset), settings_of(part))
            if now not in kept.begun and len(kept.begun) < TOLD:
                kept.begun[now] = _site.here(1), recorder.objects.number(loader)
            if len(alive) < 2:
                continue
            there = {id(dataset) for dataset in alive}
            for begun, waiting in kept.begun.items():
                if waiting is not None and begun[0] in there:
                    kept.begun[begun] = None
                    tell(kept, part, begun, *waiting, len(alive))

    def tell(kept: _Part, part: Any, begun: _Pass, site: Site, loader: int, holders: int) -> None:
        recorder.emit(
            SharedPart,
            site,
            loader=loader,
            part=kept.number,
            attribute=kept.attribute,
            kind=type(part).__qualname__,
            settings=begun[1],
            holders=holders,
            made=tuple(dict.fromkeys(kept.sites))[:4],
        )

    def skip(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return not known

    return together(
        observe(recorder, DataLoader, "__init__", after=made),
        observe(recorder, DataLoader, "__iter__", before=begins, skip=skip),
    )
