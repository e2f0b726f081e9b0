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


@pytest.mark.parametrize(("training", "in_a_row", "found"), [(True, 3, 0), (True, 4, 1), (False, 1, 0), (False, 2, 1)])
def test_a_row_must_be_longer_in_train_mode(training: bool, in_a_row: int, found: int) -> None:
    run, net, _ = trained()
    discarded(run, net, 40, in_a_row, training=training)
    assert len(judge(g16, run)) == found


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
