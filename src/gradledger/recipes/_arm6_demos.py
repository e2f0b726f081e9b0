"""Demonstrations: played by the expert, written as a LeRobotDataset v3 folder, and read back from there alone.

Axis letters: N demonstrations, T_i steps of one, O = 18 observation, A = 6 action.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from gradledger.data import lerobot
from gradledger.recipes import _arm6_expert
from gradledger.recipes._arm6_env import HERTZ, JOINTS, NEAR_M, Arm6Env
from gradledger.recipes._arm6_rollout import play
from gradledger.train import seed

HELD_OUT = 5  # one demonstration in so many is held out
HOLD = 5  # steps in a row at the target, after which a demonstration is over
DATA_SEED = 42
TASK = "bring the hand to the target and keep it there"
STATE, ACTION = "observation.state", "action"
FEATURES = {
    STATE: lerobot.Feature(
        "float32",
        (18,),
        {
            "axes": [
                *(f"{name}.position_rad" for name in JOINTS),
                *(f"{name}.speed_rad_s" for name in JOINTS),
                *(f"target.{axis}_m" for axis in "xyz"),
                *(f"way.{axis}_m" for axis in "xyz"),
            ]
        },
    ),
    ACTION: lerobot.Feature("float32", (6,), {"axes": [f"{name}.asked_speed" for name in JOINTS]}),
}


@dataclass(frozen=True)
class Demonstrations:
    """As they lie in the folder. observations, actions: one (T_i, 18) and (T_i, 6) float32 array each. train, held_out:
    their numbers. mean, deviation: (18,) of the observations of the training side alone. sha256: of all values."""

    observations: tuple[NDArray[np.float32], ...]
    actions: tuple[NDArray[np.float32], ...]
    train: tuple[int, ...]
    held_out: tuple[int, ...]
    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]
    sha256: str

    @property
    def fingerprint(self) -> float:
        """The first 52 bits of the SHA-256: a number that float64 holds exactly."""
        return float(int(self.sha256[:13], 16))

    def frames(self, numbers: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """All frames of some demonstrations, one after the other: (F, 18) and (F, 6)."""
        seen, shown = ([of[n] for n in numbers] for of in (self.observations, self.actions))
        return np.concatenate(seen), np.concatenate(shown)


class Trajectories(Dataset[dict[str, torch.Tensor]]):
    """Demonstrations as samples of different lengths: `observation` (T_i, O) and `action` (T_i, 6), copies.

    width: O, the first so many numbers of an observation: 18, or 6 for the joints alone.
    """

    def __init__(self, demos: Demonstrations, numbers: Sequence[int], *, width: int) -> None:
        self._demos, self._numbers, self._width = demos, tuple(numbers), width

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        number = self._numbers[index]
        return {
            "observation": torch.tensor(self._demos.observations[number][:, : self._width]),
            "action": torch.tensor(self._demos.actions[number]),
        }


def record(folder: Path, *, count: int, noise: float, rng_seed: int = DATA_SEED) -> None:
    """Let the expert play, and write what it did. The folder must not exist.

    Args:
        count: N.
        noise: standard deviation, in units of the action, of what is added to the expert's action before it is played.
            What is written is the action without it: so the expert also shows how it comes back to its way (Laskey and
            others, 2017).
        rng_seed: of starts, targets and noise.
    """
    drawn = seed.generator(rng_seed, "noise")

    def noisy(_: NDArray[np.float32], arms: Sequence[Arm6Env]) -> NDArray[np.float32]:
        asked = np.stack([_arm6_expert.act(arm) for arm in arms])
        shown.append(asked)
        return asked + drawn.normal(0.0, noise, asked.shape).astype(np.float32)

    shown: list[NDArray[np.float32]] = []
    played = play(noisy, seeds_of(rng_seed, "demonstrations", count))
    steps = played.actions.shape[1]
    waves = [np.stack(shown[at : at + steps], axis=1) for at in range(0, len(shown), steps)]
    clean = np.concatenate(waves)[:count]
    episodes = []
    for number in range(count):
        end = _end(played.distances[number])
        frames = {STATE: played.observations[number, :end], ACTION: clean[number, :end]}
        episodes.append(lerobot.Episode(frames, TASK))
    held_out = max(count // HELD_OUT, 1)
    train = count - held_out
    splits = {"train": f"0:{train}", "val": f"{train}:{count}"}
    lerobot.write(folder, episodes, FEATURES, fps=HERTZ, robot_type="arm6, simulated", splits=splits)


def read(folder: Path) -> Demonstrations:
    """Check the folder against the published format and read it.

    Raises:
        LeRobotError: every problem of the folder at once.
    """
    found = lerobot.open_folder(folder)
    parts = [found.episode(number) for number in range(found.episodes)]
    observations = tuple(np.array(one[STATE]) for one in parts)
    actions = tuple(np.array(one[ACTION]) for one in parts)
    train, held_out = (tuple(range(*map(int, found.info.splits[side].split(":")))) for side in ("train", "val"))
    known = found.stats(train)[STATE]
    digest = hashlib.sha256()
    for one in (*observations, *actions):
        digest.update(one.astype("<f4").tobytes())
    mean, deviation = (np.asarray(known[name], dtype=np.float32) for name in ("mean", "std"))
    return Demonstrations(observations, actions, train, held_out, mean, deviation, digest.hexdigest())


@functools.lru_cache(maxsize=2)
def made(count: int, noise: float) -> Demonstrations:
    """The demonstrations of a trial: recorded, written, read back; once a process: they depend on nothing else."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "demonstrations"
        record(folder, count=count, noise=noise)
        return read(folder)


def seeds_of(rng_seed: int, name: str, count: int) -> list[int]:
    """Seeds of episodes, (count,): the first ones are the same however many are asked for."""
    drawn: list[int] = seed.generator(rng_seed, name).integers(0, 2**31, size=count).tolist()
    return drawn


def _end(distances: NDArray[np.float64]) -> int:
    """Steps of a demonstration whose distances, (T + 1,), are these: until it was at the target HOLD times in a row."""
    held = 0
    for at, distance in enumerate(distances[1:], 1):
        held = held + 1 if distance <= NEAR_M else 0
        if held == HOLD:
            return at
    return len(distances) - 1


def lengths(demos: Demonstrations) -> Mapping[str, Any]:
    """How long they are, in steps."""
    steps = np.array([len(one) for one in demos.actions])
    return {
        "demonstrations": len(steps),
        "frames": int(steps.sum()),
        "shortest": int(steps.min()),
        "longest": int(steps.max()),
        "mean": float(steps.mean()),
    }
