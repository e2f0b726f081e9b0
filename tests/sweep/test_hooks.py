"""Hooks on parameters and modules run as often, and see the same numbers, as under a plain backward."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradledger import sweep
from gradledger.core.errors import SweepError
from gradledger.sweep._state import equal_bits

MSE = nn.functional.mse_loss
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randn(5, 1, generator=torch.Generator().manual_seed(2))


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def _watch(net: nn.Module, log: list[Any]) -> None:
    """Every kind of hook, two of them changing what they see."""
    for name, p in net.named_parameters():

        def tensor(grad: Tensor, name: str = name) -> Tensor:
            log.append(("tensor", name, grad.sum().item()))
            return grad * 2

        def after(p: Tensor, name: str = name) -> None:
            assert p.grad is not None
            log.append(("after", name, p.grad.sum().item()))

        p.register_hook(tensor)
        p.register_post_accumulate_grad_hook(after)
    for name, module in net.named_children():
        module.register_forward_hook(lambda m, i, o, name=name: log.append(("forward", name)))
        module.register_full_backward_pre_hook(lambda m, d, name=name: log.append(("before backward", name)))


@pytest.mark.parametrize("engine", ["sweep", "autograd"])
def test_keeping_everything_fires_what_a_plain_backward_fires(engine: Any) -> None:
    outcomes = []
    for swept in (False, True):
        net, log = _net(), []
        _watch(net, log)
        one = sweep.Sweep(net, MSE, engine=engine)
        for _ in range(3):  # the first step watches, the third takes the short way
            if swept:
                one.backward(X, Y)
            else:
                MSE(net(X), Y).backward()
        outcomes.append((Counter(log), [p.grad for p in net.parameters()]))
    assert outcomes[0][0] == outcomes[1][0]
    for a, b in zip(outcomes[0][1], outcomes[1][1], strict=True):
        assert a is not None
        assert b is not None
        assert equal_bits(a, b)


@pytest.mark.parametrize("engine", ["sweep", "autograd"])
def test_recomputing_fires_the_hooks_of_parameters_once(engine: Any) -> None:
    logs = []
    for plan in (None, "(0 1) (2 3) 4 5"):
        net, log = _net(), []
        _watch(net, log)
        one = sweep.Sweep(net, MSE, engine=engine, plan=plan)
        one.backward(X, Y)
        logs.append(Counter(entry for entry in log if entry[0] in ("tensor", "after")))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("engine", ["sweep", "autograd"])
def test_an_optimizer_that_steps_in_a_hook(engine: Any) -> None:
    """Fused into the backward: planning must not train."""
    weights = []
    for swept in (False, True):
        net = _net()
        for p in net.parameters():
            optimizer = torch.optim.Adam([p], lr=1e-2)

            def step(p: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
                optimizer.step()
                optimizer.zero_grad()

            p.register_post_accumulate_grad_hook(step)
        one = sweep.Sweep(net, MSE, budget="min" if swept else None, engine=engine)
        for _ in range(3):
            if swept:
                one.backward(X, Y)
            else:
                MSE(net(X), Y).backward()
        weights.append([p.detach() for p in net.parameters()])
        assert all(p._post_accumulate_grad_hooks for p in net.parameters())  # type: ignore[attr-defined]
    assert all(map(equal_bits, *weights))


def test_a_tensor_hook_on_a_shared_parameter_is_refused_by_the_walk_alone() -> None:
    net = _net()
    net[2].weight = net[0].weight
    net[0].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    with pytest.raises(SweepError, match=r"engine='autograd'"):
        sweep.Sweep(net, MSE).backward(X, Y)
    assert all(p.grad is None for p in net.parameters())
    sweep.Sweep(net, MSE, engine="autograd", plan="(0 1 2 3) 4 5").backward(X, Y)
    got = net[0].weight.grad
    net.zero_grad()
    MSE(net(X), Y).backward()
    assert got is not None
    assert net[0].weight.grad is not None
    assert equal_bits(got, net[0].weight.grad)


def test_a_hook_after_accumulation_sees_the_sum_over_micro_batches() -> None:
    seen: list[list[float]] = []
    for swept in (False, True):
        net = _net()
        log: list[float] = []
        net[0].weight.register_post_accumulate_grad_hook(lambda p, log=log: log.append(p.grad.sum().item()))
        one = sweep.Sweep(net, MSE)
        for k in range(3):
            if swept:
                one.backward(X + k, Y)
            else:
                MSE(net(X + k), Y).backward()
        seen.append(log)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 3
