"""Policies without a trained net: the scale on which a cloned one is read. And a net as a policy.

Each maps observations (E, 18) to actions (E, 6); all are played on the same episodes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradledger.recipes import _arm6_expert
from gradledger.recipes._arm6_demos import DATA_SEED, Demonstrations, made, seeds_of
from gradledger.recipes._arm6_env import JOINTS, Arm6Env
from gradledger.recipes._arm6_rollout import Policy, Rollouts, play

NONE, MEAN = "no action", "mean action of the training demonstrations"
LINE, NEAREST, EXPERT = "linear in the observation", "action of the nearest training frame", "the expert itself"
Actions = NDArray[np.float32]


def of_net(net: nn.Module) -> Policy:
    """A net as a policy: without gradients, one batch of E rows a step."""

    def policy(seen: NDArray[np.float32], _: Sequence[Arm6Env]) -> Actions:
        with torch.no_grad():
            said: Actions = net(torch.from_numpy(seen)).numpy()
        return said

    return policy


def baselines(demos: Demonstrations) -> dict[str, Policy]:
    """Every rule by name: the two that a policy has to beat, two that learn without a net, and the expert."""
    seen, shown = demos.frames(demos.train)
    mean = shown.mean(axis=0)
    scaled = _scaled(seen, demos)
    weights = np.linalg.lstsq(_line(scaled), shown.astype(np.float64), rcond=None)[0]

    square = np.square(scaled).sum(axis=1)

    def nearest(now: NDArray[np.float32], _: Sequence[Arm6Env]) -> Actions:
        # |a - b|^2 without |a|^2, which is the same for every b
        away = square - 2.0 * (_scaled(now, demos) @ scaled.T)
        return np.asarray(shown[away.argmin(axis=1)])

    return {
        NONE: lambda now, _: np.zeros((len(now), len(JOINTS)), np.float32),
        MEAN: lambda now, _: np.repeat(mean[None], len(now), axis=0),
        LINE: lambda now, _: np.asarray(_line(_scaled(now, demos)) @ weights, dtype=np.float32),
        NEAREST: nearest,
        EXPERT: lambda _, arms: np.stack([_arm6_expert.act(arm) for arm in arms]),
    }


def episodes(count: int) -> list[int]:
    """Seeds of the evaluation, the same for every policy and every trial; none is of a demonstration."""
    return seeds_of(DATA_SEED, "evaluation", count)


@functools.lru_cache(maxsize=2)
def to_beat(count: int, noise: float, episode_count: int) -> tuple[Rollouts, Rollouts]:
    """What no action and the mean action reach, once a process. count, noise: of the demonstrations."""
    rules = baselines(made(count, noise))
    return play(rules[NONE], episodes(episode_count)), play(rules[MEAN], episodes(episode_count))


def reached(played: Rollouts) -> dict[str, Any]:
    """The figures of some episodes, ready for JSON."""
    final = played.final
    return {
        "episodes": len(final),
        "success_rate": float(played.reached.mean()),
        "final_distance_m": float(final.mean()),
        "median_final_distance_m": float(np.median(final)),
        "worst_final_distance_m": float(final.max()),
        "touched_the_floor": int(played.floor.sum()),
    }


def _scaled(seen: NDArray[np.float32], demos: Demonstrations) -> NDArray[np.float32]:
    return np.asarray((seen - demos.mean) / demos.deviation)


def _line(scaled: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.concatenate([scaled, np.ones((len(scaled), 1))], axis=1, dtype=np.float64)
