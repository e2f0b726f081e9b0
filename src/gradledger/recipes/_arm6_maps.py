"""What can be learned of this arm, asked before training: no pose says the joints, an observation says the action.

Six joints and a place of three numbers: for almost every target there are infinitely many postures. A net that is
trained on pairs (place, joints) converges to the mean of those postures, which is none of them. The action of an expert
is another matter: it is computed from joints and target, so that it is a function of what the policy sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data import learnability
from gradledger.recipes import _arm6_expert
from gradledger.recipes._arm6_demos import DATA_SEED, seeds_of
from gradledger.recipes._arm6_env import JOINTS, SHARE, Arm6Env
from gradledger.train import seed

ROWS = 4_000
POSE_MAP = "pose_map.npz"
Arrays = dict[str, NDArray[np.float64]]


def pose_map(count: int = ROWS) -> Arrays:
    """joints: (N, 6) rad, drawn evenly from SHARE of their ranges. hand: (N, 3) m. axes: (N, 9), how the hand is
    turned, the rotation matrix row by row. sums: (N, 3), the textbook map of a 6-joint arm whose last three joints
    enter by their sum alone: x and y of three unit links that turn by turns, (N, 6) in (-pi, pi), and q4 + q5 + q6,
    wrapped."""
    drawn, arm = seed.generator(DATA_SEED, "pose map"), Arm6Env()
    middle, half = arm.limits.mean(axis=1), SHARE * np.diff(arm.limits, axis=1)[:, 0] / 2
    joints = middle + half * drawn.uniform(-1.0, 1.0, (count, len(JOINTS)))
    hand, axes = np.empty((count, 3)), np.empty((count, 9))
    for at, row in enumerate(joints):
        hand[at] = arm.place(row)
        axes[at] = arm.data.site("hand").xmat
    turns = drawn.uniform(-np.pi, np.pi, (count, 6))
    angles = turns[:, :3].cumsum(axis=1)
    sums = np.stack([np.cos(angles).sum(axis=1), np.sin(angles).sum(axis=1), turns[:, 3:].sum(axis=1)], axis=1)
    sums[:, 2] = np.angle(np.exp(1j * sums[:, 2]))
    return {"joints": joints, "hand": hand, "axes": axes, "turns": turns, "sums": sums}


def first_moves(count: int = ROWS) -> Arrays:
    """seen: (N, 12) joints, target and way at N starts (speeds are 0 there). shown: (N, 6) the expert's action.

    One row an episode: frames of one recording lie next to each other, so that among them any target seems to follow
    from any input.
    """
    arm, rows = Arm6Env(), []
    for number in seeds_of(DATA_SEED, "first moves", count):
        seen, _ = arm.reset(seed=number)
        rows.append((np.delete(seen, range(6, 12)), _arm6_expert.act(arm)))
    columns = [np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)]
    return {"seen": columns[0], "shown": columns[1]}


def learnable(out: Path) -> dict[str, Any]:
    """`learnable.json`, and `pose_map.npz` beside it, so that `gradledger data learnable` can be asked again.

    Floors are shares of the variance: 0 where the target follows from the input, 1 where the input says nothing.
    """
    table = pose_map() | first_moves()
    np.savez(out / POSE_MAP, **table)  # type: ignore[arg-type]
    pose = np.concatenate([table["hand"], table["axes"]], axis=1)
    turns = [f"q{number}" for number in range(1, 7)]
    asked: dict[str, tuple[Any, Any, Sequence[str], Sequence[str]]] = {
        "joints from the place of the hand": (table["hand"], table["joints"], JOINTS, ()),
        "joints from place and turn of the hand": (pose, table["joints"], JOINTS, ()),
        "joints of the textbook map from (x, y, sum)": (table["sums"], table["turns"], turns, turns),
        "action from the joints alone": (table["seen"][:, :6], table["shown"], JOINTS, ()),
        "action from joints, target and way": (table["seen"], table["shown"], JOINTS, ()),
    }
    rows = []
    for name, (inputs, targets, names, angles) in asked.items():
        floor = learnability.noise_floor(inputs, targets, names=names, angles=angles)
        rows.append(
            {"map": name, "rows": floor.samples, "floor_over_variance": floor.ratio, "floor_mse": floor.mse}
            | {"learnable": floor.learnable, "says": str(floor)}
        )
    about = (
        "The Gamma test among nearest pairs, before training: the share of the variance of the targets that no model "
        "of these inputs can explain. Joints in rad², actions without a unit."
    )
    return {"about": about, "rows": rows}
