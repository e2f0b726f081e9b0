"""What a trial of seal_scout is measured by, on its test side: error, the light's hold on it, risk and coverage."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradledger.data.manifest import Manifest
from gradledger.evidence import abstain, baselines
from gradledger.evidence.trial import Outcome
from gradledger.recipes import _seal_answer, _seal_baselines, _seal_data, _seal_physics
from gradledger.recipes._seal_data import Data
from gradledger.recipes._seal_nets import Scout, parameters

NET = "net/"  # before the names of weights among the arrays of a trial
DARK, BRIGHT = 0.75, 1.33  # of the counterfactual: the lamp down and up by a third
MOST = 3.0  # largest factor by which a crop is lit as another one was


def outcome(
    scout: Scout,
    data: Data,
    split: Manifest,
    config: Mapping[str, Any],
    losses: Sequence[float],
    validation: Sequence[float],
) -> Outcome:
    """Quantities and arrays of a trained scout."""
    recording = data.recording
    at, calibrate = split.indices("test"), split.indices("calibrate")
    said, score = _seal_answer.answers(scout, recording.images[at])
    target = recording.offset[at]
    away = np.abs(said - target)[:, 0].astype(np.float64)
    cal_said, cal_score = _seal_answer.answers(scout, recording.images[calibrate])
    cal_away = np.abs(cal_said - recording.offset[calibrate])[:, 0].astype(np.float64)
    of_cal = [split.groups[one] for one in calibrate]  # a cap that was saved twice is one group
    threshold = abstain.choose_threshold(cal_score, cal_away, of_cal, risk=config["risk"])
    interval = abstain.conformal_by_group(cal_away, of_cal, alpha=config["alpha"])
    selected = abstain.evaluate(threshold, score, away)
    rules = _seal_baselines.table(*_seal_data.named(config), config["split"])
    placed = baselines.place("mae", float(away.mean()), rules)
    swapped, lit = relit(scout, data, at), pushed(scout, recording.images[at])
    quantities = {
        "mae": float(away.mean()),
        "rmse": float(np.sqrt((away**2).mean())),
        "worst": float(away.max()),
        "train": error(scout, data, split.indices("train")),
        "share_of_mean": placed.value / _seal_baselines.value(rules, _seal_baselines.MEAN),
        "share_of_best": placed.ratio,
        "light_moves": float(np.abs(lit).mean()),
        "light_slope": float(lit.mean()),
        "relit": float(np.abs(swapped - target).mean()),
        "limit": threshold.value,
        "answered": selected.coverage,
        "risk": selected.risk,
        "half_width": interval.record()["half_width"],
        "interval_coverage": abstain.covered(interval, away, [split.groups[one] for one in at]),
        "parameters": parameters(scout),
        "weights": fingerprint(scout),
        "losses": list(losses),
        "validation": list(validation),
    }
    arrays: dict[str, NDArray[Any]] = {"at": at, "said": said, "target": target, "score": score, "relit": swapped}
    arrays |= {"cal_at": calibrate, "cal_said": cal_said, "cal_score": cal_score}
    return Outcome(quantities, arrays | {NET + name: value.numpy() for name, value in scout.state_dict().items()})


def error(scout: Scout, data: Data, at: NDArray[np.int64]) -> float:
    """Mean absolute error on these crops."""
    said, _ = _seal_answer.answers(scout, data.recording.images[at])
    return float(np.abs(said - data.recording.offset[at]).mean())


def pushed(scout: Scout, images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Counterfactual: by how much each answer moves, (N,), when the lamp goes from DARK to BRIGHT and nothing else."""
    count = len(images)
    dark, _ = _seal_answer.answers(scout, _seal_physics.relit(images, np.full(count, DARK)))
    bright, _ = _seal_answer.answers(scout, _seal_physics.relit(images, np.full(count, BRIGHT)))
    return (bright - dark)[:, 0].astype(np.float64)


def relit(scout: Scout, data: Data, at: NDArray[np.int64]) -> NDArray[np.float32]:
    """What the scout says, (N, 1), when each crop has the mean grey level of another one of its line, drawn at random:
    the light tells nothing of the offset any more, and all else is as it was."""
    images = data.recording.images[at]
    level = images.mean(axis=(1, 2, 3))
    line = np.array(data.recording.line)[at]
    other, rng = np.arange(len(at)), np.random.default_rng(0)
    for name in sorted(set(line.tolist())):
        mine = np.flatnonzero(line == name)
        other[mine] = rng.permutation(mine)
    gains = np.clip(level[other] / np.maximum(level, 1e-6), 1 / MOST, MOST)
    said, _ = _seal_answer.answers(scout, _seal_physics.relit(images, gains))
    return said


def worst_of_caps(data: Data, config: Mapping[str, Any], own: Mapping[str, NDArray[Any]]) -> list[int]:
    """Places on the test side: the crop with the largest error of each cap, the worst cap first. A cap that was saved
    twice is one."""
    at, away = own["at"], np.abs(own["said"] - own["target"])[:, 0].astype(np.float64)
    cap, ids = _seal_data.sides(*_seal_data.named(config), "burst").groups, data.recording.ids
    first: dict[int, int] = {}
    for i in sorted(range(len(at)), key=lambda i: (-away[i], ids[at[i]])):
        first.setdefault(cap[at[i]], i)
    return list(first.values())


def weights(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights among the arrays of a trial."""
    return {name.removeprefix(NET): torch.from_numpy(arrays[name]) for name in arrays if name.startswith(NET)}


def fingerprint(scout: Scout) -> float:
    """The first 52 bits of the SHA-256 of weights and buffers: a number that float64 holds exactly."""
    digest = hashlib.sha256()
    for tensor in scout.state_dict().values():
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return float(int.from_bytes(digest.digest()[:8], "big") >> 12)
