"""GL-G07: a loss term counted twice."""

from __future__ import annotations

from audit.build import judge, lines, mean_term
from audit.build_graph import iterate, trained
from gradledger.audit.rules import g07_term_counted_twice as g07


def test_a_doubled_term_is_reported_at_the_sum() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 6, (mean_term(times=2), mean_term(op="l1_loss")))
    (finding,) = judge(g07, run)
    assert finding.site.line == 7
    assert lines(finding) == {7, 9, 90}
    assert finding.evidence["times"] == 2
    assert finding.evidence["signature"] == "constant 2x"
    assert (finding.count, finding.evidence["looked"]) == (6, 6)
    assert finding.iteration == 0


def test_once_each_an_explicit_weight_and_a_constant_are_silent() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 6, (mean_term(2.0), mean_term(op="l1_loss"), mean_term(times=3, has_graph=False)))
    assert judge(g07, run) == []


def test_a_term_doubled_on_some_steps_says_how_many() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 3, (mean_term(times=2),))
    iterate(run, net, opt, 5, (mean_term(),))
    (finding,) = judge(g07, run)
    assert (finding.count, finding.evidence["looked"]) == (3, 8)


def test_two_doubled_terms_of_one_line_are_two_subjects_of_it() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 2, (mean_term(times=2), mean_term(op="l1_loss", times=3)))
    assert {f.evidence["times"] for f in judge(g07, run)} == {2, 3}


def test_a_pass_that_raised_is_not_judged() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 2, (mean_term(times=2),), raised="RuntimeError: no")
    assert judge(g07, run) == []
