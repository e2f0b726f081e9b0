"""What is seen of data on its way to the program: order, stored values, generators of workers, shared data sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from harness import watching
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, get_worker_info, random_split

from alone import alone
from gradledger.core.events import (
    BatchesCompared,
    SharedDataset,
    SharedPart,
    StoredDataChanged,
    WorkerGenerator,
    WorkersAlike,
)
from gradledger.ledger.probes import batches, calls, fetches, loaders, parts, regions, streams, subsets, workers


def test_the_share_between_batches_is_that_of_the_analysis_of_variance() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 3, dtype=torch.float64)
    x[:, 1] += torch.arange(40.0) / 4
    with watching(loaders, batches) as watch:
        for _ in DataLoader(TensorDataset(x), batch_size=8):
            pass
        event = watch.one(BatchesCompared)
    groups = x.numpy().reshape(5, 8, 3)
    between = 8 * ((groups.mean(1) - groups.mean((0, 1))) ** 2).sum(0)
    total = ((groups - groups.mean((0, 1))) ** 2).sum((0, 1))
    assert event.between == pytest.approx(float((between / total).max()), rel=1e-12)
    assert (event.batches, event.rows, event.trained, event.item) == (5, 8, 0, 0)


def test_shuffled_passes_and_later_ones_are_not_looked_at() -> None:
    data = TensorDataset(torch.arange(40.0))
    with watching(loaders, batches) as watch:
        for _ in DataLoader(data, batch_size=8, shuffle=True):
            pass
        assert watch.all(BatchesCompared) == []
        loader = DataLoader(data, batch_size=8)
        for _ in range(10):
            for _ in loader:
                pass
        assert len(watch.all(BatchesCompared)) == batches.PASSES


class Stored(Dataset[torch.Tensor]):
    def __init__(self, in_place: bool) -> None:
        self.x = torch.rand(32, 4)
        self.rng = np.random.default_rng(0)
        self.in_place = in_place

    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> torch.Tensor:
        x = self.x[i] if self.in_place else self.x[i].clone()
        x += float(self.rng.random())
        return x


@pytest.mark.parametrize("in_place", [True, False])
def test_stored_values_that_change_with_each_pass(in_place: bool) -> None:
    data = Stored(in_place)
    with watching(loaders, fetches) as watch:
        for _ in range(3):
            for _ in DataLoader(data, batch_size=8):
                pass
        if not in_place:
            assert watch.all(StoredDataChanged) == []
            return
        event = watch.one(StoredDataChanged)
        assert (event.dataset, event.attribute, event.passes) == ("Stored", "x", 2)
        assert [(r.function, r.file) for r in event.readers] == [("__getitem__", __file__)]


class Rows:
    """A data set that is none of torch's, over rows of somebody else."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.x[i].add_(1.0)


@pytest.mark.parametrize("kept", ["rows", "copies", "put back", "other rows", "list"])
def test_a_data_set_made_anew_for_each_pass(kept: str) -> None:
    """It counts by the values that it finds, whatever object stands above them or at which address they lie."""
    x = torch.rand(60, 4)
    was, held = x.clone(), Rows(x)
    with watching(loaders, fetches) as watch:
        for _ in range(3):
            rows: Any = Rows(x) if kept == "rows" else Rows(x.clone()) if kept == "copies" else held
            if kept == "put back":
                x.copy_(was)
            elif kept == "other rows":
                rows = Rows(torch.rand(60, 4))
            elif kept == "list":
                rows = list(x)
            in_place = (lambda items: torch.stack([i.add_(1.0) for i in items])) if kept == "list" else None
            for _ in DataLoader(rows, batch_size=5, shuffle=True, collate_fn=in_place):
                pass
    found = [(e.dataset, e.attribute) for e in watch.all(StoredDataChanged)]
    assert found == {"rows": [("Rows", "x")], "list": [("list", "")]}.get(kept, [])


@alone
def test_a_generator_that_workers_receive() -> None:
    with watching(loaders, workers) as watch:
        list(DataLoader(Stored(False), batch_size=8))
        assert watch.all(WorkerGenerator) == []
        list(DataLoader(Stored(False), batch_size=8, num_workers=1))
        event = watch.one(WorkerGenerator)
        assert (event.name, event.kind, event.workers, event.init_fn) == ("self.rng", "numpy.Generator", 1, False)


def test_settings_of_a_shared_data_set() -> None:
    data = Stored(False)
    with watching(loaders, subsets) as watch:
        left, right = random_split(data, [16, 16])
        data.in_place = False
        list(DataLoader(left))
        right.dataset.in_place = True  # type: ignore[attr-defined]
        list(DataLoader(left))
        list(DataLoader(right))
        first, second = watch.all(SharedDataset)
        assert (first.anew, second.anew, first.subsets) == ((), ("in_place",), 2)
        assert "in_place" in first.settings
        assert "x" not in first.settings


def test_a_subset_with_a_data_set_of_its_own_shares_nothing() -> None:
    with watching(loaders, subsets) as watch:
        kept = [Subset(Stored(False), range(8)), Subset(Stored(False), range(8))]
        for subset in kept:
            list(DataLoader(subset))
        assert watch.all(SharedDataset) == []


class Blur:
    """A transform with settings, and parts of its own."""

    def __init__(self, *parts: object) -> None:
        self.width, self.parts = 3, list(parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Seen(Stored):
    """A data set with a transform."""

    def __init__(self, transform: object) -> None:
        super().__init__(False)
        self.transform = transform


def test_an_object_that_two_data_sets_hold() -> None:
    inner = Blur()
    with watching(loaders, parts) as watch:
        left, right = Seen(Blur(inner)), Seen(Blur(inner))
        one, other = DataLoader(left), DataLoader(right)
        list(one)
        (first,) = watch.all(SharedPart)
        assert (first.attribute, first.kind, first.holders) == ("parts", "Blur", 2)
        assert first.settings == (("width", "3"), ("parts", "a list of 0"))
        list(one)
        assert len(watch.all(SharedPart)) == 1
        inner.width = 5
        list(other)
        list(one)
        assert [dict(e.settings)["width"] for e in watch.all(SharedPart)] == ["3", "5", "5"]
        assert len({e.part for e in watch.all(SharedPart)}) == 1
        del left, one
        inner.width = 7
        list(other)
        assert len(watch.all(SharedPart)) == 3


def test_of_what_two_data_sets_hold_stores_functions_and_subsets_are_no_shared_parts() -> None:
    class Function(Seen):
        def __getitem__(self, i: int) -> object:
            return self.transform(super().__getitem__(i))  # type: ignore[operator]

    data, x, noise = Stored(False), torch.rand(8, 2), torch.Generator()
    with watching(loaders, parts) as watch:
        kept = [Function(lambda v: v) for _ in range(2)]
        for each in kept:
            each.x, each.noise = x, noise  # type: ignore[attr-defined]
            assert len(DataLoader(each, batch_size=4)) == 8
            iter(DataLoader(each))
        for each in random_split(data, [16, 16]):
            list(DataLoader(each))
    assert watch.all(SharedPart) == []


def test_pieces_of_a_table_that_a_program_computes_into() -> None:
    net = nn.Linear(3, 1)
    with watching(loaders, calls, regions) as watch:
        table = torch.rand(32, 3)
        for _ in range(2):
            for piece in table.split(8):
                net(piece)
        for first in range(0, 32, 8):
            fresh = table[first : first + 8].clone()
            fresh += 1
            net(fresh)
        assert watch.all(StoredDataChanged) == []
        for _ in range(2):
            for first in range(0, 32, 8):
                piece = table[first : first + 8]
                piece += 1
                net(piece)
        (event,) = watch.all(StoredDataChanged)
        assert (event.dataset, event.attribute, event.items) == ("tensor", "", 2)
        rows = torch.zeros(32, 3)
        for _ in range(3):
            for first in range(0, 32, 8):
                piece = rows[first : first + 8]
                piece[:] = torch.rand(8, 3)
                piece -= 0.5
                net(piece)
        assert len(watch.all(StoredDataChanged)) == 1


class Stream(IterableDataset):
    """Random rows: of one seed, of one a worker, or the same row again and again."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        draw = torch.Generator().manual_seed(info.id if self.kind == "by worker" and info else 0)
        for _ in range(24):
            yield torch.zeros(3) if self.kind == "constant" else torch.rand(3, generator=draw)


@alone
def test_workers_that_give_the_same_stream() -> None:
    for kind, told in (("one seed", 1), ("by worker", 0), ("constant", 0)):
        with watching(loaders, streams) as watch:
            loader = DataLoader(Stream(kind), batch_size=4, num_workers=2)
            for _ in range(2):
                for _ in loader:
                    pass
            list(DataLoader(Stream(kind), batch_size=4))
            assert [(e.workers, e.batches) for e in watch.all(WorkersAlike)] == [(2, 4)] * told, kind
