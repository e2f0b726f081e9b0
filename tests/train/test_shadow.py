"""Shadow copies own their storage, hold no gradient, and move only when told."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradledger.train.shadow import Shadow, ShadowError


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def move(online: nn.Module) -> None:
    optimizer = torch.optim.SGD(online.parameters(), 0.1)
    online(torch.randn(8, 3)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def equal(one: nn.Module, two: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(two), strict=True))


def test_it_stands_still_until_it_is_synced_buffers_included() -> None:
    online = net()
    shadow = Shadow(online)
    before = [tensor.clone() for tensor in tensors(shadow.model)]
    assert equal(online, shadow.model)
    move(online)
    assert all(torch.equal(a, b) for a, b in zip(tensors(shadow.model), before, strict=True))
    assert not torch.equal(online[1].running_mean, shadow.model[1].running_mean)
    shadow.sync()
    assert equal(online, shadow.model)
    assert online[1].num_batches_tracked == 1


def test_it_owns_its_storage_keeps_it_and_holds_no_gradient() -> None:
    online = net()
    move(online)
    online(torch.randn(8, 3)).sum().backward()
    shadow = Shadow(online)
    mine = {tensor.data_ptr() for tensor in tensors(shadow.model)}
    assert not mine & {tensor.data_ptr() for tensor in tensors(online)}
    assert all(not p.requires_grad and p.grad is None for p in shadow.model.parameters())
    assert not shadow.model.training
    assert online.training
    shadow.sync()
    assert mine == {tensor.data_ptr() for tensor in tensors(shadow.model)}
    assert all(p.requires_grad and p.grad is not None for p in online.parameters())


def test_no_gradient_reaches_it_through_a_target() -> None:
    online = net()
    shadow = Shadow(online)
    (online(torch.randn(4, 3)) - shadow.model(torch.randn(4, 3))).pow(2).sum().backward()
    assert all(p.grad is None for p in shadow.model.parameters())


def test_tau_weighs_the_online_model() -> None:
    online = nn.Linear(1, 1, bias=False)
    shadow = Shadow(online)
    with torch.no_grad():
        online.weight.fill_(10.0)
        shadow.model.weight.fill_(2.0)
    shadow.blend(0.25)
    assert shadow.model.weight.item() == 4.0
    assert online.weight.item() == 10.0


def test_a_copy_of_another_dtype_follows_by_rounding() -> None:
    online = net()
    shadow = Shadow(online, make=lambda: net().to(torch.bfloat16))
    move(online)
    shadow.sync()
    assert torch.equal(shadow.model[0].weight, online[0].weight.to(torch.bfloat16))


def test_what_is_no_copy_is_refused() -> None:
    online = net()
    with pytest.raises(ShadowError, match=r"shared storage: 0\.weight"):
        Shadow(online, make=lambda: online)
    with pytest.raises(ShadowError, match=r"other names or shapes: 0\.weight, 0\.bias"):
        Shadow(nn.Sequential(nn.Linear(3, 4)), make=lambda: nn.Sequential(nn.Linear(3, 5)))
    with pytest.raises(ShadowError, match="other names or shapes: 1"):
        Shadow(online, make=lambda: nn.Sequential(nn.Linear(3, 4)))


@pytest.mark.parametrize("tau", [0.0, -0.1, 1.5, float("nan")])
def test_a_tau_that_never_moves_or_overshoots_is_refused(tau: float) -> None:
    with pytest.raises(ShadowError, match="the weight of the online model"):
        Shadow(nn.Linear(1, 1)).blend(tau)
