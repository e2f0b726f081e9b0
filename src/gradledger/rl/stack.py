"""The stacked frames that a policy sees while it acts: the same stacks that the replay rebuilds later."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class FrameStack:
    """`array` is (E, S, *O), newest frame last, zeros before the start of an episode; (E, *O) where S is 1."""

    def __init__(self, first: NDArray[Any], *, stack: int) -> None:
        """Begin with the first frames (E, *O) of all lanes."""
        self._stack = stack
        self._frames = np.zeros((len(first), stack, *first.shape[1:]), dtype=first.dtype)
        self._frames[:, -1] = first

    @property
    def array(self) -> NDArray[Any]:
        """A view: the next `push` changes it."""
        return self._frames if self._stack > 1 else self._frames[:, 0]

    def push(self, frames: NDArray[Any], starts: NDArray[np.bool_]) -> None:
        """Shift by one and add `frames` (E, *O); lanes in `starts` (E,) forget what was before."""
        self._frames[:, :-1] = self._frames[:, 1:]
        if starts.any():
            self._frames[starts] = 0
        self._frames[:, -1] = frames

    def state(self) -> NDArray[Any]:
        """(E, S, *O), a copy."""
        return self._frames.copy()

    def load_state(self, frames: NDArray[Any]) -> None:
        """Take over what `state` returned."""
        self._frames[...] = frames


def channels_last(frames: torch.Tensor) -> torch.Tensor:
    """(B, S, H, W) -> the same with the frames of a pixel side by side in memory, as a convolution is fastest on.

    What `frames.contiguous(memory_format=torch.channels_last)` gives. Four frames of bytes in a processor's memory, the
    usual case, become the bytes of one integer a pixel, in less than half of the time.
    """
    whole = frames.dtype == torch.uint8 and frames.device.type == "cpu" and frames.is_contiguous()
    if not (whole and frames.dim() == 4 and frames.shape[1] == 4 and sys.byteorder == "little"):
        return frames.contiguous(memory_format=torch.channels_last)
    pixels = frames[:, 3].to(torch.int32)
    for earlier in (2, 1, 0):
        pixels <<= 8
        pixels |= frames[:, earlier]
    return pixels.view(torch.uint8).view(*pixels.shape, 4).permute(0, 3, 1, 2)
