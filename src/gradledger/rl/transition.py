"""What travels between environment, replay and update: one step of all lanes, a finished episode, a batch.

`done` does not appear here: an episode that *terminated* has no future, an episode that was *truncated* was only left
by us, and the two differ in the value of what follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradledger.rl.augment import random_shift


@dataclass(frozen=True)
class Episode:
    """One episode that is over.

    episode_return: sum of the raw rewards, never clipped. length: steps of the agent. truncated: the time limit
    ended it.
    """

    lane: int
    episode_return: float
    length: int
    truncated: bool


@dataclass(frozen=True)
class Step:
    """What one step of all E lanes brought. O stands for the axes of one observation.

    next_frames: (E, *O) what each lane shows after the step; after the end of an episode its real last frame.
    rewards: (E,) float32, raw. terminated, truncated, life_lost: (E,) bool. valid: (E,) bool; False marks the padding
    step that follows the end of an episode: its action did nothing, it paid nothing, it belongs to no episode.
    starts: (E,) bool, whether `next_frames` is the first frame of an episode. episodes: those that ended in this step.
    """

    next_frames: NDArray[Any]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    life_lost: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    starts: NDArray[np.bool_]
    episodes: tuple[Episode, ...]


@dataclass(frozen=True)
class Batch:
    """B transitions (s, a, R, s') with windows of up to n steps. S is the number of stacked frames.

    state, next_state: (B, S, *O) of the replay's dtype; without stacking (B, *O). action: (B,) int64.
    reward: (B,) float32, the discounted sum over the window. discount: (B,) float32, what the value of `next_state` is
    multiplied with: 0 after a termination, else gamma to the power of the window's true length.
    length: (B,) int64 steps in the window, 1..n. terminated, truncated: (B,) bool, how the window ended, if by an end.
    slot: (B,) int64, by which the replay knows the transition again. weight: (B,) float32 importance weight of its
    loss, 1 where draws are uniform.
    """

    state: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    next_state: torch.Tensor
    discount: torch.Tensor
    length: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    slot: torch.Tensor
    weight: torch.Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`."""
        return Batch(**{name: value.to(device) for name, value in vars(self).items()})

    def shifted(self, most: int, rng: np.random.Generator) -> Batch:
        """The same transitions, each of their 2 B states moved by itself, see `random_shift`."""
        moved = {name: random_shift(getattr(self, name), most, rng) for name in ("state", "next_state")}
        return replace(self, **moved)
