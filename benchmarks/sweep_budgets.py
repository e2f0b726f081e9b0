"""Row 3: is a budget kept, is the predicted peak the measured one, and what does it cost?

    python benchmarks/sweep_budgets.py [--quick] [--chains 30] [--models chain39 transformer q_network]

Each chain is profiled once.  Then, for budgets from the smallest that can be kept to what keeping everything needs, a
plan is made, one step is run under it, and the allocator's peak is compared with the budget and with the prediction.
Gradients, loss and buffers under each plan are compared with those of `loss.backward()`, bit by bit.  On the three
models the time of each plan is measured too, all plans and the plain step taking turns.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sweep_models as models
from _alternate import Goals, alternate, arguments, finish, mb, ratio, table
from sweep_models import Problem
from sweep_peers import Entry, Verdict, compare, plain

STEPS = 12  # budgets between the smallest and everything


@dataclass
class Run:
    """One budget on one chain."""

    share: float
    budget: int
    predicted: int
    measured: int
    verdict: Verdict | str
    entry: Entry | None

    @property
    def name(self) -> str:
        """The budget, as the tables have it."""
        return f"{100 * self.share:.1f}%"

    @property
    def ran(self) -> bool:
        """The budget was not refused."""
        return self.measured > 0

    @property
    def kept(self) -> bool:
        """A plan was made and the allocator's peak stayed within the budget."""
        return 0 < self.measured <= self.budget

    @property
    def exact(self) -> bool:
        """Everything the step left behind has the bits of the plain one."""
        return isinstance(self.verdict, Verdict) and self.verdict.exact

    @property
    def off(self) -> float:
        """How far the prediction lies from the measured peak, as a share of the latter; above 0: predicted more."""
        return self.predicted / self.measured - 1 if self.ran else 0.0


def planned(problem: Problem) -> tuple[Any, Callable[[Any], Any]]:
    """Profile once: the smallest plan, and a function from budget to plan."""
    from gradledger import sweep
    from gradledger.sweep import _planning

    first = sweep.plan(problem.blocks, example=(problem.x, problem.y), loss=problem.loss_fn, budget="min")

    def again(budget: Any) -> Any:
        return _planning.solve(first.costs, first.key, first.facts, budget=budget, planner="optimal")

    return first, again


def runs(make: Callable[[], Problem], steps: int) -> Iterator[Run]:
    """Budgets from min to everything on one chain."""
    from gradledger.sweep import BudgetError, Sweep

    problem = make()
    smallest, again = planned(problem)
    everything = smallest.keep_peak
    if smallest.peak >= everything:
        steps = 0  # nothing to be saved on this chain: one budget
    reference = Entry.of(plain, make)
    for k in range(steps + 1):
        budget = smallest.peak + max(0, everything - smallest.peak) * k // max(1, steps)
        try:
            plan = smallest if k == 0 else again(budget)
        except BudgetError as error:
            yield Run(budget / everything, budget, 0, 0, f"refused, wants {error.smallest}", None)
            continue
        driver = Sweep(problem.blocks, problem.loss_fn, plan=plan)
        entry = Entry(problem, functools.partial(driver.backward, problem.x, problem.y))
        measured = entry.peak()
        yield Run(budget / everything, budget, plan.peak, measured, compare(reference, entry), entry)


def main() -> None:
    """Models first, then the random chains, then the verdict over all."""

    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--models", nargs="*", choices=list(models.THREE), default=list(models.THREE))
        parser.add_argument("--chains", type=int, default=None, help="random chains (default 30; 5 when quick)")

    given = arguments(__doc__, rounds=9, quick=3, more=more)
    chains = given.chains if given.chains is not None else (5 if given.quick else 30)
    steps = 4 if given.quick else STEPS
    goals = Goals()
    everything: list[tuple[str, Run]] = []
    for name in given.models:
        make = models.THREE[name]
        started = time.perf_counter()
        done = list(runs(make, steps))
        made = time.perf_counter() - started
        entries = {"plain": Entry.of(plain, make)} | {run.name: run.entry for run in done if run.entry}
        whole = entries["plain"].peak()
        turns = alternate(entries, rounds=given.rounds, warm=1)
        print(f"\n{name}: plain step {mb(whole)} MB, {1e3 * turns['plain'].median:.0f} ms; {made:.0f} s for all plans")
        table(
            [
                (
                    run.name,
                    mb(run.budget),
                    mb(run.predicted),
                    mb(run.measured),
                    "yes" if run.kept else "OVER" if run.ran else "no",
                    f"{100 * run.off:+.2f}%",
                    f"{run.measured / whole:.3f}x",
                    ratio(turns, run.name, "plain") if run.entry else "-",
                    run.verdict,
                )
                for run in done
            ],
            ("budget", "MB", "predicted", "measured", "kept", "off", "of plain", "time of plain", "gradient error"),
        )
        everything += [(name, run) for run in done]
    rows = []
    for rng_seed in range(chains):
        make = functools.partial(models.random_chain, rng_seed)
        done = list(runs(make, steps))
        count = len(make().blocks)
        for run in done:
            run.entry = None  # thirty chains with all their plans need not be alive at once
        everything += [(f"random {rng_seed}", run) for run in done]
        worst = max(done, key=lambda run: abs(run.off))
        low = done[0]
        rows.append(
            (
                f"random {rng_seed}",
                count,
                mb(done[-1].measured),
                f"{low.share:.3f}x",
                sum(run.kept for run in done),
                sum(run.ran and not run.kept for run in done),
                f"{100 * worst.off:+.2f}%",
                sum(run.exact for run in done),
            )
        )
        print(f"\r{rng_seed + 1}/{chains} random chains", end="", flush=True)
    print()
    table(rows, ("chain", "blocks", "MB", "smallest", "kept", "over", "worst off", "exact"))
    refused = [(name, run) for name, run in everything if not run.ran]
    over = [(name, run) for name, run in everything if run.ran and not run.kept]
    far = [(name, run) for name, run in everything if abs(run.off) > 0.02]
    wrong = [(name, run) for name, run in everything if not run.exact and run.ran]
    for what, which in (("refused", refused), ("over", over), ("off by more than 2 %", far), ("not exact", wrong)):
        for name, run in which[:10]:
            print(
                f"  {what}: {name} at {mb(run.budget)} MB: predicted {mb(run.predicted)}, measured {mb(run.measured)}, "
                f"gradient error {run.verdict}"
            )
    count = len(everything)
    goals.holds("every budget from the smallest up has a plan", not refused, f"{count - len(refused)} of {count}")
    goals.holds("budgets kept", not over, f"{count - len(over)} of {count}")
    goals.holds("peak within 2 % of the prediction", not far, f"{count - len(far)} of {count}")
    goals.holds(
        "gradients, loss, buffers, random state equal to the bit", not wrong, f"{count - len(wrong)} of {count}"
    )
    finish(goals, given)


if __name__ == "__main__":
    main()
