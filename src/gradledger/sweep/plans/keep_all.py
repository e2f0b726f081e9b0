"""Keep every tape: nothing is run twice; the fastest plan, and the plain reverse pass."""

from __future__ import annotations

from gradledger.sweep._cost import Costs
from gradledger.sweep._plan import Keep, Plan
from gradledger.sweep._planners import Planner, check_budget, within


def plan(costs: Costs, *, budget: int | None = None) -> Plan:
    """The plan `0 1 2 ...`; with a budget, BudgetError where it does not fit."""
    whole = Plan(tuple(Keep(i) for i in range(len(costs))))
    return within(whole, costs, check_budget(budget), name="keep_all")


PLANNER = Planner(name="keep_all", summary="keep every tape, run nothing twice", plan=plan)
