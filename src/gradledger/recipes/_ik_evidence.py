"""What the planar arm leaves beside its trials: slices, worst cases, latency, refusals, environment, card."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradledger.core.records import write_text
from gradledger.evidence import baselines as rules
from gradledger.evidence import model_card, slices
from gradledger.evidence import report as reports
from gradledger.recipes import _folder, _ik_answer, _lab, _lab_pipeline, _paths
from gradledger.recipes._lab_pipeline import Data

CARDS = Path(__file__).parent / "cards"
SEAM = 0.54  # rad: q1 nearer than that to ±pi, where a small turn of the arm can be a full turn of phi
FOLDED = 2.6  # rad: q2 above that, the second link nearly back on the first
CALLS, WORST = 2_000, 10
CLOSED = "closed form"
STREAMS = ("weights", "order", "stop")
ALONE = "Groups: none. Poses are drawn one by one and independent of each other, so each row is a group of its own."


def region(joints: NDArray[np.float32]) -> list[str]:
    """(N, 3) joints -> the part of the workspace of each; near the seam goes before nearly folded."""
    seam, folded = np.abs(joints[:, 0]) > np.pi - SEAM, joints[:, 1] > FOLDED
    names = np.where(seam, "q1 near its seam", np.where(folded, "q2 nearly folded", "the rest"))
    return [str(one) for one in names]


def by_region(kept: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """`slices.json`: squared error, the mean over the three joints, rad²."""
    losses = ((kept["said"].astype(np.float64) - kept["joints"]) ** 2).mean(axis=1)
    rows = slices.by_slice(losses, region(kept["joints"]), range(len(losses)))
    about = (
        f"Mean squared error in rad² by region: q1 within {SEAM} rad of its seam at ±pi; q2 above {FOLDED} rad; "
        f"the rest. {ALONE} p: one-sided, that the region is worse than all others; p holm: corrected."
    )
    return {"about": about, "rows": [one.record() for one in rows]}


def worst_cases(kept: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """`worst.json`: the poses whose answer puts the hand farthest away; ids count the held-out poses from 0."""
    reached = _lab_pipeline.forward_kinematics(torch.from_numpy(kept["said"])).numpy()
    away = np.linalg.norm((reached - kept["pose"])[:, :2].astype(np.float64), axis=1)
    ids = [f"pose-{at}" for at in range(len(away))]
    where = region(kept["joints"])
    rows = []
    for one in slices.worst(away, ids, where, k=min(WORST, len(away))):
        said = {"rank": one.rank, "id": one.id, "distance_m": one.value, "region": one.group}
        rows.append(said | {name: kept[name][one.at].tolist() for name in ("pose", "joints", "said")})
    about = "Held-out poses by distance of the hand in m; pose is (x, y, phi), joints and said are rad."
    return {"about": about, "rows": rows}


def timed(net: nn.Module, poses: NDArray[np.float32], *, calls: int = CALLS) -> dict[str, Any]:
    """`latency.json`: from the bytes of one held-out pose to joints, call by call, one thread."""
    raw = [one.astype("<f4").tobytes() for one in poses]
    return _paths.timed(_ik_answer.stages(net), raw, calls=calls, what="the bytes of a held-out pose to joints")


def refusals(net: nn.Module) -> dict[str, Any]:
    """`rejections.json`: what each malformed input is answered."""
    malformed = _ik_answer.malformed()
    return _paths.refusals(malformed, lambda raw: _ik_answer.answer(net, raw), _ik_answer.PoseError, what="poses")


def scale(data: Data, rows: Sequence[Any]) -> dict[str, Any]:
    """Of `results.json`: what the validation error, rad², is of rules that need no net (`baselines`), and where the
    mean over seeds of each arm stands among those that do not know the geometry (`scale`). rows: of
    `compare.columns`."""
    sides = [
        rules.Side(pose.numpy(), joints.numpy())
        for pose, joints in (
            (data.train_pose, data.train_joints),
            (data.validation_pose.double(), data.validation_joints.double()),
        )
    ]
    exact = _lab_pipeline.inverse_kinematics(data.validation_pose.double()).numpy()
    # m and rad of an arm of unit links are alike: scaling them would make the nearest pose a worse rule than it is
    found = rules.table(sides[0], sides[1], kind="numbers", also={CLOSED: exact}, standardise=False)
    blind = [one for one in found if one.name != CLOSED]
    placed = [
        {"arm": one.arm, **rules.place(one.quantity, one.summary.mean, blind).record()}
        for one in rows
        if one.quantity == "validation" and one.summary is not None
    ]
    return {"baselines": [one.record() for one in found], "scale": placed}


def save_environment(out: Path, config: Mapping[str, Any], data: Data) -> None:
    """What the trials of this call ran with."""
    digest = hashlib.sha256()
    for one in (data.train_pose, data.train_joints, data.validation_pose, data.validation_joints):
        digest.update(one.numpy().tobytes())
    _lab.save_environment(
        out,
        seeds={"data and split": 42},
        derived_seeds={name: f"train.seed.derived(rng_seed of the trial, {name!r})" for name in STREAMS},
        config=dict(config),
        data={"sha256": digest.hexdigest(), "train": len(data.train_pose), "validation": len(data.validation_pose)},
        threads_of_a_trial=1,
    )


def leave(out: Path, net: nn.Module, kept: Mapping[str, NDArray[Any]], *, again: bool) -> None:
    """Write the documents of a folder whose `results.json` is written; those that are measured only with `again`, or
    where they are missing: so that a second call on a sealed folder leaves it as it was."""
    _folder.write_json(out / "slices.json", by_region(kept))
    _folder.write_json(out / "worst.json", worst_cases(kept))
    _folder.write_json(out / "rejections.json", refusals(net))
    if again or not (out / "latency.json").exists():
        _folder.write_json(out / "latency.json", timed(net, kept["pose"]))
    card(out, "ik_planar")
    write_text(out / "report.html", reports.page(reports.tell(out)))


def card(out: Path, name: str) -> None:
    """Compile the card, from the recipe's words where the folder has none of its own."""
    source = out / model_card.SOURCE
    if not source.exists():
        write_text(source, (CARDS / f"{name}.toml").read_text(encoding="utf-8"))
    model_card.write(out)


def over_seeds(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Columns of one quantity, by arm, ready for a table. rows: of `compare.columns`."""
    found = []
    for one in rows:
        if one.quantity == "validation" and one.summary is not None:
            told = asdict(one.summary)
            found.append({"arm": one.arm, "quantity": one.quantity, **told})
    return found
