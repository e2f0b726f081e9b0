"""GL-G11: a term of the loss without graph."""

from __future__ import annotations

import dataclasses

from audit.build import at, judge, lines, mean_term
from audit.build_graph import constant, iterate, number, trained
from gradledger.audit.rules import g11_term_without_graph as g11


def test_a_detached_term() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 5, (mean_term(), constant(*net.tensors, factor=0.5)))
    (finding,) = judge(g11, run)
    assert finding.site.line == 6
    assert lines(finding) == {6, 7, 9}
    assert finding.evidence["factor"] == 0.5
    assert finding.evidence["seen"] == finding.evidence["looked"] == 5
    assert finding.confidence == "certain"


def test_a_number_that_changes() -> None:
    run, net, opt = trained()
    for step in range(5):
        iterate(run, net, opt, 1, (mean_term(), number(0.1 * step, *net.tensors, how="numpy")))
    (finding,) = judge(g11, run)
    assert "Python number" in finding.message
    assert ".numpy()" in finding.message


def test_a_number_that_stays_is_silent() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 5, (mean_term(), number(1.0, *net.tensors, factor=-0.3)))
    assert judge(g11, run) == []


def test_two_constants_of_one_line_are_not_one_that_changes() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 5, (mean_term(), number(1.0, *net.tensors), number(2.0, *net.tensors)))
    assert judge(g11, run) == []


def test_a_term_of_the_other_player_is_silent() -> None:
    run, net, opt = trained()
    other = run.module("critic", line=20)
    run.optimizer(other, line=21)
    iterate(run, net, opt, 5, (mean_term(), constant(*other.tensors)))
    assert judge(g11, run) == []


def test_a_term_detached_for_a_while_is_silent() -> None:
    run, net, opt = trained()
    off = constant(*net.tensors)
    iterate(run, net, opt, 3, (mean_term(), off))
    iterate(run, net, opt, 3, (mean_term(), dataclasses.replace(off, has_graph=True, depends=(), cut=None)))
    assert judge(g11, run) == []


def test_a_constant_that_depends_on_nothing_and_a_gradient_penalty_are_silent() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 5, (mean_term(), constant(), constant(*net.tensors, penalty_of_grad=True)))
    assert judge(g11, run) == []


def test_a_pass_that_no_step_consumed_is_silent() -> None:
    run, net, _ = trained()
    run.backward(net, line=9, terms=(mean_term(), constant(*net.tensors)), root_site=at(7))
    assert judge(g11, run) == []
