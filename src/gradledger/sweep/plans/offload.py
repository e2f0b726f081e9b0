"""Move what would wait longest out to the host or the disk, where that costs less time than running blocks again.

A copy out is waited for, a copy back runs beside the step before its use (see `simulate`).  From a ladder of recompute
plans, from the least memory to none recomputed, tapes and held inputs are moved out until the budget is kept; the plan
with the fewest predicted seconds wins.  A heuristic: choosing what to move is a covering problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from gradledger.core.errors import UsageError
from gradledger.sweep._action import Action, Place
from gradledger.sweep._cost import Costs
from gradledger.sweep._plan import Item, Keep, Plan, Segment, keeps
from gradledger.sweep._planners import BudgetError, Planner, check_budget, infeasible
from gradledger.sweep._simulate import BANDWIDTH, Simulation, play
from gradledger.sweep.plans.optimal import ladder
from gradledger.sweep.plans.optimal import plan as optimal

_RUNGS = 10


def plan(
    costs: Costs,
    *,
    budget: int | None = None,
    bandwidth: float | None = None,
    place: Place = "host",
    recompute: bool = True,
) -> Plan:
    """The plan with the fewest predicted seconds found in the budget, by moving out, recompute, or both.

    Args:
        costs: of n blocks, the loss last.
        budget: bytes; None keeps every tape here.
        bandwidth: bytes a second to and from the place, as measured; `BANDWIDTH[place]` otherwise.
        place: "host" or "disk".
        recompute: False moves out only and runs nothing twice.

    Raises BudgetError with the smallest feasible number.
    """
    budget = check_budget(budget)
    if place not in get_args(Place):
        raise UsageError(
            got=f"place={place!r}", wanted='"host" or "disk"', where="planner offload", next_step="choose one of them"
        )
    if bandwidth is not None and not bandwidth > 0:
        raise UsageError(
            got=f"bandwidth={bandwidth!r}",
            wanted="bytes a second, above zero",
            where="planner offload",
            next_step=f"measure it, or leave it out for {BANDWIDTH[place]:.3g}",
        )
    speed = {place: BANDWIDTH[place] if bandwidth is None else bandwidth}
    keep = Plan(tuple(Keep(i) for i in range(len(costs))))
    if budget is None or play(keep.actions(), costs).peak <= budget:
        return keep
    bases = ladder(costs, rungs=_RUNGS) if recompute else [keep]
    found: list[tuple[float, int, Plan]] = []
    if recompute:
        try:
            best = optimal(costs, budget=budget)
            found.append((play(best.actions(), costs, bandwidth=speed).seconds, -1, best))
        except BudgetError:
            pass  # only moving out can keep this budget
    floors: list[int] = []
    for at, base in enumerate(bases):
        moved = _move_out(base, costs, budget, place, speed)
        if moved is None:
            floors.append(play(_moved(base, place, range(len(base.items))).actions(), costs, bandwidth=speed).peak)
        else:
            found.append((play(moved.actions(), costs, bandwidth=speed).seconds, at, moved))
    if found:
        return _move_back(min(found, key=lambda each: each[:2])[2], costs, budget, speed)
    raise infeasible(budget, min(floors), name="offload")


def _moved(base: Plan, place: Place, which: range | set[int]) -> Plan:
    """These items of the top level at the place: tapes, and the inputs of segments; never the loss or the data."""
    last = len(base.items) - 1
    return Plan(
        tuple(
            replace(item, place=place) if i in which and i < last and _first(item, segment=True) != 0 else item
            for i, item in enumerate(base.items)
        )
    )


def _first(item: Item, *, segment: bool) -> int:
    """First block of a segment; -1 for a tape when only segments are asked for."""
    return -1 if isinstance(item, Keep) and segment else next(keeps((item,)))[0].block


def _move_out(base: Plan, costs: Costs, budget: int, place: Place, speed: Mapping[Place, float]) -> Plan | None:
    """`base` with as much moved out as the budget asks for; None where all of it is not enough."""
    chosen: set[int] = set()
    while True:
        made = _moved(base, place, chosen)
        actions = made.actions()
        played = play(actions, costs, bandwidth=speed)
        if played.peak <= budget:
            return made
        more = _choose(base, costs, chosen, actions, played, played.peak - budget)
        if not more:
            break
        chosen |= more
    made = _moved(base, place, range(len(base.items)))
    return made if play(made.actions(), costs, bandwidth=speed).peak <= budget else None


def _choose(
    base: Plan, costs: Costs, chosen: set[int], actions: tuple[Action, ...], played: Simulation, excess: int
) -> set[int]:
    """Items that wait through the peak and, moved out, are likely to bring it down by `excess` bytes."""
    started = {a.block for a in actions[: played.at_action] if a.kind in ("record", "run")}
    ended = {a.block for a in actions[: played.at_action + 1] if a.kind == "reverse"}
    waiting: dict[int, frozenset[int]] = {}
    for i, item in enumerate(base.items[:-1]):
        first = _first(item, segment=False)
        if i in chosen or first not in started or actions[played.at_action].block == first:
            continue
        if isinstance(item, Keep):
            if first not in ended:
                waiting[i] = costs.blocks[first].saved - costs.blocks[first].stays
        elif first and not any(k.block in ended for k, _ in keeps((item,))):
            waiting[i] = costs.boundaries[first]
    holders = Counter(storage for ids in waiting.values() for storage in ids)
    gains = {i: sum(costs.storages[s] / holders[s] for s in ids) for i, ids in waiting.items()}
    sizes = {i: costs.size(ids) for i, ids in waiting.items()}
    picked: set[int] = set()
    left = float(excess)
    while left > 0:
        rest = [i for i in gains if i not in picked and gains[i] > 0]
        if not rest:
            break
        enough = [i for i in rest if gains[i] >= left]
        best = (
            min(enough, key=lambda i: (sizes[i], i))
            if enough
            else max(rest, key=lambda i: (gains[i] / sizes[i], gains[i]))
        )
        picked.add(best)
        left -= gains[best]
    return picked


def _move_back(made: Plan, costs: Costs, budget: int, speed: Mapping[Place, float]) -> Plan:
    """Take back each move that the budget does not need, the largest first."""
    size = {
        i: costs.size(
            costs.boundaries[_first(item, segment=False)]
            if isinstance(item, Segment)
            else costs.blocks[item.block].saved - costs.blocks[item.block].stays
        )
        for i, item in enumerate(made.items)
        if item.place
    }
    seconds = play(made.actions(), costs, bandwidth=speed).seconds
    for i in sorted(size, key=lambda i: -size[i]):
        items = list(made.items)
        items[i] = replace(items[i], place=None)
        trial = Plan(tuple(items))
        played = play(trial.actions(), costs, bandwidth=speed)
        if played.peak <= budget and played.seconds <= seconds:
            made, seconds = trial, played.seconds
    return made


PLANNER = Planner(
    name="offload", summary="move tapes and held inputs to the host or the disk, and recompute", plan=plan
)
