"""The contract of every planner in the registry, on random chains; and proof that the contract can be broken."""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.core.errors import UsageError
from gradledger.sweep import plans as plans_folder
from gradledger.sweep._action import PlanError, format_actions, parse_actions, validate_actions
from gradledger.sweep._cost import Costs
from gradledger.sweep._describe import describe, picture
from gradledger.sweep._plan import Item, Keep, Plan, Segment
from gradledger.sweep._planners import BudgetError, Planner, find, infeasible, load
from gradledger.sweep._simulate import simulate
from gradledger.sweep.plans import keep_all
from sweep.chains import chain, chains

PLANNERS = {planner.name: planner for planner in load()}


def _plan_or_error(planner: Planner, costs: Costs, budget: int | None) -> Plan | BudgetError:
    try:
        return planner.plan(costs, budget=budget)
    except BudgetError as error:
        return error


def keeps_contract(planner: Planner, costs: Costs, budget: int | None) -> None:
    """Everything a planner promises, on one chain and budget."""
    n, plain = len(costs), simulate(keep_all.plan(costs), costs)
    plan = _plan_or_error(planner, costs, budget)
    if isinstance(plan, BudgetError):
        assert budget is not None
        assert plan.smallest is not None
        assert plan.smallest > budget
        assert str(plan.smallest) in str(plan)
        budget = plan.smallest
        plan = planner.plan(costs, budget=budget)
    plan.validate(n, forced=costs.forced)
    assert Plan.parse(plan.text) == plan
    assert planner.plan(costs, budget=budget) == plan
    actions = plan.actions()
    validate_actions(actions, n)
    assert parse_actions(format_actions(actions)) == actions
    played = simulate(plan, costs)
    assert budget is None or played.peak <= budget
    assert played.seconds >= plain.seconds * (1 - 1e-12)
    for text in (describe(plan, costs), picture(played), picture(played, 40, budget=budget)):
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", PLANNERS)
@settings(deadline=None, max_examples=40)
@given(costs=chains(), part=st.one_of(st.none(), st.floats(0.01, 1.1)))
def test_every_planner_keeps_its_contract(name: str, costs: Costs, part: float | None) -> None:
    peak = simulate(keep_all.plan(costs), costs).peak
    keeps_contract(PLANNERS[name], costs, None if part is None else max(1, int(part * peak)))


@pytest.mark.parametrize("name", PLANNERS)
def test_a_budget_of_nothing_or_of_no_number_is_refused(name: str) -> None:
    for budget in (0, -1, 0.5, True, "25 %"):
        with pytest.raises(BudgetError, match="got budget="):
            PLANNERS[name].plan(chain(0, 4), budget=budget)


@pytest.mark.parametrize("name", PLANNERS)
def test_keeping_all_is_what_a_wide_budget_buys_where_the_planner_decides(name: str) -> None:
    costs = chain(5, 8)
    plan = PLANNERS[name].plan(costs, budget=10**9)
    fixed = ("recompute_all", "revolve")  # they recompute by definition
    assert name in fixed or simulate(plan, costs).seconds == simulate(keep_all.plan(costs), costs).seconds


def test_every_file_is_a_planner_and_is_found_by_name() -> None:
    files = {path.stem for path in Path(str(plans_folder.__file__)).parent.glob("*.py") if path.stem[0] != "_"}
    assert set(PLANNERS) == files
    assert {"keep_all", "recompute_all", "every_k", "revolve", "optimal", "offload", "budget"} <= files
    for name, planner in PLANNERS.items():
        assert find(name) is planner
        assert 0 < len(planner.summary) <= 80
    with pytest.raises(UsageError, match=r"got 'optimum', wanted one of budget, every_k"):
        find("optimum")


def test_a_file_without_a_planner_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_done.py").write_text("PLANNER = 3\n")
    (tmp_path / "_helper.py").write_text("raise RuntimeError('not to be imported')\n")
    monkeypatch.setattr(plans_folder, "__path__", [str(tmp_path)])
    load.cache_clear()
    try:
        with pytest.raises(PlanError, match=r"sweep/plans/half_done\.py: got PLANNER = 3"):
            load()
    finally:
        load.cache_clear()


def _over_budget(costs: Costs, *, budget: int | None = None) -> Plan:
    return keep_all.plan(costs)


def _recomputes_what_it_may_not(costs: Costs, *, budget: int | None = None) -> Plan:
    return Plan((*(Segment((Keep(i),)) for i in range(len(costs) - 1)), Keep(len(costs) - 1)))


def _says_too_small_a_number(costs: Costs, *, budget: int | None = None) -> Plan:
    if budget is not None and budget < 10**6:
        raise infeasible(budget, budget + 1, name="liar")
    return keep_all.plan(costs)


def _forgets_the_loss(costs: Costs, *, budget: int | None = None) -> Plan:
    items: tuple[Item, ...] = tuple(Keep(i) for i in range(len(costs) - 1))
    return Plan(items)


def _runs_idle(costs: Costs, *, budget: int | None = None, calls: list[int] = []) -> Plan:  # noqa: B006
    calls.append(1)
    return keep_all.plan(costs) if len(calls) % 2 else _recomputes_what_it_may_not(costs)


@pytest.mark.parametrize(
    "function", [_over_budget, _recomputes_what_it_may_not, _says_too_small_a_number, _forgets_the_loss, _runs_idle]
)
def test_the_contract_can_be_broken(function: Callable[..., Plan]) -> None:
    costs = chain(7, 6, forced=0.5)
    assert costs.forced
    with pytest.raises((AssertionError, PlanError)):
        keeps_contract(Planner("bad", "a planner that breaks the contract", function), costs, 3)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("keep_all", {}, "0 1 2 3 4 5 6 7 8 9"),
        ("recompute_all", {}, "(0) (1) (2) (3) (4) (5) (6) (7) (8) 9"),
        ("every_k", {}, "(0 1 2) (3 4 5) 6 7 8 9"),
        ("every_k", {"k": 4}, "(0 1 2 3) (4 5 6 7) 8 9"),
        ("every_k", {"k": 20}, "0 1 2 3 4 5 6 7 8 9"),
        ("revolve", {"snapshots": 0}, "(((((((((0) 1) 2) 3) 4) 5) 6) 7) 8) 9"),
        ("revolve", {"snapshots": 9}, "(0) (1) (2) (3) (4) (5) (6) (7) (8) 9"),
    ],
)
def test_fixed_plans_by_hand(name: str, options: dict[str, int], text: str) -> None:
    assert PLANNERS[name].plan(chain(0, 10), **options).text == text


def _binomial_runs(blocks: int, snapshots: int) -> int:
    """Least runs by the closed form r * blocks - C(s + r, s + 1), r the least number with C(s + r, s) >= blocks."""
    repeats = 0
    while comb(snapshots + repeats, snapshots) < blocks:
        repeats += 1
    return repeats * blocks - comb(snapshots + repeats, snapshots + 1)


@pytest.mark.parametrize("blocks", [2, 3, 5, 10, 21, 40])
@pytest.mark.parametrize("snapshots", [0, 1, 2, 3, 5])
def test_revolve_runs_as_often_as_the_binomial_formula_says(blocks: int, snapshots: int) -> None:
    actions = PLANNERS["revolve"].plan(chain(0, blocks), snapshots=snapshots).actions()
    # The formula counts the input as a snapshot, and the runs that are not recorded.
    assert sum(a.kind == "run" for a in actions) == _binomial_runs(blocks, snapshots + 1)
    held = most = 0
    for action in actions:
        held += {"hold": 1, "drop": -1}.get(action.kind, 0)
        most = max(most, held)
    assert most <= snapshots + 1


def test_wrong_options_are_refused() -> None:
    costs = chain(0, 4)
    for name, options in (
        ("every_k", {"k": 0}),
        ("every_k", {"k": 1.5}),
        ("revolve", {"snapshots": -1}),
        ("optimal", {"slots": 0}),
        ("offload", {"place": "moon"}),
        ("offload", {"bandwidth": 0}),
        ("budget", {"planner": "budget"}),
        ("budget", {"reserve": -1}),
    ):
        with pytest.raises(UsageError, match=f"planner {name}: got {next(iter(options))}="):
            PLANNERS[name].plan(costs, budget=10, **options)
