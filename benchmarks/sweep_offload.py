"""Moving out to disk against recompute, and both together: bytes and seconds at the same budget.  The 39-block chain.

    python benchmarks/sweep_offload.py [--quick] [--models chain39 transformer]

All take turns in one run.  At each budget stand the plan that only moves out, the plan that only recomputes and the one
that may do both; `save_on_cpu` and the plain backward stand beside them.  Seconds are wall seconds, since a fetch runs
beside the computing; CPU seconds, in which the reading thread counts as well, stand in the last column.  The file is
written through the system's cache of files, as a step does it: a slower disk shows only once that cache is full.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import sweep_models as models
import torch
from _alternate import Goals, alternate, arguments, finish, mb, table
from sweep_peers import Entry, Method, compare, plain, save_on_cpu, sweep

from gradledger.sweep import BudgetError
from gradledger.sweep._shipment import bandwidth

SHARES = (0.6, 0.4, 0.25)


def moved(budget: object, *, recompute: bool, said: dict[str, tuple[int, float]], name: str) -> Method:
    """Ours with the offload planner, to disk; notes predicted bytes and seconds."""

    def method(problem: models.Problem):
        from gradledger import sweep as library

        planned = library.plan(
            problem.blocks,
            example=(problem.x, problem.y),
            loss=problem.loss_fn,
            budget=budget,
            planner="offload",
            place="disk",
            recompute=recompute,
        )
        said[name] = planned.peak, planned.predicted.seconds
        driver = library.Sweep(problem.blocks, problem.loss_fn, plan=planned)
        return lambda: driver.backward(problem.x, problem.y)

    return method


def paired(mine: Sequence[float], theirs: Sequence[float]) -> str:
    """Median and quartiles of the ratios within the rounds."""
    ratios = sorted(a / b for a, b in zip(mine, theirs, strict=True))
    if len(ratios) < 4:
        return f"{statistics.median(ratios):.2f}x"
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f}x [{low:.2f}-{high:.2f}]"


def main() -> None:
    """One table a model."""

    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--models", nargs="+", choices=["chain39", "transformer"], default=["chain39"])

    given = arguments(__doc__, rounds=11, quick=3, more=more)
    goals = Goals()
    print(f"  disk, as probed: {bandwidth('disk', torch.device('cpu')) / 1e6:.0f} MB/s (the slower of the two ways)")
    for name in given.models:
        make = models.THREE[name]
        whole = Entry.of(plain, make)
        size = whole.peak()
        said: dict[str, tuple[int, float]] = {}
        ways: dict[str, Method] = {"loss.backward": plain, "sweep keep-all": sweep(), "save_on_cpu": save_on_cpu}
        budgets: list[object] = [int(share * size) for share in SHARES[:: 2 if given.quick else 1]]
        for budget in (*budgets, "min"):
            label = budget if isinstance(budget, str) else f"{budget / size:.0%}"
            ways[f"moved out, {label}"] = moved(budget, recompute=False, said=said, name=f"moved out, {label}")
            ways[f"recomputed, {label}"] = sweep(budget)
            ways[f"both, {label}"] = moved(budget, recompute=True, said=said, name=f"both, {label}")
        entries: dict[str, Entry] = {}
        for label, method in ways.items():
            try:
                entries[label] = Entry.of(method, make)
            except BudgetError as error:
                print(f"  {label}: {error}")
        base = entries["loss.backward"]
        for label, entry in entries.items():
            if "," in label:
                verdict = compare(base, entry)
                goals.holds(
                    f"{name}: {label} leaves what loss.backward leaves, to the bit", verdict.exact, str(verdict)
                )
        turns = alternate(entries, rounds=given.rounds, warm=1)
        peaks = {label: entry.peak() for label, entry in entries.items()}
        rows = []
        for label in entries:
            mine, theirs = turns[label], turns["loss.backward"]
            predicted = f"{peaks[label] / said[label][0]:.3f}x" if label in said else "-"
            rows.append(
                (
                    label,
                    mb(peaks[label]),
                    f"{peaks[label] / size:.3f}x",
                    predicted,
                    paired(mine.wall, theirs.wall),
                    paired(mine.cpu, theirs.cpu),
                )
            )
        print(f"\n{name}: against loss.backward, {mb(size)} MB, {turns['loss.backward'].median * 1e3:.0f} ms of CPU")
        table(rows, ("way", "peak MB", "of plain", "of predicted", "wall", "CPU"))
        for label, (peak, _) in said.items():
            if label in entries:
                goals.holds(
                    f"{name}: {label} within 2 % of its prediction",
                    0.98 * peak <= peaks[label] <= 1.02 * peak,
                    f"{peaks[label]} of {peak}",
                )
    finish(goals, given)


if __name__ == "__main__":
    main()
