"""GL-G16: forward graphs that nobody walks."""

from __future__ import annotations

import pytest

from audit.build import at, judge, lines
from audit.build_graph import discarded, iterate, trained
from gradledger.audit.rules import g16_forward_graph_never_walked as g16


def test_a_rollout() -> None:
    run, net, _ = trained()
    discarded(run, net, 64, 16, 30, then="detach", then_site=at(13))
    (finding,) = judge(g16, run)
    assert finding.site.line == 12
    assert lines(finding) == {12, 13, 30}
    assert finding.severity == "warning"
    assert finding.count == 64


@pytest.mark.parametrize(
    ("training", "then", "used", "least"),
    [
        (True, "detach", 40, 4),  # a target or a critic's input
        (False, "detach", 40, 4),
        (True, "item", 0, 2),  # a target that left as a number
        (True, "argmax", 0, 1),  # a choice of an action
        (False, "", 0, 1),  # a validation
    ],
)
def test_what_became_of_the_values_says_how_long_a_row_must_be(
    training: bool, then: str, used: int, least: int
) -> None:
    for in_a_row, found in ((least - 1, 0), (least, 1)):
        run, net, _ = trained()
        discarded(run, net, 40, in_a_row, training=training, then=then, used=used)
        assert len(judge(g16, run)) == found


def test_a_training_step_whose_loss_lost_its_graph_is_another_rule() -> None:
    run, net, opt = trained()
    for _ in range(4):
        run.backward(run.leaf(line=7), line=8, root_is_leaf=True)
        run.step(opt, line=9)
    discarded(run, net, 40, 8)
    assert judge(g16, run) == []
    iterate(run, net, opt, 1, ())
    assert len(judge(g16, run)) == 1


def test_few_calls_walked_lines_and_inputs_with_a_graph_are_silent() -> None:
    run, net, _ = trained()
    discarded(run, net, 7, 7)
    discarded(run, net, 40, 8, line=13, walked=3)
    discarded(run, net, 40, 8, line=14, inputs_need_grad=True)
    assert judge(g16, run) == []


def test_the_latest_account_counts() -> None:
    run, net, _ = trained()
    discarded(run, net, 8, 8)
    discarded(run, net, 90, 30)
    (finding,) = judge(g16, run)
    assert finding.count == 90


def test_a_line_that_training_shares_is_told_apart_by_its_caller() -> None:
    run, net, opt = trained()
    run.forward(net, line=12)
    iterate(run, net, opt, 1, ())
    discarded(run, net, 64, 16, 30)
    discarded(run, net, 64, 16, 33)
    (finding,) = judge(g16, run)
    assert finding.site.line == 30
    assert 33 in lines(finding)
    assert finding.count == 128
