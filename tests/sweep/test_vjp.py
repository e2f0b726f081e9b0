"""Which gradients may become `.grad` as they are, and which share memory with something that stays in use."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradledger.sweep import Sweep, _vjp


def weight_gradient() -> Tensor:
    """(5, 7), as the engine hands it out: a view of a view."""
    layer = nn.Linear(7, 5)
    (gradient,) = _vjp.capture((layer(torch.ones(3, 7)),), (torch.ones(3, 5),), (layer.weight,))
    assert gradient is not None
    assert gradient._is_view()
    return gradient


def given(gradient: Tensor) -> Tensor:
    """What `.grad` becomes."""
    parameter = nn.Parameter(torch.zeros(gradient.shape))
    _vjp.give(parameter, gradient, ())
    assert parameter.grad is not None
    return parameter.grad


def same_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def test_a_view_that_is_alone_with_its_base_is_taken_as_it_is() -> None:
    gradient = weight_gradient()
    at, values = gradient.data_ptr(), gradient.clone()
    grad = given(gradient)
    assert grad.data_ptr() == at
    assert not grad._is_view()
    assert torch.equal(grad, values)


@pytest.mark.parametrize(
    "keep",
    [
        lambda gradient: gradient._base,
        lambda gradient: gradient.view(-1),
        lambda gradient: gradient.detach(),
        lambda gradient: gradient._base[:2],
        lambda gradient: gradient.numpy(),
    ],
    ids=["its base", "another view", "an alias", "a part of its base", "an array"],
)
def test_a_view_whose_memory_somebody_keeps_is_copied(keep: object) -> None:
    gradient = weight_gradient()
    kept = keep(gradient)  # type: ignore[operator]
    assert not same_memory(given(gradient), gradient)
    assert kept is not None


def test_a_view_of_a_part_is_copied() -> None:
    whole = torch.ones(10, 7)
    with torch.no_grad():
        part = whole[:5]
    del whole
    assert not same_memory(given(part), part)


def test_a_layer_of_two_megabytes_is_not_copied_in_a_sweep() -> None:
    net = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))
    taken: list[bool] = []
    give = _vjp.give

    def watched(parameter: Tensor, gradient: Tensor, *more: object, **options: object) -> None:
        give(parameter, gradient, *more, **options)  # type: ignore[arg-type]
        assert parameter.grad is not None
        taken.append(same_memory(parameter.grad, gradient))

    x, y = torch.randn(8, 1024), torch.randn(8, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_vjp, "give", watched)
        Sweep(net, nn.functional.mse_loss, plan="recompute_all").backward(x, y)
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert all(taken)
