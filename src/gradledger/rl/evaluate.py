"""Play whole episodes for a score, in lanes of their own, each lane a fixed number of episodes.

Taking the first N episodes that finish among parallel lanes favours short ones, and in most games short means bad
(or, in Pong, lost). So each lane plays its quota, and lanes that are done wait for the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.rl.env import Lanes
from gradledger.rl.errors import EnvError
from gradledger.rl.explore import epsilon_greedy
from gradledger.rl.stack import FrameStack
from gradledger.rl.transition import Episode


@dataclass(frozen=True)
class Evaluation:
    """What was played and under which settings.

    returns, lengths: one entry an episode, raw rewards, by lane and then by time. truncated: how many of the episodes
    the time limit ended. settings: of the environment. film: frames (T, *O) of lane 0's first episode, if asked for.
    """

    epsilon: float
    rng_seed: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    truncated: int
    settings: dict[str, Any] = field(repr=False)
    film: NDArray[Any] | None = field(default=None, repr=False, compare=False)

    @property
    def mean(self) -> float:
        """Mean return."""
        return statistics.fmean(self.returns)

    @property
    def deviation(self) -> float:
        """Standard deviation of the returns over the episodes of one network; over training seeds it is another."""
        return statistics.stdev(self.returns) if len(self.returns) > 1 else 0.0

    def record(self) -> dict[str, Any]:
        """All of it but the film, ready for JSON."""
        return {
            "episodes": len(self.returns),
            "mean": self.mean,
            "standard_deviation": self.deviation,
            "epsilon": self.epsilon,
            "rng_seed": self.rng_seed,
            "truncated": self.truncated,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "environment": self.settings,
        }


def evaluate(
    policy: Callable[[NDArray[Any]], NDArray[Any]],
    lanes: Lanes,
    *,
    episodes_per_lane: int,
    stack: int = 4,
    epsilon: float = 0.01,
    rng_seed: int = 0,
    film: bool = False,
) -> Evaluation:
    """Play `episodes_per_lane` episodes in each of the E lanes.

    Args:
        policy: maps stacked frames (E, S, *O) to greedy actions (E,).
        lanes: an environment that no training uses; it is reset here. A game that may never end needs `max_steps`.
        epsilon: probability of a random action; 0.001 to 0.05 is usual, and it belongs beside every score.
        rng_seed: of the random actions.

    Raises:
        EnvError: no episode is asked for, or epsilon is no probability.
    """
    if episodes_per_lane < 1 or not 0.0 <= epsilon <= 1.0:
        raise EnvError(
            got=f"episodes_per_lane={episodes_per_lane}, epsilon={epsilon}",
            wanted="at least one episode a lane and a probability",
            where="rl.evaluate.evaluate",
            next_step="ask for at least one episode",
        )
    rng = np.random.default_rng(rng_seed)
    seen = FrameStack(lanes.reset(), stack=stack)
    played: list[list[Episode]] = [[] for _ in range(lanes.simulator.lanes)]
    shots: list[NDArray[Any]] = []
    while any(len(mine) < episodes_per_lane for mine in played):
        if film and not played[0]:
            shots.append(np.array(lanes.frames[0]))
        greedy = policy(seen.array)
        step = lanes.step(epsilon_greedy(greedy, epsilon, lanes.simulator.actions, rng))
        seen.push(step.next_frames, step.starts)
        for episode in step.episodes:
            if len(played[episode.lane]) < episodes_per_lane:
                played[episode.lane].append(episode)
    counted = [episode for mine in played for episode in mine]
    return Evaluation(
        epsilon=epsilon,
        rng_seed=rng_seed,
        returns=tuple(episode.episode_return for episode in counted),
        lengths=tuple(episode.length for episode in counted),
        truncated=sum(episode.truncated for episode in counted),
        settings=lanes.settings,
        film=np.stack(shots) if shots else None,
    )
