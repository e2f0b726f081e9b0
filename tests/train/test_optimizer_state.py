"""Optimizer states by name: the next step is the same to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn

from gradledger.train import optimizer_state
from gradledger.train.optimizer_state import OptimizerStateError


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 3, generator=rng)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value: torch.Tensor = model(x).pow(2).mean()
        value.backward()
        return value

    optimizer.step(loss)


Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
MAKERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
    "fused adam": lambda p: torch.optim.Adam(p, 1e-2, fused=True),
    "adamw, tensor lr": lambda p: torch.optim.AdamW(p, torch.tensor(1e-2), foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-2, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "nadam": lambda p: torch.optim.NAdam(p, 1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, 1e-2),
    "asgd": lambda p: torch.optim.ASGD(p, 1e-2),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3, history_size=4),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_steps_after_a_restore_equal_those_without(name: str) -> None:
    one = net()
    first = MAKERS[name](one.parameters())
    for seed in range(3):
        step(one, first, seed)
    first.param_groups[0]["weight_decay"] = 0.01
    tensors, facts = optimizer_state.capture(first, one.named_parameters())
    tensors, facts = {key: value.clone() for key, value in tensors.items()}, json.loads(json.dumps(facts))
    two = net(1)
    two.load_state_dict(one.state_dict())
    second = MAKERS[name](two.parameters())
    optimizer_state.restore(second, two.named_parameters(), tensors, facts)
    for seed in range(3, 6):
        step(one, first, seed)
        step(two, second, seed)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_entries_are_named_after_parameters() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer, 0)
    tensors, _ = optimizer_state.capture(optimizer, model.named_parameters())
    assert {"0.weight/exp_avg", "2.bias/step"} < set(tensors)


def test_a_state_of_another_program_is_refused_and_nothing_moves() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.5)
    step(model, optimizer, 0)
    tensors, facts = optimizer_state.capture(optimizer, model.named_parameters())
    fresh = net()
    partly = torch.optim.Adam(list(fresh.parameters())[:2], 0.1)
    with pytest.raises(OptimizerStateError, match=r"group 0 lacks 2\.weight, 2\.bias"):
        optimizer_state.restore(partly, fresh.named_parameters(), tensors, facts)
    with pytest.raises(OptimizerStateError, match="got SGD here, and Adam saved"):
        optimizer_state.restore(torch.optim.SGD(fresh.parameters(), 0.1), fresh.named_parameters(), tensors, facts)
    other = torch.optim.Adam(fresh.parameters(), 0.1)
    with pytest.raises(OptimizerStateError, match=r"0\.weight/exp_avg of shape \(2, 2\)"):
        optimizer_state.restore(
            other, fresh.named_parameters(), {**tensors, "0.weight/exp_avg": torch.zeros(2, 2)}, facts
        )
    assert other.param_groups[0]["lr"] == 0.1
    assert not other.state


def test_a_parameter_without_a_name_is_refused() -> None:
    model = net()
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(7))], 0.1)
    with pytest.raises(OptimizerStateError, match=r"an unnamed parameter of shape \(7,\) at 4 in group 0"):
        optimizer_state.capture(optimizer, model.named_parameters())
