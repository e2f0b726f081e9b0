"""The product's DQN as a process that learns so many steps when it is told to: a contestant of `dqn_vs_sb3.py`.

Reads lines on standard input, each a number of environment steps to learn for, and answers each with one line of JSON.
The first answer, unasked, says what was built.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

from gradledger.recipes.dqn_atari import Args, Run


def main() -> None:
    asked = json.loads(sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr  # what the recipe prints is no answer
    with tempfile.TemporaryDirectory() as folder:
        args = Args(
            env=asked["game"],
            out=Path(folder),
            engine=asked["engine"],
            precision=asked["precision"],
            threads=asked["threads"],
            total_steps=10**9,
            lanes=asked["lanes"],
            replay=asked["replay"],
            learning_starts=asked["learning_starts"],
            update_every=asked["update_every"],
            batch=asked["batch"],
            target_sync=asked["target_sync"],
            epsilon_first=0.1,
            epsilon_last=0.1,
            log_every=10**9,
            checkpoint_every=10**9,
        )
        torch.set_flush_denormal(args.flush_denormal)
        run = Run(args)

        def learn(steps: int) -> None:
            before, updates = run.counters.env_step, run.counters.optimizer_step
            run.clock.spent.clear()
            wall, cpu = time.perf_counter(), time.process_time()
            while run.counters.env_step < before + steps:
                run.tick()
            answer = {
                "wall": time.perf_counter() - wall,
                "cpu": time.process_time() - cpu,
                "steps": run.counters.env_step - before,
                "updates": run.counters.optimizer_step - updates,
                "parts": dict(run.clock.spent),
                "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
            print(json.dumps(answer), file=answers, flush=True)

        built = {
            "replay_bytes": run.replay.nbytes,
            "parameters": sum(parameter.numel() for parameter in run.online.parameters()),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "environment": run.lanes.settings,
        }
        print(json.dumps(built), file=answers, flush=True)
        for line in sys.stdin:
            learn(int(line))
        run.lanes.close()


if __name__ == "__main__":
    main()
