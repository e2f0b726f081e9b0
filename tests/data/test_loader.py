"""The loader: the same bits with any number of workers and after a resume anywhere; the program's streams untouched."""

from __future__ import annotations

import doctest
import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from data_sets import COUNT, Clocked, Drawing, Globals, InPlace, Numbers, Stateful, Trajectories
from gradledger.data import loader as module
from gradledger.data import philox
from gradledger.data.collate import Pad
from gradledger.data.errors import LoaderError
from gradledger.data.groups import content_hash
from gradledger.data.loader import Loader
from gradledger.data.sampled import Randomness, unrepeatable

# torch thinks that four workers are many on this machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ORDER = [2, 0, 8, 3, 7, 4, 1, 9, 5, 6]
WORDS = [216914773030987349, 7680790227797720700]
KINDS: dict[str, tuple[Any, Randomness]] = {
    "globals": (Globals, "global"),
    "generator": (Drawing, "generator"),
    "pure": (Numbers, "none"),
}


def make(kind: str, workers: int = 0, **more: Any) -> Loader:
    dataset, randomness = KINDS[kind]
    given: dict[str, Any] = dict(batch_size=4, rng_seed=7, randomness=randomness, num_workers=workers) | more
    return Loader(dataset(), **given)


def hashes(loader: Loader, epochs: int = 2) -> list[list[str]]:
    return [[content_hash(batch) for batch in loader] for _ in range(epochs)]


EXPECTED = {kind: hashes(make(kind), 3) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_with_any_number_of_workers(kind: str) -> None:
    assert len(EXPECTED[kind][0]) == 6
    flat = list(itertools.chain(*EXPECTED[kind]))
    assert len(set(flat)) == len(flat)  # another order and another augmentation in each epoch
    for workers in (1, 2, 4):
        assert hashes(make(kind, workers)) == EXPECTED[kind][:2]


def test_torch_alone_depends_on_the_number_of_workers() -> None:
    """What this is for: one seed, equal order, other augmentations."""

    def stock(workers: int) -> list[Any]:
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        order = torch.Generator().manual_seed(0)
        return list(DataLoader(Globals(), 4, shuffle=True, num_workers=workers, generator=order))

    none, two = stock(0), stock(2)
    assert all(torch.equal(a["index"], b["index"]) for a, b in zip(none, two, strict=True))
    assert not any(torch.equal(a["x"], b["x"]) for a, b in zip(none, two, strict=True))


def test_the_example_of_the_docstring() -> None:
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted == 2


def test_persistent_workers_follow_the_epoch() -> None:
    assert hashes(make("globals", 2, persistent_workers=True), 3) == EXPECTED["globals"]
    spawned = make("globals", 1, persistent_workers=True, multiprocessing_context="spawn")
    assert hashes(spawned, 2) == EXPECTED["globals"][:2]


@pytest.mark.parametrize("position", range(7))
def test_resume_at_every_batch_with_another_number_of_workers(position: int) -> None:
    """Saved while workers are ahead; 6 is the last batch of the epoch, from where the next one is not empty."""
    saver = make("globals", 2 if position % 2 else 0, persistent_workers=position == 3)
    batches = iter(saver)
    got = [content_hash(next(batches)) for _ in range(position)]
    state = json.loads(json.dumps(saver.state_dict()))
    if position == 6:
        assert (state["epoch"], state["batch"]) == (1, 0)
        assert saver.epoch == 1
    for workers in (0, 1, 3):
        resumed = make("globals", workers, persistent_workers=workers == 1)
        resumed.load_state_dict(state)
        rest = [content_hash(batch) for batch in resumed]
        if position < 6:
            assert got + rest == EXPECTED["globals"][0]
            rest = [content_hash(batch) for batch in resumed]
        assert rest == EXPECTED["globals"][1]
        assert resumed.epoch == 2


def test_every_sample_once_an_epoch() -> None:
    loader = Loader(list(range(COUNT)), batch_size=5, rng_seed=1)
    for _ in range(3):
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(COUNT))
    assert Loader(list(range(COUNT)), batch_size=5, rng_seed=1, shuffle=False).order(4).tolist() == list(range(COUNT))
    subset = Loader(list(range(COUNT)), batch_size=2, rng_seed=1, indices=[3, 9, 4])
    assert sorted(torch.cat(list(subset)).tolist()) == [3, 4, 9]
    dropped = Loader(list(range(COUNT)), batch_size=5, rng_seed=1, drop_last=True)
    assert [len(batch) for batch in dropped] == [5, 5, 5, 5]


def test_orders_are_uniform_enough() -> None:
    """Each sample is in each place about equally often, and neighbours do not stay together."""
    orders = np.stack([philox.permutation(6, 0, epoch) for epoch in range(6000)])
    counts = np.stack([np.bincount(orders[:, place], minlength=6) for place in range(6)])
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000 * 5 / 6)
    assert len({tuple(order) for order in orders.tolist()}) == 720


def test_an_order_is_fixed_for_good() -> None:
    """Written down: it may not change with a version of numpy or of this library."""
    assert philox.permutation(10, 0, 0).tolist() == ORDER
    assert philox.bits(0, 0, 0).random_raw(2).tolist() == WORDS
    addresses = [(0, 0), (3, 17), (0, 2**40), (3, 16)]
    assert philox.words(5, addresses) == [philox.bits(5, *one).random_raw(4).tolist() for one in addresses]


def test_shards_share_out_the_common_order() -> None:
    whole = Loader(list(range(COUNT)), batch_size=1, rng_seed=3)
    parts = [Loader(list(range(COUNT)), batch_size=1, rng_seed=3, shard=(rank, 4)) for rank in range(4)]
    merged = np.stack([part.order(2) for part in parts], axis=1).reshape(-1)
    assert merged.tolist() == whole.order(2)[:20].tolist()
    assert {len(part) for part in parts} == {5}


def streams() -> tuple[Any, ...]:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_streams_of_the_program_are_untouched(workers: int) -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    np.random.randn(1)  # leaves a cached Gaussian behind
    before = streams()
    loader = make("globals", workers)
    list(loader)
    assert streams() == before


def test_the_programs_seed_does_not_matter() -> None:
    torch.manual_seed(123), random.seed(5), np.random.seed(9)
    assert hashes(make("globals"), 1) == EXPECTED["globals"][:1]
    assert hashes(make("globals", rng_seed=8), 1) != EXPECTED["globals"][:1]


def test_breaking_off_goes_on() -> None:
    loader = make("pure", 2, persistent_workers=True)
    got = [content_hash(batch) for batch, _ in zip(loader, range(3), strict=False)]
    assert loader.remaining == 2  # zip took one more
    rest = [content_hash(batch) for batch in loader]
    assert got + rest == [*EXPECTED["pure"][0][:3], *EXPECTED["pure"][0][4:]]
    next(iter(loader))
    loader.restart()
    assert [content_hash(batch) for batch in loader] == EXPECTED["pure"][1]
    loader.restart(0)
    assert [content_hash(batch) for batch in loader] == EXPECTED["pure"][0]


def test_two_iterations_at_once_are_refused() -> None:
    loader = make("pure")
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(LoaderError, match="two iterations at once"):
        next(first)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"rng_seed": 8}, r"rng_seed=7 \(here 8\)"),
        ({"batch_size": 5}, r"batch_size=4 \(here 5\)"),
        ({"shuffle": False}, r"shuffle=True"),
        ({"indices": list(range(COUNT))[::-1]}, "indices="),
        ({"indices": [1, 2, 3, 4, 5]}, r"samples=23 \(here 5\)"),
        ({"shard": (0, 2)}, "shard="),
        ({"drop_last": True}, "drop_last="),
    ],
)
def test_a_position_of_another_order_is_refused(more: dict[str, Any], says: str) -> None:
    loader = make("pure", **more)
    with pytest.raises(LoaderError, match=says):
        loader.load_state_dict(make("pure").state_dict())
    assert loader.epoch == 0


def test_a_position_that_is_none() -> None:
    state = make("pure").state_dict()
    for broken in (
        {},
        {**state, "batch": 6},
        {**state, "batch": -1},
        {**state, "epoch": "x"},
        {**state, "format": "y"},
    ):
        with pytest.raises(LoaderError, match=r"Loader\.load_state_dict"):
            make("pure").load_state_dict(broken)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_refusals() -> None:
    with pytest.raises(LoaderError, match="its order is its own affair and cannot be exact here"):
        Loader(Endless(), batch_size=1, rng_seed=0)
    for more, says in (
        ({"batch_size": 0}, "batch_size=0"),
        ({"rng_seed": -1}, "rng_seed=-1"),
        ({"shard": (2, 2)}, r"shard=\(2, 2\)"),
        ({"indices": [30]}, "indices 30 to 30 of 23 samples"),
        ({"indices": []}, "no batch at all"),
        ({"batch_size": 30, "drop_last": True}, "no batch at all"),
        ({"randomness": "some"}, "randomness='some'"),
    ):
        with pytest.raises(LoaderError, match=says):
            make("pure", **more)


def test_what_cannot_be_repeated_is_found() -> None:
    assert unrepeatable(Globals()) == []
    assert unrepeatable(Drawing(), "generator") == []
    assert len(unrepeatable(Globals(), "none")) == 8
    for broken in (Clocked, Stateful, InPlace):
        found = unrepeatable(broken())
        assert any("fetched twice under one ticket it differs" in text for text in found)
    assert any("changed a sample that was handed out" in text for text in unrepeatable(InPlace()))


def test_variable_lengths_with_workers() -> None:
    def batches(workers: int) -> list[Any]:
        return list(Loader(Trajectories(), batch_size=4, rng_seed=0, num_workers=workers, collate=Pad()))

    assert [content_hash(one) for one in batches(2)] == [content_hash(one) for one in batches(0)]
    for batch in batches(0):
        lengths = [1 + (index * 7) % 5 for index in batch["episode"].tolist()]
        assert batch["mask"].sum(dim=1).tolist() == lengths
        assert batch["obs"].shape == (len(lengths), max(lengths), 2)
        for row, length in enumerate(lengths):
            assert batch["reward"][row, :length].tolist() == list(range(length))
            assert not batch["reward"][row, length:].any()
