"""Inverse kinematics of a 3-link planar arm: the correct pipeline, every seed, by either engine.

    gradledger run ik_planar --out runs/ik
    gradledger run ik_planar --jobs 2 --out runs/ik

Pose (x, y, phi) in, joints (q1, q2, q3) out, both in the ranges of lab_pipeline; a net of 128-128, Adam, cosine over
the epochs. The plan (plans/ik_planar.toml) is registered first: five seeds by the sweep, the same five by
`loss.backward`, and one seed that is stopped at a random step and goes on. Trials that are finished are not run again:
the same command goes on where it was stopped. A copy of this file is a start for a recipe of your own.

The folder holds the registered plan, trials.jsonl, predictions/, results.json, model.safetensors (of the first seed),
slices.json (by region of the workspace), worst.json, latency.json, rejections.json, environment.json, card.toml and the
card made from it (README.md), report.html and, with matplotlib, curves.png and errors.png. `gradledger verify`,
`rescore`, `repredict` and `retrain` check it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import TensorDataset

from gradledger.core.files import usual_mode
from gradledger.data.loader import Loader
from gradledger.evidence import bundle, compare, lock
from gradledger.evidence.record import TrialRecord
from gradledger.evidence.trial import Outcome, Trial
from gradledger.recipes import _folder, _ik_evidence, _ik_pictures, _lab, _lab_pipeline, _main, _resumed
from gradledger.recipes._command_line import option
from gradledger.recipes._registry import Recipe
from gradledger.sweep import Sweep
from gradledger.train import GradientEngine, PlainBackward, RunState, seed, steps

RECIPE = Recipe(
    presets={
        "full": "five seeds, 40 epochs, both engines: about two minutes on one core",
        "smoke": "two seeds, 2 epochs: a plumbing test, its verdicts mean nothing",
    },
    default_preset="full",
    extra="data",
)

# ---------------------------------------------------------------------------------------------------------------- Args


@dataclass(frozen=True)
class Args:
    """Everything that decides a run."""

    preset: str = "full"
    out: Path = option(Path("runs/ik_planar"), "folder of the run; a second call goes on with it")
    predict: Path | None = option(None, "a plan of your own, registered before the run", metavar="FILE", reader=Path)
    workers: int = option(1, "trials at a time, each in a process", aliases=("--jobs",), metavar="N")
    backend: Literal["processes", "ray"] = option("processes", "what runs them: this machine, or a Ray cluster")
    retry_failed: bool = option(False, "run trials again that failed; their failure stays on record")
    pictures: bool = option(True, "draw curves.png and errors.png")


NET = "net/"  # before the names of weights among the arrays of a trial
MODEL = "model.safetensors"
CURVES = ("losses", "gradient_norms")  # by epoch
PRESETS: dict[str, dict[str, Any]] = {"full": {}, "smoke": {}}

# -------------------------------------------------------------------------------------------------------------- Blocks


def blocks(rng_seed: int) -> nn.Sequential:
    """The net as a chain: one block a layer. (B, 3) pose -> (B, 3) joints."""
    torch.manual_seed(seed.derived(rng_seed, "weights"))
    width = _lab_pipeline.WIDTH
    return nn.Sequential(
        nn.Sequential(nn.Linear(3, width), nn.ReLU()),
        nn.Sequential(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 3),
    )


# ---------------------------------------------------------------------------------------------------------------- Loop


class Training:
    """Everything of one trial, built from (config, rng_seed) alone."""

    def __init__(self, config: Mapping[str, Any], rng_seed: int) -> None:
        self.data = _lab_pipeline.make_data()
        self.net = blocks(rng_seed)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=_lab_pipeline.RATE)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=config["epochs"])
        self.loader = Loader(
            TensorDataset(self.data.train_pose, self.data.train_joints),
            batch_size=_lab_pipeline.BATCH,
            rng_seed=seed.derived(rng_seed, "order"),
            randomness="none",
        )
        engine: Literal["sweep", "autograd"] = config["engine"]
        make = Sweep if engine == "sweep" else PlainBackward
        self.engine: GradientEngine = make(self.net, nn.functional.mse_loss)
        self.state = RunState(
            net=self.net, optimizer=self.optimizer, scheduler=self.scheduler, order=self.loader, counters={"epoch": 0}
        )
        self.losses: list[float] = []
        self.gradient_norms: list[float] = []

    def epoch(self, *, until: int | None = None) -> None:
        """The rest of the current epoch; `until` stops it after so many optimizer steps in all."""
        counters, total, count, norms = self.state.counters, torch.zeros(()), 0, torch.zeros(())
        for told in steps(self.engine, self.optimizer, self.loader):
            counters["optimizer_step"] += 1
            total, count = total + told.loss, count + 1
            norms = norms + nn.utils.get_total_norm([p.grad for p in self.net.parameters() if p.grad is not None])
            if counters["optimizer_step"] == until and self.loader.epoch == counters["epoch"]:
                return  # in the middle; after its last batch an epoch is ended first, or it would be played twice
        self.scheduler.step()
        counters["epoch"] += 1
        self.losses.append(float(total / count))
        self.gradient_norms.append(float(norms / count))


def experiment(config: Mapping[str, Any], rng_seed: int) -> Outcome:
    """One trial of the plan. With `interrupt`, it is stopped at a step drawn from the seed, in the middle of an epoch,
    and a new process's worth of objects goes on from its checkpoint."""
    torch.set_num_threads(1)
    return evaluate(_resumed.trained(lambda: Training(config, rng_seed), config, rng_seed, series=CURVES))


# ------------------------------------------------------------------------------------------------------------ Evaluate


def evaluate(run: Training) -> Outcome:
    """Errors over the held-out fifth, and what the net said there."""
    data = run.data
    with torch.no_grad():
        said = run.net(data.validation_pose)
        errors = nn.functional.mse_loss(said, data.validation_joints).item()
        train = nn.functional.mse_loss(run.net(data.train_pose), data.train_joints).item()
        reached = _lab_pipeline.forward_kinematics(said)
        away = (reached - data.validation_pose)[:, :2].norm(dim=1)
    return Outcome(
        {
            "validation": errors,
            "train": train,
            "share_of_baseline": errors / data.baseline,
            "median_distance_m": away.median().item(),
            "worst_distance_m": away.max().item(),
            "weights": fingerprint(run.net.parameters()),
            "losses": run.losses,
            "gradient_norms": run.gradient_norms,  # mean over the steps of each epoch, before the step
        },
        {"pose": data.validation_pose.numpy(), "joints": data.validation_joints.numpy(), "said": said.numpy()}
        | {NET + name: tensor.numpy() for name, tensor in run.net.state_dict().items()},
    )


def fingerprint(tensors: Any) -> float:
    """The first 52 bits of the SHA-256 of tensors: a number that float64 holds exactly."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return float(int.from_bytes(digest.digest()[:8], "big") >> 12)


# ----------------------------------------------------------------------------------------------------------------- Run


def train(args: Args) -> dict[str, Any]:
    """Register, run, judge, save. Returns what it writes to `results.json`."""
    args.out.mkdir(parents=True, exist_ok=True)
    version = lock.lock(args.out, _plan(args))
    if not any(one.plan == version.sha256 for one in bundle.openings(args.out)):
        bundle.open_labels(args.out)  # every trial ends with the held-out fifth
    record = TrialRecord(args.out)
    ran = _lab.run_plan(
        experiment, version, args.out, workers=args.workers, backend=args.backend, retry_failed=args.retry_failed
    )
    finished = ran.finished
    told: dict[str, Any] = {
        "recipe": "ik_planar",
        "kind": "plumbing test" if args.preset == "smoke" else "experiment",
        "plan": version.sha256,
        "hypotheses": [one.record() for one in ran.judgements],
        "trials": [
            {"arm": one.trial.arm, "rng_seed": one.trial.rng_seed, "status": one.status, "error": one.error}
            | {name: value for name, value in (one.quantities or {}).items() if name not in CURVES}
            for one in ran.attempts
        ],
    }
    data = _lab_pipeline.make_data()
    columns = compare.columns(record.latest())
    told |= _ik_evidence.scale(data, columns)
    told["over_seeds"] = _ik_evidence.over_seeds(columns)
    print(seed_table(told["trials"]))
    print(_lab.table(ran.judgements), flush=True)
    if ran.anew:
        _ik_evidence.save_environment(args.out, {name: str(value) for name, value in vars(args).items()}, data)
    kept: dict[str, Any] = {}
    if finished:
        kept = record.predictions(finished[0].trial.id)
        told["model"] = {"arm": finished[0].trial.arm, "rng_seed": finished[0].trial.rng_seed} | {
            name: value for name, value in (finished[0].quantities or {}).items() if name not in CURVES
        }
        _save_model(args.out, kept)
        if args.pictures:
            told["pictures"] = _ik_pictures.draw(args.out, finished, kept)
    _folder.write_json(args.out / "results.json", told)
    if finished:
        _ik_evidence.leave(args.out, weighted(_weights(kept)), kept, again=ran.anew)
    print(f"-> {args.out / 'results.json'}", flush=True)
    return told


def seed_table(trials: Sequence[Mapping[str, Any]]) -> str:
    """Every trial, failed ones too."""
    lines = ["", f"{'arm':<10} {'seed':>4}  {'validation rad^2':>16}  {'median m':>9}  {'worst m':>9}"]
    for one in trials:
        if one["status"] == "finished":
            figures = f"{one['validation']:>16.6f}  {one['median_distance_m']:>9.4f}  {one['worst_distance_m']:>9.4f}"
        else:
            figures = f"{one['status']}: {one['error']}"
        lines.append(f"{one['arm']:<10} {one['rng_seed']:>4}  {figures}")
    return "\n".join(lines)


def _plan(args: Args) -> Path:
    if args.predict is not None:
        return args.predict
    shipped = _lab.PLANS / "ik_planar.toml"
    if args.preset != "smoke":
        return shipped
    text = shipped.read_text(encoding="utf-8").replace("epochs = 40", "epochs = 2")
    path = args.out / "plan.smoke.toml"
    path.write_text(text.replace("rng_seeds = [0, 1, 2, 3, 4]", "rng_seeds = [0, 1]"), encoding="utf-8")
    return path


def repredict(folder: Path, one: Trial, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What the saved weights of a trial say to its saved poses, here and now; of the trial whose weights are in
    `model.safetensors`, those of that file."""
    model = _folder.read_json(folder / "results.json")["model"]
    weights = _weights(arrays)
    if (model["arm"], model["rng_seed"]) == (one.arm, one.rng_seed):
        weights = load_file(folder / MODEL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return {"said": weighted(weights)(torch.from_numpy(arrays["pose"])).numpy()}
    finally:
        torch.set_num_threads(threads)


def weighted(weights: Mapping[str, torch.Tensor]) -> nn.Sequential:
    """The net with these weights."""
    net = blocks(0)
    net.load_state_dict(dict(weights))
    return net


def _weights(kept: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(NET): torch.from_numpy(kept[name]) for name in kept if name.startswith(NET)}


def _save_model(out: Path, kept: Mapping[str, Any]) -> None:
    """The weights of the first trial, as a file that any program loads."""
    with usual_mode(out / MODEL):
        save_file(_weights(kept), out / MODEL, metadata={"recipe": "ik_planar"})


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """The command line. Returns the exit code: 0 it ran (verdicts are its result), 2 it could not."""
    return _main.simple(Args, PRESETS, train, argv, recipe=RECIPE, description=__doc__ or "", prog=prog)


if __name__ == "__main__":
    sys.exit(main())
