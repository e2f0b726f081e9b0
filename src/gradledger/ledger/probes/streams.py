"""Do the worker processes of a loader over a stream all give the same?  The first batches of each are compared."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gradledger.core.events import WorkersAlike
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site
from gradledger.ledger._digest import digest, flat_tensors
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session

ROUNDS = 2  # batches of each worker that are compared


@dataclass
class _Pass:
    """The first pass of a loader: its number, how many workers, digests of the batches so far."""

    iterator: weakref.ref[Any]
    loader: int
    workers: int
    reader: Site
    digests: list[str] = field(default_factory=list)


def _reader(dataset: Any) -> Site:
    code = getattr(type(dataset).__iter__, "__code__", None)
    if code is None or not _site.is_user_code(code):
        return NOWHERE
    return Site(code.co_filename, code.co_firstlineno, code.co_name, code.co_firstlineno)


def install(session: Session) -> Undo:
    """Follow the first pass of each loader with several workers over an iterable data set."""
    recorder = session.recorder
    passes: list[_Pass] = []
    seen: set[int] = set()

    def begun(before: Any, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loader = args[0]
        number = recorder.objects.number(loader)
        if number not in seen and isinstance(loader.dataset, IterableDataset):
            seen.add(number)
            passes.append(_Pass(weakref.ref(iterator), number, loader.num_workers, _reader(loader.dataset)))

    def came(before: Any, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        one = next((p for p in passes if p.iterator() is args[0]), None)
        if one is None:
            return
        one.digests.append(digest(flat_tensors(batch)))
        if len(one.digests) < ROUNDS * one.workers:
            return
        passes.remove(one)
        # in turns, one of each worker; a stream that repeats itself says nothing about them
        rounds = [set(one.digests[i : i + one.workers]) for i in range(0, len(one.digests), one.workers)]
        if all(len(r) == 1 and "" not in r for r in rounds) and rounds[0] != rounds[1]:
            recorder.emit(
                WorkersAlike,
                _site.here(1),
                loader=one.loader,
                workers=one.workers,
                batches=len(one.digests),
                reader=one.reader,
            )

    def few(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return bool(args[0].num_workers < 2)

    def none(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return not passes

    return together(
        observe(recorder, DataLoader, "__iter__", after=begun, skip=few),
        observe(recorder, _BaseDataLoaderIter, "__next__", after=came, skip=none),
    )
