"""The plain engine keeps the promise of a `GradientEngine`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss

from gradledger.train.gradients import GradientEngine, PlainBackward


def test_gradients_are_added_and_the_loss_comes_without_a_graph() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    engine: GradientEngine = PlainBackward(model, mse_loss)
    loss = engine.backward(x, y)
    error = x @ model.weight.detach().t() + model.bias.detach() - y
    by_hand = 2 * error.t() @ x / error.numel()
    assert not loss.requires_grad
    assert abs(loss - error.pow(2).mean()) < 1e-15
    assert (model.weight.grad - by_hand).abs().max() < 1e-15
    engine.backward(x, y)
    assert (model.weight.grad - 2 * by_hand).abs().max() < 1e-15
