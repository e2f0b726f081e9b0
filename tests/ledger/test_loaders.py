"""Data loaders: length, order, passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from harness import here, watching
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from gradledger.core.events import LoaderEpoch, LoaderMade
from gradledger.ledger.probes import backward, loaders, optimizers

DATA = TensorDataset(torch.arange(10.0))


class Drawing(Sampler[int]):
    """A sampler whose length draws random numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        raise AssertionError("asked for its length")


class Stream(IterableDataset[float]):
    def __iter__(self) -> Iterator[float]:
        yield from range(4)


@pytest.mark.parametrize(
    ("options", "length", "shuffled"),
    [
        ({}, 10, False),
        ({"batch_size": 4, "shuffle": True}, 3, True),
        ({"batch_size": 4, "drop_last": True}, 2, False),
        ({"sampler": RandomSampler(DATA), "batch_size": 5}, 2, True),
        ({"sampler": WeightedRandomSampler([1.0] * 10, 20), "batch_size": 5}, 4, True),
        ({"sampler": Drawing()}, 0, True),
        ({"sampler": DistributedSampler(DATA, 1, 0, shuffle=False)}, 0, False),
        ({"sampler": DistributedSampler(DATA, 1, 0)}, 0, True),
        ({"batch_sampler": BatchSampler(SequentialSampler(DATA), 2, False)}, 5, False),
        ({"batch_sampler": BatchSampler(RandomSampler(DATA), 5, False)}, 2, True),
        ({"batch_sampler": [[0, 1], [2]]}, 0, True),
        ({"batch_size": None}, 10, False),
    ],
    ids=lambda value: "+".join(f"{k}={type(v).__name__}" for k, v in value.items()) if type(value) is dict else None,
)
def test_what_a_loader_promises(options: dict[str, object], length: int, shuffled: bool) -> None:
    with watching(loaders) as watch:
        DataLoader(DATA, **options)  # type: ignore[arg-type]
        event = watch.one(LoaderMade)
        assert (event.length, event.shuffled, event.site.line) == (length, shuffled, here() - 2)


def test_streams_and_data_without_length() -> None:
    class NoLength(Dataset[int]):
        def __getitem__(self, i: int) -> int:
            return i

    with watching(loaders) as watch:
        DataLoader(Stream())
        DataLoader(NoLength(), sampler=Drawing())
        DataLoader(NoLength(), batch_sampler=[[0], [1]])
        assert [(e.length, e.shuffled) for e in watch.all(LoaderMade)] == [(0, True)] * 3


def test_passes_are_counted_and_start_a_phase() -> None:
    with watching(loaders) as watch:
        loader = DataLoader(DATA, batch_size=5)
        for _ in range(2):
            for _batch in loader:
                line = here() - 1
        events = watch.all(LoaderEpoch)
        assert [(e.epoch, e.site.line) for e in events] == [(0, line), (1, line)]
        assert {e.loader for e in events} == {watch.one(LoaderMade).loader}
        assert watch.session.recorder.attention.calls_left > 0


def test_what_stands_unconsumed_when_a_pass_begins() -> None:
    with watching(loaders, optimizers, backward) as watch:
        net = torch.nn.Linear(1, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(DATA, batch_size=5)
        for (x,) in loader:
            net(x[:, None]).sum().backward()
        iter(loader)
        opt.step()
        iter(loader)
        assert [len(e.pending) for e in watch.all(LoaderEpoch)] == [0, 2, 0]


def test_a_loader_from_before_the_watch_is_told_at_its_first_pass() -> None:
    loader = DataLoader(DATA, batch_size=2)
    with watching(loaders) as watch:
        list(loader)
        assert watch.one(LoaderMade).length == 5


def test_batches_and_random_state_are_the_same_as_without_us() -> None:
    def run() -> tuple[list[list[float]], torch.Tensor]:
        torch.manual_seed(3)
        loader = DataLoader(DATA, batch_size=3, shuffle=True)
        return [x.tolist() for _ in range(2) for (x,) in loader], torch.get_rng_state()

    batches, state = run()
    with watching(loaders):
        seen, after = run()
    assert seen == batches
    assert torch.equal(after, state)
