"""Evidence of finished DQN runs: predictions judged, every seed, saved states that the weights are asked again, a card.

    gradledger run dqn_atari --preset pong-fast --precision bf16 --total-steps 260000 --seeds 1..3 --out runs/pong
    gradledger run dqn_evidence --runs runs/pong --out runs/pong-evidence
    gradledger verify runs/pong-evidence --seal

The plan (plans/dqn_atari.toml, or --predict FILE) names arms by their settings; each run must fit exactly one arm. To
predict, register it before the runs end: `gradledger predict FILE -o OUT`. When a run began, by the time of its
config.json, and when the plan was registered, stand beside each other in results.json and in the card.

Of each run the records, tables and weights are copied, not its checkpoints. Its network plays two greedy episodes; 256
of their states are kept with the values in float32, so that `gradledger repredict` asks the saved weights again and
`gradledger rescore` computes the metrics again. `gradledger retrain` trains a run anew, which takes as long as it took.
A run that has not ended is a failed trial with its reason; --retry-failed reads it again.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradledger.core.errors import UsageError
from gradledger.core.records import plain
from gradledger.evidence import compare, hypothesis, lock
from gradledger.evidence.hypothesis import Plan
from gradledger.evidence.record import Attempt, TrialRecord
from gradledger.evidence.trial import Outcome, Trial
from gradledger.recipes import _dqn_evidence, _dqn_measure, _folder, _lab, _main
from gradledger.recipes._command_line import option
from gradledger.recipes._dqn_measure import Found
from gradledger.recipes._registry import Recipe

RECIPE = Recipe(
    presets={"all": "every run of the folder: about a minute for each on a quiet core"},
    default_preset="all",
    extra="rl",
)

# ---------------------------------------------------------------------------------------------------------------- Args


@dataclass(frozen=True)
class Args:
    """Everything that decides what is left."""

    preset: str = "all"
    runs: Path = option(Path("runs/dqn"), "a run of dqn_atari, or a folder of them", metavar="DIR", reader=Path)
    out: Path = option(Path("runs/dqn-evidence"), "folder of the evidence; a second call goes on with it")
    predict: Path | None = option(None, "a plan of your own", metavar="FILE", reader=Path)
    states: int = option(_dqn_measure.STATES, "states of each run that are kept")
    retry_failed: bool = option(False, "read runs again that had not ended")


# FREE of a run's settings: they change what is shown or how fast, not what is learned.
ASIDE = ("rng_seed", "out", "resume", "threads", "checkpoint_every", "pictures", "tensorboard", "log_every")

# -------------------------------------------------------------------------------------------------------------- Trials


def assigned(plan: Plan, found: Sequence[Found]) -> dict[tuple[str, int], Found]:
    """(arm, rng_seed) -> the run.

    Raises:
        UsageError: a run that fits no arm or several, two runs of one arm and seed, or runs of an arm that differ in a
            setting that the arm does not name.
    """
    chosen: dict[tuple[str, int], Found] = {}
    for one in found:
        misfits = {arm: _misfits(config, one.args) for arm, config in plan.arms.items()}
        fits = [arm for arm, wrong in misfits.items() if not wrong]
        if len(fits) != 1:
            nearest = min(misfits, key=lambda arm: len(misfits[arm]))
            has = ", ".join(misfits[nearest]) or "all that they name"
            named = ", ".join(f"{key}={value}" for key, value in plan.arms[nearest].items())
            raise _refused(
                f"{one.folder}, which fits {len(fits)} arms: it has {has}",
                f"one arm of {', '.join(plan.arms)}; {nearest} has {named}",
                "--predict a plan whose arms name the settings of these runs",
            )
        key = (fits[0], one.rng_seed)
        if key in chosen:
            both = f"{chosen[key].folder} and {one.folder}, both {key[0]}, seed {key[1]}"
            raise _refused(both, "one run of each", "move one of them away")
        others = [run for (arm, _), run in chosen.items() if arm == fits[0]]
        differ = [name for other in others[:1] for name in _differ(other.args, one.args)]
        if differ:
            raise _refused(
                f"{others[0].folder} and {one.folder}, of one arm, with different {', '.join(differ)}",
                "runs that differ in the seed alone",
                "make two arms of them that name this setting",
            )
        chosen[key] = one
    return chosen


@dataclass(frozen=True)
class Reader:
    """The experiment of this recipe: (settings of an arm, rng_seed) -> what the finished run of it left."""

    arms: Mapping[str, Mapping[str, Any]]
    chosen: Mapping[tuple[str, int], Found]
    states: int

    def __call__(self, config: Mapping[str, Any], rng_seed: int) -> Outcome:
        arm = next(name for name, settings in self.arms.items() if dict(settings) == dict(config))
        found = self.chosen.get((arm, rng_seed))
        if found is None:
            missing = f"no run of {arm}, seed {rng_seed}"
            raise _refused(missing, "one: the plan asks for it", "run it, then --retry-failed here")
        return _dqn_measure.measure(found, states=self.states)


# ----------------------------------------------------------------------------------------------------------------- Run


def train(args: Args) -> dict[str, Any]:
    """Register (or confirm) the plan, read the runs, judge, save. Returns what it writes to `results.json`."""
    found = _dqn_measure.runs(args.runs)
    version, chosen = _registered(args, found)
    reader = Reader(version.plan.arms, chosen, args.states)
    ran = _lab.run_plan(reader, version, args.out, workers=1, retry_failed=args.retry_failed)
    record = TrialRecord(args.out)
    kept = [record.predictions(one.trial.id) for one in ran.finished]
    columns = compare.columns(record.latest())
    told: dict[str, Any] = {
        "recipe": "dqn_evidence",
        "env": found[0].args["env"],
        "precision": found[0].args["precision"],
        "plan": version.sha256,
        "registered": version.at,
        "hypotheses": [one.record() for one in ran.judgements],
        "trials": [_row(one) for one in ran.attempts],
        "runs": [_dqn_evidence.copy(chosen.get(_key(one)), args.out, *_key(one)) for one in ran.finished],
        "beginnings": _dqn_evidence.beginnings(list(chosen.values()), version),
    }
    if kept:
        told["evaluation_episodes"] = len(kept[0]["evaluation_return"])
        told["saved_states"] = len(kept[0]["action"])
        told |= _dqn_evidence.scale(kept[0], columns)
    print(seed_table(told["trials"]))
    print(_lab.table(ran.judgements), flush=True)
    _folder.write_json(args.out / "results.json", plain(told))  # a loss that is no number is told as such
    if kept:
        _dqn_evidence.leave(args.out, ran.finished[0], ran.finished, kept, again=ran.anew)
    print(f"-> {args.out / 'results.json'}", flush=True)
    return told


def _registered(args: Args, found: Sequence[Found]) -> tuple[lock.Version, dict[tuple[str, int], Found]]:
    """The plan with the runs of its arms. One that is registered in the folder counts where none is given; a new one is
    registered once the runs are seen to fit it."""
    known = lock.versions(args.out) if args.out.exists() else []
    if known and args.predict is None:
        return known[-1], assigned(known[-1].plan, found)
    path = args.predict or _lab.PLANS / "dqn_atari.toml"
    chosen = assigned(hypothesis.read(path), found)
    return lock.lock(args.out, path), chosen


def seed_table(trials: Sequence[Mapping[str, Any]]) -> str:
    """Every trial, failed ones too."""
    heads = f"{'evaluation':>10}  {'above random':>12}  {'last games':>10}  {'Q - came':>9}"
    lines = ["", f"{'arm':<12} {'seed':>4}  {heads}"]
    for one in trials:
        figures = f"{one['status']}: {one['error']}"
        if one["status"] == "finished":
            last = f"{one['last_games']:>10.2f}" if "last_games" in one else f"{'-':>10}"
            figures = f"{one['evaluation']:>10.2f}  {one['above_random']:>12.2f}  {last}  {one['value_bias']:>9.3f}"
        lines.append(f"{one['arm']:<12} {one['rng_seed']:>4}  {figures}")
    return "\n".join(lines)


def repredict(folder: Path, one: Trial, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What the saved weights of a run say to its saved states, in float32, here and now."""
    player = _dqn_evidence.player_of(folder, one.arm, one.rng_seed, arrays, precision="fp32")
    values = player.values(arrays["state"])
    return {"value": values, "greedy": values.argmax(axis=1)}


def experiment(config: Mapping[str, Any], rng_seed: int) -> Outcome:
    """A run of an arm trained anew, and measured: for `gradledger retrain`."""
    with tempfile.TemporaryDirectory() as scratch:
        return _dqn_measure.anew(config, rng_seed, Path(scratch) / "run")


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """The command line. Returns the exit code: 0 it ran (verdicts are its result), 2 it could not."""
    return _main.simple(Args, {"all": {}}, train, argv, recipe=RECIPE, description=__doc__ or "", prog=prog)


def _row(one: Attempt) -> dict[str, Any]:
    numbers = {name: value for name, value in (one.quantities or {}).items() if not isinstance(value, list)}
    told = {"arm": one.trial.arm, "rng_seed": one.trial.rng_seed, "status": one.status, "error": one.error}
    return told | {"attempts": one.number} | numbers


def _key(one: Attempt) -> tuple[str, int]:
    return one.trial.arm, one.trial.rng_seed


def _misfits(config: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
    return [f"{name}={args.get(name)}" for name, value in config.items() if args.get(name) != value]


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted(n for n in {*one, *other} - set(ASIDE) if one.get(n) != other.get(n))


def _refused(got: str, wanted: str, next_step: str) -> UsageError:
    return UsageError(got=got, wanted=wanted, where="gradledger run dqn_evidence", next_step=next_step)


if __name__ == "__main__":
    sys.exit(main())
