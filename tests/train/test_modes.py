"""Scopes that leave modules as they found them, and groups that cover a model exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradledger.train import Group, ParamGroupError, decay_groups, evaluating, exact_cover, frozen


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 1)))


@given(st.lists(st.booleans(), min_size=6, max_size=6), st.booleans())
def test_every_module_gets_its_own_mode_back(modes: list[bool], fails: bool) -> None:
    model = net()
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    try:
        with evaluating(model):
            assert not any(module.training for module in model.modules())
            assert not torch.is_grad_enabled()
            if fails:
                raise ValueError
    except ValueError:
        pass
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()


def test_gradients_where_they_are_asked_for() -> None:
    model, x = net(), torch.ones(3, 2, requires_grad=True)
    with evaluating(model, gradients=True):
        model(x).sum().backward()
    assert x.grad is not None
    with torch.no_grad(), evaluating(model, gradients=True):
        assert not torch.is_grad_enabled()


def test_frozen_lets_the_gradient_through_and_thaws_only_what_it_froze() -> None:
    actor, critic = nn.Linear(2, 2), net()
    critic[0].bias.requires_grad_(False)

    def inside() -> None:
        with frozen(critic):
            critic(actor(torch.ones(4, 2))).sum().backward()
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        inside()
    assert actor.weight.grad is not None
    assert all(p.grad is None for p in critic.parameters())
    assert [p.requires_grad for p in critic[0].parameters()] == [True, False]
    assert all(p.requires_grad for p in critic[2].parameters())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4))
        self.head = nn.Linear(4, 5)
        self.head.weight = self.backbone[0].weight
        self.old = nn.Linear(4, 4).requires_grad_(False)


def test_each_trainable_parameter_once() -> None:
    model = Tied()
    cover = exact_cover(
        model, [Group("backbone", "backbone.*", {"lr": 1e-4}), Group("head", lambda name, _: name.startswith("head"))]
    )
    assert cover.names == {
        "backbone": ("backbone.0.weight", "backbone.1.weight", "backbone.1.bias"),
        "head": ("head.bias",),
    }
    assert cover.frozen == ("old.weight", "old.bias")
    optimizer = torch.optim.SGD(cover.groups, lr=0.1)
    assert [(group["name"], group["lr"]) for group in optimizer.param_groups] == [("backbone", 1e-4), ("head", 0.1)]
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def test_decay_for_matrices_only() -> None:
    cover = decay_groups(Tied(), 0.1)
    assert cover.names["decay"] == ("backbone.0.weight",)
    assert [group["weight_decay"] for group in cover.groups] == [0.1, 0.0]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([Group("a", "backbone.*")], r"in no group: head\.bias \(5,\)"),
        ([Group("a", "*"), Group("b", "head.*")], r"in several: head\.bias in a and b"),
        ([Group("a", "*"), Group("b", "decoder.*")], r"nothing in b \(frozen parameters: old\.weight, old\.bias\)"),
        ([Group("a", "*"), Group("a", "*")], r"the group names \['a'\] twice"),
    ],
)
def test_covers_that_are_none(groups: list[Group], message: str) -> None:
    with pytest.raises(ParamGroupError, match=message):
        exact_cover(Tied(), groups)
