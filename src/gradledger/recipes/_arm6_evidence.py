"""What the arm leaves beside its trials: demonstrations, what can be learned, slices, worst cases, latency, card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gradledger.core.records import write_text
from gradledger.evidence import bundle, model_card, slices, stats
from gradledger.evidence import report as reports
from gradledger.evidence.record import Attempt, TrialRecord
from gradledger.recipes import _arm6_answer, _arm6_demos, _arm6_maps, _arm6_policies, _folder, _lab, _paths
from gradledger.recipes._arm6_demos import Demonstrations
from gradledger.recipes._arm6_env import ArmError
from gradledger.recipes._arm6_rollout import play

CARDS = Path(__file__).parent / "cards"
DEMONSTRATIONS = "demonstrations"
LOW_M, FAR_M = 0.2, 0.6  # a target below that is low; farther than that from the upright axis is far out
CALLS, WORST = 1_000, 10
STREAMS = ("weights", "order", "stop")
UNPROVEN = (  # in the report; the card says it at length
    "None of this proves that a real arm would do the same: joints and target are known exactly and at once, and no "
    "camera, delay, wear, heat or collision of links is simulated."
)


def keep_demonstrations(out: Path, first: Attempt) -> Demonstrations:
    """The demonstrations that the trials learned from, as a folder of the run; recorded now where it is not there.

    Raises:
        ArmError: they are not those of the trial `first`: it ran on another machine, or the folder was changed.
    """
    folder, config = out / DEMONSTRATIONS, first.trial.config
    if not folder.exists():
        _arm6_demos.record(folder, count=config["demonstrations"], noise=config["noise"])
    demos = _arm6_demos.read(folder)
    if demos.fingerprint != (first.quantities or {}).get("demonstrations"):
        raise ArmError(
            got=f"demonstrations of SHA-256 {demos.sha256[:16]}",
            wanted=f"those that arm {first.trial.arm}, rng_seed {first.trial.rng_seed} learned from",
            where=str(folder),
            next_step="run in a new folder on this machine",
        )
    return demos


def over_seeds(record: TrialRecord, finished: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Success and final distance of each arm; the interval is over seeds and episodes, both drawn anew."""
    rows = []
    for arm in dict.fromkeys(one.trial.arm for one in finished):
        kept = {one.trial.rng_seed: record.predictions(one.trial.id) for one in finished if one.trial.arm == arm}
        for quantity, array in (("success_rate", "reached"), ("final_distance_m", "final")):
            values = {seed: np.asarray(arrays[array], dtype=np.float64) for seed, arrays in kept.items()}
            summary = asdict(stats.summarise([row.mean() for row in values.values()]))
            groups = range(len(next(iter(values.values()))))
            summary["interval"] = stats.over_seeds_and_groups(values, groups).record()
            rows.append({"arm": arm, "quantity": quantity, **summary})
    return rows


def baselines(demos: Demonstrations, episode_count: int) -> list[dict[str, Any]]:
    """What rules without a net reach in the same episodes."""
    rows = []
    for name, rule in _arm6_policies.baselines(demos).items():
        played = play(rule, _arm6_policies.episodes(episode_count))
        interval = stats.over_groups(played.reached.astype(np.float64), range(episode_count)).record()
        rows.append({"name": name, **_arm6_policies.reached(played), "success_interval": interval})
    return rows


def region(targets: NDArray[np.float64]) -> list[str]:
    """(N, 3) targets -> the part of the workspace of each; low goes before far out."""
    low, far = targets[:, 2] < LOW_M, np.hypot(targets[:, 0], targets[:, 1]) > FAR_M
    return [str(one) for one in np.where(low, "target low", np.where(far, "target far out", "the rest"))]


def by_region(kept: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """`slices.json`: the final distance by where the target was; each episode is a group of its own."""
    rows = slices.by_slice(kept["final"], region(kept["target"]), range(len(kept["final"])))
    about = (
        f"Final distance in m by target: below {LOW_M} m; farther than {FAR_M} m from the upright axis; the rest. Each "
        "episode is a group of its own: starts and targets are drawn one by one. p: one-sided, that the part is worse "
        f"than all others; p holm: corrected. {UNPROVEN}"
    )
    return {"about": about, "rows": [one.record() for one in rows]}


def worst_cases(kept: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """`worst.json`: the episodes that ended farthest from their targets."""
    ids, where = [f"episode-{at}" for at in range(len(kept["final"]))], region(kept["target"])
    rows = []
    for one in slices.worst(kept["final"], ids, where, k=min(WORST, len(ids))):
        told = {"rank": one.rank, "id": one.id, "seed": int(kept["episode_seed"][one.at]), "distance_m": one.value}
        told |= {"region": one.group} | {name: kept[name][one.at].tolist() for name in ("start", "target", "hand")}
        rows.append(told)
    about = "Episodes by distance from hand to target after the last step; start, target, hand: m; seed: its own."
    return {"about": about, "rows": rows}


def timed(net: nn.Module, observations: NDArray[np.float32], *, calls: int = CALLS) -> dict[str, Any]:
    """`latency.json`: from the bytes of one observation to joint speeds, call by call, one thread."""
    raw = [one.astype("<f4").tobytes() for one in observations]
    what = "the bytes of an observation of a held-out demonstration to six speeds"
    return _paths.timed(_arm6_answer.Path(net).stages(), raw, calls=calls, what=what)


def refusals(net: nn.Module) -> dict[str, Any]:
    """`rejections.json`: what each malformed observation is answered."""
    path = _arm6_answer.Path(net)
    return _paths.refusals(_arm6_answer.malformed(), path.answer, ArmError, what="observations")


def save_environment(out: Path, config: Mapping[str, Any], demos: Demonstrations) -> None:
    """What the trials of this call ran with."""
    _lab.save_environment(
        out,
        seeds={"demonstrations and evaluation": _arm6_demos.DATA_SEED},
        derived_seeds={name: f"train.seed.derived(rng_seed of the trial, {name!r})" for name in STREAMS},
        config=dict(config),
        data={
            "sha256": demos.sha256,
            "train": len(demos.train),
            "held_out": len(demos.held_out),
            **_arm6_demos.lengths(demos),
        },
        threads_of_a_trial=1,
    )


def leave(out: Path, net: nn.Module, kept: Mapping[str, NDArray[Any]], *, again: bool) -> None:
    """Write the documents of a folder whose `results.json` is written, and seal it; what is measured only with `again`,
    or where it is missing: so that a second call on a sealed folder leaves it as it was."""
    _folder.write_json(out / "slices.json", by_region(kept))
    _folder.write_json(out / "worst.json", worst_cases(kept))
    _folder.write_json(out / "rejections.json", refusals(net))
    if not (out / "learnable.json").exists():
        _folder.write_json(out / "learnable.json", _arm6_maps.learnable(out))
    if again or not (out / "latency.json").exists():
        _folder.write_json(out / "latency.json", timed(net, kept["observation"]))
    if not (out / model_card.SOURCE).exists():
        write_text(out / model_card.SOURCE, (CARDS / "arm6_policy.toml").read_text(encoding="utf-8"))
    model_card.write(out)
    write_text(out / "report.html", reports.page(reports.tell(out)))
    if again or not (out / bundle.BUNDLE).exists():
        print(f"sealed: {bundle.seal(out)}", flush=True)
