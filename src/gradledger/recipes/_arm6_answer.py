"""From the bytes of an observation to six joint speeds: the path that a caller takes, with what it refuses and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradledger.recipes._arm6_env import FARTHEST_M, SPEED, Arm6Env, ArmError

WIDTH = 18
BYTES = 4 * WIDTH  # float32, least byte first: joints, their speeds, target, way
SHOULDER_M, REACH_M = 0.22, 0.79  # the shoulder's height, and how far the hand gets from it
SLACK_RAD, FASTEST, SLACK_M = 0.1, 4 * SPEED, 0.01  # joints give a little at their ends; rad/s; of the way that is told


@dataclass(frozen=True)
class Answer:
    """speeds: rad/s that the six servos are asked for, none above SPEED. cut: how many of them the net had above it."""

    speeds: tuple[float, ...]
    cut: int


class Path:
    """The stages, for one net; holds an arm of its own to know where the hand is with some joints."""

    def __init__(self, net: nn.Module) -> None:
        self._net, self._arm = net, Arm6Env()

    def stages(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """(name, function), each fed with what the one before it returned; the first gets bytes."""
        return [("read", read), ("check", self.checked), ("model", self.said), ("decide", decided)]

    def answer(self, raw: bytes) -> Answer:
        """The whole path.

        Raises:
            ArmError: the observation is refused.
        """
        value: Any = raw
        for _, stage in self.stages():
            value = stage(value)
        found: Answer = value
        return found

    def checked(self, seen: NDArray[np.float32]) -> NDArray[np.float32]:
        """The observation, when the arm can be in that state and the target can be reached.

        Raises:
            ArmError: a number that is not finite, a joint or speed out of range, a target out of reach, or a way that
                does not lead from the hand to the target.
        """
        if not np.isfinite(seen).all():
            raise _refused(f"no finite numbers at {np.flatnonzero(~np.isfinite(seen)).tolist()}", "finite ones")
        joints, speeds, target, way = np.split(seen.astype(np.float64), [6, 12, 15])
        low, high = self._arm.limits.T
        outside = np.flatnonzero((joints < low - SLACK_RAD) | (joints > high + SLACK_RAD))
        if len(outside):
            at = int(outside[0])
            raise _refused(f"joint {at} at {joints[at]:.4g}", f"{low[at]:.4g} to {high[at]:.4g} rad")
        if np.abs(speeds).max() > FASTEST:
            raise _refused(f"a joint at {np.abs(speeds).max():.4g} rad/s", f"at most {FASTEST:.4g}")
        away = float(np.linalg.norm(target - [0.0, 0.0, SHOULDER_M]))
        if away > REACH_M or target[2] < 0 or np.abs(target).max() > FARTHEST_M:
            got = f"a target {away:.4g} m from the shoulder at height {target[2]:.4g} m"
            raise _refused(got, f"at most {REACH_M} m; above 0")
        off = float(np.linalg.norm(target - way - self._arm.place(joints)))
        if off > SLACK_M:
            raise _refused(f"a way that begins {off:.4g} m from the hand", "target minus hand, frame of the base")
        return seen

    def said(self, seen: NDArray[np.float32]) -> Tensor:
        """(6,) what the net says."""
        with torch.no_grad():
            out: Tensor = self._net(torch.from_numpy(seen.copy())[None])[0]
        return out


def read(raw: bytes) -> NDArray[np.float32]:
    """72 bytes -> (18,) observation.

    Raises:
        ArmError: another number of bytes.
    """
    if len(raw) != BYTES:
        raise _refused(f"{len(raw)} bytes", f"{BYTES}: {WIDTH} float32, least byte first")
    return np.frombuffer(raw, dtype="<f4")


def decided(said: Tensor) -> Answer:
    """Action (6,) -> speeds in rad/s, cut off where the servos would cut them off."""
    action = said.numpy().astype(np.float64)
    speeds = np.clip(action, -1.0, 1.0) * SPEED
    return Answer(tuple(speeds.tolist()), int((np.abs(action) > 1.0).sum()))


def malformed() -> dict[str, bytes]:
    """What callers get wrong, by name, made from one good observation."""
    arm = Arm6Env()
    good, _ = arm.reset(seed=0)
    mm, degrees, far, stale = (good.copy() for _ in range(4))
    mm[12:] *= 1000
    degrees[:6] = np.rad2deg(degrees[:6])
    far[12:15] += 0.8
    stale[15:] = 0.0
    broken = good.copy()
    broken[3] = np.nan
    return {
        "empty": b"",
        "truncated": good.tobytes()[:-1],
        "float64": good.astype("<f8").tobytes(),
        "most significant byte first": good.astype(">f4").tobytes(),
        "not a number": broken.tobytes(),
        "lengths in mm": mm.tobytes(),
        "joints in degrees": degrees.tobytes(),
        "target out of reach": far.tobytes(),
        "speeds before joints": good[[*range(6, 12), *range(6), *range(12, 18)]].tobytes(),
        "way of another moment": stale.tobytes(),
    }


def _refused(got: str, wanted: str) -> ArmError:
    next_step = "send joints, speeds, target and way as told"
    return ArmError(got=got, wanted=wanted, where="arm6_policy, observation", next_step=next_step)
