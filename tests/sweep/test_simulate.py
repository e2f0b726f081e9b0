"""Levels against a toy executor whose objects Python frees, numbers by hand, and the waits of moves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.sweep._action import PlanError, parse_actions
from gradledger.sweep._cost import BlockCost, Costs
from gradledger.sweep._plan import Plan
from gradledger.sweep._simulate import simulate
from sweep.chains import Sharing, all_trees, chain, plans, toy_levels


def _block(name: str, saved: set[int], *, seconds: float = 1.0, grad_bytes: int = 0) -> BlockCost:
    return BlockCost(name, seconds, 2 * seconds, 4 * seconds, 10, 20, 30, frozenset(saved), grad_bytes)


# Boundaries: 1 = {0} of 100 bytes, 2 = {1} of 10, loss {2} of 1; block 0 and 1 both save boundary 1.
SMALL = Costs(
    blocks=(_block("a", {0}), _block("b", {0, 3}, grad_bytes=7), _block("loss", {1})),
    storages=(100, 10, 1, 1000),
    boundaries=(frozenset(), frozenset({0}), frozenset({1}), frozenset({2})),
    cotangents=(0, 100, 10, 1),
)


def test_keep_all_by_hand() -> None:
    played = simulate(Plan.parse("0 1 2"), SMALL)
    assert [(str(level.action), *level[1:]) for level in played.levels] == [
        ("record 0", 0, 100, 100),  # its output is more than the peak it was said to have
        ("record 1", 100, 1110, 1110),  # boundary 1 once, 1000 of its own, boundary 2
        ("record 2", 1110, 1130, 1111),  # and the loss
        ("reverse 2", 1112, 1142, 1111),  # seed; then boundary 2 and the seed go, its cotangent comes
        ("reverse 1", 1111, 1141, 208),  # storage 3 goes, boundary 1 is in tape 0; cotangent 100, gradient 7, loss 1
        ("reverse 0", 208, 238, 8),
    ]
    assert (played.peak, played.at_action, played.seconds) == (1142, 3, 18.0)


def test_a_segment_by_hand() -> None:
    played = simulate(Plan.parse("0 (1) 2"), SMALL)
    words = [f"{level.action}: {level.before} {level.after}" for level in played.levels]
    assert words == [
        "record 0: 0 100",
        "hold 1: 100 100",
        "run 1: 100 110",
        "record 2: 110 111",
        "reverse 2: 112 111",
        "record 1: 111 1121",  # storage 3, and an output that nobody reads
        "drop 1: 1121 1121",
        "reverse 1: 1111 208",
        "reverse 0: 208 8",
    ]
    assert played.peak == 1111 + 30
    assert played.seconds == 18.0 + 1.0


@settings(deadline=None, max_examples=150)
@given(plans(), st.integers(0, 2**32), st.sampled_from(["own", "neighbours", "skips"]))
def test_levels_are_those_of_objects_that_python_frees(made: tuple[Plan, int], seed: int, sharing: Sharing) -> None:
    plan, n = made
    costs = chain(seed, n, sharing=sharing)
    played = simulate(plan, costs)
    assert [(level.before, level.after) for level in played.levels] == toy_levels(plan.actions(), costs)
    assert played.peak == max(level.peak for level in played.levels)
    assert played.levels[played.at_action].peak == played.peak


@pytest.mark.parametrize("seed", range(6))
def test_keeping_all_takes_least_seconds_of_all_trees(seed: int) -> None:
    costs = chain(seed, 5, sharing="skips")
    seconds = {str(plan): simulate(plan, costs).seconds for plan in all_trees(5)}
    assert min(seconds, key=lambda text: seconds[text]) == "0 1 2 3 4"


def test_actions_and_plan_give_the_same() -> None:
    plan = Plan.parse("0 ((1) 2@host)@disk 3")
    costs = chain(3, 4)
    assert simulate(plan, costs) == simulate(plan.actions(), costs)


def test_a_fetched_tape_shares_nothing_with_what_stayed() -> None:
    played = simulate(Plan.parse("0 1@host 2"), SMALL)
    at = {str(level.action): level for level in played.levels}
    assert at["offload 1 host"].after == 110  # boundary 1 stays: tape 0 has it; boundary 2 is current
    assert at["fetch 1"].after - at["fetch 1"].before == 1100  # a copy of boundary 1 comes with it


def test_moves_out_are_waited_for_and_fetches_overlap() -> None:
    kept = simulate(Plan.parse("0 1 2"), SMALL).seconds
    moved = Plan.parse("0 1@host 2")
    # 1100 bytes: out at 1100 bytes a second takes one second; back takes one, beside the 4 seconds of `reverse 2`.
    assert simulate(moved, SMALL, bandwidth={"host": 1100.0}).seconds == pytest.approx(kept + 1.0)
    # At 110 bytes a second: 10 out, and 10 back of which 4 are hidden.
    assert simulate(moved, SMALL, bandwidth={"host": 110.0}).seconds == pytest.approx(kept + 10.0 + 6.0)


def test_two_fetches_share_the_lane() -> None:
    costs = Costs(
        blocks=(_block("a", {3}), _block("b", {4}), _block("loss", {2})),
        storages=(1, 1, 1, 100, 100),
        boundaries=(frozenset(), frozenset({0}), frozenset({1}), frozenset({2})),
        cotangents=(0, 1, 1, 1),
    )
    kept = simulate(Plan.parse("0 1 2"), costs).seconds
    both = simulate(Plan.parse("0@host 1@host 2"), costs, bandwidth={"host": 10.0}).seconds
    # Each way 10 s; out waits 20. Back: tape 1 beside reverse 2 (4 s), tape 0 beside reverse 1 (4 s).
    assert both == pytest.approx(kept + 20 + 6 + 6)


def test_a_plan_of_another_length_and_a_bandwidth_of_zero_are_refused() -> None:
    with pytest.raises(PlanError, match="got 2 blocks, wanted 3 blocks"):
        simulate(Plan.parse("0 1"), SMALL)
    with pytest.raises(PlanError, match="the end with block 2 not reversed"):
        simulate(parse_actions("record 0..2"), SMALL)
    with pytest.raises(PlanError, match="bytes a second to host, wanted more than zero"):
        simulate(Plan.parse("0 1@host 2"), SMALL, bandwidth={"host": 0.0})
