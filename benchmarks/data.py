"""What exactness costs and what it is worth: the loader against others, learnability in seconds, leaks as numbers.

python benchmarks/data.py [--samples 20000] [--rounds 5] [--only cost|resume|learn|leak]

The loaders take turns; of each, the fastest round counts, in microseconds a sample. One thread, CPU. Without workers
CPU seconds are counted, which other programs disturb less; with workers wall seconds, since that is what they are for.

Resume: 40 samples in batches of 8, whose augmentation draws from torch's global stream, two epochs. Each run is stopped
after each of its first five batches and goes on in new objects, with another seed in the global stream. Against the run
that nobody stopped, of the same loader: in how many of the five cases the samples that follow are the same, in how many
also their augmentation, how many samples of the epoch come twice or not at all, and how many epochs come up empty.

torchdata's StatefulDataLoader takes part where it is installed (`pip install torchdata`, in an environment of its own).
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

from gradledger.data.leaks import blocks, burst_test, group_control
from gradledger.data.learnability import label_conflicts, noise_floor
from gradledger.data.loader import Loader

BATCH = 64
PEER = importlib.util.find_spec("torchdata") is not None


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
    gc.collect()  # what the one before left behind is not this one's cost
    batches = make()
    begin = clock()
    for _ in batches:
        pass
    return clock() - begin


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("cost", "resume", "learn", "leak"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "This DataLoader will create")
    parts: dict[str, Callable[[], None]] = {
        "cost": lambda: cost(given.samples, given.rounds),
        "resume": resume,
        "learn": learn,
        "leak": leak,
    }
    for name, part in parts.items():
        if given.only in (None, name):
            part()


def peer(dataset: Any, batch_size: int, workers: int) -> Any:
    """torchdata's loader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, batch_size, shuffle=True, num_workers=workers)


def cost(samples_: int, rounds: int) -> None:
    """Microseconds a sample."""
    print(f"torch {torch.__version__}, batches of {BATCH}, fastest of {rounds} rounds, us a sample")
    head = f"{'data set':<34}{'workers':>8}{'torch':>9}{'Loader':>9}{'more':>8}{'ratio':>8}"
    print(head + (f"{'Stateful':>10}{'ratio':>8}" if PEER else ""))
    for name, kind, randomness, share in (
        ("light, no randomness", Pure, "none", 1.0),
        ("light, global streams", Noisy, "global", 1.0),
        ("light, its own generator", Given, "generator", 1.0),
        ("pictures 3x96x96, global streams", Pictures, "global", 0.1),
    ):
        samples = int(samples_ * share)
        dataset = kind(samples)
        for workers in (0, 2):

            def stock(dataset: Any = dataset, workers: int = workers) -> Iterable[Any]:
                return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)

            def exact(dataset: Any = dataset, workers: int = workers, randomness: Any = randomness) -> Iterable[Any]:
                return Loader(dataset, batch_size=BATCH, rng_seed=0, randomness=randomness, num_workers=workers)

            def stateful(dataset: Any = dataset, workers: int = workers) -> Iterable[Any]:
                return peer(dataset, BATCH, workers)

            # For the data set with a generator, the others run it without noise: the least it could cost.
            clock = time.perf_counter if workers else time.process_time
            ways = (stock, exact, stateful) if PEER else (stock, exact)
            turns: dict[Any, list[float]] = {way: [] for way in ways}
            for turn in range(rounds):
                for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                    turns[way].append(seconds(way, clock))
            plain, mine, *theirs = (1e6 * min(turns[way]) / samples for way in ways)
            line = f"{name:<34}{workers:>8}{plain:>9.1f}{mine:>9.1f}{mine - plain:>+8.1f}{mine / plain:>7.2f}x"
            print(line + "".join(f"{one:>10.1f}{one / plain:>7.2f}x" for one in theirs), flush=True)


class Marked:
    """40 samples: their number, and an augmentation from torch's global stream."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.cat([torch.tensor([float(index)]), torch.randn(2)])


class Exact:
    """Ours: a position that any loader of the same order takes."""

    name = "Loader"

    def __init__(self, workers: int) -> None:
        self.loader = Loader(Marked(), batch_size=8, rng_seed=0, num_workers=workers)

    def epoch(self) -> Iterator[torch.Tensor]:
        yield from self.loader

    def state(self, batches: int) -> Any:
        return self.loader.state_dict()

    def go_on(self, state: Any) -> None:
        self.loader.load_state_dict(state)


class Skips:
    """torch's loader as it is commonly resumed: the global stream put back, and so many batches skipped."""

    name = "torch, restore and skip"

    def __init__(self, workers: int) -> None:
        self.loader, self.skip = DataLoader(Marked(), 8, shuffle=True, num_workers=workers), 0

    def epoch(self) -> Iterator[torch.Tensor]:
        skip, self.skip = self.skip, 0
        for number, batch in enumerate(self.loader):
            if number >= skip:
                yield batch

    def state(self, batches: int) -> Any:
        return torch.get_rng_state(), batches

    def go_on(self, state: Any) -> None:
        torch.set_rng_state(state[0])
        self.skip = state[1] % len(self.loader)


class Stateful:
    """torchdata's loader by its own state, and the global stream put back once its iterator has drawn its seed."""

    name = "torchdata StatefulDataLoader"

    def __init__(self, workers: int) -> None:
        self.loader, self.stream = peer(Marked(), 8, workers), None

    def epoch(self) -> Iterator[torch.Tensor]:
        batches = iter(self.loader)
        if self.stream is not None:
            torch.set_rng_state(self.stream)
            self.stream = None
        yield from batches

    def state(self, batches: int) -> Any:
        return self.loader.state_dict(), torch.get_rng_state()

    def go_on(self, state: Any) -> None:
        self.loader.load_state_dict(state[0])
        self.stream = state[1]


def resume() -> None:
    """Stopped after each batch of an epoch, against the run that nobody stopped."""
    print("\nresume after each of 5 batches, workers before and after; cases of 5, samples of 40 at worst")
    print(f"{'':<32}{'workers':>8}{'order':>7}{'augmented':>11}{'twice':>7}{'lost':>6}{'empty':>7}")
    for kind in (Exact, Skips, *((Stateful,) if PEER else ())):
        for before, after in ((0, 0), (1, 1), (2, 2), (4, 2), (2, 0)):
            order = augmented = twice = lost = empty = 0
            said = ""
            for position in range(1, 6):
                torch.manual_seed(1)
                alone = kind(before)
                wanted = [batch for _ in range(3) for batch in alone.epoch()]
                torch.manual_seed(1)
                stopped = kind(before)
                first = []
                for batch in stopped.epoch():
                    first.append(batch)
                    if len(first) == position:
                        state = stopped.state(position)
                        break
                torch.manual_seed(99)
                again = kind(after)
                try:
                    again.go_on(state)
                    epochs = [list(again.epoch()) for _ in range(2)]
                except Exception as error:
                    said = f"  refused: {type(error).__name__} {str(error)[:60]}"
                    break
                empty += sum(not epoch for epoch in epochs)
                got = torch.cat([batch for epoch in epochs for batch in epoch])
                same = torch.cat(wanted[position:])[: len(got)]
                order += bool(torch.equal(got[:, 0], same[:, 0]))
                augmented += bool(torch.equal(got, same))
                # After the last batch the epoch that goes on is the next one, as in the run that nobody stopped.
                rest = epochs[0] if position < 5 else []
                seen = Counter(int(one) for batch in (*first, *rest) for one in batch[:, 0])
                twice = max(twice, sum(count - 1 for count in seen.values()))
                lost = max(lost, 40 - len(seen))
            line = f"{kind.name:<32}{f'{before} > {after}':>8}"
            print(line + (said or f"{order:>7}{augmented:>11}{twice:>7}{lost:>6}{empty:>7}"), flush=True)


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
