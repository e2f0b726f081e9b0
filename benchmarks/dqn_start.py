"""How soon a Q-network begins to tell Pong's states apart, by how its weights start.

    python benchmarks/dqn_start.py [--updates 2500] [--n-step 5] [--learning-rate 2e-4] [--rng-seed 3]
                                   [--initial torch he]

Plays 10,000 random steps of Pong, the same ones for each way to start, and then only learns from them: nothing but the
first weights differs. Shown are how much each block's output differs over 256 of these states (the mean over its units
of the standard deviation over states), and the mean loss of every 500 updates. A network that gives one value for all
states cannot have less than what the returns of random play vary by; a loss well below that says that it sees the ball.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from gradledger.recipes.dqn_atari import Args, Run

EVERY = 500  # updates from one row, and one copy into the target network, to the next
NEVER = 10**9


def learn(initial: str, given: argparse.Namespace) -> None:
    """One way to start: a line with the spreads, then a line for every so many updates."""
    with tempfile.TemporaryDirectory() as folder:
        args = Args(
            env="pong",
            out=Path(folder),
            initial=initial,
            rng_seed=given.rng_seed,
            total_steps=NEVER,
            learning_starts=10_000,
            update_every=NEVER,
            double=True,
            n_step=given.n_step,
            learning_rate=given.learning_rate,
            log_every=NEVER,
            checkpoint_every=NEVER,
        )
        run = Run(args)
        while run.counters.env_step < args.learning_starts:
            run.tick()
        states = run.inputs(run.replay.sample(256, np.random.default_rng(0), correction=0.5).state)
        spreads = []
        with torch.no_grad():
            for block in run.online:
                states = block(states)
                spreads.append(f"{states.std(0).mean().item():.5f}")
        print(f"{initial:<6} spread over states after each block: {', '.join(spreads)}", flush=True)
        began = time.process_time()
        for update in range(1, given.updates + 1):
            run.update()
            if update % EVERY == 0:
                run.target.sync()
                loss = run.sums["loss"] / run.sums["updates"]
                run.sums = dict.fromkeys(run.sums, 0.0)
                spent = time.process_time() - began
                print(f"{initial:<6} {update:6d} updates  loss {loss:.4f}  {spent:6.0f} CPU s", flush=True)
        run.lanes.close()


def main() -> None:
    """Each way after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=2500)
    parser.add_argument("--n-step", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--rng-seed", type=int, default=3)
    parser.add_argument("--initial", nargs="+", choices=("torch", "he"), default=("torch", "he"))
    given = parser.parse_args()
    for initial in given.initial:
        learn(initial, given)


if __name__ == "__main__":
    main()
