"""The fastest plan in a byte budget: dynamic programme over heterogeneous chains, persistent schedules.

Reference: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova (2019), "Optimal checkpointing for heterogeneous chains: how
to train deep neural networks with limited memory".  The programme counts what distant blocks share more than once and
rounds to slots; so the budget is kept by playing plans through: the fastest whose *simulated* peak keeps it is taken.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from gradledger.core.errors import UsageError
from gradledger.sweep._cost import Costs
from gradledger.sweep._least import Least
from gradledger.sweep._nominal import Nominal, nominal
from gradledger.sweep._plan import Keep, Plan
from gradledger.sweep._planners import BudgetError, Planner, check_budget, infeasible
from gradledger.sweep._simulate import Simulation, play, simulate
from gradledger.sweep._table import Table
from gradledger.sweep.plans.every_k import plan as every_k
from gradledger.sweep.plans.recompute_all import plan as recompute_all
from gradledger.sweep.plans.revolve import plan as revolve

SLOTS = 500
TABLE_BYTES = 90_000_000
"""Longer chains get fewer slots, down to 100, so that the table stays below this."""

_HEADROOM = 1.06  # rounding may count a plan up to this much too high
_LOW = 12  # plans near the least nominal need that are tried for the least simulated peak
_SHORT = 64  # blocks
_FASTER = (
    3  # plans expected to be faster than the fastest that fits: tried as well, since peaks are not quite monotonic
)


def plan(costs: Costs, *, budget: int | None = None, slots: int = SLOTS) -> Plan:
    """The fastest plan whose simulated peak keeps the budget.

    Args:
        costs: of n blocks, the loss last.
        budget: bytes; None keeps every tape.
        slots: steps in which memory is counted; time and table grow with it.

    Raises BudgetError with the smallest feasible number.
    """
    budget = check_budget(budget)
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise UsageError(
            got=f"slots={slots!r}",
            wanted="a whole number, 1 or more",
            where="planner optimal",
            next_step=f"leave it out for {SLOTS}",
        )
    n = len(costs)
    keep = Plan(tuple(Keep(i) for i in range(n)))
    if budget is None:
        return keep
    kept = simulate(keep, costs)
    if kept.peak <= budget:
        return keep
    chain = nominal(costs)
    slots = _affordable(slots, n)
    most = chain.keep_all()
    top = min(most, int(budget * _HEADROOM * most / kept.peak) + 1)
    table = Table(chain, top=top, slots=slots)
    found = _fastest(table, costs, budget)
    while (
        found is not None and found.slots > 0.97 * table.slots and top < most
    ):  # counted far too high: look further up
        top = min(most, top + top // 2)
        table = Table(chain, top=top, slots=slots)
        further = _fastest(table, costs, budget)
        if further is None or further.simulated.seconds >= found.simulated.seconds:
            break
        found = further
    if found is not None:
        return _no_slower(found.plan, costs, budget)
    del table  # one at a time
    peak, least = _least(costs, chain, slots)
    if peak <= budget:
        return _no_slower(least, costs, budget)
    raise infeasible(budget, peak, name="optimal")


def _no_slower(made: Plan, costs: Costs, budget: int) -> Plan:
    """The plan, or that of a fixed planner which keeps the budget and is faster.

    Rounding to slots counts a plan too high by up to a slot a block: close to the least budget it may hide one.
    """
    best, seconds = made, simulate(made, costs).seconds
    # every_k plays as many plans as there are blocks: on a long chain that would take longer than the table.
    for planner in (recompute_all, revolve, *((every_k,) if len(costs) <= _SHORT else ())):
        try:
            other = planner(costs, budget=budget)
        except BudgetError:
            continue
        taken = simulate(other, costs).seconds
        if taken < seconds:
            best, seconds = other, taken
    return best


def least_peak(costs: Costs, *, slots: int = SLOTS) -> int:
    """The smallest budget, in bytes, that `plan` can keep."""
    return _least(costs, nominal(costs), _affordable(slots, len(costs)))[0]


def least_plan(costs: Costs, *, slots: int = SLOTS) -> Plan:
    """The fastest plan known within `least_peak` bytes."""
    return _least(costs, nominal(costs), _affordable(slots, len(costs)))[1]


def ladder(costs: Costs, *, rungs: int, slots: int = SLOTS) -> list[Plan]:
    """Plans from the least memory to keeping every tape, evenly spaced in nominal bytes; at most `rungs` + 2."""
    n, chain = len(costs), nominal(costs)
    slots = _affordable(slots, n)
    least = _least(costs, chain, slots)[1]
    table = Table(chain, top=chain.keep_all(), slots=slots)
    feasible = np.flatnonzero(np.isfinite(table.seconds()))
    chosen = (
        {int(feasible[at]) for at in np.linspace(0, len(feasible) - 1, rungs).astype(int)} if len(feasible) else set()
    )
    return [least, *(table.plan(m) for m in sorted(chosen)), Plan(tuple(Keep(i) for i in range(n)))]


def _affordable(slots: int, n: int) -> int:
    return max(min(slots, TABLE_BYTES // (4 * n * n) - 1), min(slots, 100))


class _Found(NamedTuple):
    plan: Plan
    slots: int
    simulated: Simulation


def _fastest(table: Table, costs: Costs, budget: int) -> _Found | None:
    """The fastest plan of the table that keeps the budget, by simulation."""
    seconds = table.seconds()
    # Where more memory begins to buy seconds; the plan made at such a place is the smallest of its speed.
    steps = np.flatnonzero(np.isfinite(seconds) & (seconds < np.concatenate([[np.inf], seconds[:-1]]))).tolist()

    @cache
    def attempt(at: int) -> _Found | None:
        made = table.plan(steps[at])
        simulated = play(made.actions(), costs)
        return _Found(made, steps[at], simulated) if simulated.peak <= budget else None

    low = int(np.searchsorted(steps, budget / table.unit, side="right")) - 1
    while low >= 0 and attempt(low) is None:
        low -= 1
    if low < 0:
        return None
    high, stride = low + 1, 1  # low fits; stride up until one does not, then halve
    while high < len(steps) and attempt(high) is not None:
        low, stride = high, 2 * stride
        high = min(low + stride, len(steps)) if low + 1 < len(steps) else len(steps)
    while high - low > 1:
        middle = (low + high) // 2
        if attempt(middle) is not None:
            low = middle
        else:
            high = middle
    tried = [attempt(at) for at in range(low, min(low + 1 + _FASTER, len(steps)))]
    return min((f for f in tried if f is not None), key=lambda found: (found.simulated.seconds, found.simulated.peak))


def _least(costs: Costs, chain: Nominal, slots: int) -> tuple[int, Plan]:
    """The smallest simulated peak we can promise, and its plan; it depends on costs and slots, not on a budget."""
    least = Least(chain)
    table = Table(chain, top=least.bytes + least.bytes // 4, slots=slots)
    made = [least.plan(least.bytes, table), recompute_all(costs)]
    feasible = np.flatnonzero(np.isfinite(table.seconds()))
    if len(feasible):
        made += [table.plan(int(m)) for m in np.unique(feasible[np.linspace(0, len(feasible) - 1, _LOW).astype(int)])]
    ranked = [(played.peak, played.seconds, at) for at, played in enumerate(play(p.actions(), costs) for p in made)]
    peak, seconds, at = min(ranked)
    found = _fastest(table, costs, peak)
    return peak, found.plan if found is not None and found.simulated.seconds < seconds else made[at]


PLANNER = Planner(name="optimal", summary="the fastest plan in a byte budget, by dynamic programme", plan=plan)
