"""Actions: text round trip, and a fault pointed at in the grid."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.sweep._action import (
    KINDS,
    PLACES,
    Action,
    PlanError,
    format_actions,
    parse_actions,
    validate_actions,
)
from gradledger.sweep._plan import Plan
from sweep.chains import plans

_OUT = ("offload", "offload_held")
_ANY = st.one_of(
    st.builds(Action, st.sampled_from([k for k in KINDS if k not in _OUT]), st.integers(0, 5)),
    st.builds(Action, st.sampled_from(_OUT), st.integers(0, 5), st.sampled_from(PLACES)),
)


@given(st.lists(_ANY, max_size=30))
def test_text_round_trip_of_any_list(actions: list[Action]) -> None:
    assert parse_actions(format_actions(actions)) == tuple(actions)


def test_neighbours_are_joined() -> None:
    text = "record 0..2; hold 3; run 3..4; record 5; reverse 5..3"
    assert format_actions(parse_actions(text)) == text
    assert parse_actions("run 1..2") == (Action("run", 1), Action("run", 2))
    assert parse_actions(" ") == ()


@pytest.mark.parametrize(
    "piece", ["jump 3", "run", "run -1", "offload 3", "run 3 host", "offload 3 moon", "", "run 1.."]
)
def test_a_piece_that_is_no_action_is_named(piece: str) -> None:
    with pytest.raises(PlanError, match="actions, piece 1: got"):
        parse_actions(f"record 0; {piece}; reverse 0")


@settings(deadline=None, max_examples=200)
@given(plans())
def test_the_actions_of_every_plan_can_be_obeyed(made: tuple[Plan, int]) -> None:
    plan, n = made
    validate_actions(plan.actions(), n)
    assert [a.block for a in plan.actions() if a.kind == "reverse"] == list(range(n - 1, -1, -1))


@settings(deadline=None, max_examples=60)
@given(plans(), st.integers(0, 10**6))
def test_a_schedule_with_an_action_left_out_is_refused(made: tuple[Plan, int], pick: int) -> None:
    plan, n = made
    actions = list(plan.actions())
    # A run may be idle, as in `((0))`; without any other action the schedule cannot be obeyed or leaves something over.
    needed = [at for at, action in enumerate(actions) if action.kind != "run"]
    at = needed[pick % len(needed)]
    with pytest.raises(PlanError) as caught:
        validate_actions(actions[:at] + actions[at + 1 :], n)
    assert "->" in caught.value.grid


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("record 0..3; reverse 3..0", "action 3: got `record 3`, wanted a block from 0 to 2"),
        ("record 0; record 2", "where boundary 2 is gone"),
        ("record 0..1; run 1", "where boundary 1 is gone"),
        ("record 0; record 0", "`record 0` twice"),
        ("record 0..1; run 2", "wanted the loss recorded, never run twice"),
        ("hold 0; hold 0", "`hold 0` twice"),
        ("hold 1", "where boundary 1 is not current"),
        ("drop 1", "of what is not held"),
        ("record 0..2; reverse 1", "blocks are reversed last first"),
        ("record 0; run 1; record 2; reverse 2..1", "where it has no tape"),
        ("record 0..1; offload 1 host; record 2; reverse 2..1", "where its tape is on host"),
        ("record 0; hold 1; run 1; offload_held 1 disk; record 2; reverse 2; record 1", "held boundary 1 is on disk"),
        ("record 0; fetch 0", "where tape 0 is here"),
        ("offload 0 host", "where tape 0 is not there"),
        ("record 0; offload 0 host; offload 0 disk", "where tape 0 is on host"),
        ("hold 0; run 0; offload_held 0 host", "the data is the caller's"),
        ("record 0..2; reverse 2..1", "the end with block 0 not reversed"),
        ("record 0; hold 1; record 1..2; reverse 2..0", "the end with held boundary 1 left"),
        ("record 0..2; reverse 2..0; run 0..1", "`run 0` after its reverse"),
    ],
)
def test_faults_are_named(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        validate_actions(parse_actions(text), 3)
    assert message in str(caught.value)
    assert caught.value.grid in str(caught.value)


def test_places_belong_to_moves_out() -> None:
    with pytest.raises(PlanError, match="a place with offload"):
        validate_actions([Action("run", 0, "host")], 2)
    with pytest.raises(PlanError, match="a place with offload"):
        validate_actions([Action("record", 0), Action("offload", 0)], 2)


def test_the_grid_shows_blocks_across_time_down_and_points() -> None:
    with pytest.raises(PlanError) as caught:
        validate_actions(parse_actions("record 0..1; run 1; record 2; reverse 2..0"), 3)
    assert caught.value.grid.splitlines() == [
        "   step   0 1 2   (blocks)",
        "      0   R . .   record 0",
        "      1   . R .   record 1",
        "->    2   . r .   run 1",
        "      3   . . R   record 2",
        "      4   . . V   reverse 2",
        "      5   . V .   reverse 1",
        "      6   V . .   reverse 0",
    ]


def test_the_grid_of_a_long_chain_stays_small_and_keeps_the_fault_in_sight() -> None:
    text = "record 0..149; run 149; record 150..199; reverse 199..0"
    with pytest.raises(PlanError) as caught:
        validate_actions(parse_actions(text), 200)
    lines = caught.value.grid.splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    assert next(line for line in lines if line.startswith("->")).endswith("run 149")
