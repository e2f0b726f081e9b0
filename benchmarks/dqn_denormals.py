"""What denormal numbers cost an update of the DQN recipe, and how many there are after so many updates.

    python benchmarks/dqn_denormals.py [--updates 0 1000 2000] [--precision bf16] [--rounds 5] [--game pong]

The setting of `pong-hour` on random play, nothing but updates on it. After each number of updates named, the same
updates are made from the same weights, moments and batches with denormal numbers kept and counted as 0, in turns within
one process, and the CPU time of an update is shown for both: medians over the rounds, and their ratio.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from gradledger.recipes._denormal import flushing
from gradledger.recipes._dqn_presets import PRESETS
from gradledger.recipes.dqn_atari import Args, Run

NEVER = 10**9
BLOCK = 8  # updates timed in one go
SMALLEST = torch.finfo(torch.float32).tiny


def denormals(run: Run) -> tuple[int, int]:
    """(denormal numbers, all numbers) in the weights and Adam's moments."""
    held = [p.detach() for p in run.online.parameters()]
    for state in run.optimizer.state.values():
        held += [value for value in state.values() if torch.is_tensor(value) and value.ndim]
    found = sum(int(((t != 0) & (t.abs() < SMALLEST)).sum()) for t in held)
    return found, sum(t.numel() for t in held)


def timed(run: Run, flush: bool) -> float:
    """CPU milliseconds of an update, from the run's present state, to which it returns."""
    weights = copy.deepcopy(run.online.state_dict())
    moments = copy.deepcopy(run.optimizer.state_dict())
    replay, before = copy.deepcopy(run.rng["replay"]), run.counters.optimizer_step
    with flushing(flush):
        began = time.process_time()
        for _ in range(BLOCK):
            run.update()
        spent = time.process_time() - began
    run.online.load_state_dict(weights)
    run.optimizer.load_state_dict(moments)
    run.publish()
    run.rng["replay"], run.counters.optimizer_step = replay, before
    return spent / BLOCK * 1e3


def main() -> None:
    """Learn, stop at each number of updates, and time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, nargs="+", default=(0, 1000, 2000))
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--game", default="pong")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = {**PRESETS["pong-hour"], "total_steps": NEVER, "update_every": NEVER, "log_every": NEVER}
        args = Args(env=given.game, out=Path(folder), precision=given.precision, checkpoint_every=NEVER, **settings)
        run = Run(args)
        while run.counters.env_step < args.learning_starts:
            run.tick()
        print(f"{given.game}, {given.precision}, torch {torch.__version__}, numpy {np.__version__}", flush=True)
        for updates in sorted(given.updates):
            while run.counters.optimizer_step < updates:
                run.update()
                if run.counters.optimizer_step % 500 == 0:
                    run.target.sync()
            turns = [(timed(run, flush=False), timed(run, flush=True)) for _ in range(given.rounds)]
            kept, flushed = (statistics.median(side) for side in zip(*turns, strict=True))
            ratio = statistics.median(a / b for a, b in turns)
            few, many = denormals(run)
            print(
                f"{updates:6d} updates  denormal {few:8d} of {many}  kept {kept:6.1f} ms  as 0 {flushed:6.1f} ms  "
                f"ratio {ratio:.2f}",
                flush=True,
            )
        run.lanes.close()


if __name__ == "__main__":
    main()
