"""Segments of k blocks, the last one kept: the square-root rule.

Reference: Chen, Xu, Zhang, Guestrin (2016), "Training deep nets with sublinear memory cost".
"""

from __future__ import annotations

import math

from gradledger.core.errors import UsageError
from gradledger.sweep._cost import Costs
from gradledger.sweep._plan import Item, Keep, Plan, Segment
from gradledger.sweep._planners import Planner, check_budget, infeasible
from gradledger.sweep._simulate import simulate


def plan(costs: Costs, *, budget: int | None = None, k: int | None = None) -> Plan:
    """Segments of k blocks.

    Args:
        costs: of n blocks, the loss last.
        budget: bytes; without k the fastest k that keeps it is taken.
        k: blocks a segment; the default without a budget is the square root of n - 1, rounded.

    Raises BudgetError where none fits, UsageError for a k below 1.
    """
    budget = check_budget(budget)
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise UsageError(
            got=f"k={k!r}",
            wanted="a whole number, 1 or more",
            where="planner every_k",
            next_step="leave k out for sqrt(n)",
        )
    root = max(1, round(math.sqrt(len(costs) - 1)))
    if budget is None:
        return _segments(costs, root if k is None else k)
    choices = [k] if k is not None else range(1, len(costs) + 1)
    tried = [(simulate(made, costs), made) for made in (_segments(costs, size) for size in choices)]
    fitting = [(s.seconds, s.peak, at) for at, (s, _) in enumerate(tried) if s.peak <= budget]
    if not fitting:
        raise infeasible(budget, min(s.peak for s, _ in tried), name="every_k")
    return tried[min(fitting)[2]][1]


def _segments(costs: Costs, k: int) -> Plan:
    """Blocks that cannot be replayed are kept and end a segment."""
    forced = costs.forced
    items: list[Item] = []
    part: list[Item] = []
    for i in range(len(costs) - 1):
        if i in forced:
            if part:
                items.append(Segment(tuple(part)))
            items.append(Keep(i))
            part = []
            continue
        part.append(Keep(i))
        if len(part) == k and i < len(costs) - 2:
            items.append(Segment(tuple(part)))
            part = []
    # What comes last is reversed at once: running it again would save nothing.
    return Plan((*items, *part, Keep(len(costs) - 1)))


PLANNER = Planner(name="every_k", summary="segments of k blocks (sqrt by default), each run twice", plan=plan)
