"""Synthetic runs with learning-rate schedules: loops over a loader that step a scheduler per batch or per epoch."""

from __future__ import annotations

from collections.abc import Callable

from audit.build import Run, at
from gradledger.core import events as ev

OPTIMIZER, SCHEDULER, STEP, SCHEDULER_STEP = 4, 5, 10, 11


def scheduler(
    run: Run, optimizer: int, cls: str, horizon: dict[str, float], *, rate: float = 0.1, line: int = SCHEDULER
) -> int:
    """A scheduler on `optimizer`."""
    ident = run.new("scheduler")
    run.emit(
        ev.SchedulerMade,
        at(line),
        scheduler=ident,
        optimizer=optimizer,
        cls=cls,
        horizon=tuple(horizon.items()),
        lrs=(rate,),
    )
    return ident


def scheduler_step(
    run: Run, ident: int, optimizer: int, index: int, rate: float, *, line: int = SCHEDULER_STEP, metric: bool = False
) -> None:
    """`scheduler.step()`: call number `index`, after which the rate is `rate`."""
    steps = run._steps[optimizer]
    run.emit(
        ev.SchedulerStep, at(line), scheduler=ident, optimizer=optimizer, index=index, optimizer_steps=steps,
        lrs=(rate,), metric=metric,
    )  # fmt: skip


def train(
    cls: str,
    horizon: dict[str, float],
    rate: Callable[[int], float],
    *,
    per_batch: bool,
    epochs: int = 6,
    batches: int = 8,
    window: int = 1,
    loader: bool = True,
) -> Run:
    """A whole run.  `rate(k)`: the rate after `k` scheduler calls; `window`: batches for each optimizer step."""
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=OPTIMIZER)
    data = run.loader(2, batches) if loader else 0
    ident = scheduler(run, opt, cls, horizon, rate=rate(0))
    calls = 0
    for epoch in range(epochs):
        if loader:
            run.epoch(data, 7, epoch)
        for i in range(batches):
            run.backward(net, line=9)
            if (i + 1) % window == 0:
                run.step(opt, line=STEP)
                run.zero_grad(opt, line=8)
                if per_batch:
                    calls += 1
                    scheduler_step(run, ident, opt, calls - 1, rate(calls))
        if not per_batch:
            calls += 1
            scheduler_step(run, ident, opt, calls - 1, rate(calls))
    run.end()
    return run
