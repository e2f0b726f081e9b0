"""Data sets for the loader: top-level classes, so that workers of every start method can have them."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch

COUNT = 23


class Numbers:
    """Pure: a function of the index."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, index * index])


class Globals(Numbers):
    """Draws from the three global streams, an unequal number of times, Gaussians included (their cache is state)."""

    def __getitem__(self, index: int) -> Any:
        draws = [random.random() for _ in range(index % 3)] + [random.gauss(0, 1)]
        noise = np.random.randn(1 + index % 2)
        return {"x": torch.randn(3), "noise": float(noise.sum()), "draws": sum(draws), "index": index}


class Drawing(Numbers):
    """Takes the generator it is given."""

    def draw(self, index: int, rng: np.random.Generator) -> Any:
        return {"x": torch.from_numpy(rng.normal(size=3)), "index": index, "flip": int(rng.integers(2))}


class Clocked(Numbers):
    """Randomness that no seed reaches."""

    def __getitem__(self, index: int) -> Any:
        return int.from_bytes(os.urandom(6), "big")


class InPlace(Numbers):
    """Hands out a view of what it stores, and scales it in place."""

    def __init__(self) -> None:
        self.rows = torch.ones(COUNT, 3)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index].mul_(1.5)


class Stateful(Numbers):
    """Keeps a generator from call to call."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return float(self.rng.normal())


class Trajectories(Numbers):
    """Of different lengths."""

    def __getitem__(self, index: int) -> Any:
        length = 1 + (index * 7) % 5
        steps = torch.arange(length, dtype=torch.float32)
        return {"obs": steps[:, None] + torch.tensor([0.0, 100.0]), "reward": steps, "episode": index}
