"""Running a block again exactly as it ran: its random state and the buffers it had found.

Buffers are swapped as objects and swapped back: a value that was saved for the reverse pass keeps its version, and a
statistic that counts (BatchNorm) counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import is_lazy

from gradledger.core.errors import SweepError


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
    """What one run of a block found: random state (if it may draw) and the buffers that it may change."""

    __slots__ = ("buffers", "random")

    def __init__(self, buffers: Sequence[Named], generators: Sequence[torch.Generator] | None) -> None:
        """`generators` None: the block draws no random numbers."""
        self.random = None if generators is None else RandomState(generators)
        self.buffers: list[tuple[nn.Module, str, Tensor | None, Tensor | None]] = []
        for module, name in buffers:
            buffer = module._buffers.get(name)
            if buffer is None or not is_lazy(buffer):
                self.buffers.append((module, name, buffer, None if buffer is None else buffer.clone()))

    def ran(self) -> None:
        """After the first run: a random state that has not moved need not be put in place again."""
        if self.random is not None and self.random.same(RandomState([g for g, _ in self.random.own])):
            self.random = None

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within: the block runs as it did; after: random state and buffers are what they were before."""
        now = None if self.random is None else RandomState([g for g, _ in self.random.own])
        present = [(module, name, module._buffers.get(name)) for module, name, _, _ in self.buffers]
        try:
            if self.random is not None:
                self.random.restore()
            for module, name, _, value in self.buffers:
                module._buffers[name] = None if value is None else value.clone()
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
                if buffer is not None and value is not None:
                    buffer.copy_(value)
                module._buffers[name] = buffer


SMALL = 1 << 14
"""Bytes of a buffer up to which it is noted whether or not a block was seen to change it."""


def is_small(named: Named) -> bool:
    """Whether the buffer there costs nothing to speak of to copy."""
    buffer = named[0]._buffers.get(named[1])
    return buffer is None or is_lazy(buffer) or buffer.numel() * buffer.element_size() <= SMALL


class Still:
    """Buffers too large to be copied for nothing, which a block was not seen to change."""

    def __init__(self, buffers: Sequence[Named]) -> None:
        self._there = [(m, n, m._buffers.get(n), version_of(m._buffers.get(n))) for m, n in buffers]

    def moved(self) -> list[Named]:
        """Those that are other objects now, or were written to."""
        return [
            (m, n)
            for m, n, buffer, version in self._there
            if m._buffers.get(n) is not buffer or version_of(buffer) != version
        ]


@contextmanager
def first_run(found: Found, still: Still, where: str, tell: Callable[[list[Named]], None]) -> Iterator[None]:
    """The run that later ones repeat: afterwards it is known whether it drew random numbers.

    `tell` is told of buffers that moved although no run had moved them before.

    Raises:
        SweepError: there are such buffers, whose values before this run nobody has.
    """
    yield
    found.ran()
    moved = still.moved()
    if moved:
        tell(moved)
        raise SweepError(
            got=f"buffer {moved[0][1]!r} of {type(moved[0][0]).__name__}, which changed for the first time",
            wanted="a buffer of this size to change from the first step on, so that its values before are kept",
            where=where,
            next_step="take the step again: from now on the buffer is kept (its module may have counted this batch)",
        )


def version_of(tensor: Tensor | None) -> int:
    """Moves with every write into the tensor."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version


def keeping_nothing() -> saved_tensors_hooks:
    """A context in which a run makes its graph and saves nothing for it: nobody will walk that graph."""
    return saved_tensors_hooks(_drop, _never)


def _drop(_tensor: Tensor) -> None:
    return None


def _never(_packed: None) -> Tensor:
    raise AssertionError("the graph of a run that keeps nothing was walked")
