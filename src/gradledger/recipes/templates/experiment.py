"""NAME: an experiment whose predictions are registered before it runs.

    python NAME.py              # into runs/NAME; a second call goes on where it was stopped
    python NAME.py FOLDER --jobs 4

The claims are in NAME.toml: change them before the first run, afterwards they are locked. The words of the model card
are in NAME.card.toml; every number in it is a reference into the folder. Then:

    gradledger verify runs/NAME --seal
    gradledger rescore runs/NAME --quantity validation
    gradledger repredict runs/NAME --code NAME.py
    gradledger retrain runs/NAME --code NAME.py
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gradledger.evidence import (
    Outcome,
    Trial,
    compare,
    environment,
    judge,
    live,
    lock,
    model_card,
    report,
    runner,
    tell,
)
from gradledger.evidence.record import TrialRecord

HERE = Path(__file__).resolve()

# ---------------------------------------------------------------------------------------------------------------- Args


@dataclass(frozen=True)
class Args:
    """How it is run. What is run stands in the arms of NAME.toml: it is registered with the claims."""

    folder: Path
    jobs: int = 1
    backend: runner.Backend = "processes"
    retry_failed: bool = False


def arguments() -> Args:
    """Args from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs") / HERE.stem)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trials at a time, each in a process")
    parser.add_argument("--backend", choices=("processes", "ray"), default="processes", help="this machine, or Ray")
    parser.add_argument("--retry-failed", action="store_true", help="run trials again that failed")
    return Args(**vars(parser.parse_args()))


# ---------------------------------------------------------------------------------------------------------- Experiment


def network() -> nn.Sequential:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))


def experiment(config: Mapping[str, Any], rng_seed: int) -> Outcome:
    """One trial: everything it does follows from its settings and its seed. Returns what was measured, and arrays.

    Here: y = sin(3 x) with noise, 128 points to train and 128 held out.
    """
    torch.set_num_threads(1)
    torch.manual_seed(rng_seed)
    x = torch.rand(256, 1) * 2 - 1
    y = torch.sin(3 * x) + 0.1 * torch.randn(256, 1)
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
    losses = []
    for step in range(config["steps"]):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x[:128]), y[:128])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        tell(step + 1, config["steps"], loss=losses[-1])
    with torch.no_grad():
        said = net(x[128:])
        validation = nn.functional.mse_loss(said, y[128:]).item()
        baseline = nn.functional.mse_loss(y[:128].mean().expand_as(said), y[128:]).item()
    return Outcome(
        {"validation": validation, "baseline": baseline, "share_of_baseline": validation / baseline, "losses": losses},
        {"x": x[128:].numpy(), "target": y[128:].numpy(), "prediction": said.numpy()}
        | {f"net/{name}": tensor.numpy() for name, tensor in net.state_dict().items()},
    )


def repredict(folder: Path, trial: Trial, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """For `gradledger repredict`: what the saved weights of a trial say to its saved points, here and now."""
    torch.set_num_threads(1)
    net = network()
    net.load_state_dict({name: torch.from_numpy(arrays[f"net/{name}"]) for name in net.state_dict()})
    with torch.no_grad():
        return {"prediction": net(torch.from_numpy(arrays["x"])).numpy()}


# ----------------------------------------------------------------------------------------------------------------- Run


def main() -> int:
    """Lock the plan, run the trials that have not finished, judge, and write down what came of it."""
    args = arguments()
    out = args.folder
    version = lock.lock(out, HERE.with_suffix(".toml"))
    try:
        attempts = live.run_shown(
            experiment,
            runner.trials_of(version.plan),
            out,
            plan=version.sha256,
            workers=args.jobs,
            backend=args.backend,
            retry_failed=args.retry_failed,
        )
    except KeyboardInterrupt:
        print(f"interrupted; to go on: {shlex.join(['python', *sys.argv])}", file=sys.stderr)
        return 130
    rows: list[dict[str, Any]] = []
    for one in attempts:
        rows.append({"arm": one.trial.arm, "rng_seed": one.trial.rng_seed, "status": one.status, "error": one.error})
        rows[-1] |= {name: value for name, value in (one.quantities or {}).items() if name != "losses"}
        shown = f"{one.quantities['validation']:.5f}" if one.quantities else f"{one.status}: {one.error}"
        print(f"{one.trial.arm}, seed {one.trial.rng_seed}: {shown}")
    record = TrialRecord(out)
    judged = judge.judge(version.plan, record.measured())
    for verdict in judged:
        print(f"{verdict.id} {verdict.verdict}: {verdict.claim} ({verdict.why})")
    columns = [one for one in compare.columns(record.latest()) if one.quantity == "validation" and one.summary]
    over_seeds = [{"arm": one.arm, "quantity": one.quantity, **asdict(one.summary)} for one in columns if one.summary]
    told = {"experiment": HERE.name, "hypotheses": [one.record() for one in judged]}
    write(out / "results.json", {**told, "trials": rows, "over_seeds": over_seeds, "worst": worst(record)})
    if not (out / "environment.json").exists():
        versions = {"version": torch.__version__, "threads of a trial": 1}
        owners = {f"everything of a trial, seed {seed}": seed for seed in version.plan.rng_seeds}
        write(out / "environment.json", environment.environment(code=HERE.parent, seeds=owners, torch=versions))
    if not (out / model_card.SOURCE).exists():
        shutil.copyfile(HERE.with_suffix(".card.toml"), out / model_card.SOURCE)
    if over_seeds:
        model_card.write(out)
    (out / "report.html").write_text(report.page(report.tell(out)), encoding="utf-8")
    print(f"-> {out / 'report.html'}")
    return 0


def worst(record: TrialRecord) -> list[dict[str, float]]:
    """The five points that the first finished trial misses by most."""
    for one in record.latest().values():
        if one.status == "finished":
            kept = record.predictions(one.trial.id)
            away = np.abs(kept["prediction"] - kept["target"])[:, 0]
            order = np.argsort(-away)[:5]
            return [{"x": float(kept["x"][at, 0]), "off_by": float(away[at])} for at in order]
    return []


def write(path: Path, told: Mapping[str, Any]) -> None:
    """A document of the folder."""
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
