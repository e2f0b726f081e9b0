"""Schedulers: what they were given, and the steps that the program itself makes."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable

import pytest
import torch
from harness import here, watching
from torch.optim import SGD, lr_scheduler

from gradledger.core.events import OptimizerMade, SchedulerMade, SchedulerStep
from gradledger.ledger.probes import optimizers, schedulers


def optimizer(lr: float = 0.1) -> SGD:
    return SGD([torch.nn.Parameter(torch.ones(1))], lr=lr)


def halving(total: int) -> Callable[[int], float]:
    return lambda k: 1.0 - k / total


TOTAL_STEPS = 70

MAKERS: dict[str, tuple[Callable[[SGD], object], dict[str, float]]] = {
    "CosineAnnealingLR": (lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=30), {"T_max": 30}),
    "StepLR": (lambda o: lr_scheduler.StepLR(o, step_size=7, gamma=0.5), {"step_size": 7, "gamma": 0.5}),
    "MultiStepLR": (lambda o: lr_scheduler.MultiStepLR(o, [5, 9, 40]), {"milestones": 40}),
    "OneCycleLR": (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=50), {"total_steps": 50}),
    "LinearLR": (lambda o: lr_scheduler.LinearLR(o, total_iters=12), {"total_iters": 12}),
    "PolynomialLR": (lambda o: lr_scheduler.PolynomialLR(o, total_iters=13), {"total_iters": 13}),
    "ExponentialLR": (lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9), {"gamma": 0.9}),
    "CyclicLR": (lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=20), {"total_size": 40}),
    "CosineAnnealingWarmRestarts": (
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=11, T_mult=2),
        {"T_0": 11, "T_mult": 2},
    ),
    "ReduceLROnPlateau": (lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=4), {"patience": 4}),
    "LambdaLR": (lambda o: lr_scheduler.LambdaLR(o, halving(60)), {"lambda.total": 60}),
    "SequentialLR": (
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, total_iters=5), lr_scheduler.CosineAnnealingLR(o, T_max=95)], milestones=[5]
        ),
        {"milestones": 5, "inner.T_max": 95},
    ),
    "ChainedScheduler": (
        lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(o, 3), lr_scheduler.LinearLR(o, total_iters=6)]),
        {"inner.total_iters": 6},
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_scheduler_of_torch(name: str) -> None:
    make, wanted = MAKERS[name]
    with watching(optimizers, schedulers) as watch:
        opt = optimizer()
        scheduler = make(opt)
        for _ in range(3):
            opt.step()
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))  # type: ignore[attr-defined]
        line = here() - 1
        made = watch.all(SchedulerMade)[-1]
        assert made.cls == name
        assert made.optimizer == watch.session.recorder.optimizers.find(opt)
        assert dict(made.horizon) | wanted == dict(made.horizon)
        steps = watch.all(SchedulerStep)
        assert [(s.index, s.optimizer_steps, s.site.line) for s in steps] == [(i, i + 1, line) for i in range(3)]
        assert {s.scheduler for s in steps} == {made.scheduler}
        assert {s.metric for s in steps} == {name == "ReduceLROnPlateau"}
        assert steps[-1].lrs == pytest.approx((opt.param_groups[0]["lr"],))
        assert steps[0].seq > made.seq


def test_made_where_the_program_makes_it() -> None:
    with watching(optimizers, schedulers) as watch:
        opt = optimizer(0.25)
        lr_scheduler.StepLR(opt, 3)
        opt.step()
        made = watch.one(SchedulerMade)
        assert (made.site.line, made.site.file) == (here() - 3, __file__)
        assert made.lrs == (0.25,)


def test_numbers_of_a_schedule_function() -> None:
    def warm(step: int, warmup: int, total: int) -> float:
        return min(1.0, step / warmup) * math.cos(step / total)

    with watching(optimizers, schedulers) as watch:
        opt = optimizer()
        lr_scheduler.LambdaLR(opt, functools.partial(warm, warmup=4, total=80))
        lr_scheduler.LambdaLR(opt, lambda k: 1 - k / TOTAL_STEPS)
        opt.step()
        first, second = (dict(m.horizon) for m in watch.all(SchedulerMade))
        assert (first["lambda.warmup"], first["lambda.total"]) == (4, 80)
        assert second["lambda.TOTAL_STEPS"] == TOTAL_STEPS


def test_a_derived_scheduler_that_sets_its_lengths_late() -> None:
    class Cosine(lr_scheduler.LRScheduler):
        def __init__(self, opt: SGD, max_epochs: int) -> None:
            super().__init__(opt)
            self.max_epochs = max_epochs

        def get_lr(self) -> list[float]:  # type: ignore[override]
            return [0.1 for _ in self.optimizer.param_groups]

    with watching(optimizers, schedulers) as watch:
        opt = optimizer()
        scheduler = Cosine(opt, 33)
        opt.step()
        scheduler.step()
        assert dict(watch.one(SchedulerMade).horizon)["max_epochs"] == 33
        assert watch.one(SchedulerStep).index == 0


def test_a_scheduler_from_before_the_watch() -> None:
    opt = optimizer()
    scheduler = lr_scheduler.StepLR(opt, 3)
    with watching(optimizers, schedulers) as watch:
        opt.step()
        scheduler.step()
        assert dict(watch.one(SchedulerMade).horizon)["step_size"] == 3
        assert watch.one(SchedulerStep).optimizer_steps == 1


def test_the_same_rates_as_without_us() -> None:
    def rates() -> list[float]:
        opt = optimizer()
        scheduler = MAKERS["SequentialLR"][0](opt)
        found = []
        for _ in range(20):
            opt.step()
            scheduler.step()  # type: ignore[attr-defined]
            found.append(opt.param_groups[0]["lr"])
        return found

    plain = rates()
    with watching(optimizers, schedulers):
        assert rates() == plain


def test_nothing_is_kept_alive_and_everything_is_removed() -> None:
    before = [c.__dict__.get("step") for c in vars(lr_scheduler).values() if isinstance(c, type)]
    with watching(optimizers, schedulers) as watch:
        scheduler = lr_scheduler.StepLR(optimizer(), 3)
        watch.session.recorder.emit(SchedulerStep, scheduler=0, optimizer=0, index=0, optimizer_steps=0, lrs=())
        ref = weakref.ref(scheduler)
        del scheduler
        import gc

        gc.collect()
        assert ref() is None
    assert [c.__dict__.get("step") for c in vars(lr_scheduler).values() if isinstance(c, type)] == before


def test_a_wrapper_around_an_optimizer_is_the_same_optimizer() -> None:
    class Wrapped(torch.optim.Optimizer):
        """As accelerate does it: the groups are those of the optimizer inside, and so are the steps."""

        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner

        @property
        def param_groups(self) -> list[dict]:
            return self.inner.param_groups

        def step(self, closure=None):
            return self.inner.step(closure)

    with watching() as w:
        inner = optimizer()
        outer = Wrapped(inner)
        scheduler = torch.optim.lr_scheduler.StepLR(outer, 1)
        outer.step()
        scheduler.step()
    (made,) = w.all(OptimizerMade)
    assert w.one(SchedulerMade).optimizer == made.optimizer
    assert w.one(SchedulerStep).optimizer == made.optimizer
    assert w.one(SchedulerStep).optimizer_steps == 1
