"""GL-O01: the scheduler moves before the optimizer."""

from __future__ import annotations

import pytest

from audit import build_schedules as bs
from audit.build import Run, judge, lines
from gradledger.audit.rules import o01_scheduler_before_optimizer as o01
from gradledger.core import events as ev


def loop(
    order: str,
    *,
    steps: int = 10,
    wound: int = 0,
    cls: str = "CosineAnnealingLR",
    horizon: dict[str, float] | None = None,
    skipped: bool = False,
    constant: int = 0,
    metric: bool = False,
    at_top: bool = False,
) -> Run:
    """`order`: "so" scheduler first, "os" optimizer first; `wound`: calls before training; `constant`: calls that leave
    the rate as it is; `at_top`: the scheduler is called before the reverse pass."""
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=bs.OPTIMIZER)
    ident = bs.scheduler(run, opt, cls, horizon or {"T_max": 20})
    calls = 0

    def step_scheduler(line: int) -> None:
        nonlocal calls
        rate = 0.1 if calls < constant else 0.1 - 0.001 * (calls - constant + 1)
        bs.scheduler_step(run, ident, opt, calls, rate, line=line, metric=metric)
        calls += 1

    for _ in range(wound):
        step_scheduler(6)
    for i in range(steps):
        if at_top:
            step_scheduler(bs.SCHEDULER_STEP)
        run.backward(net, line=9)
        for letter in order:
            if letter == "s":
                step_scheduler(bs.SCHEDULER_STEP)
            elif skipped and i == 0:
                run.emit(ev.ScalerCalled, run.events[-1].site, method="step", optimizer=opt, skipped=True, scale=1e4)
            else:
                run.step(opt, line=bs.STEP)
        run.zero_grad(opt, line=8)
    run.end()
    return run


def test_scheduler_first_is_reported_at_its_line() -> None:
    (finding,) = judge(o01, loop("so"))
    assert finding.severity == "warning"
    assert finding.site.line == bs.SCHEDULER_STEP
    assert bs.STEP in lines(finding)
    assert finding.count == 10
    assert "first learning rate, 0.1, was never used" in finding.message


def test_a_step_decay_one_call_early() -> None:
    assert len(judge(o01, loop("o", at_top=True, cls="StepLR", horizon={"step_size": 4}, constant=3))) == 1
    # the first drop comes when it is due: step(epoch) at the top of the loop
    assert judge(o01, loop("o", at_top=True, cls="StepLR", horizon={"step_size": 4}, constant=4)) == []


@pytest.mark.parametrize(
    "run",
    [
        loop("os"),
        loop("os", wound=3),
        loop("os", wound=1),
        loop("os", skipped=True),
        loop("so", cls="ReduceLROnPlateau"),
        loop("so", metric=True),
        loop("so", steps=1),
        loop("so", constant=99),
    ],
    ids=[
        "right order",
        "wound forward",
        "one call ahead",
        "first step skipped",
        "plateau",
        "metric",
        "one step",
        "constant",
    ],
)
def test_correct_orders_are_silent(run: Run) -> None:
    assert judge(o01, run) == []
