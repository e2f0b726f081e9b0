"""What the evidence of DQN runs holds beside the trials: slices, worst episodes, latency, refusals, baselines, card."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.core.records import write_text
from gradledger.evidence import baselines as rules
from gradledger.evidence import lock, slices
from gradledger.evidence import report as reports
from gradledger.evidence.compare import Column
from gradledger.evidence.record import Attempt
from gradledger.evidence.stats import over_rows
from gradledger.recipes import _dqn_answer, _dqn_measure, _folder, _ik_evidence, _lab, _paths
from gradledger.recipes._dqn_measure import Found

COPIED = (_folder.CONFIG, _folder.ENVIRONMENT, _folder.RECORD, _folder.METRICS, _folder.EPISODES, _dqn_measure.WEIGHTS)
PICTURES = ("curves.png", "strip.png")
CALLS, WORST = 1_000, 10
SHOWN = ("evaluation", "above_random", "last_games", "value_bias")  # over the seeds, in the card
THIRDS = ("first third", "second third", "last third")
Kept = Mapping[str, NDArray[Any]]


def name_of(arm: str, rng_seed: int) -> str:
    """Where the copy of a run lies in the evidence."""
    return f"runs/{arm}-seed-{rng_seed}"


def copy(found: Found | None, out: Path, arm: str, rng_seed: int) -> dict[str, Any]:
    """Take what a reader needs of a run into the evidence: everything but checkpoints and films. What is there already
    stays, also when the run itself is gone. Returns facts of the run for `results.json`."""
    place = out / name_of(arm, rng_seed)
    if found is not None:
        place.mkdir(parents=True, exist_ok=True)
        wanted = {name: place / name for name in COPIED}
        wanted |= {name: out / f"{Path(name).stem}-{arm}-seed-{rng_seed}.png" for name in PICTURES}
        for name, to in wanted.items():
            if (found.folder / name).exists() and not to.exists():
                shutil.copyfile(found.folder / name, to)
    record = _folder.read_json(place / _folder.RECORD)
    return {
        "arm": arm,
        "rng_seed": rng_seed,
        "folder": name_of(arm, rng_seed),
        "kind": record["kind"],
        "env_steps": record["completed"]["env_step"],
        "optimizer_steps": record["completed"]["optimizer_step"],
        "games": record["completed"]["episode"],
        "seconds": round(sum(record["seconds"].values()), 1),
        "revision": record["versions"].get("revision") or "not a checkout",
        "torch": record["versions"]["torch"],
        "cpu": record["machine"]["cpu"],
    }


def beginnings(found: Sequence[Found], version: lock.Version) -> list[dict[str, Any]]:
    """When each run began, by the file system's time of its config.json, against the registration of the plan."""
    registered, rows = datetime.fromisoformat(version.at), []
    for one in found:
        began, ended = _time(one.folder / _folder.CONFIG), None
        said = "before it began" if registered <= began else "while it ran"
        if one.finished:
            ended = _time(one.folder / _folder.RECORD)
            said = "after it had ended" if registered > ended else said
        told = {"began": began.isoformat(), "ended": None if ended is None else ended.isoformat()}
        rows.append({"rng_seed": one.rng_seed, **told, "plan_registered": said})
    return rows


def _time(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(microsecond=0)


def scale(kept: Kept, columns: Sequence[Column]) -> dict[str, Any]:
    """Of `results.json`: returns of rules without a network, and where the mean over seeds of each arm stands."""
    found = []
    for name, array in (("random actions", "random_return"), ("no action", "no_action_return")):
        returns = kept[array]
        found.append(rules.Baseline(name, float(returns.mean()), len(returns), len(returns), over_rows(returns)))
    placed = [
        {"arm": one.arm, **rules.place(one.quantity, one.summary.mean, found, better="higher").record()}
        for one in columns
        if one.quantity == "evaluation" and one.summary is not None
    ]
    over = [
        {"arm": one.arm, "quantity": one.quantity, **asdict(one.summary)}
        for quantity in SHOWN
        for one in columns
        if one.quantity == quantity and one.summary is not None
    ]
    return {"baselines": [one.record() for one in found], "scale": placed, "over_seeds": over}


def by_third(kept: Sequence[Kept]) -> dict[str, Any]:
    """`slices.json`: distance of Q from the discounted reward that came, by third of an episode."""
    losses, names, groups = [], [], []
    for number, one in enumerate(kept):
        losses.append(np.abs(one["value_taken"] - one["discounted"]))
        third = np.minimum(3 * one["at"] // np.maximum(one["length"], 1), 2)
        names += [THIRDS[at] for at in third.tolist()]
        groups += [f"{number}.{episode}" for episode in one["episode"].tolist()]
    rows = slices.by_slice(np.concatenate(losses), names, groups)
    about = (
        "Distance of the value of the action taken from the discounted reward that came after it, in states of greedy "
        "episodes of all seeds, by third of the episode. Groups: episodes. p: one-sided, that the third is worse than "
        "the others; p holm: corrected."
    )
    return {"about": about, "rows": [one.record() for one in rows]}


def worst_episodes(attempts: Sequence[Attempt], kept: Sequence[Kept]) -> dict[str, Any]:
    """`worst.json`: the evaluation's episodes of lowest return."""
    returns = np.concatenate([one["evaluation_return"] for one in kept])
    ids, groups = [], []
    for one, arrays in zip(attempts, kept, strict=True):
        ids += [f"{one.trial.arm}-seed-{one.trial.rng_seed}-{at:03d}" for at in range(len(arrays["evaluation_return"]))]
        groups += [f"{one.trial.arm}, seed {one.trial.rng_seed}"] * len(arrays["evaluation_return"])
    rows = [
        {"rank": one.rank, "id": one.id, "return": -one.value, "run": one.group}
        for one in slices.worst(-returns, ids, groups, k=min(WORST, len(ids)))
    ]
    return {"about": "Evaluation episodes by return, the lowest first; ids count the episodes of a run.", "rows": rows}


def timed(player: _dqn_answer.Player, states: NDArray[Any], *, calls: int = CALLS) -> dict[str, Any]:
    """`latency.json`: from the bytes of one saved state to an action, call by call, one thread."""
    raw = [np.ascontiguousarray(one).tobytes() for one in states]
    what, more = "the bytes of a saved state to an action", ", in the precision that the run computed in"
    return _paths.timed(_dqn_answer.stages(player), raw, calls=calls, what=what, more=more)


def refusals(player: _dqn_answer.Player, states: NDArray[Any]) -> dict[str, Any]:
    """`rejections.json`: what each malformed state is answered."""
    malformed = _dqn_answer.malformed(player, states[len(states) // 2])
    return _paths.refusals(
        malformed, lambda raw: _dqn_answer.answer(player, raw), _dqn_answer.StateError, what="states"
    )


def leave(out: Path, first: Attempt, attempts: Sequence[Attempt], kept: Sequence[Kept], *, again: bool) -> None:
    """Write the documents of a folder whose `results.json` is written; what is measured only with `again`, or where it
    is missing: so that a second call on a sealed folder leaves it as it was."""
    player = player_of(out, first.trial.arm, first.trial.rng_seed, kept[0])
    states = kept[0]["state"]
    _folder.write_json(out / "slices.json", by_third(kept))
    _folder.write_json(out / "worst.json", worst_episodes(attempts, kept))
    _folder.write_json(out / "rejections.json", refusals(player, states))
    if again or not (out / "latency.json").exists():
        _folder.write_json(out / "latency.json", timed(player, states))
    if again or not any(out.glob("environment*.json")):
        _lab.save_environment(out, seeds={}, owners={"runs": "rng_seed of each, see runs/*/config.json"})
    _ik_evidence.card(out, "dqn_atari")
    write_text(out / "report.html", reports.page(reports.tell(out)))


def player_of(out: Path, arm: str, rng_seed: int, kept: Kept, precision: str | None = None) -> _dqn_answer.Player:
    """The network whose weights lie in the evidence."""
    place = out / name_of(arm, rng_seed)
    args = _folder.read_config(place)["args"]
    return _dqn_answer.load(place / _dqn_measure.WEIGHTS, args, dtype=kept["state"].dtype.name, precision=precision)
