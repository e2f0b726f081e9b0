"""What it takes to decide a schedule: seconds and memory of the planners, against the goals.

    python benchmarks/sweep_solve.py [--blocks 50 200] [--repeats 5] [--budgets 0.35 0.5 0.75]

For each length: the whole of `optimal` (from costs to a checked plan: solve, read off, play through) under budgets
given as parts of what keeping every tape needs, "min", and the other planners beside it.  CPU seconds of one thread,
the median of the repeats; peak of what Python and numpy allocate, from tracemalloc, in a run of its own.  Chains are
drawn at random: convolution-like blocks whose boundaries get smaller, where neighbours share what they save.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import platform
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from gradledger.sweep._cost import BlockCost, Costs
from gradledger.sweep._plan import Plan
from gradledger.sweep._planners import BudgetError, find
from gradledger.sweep._simulate import simulate

GOALS = {50: 0.050, 200: 2.0}
"""Seconds to solve, by number of blocks."""
GOAL_BYTES = 100e6


def chain(blocks: int, rng_seed: int = 0) -> Costs:
    """A chain of so many blocks, the loss last."""
    rng = random.Random(rng_seed)
    storages: list[int] = []

    def new(size: float) -> int:
        storages.append(int(size))
        return len(storages) - 1

    width = [64e6 * 0.25 ** (3 * i // blocks) for i in range(blocks)]
    boundaries = [frozenset[int]()]
    boundaries += [frozenset({new(width[i] * rng.uniform(0.5, 1.5))}) for i in range(blocks - 1)]
    boundaries.append(frozenset({new(4)}))
    sizes = [sum(storages[s] for s in b) for b in boundaries]
    made = []
    for i in range(blocks):
        inner = {new(width[i] * rng.uniform(0.2, 4))} if rng.random() < 0.6 else set()
        saved = (
            inner
            | (boundaries[i] if rng.random() < 0.7 else set())
            | (boundaries[i + 1] if rng.random() < 0.3 else set())
        )
        kept = sum(storages[s] for s in inner)
        scratch, gradients, seconds = int(width[i] * rng.random()), rng.randint(0, 4_000_000), rng.uniform(1e-4, 1e-2)
        made.append(
            BlockCost(
                name=f"block{i}",
                forward_s=seconds,
                record_s=seconds,
                reverse_s=2 * seconds,
                forward_peak=sizes[i + 1] + scratch,
                record_peak=sizes[i + 1] + kept + scratch,
                reverse_peak=(sizes[i] if i else 0) + gradients + scratch,
                saved=frozenset(saved),
                grad_bytes=gradients,
            )
        )
    return Costs(tuple(made), tuple(storages), tuple(boundaries), (0, *sizes[1:]))


def measure(work: Callable[[], Plan], repeats: int) -> tuple[float, float, Plan]:
    """Median CPU seconds, peak bytes, and the plan."""
    spent = []
    for _ in range(repeats):
        started = time.process_time()
        plan = work()
        spent.append(time.process_time() - started)
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return statistics.median(spent), peak, plan


def main() -> None:
    """Print one line a planner and budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.35, 0.5, 0.75])
    arguments = parser.parse_args()
    print(f"python {platform.python_version()}, one thread, median of {arguments.repeats}, random chains")
    print(f"{'blocks':>6} {'planner':14} {'budget':>7} {'solve':>9} {'table':>9} {'peak':>7} {'time':>7}  goal")
    for blocks in arguments.blocks:
        costs = chain(blocks)
        kept = simulate(find("keep_all").plan(costs), costs)
        rows: list[tuple[str, str, int | str]] = [
            (name, f"{part:.0%}", int(part * kept.peak))
            for part in arguments.budgets
            for name in ("optimal", "every_k", "revolve", "offload")
        ]
        for name, label, budget in [*rows, ("budget", "min", "min")]:
            try:
                seconds, peak, plan = measure(partial(find(name).plan, costs, budget=budget), arguments.repeats)
            except BudgetError as error:
                print(f"{blocks:>6} {name:14} {label:>7} needs {error.smallest / kept.peak:.1%}", flush=True)
                continue
            played = simulate(plan, costs)
            verdict = ""
            if name == "optimal" and blocks in GOALS:
                goal = GOALS[blocks]
                verdict = f"<= {goal:g} s: {'yes' if seconds <= goal else 'NO'}, "
                verdict += f"< {GOAL_BYTES / 1e6:.0f} MB: {'yes' if peak < GOAL_BYTES else 'NO'}"
            print(
                f"{blocks:>6} {name:14} {label:>7} {seconds * 1e3:6.0f} ms {peak / 1e6:6.1f} MB "
                f"{played.peak / kept.peak:6.3f}x {played.seconds / kept.seconds:6.3f}x  {verdict}".rstrip(),
                flush=True,
            )


if __name__ == "__main__":
    main()
