"""What exactness costs: the loader against torch's own, learnability in seconds, leaks as numbers.

python benchmarks/data.py [--samples 20000] [--rounds 5]

The loaders take turns; of each, the fastest round counts, in microseconds a sample. One thread, CPU. Without workers
CPU seconds are counted, which other programs disturb less; with workers wall seconds, since that is what they are for.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

from gradledger.data.leaks import blocks, burst_test, group_control
from gradledger.data.learnability import label_conflicts, noise_floor
from gradledger.data.loader import Loader

BATCH = 64


class Pure:
    """A sample of 12 numbers, and 20 microseconds of arithmetic on it, as light real data sets have."""

    def __init__(self, samples: int) -> None:
        self.rows = torch.randn(samples, 12)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.rows[index] * 2).tanh()


class Noisy(Pure):
    """The same with noise from torch's global stream."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.rows[index] * 2 + 0.1 * torch.randn(12)).tanh()


class Given(Pure):
    """The same with noise from a generator that it is given."""

    def draw(self, index: int, rng: np.random.Generator) -> torch.Tensor:
        return (self.rows[index] * 2 + torch.from_numpy(0.1 * rng.standard_normal(12, dtype=np.float32))).tanh()


class Pictures(Pure):
    """Augmented pictures of 3 x 96 x 96, as heavy real data sets are."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.picture = torch.rand(3, 128, 128)

    def __getitem__(self, index: int) -> torch.Tensor:
        top, left = torch.randint(0, 32, (2,)).tolist()
        crop = self.picture[:, top : top + 96, left : left + 96]
        return (crop * (0.8 + 0.4 * torch.rand(3, 1, 1)) + 0.02 * torch.randn(3, 96, 96)).clamp(0, 1)


def seconds(make: Callable[[], Iterable[Any]], clock: Callable[[], float]) -> float:
    """Seconds to go once through what `make` returns."""
    batches = make()
    begin = clock()
    for _ in batches:
        pass
    return clock() - begin


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, batches of {BATCH}, fastest of {given.rounds} rounds, us a sample")
    print(f"{'data set':<34}{'workers':>8}{'torch':>9}{'Loader':>9}{'more':>8}{'ratio':>8}")
    for name, kind, randomness, share in (
        ("light, no randomness", Pure, "none", 1.0),
        ("light, global streams", Noisy, "global", 1.0),
        ("light, its own generator", Given, "generator", 1.0),
        ("pictures 3x96x96, global streams", Pictures, "global", 0.1),
    ):
        samples = int(given.samples * share)
        dataset = kind(samples)
        for workers in (0, 2):

            def stock(dataset: Any = dataset, workers: int = workers) -> Iterable[Any]:
                return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)

            def exact(dataset: Any = dataset, workers: int = workers, randomness: Any = randomness) -> Iterable[Any]:
                return Loader(dataset, batch_size=BATCH, rng_seed=0, randomness=randomness, num_workers=workers)

            # For the data set with a generator, torch's own loader runs it without noise: the least it could cost.
            clock = time.perf_counter if workers else time.process_time
            turns = [(seconds(stock, clock), seconds(exact, clock)) for _ in range(given.rounds)]
            plain, mine = (1e6 * min(turn[at] for turn in turns) / samples for at in (0, 1))
            print(f"{name:<34}{workers:>8}{plain:>9.1f}{mine:>9.1f}{mine - plain:>+8.1f}{mine / plain:>7.2f}x")
    learn()
    leak()


def learn() -> None:
    """Floors of the two arms, with seconds for 8,000 points."""
    rng = np.random.default_rng(0)
    q = np.stack([rng.uniform(-np.pi, np.pi, 8000), *rng.uniform(0.15, np.pi - 0.15, (2, 8000))], axis=1)
    a = np.cumsum(q, axis=1)
    planar = np.stack([np.cos(a).sum(1), np.sin(a).sum(1), a[:, 2]], axis=1)
    q6 = rng.uniform(-np.pi, np.pi, (8000, 6))
    a6 = np.cumsum(q6[:, :3], axis=1)
    z = q6[:, 3:].sum(axis=1)
    xy = np.stack([np.cos(a6).sum(1), np.sin(a6).sum(1)], axis=1)
    print("\nlearnability, 8,000 points")
    for name, pose, joints in (
        ("planar arm", planar, q),
        ("six joints, sum as an orientation", np.column_stack([xy, np.angle(np.exp(1j * z))]), q6),
        ("six joints, sum as a height", np.column_stack([xy, z]), q6),
    ):
        begin = time.perf_counter()
        floor = noise_floor(pose, joints)
        print(f"{name:<36} floor/variance {floor.ratio:.4f}, {time.perf_counter() - begin:.3f} s")
    begin = time.perf_counter()
    label_conflicts(planar, np.arange(8000) % 5)
    print(f"{'label conflicts':<36} {time.perf_counter() - begin:.3f} s")


def leak() -> None:
    """scikit-learn's digits."""
    digits, digit = load_digits(return_X_y=True)
    print("\nscikit-learn's digits")
    print(burst_test(digits, standardise=False, windows=[130]))
    print(group_control(digits, digit, blocks(len(digits), 130), standardise=False))


if __name__ == "__main__":
    main()
