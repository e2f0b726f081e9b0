"""A data set whose every sample is a function of (rng_seed, epoch, index), whatever process fetches it."""

from __future__ import annotations

import random
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset

from gradledger.data import philox
from gradledger.data.groups import content_hash

Randomness = Literal["none", "global", "generator"]
Ticket = tuple[int, int]


class Drawn(Protocol):
    """A data set that takes its random numbers from the generator it is given."""

    def __len__(self) -> int: ...

    def draw(self, index: int, rng: np.random.Generator) -> Any:
        """One sample; random numbers come from `rng` alone."""
        ...


class Sampled(Dataset[Any]):
    """Fetches by ticket (epoch, index), which the sampler sends, so that persistent workers follow the epoch too.

    With "generator", `dataset.draw(index, rng)` gets a generator of its own. With "global", the global streams of
    `random`, `numpy.random` and torch (CPU) are set before each `dataset[index]` and put back after the batch: nothing
    outside sees that they were used. With "none", `dataset[index]` is called as it is.
    """

    def __init__(self, dataset: Any, rng_seed: int, randomness: Randomness) -> None:
        self.dataset, self.rng_seed, self.randomness = dataset, rng_seed, randomness

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, ticket: Ticket) -> Any:
        return self.__getitems__([ticket])[0]

    def __getitems__(self, tickets: list[Ticket]) -> list[Any]:
        """The samples of a batch: DataLoader's fetchers ask for whole batches."""
        if self.randomness == "none":
            return [self.dataset[index] for _, index in tickets]
        if self.randomness == "generator":
            return [self.dataset.draw(index, philox.generator(self.rng_seed, epoch, index)) for epoch, index in tickets]
        words = philox.words(self.rng_seed, tickets)
        with KeptStreams():
            return [self._seeded(index, four) for (_, index), four in zip(tickets, words, strict=True)]

    def _seeded(self, index: int, words: list[int]) -> Any:
        python, *numpy, torch_ = words
        random.seed(python)
        # Two words: 32 bits alone would give two of a hundred thousand samples the same numbers.
        np.random.seed([word % 2**32 for word in numpy])
        torch.default_generator.manual_seed(torch_ % 2**63)
        return self.dataset[index]


class KeptStreams:
    """The three global streams are as before when the block ends, whatever happens in it.

    torch's CUDA streams are left alone: a data set that draws on a device is not exact, see `docs/data.md`.
    """

    def __enter__(self) -> None:
        self._before = (random.getstate(), np.random.get_state(legacy=True), torch.default_generator.get_state())

    def __exit__(self, *_: object) -> None:
        python, numpy, torch_ = self._before
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(torch_)


def unrepeatable(
    dataset: Any, randomness: Randomness = "global", *, indices: list[int] | None = None, rng_seed: int = 0
) -> list[str]:
    """Samples that are no function of their ticket, each with what is wrong: [] for a data set that can be exact.

    Each sample is fetched twice under one ticket, with another one and a harmless change in between: what comes out
    different uses hidden randomness (the clock, `os.urandom`, a generator kept from call to call), or the first fetch
    changed what the data set stores.

    Args:
        indices: which ones; eight spread over the data set when not given.
    """
    count = len(dataset)
    asked = indices if indices is not None else sorted({round(at) for at in np.linspace(0, count - 1, min(8, count))})
    tickets = Sampled(dataset, rng_seed, randomness)
    found = []
    for index in asked:
        first = tickets[0, index]
        kept = content_hash(first)
        tickets[1, index]
        second = content_hash(tickets[0, index])
        if content_hash(first) != kept:
            found.append(f"sample {index}: a later fetch changed a sample that was handed out: copy it first")
        if second != kept:
            found.append(
                f"sample {index}: fetched twice under one ticket it differs: randomness that no seed reaches, or an "
                f"item that was changed in place"
            )
    return found
