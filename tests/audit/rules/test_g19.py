"""GL-G19: a loss against one's own detached value."""

from __future__ import annotations

import pytest

from audit.build import Run, at, judge, lines
from audit.build_graph import compare, operand
from gradledger.audit.rules import g19_compared_with_itself as g19
from gradledger.core.events import Cut

OWN = operand("detach", 6, graph=False, alias_of_other=True, cut=Cut("detach", at(6)))


@pytest.mark.parametrize("op", ["mse_loss", "smooth_l1_loss", "kl_div", "difference"])
def test_the_same_value_on_both_sides(op: str) -> None:
    run = Run()
    for _ in range(4):
        compare(run, operand(), OWN, op=op)
    (finding,) = judge(g19, run)
    assert finding.site.line == 7
    assert lines(finding) == {5, 6, 7}
    assert finding.count == 4


def test_either_side_may_be_the_detached_one() -> None:
    run = Run()
    compare(run, OWN, operand())
    (finding,) = judge(g19, run)
    assert finding.message.startswith("This `mse_loss` compares the `linear` of line 5")


def test_sides_that_differ_are_silent() -> None:
    run = Run()
    compare(run, operand(), operand("linear", 6, graph=False))
    assert judge(g19, run) == []


def test_a_value_that_is_not_zero_once_is_silent() -> None:
    run = Run()
    compare(run, operand(), OWN, value=0.0)
    compare(run, operand(), OWN, value=0.3)
    assert judge(g19, run) == []


def test_losses_that_do_not_vanish_at_equality_are_silent() -> None:
    run = Run()
    compare(run, operand(), OWN, op="cross_entropy")
    compare(run, operand(graph=False), OWN)
    assert judge(g19, run) == []


def test_a_good_comparison_on_the_same_line_does_not_hide_it() -> None:
    run = Run()
    for _ in range(3):
        compare(run, operand(), operand("sin", 3, graph=False))
        compare(run, operand(), OWN)
    (finding,) = judge(g19, run)
    assert finding.count == 3
