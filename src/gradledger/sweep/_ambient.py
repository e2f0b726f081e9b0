"""What surrounds a run without being its argument: autocast and grad mode, set alike for a run and its repetition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


class Ambient:
    """Autocast as it stood when the forward pass began, per kind of device."""

    __slots__ = ("autocast",)

    def __init__(self) -> None:
        kinds = ["cpu"]
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if accelerator is not None and accelerator.type not in kinds:
            kinds.append(accelerator.type)
        self.autocast = tuple(
            (kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)
        )

    @contextmanager
    def forward(self) -> Iterator[None]:
        """As it was, with the cache of cast weights off.

        A cast that two blocks share would tie their local graphs together; and a cast cached while nothing is recorded
        has no gradient at all (torch/amp/autocast_mode.py caches by grad mode of the first use).
        """
        with ExitStack() as stack:
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
            yield

    @contextmanager
    def reverse(self) -> Iterator[None]:
        """No autocast: as a backward pass is meant to run."""
        with ExitStack() as stack:
            for kind, _ in self.autocast:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield
