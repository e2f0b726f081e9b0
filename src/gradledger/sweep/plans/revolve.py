"""Binomial checkpointing: least forward runs with a number of held boundaries, one tape at a time, blocks all alike.

Reference: Griewank, Walther (2000), "Algorithm 799: revolve".
"""

from __future__ import annotations

import math

import numpy as np

from gradledger.core.errors import UsageError
from gradledger.sweep._cost import Costs
from gradledger.sweep._plan import Item, Keep, Plan, Segment
from gradledger.sweep._planners import Planner, check_budget, infeasible
from gradledger.sweep._simulate import Simulation, simulate


def plan(costs: Costs, *, budget: int | None = None, snapshots: int | None = None) -> Plan:
    """Binomial plan; a block that cannot be replayed ends a part, and each part has the snapshots to itself.

    Args:
        costs: of n blocks, the loss last.
        budget: bytes; without `snapshots` the fastest number that keeps it is taken.
        snapshots: boundaries held at once beside the input of the part, 0 or more; the default without a budget is the
            binary logarithm of n, rounded up.

    Raises BudgetError where none fits, UsageError for a negative number.
    """
    budget = check_budget(budget)
    if snapshots is not None and (isinstance(snapshots, bool) or not isinstance(snapshots, int) or snapshots < 0):
        raise UsageError(
            got=f"snapshots={snapshots!r}",
            wanted="a whole number, 0 or more",
            where="planner revolve",
            next_step="leave it out for log2(n), or give the number of boundaries that may be held",
        )
    n = len(costs)
    if budget is None:
        return _binomial(costs, math.ceil(math.log2(n + 1)) if snapshots is None else snapshots)
    # More snapshots: more bytes (nearly always) and less time.
    choices = [snapshots] if snapshots is not None else sorted({*range(min(n, 9)), *(n >> b for b in range(8)), n})
    tried: list[tuple[Simulation, Plan]] = []
    for number in choices:
        made = _binomial(costs, number)
        tried.append((simulate(made, costs), made))
    fitting = [(s.seconds, s.peak, at) for at, (s, _) in enumerate(tried) if s.peak <= budget]
    if not fitting:
        raise infeasible(budget, min(s.peak for s, _ in tried), name="revolve")
    return tried[min(fitting)[2]][1]


def _binomial(costs: Costs, snapshots: int) -> Plan:
    forced = costs.forced
    ends = sorted({*forced, len(costs) - 1})
    longest = max(end - start for start, end in zip([-1, *ends], ends, strict=False))
    snapshots = min(snapshots, longest)
    first = _first_parts(longest, snapshots)
    items: list[Item] = []
    start = 0
    for end in ends:
        items.extend(_part(start, end, snapshots, first))
        start = end + 1
    return Plan(tuple(items))


def _first_parts(longest: int, snapshots: int) -> list[list[int]]:
    """For c snapshots and a part of so many blocks, how many blocks to run before the next boundary is held: [c][l]."""
    lengths = range(longest + 1)
    least = np.array([length * (length - 1) / 2 for length in lengths])  # c = 0: always from the start again
    chosen = [[max(length - 1, 0) for length in lengths]]
    for _ in range(snapshots):
        row, picks = np.zeros(longest + 1), [0] * (longest + 1)
        for length in range(2, longest + 1):
            j = np.arange(1, length)
            runs = j + least[length - j] + row[j]
            picks[length] = 1 + int(np.argmin(runs))
            row[length] = runs[picks[length] - 1]
        least = row
        chosen.append(picks)
    return chosen


def _part(start: int, end: int, snapshots: int, first: list[list[int]]) -> list[Item]:
    items: list[Item] = []
    while start < end:
        run = first[snapshots][end - start + 1]
        items.append(Segment(tuple(_part(start, start + run - 1, snapshots, first))))
        start, snapshots = start + run, max(0, snapshots - 1)
    return [*items, Keep(end)]


PLANNER = Planner(name="revolve", summary="binomial: least runs with a number of held boundaries", plan=plan)
