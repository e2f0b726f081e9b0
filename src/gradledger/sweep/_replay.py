"""Running a block again exactly as it ran: its random state and the buffers it had found.

Buffers are swapped as objects and swapped back: a value that was saved for the reverse pass keeps its version, and a
statistic that counts (BatchNorm) counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class RandomState:
    """The state of torch's generators: CPU, the accelerators' and those handed in."""

    __slots__ = ("accelerators", "cpu", "own")

    def __init__(self, generators: Sequence[torch.Generator] = ()) -> None:
        self.cpu = torch.get_rng_state()
        self.accelerators = tuple((d, torch.cuda.get_rng_state(d)) for d in _devices())
        self.own = tuple((g, g.get_state()) for g in generators)

    def restore(self) -> None:
        """Put every generator back."""
        torch.set_rng_state(self.cpu)
        for device, state in self.accelerators:
            torch.cuda.set_rng_state(state, device)
        for generator, state in self.own:
            generator.set_state(state)

    def same(self, other: RandomState) -> bool:
        """Whether no generator has moved between the two."""
        return (
            torch.equal(self.cpu, other.cpu)
            and all(torch.equal(a, b) for (_, a), (_, b) in zip(self.accelerators, other.accelerators, strict=True))
            and all(torch.equal(a, b) for (_, a), (_, b) in zip(self.own, other.own, strict=True))
        )


def _devices() -> range:
    return range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)


Named = tuple[nn.Module, str]


class Found:
    """What one run of a block found: random state (if it draws) and the buffers that it is going to change."""

    __slots__ = ("buffers", "random")

    def __init__(self, buffers: Sequence[Named], generators: Sequence[torch.Generator] | None) -> None:
        """`generators` None: the block draws no random numbers."""
        self.random = None if generators is None else RandomState(generators)
        self.buffers: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        for module, name in buffers:
            buffer = module._buffers.get(name)
            if buffer is not None:
                self.buffers.append((module, name, buffer, buffer.clone()))

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within: the block runs as it did; after: random state and buffers are what they were before."""
        now = None if self.random is None else RandomState([g for g, _ in self.random.own])
        present = [(module, name, module._buffers.get(name)) for module, name, _, _ in self.buffers]
        try:
            if self.random is not None:
                self.random.restore()
            for module, name, _, value in self.buffers:
                module._buffers[name] = value.clone()
            yield
        finally:
            for module, name, buffer in present:
                module._buffers[name] = buffer
            if now is not None:
                now.restore()

    def put_back(self) -> None:
        """After a failed run: the buffers that were there, with the values they had."""
        with torch.no_grad():
            for module, name, buffer, value in self.buffers:
                buffer.copy_(value)
                module._buffers[name] = buffer
