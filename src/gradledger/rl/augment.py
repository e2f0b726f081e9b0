"""Other views of the same states: what a network over frames learns from few steps holds wherever the picture lies."""

from __future__ import annotations

import numpy as np
import torch

from gradledger.rl.errors import ReplayError


def random_shift(states: torch.Tensor, most: int, rng: np.random.Generator) -> torch.Tensor:
    """(B, ..., H, W) -> the same shape: each state moved by up to `most` pixels up or down and left or right.

    All frames of a state move together, so that what moves in it keeps its speed; each state of the batch moves by
    itself. What comes into view repeats the edge. `most` 0 returns the states as they are and draws nothing; else
    exactly 2 B numbers are drawn.

    Raises:
        ReplayError: `most` is negative or reaches across the picture, or there are no two axes of a picture.

    Reference: Yarats, Kostrikov and Fergus, Image Augmentation Is All You Need, 2021 (4 pixels for 84 x 84).
    """
    if states.dim() < 3 or not 0 <= most < min(states.shape[-2:]):
        raise ReplayError(
            got=f"a shift of {most} for states of shape {tuple(states.shape)}",
            wanted="pictures (B, ..., H, W), and a shift from 0 to less than H and W",
            where="rl.augment.random_shift",
            next_step="pass 4 for frames of 84 x 84, and 0 for states that are no pictures",
        )
    if most == 0:
        return states
    height, width = states.shape[-2:]
    # Padded by hand: torch pads by repeating only in floating point, at several times the cost of the batch itself.
    wide = states.new_empty((*states.shape[:-2], height + 2 * most, width + 2 * most))
    wide[..., most:-most, most:-most] = states
    wide[..., :most, most:-most] = states[..., :1, :]
    wide[..., -most:, most:-most] = states[..., -1:, :]
    wide[..., :most] = wide[..., most : most + 1]
    wide[..., -most:] = wide[..., -most - 1 : -most]
    shifted = torch.empty_like(states)
    for index, (top, left) in enumerate(rng.integers(0, 2 * most + 1, size=(len(states), 2)).tolist()):
        shifted[index] = wide[index, ..., top : top + height, left : left + width]
    return shifted
