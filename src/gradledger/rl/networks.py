"""The Q-networks, as chains of blocks: plain `nn.Sequential`s whose children are the blocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from gradledger.rl.errors import EnvError

Initial = Literal["torch", "he"]


class Pixels(nn.Module):
    """uint8 frames to floats in [0, 1]. It has no parameters and an integer input: nothing flows back through it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, frames: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, C, H, W) of `dtype`."""
        # In place on the copy: the same bits as a second tensor of floats, without the memory and its page faults.
        return frames.to(self.dtype, copy=True).div_(255.0)


class ValueHead(nn.Linear):
    """The last layer: values in the precision of its own weights, whatever that of the features is.

    A bfloat16 between 1 and 2 is a multiple of 1/128, which is more than two actions of Pong often differ by: in such
    numbers they are equal, and the first of equals is played. So the blocks before may be in bfloat16, this one is not.
    """

    def forward(self, features: Tensor) -> Tensor:
        """(B, features) -> (B, A)."""
        return super().forward(features.to(self.weight.dtype))


class DuelingHead(nn.Module):
    """Values of actions as the value of the state plus what each action is better than their mean.

    The first half of the features feeds the one stream, the second half the other. An error of one action moves the
    value of the state, and so the values of all actions: what is learned of one is learned of all.

    Reference: Wang et al., Dueling Network Architectures for Deep Reinforcement Learning, 2016, equation 9.
    """

    def __init__(self, features: int, actions: int) -> None:
        """features: of both streams together, even."""
        super().__init__()
        self.value = nn.Linear(features // 2, 1)
        self.advantage = nn.Linear(features // 2, actions)

    def forward(self, features: Tensor) -> Tensor:
        """(B, features) -> (B, A)."""
        one, other = features.to(self.value.weight.dtype).chunk(2, dim=1)  # as in ValueHead
        advantage: Tensor = self.advantage(other)
        value: Tensor = self.value(one)
        return value + advantage - advantage.mean(dim=1, keepdim=True)


def atari_q_network(
    actions: int,
    *,
    stack: int = 4,
    dueling: bool = False,
    initial: Initial = "torch",
    dtype: torch.dtype = torch.float32,
) -> nn.Sequential:
    """Three convolutions and two linear layers over `stack` frames of 84 x 84: B x stack x 84 x 84 uint8 -> B x A.

    Parameters: 1,684,128 + 513 A for four frames (A = 6: 1,687,206); with a dueling head of two streams of 512 features
    3,290,785 + 513 A (A = 6: 3,293,863). dtype: see `computing_in`. initial: how weights start, see `start`.

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
        nn.Sequential(nn.Flatten(), nn.Linear(3136, 1024 if dueling else 512), nn.ReLU()),
        DuelingHead(1024, actions) if dueling else ValueHead(512, actions),
    )
    return computing_in(dtype, start(net, initial))


def mlp_q_network(
    observation: int,
    actions: int,
    *,
    hidden: tuple[int, ...] = (64, 64),
    dueling: bool = False,
    initial: Initial = "torch",
    dtype: torch.dtype = torch.float32,
) -> nn.Sequential:
    """Linear layers over a flat observation: B x O of `dtype` -> B x A; one block a layer.

    dueling: a `DuelingHead` over twice the last width, which is one stream's. initial: see `start`. dtype: see
    `computing_in`.
    """
    if observation < 1 or actions < 1 or any(width < 1 for width in hidden) or (dueling and not hidden):
        raise EnvError(
            got=f"observation={observation}, actions={actions}, hidden={hidden}, dueling={dueling}",
            wanted="sizes of at least 1, and a hidden layer under a dueling head",
            where="rl.networks.mlp_q_network",
            next_step="pass the environment's observation size and number of actions",
        )
    sizes = [observation, *hidden]
    sizes[-1] *= 2 if dueling else 1
    blocks: list[nn.Module] = [nn.Sequential(nn.Linear(one, two), nn.ReLU()) for one, two in pairwise(sizes)]
    net = nn.Sequential(*blocks, DuelingHead(sizes[-1], actions) if dueling else ValueHead(sizes[-1], actions))
    return computing_in(dtype, start(net, initial))


def computing_in(dtype: torch.dtype, net: nn.Sequential) -> nn.Sequential:
    """Move a Q-network to `dtype`, its last block to no less than float32, and return it."""
    net.to(dtype)
    net[-1].to(torch.promote_types(dtype, torch.float32))
    return net


def start(net: nn.Sequential, initial: Initial) -> nn.Sequential:
    """Give a Q-network its first weights, and return it.

    Args:
        net: as the functions above make it.
        initial: "torch": as torch has made the layers, uniform within 1/sqrt(inputs): what differs between two states
            is three times smaller after each layer with a ReLU. "he": normal with a variance of 2/inputs, which keeps
            it, 1/inputs where the values come out, and no bias.

    Raises:
        EnvError: another word.

    Reference: He et al., Delving Deep into Rectifiers, 2015.
    """
    if initial not in ("torch", "he"):
        raise EnvError(
            got=f"initial={initial!r}",
            wanted="'torch' or 'he'",
            where="rl.networks.start",
            next_step="'torch' leaves the layers as they are",
        )
    if initial == "he":
        last = set(net[-1].modules())
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="linear" if layer in last else "relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    return net
