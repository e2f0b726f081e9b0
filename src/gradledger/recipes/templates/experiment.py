"""NAME: an experiment whose predictions are registered before it runs.

    python NAME.py              # into runs/NAME; a second call goes on where it was stopped
    python NAME.py FOLDER --jobs 4

The claims are in NAME.toml. Change them before the first run: afterwards they are locked.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradledger.evidence import Outcome, judge, live, lock, report, runner, tell
from gradledger.evidence.record import TrialRecord

HERE = Path(__file__).resolve()


def experiment(config: Mapping[str, Any], rng_seed: int) -> Outcome:
    """One trial: everything it does follows from its settings and its seed. Returns what was measured.

    Here: y = sin(3 x) with noise, 128 points to train and 128 held out, a net of one hidden layer.
    """
    torch.set_num_threads(1)
    torch.manual_seed(rng_seed)
    x = torch.rand(256, 1) * 2 - 1
    y = torch.sin(3 * x) + 0.1 * torch.randn(256, 1)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
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
        {"validation": validation, "share_of_baseline": validation / baseline, "losses": losses},
        {"x": x[128:].numpy(), "target": y[128:].numpy(), "prediction": said.numpy()},
    )


def main() -> int:
    """Lock the plan, run the trials that have not finished, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs") / HERE.stem)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trials at a time, each in a process")
    parser.add_argument("--retry-failed", action="store_true", help="run trials again that failed")
    args = parser.parse_args()
    out = args.folder
    version = lock.lock(out, HERE.with_suffix(".toml"))
    trials = runner.trials_of(version.plan)
    try:
        attempts = live.run_shown(
            experiment, trials, out, plan=version.sha256, workers=args.jobs, retry_failed=args.retry_failed
        )
    except KeyboardInterrupt:
        print(f"interrupted; to go on: {shlex.join(['python', *sys.argv])}", file=sys.stderr)
        return 130
    for one in attempts:
        shown = f"{one.quantities['validation']:.5f}" if one.quantities else f"{one.status}: {one.error}"
        print(f"{one.trial.arm}, seed {one.trial.rng_seed}: {shown}")
    judged = judge.judge(version.plan, TrialRecord(out).measured())
    for verdict in judged:
        print(f"{verdict.id} {verdict.verdict}: {verdict.claim} ({verdict.why})")
    told = {"experiment": HERE.name, "hypotheses": [one.record() for one in judged]}
    (out / "results.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    (out / "report.html").write_text(report.page(report.tell(out)), encoding="utf-8")
    print(f"-> {out / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
