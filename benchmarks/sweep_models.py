"""The chains that the sweep is measured on.  Each is made from a seed, equal for equal seeds, on the CPU.

chain39       39 blocks: convolutions with BatchNorm at 64x64, 32x32 and 16x16, attention over the 256 places, pool,
              residual MLPs, head; batch 8
transformer   embedding, 12 layers with dropout, head; batch 8, 128 tokens
q_network     the convolutional Q-network of Mnih et al. 2015 ("Human-level control through deep reinforcement
              learning"), batch 32 of uint8 frames, Huber loss on the taken actions
linears       16 Linear(1024, 1024), batch 128
tiny          4 blocks of Linear(64, 64) and Tanh, batch 64
random_chain  token blocks of unequal width, cost and memory, drawn from a seed
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a warning that older memory is released under a memory watch

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Problem:
    """A chain: block i gets what block i-1 returned, the loss closes it."""

    name: str
    blocks: list[nn.Module]
    x: Tensor
    y: Any
    loss_fn: Callable[[Any, Any], Tensor]
    model: nn.Sequential = field(init=False)

    def __post_init__(self) -> None:
        self.model = nn.Sequential(*self.blocks)

    def copy(self) -> Problem:
        """The same numbers in other tensors; the data is shared."""
        return Problem(self.name, copy.deepcopy(self.blocks), self.x, self.y, self.loss_fn)

    def clear(self) -> None:
        """Drop every gradient."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def plain(self) -> Tensor:
        """Forward and `loss.backward()`; the loss, detached."""
        loss = self.loss_fn(self.model(self.x), self.y)
        loss.backward()
        return loss.detach()


@contextmanager
def seeded(rng_seed: int) -> Iterator[None]:
    """torch's, numpy's and Python's random state, put back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng_seed)
        np.random.seed(rng_seed)
        random.seed(rng_seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


class Convolution(nn.Module):
    """3x3 convolution, BatchNorm, ReLU; residual where the shape stays."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(out)
        self.residual = channels == out and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return F.relu(x + y if self.residual else y)


class Tokens(nn.Module):
    """(B, C, H, W) to (B, H*W, D)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(channels, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x.flatten(2).transpose(1, 2))


class Attention(nn.Module):
    """Pre-norm self-attention with a residual, (B, T, D)."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, *, causal: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.dropout, self.causal = heads, dropout, causal

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        y = self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + F.dropout(y, self.dropout, self.training)


class Mlp(nn.Module):
    """Pre-norm MLP with a residual, last axis D."""

    def __init__(self, width: int, factor: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, factor * width)
        self.down = nn.Linear(factor * width, width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(F.gelu(self.up(self.norm(x))))
        return x + F.dropout(y, self.dropout, self.training)


class Pool(nn.Module):
    """Mean over the tokens: (B, T, D) to (B, D)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def chain39(rng_seed: int = 0) -> Problem:
    """39 blocks and the cross-entropy; batch 8, 10 classes."""
    with seeded(rng_seed):
        blocks: list[nn.Module] = [
            Convolution(3, 16),
            *(Convolution(16, 16) for _ in range(6)),  # 64x64
            Convolution(16, 32, 2),
            *(Convolution(32, 32) for _ in range(7)),  # 32x32
            Convolution(32, 64, 2),
            *(Convolution(64, 64) for _ in range(6)),  # 16x16
            Tokens(64, 64),
            *(Attention(64, 4) for _ in range(10)),
            Pool(),
            *(Mlp(64) for _ in range(4)),
            nn.Linear(64, 10),
        ]
        assert len(blocks) == 39
        return Problem("chain39", blocks, torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,)), F.cross_entropy)


class Embedding(nn.Module):
    """Token and place, (B, T) to (B, T, D)."""

    def __init__(self, words: int, tokens: int, width: int) -> None:
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.place = nn.Parameter(0.02 * torch.randn(tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.word(x) + self.place[: x.shape[1]]


def transformer(rng_seed: int = 0, *, layers: int = 12, dropout: float = 0.1) -> Problem:
    """Embedding, causal layers, head, cross-entropy over the next token; width 128, batch 8, 128 tokens, 256 words."""
    width, tokens, words = 128, 128, 256
    with seeded(rng_seed):
        blocks: list[nn.Module] = [
            Embedding(words, tokens, width),
            *(nn.Sequential(Attention(width, 4, dropout, causal=True), Mlp(width, 4, dropout)) for _ in range(layers)),
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words)),
        ]
        text = torch.randint(0, words, (8, tokens + 1))

    def loss_fn(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    return Problem("transformer", blocks, text[:, :-1].contiguous(), text[:, 1:].contiguous(), loss_fn)


class Frames(nn.Module):
    """uint8 frames to [0, 1], then the first convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 32, 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x.float() / 255.0))


def q_blocks(actions: int = 6) -> list[nn.Module]:
    """The five layers as five blocks, (B, 4, 84, 84) uint8 to (B, A)."""
    return [
        Frames(),
        nn.Sequential(nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(3136, 512), nn.ReLU()),
        nn.Linear(512, actions),
    ]


def huber(q: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    """Mean Huber loss of the taken actions; target = (action (B, 1), td_target (B,))."""
    action, td_target = target
    return F.smooth_l1_loss(q.gather(1, action).squeeze(1), td_target)


def q_network(rng_seed: int = 0, *, batch: int = 32) -> Problem:
    """Q-network, frames, taken actions and their targets."""
    with seeded(rng_seed):
        blocks = q_blocks()
        x = torch.randint(0, 256, (batch, 4, 84, 84), dtype=torch.uint8)
        y = (torch.randint(0, 6, (batch, 1)), torch.randn(batch))
        return Problem("q_network", blocks, x, y, huber)


def linears(rng_seed: int = 0, *, count: int = 16, width: int = 1024, batch: int = 128) -> Problem:
    """Parameters outweigh activations here: 4 MB of them a block, 0.5 MB of activation."""
    with seeded(rng_seed):
        blocks: list[nn.Module] = [nn.Linear(width, width) for _ in range(count)]
        return Problem("linears", blocks, torch.randn(batch, width), torch.randn(batch, width), F.mse_loss)


def tiny(rng_seed: int = 0, *, batch: int = 64) -> Problem:
    """So little work that what a block costs by itself shows."""
    with seeded(rng_seed):
        blocks: list[nn.Module] = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)]
        return Problem("tiny", blocks, torch.randn(batch, 64), torch.randn(batch, 64), F.mse_loss)


class Fat(nn.Module):
    """Cheap to run, much to keep: a row of element-wise operations on a wide middle."""

    def __init__(self, width: int, factor: int, times: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, factor * width)
        self.down = nn.Linear(factor * width, width)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        for _ in range(self.times):
            y = torch.tanh(y) * torch.sigmoid(y)
        return self.down(y)


class Slow(nn.Module):
    """Much to run, little to keep."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            factor = x
            for _ in range(self.times):
                factor = torch.tanh(factor @ self.weight)
        return torch.tanh(x @ self.weight) * (1.0 + factor.mean())


class ByTokens(nn.Module):
    """BatchNorm over the features of tokens, (B, T, D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Foreign(nn.Module):
    """Noise from numpy: gives other numbers when it is run again, so it must be kept."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.as_tensor(1.0 + 0.01 * np.random.standard_normal(x.shape[-1]), dtype=x.dtype)


def random_chain(rng_seed: int) -> Problem:
    """6 to 41 blocks on (8, T, D) tokens; widths change, costs and bytes differ by up to two orders of magnitude.

    Every fifth chain holds one block that may not be recomputed.
    """
    draw = random.Random(rng_seed)
    count = draw.randint(6, 40)
    tokens = draw.choice([32, 64, 128])
    width = first = draw.choice([32, 64, 128])
    with seeded(rng_seed):
        blocks: list[nn.Module] = []
        for _ in range(count):
            kind = draw.choice(["mlp", "attention", "fat", "slow", "norm", "batch", "drop", "act", "inplace", "width"])
            if kind == "mlp":
                blocks.append(Mlp(width, draw.choice([1, 2, 4, 8]), draw.choice([0.0, 0.1])))
            elif kind == "attention":
                blocks.append(Attention(width, 4, draw.choice([0.0, 0.1])))
            elif kind == "fat":
                blocks.append(Fat(width, draw.choice([2, 4, 8]), draw.randint(1, 4)))
            elif kind == "slow":
                blocks.append(Slow(width, draw.randint(1, 12)))
            elif kind == "norm":
                blocks.append(nn.LayerNorm(width))
            elif kind == "batch":
                blocks.append(ByTokens(width))
            elif kind == "drop":
                blocks.append(nn.Dropout(0.2))
            elif kind == "act":
                blocks.append(draw.choice([nn.GELU, nn.Tanh, nn.SiLU])())
            elif kind == "inplace":
                blocks.append(nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True)))
            else:
                wider = draw.choice([32, 64, 128, 256])
                blocks.append(nn.Linear(width, wider))
                width = wider
        if rng_seed % 5 == 4:
            blocks.insert(draw.randrange(1, count), Foreign())
        x, y = torch.randn(8, tokens, first), torch.randn(8, 1)
    return Problem(f"random {rng_seed}", blocks, x, y, _mean_loss)


def _mean_loss(out: Tensor, y: Tensor) -> Tensor:
    return (out.mean((1, 2)) - y.squeeze(1)).square().mean() + 0.1 * out.square().mean()


THREE: dict[str, Callable[[], Problem]] = {"chain39": chain39, "transformer": transformer, "q_network": q_network}
