"""The nets of seal_scout: a small convolutional one and a dense one, between the same scaling of input and output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["conv", "mlp"]
Light = Literal["recorded", "normalised"]
CHANNELS, WIDTH = (16, 24, 32), 32
KERNELS, STRIDE = (5, 3, 3), 2


@dataclass(frozen=True)
class Scaling:
    """Fitted on the training side. mean, std: per channel of the input; scale, middle: of the label, in its unit."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    middle: float
    scale: float


class Scout(nn.Module):
    """Crops to offsets: [B, 3, H, W] floats in [0, 1] -> [B, 2]: offset and its spread, in the unit of the label.

    light: "normalised" divides each crop by its own mean first, so that no exposure reaches the net; "recorded" does
    not, and the net sees how bright the lamp was.
    """

    def __init__(self, kind: Kind, size: tuple[int, int], scaling: Scaling, light: Light) -> None:
        super().__init__()
        self.net = convolutional(size) if kind == "conv" else dense(size)
        self.light = light
        self.mean: Tensor
        self.std: Tensor
        self.label: Tensor
        self.register_buffer("mean", torch.tensor(scaling.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(scaling.std)[:, None, None])
        self.register_buffer("label", torch.tensor([scaling.middle, scaling.scale]))

    def forward(self, image: Tensor) -> Tensor:
        """[B, 2]: column 0 the offset, column 1 the standard deviation that the net expects of its error."""
        said: Tensor = self.net((exposed(image, self.light) - self.mean) / self.std)
        middle, scale = self.label
        spread = said[:, 1].clamp(-5.0, 2.0).exp()  # from a thousandth of the labels' spread to seven times it
        return torch.stack([said[:, 0] * scale + middle, spread * scale], dim=1)


def exposed(image: Tensor, light: Light) -> Tensor:
    """What reaches the scaling: the crop, or the crop over its own mean grey level."""
    return image if light == "recorded" else image / image.mean(dim=(1, 2, 3), keepdim=True).clamp_min(1e-3)


def convolutional(size: tuple[int, int]) -> nn.Sequential:
    """Three layers of stride 2 and a dense head, which keeps where an edge was."""
    layers: list[nn.Module] = []
    before, (height, width) = 3, size
    for channels, kernel in zip(CHANNELS, KERNELS, strict=True):
        convolution = nn.Conv2d(before, channels, kernel, stride=STRIDE, padding=kernel // 2, bias=False)
        layers.append(nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU()))
        before, height, width = channels, -(-height // STRIDE), -(-width // STRIDE)
    head = nn.Sequential(nn.Flatten(), nn.Linear(before * height * width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    return nn.Sequential(*layers, head)


def dense(size: tuple[int, int]) -> nn.Sequential:
    """Two hidden layers over all pixels."""
    inputs = 3 * size[0] * size[1]
    return nn.Sequential(
        nn.Flatten(),
        nn.Sequential(nn.Linear(inputs, 2 * WIDTH), nn.ReLU()),
        nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU()),
        nn.Linear(WIDTH, 2),
    )


def loss_of(said: Tensor, offset: Tensor, scale: Tensor) -> Tensor:
    """Negative log-likelihood of a normal, the mean over B, each sample weighted by its own spread: so that the net
    does not stop learning where it says that it does not know.

    Args:
        said: [B, 2] of `Scout`. offset: [B, 1]. scale: of the label; the loss has no unit.

    Reference: Seitzer and others: On the pitfalls of heteroscedastic uncertainty estimation, 2022 (beta 0.5).
    """
    spread = said[:, 1:] / scale
    away = (said[:, :1] - offset) / scale
    return (spread.detach() * (0.5 * (away / spread) ** 2 + spread.log())).mean()


def receptive_field(kernels: Sequence[int] = KERNELS, stride: int = STRIDE) -> int:
    """Pixels along an axis that one unit of the last convolution sees.

    Each layer widens it by (kernel - 1) times the strides of the layers before.

    Example:
        >>> receptive_field([5, 3, 3], 2)
        17
    """
    seen, jump = 1, 1
    for kernel in kernels:
        seen += (kernel - 1) * jump
        jump *= stride
    return seen


def parameters(net: nn.Module) -> int:
    """How many numbers training moves."""
    return sum(one.numel() for one in net.parameters() if one.requires_grad)
