"""A sweep and the plain step side by side on one model: the allocator's peak and the seconds of both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from gradledger.core.errors import SweepError
from gradledger.sweep._block import Blocks
from gradledger.sweep._memory import peak_of
from gradledger.sweep._seed import roots_and_seeds
from gradledger.sweep._sweep import Sweep
from gradledger.sweep._verify import _fresh


@dataclass(frozen=True, slots=True)
class Measured:
    """What one step (forward, loss and backward, no optimizer) needed both ways.

    Attributes:
        peak, plain_peak: highest allocated bytes above the level at the start of the step, the gradients included,
            which it fills from None; batch, parameters and buffers are there before and do not count.
        times, plain_times: seconds of each repeat, taken in turns.
    """

    peak: int
    plain_peak: int
    times: tuple[float, ...]
    plain_times: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Median of the sweep's steps."""
        return median(self.times)

    @property
    def plain_seconds(self) -> float:
        """Median of the plain steps."""
        return median(self.plain_times)


def measure(sweep: Sweep, x: Any, y: Any, *, repeats: int | None = None) -> Measured:
    """Measure a sweep and the plain step on the sweep's own model.

    Buffers and random streams go on, and `.grad` is None on every parameter afterwards: meant for a model that is
    built for the measurement.

    Args:
        sweep: the chain with its plan.
        x, y: a batch.
        repeats: how often each way is timed; None: as often as fits into about three seconds, 3 to 25 times.

    Raises:
        whatever the model raises; MemoryWatchError where the device has no allocator that can be watched.
    """
    blocks = sweep.chain.blocks
    device = next((t.device for t in _tensors(blocks, x)), torch.device("cpu"))

    def explicit(data: Any) -> None:
        sweep.backward(data, y)

    def plain(data: Any) -> None:
        state = data
        for block in blocks[:-1]:
            state = block.call(state)
        roots, seeds = roots_and_seeds(blocks[-1].call(state, y))
        del state
        torch.autograd.backward(roots, seeds)

    def once(way: Any) -> float:
        data = _ready(blocks, x)
        _wait(device)
        since = time.perf_counter()
        way(data)
        _wait(device)
        return time.perf_counter() - since

    def peak(way: Any) -> int:
        data = _ready(blocks, x)
        return peak_of(lambda: way(data), device).bytes

    for way in (explicit, plain, explicit, plain):  # the first two steps of a sweep look at what the blocks do
        taken = once(way)
    peaks = peak(explicit), peak(plain)
    if repeats is None:
        repeats = max(3, min(25, int(1.5 / max(taken, 1e-6))))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        times[0].append(once(explicit))
        times[1].append(once(plain))
    _ready(blocks, None)
    return Measured(*peaks, tuple(times[0]), tuple(times[1]))


def environment() -> dict[str, Any]:
    """What figures depend on besides the model."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads()}


def check_places(where: dict[str, list[str]]) -> None:
    """Refuse a model or a batch without values; `where` is what `places` returned.

    Raises SweepError for a tensor on the meta device, on which nothing is computed.
    """
    for what, devices in where.items():
        if "meta" in devices:
            raise SweepError(
                got=f"{what} on the meta device",
                wanted="tensors that hold values: a proof computes",
                where="the model and its batch",
                next_step="build it on cpu or cuda: model.to_empty(device='cpu') and initialise it, torch.randn(...)",
            )


def places(blocks: Blocks, x: Any, y: Any) -> dict[str, list[str]]:
    """On which devices the parameters and buffers, x and y lie; what holds no tensor is left out."""
    found = {"the model": _tensors(blocks, None), "x": _leaves(x), "y": _leaves(y)}
    named = {what: sorted({str(t.device) for t in tensors}) for what, tensors in found.items()}
    return {what: where for what, where in named.items() if where}


def _leaves(value: Any) -> Iterator[Tensor]:
    if hasattr(value, "to_dict") and not isinstance(value, Tensor):
        value = value.to_dict()
    yield from (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def _tensors(blocks: Blocks, x: Any) -> Iterator[Tensor]:
    for block in blocks:
        yield from block.parameters()
        yield from (buffer for _, _, buffer in block.buffers())
    yield from _leaves(x)


def _ready(blocks: Blocks, x: Any) -> Any:
    """A fresh copy of the batch, and no gradient anywhere."""
    for block in blocks:
        for parameter in block.parameters():
            parameter.grad = None
    return None if x is None else _fresh(x)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
