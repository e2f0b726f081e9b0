"""Subsets of one data set object, and settings of that object that change after they were made."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from gradledger.core.events import SharedDataset
from gradledger.core.site import Site
from gradledger.ledger import _site
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session

KEPT = 64  # subsets of one data set
TOLD = 4
_STORES = (torch.Tensor, np.ndarray, list, dict, set)


@dataclass
class _Shared:
    """One data set: its subsets, where they were made, and its settings as they were last seen."""

    settings: dict[str, tuple[int, str]]
    subsets: list[weakref.ref[Any]] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    told: int = 0


def _settings(dataset: Any) -> dict[str, tuple[int, str]]:
    """Attribute -> which object it is, for what is no store of data."""
    return {
        name: (id(value), type(value).__name__)
        for name, value in vars(dataset).items()
        if not isinstance(value, _STORES) and not isinstance(value, Dataset)
    }


def install(session: Session) -> Undo:
    """Watch the making of subsets and the passes over them."""
    recorder = session.recorder
    shared: dict[int, _Shared] = {}

    def made(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        subset = args[0]
        dataset = subset.dataset
        if not isinstance(dataset, Dataset) or not hasattr(dataset, "__dict__"):
            return
        known = shared.setdefault(recorder.objects.number(dataset), _Shared(_settings(dataset)))
        if len(known.subsets) < KEPT:
            known.subsets.append(weakref.ref(subset))
            known.sites.append(_site.here(1))

    def begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        subset = args[0].dataset
        if not isinstance(subset, Subset):
            return
        dataset = subset.dataset
        number = recorder.objects.find(dataset)
        known = shared.get(number) if number is not None else None
        if known is None:
            return
        alive = sum(s.dataset is dataset for ref in known.subsets if (s := ref()) is not None)
        before, known.settings = known.settings, _settings(dataset)
        if alive < 2:
            return
        anew = tuple(n for n, value in known.settings.items() if n in before and before[n] != value)
        if known.told and (not anew or known.told > TOLD):
            return
        known.told += 1
        recorder.emit(
            SharedDataset,
            _site.here(1),
            loader=recorder.objects.number(args[0]),
            number=recorder.objects.number(dataset),
            dataset=type(dataset).__qualname__,
            settings=tuple(known.settings),
            anew=anew,
            subsets=alive,
            made=tuple(dict.fromkeys(known.sites))[:4],
        )

    def skip(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return not shared

    return together(
        observe(recorder, Subset, "__init__", after=made),
        observe(recorder, DataLoader, "__iter__", before=begins, skip=skip),
    )
