"""The Q-networks, as chains of blocks: plain `nn.Sequential`s whose children are the blocks."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from gradledger.rl.errors import EnvError


class Pixels(nn.Module):
    """uint8 frames to floats in [0, 1]. It has no parameters and an integer input: nothing flows back through it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, frames: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, C, H, W) of `dtype`."""
        # In place on the copy: the same bits as a second tensor of floats, without the memory and its page faults.
        return frames.to(self.dtype, copy=True).div_(255.0)


def atari_q_network(actions: int, *, stack: int = 4, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Three convolutions and two linear layers over `stack` frames of 84 x 84: B x stack x 84 x 84 uint8 -> B x A.

    Parameters: 1,684,128 + 513 A for four frames (A = 6: 1,687,206), of `dtype`. Weights start as torch starts them.

    Reference: Mnih et al., Human-level control through deep reinforcement learning, 2015.
    """
    if actions < 1 or stack < 1:
        raise EnvError(
            got=f"actions={actions}, stack={stack}",
            wanted="at least one action and one frame",
            where="rl.networks.atari_q_network",
            next_step="pass the environment's number of actions",
        )
    net = nn.Sequential(
        Pixels(dtype),
        nn.Sequential(nn.Conv2d(stack, 32, 8, stride=4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(64, 64, 3, stride=1), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()),
        nn.Linear(512, actions),
    )
    return net.to(dtype)


def mlp_q_network(observation: int, actions: int, *, hidden: tuple[int, ...] = (64, 64)) -> nn.Sequential:
    """Linear layers over a flat observation: B x O float -> B x A; one block a layer."""
    if observation < 1 or actions < 1 or any(width < 1 for width in hidden):
        raise EnvError(
            got=f"observation={observation}, actions={actions}, hidden={hidden}",
            wanted="sizes of at least 1",
            where="rl.networks.mlp_q_network",
            next_step="pass the environment's observation size and number of actions",
        )
    sizes = (observation, *hidden)
    blocks: list[nn.Module] = [nn.Sequential(nn.Linear(one, two), nn.ReLU()) for one, two in pairwise(sizes)]
    return nn.Sequential(*blocks, nn.Linear(sizes[-1], actions))
