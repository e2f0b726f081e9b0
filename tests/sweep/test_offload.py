"""Moving out: never over the budget, never slower than recompute alone, and near the best of every tree and move."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.sweep._cost import Costs
from gradledger.sweep._plan import Item, Keep, Plan, Segment, keeps
from gradledger.sweep._planners import BudgetError
from gradledger.sweep._simulate import simulate
from gradledger.sweep.plans import keep_all, offload, optimal
from sweep.chains import all_trees, chain, chains


def test_a_fast_host_runs_nothing_twice_and_a_slow_one_moves_nothing() -> None:
    costs = chain(3, 20, largest=10**8)
    budget = int(0.6 * simulate(keep_all.plan(costs), costs).peak)
    fast = offload.plan(costs, budget=budget, bandwidth=1e12)
    assert all(isinstance(item, Keep) for item in fast.items)
    assert "@host" in fast.text
    slow = offload.plan(costs, budget=budget, bandwidth=1e5)
    assert "@" not in slow.text
    assert simulate(slow, costs).seconds == simulate(optimal.plan(costs, budget=budget), costs).seconds


def test_the_place_is_the_one_asked_for_and_recompute_can_be_turned_off() -> None:
    costs = chain(3, 20, largest=10**8)
    budget = int(0.6 * simulate(keep_all.plan(costs), costs).peak)
    made = offload.plan(costs, budget=budget, place="disk", recompute=False, bandwidth=1e5)
    assert "@disk" in made.text
    assert "(" not in made.text
    assert "@host" not in made.text


def test_what_may_not_be_run_again_can_still_be_moved_out() -> None:
    lower = 0
    for seed in range(10):
        costs = chain(seed, 10, forced=0.5)
        least = optimal.least_peak(costs)
        with pytest.raises(BudgetError) as caught:
            offload.plan(costs, budget=1)
        assert caught.value.smallest is not None
        assert simulate(offload.plan(costs, budget=caught.value.smallest), costs).peak <= caught.value.smallest
        lower += caught.value.smallest < least
    assert lower >= 5


@settings(deadline=None, max_examples=40)
@given(chains(), st.floats(0.2, 1.0), st.sampled_from([1e-1, 1e1, 1e3, 1e6, 1e9]))
def test_never_slower_than_recompute_alone(costs: Costs, part: float, bandwidth: float) -> None:
    budget = max(1, int(part * simulate(keep_all.plan(costs), costs).peak))
    try:
        alone = simulate(optimal.plan(costs, budget=budget), costs).seconds
    except BudgetError:
        alone = float("inf")
    try:
        made = offload.plan(costs, budget=budget, bandwidth=bandwidth)
    except BudgetError:
        assert alone == float("inf")
        return
    made.validate(len(costs), forced=costs.forced)
    played = simulate(made, costs, bandwidth={"host": bandwidth})
    assert played.peak <= budget
    assert played.seconds <= alone


def _every_move(plan: Plan) -> Iterator[Plan]:
    """The plan with every choice of what its top level moves out; the loss and the data apart."""
    choices: list[list[Item]] = []
    for item in plan.items[:-1]:
        fixed = isinstance(item, Segment) and next(keeps((item,)))[0].block == 0
        moved = Keep(item.block, "host") if isinstance(item, Keep) else Segment(item.items, "host")
        choices.append([item] if fixed else [item, moved])
    return (Plan((*items, plan.items[-1])) for items in product(*choices))


def test_near_the_best_of_every_tree_and_every_move() -> None:
    ratios = []
    for seed in range(9):
        costs = chain(seed, 5)
        tried = [
            (played.peak, played.seconds)
            for plan in all_trees(5)
            for moved in _every_move(plan)
            for played in [simulate(moved, costs, bandwidth={"host": 5.0})]
        ]
        kept = simulate(keep_all.plan(costs), costs).peak
        for part in (0.6, 0.75, 0.9):
            budget = int(part * kept)
            within = [seconds for peak, seconds in tried if peak <= budget]
            if within:
                made = offload.plan(costs, budget=budget, bandwidth=5.0)
                ratios.append(simulate(made, costs, bandwidth={"host": 5.0}).seconds / min(within))
    # Measured: 11 of 12 are the best of all, one takes 1.05 of its time.
    assert len(ratios) > 10
    assert min(ratios) >= 1 - 1e-9
    assert sum(ratio <= 1 + 1e-9 for ratio in ratios) >= 0.75 * len(ratios)
    assert max(ratios) <= 1.1
