"""Exploration: an epsilon that falls on a line, and random numbers that never depend on the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.rl.errors import EnvError


@dataclass(frozen=True)
class LinearSchedule:
    """From `first` at env_step 0 to `last` at env_step `steps`, and `last` from there on."""

    first: float = 1.0
    last: float = 0.02
    steps: int = 40_000

    def __post_init__(self) -> None:
        if not 0.0 <= self.last <= 1.0 or not 0.0 <= self.first <= 1.0 or self.steps < 1:
            raise EnvError(
                got=f"first={self.first}, last={self.last}, steps={self.steps}",
                wanted="probabilities in [0, 1] and at least one step",
                where="rl.explore.LinearSchedule",
                next_step="correct the schedule",
            )

    def at(self, env_step: int) -> float:
        """The value after `env_step` counted steps."""
        share = min(env_step / self.steps, 1.0)
        return self.first + share * (self.last - self.first)


def epsilon_greedy(greedy: NDArray[Any], epsilon: float, actions: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(E,) actions: each lane independently plays at random with probability `epsilon`, else its `greedy` one.

    Exactly 2 E numbers are drawn whatever comes out, so the stream's position is a function of the steps alone. A
    random action may be the greedy one.
    """
    chance = rng.random(len(greedy))
    random = rng.integers(0, actions, size=len(greedy))
    return np.where(chance < epsilon, random, greedy).astype(np.int64)


def random_actions(lanes: int, actions: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """What `epsilon_greedy` plays where epsilon is 1, from the same numbers, without a network."""
    return epsilon_greedy(np.zeros(lanes, dtype=np.int64), 1.0, actions, rng)
