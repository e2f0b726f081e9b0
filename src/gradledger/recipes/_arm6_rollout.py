"""Episodes of a policy, E = 8 arms at a time: where the hand was at every step.

Axis letters: N episodes, T = 50 steps, E = 8 environments, O observation, A = 6 action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gymnasium
import numpy as np
from numpy.typing import NDArray

from gradledger.recipes._arm6_env import NEAR_M, STEPS, Arm6Env, ArmError, Observe, vector

LANES = 8
# Observations (E, O) and the environments that they are of -> actions (E, 6). Only an expert looks at the environments.
Policy = Callable[[NDArray[np.float32], Sequence[Arm6Env]], NDArray[np.float32]]


@dataclass(frozen=True)
class Rollouts:
    """What was played. seeds: (N,), of the environment, one an episode. observations: (N, T, O), actions: (N, T, 6) as
    the policy gave them. joints: (N, T + 1, 6) rad and hands: (N, T + 1, 3) m, the start first. targets: (N, 3) m.
    floor: (N,), whether a link touched the floor in some step."""

    seeds: NDArray[np.int64]
    observations: NDArray[np.float32]
    actions: NDArray[np.float32]
    joints: NDArray[np.float64]
    hands: NDArray[np.float64]
    targets: NDArray[np.float64]
    floor: NDArray[np.bool_]

    @property
    def distances(self) -> NDArray[np.float64]:
        """(N, T + 1) m from hand to target."""
        return np.asarray(np.linalg.norm(self.hands - self.targets[:, None], axis=2))

    @property
    def final(self) -> NDArray[np.float64]:
        """(N,) m after the last step."""
        return self.distances[:, -1]

    @property
    def reached(self) -> NDArray[np.bool_]:
        """(N,): success. The hand is within NEAR_M of the target after the last step; to pass by is not enough."""
        return self.final <= NEAR_M


def play(policy: Policy, seeds: Sequence[int], *, observe: Observe = "target") -> Rollouts:
    """Play one episode for each seed, eight at a time; the last few lanes are filled up and not kept.

    Equal seeds give equal starts and targets whatever the policy is, so that policies are compared pair by pair.

    Raises:
        ArmError: no seed, or the policy gives something that is not (8, 6) finite numbers.
    """
    if not len(seeds):
        raise ArmError(got="no seeds", wanted="one or more", where="play", next_step="name the episodes")
    envs = vector(LANES, observe=observe)
    arms = [arm for env in envs.envs if isinstance(arm := env.unwrapped, Arm6Env)]
    waves = []
    for begin in range(0, len(seeds), LANES):
        wave = list(seeds[begin : begin + LANES])
        waves.append(_wave(policy, envs, arms, wave + [wave[-1]] * (LANES - len(wave))))
    envs.close()
    columns = [np.concatenate(parts)[: len(seeds)] for parts in zip(*waves, strict=True)]
    return Rollouts(np.asarray(seeds, dtype=np.int64), *columns)


def _wave(
    policy: Policy, envs: gymnasium.vector.SyncVectorEnv, arms: Sequence[Arm6Env], seeds: list[int]
) -> tuple[NDArray[np.generic], ...]:
    """Eight episodes, step by step together: none ends before the others."""
    seen, _ = envs.reset(seed=[int(seed) for seed in seeds])
    observations, actions, floor = [], [], np.zeros(len(seeds), dtype=np.bool_)
    joints, hands = [[arm.joints for arm in arms]], [[arm.hand for arm in arms]]
    for _ in range(STEPS):
        observations.append(np.array(seen))
        asked = np.asarray(policy(observations[-1], arms), dtype=np.float32)
        if asked.shape != (len(seeds), envs.single_action_space.shape[0]):  # type: ignore[index]
            raise ArmError(
                got=f"actions of shape {asked.shape}",
                wanted=f"({len(seeds)}, 6): one for each environment",
                where="play",
                next_step="look at the policy",
            )
        actions.append(asked)
        seen, _, _, _, info = envs.step(asked)
        floor |= info["floor"]
        joints.append([arm.joints for arm in arms])
        hands.append([arm.hand for arm in arms])
    targets = np.array([arm.target for arm in arms])
    return (
        np.stack(observations, axis=1),
        np.stack(actions, axis=1),
        np.array(joints).swapaxes(0, 1),
        np.array(hands).swapaxes(0, 1),
        targets,
        floor,
    )
