"""Row 9: the product of a block in two halves, first for its input (dX), later for its parameters (dW).

    python benchmarks/sweep_split.py [--quick]

The walk takes the input half of every block first.  The parameter half is taken one block later, or after the whole
walk, as the schedules of pipelines want it.  Gradients are compared with those of `loss.backward()` bit by bit.
"""

from __future__ import annotations

import sweep_models as models
from _alternate import Goals, Work, alternate, arguments, finish, mb, ratio, table
from sweep_models import Problem
from sweep_peers import Entry, Method, compare, plain, sweep
from torch import Tensor


def split(late: bool) -> Method:
    """Every block in halves; the second halves one block later, or all at the end."""

    def method(problem: Problem) -> Work:
        from gradledger.sweep import Sweep

        driver = Sweep(problem.blocks, problem.loss_fn)

        def step() -> Tensor:
            waiting = []
            walk = driver.reverse(problem.x, problem.y)
            for event in walk:
                while waiting and not late:
                    waiting.pop().run()
                waiting.append(event.defer_weights())
            # what is left is run by the walk when it ends
            return walk.loss

        return step

    return method


def main() -> None:
    """One line a model."""
    given = arguments(__doc__, rounds=21, quick=5)
    goals = Goals()
    rows = []
    for name, make in (models.THREE | {"linears": models.linears}).items():
        ways = {"plain": plain, "sweep": sweep(), "one block later": split(False), "at the end": split(True)}
        entries = {way: Entry.of(method, make) for way, method in ways.items()}
        peaks = {way: entry.peak() for way, entry in entries.items()}
        verdicts = {way: compare(entries["plain"], entries[way]) for way in ("one block later", "at the end")}
        turns = alternate(entries, rounds=given.rounds, least_s=0.05)
        rows.append(
            (
                name,
                ratio(turns, "one block later", "plain"),
                ratio(turns, "at the end", "plain"),
                ratio(turns, "sweep", "plain"),
                *(mb(peaks[way]) for way in ways),
                ", ".join(str(v) for v in verdicts.values()),
            )
        )
        for way, verdict in verdicts.items():
            goals.at_most(f"{name}: halves, {way} / plain", ratio(turns, way, "plain").median, 1.1)
            goals.holds(f"{name}: halves, {way}, bits of the plain step", verdict.exact, str(verdict))
    head = (
        "model",
        "later / plain",
        "at end / plain",
        "whole / plain",
        "plain MB",
        "whole",
        "later",
        "at end",
        "error",
    )
    table(rows, head, left={8})
    finish(goals, given)


if __name__ == "__main__":
    main()
