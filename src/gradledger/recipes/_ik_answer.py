"""From the bytes of a pose to joints: the path that a caller takes, in stages, with what it refuses and why."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradledger.core.errors import GradledgerError
from gradledger.recipes._lab_pipeline import MARGIN

BYTES = 12  # three float32, least byte first: x in m, y in m, phi in rad
# q2 stays MARGIN away from straight and from folded: so the wrist is never nearer to the base or farther from it
NEAREST, FARTHEST = 2 * math.sin(MARGIN / 2), 2 * math.cos(MARGIN / 2)
# phi = q1 + q2 + q3 is not wrapped: a turn more is another pose to the net
PHI_LOW, PHI_HIGH = -math.pi + 2 * MARGIN, 3 * math.pi - 2 * MARGIN
SLACK = 1e-4  # of float32 at the edges


class PoseError(GradledgerError):
    """A pose that the recipe's net does not answer."""

    slug = "pose"


@dataclass(frozen=True)
class Answer:
    """joints: q1 in (-pi, pi], q2, q3, in rad. away: distance in m of the hand, by forward kinematics, from where it
    was asked to be: known without the right answer, so that a caller can refuse what is too far off."""

    joints: tuple[float, float, float]
    away: float


def read(raw: bytes) -> NDArray[np.float32]:
    """12 bytes -> (3,) pose.

    Raises:
        PoseError: another number of bytes.
    """
    if len(raw) != BYTES:
        raise _refused(f"{len(raw)} bytes", f"{BYTES}: x, y, phi as float32, least byte first")
    return np.frombuffer(raw, dtype="<f4")


def checked(pose: NDArray[np.float32]) -> NDArray[np.float32]:
    """The pose, when the net was trained on its like.

    Raises:
        PoseError: a number that is not finite, a phi outside the range of the data, or a wrist out of reach.
    """
    x, y, phi = (float(one) for one in pose)
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(phi)):
        raise _refused(f"({x}, {y}, {phi})", "finite numbers")
    if not PHI_LOW - SLACK <= phi <= PHI_HIGH + SLACK:
        raise _refused(f"phi = {phi:.4g} rad", f"{PHI_LOW:.4g} to {PHI_HIGH:.4g} rad (q1 + q2 + q3, not wrapped)")
    wrist = math.hypot(x - math.cos(phi), y - math.sin(phi))
    if not NEAREST - SLACK <= wrist <= FARTHEST + SLACK:
        raise _refused(f"a wrist {wrist:.4g} m from the base", f"{NEAREST:.4g} to {FARTHEST:.4g} m: lengths in m")
    return pose


def decided(pose: NDArray[np.float32], said: Tensor) -> Answer:
    """What the net said, (3,), as joints, with q1 wrapped and the distance that remains."""
    q1, q2, q3 = said.tolist()
    first, second, third = q1, q1 + q2, q1 + q2 + q3
    x = math.cos(first) + math.cos(second) + math.cos(third)
    y = math.sin(first) + math.sin(second) + math.sin(third)
    away = math.hypot(x - float(pose[0]), y - float(pose[1]))
    return Answer((-math.remainder(-q1, 2 * math.pi), q2, q3), away)


def stages(net: nn.Module) -> list[tuple[str, Callable[[Any], Any]]]:
    """The path as (name, function), each fed with what the one before it returned; the first gets bytes."""

    def model(pose: NDArray[np.float32]) -> tuple[NDArray[np.float32], Tensor]:
        with torch.no_grad():
            return pose, net(torch.from_numpy(pose.copy())[None])[0]

    return [("read", read), ("check", checked), ("model", model), ("decide", lambda pair: decided(*pair))]


def answer(net: nn.Module, raw: bytes) -> Answer:
    """The whole path.

    Raises:
        PoseError: the pose is refused.
    """
    value: Any = raw
    for _, stage in stages(net):
        value = stage(value)
    found: Answer = value
    return found


def malformed() -> dict[str, bytes]:
    """What callers get wrong, by name; each is refused."""
    good = np.array([1.2, 0.7, 1.0], dtype="<f4")
    return {
        "empty": b"",
        "truncated": good.tobytes()[:-1],
        "float64": good.astype("<f8").tobytes(),
        "most significant byte first": good.astype(">f4").tobytes(),
        "not a number": np.array([1.2, np.nan, 1.0], dtype="<f4").tobytes(),
        "lengths in mm": np.array([1200.0, 700.0, 1.0], dtype="<f4").tobytes(),
        "angle in degrees": np.array([1.2, 0.7, 57.3], dtype="<f4").tobytes(),
        "out of reach": np.array([2.9, 0.7, 2.0], dtype="<f4").tobytes(),
    }


def _refused(got: str, wanted: str) -> PoseError:
    return PoseError(got=got, wanted=wanted, where="ik_planar, pose", next_step="send a pose of the arm's workspace")
