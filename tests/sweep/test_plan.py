"""Plans: text round trip, the actions they mean, and faults pointed at."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings

from gradledger.sweep._action import PlanError, format_actions, validate_actions
from gradledger.sweep._plan import Keep, Plan, Segment
from sweep.chains import plans


@settings(deadline=None, max_examples=300)
@given(plans())
def test_text_round_trip(made: tuple[Plan, int]) -> None:
    plan, n = made
    assert Plan.parse(str(plan.text)) == plan
    assert str(plan) == plan.text
    plan.validate(n)


def test_text_and_tree() -> None:
    tree = Plan((Keep(0), Segment((Segment((Keep(1), Keep(2))), Keep(3, "host")), "disk"), Keep(4)))
    assert tree.text == "0 ((1 2) 3@host)@disk 4"
    assert Plan.parse(" 0 ( (1 2)3@host )@disk  4 ") == tree


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("0 1 2", "record 0..2; reverse 2..0"),
        ("0 (1 2) 3", "record 0; hold 1; run 1..2; record 3; reverse 3; record 1; drop 1; record 2; reverse 2..0"),
        ("(0) 1", "hold 0; run 0; record 1; reverse 1; record 0; drop 0; reverse 0"),
        (  # the inner segment begins where the outer does: one hold for both
            "((0 1) 2) 3",
            (
                "hold 0; run 0..2; record 3; reverse 3; run 0..1; record 2; reverse 2; "
                "record 0; drop 0; record 1; reverse 1..0"
            ),
        ),
        ("0@host 1 2", "record 0; offload 0 host; record 1..2; reverse 2; fetch 0; reverse 1..0"),
        ("0 1@disk 2", "record 0..1; offload 1 disk; record 2; fetch 1; reverse 2..0"),
        (
            "0 (1 2)@disk 3 4",
            (
                "record 0; hold 1; run 1; offload_held 1 disk; run 2; record 3..4; reverse 4; fetch_held 1; reverse 3; "
                "record 1; drop 1; record 2; reverse 2..0"
            ),
        ),
        (  # in a segment likewise: what is recorded there is moved out until its reverse
            "(0@host 1 2) 3",
            (
                "hold 0; run 0..2; record 3; reverse 3; record 0; drop 0; offload 0 host; record 1..2; "
                "reverse 2; fetch 0; reverse 1..0"
            ),
        ),
    ],
)
def test_actions(text: str, actions: str) -> None:
    assert format_actions(Plan.parse(text).actions()) == actions


@settings(deadline=None, max_examples=150)
@given(plans())
def test_what_is_held_is_dropped_at_its_last_use_and_fetches_come_one_step_ahead(made: tuple[Plan, int]) -> None:
    plan, n = made
    actions = plan.actions()
    for at, action in enumerate(actions):
        if action.kind == "drop":
            assert (actions[at - 1].kind, actions[at - 1].block) == ("record", action.block)
        if action.kind in ("fetch", "fetch_held"):
            kinds = ("reverse",) if action.kind == "fetch" else ("run", "record")
            use = next(
                i for i in range(at, len(actions)) if actions[i].kind in kinds and actions[i].block == action.block
            )
            between = [a for a in actions[at:use] if a.kind in ("run", "record", "reverse")]
            assert len(between) <= 1
    validate_actions(actions, n)


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("0 1)", 3, "a ) without its ("),
        ("0 (1", 4, "the end inside a segment"),
        ("0 ()", 3, "an empty segment"),
        ("0 1@moon", 4, "place 'moon'"),
        ("0 x 1", 2, "got 'x 1'"),
        ("0 1x", 2, "got '1x'"),
        ("0 (1)@", 5, "got '@'"),
        ("0, 1", 0, "got '0, 1'"),
    ],
)
def test_text_that_cannot_be_read_is_pointed_at(text: str, at: int, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.parse(text)
    assert f"plan text, character {at}: " in str(caught.value)
    assert message in str(caught.value)
    shown, arrow = str(caught.value).splitlines()[-2:]
    assert shown == f"  {text}"
    assert arrow.index("^") == at + 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 2 1", "place 1: got block 2, wanted block 1"),
        ("0 1 1 2", "place 2: got block 1, wanted block 2"),
        ("0 1", "place 2: got 2 blocks, wanted 3 blocks"),
        ("0 1 2 3", "place 3: got block 3 after the last, wanted 3 blocks"),
        ("0 (1 2)", "place 2: got the loss in a segment"),
        ("(0)@host 1 2", "got data moved to host"),
        ("", "place 0: got 0 blocks"),
    ],
)
def test_faults_of_the_tree_are_pointed_at(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.parse(text).validate(3)
    assert message in str(caught.value)
    assert "->" in caught.value.grid


def test_a_block_that_cannot_be_replayed_may_not_be_in_a_segment() -> None:
    plan = Plan.parse("0 (1 2) 3")
    plan.validate(4, forced={0: "draws from numpy"})
    with pytest.raises(PlanError, match="block 2 in a segment, which cannot be replayed: draws from numpy"):
        plan.validate(4, forced={2: "draws from numpy"})
    with pytest.raises(PlanError, match="an empty segment"):
        Plan((Segment(()), Keep(0))).validate(1)


def test_the_grid_of_a_tree() -> None:
    with pytest.raises(PlanError) as caught:
        Plan.parse("0 ((2) 1) 3").validate(4)
    assert caught.value.grid.splitlines() == [
        "   step   0 1 2 3   (blocks)",
        "      0   R . . .   keep 0",
        "->    1   . . 2 .   recompute 2, 2 deep",
        "      2   . 1 . .   recompute 1, 1 deep",
        "      3   . . . R   keep 3",
    ]


def test_plans_nested_deeper_than_the_stack() -> None:
    depth = sys.getrecursionlimit() + 200
    text = "(" * depth + "0)" + "".join(f" {i})" for i in range(1, depth)) + f" {depth}"
    plan = Plan.parse(text)
    assert plan.text == text
    plan.validate(depth + 1)
