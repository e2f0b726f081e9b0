"""GL-O03: a scheduler whose optimizer nobody steps any more."""

from __future__ import annotations

from audit import build_schedules as bs
from audit.build import Net, Run, judge, lines
from gradledger.audit.rules import o03_scheduler_of_idle_optimizer as o03


def phases(*, shared: bool = True, own_schedule: bool = False, back: bool = False) -> Run:
    """Two phases: the second trains with an optimizer that was built later, over the same or another module."""
    run = Run()
    head, body = run.module("head", line=2), run.module("body", line=3)
    first = run.optimizer(head, line=bs.OPTIMIZER)
    ident = bs.scheduler(run, first, "StepLR", {"step_size": 1})
    second: int | None = None
    other_schedule = 0
    calls = 0

    def epoch(opt: int, net: Net) -> None:
        nonlocal calls
        for _ in range(3):
            run.backward(net, line=9)
            run.step(opt, line=bs.STEP)
            run.zero_grad(opt, line=8)
        bs.scheduler_step(run, ident, first, calls, 0.1 * 0.5**calls)
        if own_schedule and second is not None:
            bs.scheduler_step(run, other_schedule, second, calls, 0.1, line=30)
        calls += 1

    for _ in range(3):
        epoch(first, head)
    second = run.optimizer(*((head, body) if shared else (body,)), line=20)
    if own_schedule:
        other_schedule = bs.scheduler(run, second, "StepLR", {"step_size": 1}, line=21)
    for _ in range(4):
        epoch(second, head if shared else body)
    if back:
        epoch(first, head)
    run.end()
    return run


def test_the_rebuilt_optimizer_is_named() -> None:
    (finding,) = judge(o03, phases())
    assert finding.severity == "error"
    assert finding.site.line == 20
    assert lines(finding) >= {bs.OPTIMIZER, bs.SCHEDULER, bs.SCHEDULER_STEP}
    assert finding.evidence["calls_without_step"] == 4
    assert finding.evidence["shared_parameters"] == 2


def test_an_optimizer_made_for_the_scheduler_alone() -> None:
    run = Run()
    net = run.module("net", line=2)
    used, unused = run.optimizer(net, line=3), run.optimizer(net, line=bs.OPTIMIZER)
    ident = bs.scheduler(run, unused, "StepLR", {"step_size": 1})
    for i in range(6):
        run.backward(net, line=9)
        run.step(used, line=bs.STEP)
        run.zero_grad(used, line=8)
        bs.scheduler_step(run, ident, unused, i, 0.1 * 0.5**i)
    (finding,) = judge(o03, run)
    assert finding.site.line == bs.SCHEDULER
    assert "never stepped" in finding.message


def test_other_parameters_are_another_matter() -> None:
    assert judge(o03, phases(shared=False)) == []


def test_each_with_its_schedule() -> None:
    assert judge(o03, phases(own_schedule=True)) == []


def test_a_pause_that_ends() -> None:
    assert judge(o03, phases(back=True)) == []
