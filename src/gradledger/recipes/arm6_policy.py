"""Behaviour cloning for a simulated 6-joint arm: demonstrations, a cloned policy, and what it reaches, every seed.

    gradledger run arm6_policy --out runs/arm6
    gradledger run arm6_policy --jobs 2 --out runs/arm6

An arm of our own in MuJoCo (models/arm6.xml), eight of them side by side, 50 steps of 1/20 s towards a target. An
expert (damped least squares on the Jacobian) shows 400 episodes; they are written as a LeRobotDataset v3 folder and
read back from it; trajectories of different lengths are padded and masked; a net of 128-128 learns the action from the
observation. Evaluation plays 200 episodes that no demonstration has: success rate and final distance in m, with an
interval over seeds and episodes, beside no action and the mean action.

The plan (plans/arm6_policy.toml) is registered first: five seeds by the sweep, the same five by `loss.backward`, one
that is stopped at a random step and goes on; five without noise in the demonstrations, three that do not see the
target. Trials that are finished are not run again: the same command goes on where it was stopped.

The folder holds demonstrations/ (LeRobot v3), the registered plan, trials.jsonl, predictions/, results.json,
model.safetensors (of the first seed), learnable.json and pose_map.npz (what can be learned, before training),
slices.json, worst.json, latency.json, rejections.json, environment.json, card.toml and the card made from it
(README.md), report.html and pictures, and is sealed: `gradledger verify`, `rescore`, `repredict`, `retrain` check it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gradledger.core.files import usual_mode
from gradledger.data.collate import Pad, masked_mean
from gradledger.data.loader import Loader
from gradledger.evidence import bundle, lock
from gradledger.evidence.record import TrialRecord
from gradledger.evidence.trial import Outcome, Trial
from gradledger.recipes import (
    _arm6_demos,
    _arm6_evidence,
    _arm6_pictures,
    _arm6_policies,
    _folder,
    _lab,
    _main,
    _resumed,
)
from gradledger.recipes._arm6_env import WIDTHS
from gradledger.recipes._arm6_rollout import play
from gradledger.recipes._command_line import option
from gradledger.recipes._registry import Recipe
from gradledger.recipes.ik_planar import fingerprint
from gradledger.sweep import Sweep
from gradledger.train import GradientEngine, PlainBackward, RunState, seed, steps

RECIPE = Recipe(
    presets={
        "full": "19 trials of 60 epochs, 200 episodes each: a few minutes on two cores",
        "smoke": "one seed and a few demonstrations: a plumbing test, its verdicts mean nothing",
    },
    default_preset="full",
    extra="robot",
)

# ---------------------------------------------------------------------------------------------------------------- Args


@dataclass(frozen=True)
class Args:
    """Everything that decides a run."""

    preset: str = "full"
    out: Path = option(Path("runs/arm6_policy"), "folder of the run; a second call goes on with it")
    predict: Path | None = option(None, "a plan of your own, registered before the run", metavar="FILE", reader=Path)
    workers: int = option(1, "trials at a time, each in a process", aliases=("--jobs",), metavar="N")
    backend: Literal["processes", "ray"] = option("processes", "what runs them: this machine, or a Ray cluster")
    retry_failed: bool = option(False, "run trials again that failed; their failure stays on record")
    pictures: bool = option(True, "draw trajectories.png, curves.png and, where MuJoCo can render, episode.png")


PRESETS: dict[str, dict[str, Any]] = {"full": {}, "smoke": {}}
NET = "net/"  # before the names of weights among the arrays of a trial
MODEL = "model.safetensors"
WIDTH, RATE, BATCH = 128, 3e-3, 16  # of the net, of Adam, demonstrations in a batch

# -------------------------------------------------------------------------------------------------------------- Blocks


class Standardise(nn.Module):
    """(..., O) observations -> mean 0 and deviation 1 over the training demonstrations; kept with the weights."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("deviation", deviation.clamp(min=1e-3))

    def forward(self, observation: Tensor) -> Tensor:
        """See the class."""
        scaled: Tensor = (observation - self.mean) / self.deviation
        return scaled


def blocks(rng_seed: int, mean: Tensor, deviation: Tensor) -> nn.Sequential:
    """The net as a chain, one block a layer. (..., O) observations -> (..., 6) actions, whatever axes come before.

    Args:
        mean, deviation: (O,) of the training observations.
    """
    torch.manual_seed(seed.derived(rng_seed, "weights"))
    return nn.Sequential(
        Standardise(mean, deviation),
        nn.Sequential(nn.Linear(len(mean), WIDTH), nn.ReLU()),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),
        nn.Linear(WIDTH, 6),
    )


def loss_of(said: Tensor, wanted: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared error over the real entries: said (B, T, 6), wanted = (action (B, T, 6), mask (B, T))."""
    action, mask = wanted
    return masked_mean((said - action).square(), mask)


# ---------------------------------------------------------------------------------------------------------------- Loop


class Training:
    """Everything of one trial, built from (config, rng_seed) alone."""

    def __init__(self, config: Mapping[str, Any], rng_seed: int) -> None:
        self.demos = _arm6_demos.made(config["demonstrations"], config["noise"])
        width = WIDTHS[config["observe"]]
        mean, deviation = (torch.tensor(one[:width]) for one in (self.demos.mean, self.demos.deviation))
        self.net = blocks(rng_seed, mean, deviation)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=RATE)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=config["epochs"])
        self.loader = Loader(
            _arm6_demos.Trajectories(self.demos, self.demos.train, width=width),
            batch_size=BATCH,
            rng_seed=seed.derived(rng_seed, "order"),
            randomness="none",
            collate=Pad(("observation", "action")),
        )
        engine: Literal["sweep", "autograd"] = config["engine"]
        make = Sweep if engine == "sweep" else PlainBackward
        self.engine: GradientEngine = make(self.net, loss_of)
        self.state = RunState(
            net=self.net, optimizer=self.optimizer, scheduler=self.scheduler, order=self.loader, counters={"epoch": 0}
        )
        self.losses: list[float] = []

    def batches(self) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
        """What is left of the epoch: (B, T, O) observations, and (B, T, 6) actions with their (B, T) mask."""
        for batch in self.loader:
            yield batch["observation"], (batch["action"], batch["mask"])

    def epoch(self, *, until: int | None = None) -> None:
        """The rest of the current epoch; `until` stops it after so many optimizer steps in all."""
        counters, total, count = self.state.counters, torch.zeros(()), 0
        for told in steps(self.engine, self.optimizer, self.batches()):
            counters["optimizer_step"] += 1
            total, count = total + told.loss, count + 1
            if counters["optimizer_step"] == until and self.loader.epoch == counters["epoch"]:
                return  # in the middle; after its last batch an epoch is ended first, or it would be played twice
        self.scheduler.step()
        counters["epoch"] += 1
        self.losses.append(float(total / count))


def experiment(config: Mapping[str, Any], rng_seed: int) -> Outcome:
    """One trial of the plan. With `interrupt`, it is stopped at a step drawn from the seed, in the middle of an epoch,
    and a new process's worth of objects goes on from its checkpoint."""
    torch.set_num_threads(1)
    return evaluate(_resumed.trained(lambda: Training(config, rng_seed), config, rng_seed), config)


# ------------------------------------------------------------------------------------------------------------ Evaluate


def evaluate(run: Training, config: Mapping[str, Any]) -> Outcome:
    """Errors over the demonstrations, then episodes; the same ones for every trial and for the two baselines."""
    width = WIDTHS[config["observe"]]
    errors, arrays = {}, {}
    with torch.no_grad():
        for name, side in (("train", run.demos.train), ("validation", run.demos.held_out)):
            seen, wanted = run.demos.frames(side)
            seen = np.ascontiguousarray(seen[:, :width])
            said = run.net(torch.from_numpy(seen)).numpy()
            errors[name] = float(np.square(said - wanted, dtype=np.float64).mean())
            arrays = {"observation": seen, "action": wanted, "said": said}  # of the last, the held-out side
    played = play(
        _arm6_policies.of_net(run.net), _arm6_policies.episodes(config["episodes"]), observe=config["observe"]
    )
    beaten = _arm6_policies.to_beat(config["demonstrations"], config["noise"], config["episodes"])
    figures = {name: value for name, value in _arm6_policies.reached(played).items() if name != "episodes"}
    final = played.final
    return Outcome(
        {
            **figures,
            "success_above_baselines": figures["success_rate"] - max(float(one.reached.mean()) for one in beaten),
            "distance_below_baselines_m": min(float(one.final.mean()) for one in beaten) - figures["final_distance_m"],
            **errors,
            "weights": fingerprint(run.net.parameters()),
            "demonstrations": run.demos.fingerprint,
            "losses": run.losses,
        },
        arrays
        | {"episode_seed": played.seeds, "start": played.hands[:, 0], "target": played.targets}
        | {"hand": played.hands[:, -1], "final": final, "nothing": np.zeros_like(final)}
        | {"reached": played.reached, "asked": np.ones_like(played.reached)}
        | {NET + name: tensor.numpy() for name, tensor in run.net.state_dict().items()},
    )


# ----------------------------------------------------------------------------------------------------------------- Run


def train(args: Args) -> dict[str, Any]:
    """Register, run, judge, save. Returns what it writes to `results.json`."""
    args.out.mkdir(parents=True, exist_ok=True)
    version = lock.lock(args.out, _plan(args))
    if not any(one.plan == version.sha256 for one in bundle.openings(args.out)):
        bundle.open_labels(args.out)  # every trial ends with the held-out demonstrations
    ran = _lab.run_plan(
        experiment, version, args.out, workers=args.workers, backend=args.backend, retry_failed=args.retry_failed
    )
    told: dict[str, Any] = {
        "recipe": "arm6_policy",
        "kind": "plumbing test" if args.preset == "smoke" else "experiment",
        "plan": version.sha256,
        "hypotheses": [one.record() for one in ran.judgements],
        "trials": [
            {"arm": one.trial.arm, "rng_seed": one.trial.rng_seed, "status": one.status, "error": one.error}
            | {name: value for name, value in (one.quantities or {}).items() if name != "losses"}
            for one in ran.attempts
        ],
    }
    print(seed_table(told["trials"]))
    print(_lab.table(ran.judgements), flush=True)
    if ran.finished:
        record, first = TrialRecord(args.out), ran.finished[0]
        kept = record.predictions(first.trial.id)
        told["model"] = {"arm": first.trial.arm, "rng_seed": first.trial.rng_seed} | {
            name: value for name, value in (first.quantities or {}).items() if name != "losses"
        }
        told["over_seeds"] = _arm6_evidence.over_seeds(record, ran.finished)
        demos = _arm6_evidence.keep_demonstrations(args.out, first)
        # what is measured or drawn once is read back, so that a second call on a sealed folder leaves it as it was
        there = not ran.anew and (args.out / "results.json").exists()
        before = _folder.read_json(args.out / "results.json") if there else {}
        told["baselines"] = before.get("baselines") or _arm6_evidence.baselines(demos, first.trial.config["episodes"])
        with usual_mode(args.out / MODEL):
            save_file(_weights(kept), args.out / MODEL, metadata={"recipe": "arm6_policy"})
        if ran.anew:
            _arm6_evidence.save_environment(args.out, _folder.plain(args), demos)
        net = weighted(_weights(kept))
        if args.pictures or "pictures" in before:
            told["pictures"] = before.get("pictures") or _arm6_pictures.draw(args.out, ran.finished, net, kept, demos)
        _folder.write_json(args.out / "results.json", told)
        _arm6_evidence.leave(args.out, net, kept, again=ran.anew)
    else:
        _folder.write_json(args.out / "results.json", told)
    print(f"-> {args.out / 'results.json'}", flush=True)
    return told


def seed_table(trials: Sequence[Mapping[str, Any]]) -> str:
    """Every trial, failed ones too."""
    lines = ["", f"{'arm':<14} {'seed':>4}  {'success':>7}  {'final m':>8}  {'median m':>8}  {'action error':>12}"]
    for one in trials:
        if one["status"] == "finished":
            distances = f"{one['final_distance_m']:>8.4f}  {one['median_final_distance_m']:>8.4f}"
            figures = f"{one['success_rate']:>7.3f}  {distances}  {one['validation']:>12.6f}"
        else:
            figures = f"{one['status']}: {one['error']}"
        lines.append(f"{one['arm']:<14} {one['rng_seed']:>4}  {figures}")
    return "\n".join(lines)


SMOKE = (
    ("epochs = 60", "epochs = 2"),
    ("demonstrations = 400", "demonstrations = 40"),
    ("episodes = 200", "episodes = 8"),
    ("rng_seeds = [0, 1, 2, 3, 4]", "rng_seeds = [0]"),
    ("rng_seeds = [0, 1, 2]", "rng_seeds = [0]"),
)


def _plan(args: Args) -> Path:
    if args.predict is not None:
        return args.predict
    shipped = _lab.PLANS / "arm6_policy.toml"
    if args.preset != "smoke":
        return shipped
    text = shipped.read_text(encoding="utf-8")
    for full, smoke in SMOKE:
        text = text.replace(full, smoke)
    path = args.out / "plan.smoke.toml"
    path.write_text(text, encoding="utf-8")
    return path


def repredict(folder: Path, one: Trial, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What the saved weights of a trial say now: the actions to the saved observations, and where the hand ends in the
    saved episodes, played again; of the trial whose weights are in `model.safetensors`, those of that file."""
    model = _folder.read_json(folder / "results.json")["model"]
    weights = _weights(arrays)
    if (model["arm"], model["rng_seed"]) == (one.arm, one.rng_seed):
        weights = load_file(folder / MODEL)
    net, threads = weighted(weights), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            said = net(torch.from_numpy(arrays["observation"])).numpy()
        played = play(
            _arm6_policies.of_net(net), arrays["episode_seed"].tolist(), observe=one.config.get("observe", "target")
        )
    finally:
        torch.set_num_threads(threads)
    return {"said": said, "hand": played.hands[:, -1]}


def weighted(weights: Mapping[str, Tensor]) -> nn.Sequential:
    """The net with these weights, as wide as they are."""
    net = blocks(0, weights["0.mean"], weights["0.deviation"])
    net.load_state_dict(dict(weights))
    return net


def _weights(kept: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name.removeprefix(NET): torch.from_numpy(kept[name]) for name in kept if name.startswith(NET)}


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """The command line. Returns the exit code: 0 it ran (verdicts are its result), 2 it could not."""
    return _main.simple(Args, PRESETS, train, argv, recipe=RECIPE, description=__doc__ or "", prog=prog)


if __name__ == "__main__":
    sys.exit(main())
