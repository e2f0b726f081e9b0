"""Data loaders: what they promise (length, order, workers) and each pass over them."""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from gradledger.core.events import LoaderEpoch, LoaderMade
from gradledger.core.site import Site
from gradledger.ledger import _site
from gradledger.ledger._moody import Moody
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._plain_length import asks_plainly
from gradledger.ledger._session import Session

# Their length follows from the size of the data alone; another sampler's may do anything, draw random numbers even.
_KNOWN = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class _Loaders:
    def __init__(self) -> None:
        self.passes: weakref.WeakKeyDictionary[DataLoader[Any], int] = weakref.WeakKeyDictionary()


def sampler_of(loader: DataLoader[Any]) -> Any:
    """What decides the order; None for a batch sampler of the program's own."""
    if type(loader.batch_sampler) is BatchSampler:
        return loader.batch_sampler.sampler
    return loader.sampler if loader.batch_sampler is None else None


def length_of(loader: DataLoader[Any]) -> int:
    """Batches of one pass; 0 when that cannot be known without running code that may have effects."""
    if isinstance(loader.dataset, IterableDataset) or type(sampler_of(loader)) not in _KNOWN:
        return 0
    if type(loader).__len__ is not DataLoader.__len__ or not asks_plainly(loader.dataset):
        return 0
    try:
        return len(loader)
    except Exception:  # a data set without a length is no fault of ours, nor the program's
        return 0


def is_shuffled(loader: DataLoader[Any]) -> bool:
    """False only where the order is surely that of the data set."""
    if isinstance(loader.dataset, IterableDataset):
        return True
    sampler = sampler_of(loader)
    if isinstance(sampler, DistributedSampler):
        return bool(sampler.shuffle)
    return not isinstance(sampler, SequentialSampler)


def own_order_of(loader: DataLoader[Any]) -> Any:
    """A sampler or batch sampler of the program's own, or a list of numbers in its place, whose order may be any; None
    where torch gives the order."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    sampler = sampler_of(loader)
    if sampler is None:
        sampler = loader.batch_sampler
    return None if isinstance(sampler, (*_KNOWN, DistributedSampler)) else sampler


def install(session: Session) -> Undo:
    """Watch `DataLoader`."""
    recorder = session.recorder
    loaders = recorder.part(_Loaders)

    def tell(loader: DataLoader[Any], site: Site) -> int:
        number = recorder.objects.find(loader)
        if number is None:
            number = recorder.objects.number(loader)
            recorder.emit(
                LoaderMade,
                site,
                loader=number,
                length=length_of(loader),
                batch_size=loader.batch_size or 0,
                shuffled=is_shuffled(loader),
                workers=loader.num_workers,
                drop_last=bool(loader.drop_last),
            )
        return number

    def made(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tell(args[0], _site.here(1))

    def begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loader = args[0]
        number = tell(loader, _site.here(1))
        epoch = loaders.passes[loader] = loaders.passes.get(loader, -1) + 1
        recorder.emit(LoaderEpoch, loader=number, epoch=epoch, pending=session.lifecycle.pending())
        recorder.new_phase(recorder.part(Moody).modes())

    return together(
        observe(recorder, DataLoader, "__init__", after=made),
        observe(recorder, DataLoader, "__iter__", before=begins),
    )
