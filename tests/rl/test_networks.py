"""Sizes of the Q-networks, block by block."""

from __future__ import annotations

import pytest
import torch

from gradledger.rl.errors import EnvError
from gradledger.rl.networks import atari_q_network, mlp_q_network


@pytest.mark.parametrize("actions", [4, 6, 18])
def test_the_count_of_parameters(actions: int) -> None:
    net = atari_q_network(actions)
    assert sum(p.numel() for p in net.parameters()) == 1_684_128 + 513 * actions


def test_the_shapes_after_each_block() -> None:
    x, shapes = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8), []
    for block in atari_q_network(6):
        x = block(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(4, 84, 84), (32, 20, 20), (64, 9, 9), (64, 7, 7), (512,), (6,)]


def test_pixels_are_scaled_and_the_dtype_is_the_one_asked_for() -> None:
    net = atari_q_network(3, dtype=torch.float64)
    frames = torch.full((1, 4, 84, 84), 255, dtype=torch.uint8)
    assert torch.equal(net[0](frames), torch.ones(1, 4, 84, 84, dtype=torch.float64))
    assert net(frames).dtype == torch.float64


def test_a_chain_over_vectors() -> None:
    net = mlp_q_network(4, 2, hidden=(16, 8))
    assert [len(list(block.parameters())) for block in net] == [2, 2, 2]
    assert net(torch.zeros(5, 4)).shape == (5, 2)


def test_sizes_of_nothing_are_refused() -> None:
    with pytest.raises(EnvError, match="actions=0"):
        atari_q_network(0)
    with pytest.raises(EnvError, match=r"hidden=\(0,\)"):
        mlp_q_network(4, 2, hidden=(0,))
