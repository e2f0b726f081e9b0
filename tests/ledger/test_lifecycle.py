"""What stands in each `.grad`: fills, clears, consumption, found by identities and versions, against hand-kept
accounts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from harness import watching
from torch import nn

from gradledger.core.events import Backward, Clear, Step


def net() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 3)).pow(2).mean()


def test_one_cycle_fills_once_and_consumes_once() -> None:
    with watching() as w:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
    steps = w.all(Step)
    assert [[(f.backward, f.consumed) for f in s.lives[0].fills] for s in steps] == [[(1, 0)], [(2, 0)], [(3, 0)]]
    assert [s.lives[0].grad for s in steps] == ["filled"] * 3
    assert [len(s.lives) for s in steps] == [1, 1, 1]  # weight and bias share one history
    assert all(len(s.lives[0].tensors) == 2 for s in steps)
    assert [c.dropped[0].consumed for c in w.all(Clear) if c.dropped] == [1, 1]


def test_without_clear_the_history_grows_and_ages() -> None:
    with watching() as w:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss_of(model).backward()
            optimizer.step()
    assert [[f.consumed for f in s.lives[0].fills] for s in w.all(Step)] == [[0], [1, 0], [2, 1, 0]]


def test_a_long_history_keeps_both_ends_and_counts_the_rest() -> None:
    with watching() as w:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for _ in range(20):
            loss_of(model).backward()
            optimizer.step()
    life = w.all(Step)[-1].lives[0]
    assert len(life.fills) + life.omitted == 20
    assert [f.backward for f in life.fills] == [1, 2, 3, 4, 13, 14, 15, 16, 17, 18, 19, 20]


@pytest.mark.parametrize("how", ["none", "zero_", "data.zero_", "set_to_none=False", "module"])
def test_every_way_to_clear_is_a_clear(how: str) -> None:
    with watching() as w:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss_of(model).backward()
            optimizer.step()
            if how == "none":
                for p in model.parameters():
                    p.grad = None
            elif how == "zero_":
                for p in model.parameters():
                    p.grad.zero_()
            elif how == "data.zero_":
                for p in model.parameters():
                    p.grad.data.zero_()
            elif how == "module":
                model.zero_grad()
            else:
                optimizer.zero_grad(set_to_none=False)
    assert [[f.consumed for f in s.lives[0].fills] for s in w.all(Step)] == [[0], [0], [0]]
    assert sum(len(c.dropped) for c in w.all(Clear)) >= 2


def test_clear_between_backward_and_step_drops_what_no_step_used() -> None:
    with watching() as w:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model).backward()
        optimizer.zero_grad()
        optimizer.step()
    (clear,) = w.all(Clear)
    assert [(d.backward, d.consumed, d.read, len(d.tensors)) for d in clear.dropped] == [(1, 0, False, 2)]
    assert w.all(Step)[0].lives[0].grad == "none"


def test_gradients_read_by_the_program_are_marked() -> None:
    with watching() as w:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model).backward()
        total = sum(p.grad.norm() for p in model.parameters())
        optimizer.zero_grad()
    assert total > 0
    assert [d.read for c in w.all(Clear) for d in c.dropped] == [True]


def test_assigned_gradients_are_no_fills() -> None:
    with watching() as w:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
    assert [[v.grad for v in s.lives] for s in w.all(Step)] == [["assigned"], ["assigned"]]


@pytest.mark.parametrize("clear", ["shared to none", "shared to zeros", "local", "neither"])
def test_gradients_handed_to_another_module_have_the_history_of_their_own(clear: str) -> None:
    with watching() as w:
        local, shared = net(), net()
        optimizer = torch.optim.SGD(shared.parameters(), lr=0.1)
        for _ in range(20):
            if clear == "local":
                local.zero_grad()
            elif clear != "neither":
                optimizer.zero_grad(set_to_none=clear == "shared to none")
            loss_of(local).backward()
            for mine, theirs in zip(local.parameters(), shared.parameters(), strict=True):
                theirs.grad = mine.grad
            optimizer.step()
    lives = [life for step in w.all(Step) for life in step.lives]
    assert [life.grad for life in lives] == ["filled"] * 20
    assert len({life.lenders for life in lives}) == 1
    assert [len(life.lenders) for life in lives] == [2] * 20
    assert not set(lives[0].lenders) & set(lives[0].tensors)
    if clear in ("shared to zeros", "local"):
        assert [[(f.backward, f.consumed) for f in life.fills] for life in lives] == [[(n, 0)] for n in range(1, 21)]
    else:  # what is let go of on one side still stands on the other
        assert [len(life.fills) + life.omitted for life in lives] == list(range(1, 21))
        assert [life.fills[-1].consumed for life in lives] == [0] * 20
        assert [life.fills[0].consumed for life in lives] == list(range(20))


def test_a_copy_of_another_modules_gradient_is_the_programs_own() -> None:
    with watching() as w:
        local, shared = net(), net()
        optimizer = torch.optim.SGD(shared.parameters(), lr=0.1)
        for _ in range(3):
            local.zero_grad()
            loss_of(local).backward()
            for mine, theirs in zip(local.parameters(), shared.parameters(), strict=True):
                theirs.grad = 2 * mine.grad
            optimizer.step()
    assert [[(v.grad, v.lenders) for v in s.lives] for s in w.all(Step)] == [[("assigned", ())]] * 3


def test_inputs_restrict_what_is_filled() -> None:
    with watching() as w:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model).backward(inputs=[model.weight])
        optimizer.step()
    (event,) = w.all(Backward)
    assert event.leaves == (w.tensor(model.weight),)
    assert {v.grad: v.tensors for v in w.all(Step)[0].lives} == {
        "filled": (w.tensor(model.weight),),
        "none": (w.tensor(model.bias),),
    }


def test_create_graph_accumulates_out_of_place_and_is_still_one_history() -> None:
    with watching() as w:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.warns(UserWarning, match="create_graph"):
            loss_of(model).backward(create_graph=True)
        loss_of(model).backward()
        optimizer.step()
    assert [f.backward for f in w.all(Step)[0].lives[0].fills] == [1, 2]


def test_autograd_grad_fills_nothing() -> None:
    with watching() as w:
        model = net()
        torch.autograd.grad(loss_of(model), list(model.parameters()))
    (event,) = w.all(Backward)
    assert event.method == "grad"
    assert not w.session.lifecycle.pending()


def test_closure_steps_are_told_after_their_backwards() -> None:
    with watching() as w:
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss

        optimizer.step(closure)
    (step,) = w.all(Step)
    assert step.closure
    assert [f.consumed for f in step.lives[0].fills] == [0]
    assert len(w.all(Backward)) >= 2


def test_two_optimizers_each_consume_their_own() -> None:
    with watching() as w:
        a, b = net(), net()
        first = torch.optim.SGD(a.parameters(), lr=0.1)
        second = torch.optim.SGD(b.parameters(), lr=0.1)
        (loss_of(a) + loss_of(b)).backward()
        first.step()
        first.zero_grad()
        second.step()
    one, two = w.all(Step)
    assert [f.consumed for f in one.lives[0].fills] == [0]
    assert [f.consumed for f in two.lives[0].fills] == [0]
    assert one.optimizer != two.optimizer


def test_frozen_parameters_are_said_to_be_frozen() -> None:
    with watching() as w:
        model = net()
        model.bias.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model).backward()
        optimizer.step()
    assert {v.frozen for v in w.all(Step)[0].lives} == {False, True}


def _halved(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad /= 2


def _by_list(model: nn.Module) -> None:
    torch._foreach_mul_([p.grad for p in model.parameters()], 0.25)


def _twice(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad.div_(4).mul_(3)


def _by_a_tensor(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad.mul_(torch.tensor(0.5))


def _with_noise(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad.div_(4)
        p.grad.add_(torch.randn_like(p.grad))


@pytest.mark.parametrize(
    ("change", "factor"),
    [(_halved, 0.5), (_by_list, 0.25), (_twice, 0.75), (_by_a_tensor, None), (_with_noise, None)],
)
def test_what_gradients_are_multiplied_by_is_told(change: Callable[..., None], factor: float | None) -> None:
    with watching() as w:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss_of(model).backward()
            change(model)
            optimizer.step()
            optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()  # as they are
    lives = [s.lives for s in w.all(Step)]
    assert [[life.scaled for life in one] for one in lives] == [[factor]] * 3 + [[None]]
    assert [one[0].rescaled for one in lives] == [True] * 3 + [False]
