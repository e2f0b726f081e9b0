"""Stacks of frames: what the policy sees, and how they lie in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradledger.rl.stack import FrameStack, channels_last


def test_a_lane_that_starts_forgets_what_was_before() -> None:
    seen = FrameStack(np.full((2, 3), 1, dtype=np.uint8), stack=3)
    assert seen.array[:, :, 0].tolist() == [[0, 0, 1], [0, 0, 1]]
    seen.push(np.full((2, 3), 2, dtype=np.uint8), np.array([False, True]))
    assert seen.array[:, :, 0].tolist() == [[0, 1, 2], [0, 0, 2]]


@pytest.mark.parametrize("shape", [(3, 4, 84, 84), (1, 4, 5, 7), (2, 3, 6, 6), (2, 1, 6, 6), (0, 4, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_channels_come_last_as_torch_lays_them(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    frames = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = frames.contiguous(memory_format=torch.channels_last)
    laid = channels_last(frames)
    assert laid.dtype == dtype
    assert torch.equal(laid, wanted)
    assert laid.is_contiguous(memory_format=torch.channels_last)
    assert shape[0] == 0 or laid.stride() == wanted.stride()


def test_frames_that_lie_otherwise_are_laid_the_same() -> None:
    frames = torch.arange(256, dtype=torch.uint8).repeat(3).view(2, 4, 8, 12).flip(0).transpose(2, 3)
    laid = channels_last(frames)
    assert torch.equal(laid, frames)
    assert laid.is_contiguous(memory_format=torch.channels_last)
