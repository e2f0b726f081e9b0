"""n-step windows: the discounted sum up to the end of an episode, and what its last value is discounted with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.rl.errors import ReplayError


@dataclass(frozen=True)
class Window:
    """The n-step view of B transitions; see `window`. All arrays are (B,)."""

    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    length: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


def window(
    rewards: NDArray[Any], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], *, gamma: float
) -> Window:
    """Fold n consecutive steps into one transition each; a window stops at the first end of an episode.

    Args:
        rewards: (B, n) rewards r_t, r_t+1, ... as they are to be summed.
        terminated, truncated: (B, n) bool, whether the episode ended with that step, and how.
        gamma: discount per step, in [0, 1].

    Returns:
        With k the true length (1..n): reward = sum over j < k of gamma^j r_t+j; discount = 0 when step k-1 terminated,
        else gamma^k, truncated or not. Where both flags are set the termination counts.

    Raises:
        ReplayError: the shapes differ, there is no step, or gamma is outside [0, 1].

    Example:
        >>> no = np.zeros((1, 3), dtype=bool)
        >>> window(np.ones((1, 3)), no, no, gamma=0.5).reward
        array([1.75], dtype=float32)

    Reference: Sutton and Barto, Reinforcement Learning, 2nd edition, section 7.1.
    """
    if rewards.ndim != 2 or rewards.shape[1] < 1 or not rewards.shape == terminated.shape == truncated.shape:
        raise ReplayError(
            got=f"rewards {rewards.shape}, terminated {terminated.shape}, truncated {truncated.shape}",
            wanted="three arrays of one shape (B, n) with n >= 1",
            where="rl.nstep.window",
            next_step="gather the same n steps of each transition for all three",
        )
    if not 0.0 <= gamma <= 1.0:
        raise ReplayError(
            got=f"gamma={gamma}",
            wanted="a discount in [0, 1]",
            where="rl.nstep.window",
            next_step="pass a discount per step, such as 0.99",
        )
    return _window(rewards, terminated, truncated, gamma)


def _window(rewards: NDArray[Any], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], gamma: float) -> Window:
    size, n = rewards.shape
    over = terminated | truncated
    ended = over.any(axis=1)
    length = np.where(ended, over.argmax(axis=1) + 1, n).astype(np.int64)
    powers = gamma ** np.arange(n + 1, dtype=np.float64)
    inside = np.arange(n) < length[:, None]
    # Masked by `where`, not by a product: a reward beyond the end may be anything, and nan * 0 is nan.
    summed = np.where(inside, rewards, 0.0) @ powers[:n]
    last = (np.arange(size), length - 1)
    stopped = terminated[last]
    return Window(
        reward=summed.astype(np.float32),
        discount=np.where(stopped, 0.0, powers[length]).astype(np.float32),
        length=length,
        terminated=stopped,
        truncated=truncated[last] & ~stopped,
    )
