"""GL-T01: the bootstrap or teacher target keeps its graph."""

from __future__ import annotations

import pytest

from audit.build import Run, judge, lines
from audit.targets import deep_copy, td_step
from gradledger.audit.rules import t01_target_not_detached as t01


def test_a_separate_target_outside_every_optimizer_is_a_waste() -> None:
    run = Run()
    net = run.module("net", line=5)
    target = deep_copy(run, net)
    opt = run.optimizer(net, line=7)
    for _ in range(12):
        td_step(run, net, target, opt, graph=True, fills=(target,))
    (finding,) = judge(t01, run)
    assert finding.severity == "warning"
    assert finding.site.line == 11
    assert lines(finding) >= {10, 11, 12, 13}
    assert finding.evidence["seen"] == finding.count == 12
    assert finding.evidence["discount"] == 0.9
    assert "no optimizer uses" in finding.message


def test_a_target_that_an_optimizer_moves_is_wrong() -> None:
    run = Run()
    net = run.module("net", line=5)
    target = deep_copy(run, net)
    opt = run.optimizer(net, target, line=7)
    for _ in range(5):
        td_step(run, net, target, opt, graph=True, fills=(target,))
    (finding,) = judge(t01, run)
    assert finding.severity == "error"


def test_the_trained_network_itself_gives_the_target_with_graph() -> None:
    run = Run()
    net = run.module("net", line=5)
    opt = run.optimizer(net, line=7)
    for _ in range(5):
        td_step(run, net, net, opt, graph=True)
    (finding,) = judge(t01, run)
    assert finding.severity == "error"
    assert finding.site.line == 12
    assert lines(finding) >= {10, 11, 13}
    assert "residual gradient" in finding.message


def test_without_any_comparison_the_filled_tensors_of_a_followed_copy_tell() -> None:
    run = Run()
    net = run.module("net", line=5)
    target = deep_copy(run, net)
    opt = run.optimizer(net, line=7)
    for _ in range(6):
        run.zero_grad(opt, line=14)
        run.forward(net, line=10)
        run.forward(target, line=11)
        run.backward(net, target, line=15)
        run.step(opt, line=16)
        run.copied(net, target, 18, how="lerp_", tau=0.01)
    (finding,) = judge(t01, run)
    assert finding.severity == "warning"
    assert finding.site.line == 11
    assert finding.evidence["copies"] == 6


@pytest.mark.parametrize("case", ["detached", "frozen", "siamese", "local worker"])
def test_near_misses(case: str) -> None:
    run = Run()
    net = run.module("net", line=5)
    target = deep_copy(run, net)
    if case == "frozen":
        run.freeze(target, line=6)
    opt = run.optimizer(net, line=7)
    for _ in range(6):
        if case == "detached":
            td_step(run, net, net, opt, graph=False)
        elif case == "frozen":
            td_step(run, net, target, opt, graph=True)
        elif case == "siamese":
            td_step(run, net, net, opt, graph=True, bootstrap=False)
        else:
            run.copied(net, target, 18)
            run.forward(target, line=11)
            run.backward(target, line=15)
            run.assign(net)
            run.step(opt, line=16)
    assert judge(t01, run) == []


def test_without_targets_the_rule_says_so() -> None:
    run = Run()
    net = run.module("net", line=5)
    opt = run.optimizer(net, line=7)
    run.backward(net, line=15)
    run.step(opt, line=16)
    assert judge(t01, run) == []
    state = t01.init()
    from gradledger.audit.world import World

    assert "no loss bootstraps" in (t01.not_checked(state, World()) or "")
