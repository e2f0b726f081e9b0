"""Wall seconds by part of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Wall seconds by part, the device's queue emptied at each border. `spent` goes into checkpoints."""

    def __init__(self, device: str) -> None:
        self.spent: dict[str, float] = {}
        self._device = torch.device(device)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        self.synchronise()
        began = time.perf_counter()
        yield
        self.synchronise()
        self.spent[part] = self.spent.get(part, 0.0) + time.perf_counter() - began

    def total(self) -> float:
        """Seconds of all parts together."""
        return sum(self.spent.values())

    def synchronise(self) -> None:
        """Wait for the device; the CPU is never behind."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()
