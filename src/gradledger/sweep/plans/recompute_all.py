"""Run every block twice: each block is a segment of its own, all boundaries are held."""

from __future__ import annotations

from gradledger.sweep._cost import Costs
from gradledger.sweep._plan import Item, Keep, Plan, Segment
from gradledger.sweep._planners import Planner, check_budget, within


def plan(costs: Costs, *, budget: int | None = None) -> Plan:
    """The plan `(0) (1) ... loss`; blocks that cannot be replayed are kept.

    With a budget, BudgetError where it does not fit.
    """
    forced = costs.forced
    last = len(costs) - 1
    items: tuple[Item, ...] = tuple(
        Keep(i) if i in forced or i == last else Segment((Keep(i),)) for i in range(len(costs))
    )
    return within(Plan(items), costs, check_budget(budget), name="recompute_all")


PLANNER = Planner(name="recompute_all", summary="hold every boundary, recompute each block by itself", plan=plan)
