"""The table of a plan and the picture of its memory: what they say, and that they fit the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.core.errors import UsageError
from gradledger.sweep._action import PlanError
from gradledger.sweep._describe import describe, picture, show_bytes, show_seconds
from gradledger.sweep._plan import Plan
from gradledger.sweep._simulate import simulate
from sweep.chains import chain, plans


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234567, "1.23 MB"),
        (999_600, "1 MB"),
        (128e9, "128 GB"),
        (5e18, "5000 PB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    assert show_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.5, "1.5 s"), (0.00321, "3.21 ms"), (0.9999, "1 s"), (4.2e-6, "4.2 µs"), (61, "61 s")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


def test_each_block_says_what_happens_to_it_and_why() -> None:
    costs = chain(3, 9)
    forced = replace(costs.blocks[0], name="layers.0.conv", keep_reason="it draws from numpy")
    costs = replace(costs, blocks=(forced, *costs.blocks[1:]))
    lines = describe(Plan.parse("0 1@disk (2 3) ((4)@host 5) 6@host 7 8"), costs).splitlines()
    rows = [line.split(maxsplit=2) for line in lines]
    assert rows[0][:2] == ["block", "name"]
    assert "keep" in lines[1]
    assert lines[1].endswith("forced: it draws from numpy")
    assert lines[2].endswith("tape on disk")
    assert rows[3][2].startswith("recompute ")
    assert "recompute 2x" in lines[5]  # in two segments
    assert lines[5].endswith("input on host")
    assert lines[9].endswith("the loss")
    played = simulate(Plan.parse("0 1@disk (2 3) ((4)@host 5) 6@host 7 8"), costs)
    kept = simulate(Plan.parse("0 1 2 3 4 5 6 7 8"), costs)
    assert lines[10].startswith(f"peak {show_bytes(played.peak)}, {played.peak / kept.peak:.3g}x of keeping all, at `")
    assert lines[11] == f"time {show_seconds(played.seconds)}, {played.seconds / kept.seconds:.3g}x of keeping all"
    assert len(lines) == 12


def test_a_long_reason_is_told_in_full() -> None:
    costs = chain(3, 2)
    reason = "its output differed when it was run again with the same random state and buffers: " + "word " * 20 + "end"
    costs = replace(costs, blocks=(replace(costs.blocks[0], keep_reason=reason), costs.blocks[1]))
    lines = describe(Plan.parse("0 1"), costs).splitlines()
    start = lines[1].index("forced: ")
    told = [line[start:] for line in lines[1:] if line[:start].strip() in ("", lines[1][:start].strip())]
    assert " ".join(told) == f"forced: {reason}"


def test_a_plan_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PlanError, match="got 2 blocks, wanted 3 blocks"):
        describe(Plan.parse("0 1"), chain(0, 3))
    assert Plan.parse("0 1 2").describe(chain(0, 3)).startswith("block  name")


@settings(deadline=None, max_examples=100)
@given(plans(most=30), st.integers(30, 200), st.integers(1, 20), st.integers(1, 100), st.text(max_size=200))
def test_nothing_is_wider_than_it_may_be(
    made: tuple[Plan, int], width: int, height: int, budget: int, name: str
) -> None:
    plan, n = made
    costs = chain(n, n)
    costs = replace(costs, blocks=tuple(replace(b, name=name) for b in costs.blocks))
    assert max(map(len, describe(plan, costs).splitlines())) <= 80
    played = simulate(plan, costs)
    drawn = picture(played, width, height=height, budget=budget).splitlines()
    assert max(map(len, drawn)) <= width
    assert len(drawn) == height + 2
    assert max(map(len, picture(played).splitlines())) <= 80


@pytest.mark.parametrize("length", range(20, 36))
def test_the_line_of_the_peak_ends_where_the_name_is_cut(length: int) -> None:
    costs = chain(5, 12)
    costs = replace(costs, blocks=tuple(replace(b, name="x" * length) for b in costs.blocks))
    plan = Plan.parse("0 1 2 3@host 4 5 (6 7) 8 (9 10) 11")
    peak = next(line for line in describe(plan, costs).splitlines() if line.startswith("peak"))
    assert len(peak) <= 80
    assert peak.endswith("x" * min(length, 20))


def test_the_picture_of_a_small_plan() -> None:
    costs = chain(3, 4)
    played = simulate(Plan.parse("0 (1 2) 3"), costs)
    drawn = picture(played, height=4).splitlines()
    marks = drawn[4].split("+")[1]
    assert marks == "R.rrRVR.RVVV"
    assert len(marks) == len(played.levels)
    column = drawn[5].index("^") - 10
    assert column == played.at_action
    assert drawn[5].endswith(f"peak {show_bytes(played.peak)} at {played.levels[played.at_action].action}")
    for at, level in enumerate(played.levels):  # as many rows are filled, in whole or part, as the level asks for
        filled = sum(len(row) > 10 + at and row[10 + at] != " " for row in drawn[:4])
        assert filled == -(-4 * level.peak // played.peak)


def test_the_picture_is_refused_where_nothing_fits() -> None:
    played = simulate(Plan.parse("0"), chain(0, 1))
    with pytest.raises(UsageError, match="got width=29"):
        picture(played, 29)
    with pytest.raises(UsageError, match="height=0"):
        picture(played, height=0)
