"""Numbers below 1.2e-38: kept, or counted as 0, for as long as a run lasts.

Adam's moments of a weight that gets no gradient any more shrink by a tenth at each step and are denormal after some
800; there are more of them the longer a network learns. An operation on one takes a processor of Intel's a hundred
cycles and more, so that an update was 1.6 times as slow in a run as in a benchmark that begins afresh.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def flushes() -> bool:
    """Whether operations of this thread give 0 for a number that is denormal."""
    return bool(torch.tensor(1e-30) * 1e-10 == 0)


@contextmanager
def flushing(on: bool) -> Iterator[None]:
    """Count such numbers as 0, or keep them, on this thread and on those that torch starts from it; afterwards as
    before. Processors that cannot keep them as they are."""
    before = flushes()
    torch.set_flush_denormal(on)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
