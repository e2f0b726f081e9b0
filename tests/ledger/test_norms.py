"""Norms at a step against those that the program computes itself, and silence where there is nothing to measure."""

from __future__ import annotations

import pytest
import torch
from harness import watching

from gradledger.core.events import StepMeasured
from gradledger.ledger.probes import norms, optimizers


def test_norms_are_those_of_the_program() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)).double()
    wanted = []
    with watching(optimizers, norms) as seen:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(11, 5, dtype=torch.float64)).pow(2).mean().backward()
            before = [p.detach().clone() for p in net.parameters()]
            grads = [p.grad.detach().clone() for p in net.parameters() if p.grad is not None]
            optimizer.step()
            after = [p.detach().clone() for p in net.parameters()]
            wanted.append((before, grads, [a - b for a, b in zip(after, before, strict=True)]))
    events = seen.all(StepMeasured)
    assert [e.iteration for e in events] == [0, 1, 2]
    for event, (before, grads, moved) in zip(events, wanted, strict=True):
        assert event.tensors == tuple(seen.tensor(p) for p in net.parameters())
        assert event.values == pytest.approx([float(t.pow(2).sum().sqrt()) for t in before], rel=1e-12)
        assert event.gradients == pytest.approx([float(t.pow(2).sum().sqrt()) for t in grads], rel=1e-12)
        assert event.updates == pytest.approx([float(t.pow(2).sum().sqrt()) for t in moved], rel=1e-12)
        assert event.updates == pytest.approx([0.3 * g for g in event.gradients], rel=1e-9)


def test_only_what_has_a_dense_gradient_is_measured() -> None:
    table = torch.nn.Embedding(9, 2, sparse=True)
    idle = torch.nn.Linear(2, 2)
    head = torch.nn.Linear(2, 1)
    parameters = [*table.parameters(), *idle.parameters(), *head.parameters()]
    with watching(optimizers, norms) as seen:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        head(table(torch.tensor([1, 2]))).sum().backward()
        optimizer.step()
    assert seen.one(StepMeasured).tensors == tuple(seen.tensor(p) for p in head.parameters())


def test_half_precision_does_not_overflow() -> None:
    weight = torch.nn.Parameter(torch.full((400,), 300.0, dtype=torch.float16))
    with watching(optimizers, norms) as seen:
        optimizer = torch.optim.SGD([weight], lr=1e-3)
        (weight * 200.0).sum().backward()
        optimizer.step()
    event = seen.one(StepMeasured)
    assert event.gradients == pytest.approx((4000.0,))
    assert event.values == pytest.approx((6000.0,))


def test_large_models_are_measured_without_copies_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(2, 4)).sum().backward()
    monkeypatch.setattr(norms, "MAX_COPIED", 10)
    with watching(optimizers, norms) as seen:
        optimizer.step()
    assert (len(seen.one(StepMeasured).gradients), seen.one(StepMeasured).updates) == (2, ())
    monkeypatch.setattr(norms, "MAX_ELEMENTS", 10)
    with watching(optimizers, norms) as seen:
        optimizer.step()
    assert seen.all(StepMeasured) == []


def test_a_step_with_a_closure_is_left_alone() -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(torch.ones(3, 2)).pow(2).mean()
        loss.backward()
        return loss

    with watching(optimizers, norms) as seen:
        optimizer.step(closure)
    assert seen.all(StepMeasured) == []
