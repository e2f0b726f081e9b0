"""GL-O02: the length of a schedule and the place of its step count in different units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from audit import build_schedules as bs
from audit.build import Run, judge, lines
from gradledger.audit import _code, _loops, _source
from gradledger.audit.rules import o02_schedule_in_wrong_unit as o02
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import Site


def cosine(length: float) -> Callable[[int], float]:
    return lambda k: 0.05 * (1 + math.cos(math.pi * k / length))


def decay(every: int, factor: float) -> Callable[[int], float]:
    return lambda k: 0.1 * factor ** (k // every)


def straight(length: float) -> Callable[[int], float]:
    return lambda k: 0.1 * max(0.0, 1 - k / length)


TOO_OFTEN = {
    "cosine in epochs": ("CosineAnnealingLR", {"T_max": 6}, cosine(6)),
    "cosine in batches of one epoch": ("CosineAnnealingLR", {"T_max": 8}, cosine(8)),
    "step decay": ("StepLR", {"step_size": 2}, decay(2, 0.3)),
    "milestones": ("MultiStepLR", {"milestones": 5}, lambda k: 0.1 if k < 4 else 0.01 if k < 5 else 0.001),
    "linear": ("LinearLR", {"total_iters": 6}, lambda k: 0.1 * max(0.05, 1 - k / 6)),
    "polynomial": ("PolynomialLR", {"total_iters": 6}, straight(6)),
    "exponential": ("ExponentialLR", {}, decay(1, 0.8)),
    "lambda": ("LambdaLR", {}, straight(6)),
    "sequence": ("SequentialLR", {"milestones": 2, "inner.T_max": 4}, cosine(6)),
}
TOO_RARELY = {
    "cosine": ("CosineAnnealingLR", {"T_max": 48}, cosine(48)),
    "one cycle": ("OneCycleLR", {"total_steps": 48}, lambda k: 0.004 + 0.001 * k),
    "step decay never reached": ("StepLR", {"step_size": 48}, decay(48, 0.1)),
    "function over total steps": ("LambdaLR", {"lambda.total": 48, "lambda.warmup": 4}, straight(48)),
}
FITS = {
    "cosine per batch": ("CosineAnnealingLR", {"T_max": 48}, cosine(48), True),
    "cosine per epoch": ("CosineAnnealingLR", {"T_max": 6}, cosine(6), False),
    "cosine planned longer": ("CosineAnnealingLR", {"T_max": 300}, cosine(300), False),
    "warm restarts": ("CosineAnnealingWarmRestarts", {"T_0": 6}, cosine(6), True),
    "cosine waves of a length of their own": ("CosineAnnealingLR", {"T_max": 20}, cosine(20), True),
    "warm-up": ("LinearLR", {"total_iters": 6}, lambda k: 0.1 * min(1.0, 0.1 + k / 6), True),
    "step decay per epoch": ("StepLR", {"step_size": 2}, decay(2, 0.1), False),
    "slow decay per batch": ("ExponentialLR", {}, decay(1, 0.97), True),
    "one cycle": ("OneCycleLR", {"total_steps": 48}, cosine(48), True),
    "function": ("LambdaLR", {"lambda.total": 48}, straight(48), True),
    "restarts in a sequence": ("SequentialLR", {"milestones": 2, "inner.T_0": 4}, cosine(6), True),
}


@pytest.mark.parametrize("name", TOO_OFTEN)
def test_stepped_per_batch_with_a_length_in_epochs(name: str) -> None:
    cls, horizon, rate = TOO_OFTEN[name]
    (finding,) = judge(o02, bs.train(cls, horizon, rate, per_batch=True))
    assert finding.severity == "error"
    assert finding.site.line == bs.SCHEDULER
    assert bs.SCHEDULER_STEP in lines(finding)
    assert finding.evidence["passes"] == 6
    assert finding.evidence["calls"] == 48


@pytest.mark.parametrize("name", TOO_RARELY)
def test_stepped_per_epoch_with_a_length_in_batches(name: str) -> None:
    cls, horizon, rate = TOO_RARELY[name]
    (finding,) = judge(o02, bs.train(cls, horizon, rate, per_batch=False))
    assert finding.site.line == bs.SCHEDULER
    assert finding.evidence["length"] == 48
    assert "6 of its 48 calls" in finding.message


@pytest.mark.parametrize("name", FITS)
def test_a_schedule_that_fits_is_silent(name: str) -> None:
    cls, horizon, rate, per_batch = FITS[name]
    assert judge(o02, bs.train(cls, horizon, rate, per_batch=per_batch)) == []


def test_accumulation_needs_its_own_length() -> None:
    (finding,) = judge(o02, bs.train("CosineAnnealingLR", {"T_max": 48}, cosine(48), per_batch=True, window=4))
    assert "once per 4 batches" in finding.message
    assert judge(o02, bs.train("CosineAnnealingLR", {"T_max": 12}, cosine(12), per_batch=True, window=4)) == []


def test_a_negative_rate_is_always_told() -> None:
    run = bs.train("LambdaLR", {}, lambda k: 0.1 * (1 - k / 6), per_batch=True, loader=False)
    (finding,) = judge(o02, run)
    assert "negative rate from call 7 on" in finding.message


def test_one_cycle_that_raised_is_explained() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=bs.OPTIMIZER)
    data = run.loader(2, 8)
    ident = bs.scheduler(run, opt, "OneCycleLR", {"total_steps": 6})
    run.epoch(data, 7, 0)
    for i in range(6):
        run.backward(net, line=9)
        run.step(opt, line=bs.STEP)
        run.zero_grad(opt, line=8)
        if i < 5:
            bs.scheduler_step(run, ident, opt, i, 0.1)
    run.end(exception="ValueError", message="Tried to step 7 times. The specified number of total steps is 6")
    (finding,) = judge(o02, run)
    assert "raised" in finding.message


def test_a_hand_written_loop_is_read_from_the_source(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    file.write_text(
        "EPOCHS = 6\n"
        "sched = CosineAnnealingLR(opt, T_max=EPOCHS)\n"
        "for epoch in range(EPOCHS):\n"
        "    for batch in batches():\n"
        "        opt.step()\n"
        "        sched.step()\n"
    )

    def placed(run: Run) -> Run:
        def there(event: ev.Event) -> ev.Event:
            line = {"scheduler_made": 2, "scheduler_step": 6}.get(event.KIND)
            if line is None:
                return event
            return replace(event, site=Site(str(file), line, "<module>"))

        run.events = [there(e) for e in run.events]
        return run

    run = bs.train("CosineAnnealingLR", {"T_max": 6}, cosine(6), per_batch=True, loader=False)
    (finding,) = judge(o02, placed(run))
    assert finding.site.line == 2
    file.write_text(file.read_text().replace("T_max=EPOCHS", "T_max=6"))
    run = bs.train("CosineAnnealingLR", {"T_max": 6}, cosine(6), per_batch=True, loader=False)
    for cached in (_source.source_lines, _code.parsed, _loops._loops_in, _loops.meanings):
        cached.cache_clear()
    assert judge(o02, placed(run)) == []  # six may be any number: nothing says that it counts epochs


def test_nothing_to_check_is_said() -> None:
    assert "no learning-rate scheduler" in str(o02.not_checked(o02.init(), World()))
