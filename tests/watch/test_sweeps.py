"""A program that trains by sweeps is audited like any other: silent on correct code, the fault named on the rest."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradledger import sweep
from gradledger.core import passes
from gradledger.core.errors import SweepError
from gradledger.watch import watch

LOSS = nn.functional.mse_loss
WAYS: dict[str, dict[str, Any]] = {
    "keep": {},
    "plan": {"plan": "(0 1 2) 3 4 5"},
    "budget": {"budget": "min"},
    "autograd": {"plan": "(0 1 2) 3 4 5", "engine": "autograd"},
}


def _train(way: str, how: str, steps: int = 40) -> tuple[list[Tensor], int]:
    """Weights after training, and the line of the reverse pass."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    one = sweep.Sweep(net, LOSS, **WAYS[way])
    line = 0
    for _ in range(steps):
        x = torch.randn(32, 8)
        y = x.sum(1, keepdim=True)
        if how in ("step", "clip"):
            one.step(x, y, optimizer=optimizer, clip=1.0 if how == "clip" else None)
            continue
        if how != "never cleared":
            optimizer.zero_grad()
        if how == "walk":
            for event in one.reverse(x, y):
                assert event.grads is not None
        else:
            line = sys._getframe().f_lineno + 1
            one.backward(x, y)
        optimizer.step()
    return [*net.parameters(), *net.buffers()], line


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["backward", "step", "clip", "walk"])
def test_silent_and_unseen(way: str, how: str) -> None:
    if way == "autograd" and how != "backward":
        with pytest.raises(SweepError):
            _train(way, how)
        return
    alone, _ = _train(way, how)
    with watch() as running:
        watched, _ = _train(way, how)
    assert [f.key for f in running.findings] == []
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
    assert not passes.anyone()


@pytest.mark.parametrize("way", WAYS)
def test_gradients_that_nobody_clears(way: str) -> None:
    with watch() as running:
        _, line = _train(way, "never cleared")
    (finding,) = running.findings
    assert finding.key == "GL-G01"
    assert line in {finding.site.line, *(site.line for site in finding.related)}
    assert finding.count == 39


def test_a_pass_that_fails_is_told_as_failed() -> None:
    told: list[Any] = []

    class Listener:
        def begins(self, roots: Any) -> None:
            told.append(("begins", len(roots)))

        def ends(self, error: BaseException | None) -> None:
            told.append(("ends", type(error).__name__))

        def works(self, on: bool) -> None:
            pass

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, d_out: Tensor) -> Tensor:
            raise ValueError("planted")

    net = [nn.Linear(2, 2), Breaks.apply, nn.Linear(2, 1)]
    stop = passes.listen(Listener())
    try:
        with pytest.raises(ValueError, match="planted"):
            sweep.Sweep(net, LOSS).backward(torch.ones(1, 2), torch.ones(1, 1))
        sweep.Sweep([net[0], net[2]], LOSS).backward(torch.ones(1, 2), torch.ones(1, 1))
    finally:
        stop()
    assert told == [("begins", 1), ("ends", "ValueError"), ("begins", 1), ("ends", "NoneType")]
    assert not passes.anyone()
