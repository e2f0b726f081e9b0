"""Budgets as people write them, and the smallest feasible number."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.sweep._cost import Costs
from gradledger.sweep._planners import BudgetError
from gradledger.sweep._simulate import simulate
from gradledger.sweep.plans import budget as front
from gradledger.sweep.plans import keep_all, optimal
from sweep.chains import chain, chains


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (1, 1),
        ("1", 1),
        ("123456", 123456),
        ("25%", 250),
        ("12.5%", 125),
        ("150%", 1500),
        ("512MB", 512 * 10**6),
        ("512 MB", 512 * 10**6),
        ("1.5GiB", 3 * 2**29),
        ("3kib", 3 * 2**10),
        ("7B", 7),
        (".5kB", 500),
        (" 2TB ", 2 * 10**12),
    ],
)
def test_what_is_read(text: int | str, count: int) -> None:
    assert front.parse_budget(text, keep_peak=1000) == count


@pytest.mark.parametrize("text", ["min", "keep", " min "])
def test_words_are_no_number(text: str) -> None:
    assert front.parse_budget(text, keep_peak=1000) is None


@pytest.mark.parametrize(
    "text",
    [
        "25 %",
        "",
        "%",
        "0%",
        "0",
        0,
        -3,
        "-3",
        True,
        2.5,
        "1.5",
        "nan%",
        "inf",
        "1e9",
        "5 foo",
        "7k",
        "1iB",
        "MB",
        "1,5GB",
        "12MB!",
    ],
)
def test_what_is_not_read_is_named(text: object) -> None:
    with pytest.raises(BudgetError) as caught:
        front.parse_budget(text, keep_peak=1000)  # type: ignore[arg-type]
    assert f"got budget={text!r}, wanted bytes above zero" in str(caught.value)
    assert '"25%"' in str(caught.value)


@settings(deadline=None, max_examples=30)
@given(chains(), st.integers(1, 120))
def test_a_percentage_is_of_keeping_all(costs: Costs, percent: int) -> None:
    kept = simulate(keep_all.plan(costs), costs)
    least = simulate(front.plan(costs, budget="min"), costs)
    assert least.peak == optimal.least_peak(costs)
    number = percent * kept.peak // 100
    if number < least.peak:
        with pytest.raises(BudgetError) as caught:
            front.plan(costs, budget=f"{percent}%")
        assert caught.value.smallest == (least.peak if number else None)
    else:
        assert simulate(front.plan(costs, budget=f"{percent}%"), costs).peak <= number
    assert front.plan(costs, budget="keep") == front.plan(costs) == keep_all.plan(costs)


def test_a_measured_plain_peak_is_what_a_percentage_is_of() -> None:
    costs = chain(1, 10)
    kept = simulate(keep_all.plan(costs), costs).peak
    assert front.plan(costs, budget="50%", plain_peak=2 * kept) == keep_all.plan(costs)
    assert front.plan(costs, budget="50%", plain_peak=2 * kept - 2) != keep_all.plan(costs)


def test_the_smallest_number_is_feasible_and_one_less_is_not() -> None:
    costs = chain(4, 12, largest=10**6)
    with pytest.raises(BudgetError) as caught:
        front.plan(costs, budget="1%")
    smallest = caught.value.smallest
    assert smallest is not None
    assert f"wanted at least {smallest} bytes, the smallest feasible budget" in str(caught.value)
    assert simulate(front.plan(costs, budget=smallest), costs).peak <= smallest
    with pytest.raises(BudgetError):
        front.plan(costs, budget=smallest - 1)


def test_a_reserve_is_left_alone() -> None:
    costs = chain(4, 12, largest=10**6)
    least = optimal.least_peak(costs)
    with pytest.raises(BudgetError) as caught:
        front.plan(costs, budget=least + 99, reserve=100)
    assert caught.value.smallest == least + 100
    assert f"got a budget of {least + 99} bytes" in str(caught.value)
    assert simulate(front.plan(costs, budget=least + 100, reserve=100), costs).peak <= least
    with pytest.raises(BudgetError, match="smallest"):
        front.plan(costs, budget=50, reserve=100)


@pytest.mark.parametrize("name", ["every_k", "revolve", "recompute_all", "offload", "keep_all"])
def test_min_under_another_planner_is_its_own_smallest(name: str) -> None:
    costs = chain(6, 12)
    made = front.plan(costs, budget="min", planner=name)
    peak = simulate(made, costs).peak
    with pytest.raises(BudgetError, match=f"planner {name}"):
        front.plan(costs, budget=peak - 1, planner=name)
