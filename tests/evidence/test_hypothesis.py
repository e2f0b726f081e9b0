"""The plan: what is refused, how arms compare, what each predicate says, how verdicts come about."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.evidence.errors import PlanError
from gradledger.evidence.hypothesis import Plan, differences, isolated, parse
from gradledger.evidence.judge import judge
from gradledger.evidence.predicate import (
    ABSENT,
    Equals,
    Flat,
    Identity,
    IsNone,
    NotSeparated,
    Predicate,
    Range,
    Ratio,
    Separates,
    Trajectory,
    Unknown,
    comes_out,
    described,
    document,
)

ARMS = """
name = "order"
rng_seeds = [0, 1]
[quantities.accuracy]
low = 0.0
high = 1.0
[arms.random]
order = "random"
loop = { clear = true, lr = 0.1 }
[arms.sorted]
order = "sorted"
loop = { clear = true, lr = 0.1 }
[arms.both]
order = "sorted"
loop = { clear = false, lr = 0.1 }
[arms.again]
order = "random"
loop = { clear = true, lr = 0.1 }
"""


def plan(predicate: str, *, quantity: str = "loss", arms: str = '["random"]', more: str = "") -> Plan:
    return parse(
        f'{ARMS}\n[[hypotheses]]\nid = "H1"\nclaim = "what is expected"\nquantity = "{quantity}"\narms = {arms}\n'
        f"predicate = {{ {predicate} }}\n{more}"
    )


HOLDS: list[tuple[Predicate, list[Any], bool]] = [
    (Equals(0.7642, 1e-3), [0.764189], True),
    (Equals(0.7642, 1e-3), [7.348], False),
    (Equals(0.5), [0.5], True),
    (Equals(0.5), [math.nextafter(0.5, 1)], False),
    (Equals(-10.0, 0.1, relative=True), [-11.0], True),
    (Equals(-10.0, 0.1, relative=True), [-11.1], False),
    (Range(high=0.05), [0.0083], True),
    (Range(low=1.2, high=1.8), [1.8], True),
    (Range(low=1.2, high=1.8, open=True), [1.8], False),
    (Range(low=0.0), [math.nan], False),
    (Range(low=0.0), [math.inf], False),
    (Ratio(low=1.2, high=1.8), [1.2994, 0.7420], True),
    (Ratio(low=3.0), [0.01, 0.0092], False),
    (Flat(), [[3.348493] * 5], True),
    (Flat(), [[3.348493, 3.348493, 3.3485]], False),
    (Flat(), [[1.0, math.nan]], False),
    (IsNone(), [None], True),
    (IsNone(), [0.0], False),
    (IsNone(expect=False), [0.0], True),
    (Identity("groups"), ["w1", ["w1", "b1"]], True),
    (Identity("groups"), ["w2", ["w1", "b1"]], False),
    (Identity("groups", expect=False), ["w2", ["w1", "b1"]], True),
    (Identity("other"), ["w1", "w1"], True),
    (Identity(), [True], True),
    (Identity(expect=False), [True], False),
    (Trajectory("falling"), [[3.0, 2.0, 1.0]], True),
    (Trajectory("falling"), [[3.0, 3.1, 1.0]], False),
    (Trajectory("falling", slack=0.2), [[3.0, 3.1, 1.0]], True),
    (Trajectory("falling", least=3.0), [[3.0, 1.0]], False),
    (Trajectory("falling"), [[1.0, 1.0]], False),
    (Trajectory("rising"), [[1.0, 2.0]], True),
    (Trajectory("valley"), [[3.0, 1.0, 2.0]], True),
    (Trajectory("valley", least=1.5), [[3.0, 1.0, 2.0]], False),
    (Trajectory("valley"), [[3.0, 2.0, 1.0]], False),
    (Trajectory("peak"), [[0.0, 2.0, 1.0]], True),
    (Separates(0.01), [0.423201, 0.0], True),
    (Separates(0.01), [0.0, 0.0], False),
    (NotSeparated(), [0.0, 0.0], True),
    (NotSeparated(), [0.0, 1e-12], False),
]


@pytest.mark.parametrize(("predicate", "seen", "answer"), HOLDS, ids=lambda x: x.kind if hasattr(x, "kind") else None)
def test_what_a_predicate_says(predicate: Predicate, seen: list[Any], answer: bool) -> None:
    assert predicate.holds(seen) is answer


@pytest.mark.parametrize(
    ("predicate", "seen", "why"),
    [
        (Equals(1.0), [ABSENT], "not recorded"),
        (Equals(1.0), [None], "None is no number"),
        (Equals(1.0), [True], "True is no number"),
        (IsNone(), [ABSENT], "not recorded"),
        (Ratio(low=1.0), [1.0, 0.0], "no value"),
        (Ratio(low=1.0), [1.0, ABSENT], "not recorded"),
        (Flat(), [[1.0]], "no trajectory of two points"),
        (Flat(), [0.5], "no trajectory"),
        (Flat(), [["a", "b"]], "no numbers"),
        (Identity("x"), [3, "a"], "no name"),
        (Identity("x"), ["a", 3], "neither"),
        (Identity(), ["a"], "no boolean"),
    ],
    ids=str,
)
def test_what_a_predicate_cannot_say_it_does_not_say(predicate: Predicate, seen: list[Any], why: str) -> None:
    answer = predicate.holds(seen)
    assert isinstance(answer, Unknown)
    assert why in answer.why


@pytest.mark.parametrize("predicate", [case[0] for case in HOLDS], ids=str)
def test_every_sensible_claim_can_come_out_both_ways_and_is_told_in_words(predicate: Predicate) -> None:
    assert comes_out(predicate) == {True, False}
    assert described(predicate)
    assert document(predicate)["kind"] == predicate.kind


@settings(max_examples=60, deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.floats(0, 1e6), st.floats(-1e9, 1e9))
def test_a_range_is_refused_exactly_when_its_domain_lies_in_it_or_beside_it(
    low: float, high: float, span: float, start: float
) -> None:
    first, last = start, start + span
    can_be_true = max(low, first) <= min(high, last) and low <= high
    can_be_false = first < low or last > high or low > high
    assert comes_out(Range(low, high), first, last) == {
        answer for answer, possible in ((True, can_be_true), (False, can_be_false)) if possible
    }


def test_a_bound_that_an_endless_domain_has_already_is_no_claim() -> None:
    """Only what is not finite could refute it, and that refutes anything."""
    assert comes_out(Range(low=0.0), 0.0, math.inf) == {True}
    assert comes_out(Range(high=0.0), -math.inf, 0.0) == {True}
    assert comes_out(Ratio(low=0.0), 0.0, math.inf) == {True}
    assert comes_out(Range(low=0.0, open=True), 0.0, math.inf) == {True, False}


ONE_WAY = {
    "above and below": ('kind = "range", low = 2.0, high = 1.0', {}),
    "no bound": ('kind = "range"', {}),
    "whole domain": ('kind = "range", low = 0.0, high = 1.0', {"quantity": "accuracy"}),
    "outside the domain": ('kind = "equals", value = 3.0, tolerance = 1.0', {"quantity": "accuracy"}),
    "tolerance over the domain": ('kind = "equals", value = 0.5, tolerance = 0.5', {"quantity": "accuracy"}),
    "flat over the domain": ('kind = "flat", tolerance = 1.0', {"quantity": "accuracy"}),
    "margin over the domain": (
        'kind = "not_separated", margin = 1.0',
        {"quantity": "accuracy", "arms": '["random", "sorted"]'},
    ),
    "a run with itself": ('kind = "not_separated"', {"arms": '["random", "random"]'}),
    "equal settings": ('kind = "separates", margin = 0.1', {"arms": '["random", "again"]'}),
    "a quantity with itself": ('kind = "ratio", low = 1.0, over = "loss"', {}),
    "ratio without bounds": ('kind = "ratio"', {"arms": '["random", "sorted"]'}),
    "fall beyond the domain": ('kind = "trajectory", shape = "falling", least = 2.0', {"quantity": "accuracy"}),
}


@pytest.mark.parametrize("case", ONE_WAY)
def test_a_claim_that_cannot_come_out_both_ways_is_refused(case: str) -> None:
    predicate, options = ONE_WAY[case]
    with pytest.raises(PlanError, match=r"plan: H1: .*a claim that can come out both ways"):
        plan(predicate, **options)


REFUSED = {
    "unknown predicate": ('kind = "about", value = 1.0', {}, "predicate.kind = 'about'"),
    "unknown key": ('kind = "equals", value = 1.0, tolerence = 1.0', {}, "did you mean 'tolerance'"),
    "missing value": ('kind = "equals"', {}, "no value"),
    "text for a number": ('kind = "equals", value = "one"', {}, "wanted number"),
    "boolean for a number": ('kind = "equals", value = true', {}, "wanted number"),
    "unknown shape": ('kind = "trajectory", shape = "wavy"', {}, "wanted one of falling"),
    "unknown arm": ('kind = "equals", value = 1.0', {"arms": '["randm"]'}, "did you mean 'random'"),
    "one arm too few": ('kind = "separates", margin = 1.0', {}, "wanted two arms"),
    "one arm too many": ('kind = "equals", value = 1.0', {"arms": '["random", "sorted"]'}, "wanted one arm"),
    "negative tolerance": ('kind = "equals", value = 1.0, tolerance = -1.0', {}, "from 0 up"),
    "infinite tolerance": ('kind = "equals", value = 1.0, tolerance = inf', {}, "a finite number"),
    "nan": ('kind = "equals", value = nan', {}, "a finite number"),
    "no seeds": ('kind = "equals", value = 1.0', {"more": "rng_seeds = []"}, "no rng_seeds"),
    "seed twice": ('kind = "equals", value = 1.0', {"more": "rng_seeds = [1, 1]"}, "each once"),
    "id twice": (
        'kind = "equals", value = 1.0',
        {"more": '[[hypotheses]]\nid="H1"\nclaim="x"\nquantity="q"\narms=["random"]\npredicate={kind="is_none"}'},
        "the id 'H1' twice",
    ),
    "control of one arm": ('kind = "equals", value = 1.0', {"more": 'control = ["sorted"]'}, "two arms, beside"),
    "mean of a curve": ('kind = "flat"', {"more": 'over = "mean"'}, "leave `over` out"),
    "unknown over": ('kind = "equals", value = 1.0', {"more": 'over = "best"'}, "one of every"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_judged_is_refused_with_its_place(case: str) -> None:
    predicate, options, text = REFUSED[case]
    with pytest.raises(PlanError) as error:
        plan(predicate, **options)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [("name = ", "no TOML"), ('name = "x"', "no hypotheses"), ("[[hypotheses]]\nid=1", "no name"), ("nme=1", "nme")],
)
def test_a_file_that_is_no_plan_is_refused(text: str, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        parse(text)


def test_arms_are_compared_field_by_field() -> None:
    one = plan('kind = "ratio", low = 3.0', arms='["sorted", "random"]')
    assert isolated(one, ("sorted", "random")) == (True, ("order",))
    assert isolated(one, ("both", "random")) == (False, ("loop.clear", "order"))
    assert isolated(one, ("random",)) == (None, ())
    assert differences({"a": 1}, {"a": 1.5, "b": None}) == ["a", "b"]
    assert differences({"a": 1}, {"a": True}) == ["a"]
    assert differences({"a": {"x": [1, 2]}}, {"a": {"x": [2, 1]}}) == ["a.x"]


def test_the_hash_is_of_the_meaning_and_changes_with_it() -> None:
    one = plan('kind = "equals", value = 1.0, tolerance = 0.5')
    assert plan('tolerance = 0.5, value = 1, kind = "equals"').sha256 == one.sha256
    assert plan('kind = "equals", value = 1.0, tolerance = 0.6').sha256 != one.sha256


def test_the_trials_that_a_plan_needs_are_each_named_once() -> None:
    more = '[[hypotheses]]\nid="H2"\nclaim="x"\nquantity="q"\narms=["random"]\npredicate={kind="is_none"}'
    one = plan('kind = "ratio", low = 3.0', arms='["sorted", "random"]', more=more)
    assert one.needed() == [("random", 0), ("random", 1), ("sorted", 0), ("sorted", 1)]


def measured(**values: list[Any]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(arm, seed): {"loss": value} for arm, column in values.items() for seed, value in enumerate(column)}


@pytest.mark.parametrize(
    ("values", "verdict", "why"),
    [
        (measured(random=[1.0, 1.1]), "supported", "all 2 seeds"),
        (measured(random=[1.0, 9.0]), "refuted", "rng_seed 1 of 2"),
        (measured(random=[1.0]), "inconclusive", "rng_seed 1: it was not recorded"),
        (measured(random=[9.0]), "refuted", "rng_seed 0 of 2"),  # what is missing cannot save it
        (measured(random=[1.0, math.nan]), "refuted", "rng_seed 1"),
        ({}, "inconclusive", "rng_seed 0, 1"),
    ],
)
def test_verdict_over_every_seed(values: Any, verdict: str, why: str) -> None:
    (one,) = judge(plan('kind = "equals", value = 1.0, tolerance = 0.2'), values)
    assert one.verdict == verdict
    assert why in one.why
    assert one.record()["predicted"] == "equals 1 within 0.2"


def test_verdict_over_the_mean_and_the_median() -> None:
    values = measured(random=[0.0, 3.0])
    text = 'kind = "equals", value = 1.5'
    assert judge(plan(text), values)[0].verdict == "refuted"
    assert judge(plan(text, more='over = "mean"'), values)[0].verdict == "supported"
    assert judge(plan(text, more='over = "median"'), values)[0].why == "the median over 2 seeds is 1.5"
    assert judge(plan(text, more='over = "mean"'), measured(random=[1.5]))[0].verdict == "inconclusive"


def test_arms_that_differ_in_two_fields_are_told_as_not_isolated() -> None:
    (one,) = judge(plan('kind = "ratio", low = 3.0', arms='["both", "random"]'), measured(both=[4, 4], random=[1, 1]))
    assert (one.verdict, one.isolated, one.differs) == ("supported", False, ("loop.clear", "order"))
    assert "not isolated: the arms differ in loop.clear, order" in one.why


def test_a_control_that_separates_as_well_takes_the_verdict_away() -> None:
    one = plan('kind = "separates", margin = 0.01', arms='["sorted", "random"]', more='control = ["both", "sorted"]')
    blind = measured(sorted=[0.4, 0.4], random=[0.0, 0.0], both=[0.4, 0.4])
    assert judge(one, blind)[0].verdict == "supported"
    (found,) = judge(one, measured(sorted=[0.4, 0.4], random=[0.0, 0.0], both=[0.9, 0.9]))
    assert (found.verdict, "the control (both and sorted) separates as well" in found.why) == ("inconclusive", True)
    (found,) = judge(one, measured(sorted=[0.4, 0.4], random=[0.0, 0.0]))
    assert (found.verdict, "no answer from the control" in found.why) == ("inconclusive", True)
