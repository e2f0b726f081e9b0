"""Loaders and their passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradledger.core.events._base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderMade(Event):
    """A DataLoader.  `length`: batches an epoch (0: unknown)."""

    KIND: ClassVar[str] = "loader_made"
    loader: int
    length: int
    batch_size: int
    shuffled: bool
    workers: int
    drop_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderEpoch(Event):
    """`iter(loader)`: a new pass begins.  `epoch`: passes before this one; `pending`: backwards whose contributions
    stand unconsumed in gradients now."""

    KIND: ClassVar[str] = "loader_epoch"
    loader: int
    epoch: int
    pending: tuple[int, ...] = ()
