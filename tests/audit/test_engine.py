"""The engine: containment, merging, order, what was checked and what was not."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from audit.build import Run, at
from gradledger.audit.engine import Judge, audit, merged, ordered
from gradledger.audit.registry import LoadedRule, Registry
from gradledger.audit.rule import Finding, Rule
from gradledger.core import events as ev
from gradledger.core.errors import UsageError
from gradledger.core.site import Site


def finding(code: str = "G1", line: int = 3, **values: Any) -> Finding:
    return Finding(code=code, site=at(line), **{"severity": "error", "message": "m", "fix": "f", **values})


def rule(code: str, **functions: Any) -> LoadedRule:
    """A rule that counts its events and says nothing, but for what `functions` override."""

    def update(state: list[ev.Event], event: ev.Event, world: Any) -> None:
        state.append(event)

    contract = {"init": list, "update": update, "finish": lambda state, world: [], **functions}
    name = f"bad-{code.lower()}"
    return LoadedRule(
        Rule(code, name, "modules", "A sentence."), SimpleNamespace(__name__=name, __doc__="", **contract)
    )


def steps(count: int = 3) -> Run:
    run = Run()
    net = run.module("net", line=1)
    optimizer = run.optimizer(net, line=2)
    for _ in range(count):
        run.zero_grad(optimizer, line=5)
        run.forward(net, line=6)
        run.backward(net, line=7)
        run.step(optimizer, line=8)
    run.end()
    return run


def explode(*_: Any) -> Any:
    raise ZeroDivisionError("boom")


@pytest.mark.parametrize("place", ["init", "update", "finish", "not_checked"])
def test_a_rule_that_raises_is_taken_out_and_the_others_go_on(place: str) -> None:
    good = rule("G2", finish=lambda state, world: [finding("G2", count=len(state))])
    report = audit(steps().events, rules=Registry((rule("G1", **{place: explode}), good)))
    assert [f.code for f in report.findings] == ["G2"]
    assert report.checked == ("GL-G02",)
    (failed,) = report.not_checked
    assert failed.key == "GL-G01"
    assert "the rule itself failed: ZeroDivisionError: boom (test_engine.py:" in failed.reason


def test_a_rule_sees_no_event_after_it_has_raised() -> None:
    seen: list[int] = []

    def update(state: Any, event: ev.Event, world: Any) -> None:
        seen.append(event.seq)
        explode()

    audit(steps().events, rules=Registry((rule("G1", update=update),)))
    assert len(seen) == 1


def test_a_rule_with_listens_sees_those_classes_only() -> None:
    seen: list[str] = []

    def update(state: Any, event: ev.Event, world: Any) -> None:
        seen.append(event.KIND)

    audit(steps(2).events, rules=Registry((rule("G1", update=update, LISTENS=(ev.Step, ev.Clear)),)))
    assert sorted(seen) == ["clear", "clear", "step", "step"]


def test_the_world_is_up_to_date_before_a_rule_sees_the_event() -> None:
    counts: list[int] = []

    def update(state: Any, event: ev.Event, world: Any) -> None:
        if isinstance(event, ev.Step):
            counts.append(world.optimizer(event.optimizer).steps)

    audit(steps(3).events, rules=Registry((rule("G1", update=update),)))
    assert counts == [1, 2, 3]


def test_a_reason_not_to_have_checked_is_listed_unless_something_was_found() -> None:
    def reason(state: Any, world: Any) -> str:
        return "no scheduler was built"

    silent, loud = rule("O1", not_checked=reason), rule("O2", not_checked=reason, finish=lambda s, w: [finding("O2")])
    report = audit(steps().events, rules=Registry((silent, loud)))
    assert [(n.code, n.reason) for n in report.not_checked] == [("O1", "no scheduler was built")]
    assert report.checked == ("GL-O02",)


def test_a_broken_rule_file_is_listed() -> None:
    report = audit(steps().events, rules=Registry((rule("G1"),), broken=(("G9", "its file cannot be used: x"),)))
    assert [n.key for n in report.not_checked] == ["GL-G09"]


def test_findings_of_one_code_at_one_line_are_one() -> None:
    late = finding(line=3, count=2, iteration=9, related=(at(5),), subject="a", message="late")
    early = finding(line=3, count=3, iteration=4, related=(at(6), at(5)), subject="b", message="early")
    other = finding(line=4)
    joined, alone = merged([late, early, other])
    assert alone == other
    assert (joined.count, joined.iteration, joined.message) == (5, 4, "early")
    assert {s.line for s in joined.related} == {5, 6}
    assert joined.evidence["subjects"] == ["a", "b"]


def test_findings_without_a_line_stay_apart_by_subject() -> None:
    from gradledger.core.site import NOWHERE

    def nowhere(subject: str) -> Finding:
        return Finding(code="G1", severity="error", site=NOWHERE, message="m", fix="f", subject=subject)

    assert len(merged([nowhere("a"), nowhere("b"), nowhere("a")])) == 2


def test_order_is_by_consequence() -> None:
    info = finding("G1", 1, severity="info")
    warning = finding("G2", 2, severity="warning", iteration=0)
    likely = finding("G3", 3, confidence="likely", iteration=0)
    late = finding("G4", 4, iteration=50)
    first = finding("G5", 5, iteration=2)
    assert [f.code for f in ordered([info, warning, likely, late, first])] == ["G5", "G4", "G3", "G2", "G1"]


def test_an_unknown_code_to_select_is_an_error() -> None:
    with pytest.raises(UsageError, match="got 'Z9'"):
        Judge(select=["Z9"], rules=Registry((rule("G1"),)))


@pytest.mark.parametrize(
    ("select", "ignore", "left"),
    [
        ([], [], ["GL-G01", "GL-G02", "GL-T01"]),
        (["G"], [], ["GL-G01", "GL-G02"]),
        (["GL-G01", "bad-t1"], [], ["GL-G01", "GL-T01"]),
        (["g"], ["G02"], ["GL-G01"]),
    ],
)
def test_select_and_ignore(select: list[str], ignore: list[str], left: list[str]) -> None:
    registry = Registry((rule("G1"), rule("G2"), rule("T1")))
    report = audit(steps().events, select=select, ignore=ignore, rules=registry)
    assert list(report.checked) == left


def test_a_run_that_was_cut_off_is_judged() -> None:
    events = [e for e in steps().events if not isinstance(e, ev.RunEnded)]
    report = audit(events, rules=Registry((rule("G1", finish=lambda s, w: [finding()]),)))
    assert report.exit_code is None
    assert len(report.findings) == 1


def test_a_torn_event_is_noted_and_the_rest_judged() -> None:
    run = steps()
    torn = ev.OptimizerMade(optimizer=7, cls="Adam", groups=None, seq=10_000)  # type: ignore[arg-type]
    report = audit([*run.events, torn], rules=Registry((rule("G1"),)))
    assert "the record of the run is torn" in report.notes[0].message
    assert report.checked == ("GL-G01",)


def test_reaches() -> None:
    registry = Registry((rule("G1", finish=lambda s, w: [finding(severity="warning")]),))
    report = audit(steps().events, rules=registry)
    assert [report.reaches(level) for level in ("error", "warning", "never")] == [False, True, False]


def test_judging_twice_gives_the_same() -> None:
    judge = Judge(rules=Registry((rule("G1", finish=lambda s, w: [finding(count=len(s))]),)))
    for event in steps().events:
        judge.put(event)
    assert judge.finish() == judge.finish()
    assert not math.isnan(judge.finish().findings[0].count)


def test_a_rule_that_needs_detail_did_not_check_a_run_without() -> None:
    run = Run()
    net = run.module("net", line=1)
    optimizer = run.optimizer(net, line=2)
    run.backward(net, line=7, detailed=False)
    run.step(optimizer, line=8)
    run.emit(ev.RunEnded, at(0), not_watched=("compile: the program uses torch.compile",))
    registry = Registry((rule("G1", NEEDS_DETAIL=True), rule("G2")))
    report = audit(run.events, rules=registry)
    assert [(n.code, n.reason) for n in report.not_checked] == [("G1", "compile: the program uses torch.compile")]
    run.backward(net, line=7)
    assert audit(run.events, rules=registry).not_checked == ()


def test_a_line_of_another_file_is_named_with_its_file() -> None:
    def elsewhere(file: str, line: int) -> Site:
        return Site(file, line, "f")

    said = finding(
        line=3,
        message="see line 5, line 3, line 9, line 11 and line 12",
        fix="edit line 5 of it",
        related=(elsewhere("/lib/other.py", 5), at(9), elsewhere("/lib/pkg/__init__.py", 11), elsewhere("/a.py", 12),
                 elsewhere("/b.py", 12)),
    )  # fmt: skip
    report = audit(steps().events, rules=Registry((rule("G1", finish=lambda state, world: [said]),)))
    (told,) = report.findings
    assert told.message == "see line 5 of other.py, line 3, line 9, line 11 of pkg/__init__.py and line 12"
    assert told.fix == "edit line 5 of other.py of it"
    again = audit(steps().events, rules=Registry((rule("G1", finish=lambda state, world: [told]),)))
    assert again.findings[0].message == told.message, "said twice (a finding of another rank), it stays as it is"
