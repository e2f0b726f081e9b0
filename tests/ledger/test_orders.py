"""The numbers behind three probes: pairs without a direction, batches in an order that follows the data, and pixels
in other places."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from harness import watching

from gradledger.core.events import BatchesCompared
from gradledger.ledger.probes.batches import Item
from gradledger.ledger.probes.mirrored import _without_direction
from gradledger.ledger.probes.rearranged import _whatever_order
from gradledger.ledger.probes.recurring import _walks


def pairs(rng: np.random.Generator, directed: bool) -> dict[tuple[int, int], bytes]:
    """Both ways of 200 pairs of 40 ends, with a target of either way or of each."""
    found: dict[tuple[int, int], bytes] = {}
    for u, v in rng.integers(40, size=(200, 2)).tolist():
        if u != v:
            found[u, v] = rng.integers(4, dtype=np.int64).tobytes()
            found[v, u] = rng.integers(4, dtype=np.int64).tobytes() if directed else found[u, v]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_pairs_that_mean_the_same_both_ways(seed: int) -> None:
    assert _without_direction(pairs(np.random.default_rng(seed), directed=False))


@pytest.mark.parametrize("seed", range(5))
def test_pairs_with_a_direction(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert not _without_direction(pairs(rng, directed=True))
    one_way = {pair: target for pair, target in pairs(rng, directed=False).items() if pair[0] < pair[1]}
    assert not _without_direction(one_way), "nothing is known of the other way"
    constant = dict.fromkeys(pairs(rng, directed=False), b"1")
    assert not _without_direction(constant), "one target for all says nothing of directions"


def batches(rng: np.random.Generator, order: np.ndarray) -> Item:
    """16 batches of 12 rows, of which the first column rises along the data."""
    rows = np.column_stack([np.linspace(0, 1, 192), rng.normal(size=(192, 2))])
    item = Item(3, True)
    for batch in rows[order].reshape(16, 12, 3):
        item.add(batch)
    return item


@pytest.mark.parametrize("seed", range(5))
def test_an_order_that_follows_the_data(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert _walks(batches(rng, np.arange(192)))
    assert not _walks(batches(rng, rng.permutation(192))), "rows in random order"
    jumps = np.arange(192).reshape(16, 12)[rng.permutation(16)].reshape(-1)
    assert not _walks(batches(rng, jumps)), "whole stretches in random order"


@pytest.mark.parametrize("seed", range(3))
def test_pixels_in_other_places_are_the_same_pixels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    image = rng.normal(size=(6, 8)).astype(np.float32)
    turned, shifted = image[:, ::-1], np.roll(image, 3, axis=0)
    noisy, swapped = image + np.float32(1e-3), image.copy()
    swapped[0, 0] = swapped[1, 1]
    keys = _whatever_order(np.stack([one.reshape(-1) for one in (image, turned, shifted, noisy, swapped)]))
    assert keys[0] == keys[1] == keys[2]
    assert len({int(keys[0]), int(keys[3]), int(keys[4])}) == 3


def test_one_batch_asked_again_and_again_before_anything_is_learned() -> None:
    """(it was divided by the number of passes in between; the harness fails on what a probe counts as its failure)"""
    torch.manual_seed(0)
    with watching() as watch:
        net = torch.nn.Linear(4, 4)
        x = torch.randn(32, 4)
        for _ in range(8):
            loss = net(x).square().mean()
        loss.backward()
        assert watch.all(BatchesCompared) == []
