"""`wrap`: any model, its named layers recomputed under a plain `loss.backward()`, equal to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradledger import sweep
from gradledger.core.errors import SweepError
from gradledger.sweep._state import equal_bits


class Residual(nn.Module):
    """A net whose forward says in code what runs after what: branches, two inputs, keyword arguments."""

    def __init__(self, layers: int = 4, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.3)
            )
            for _ in range(layers)
        )
        self.side = Side(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        h = self.stem(x)
        for stage in self.stages:
            h = h + stage(h)
        h, extra = self.side(h, weight=scale)
        return self.head(h.mean((2, 3))) + extra


class Side(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.utils.parametrizations.spectral_norm(nn.Linear(width, width))

    def forward(self, h: Tensor, *, weight: float) -> tuple[Tensor, Tensor]:
        mixed = self.mix(h.movedim(1, -1)).movedim(-1, 1)
        return h + weight * mixed, mixed.mean()


def _model(make: Callable[[], nn.Module] = Residual) -> nn.Module:
    torch.manual_seed(0)
    return make()


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, 12, 12, generator=generator), torch.randint(0, 5, (4,), generator=generator)


def _train(model: nn.Module, steps: int = 3, **kwargs: Any) -> tuple[list[Tensor], list[Tensor], Tensor]:
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = _batch()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x, **kwargs), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [*model.parameters(), *model.buffers()], torch.get_rng_state()


LAYERS = [["stages.*"], ["stages.*", "side", "stem"], ["stages"], ["head"]]


@pytest.mark.parametrize("layers", LAYERS[:2] + LAYERS[3:], ids=str)
@pytest.mark.parametrize("train", [True, False])
def test_trained_to_the_same_bits(layers: list[str], train: bool) -> None:
    plain, other = _model().train(train), _model().train(train)
    wrapped = sweep.wrap(other, layers=layers)
    wanted, got = _train(plain, scale=0.5), _train(wrapped, scale=0.5)
    assert all(map(equal_bits, wanted[0], got[0]))
    assert all(map(equal_bits, wanted[1], got[1]))
    assert torch.equal(wanted[2], got[2])


def test_the_model_is_shared_and_left_alone() -> None:
    model = _model()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    wrapped = sweep.wrap(model, layers=["stages.*"])
    assert type(wrapped) is Residual
    assert wrapped.state_dict().keys() == model.state_dict().keys()
    assert all(p is q for p, q in zip(wrapped.parameters(), model.parameters(), strict=True))
    x, _ = _batch()
    with pytest.raises(RuntimeError):
        wrapped(x[:, :2])
    wrapped(x).sum().backward()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    with torch.no_grad():
        model.eval()
        wrapped.eval()
        assert equal_bits(wrapped(x), model(x))


def test_hooks_of_a_layer_run_once_a_step() -> None:
    model = _model()
    ran: list[str] = []
    model.stages[0].register_forward_hook(lambda *_: ran.append("forward"))
    model.stages[0].register_full_backward_hook(lambda *_: ran.append("backward"))
    sweep.wrap(model, layers=["stages.*"])(_batch()[0]).sum().backward()
    assert ran == ["forward", "backward"]


@pytest.mark.parametrize("budget", ["70%", "min", 10_000_000])
def test_a_budget_is_kept_as_measured(budget: Any) -> None:
    model = _model(lambda: Residual(layers=8))
    x, y = _batch()
    loss = nn.functional.cross_entropy
    state = torch.get_rng_state()
    before = copy.deepcopy(model.state_dict())
    wrapped = sweep.wrap(model, layers=["stages.*", "side"], budget=budget, example=(x, y), loss=loss)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(equal_bits(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    handle = wrapped.gradledger_wrap
    assert isinstance(handle, sweep.WrapHandle)
    peak = sweep.peak_of(lambda: loss(wrapped(x), y).backward(), "cpu").bytes
    model.zero_grad()
    plain = sweep.peak_of(lambda: loss(model(x), y).backward(), "cpu").bytes
    if budget == "70%":
        assert peak <= 0.7 * plain
        assert 0 < sum(layer.recomputed for layer in handle.layers) < 9
    elif budget == "min":
        assert peak < 0.6 * plain
        assert all(layer.recomputed for layer in handle.layers)
    else:
        assert not any(layer.recomputed for layer in handle.layers)
    assert "measured peak" in str(handle)
    assert max(map(len, str(handle).splitlines())) <= 80


def test_an_infeasible_budget_has_the_smallest_number() -> None:
    x, y = _batch()
    with pytest.raises(sweep.BudgetError, match="every named layer recomputed") as caught:
        sweep.wrap(_model(), layers=["stages.*"], budget="1%", example=(x, y), loss=nn.functional.cross_entropy)
    smallest = caught.value.smallest
    assert smallest is not None
    sweep.wrap(_model(), layers=["stages.*"], budget=smallest, example=(x, y), loss=nn.functional.cross_entropy)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), [0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        return self.linear(x) * self.calls[0]


def test_a_layer_that_cannot_be_replayed_is_kept_and_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Counting(), nn.Linear(4, 1))
    wrapped = sweep.wrap(model, layers=["0", "1"], example=(torch.ones(2, 4), torch.ones(2, 1)), loss=nn.MSELoss())
    by_name = {layer.name: layer for layer in wrapped.gradledger_wrap.layers}  # type: ignore[union-attr]
    assert by_name["0"].recomputed
    assert not by_name["1"].recomputed
    assert "run again from the same state" in str(by_name["1"].reason)


def test_frozen_below_and_trained_within() -> None:
    """The case in which a reentrant checkpoint gives no gradient at all, in silence."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    x, y = torch.arange(6).reshape(2, 3), torch.zeros(2, 3, 2)
    nn.functional.mse_loss(model(x), y).backward()
    wanted = [p.grad for p in model.parameters()]
    model.zero_grad()
    nn.functional.mse_loss(sweep.wrap(model, layers=["1"])(x), y).backward()
    for p, g in zip(model.parameters(), wanted, strict=True):
        assert (p.grad is None) == (g is None)
        assert g is None or (p.grad is not None and equal_bits(p.grad, g))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"layers": ["stage.*"]}, "layer 'stage.*', which is not there, wanted a name such as stem, stages"),
        ({"layers": ["side", "side.mix"]}, "layer 'side.mix' inside layer 'side'"),
        ({"layers": []}, "a list of names"),
        ({"layers": "head"}, "a list of names"),
        ({"layers": ["head"], "budget": "50%"}, "a budget without an example"),
    ],
)
def test_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(SweepError, match=words.replace("*", r"\*")):
        sweep.wrap(_model(), **arguments)
