"""Small chains of blocks for the table in `problems.py`: each function builds one, fresh, as people write them.

Every function returns ``(blocks, x, y, loss_fn)``: block i gets what block i-1 returned as its only argument, and
``loss_fn(state, y)`` closes the chain. Sizes are a few hundred numbers, so that a row costs milliseconds.
Axis letters: B batch, T time, C H W channels and picture, A actions.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

Chain = tuple[list[Any], Any, Any, Callable[[Any, Any], Any]]


# ---------------------------------------------------------------------------------------------------- losses
def mean_square(state: Tensor, y: Tensor) -> Tensor:
    """Mean over every element."""
    return F.mse_loss(state, y)


def sum_square(state: Tensor, y: Tensor) -> Tensor:
    """Sum over every element."""
    return (state - y).square().sum()


def class_mean(state: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, mean over every class index of `y`."""
    return F.cross_entropy(state.flatten(0, -2), y.flatten())


# ---------------------------------------------------------------------------------------------------- dense
def mlp(*, loss: Callable[[Any, Any], Any] = mean_square, depth: int = 3) -> Chain:
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(12, 12), nn.Tanh())]
    return [nn.Linear(6, 12), nn.ReLU(), *hidden, nn.Linear(12, 4)], torch.randn(8, 6), torch.randn(8, 4), loss


def x_requires_grad() -> Chain:
    blocks, x, y, loss = mlp()
    return blocks, x.requires_grad_(), y, loss


def uneven_batch() -> Chain:
    """A batch of 7: a mean over it does not divide to the same bits as a product with 1/7."""
    return [nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 3)], torch.randn(7, 6), torch.randn(7, 3), mean_square


def one_block() -> Chain:
    return (
        [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))],
        torch.randn(5, 6),
        torch.randn(5, 4),
        sum_square,
    )


def named_losses() -> Chain:
    """Two named losses, nested, beside a number that nothing is differentiated through."""

    def losses(state: Tensor, y: Tensor) -> dict[str, Any]:
        error = state - y
        return {
            "actor": error.abs().mean(),
            "critic": {"value": 0.5 * error.square().sum(), "seen": error.detach().max()},
            "penalty": state.square().mean().reshape(1),
        }

    return mlp(loss=losses)


def unused_parameters() -> Chain:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(6, 8), nn.Linear(6, 8)
            self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) * self.frozen

    return [Wide(), nn.Tanh(), nn.Linear(8, 4)], torch.randn(5, 6), torch.randn(5, 4), mean_square


def weight_norm() -> Chain:
    layer = parametrizations.weight_norm
    blocks = [layer(nn.Linear(6, 10)), nn.Tanh(), layer(nn.Linear(10, 10)), nn.Tanh(), nn.Linear(10, 3)]
    return blocks, torch.randn(6, 6), torch.randn(6, 3), mean_square


def spectral_norm() -> Chain:
    layer = parametrizations.spectral_norm
    blocks = [layer(nn.Linear(6, 10)), nn.Tanh(), layer(nn.Linear(10, 10)), nn.Tanh(), nn.Linear(10, 3)]
    return blocks, torch.randn(6, 6), torch.randn(6, 3), mean_square


# ---------------------------------------------------------------------------------------------------- pictures
def q_network() -> Chain:
    """The Q-network of the Atari recipe on B=2, A=6: bytes in, scaled by the first block, Huber at the taken action."""

    class Scale(nn.Module):
        def forward(self, frames: Tensor) -> Tensor:
            return frames.float() / 255.0

    def td_huber(q: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
        action, td_target = y
        taken = q.gather(1, action.unsqueeze(1)).squeeze(1)
        return 2.0 * F.smooth_l1_loss(taken, td_target)

    blocks = [
        nn.Sequential(Scale(), nn.Conv2d(4, 32, 8, stride=4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(64, 64, 3), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()),
        nn.Linear(512, 6),
    ]
    frames = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    return blocks, frames, (torch.randint(0, 6, (2,)), torch.randn(2)), td_huber


def conv_batch_norm() -> Chain:
    blocks = [
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(4, 4, 3, stride=2), nn.BatchNorm2d(4, momentum=None), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    ]
    return blocks, torch.randn(4, 2, 8, 8), torch.randint(0, 3, (4,)), class_mean


def frozen_batch_norm() -> Chain:
    """Fine-tuning habit: statistics frozen by `eval` on the normalisation alone."""
    blocks, x, y, loss = conv_batch_norm()
    blocks[1].train = functools.partial(_stay_in_eval, blocks[1])
    blocks[1].eval()
    return blocks, x, y, loss


def _stay_in_eval(module: nn.Module, mode: bool = True) -> nn.Module:
    return nn.Module.train(module, False)


def channels_last() -> Chain:
    blocks, x, y, loss = conv_batch_norm()
    for block in blocks:
        block.to(memory_format=torch.channels_last)
    return blocks, x.to(memory_format=torch.channels_last), y, loss


class _Down(nn.Module):
    """(h, *skips) -> (pooled, *skips, h): a U-Net's way down."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, padding=1)

    def forward(self, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, *skips = state
        h = F.silu(self.conv(h))
        return (F.avg_pool2d(h, 2), *skips, h)


class _Up(nn.Module):
    """(h, *skips, last) -> (joined, *skips): and its way up."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, padding=1)

    def forward(self, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, *skips, last = state
        h = torch.cat([F.interpolate(h, scale_factor=2.0), last], dim=1)
        return (F.silu(self.conv(h)), *skips)


def u_net() -> Chain:
    class Start(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (x,)

    class End(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 1, 1)

        def forward(self, state: tuple[Tensor]) -> Tensor:
            return self.conv(state[0])

    blocks = [Start(), _Down(1, 4), _Down(4, 6), _Up(6 + 6, 6), _Up(6 + 4, 4), End()]
    return blocks, torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8), mean_square


# ---------------------------------------------------------------------------------------------------- skips, states
def dense_skips() -> Chain:
    """One early output read by seven later blocks: the order of eight summands is visible in the last bit."""

    class Open(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 10)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.linear(x))
            return h, h

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.gate = nn.Linear(10, 10), nn.Linear(10, 10)

        def forward(self, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            h, skip = state
            return torch.tanh(self.linear(h)) + 0.3 * torch.sigmoid(self.gate(skip)), skip

    class Close(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(10, 3)

        def forward(self, state: tuple[Tensor, Tensor]) -> Tensor:
            return self.linear(state[0])

    return [Open(), *(Reader() for _ in range(7)), Close()], torch.randn(6, 6), torch.randn(6, 3), mean_square


def dict_state() -> Chain:
    class Encode(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position, self.picture = nn.Linear(3, 8), nn.Linear(5, 8)

        def forward(self, state: dict[str, Tensor]) -> dict[str, Any]:
            codes = {"position": self.position(state["position"]), "picture": self.picture(state["picture"])}
            return {"codes": codes, "time": state["time"]}

    class Join(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 8)

        def forward(self, state: dict[str, Any]) -> dict[str, Any]:
            both = torch.cat([state["codes"]["position"], state["codes"]["picture"]], dim=-1)
            return {"hidden": torch.tanh(self.linear(both)), "again": state["codes"]["picture"], "time": state["time"]}

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 2)

        def forward(self, state: dict[str, Any]) -> Tensor:
            return self.linear(state["hidden"] + state["again"]) * state["time"].unsqueeze(-1)

    x = {"position": torch.randn(5, 3), "picture": torch.randn(5, 5), "time": torch.arange(5)}
    return [Encode(), Join(), Head()], x, torch.randn(5, 2), sum_square


def tensordict_state() -> Chain:
    """The modules of a `TensorDictSequential`: each writes its outputs into the state that it was given."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    model = TensorDictSequential(
        TensorDictModule(nn.Linear(4, 8), in_keys=["observation"], out_keys=["hidden"]),
        TensorDictModule(nn.Tanh(), in_keys=["hidden"], out_keys=["hidden"]),
        TensorDictModule(nn.Linear(8, 2), in_keys=["hidden"], out_keys=[("actor", "action")]),
        TensorDictModule(nn.Linear(8, 1), in_keys=["hidden"], out_keys=[("critic", "value")]),
    )
    x = TensorDict({"observation": torch.randn(5, 4), "index": torch.arange(5)}, batch_size=[5])

    def losses(state: Any, y: Tensor) -> Any:
        actor = (state["actor", "action"] - y).square().mean()
        critic = (state["critic", "value"].squeeze(-1) - state["index"]).square().sum()
        return TensorDict({"actor": actor, "critic": {"value": critic}, "steps": state["index"].max()}, batch_size=[])

    return list(model.module), x, torch.randn(5, 2), losses


def integer_outputs() -> Chain:
    """Token ids, a mask and a plain number travel beside the floating-point part."""

    class Embed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 8, padding_idx=0)

        def forward(self, ids: Tensor) -> tuple[Any, ...]:
            return self.table(ids), ids, ids != 0, 0.5

    class Mix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
            h, ids, mask, scale = state
            h = h + scale * torch.tanh(self.linear(h)) * mask.unsqueeze(-1)
            return h, ids + h.argmax(-1), mask, scale

    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 3)

        def forward(self, state: tuple[Any, ...]) -> Tensor:
            h, ids, mask, _ = state
            weight = (mask * (1 + ids % 3)).unsqueeze(-1)
            return self.linear((h * weight).sum(1) / weight.sum(1))

    ids = torch.randint(1, 11, (4, 5))
    ids[:, -1] = 0
    return [Embed(), Mix(), Mix(), Pool()], ids, torch.randint(0, 3, (4,)), class_mean


def none_cotangent() -> Chain:
    """Part of a boundary requires a gradient and is read by nobody: its cotangent is None."""

    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.lost = nn.Linear(6, 8), nn.Linear(6, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tanh(self.linear(x)), self.lost(x)

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 3)

        def forward(self, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return self.linear(state[0]), state[1] * 2

    return [Fork(), Narrow(), lambda state: state[0]], torch.randn(5, 6), torch.randn(5, 3), mean_square


def stop_gradient() -> Chain:
    """A frozen backbone by `detach`: no block before it gets a gradient, though its parameters require one."""
    blocks = [nn.Linear(6, 8), nn.Tanh(), lambda h: h.detach(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)]
    return blocks, torch.randn(5, 6), torch.randn(5, 3), mean_square


def odd_strides() -> Chain:
    """Boundaries that are expanded, transposed, sliced: a cotangent may come back in another layout."""

    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).unsqueeze(1).expand(-1, 3, -1)

    blocks = [
        Spread(),
        lambda h: h.transpose(0, 2),
        nn.Linear(4, 5),
        lambda h: h[::2, :, 1:].permute(2, 1, 0),
        nn.Linear(4, 3),
    ]
    return blocks, torch.randn(4, 6), torch.randn(4, 3, 3), mean_square


# ---------------------------------------------------------------------------------------------------- shared weights
class _Embed(nn.Module):
    """Token ids [B, T] -> embeddings [B, T, C]."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids)


class _TiedHead(nn.Module):
    """Embeddings [B, T, C] -> logits [B, T, vocabulary], by the embedding's own weight."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(h, self.weight)


def tied_embeddings() -> Chain:
    table = nn.Embedding(13, 8)
    middle = [nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)]
    ids, y = torch.randint(0, 13, (3, 5)), torch.randint(0, 13, (3, 5))
    return [_Embed(table), *middle, _TiedHead(table.weight)], ids, y, class_mean


def thrice_shared() -> Chain:
    """One weight in three blocks, twice inside the middle one."""

    class Use(nn.Module):
        def __init__(self, shared: nn.Linear, times: int) -> None:
            super().__init__()
            self.shared, self.times, self.own = shared, times, nn.Linear(8, 8)

        def forward(self, h: Tensor) -> Tensor:
            for _ in range(self.times):
                h = torch.tanh(self.shared(h))
            return self.own(h)

    shared = nn.Linear(8, 8)
    blocks = [nn.Linear(6, 8), Use(shared, 1), Use(shared, 2), nn.Tanh(), Use(shared, 1), nn.Linear(8, 3)]
    return blocks, torch.randn(6, 6), torch.randn(6, 3), mean_square


def same_block_thrice() -> Chain:
    """The same module object at three places in the chain."""
    step = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return [nn.Linear(6, 8), step, step, step, nn.Linear(8, 3)], torch.randn(6, 6), torch.randn(6, 3), sum_square


def lora() -> Chain:
    """A frozen embedding under adapters: the first boundaries carry nothing that requires a gradient."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(8, 8).requires_grad_(False)
            self.down, self.up = nn.Parameter(torch.randn(2, 8) / 3), nn.Parameter(torch.randn(8, 2) / 3)

        def forward(self, h: Tensor) -> Tensor:
            return h + torch.tanh(self.base(h) + h @ self.down.T @ self.up.T)

    table = nn.Embedding(13, 8).requires_grad_(False)
    blocks = [_Embed(table), nn.LayerNorm(8).requires_grad_(False), Adapted(), Adapted(), nn.Linear(8, 13)]
    return blocks, torch.randint(0, 13, (3, 5)), torch.randint(0, 13, (3, 5)), class_mean


# ---------------------------------------------------------------------------------------------------- attention, time
class _Attention(nn.Module):
    """Pre-norm self-attention with a residual, [B, T, C] -> [B, T, C]."""

    def __init__(self, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        n = self.norm(h)
        return h + self.attention(n, n, n, need_weights=False)[0]


def attention() -> Chain:
    return (
        [nn.Linear(6, 8), _Attention(), _Attention(), nn.Linear(8, 3)],
        torch.randn(2, 5, 6),
        torch.randn(2, 5, 3),
        (mean_square),
    )


def transformer_layer() -> Chain:
    """In `eval` torch's own layer takes a fused path where gradients are off: other bits than with them on."""
    layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True) for _ in range(2)]
    return [nn.Linear(6, 8), *layers, nn.Linear(8, 3)], torch.randn(2, 5, 6), torch.randn(2, 5, 3), mean_square


def dropout() -> Chain:
    blocks = [nn.Linear(6, 12), nn.Dropout(0.3), nn.ReLU(), nn.Linear(12, 12), nn.Dropout1d(0.5), nn.Linear(12, 3)]
    return blocks, torch.randn(8, 6), torch.randn(8, 3), mean_square


def lstm() -> Chain:
    recurrent = nn.LSTM(4, 6, num_layers=2, batch_first=True)
    head = nn.Linear(6, 2)

    def last(state: tuple[Tensor, tuple[Tensor, Tensor]]) -> Tensor:
        output, (hidden, cell) = state
        return head(output[:, -1] + hidden[0] * torch.tanh(cell[1]))

    return [nn.Linear(3, 4), recurrent, last], torch.randn(3, 5, 3), torch.randn(3, 2), mean_square


def gru() -> Chain:
    class Outputs(nn.Module):
        def forward(self, state: tuple[Tensor, Tensor]) -> Tensor:
            return state[0]

    first, second = nn.GRU(4, 6, batch_first=True), nn.GRU(6, 6, batch_first=True, dropout=0.0)
    return (
        [nn.Linear(3, 4), first, Outputs(), second, Outputs(), nn.Linear(6, 2)],
        torch.randn(3, 5, 3),
        (torch.randn(3, 5, 2)),
        mean_square,
    )


# ---------------------------------------------------------------------------------------------------- in place
def inplace_relu() -> Chain:
    blocks = [nn.Linear(6, 12), nn.ReLU(inplace=True), nn.Linear(12, 12), nn.ReLU(inplace=True), nn.Linear(12, 3)]
    return blocks, torch.randn(8, 6), torch.randn(8, 3), mean_square


def inplace_conv() -> Chain:
    """The write is the first thing of a block whose input comes from a convolution."""
    blocks = [
        nn.Conv2d(2, 4, 3),
        nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3)),
        nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    ]
    return blocks, torch.randn(4, 2, 8, 8), torch.randint(0, 3, (4,)), class_mean


def inplace_state() -> Chain:
    """A skip that a later block writes to, and a container that it changes."""

    class Open(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.skip = nn.Linear(6, 8), nn.Linear(6, 8)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"h": self.linear(x), "skip": self.skip(x)}

    class Add(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
            state["skip"].mul_(0.5).add_(self.linear(state["h"]))
            state["h"] = torch.tanh(state["skip"])
            return state

    return [Open(), Add(), Add(), lambda state: state["h"]], torch.randn(5, 6), torch.randn(5, 8), mean_square


# ---------------------------------------------------------------------------------------------------- functions
def functions() -> Chain:
    """A lambda, a partial, a closure over a module, a bound method."""
    inside, method = nn.Linear(12, 12), nn.Linear(12, 3)
    scale = nn.Parameter(torch.full((12,), 0.7))

    def closed(h: Tensor) -> Tensor:
        return torch.tanh(inside(h)) * scale

    blocks = [
        nn.Linear(6, 12),
        lambda h: h * 1.5,
        functools.partial(F.leaky_relu, negative_slope=0.2),
        closed,
        method.forward,
    ]
    return blocks, torch.randn(8, 6), torch.randn(8, 3), mean_square


class _Clamped(torch.autograd.Function):
    """``x clamp(-1, 1)`` forward, with a backward of its own that needs the input and a plain number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clamp(-limit, limit)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return d_out * (x.abs() <= ctx.limit), None


def custom_function() -> Chain:
    blocks = [nn.Linear(6, 8), lambda h: _Clamped.apply(h, 0.8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)]
    return blocks, torch.randn(6, 6), torch.randn(6, 3), mean_square


# ---------------------------------------------------------------------------------------------------- autocast
def autocast_mixed() -> Chain:
    """A block that leaves autocast for itself, and one that returns bf16 to a block that wants fp32."""

    class Full(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(12, 12)

        def forward(self, h: Tensor) -> Tensor:
            with torch.autocast(h.device.type, enabled=False):
                return torch.softmax(self.linear(h.float()), dim=-1)

    blocks = [nn.Linear(6, 12), nn.GELU(), Full(), nn.Linear(12, 12), nn.LayerNorm(12), nn.Linear(12, 4)]
    return blocks, torch.randn(8, 6), torch.randn(8, 4), (lambda state, y: F.mse_loss(state.float(), y))


def autocast_float_loss() -> Chain:
    return mlp(loss=lambda state, y: F.mse_loss(state.float(), y))


# ---------------------------------------------------------------------------------------------------- compiled
def compiled_mlp(*, backend: str) -> Chain:
    blocks = [nn.Sequential(nn.Linear(6, 12), nn.ReLU()), nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))]
    return (
        [torch.compile(block, backend=backend) for block in blocks],
        torch.randn(8, 6),
        torch.randn(8, 4),
        (mean_square),
    )


def compiled_conv(*, backend: str) -> Chain:
    blocks = [
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    ]
    return (
        [torch.compile(block, backend=backend) for block in blocks],
        torch.randn(4, 2, 8, 8),
        (torch.randint(0, 3, (4,))),
        class_mean,
    )


# ---------------------------------------------------------------------------------------------------- not replayable
def numpy_noise() -> Chain:
    """Noise from numpy's stream: a second run of the block draws on."""

    def noise(h: Tensor) -> Tensor:
        return h + torch.from_numpy(np.random.standard_normal(tuple(h.shape)).astype(np.float32)).to(h.device)

    return [nn.Linear(6, 8), noise, nn.Tanh(), nn.Linear(8, 3)], torch.randn(5, 6), torch.randn(5, 3), mean_square


def python_draw() -> Chain:
    """Stochastic depth by Python's `random`."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, h: Tensor) -> Tensor:
            return h + random.random() * torch.tanh(self.linear(h))

    return [nn.Linear(6, 8), Scaled(), Scaled(), nn.Linear(8, 3)], torch.randn(5, 6), torch.randn(5, 3), mean_square


def python_counter() -> Chain:
    """Temperature that falls with each call, counted in a plain attribute."""

    class Anneal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, h: Tensor) -> Tensor:
            self.calls += 1
            return h / (1.0 + 0.5 * self.calls)

    return [nn.Linear(6, 8), Anneal(), nn.Tanh(), nn.Linear(8, 3)], torch.randn(5, 6), torch.randn(5, 3), mean_square


def own_generator() -> Chain:
    """Noise from a generator that only the block knows."""

    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(int(torch.randint(0, 1000, ())))

        def forward(self, h: Tensor) -> Tensor:
            return h + torch.randn(h.shape, generator=self.generator).to(h.device)

    return [nn.Linear(6, 8), Noise(), nn.Tanh(), nn.Linear(8, 3)], torch.randn(5, 6), torch.randn(5, 3), mean_square
