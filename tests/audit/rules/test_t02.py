"""GL-T02: a target network in an optimizer."""

from __future__ import annotations

import pytest

from audit.build import Run, judge, lines
from audit.targets import compare, deep_copy, side, td_step
from gradledger.audit.rules import t02_target_in_optimizer as t02


def agent(steps: int, *, graph: bool, frozen: bool = False, sync: bool = False) -> Run:
    """One optimizer over network and target."""
    run = Run()
    net = run.module("net", line=5)
    target = deep_copy(run, net)
    if frozen:
        run.freeze(target, line=6)
    opt = run.optimizer(net, target, line=7)
    for _ in range(steps):
        td_step(run, net, target, opt, graph=graph, fills=(target,) if graph else ())
        if sync:
            run.copied(net, target, 18)
    return run


@pytest.mark.parametrize("sync", [False, True])
def test_a_target_that_gets_gradients_moves_by_itself(sync: bool) -> None:
    (finding,) = judge(t02, agent(10, graph=True, sync=sync))
    assert finding.severity == "error"
    assert finding.site.line == 7
    assert lines(finding) >= {6, 7, 11}
    assert finding.evidence["steps_with_gradient"] == 10
    assert finding.evidence["parameters"] == 2


def test_a_target_without_gradients_is_told_but_gates_nothing() -> None:
    (finding,) = judge(t02, agent(10, graph=False))
    assert finding.severity == "info"
    assert "nothing moved" in finding.message


def test_a_frozen_target_in_the_optimizer_is_harmless() -> None:
    assert judge(t02, agent(10, graph=False, frozen=True)) == []


def test_an_averaged_teacher_in_the_optimizer() -> None:
    run = Run()
    student = run.module("student", line=5)
    teacher = deep_copy(run, student)
    opt = run.optimizer(student, teacher, line=7)
    for _ in range(6):
        td_step(run, student, teacher, opt, graph=False, bootstrap=False, fills=(teacher,))
        run.copied(student, teacher, 18, how="lerp_", tau=0.01)
    (finding,) = judge(t02, run)
    assert finding.evidence["role"] == "teacher"


def test_double_q_learning_trains_both() -> None:
    run = Run()
    one = run.module("one", line=5)
    two = deep_copy(run, one)
    opt = run.optimizer(one, two, line=7)
    for step in range(8):
        learner, judge_net = (one, two) if step % 2 else (two, one)
        td_step(run, learner, judge_net, opt)
    assert judge(t02, run) == []


def test_a_federated_client_is_overwritten_and_trained() -> None:
    run = Run()
    server = run.module("server", line=5)
    client = deep_copy(run, server)
    opt = run.optimizer(client, line=7)
    other = run.optimizer(server, line=8)
    for _ in range(6):
        run.copied(server, client, 18)
        prediction = run.forward(client, line=10)
        backward = run.backward(client, line=15)
        compare(run, backward, side(prediction), side(graph=False))
        run.step(opt, line=16)
        run.assign(server)
        run.step(other, line=17)
    assert judge(t02, run) == []
