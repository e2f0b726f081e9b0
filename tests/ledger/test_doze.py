"""Dozing through a steady run, and waking for whatever differs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from harness import Watched, watching
from torch import nn

from gradledger.core.events import Backward, Clear, Clip, NonFinite, SchedulerStep, Step

LONG = 700  # iterations: well past those that are told one by one


def train(at: int, fault: Callable[[nn.Module, torch.optim.Optimizer], None], steps: int = LONG) -> Watched:
    """A plain loop in which `fault` runs instead of the clear in iteration `at`."""
    with watching() as w:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(steps):
            if i == at:
                fault(model, optimizer)
            else:
                optimizer.zero_grad()
            model(torch.ones(2, 3)).mean().backward()
            optimizer.step()
    return w


def step_of(w: Watched, iteration: int) -> Step:
    return next(e for e in w.all(Step) if e.iteration == iteration)


def test_a_steady_run_is_dozed_through_and_still_counted() -> None:
    w = train(-1, lambda m, o: None)
    assert w.session.recorder.doze.asleep
    assert w.session.recorder.iteration == LONG
    assert w.session.recorder.backwards == LONG
    assert sum(e.weight for e in w.all(Step)) == pytest.approx(LONG, rel=0.06)
    assert w.session.recorder.steady.counted_only > 100


def test_a_missing_clear_is_told_at_once_with_the_true_history() -> None:
    w = train(613, lambda m, o: None)
    step = step_of(w, 613)
    assert [(f.backward, f.consumed) for f in step.lives[0].fills] == [(613, 1), (614, 0)]
    after = [e for e in w.all(Step) if e.iteration == 614]
    assert all(len(e.lives[0].fills) == 1 for e in after)


def test_another_clear_at_another_line_wakes() -> None:
    w = train(613, lambda m, o: o.zero_grad(set_to_none=False))
    told = [e.iteration for e in w.all(Clear)]
    assert 613 in told
    assert len(step_of(w, 613).lives[0].fills) == 1


def test_a_second_backward_wakes_and_the_first_is_told_too() -> None:
    def twice(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 3)).mean().backward()

    w = train(613, twice)
    assert [e.backward for e in w.all(Backward) if e.iteration == 613] == [614, 615]
    assert [f.backward for f in step_of(w, 613).lives[0].fills] == [614, 615]


def test_a_clear_between_backward_and_step_wakes() -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(LONG):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).mean().backward()
            if i == 613:
                optimizer.zero_grad()
            optimizer.step()
    dropped = [c.dropped for c in w.all(Clear) if c.iteration == 613]
    assert [(d.backward, d.consumed) for d in dropped[-1]] == [(614, 0)]
    assert step_of(w, 613).lives[0].grad == "none"


def test_a_loss_that_is_not_finite_wakes() -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(LONG):
            optimizer.zero_grad()
            (model(torch.ones(2, 3)).mean() * (math.inf if i == 613 else 1.0)).backward()
            optimizer.step()
    assert w.all(NonFinite)[0].iteration == 613


def test_alternating_optimizers_are_dozed_through() -> None:
    with watching() as w:
        a, b = nn.Linear(3, 1), nn.Linear(3, 1)
        first = torch.optim.SGD(a.parameters(), lr=1e-4)
        second = torch.optim.SGD(b.parameters(), lr=1e-4)
        for i in range(LONG):
            for model, optimizer in ((a, first), (b, second)):
                if not (i == 613 and model is b):
                    optimizer.zero_grad()
                model(torch.ones(2, 3)).mean().backward()
                optimizer.step()
    assert w.session.recorder.iteration == 2 * LONG
    missed = [e for e in w.all(Step) if len(e.lives[0].fills) > 1]
    assert [(e.iteration, e.optimizer) for e in missed] == [(2 * 613 + 1, missed[0].optimizer)]
    assert [(f.backward, f.consumed) for f in missed[0].lives[0].fills] == [(2 * 613, 1), (2 * 613 + 2, 0)]


def test_closures_and_nested_passes_are_never_dozed_through() -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).mean()
            loss.backward()
            return loss

        for _ in range(LONG):
            optimizer.step(closure)
    assert w.session.recorder.doze.forbidden
    assert not w.session.recorder.doze.asleep


def test_a_forward_that_raises_in_mid_iteration_leaves_no_trace() -> None:
    def fails(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        with pytest.raises(RuntimeError):
            torch.ones(2).backward()
        optimizer.zero_grad()

    w = train(613, fails)
    assert any("does not require grad" in e.raised for e in w.all(Backward))
    assert len(step_of(w, 613).lives[0].fills) == 1


def test_clips_and_schedules_are_part_of_what_repeats() -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10_000)
        for i in range(LONG):
            optimizer.zero_grad()
            if i == 613:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            model(torch.ones(2, 3)).mean().backward()
            if i != 613:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    assert w.session.recorder.steady.counted_only > 100
    early = [c for c in w.all(Clip) if c.iteration == 613]
    assert [c.pending for c in early] == [()]
    assert all(len(c.pending) == 1 for c in w.all(Clip) if c.iteration != 613)
    assert w.all(SchedulerStep)[-1].index >= LONG - 40


@pytest.mark.parametrize("missing", [-1, 613])
def test_inner_passes_of_autograd_grad_are_part_of_what_repeats(missing: int) -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(LONG):
            if i != missing:
                optimizer.zero_grad()
            inner = model(torch.ones(2, 3)).mean()
            (slope,) = torch.autograd.grad(inner, [model.weight], create_graph=True)
            (model(torch.ones(2, 3)).mean() + slope.pow(2).sum()).backward()
            optimizer.step()
    assert not w.session.recorder.doze.forbidden
    assert not w.session.recorder.failures
    assert w.session.recorder.backwards == 2 * LONG
    if missing < 0:
        assert w.session.recorder.doze.asleep
    else:
        fills = step_of(w, missing).lives[0].fills
        assert [(f.backward, f.consumed) for f in fills] == [(2 * missing, 1), (2 * missing + 2, 0)]


def test_an_inner_pass_that_keeps_no_graph_for_once_wakes() -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(LONG):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).mean()
            torch.autograd.grad(loss, [model.weight], retain_graph=True, create_graph=i != 613)
            loss.backward()
            optimizer.step()
    told = [e for e in w.all(Backward) if e.iteration == 613 and e.method == "grad"]
    assert [e.create_graph for e in told] == [False]
    assert [e.backward for e in told] == [2 * 613 + 1]


def test_a_gradient_assigned_by_hand_is_no_cleared_one_after_waking() -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(LONG):
            loss = model(torch.ones(2, 3)).mean()
            optimizer.zero_grad()
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                p.grad = g
            if i == 613:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert not w.session.recorder.doze.forbidden
    assert {life.grad for e in w.all(Step) for life in e.lives} == {"assigned"}
    assert 613 in {e.iteration for e in w.all(Step)}
