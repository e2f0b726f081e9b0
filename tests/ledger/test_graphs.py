"""What becomes of graphs and values: forwards nobody walks, kept graphs, broadcasts, aliases, non-finite values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import Watched, here, watching
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradledger.core.events import (
    AliasWritten,
    Backward,
    Broadcast,
    GraphDiscarded,
    GraphsAlive,
    ModuleCalled,
    NonFinite,
)

B = 8


def setup(out: int = 1) -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Linear(3, out)
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


def train(
    net: nn.Module, opt: torch.optim.Optimizer, loss: Callable[[torch.Tensor], torch.Tensor], steps: int = 1
) -> None:
    for _ in range(steps):
        opt.zero_grad()
        loss(torch.randn(B, 3)).backward()
        opt.step()


def accounts(w: Watched) -> dict[int, GraphDiscarded]:
    """The latest account of each line."""
    return {e.site.line: e for e in w.all(GraphDiscarded)}


# ----------------------------------------------------------------------------------------------- forwards nobody walks


class Weights(nn.Module):
    """Hands out its parameter, or a view of it."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.view = view

    def forward(self) -> torch.Tensor:
        return self.weight.view(3, 1) if self.view else self.weight


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_weight_handed_out_without_grad_mode_has_no_graph(
    off: Callable[[], AbstractContextManager[None]], view: bool
) -> None:
    with watching() as w:
        weights = Weights(view)
        for _ in range(10):
            with off():
                weights()
    assert not accounts(w)
    assert not any(call.output_has_graph for call in w.all(ModuleCalled))



def test_forwards_in_a_row_without_a_walk_are_counted() -> None:
    with watching() as w:
        net, opt = setup()
        for _ in range(3):
            for _ in range(5):
                line = here() + 1
                net(torch.randn(B, 3)).argmax()
            train(net, opt, lambda x: net(x).mean())
    account = accounts(w)[line]
    assert (account.calls, account.walked, account.in_a_row, account.used) == (15, 0, 5, 0)
    assert account.then == "argmax"
    assert account.training


def test_a_detached_target_is_used_and_never_in_a_row() -> None:
    with watching() as w:
        net, opt = setup()

        def loss(x: torch.Tensor) -> torch.Tensor:
            target = net(x + 1).detach()
            return F.mse_loss(net(x), target)

        train(net, opt, loss, 12)
    (account,) = (a for a in accounts(w).values() if not a.walked)
    assert (account.calls, account.used, account.in_a_row) == (12, 12, 1)


def test_an_episode_walked_at_its_end_is_no_waste() -> None:
    with watching() as w:
        net, opt = setup()
        for _ in range(2):
            total = [net(torch.randn(B, 3)).mean() for _ in range(60)]
            opt.zero_grad()
            torch.stack(total).sum().backward()
            opt.step()
    assert accounts(w) == {}


def test_outputs_collected_first_and_thrown_away_later_count_when_they_go() -> None:
    with watching() as w:
        net, opt = setup()
        train(net, opt, lambda x: net(x).mean())
        kept = [net(torch.randn(B, 3)) for _ in range(10)]
        w.session.step_done[0]()
        assert accounts(w) == {}
        del kept
    assert [a.calls for a in accounts(w).values()][-1] == 10


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_inside_backward_is_no_call(reentrant: bool) -> None:
    with watching() as w:
        net, opt = setup(3)
        train(net, opt, lambda x: checkpoint(net, x.requires_grad_(), use_reentrant=reentrant).mean(), 10)
    assert all(not a.calls for a in accounts(w).values())


def test_train_and_eval_calls_of_one_line_are_told_apart() -> None:
    with watching() as w:
        net, opt = setup()
        for training in (True, False) * 5:
            net.train(training)
            loss = net(torch.randn(B, 3)).mean()
            if training:
                opt.zero_grad()
                loss.backward()
                opt.step()
            del loss
    (account,) = (a for a in accounts(w).values() if a.calls)
    assert not account.training
    assert account.walked == 0


# ----------------------------------------------------------------------------------------------- graphs kept alive


def test_kept_losses_and_outputs_are_seen_and_detached_ones_are_not() -> None:
    for what, keep in (("loss", 0), ("output", 1), ("", 2)):
        with watching() as w:
            net, opt = setup()
            history = []
            for _ in range(16):
                opt.zero_grad()
                out = net(torch.randn(B, 3))
                loss = out.pow(2).mean()
                loss.backward()
                opt.step()
                history.append((loss, out, loss.detach())[keep])
            del out, loss
        kinds = {e.what for e in w.all(GraphsAlive)}
        assert (what in kinds) if what else kinds == set()


def test_a_running_sum_chains_graphs() -> None:
    with watching() as w:
        net, opt = setup()
        total: torch.Tensor | float = 0.0
        for _ in range(8):
            loss = net(torch.randn(B, 3)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            line = here() + 1
            total = total + loss
    assert {e.site.line for e in w.all(GraphsAlive) if e.growing} == {line}


# ----------------------------------------------------------------------------------------------- broadcasts


def spread(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[Broadcast]:
    """Broadcasts that reached the loss of a column of predictions and a vector of targets."""
    with watching() as w:
        net, opt = setup()
        train(net, opt, lambda x: loss(net(x), x.sum(1)))
    return w.all(Broadcast)


@pytest.mark.parametrize(
    ("loss", "meant"),
    [
        (lambda p, y: (p - y).pow(2).mean(), [False]),
        (lambda p, y: F.smooth_l1_loss(p, y), [False]),
        (lambda p, y: torch.min(p * y, p.clamp(-1, 1) * y).mean(), [False, False]),
        (lambda p, y: F.mse_loss(p, y[:, None].detach() + 0.9 * y), [True]),
        (lambda p, y: (p.squeeze(1)[:, None] - y).abs().mean(), [True]),
        (lambda p, y: (p - p.squeeze(1)).abs().mean(), [True]),
        (lambda p, y: (p.pow(2) + y.pow(2) - 2 * torch.outer(y, y)).mean(), [True]),
        (lambda p, y: (p.squeeze(1) - y).pow(2).mean(), []),
        (lambda p, y: ((p - y).softmax(1) * 2).mean(), []),
    ],
)
def test_a_matrix_in_a_loss(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], meant: list[bool]) -> None:
    events = spread(loss)
    assert [e.explicit for e in events] == meant
    assert all(e.out == (B, B) for e in events)


def test_a_matrix_that_no_loss_sees_is_not_told() -> None:
    def loss(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        (p - y).abs().mean().item()
        return p.mean()

    assert spread(loss) == []


# ----------------------------------------------------------------------------------------------- aliases


def written(change: Callable[[torch.Tensor], object]) -> list[AliasWritten]:
    outputs = []
    with watching() as w:
        net, opt = setup(2)

        def loss(x: torch.Tensor) -> torch.Tensor:
            out = net(x)
            change(out)
            outputs.append(out)
            return out.mean()

        train(net, opt, loss)
    return w.all(AliasWritten)


def array(out: torch.Tensor) -> None:
    view = out.detach().numpy()
    view[0] = 5.0


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda out: out.detach().add_(1), ["detach"]),
        (lambda out: out.data.clamp_(0, 1), ["data"]),
        (lambda out: out.detach()[0].zero_(), ["detach"]),
        (array, ["numpy"]),
        (lambda out: out.detach().clone().add_(1), []),
        (lambda out: out.detach() + 1, []),
        (lambda out: np.array(out.detach()), []),
    ],
)
def test_a_write_into_the_memory_of_a_graph_value(change: Callable[[torch.Tensor], object], how: list[str]) -> None:
    events = written(change)
    assert [e.alias_how for e in events] == how
    assert all(e.base_op == "linear" for e in events)


def test_a_write_that_nothing_uses_afterwards_is_none() -> None:
    with watching() as w:
        net, _ = setup(2)
        for used in (False, True):
            out = net(torch.randn(B, 3))
            loss = (out - 1).sum()
            out.detach().zero_()
            if used:
                loss = loss + out.view(-1).sum()
            loss.backward()
            assert bool(w.all(AliasWritten)) is used


def test_a_tensor_that_left_the_graph_itself_is_no_alias() -> None:
    with watching() as w:
        net, _held = setup(2)
        total = net(torch.randn(B, 3)).sum()
        loss = 0.1 * total
        total.detach_().zero_()
        (loss + total).backward()
    assert not w.all(AliasWritten)
    (term,) = [t for t in w.all(Backward)[0].terms if not t.has_graph]
    assert not term.depends, "of a value that was set to zero nothing is left"


# ----------------------------------------------------------------------------------------------- non-finite values


@pytest.mark.parametrize(
    ("loss", "op"),
    [
        (lambda out: (out - out.detach()).pow(2).sum(1).sqrt().mean(), "sqrt"),
        (lambda out: (out * 0).log().mean(), "log"),
        (lambda out: (out / (out - out).detach()).mean(), "div"),
        (lambda out: (out * 1e4).exp().mean(), "exp"),
        (lambda out: out.masked_fill(torch.ones_like(out).bool(), float("-inf")).softmax(1).mean(), "softmax"),
    ],
)
def test_the_operation_behind_a_value_that_is_not_finite(loss: Callable[[torch.Tensor], torch.Tensor], op: str) -> None:
    with watching() as w:
        net, opt = setup(2)
        line = here() + 1
        train(net, opt, lambda x: loss(net(x)))
    first = w.all(NonFinite)[0]
    assert first.op == op
    assert first.op_site.line <= line
    assert first.reason


def test_data_that_is_not_finite_is_named() -> None:
    with watching() as w:
        net, opt = setup()
        train(net, opt, lambda x: net(x * float("nan")).mean())
    assert w.all(NonFinite)[0].op == "input"


@pytest.mark.parametrize(
    ("loss", "harmless"),
    [
        (lambda out, y: (out + y).mean(), True),
        (lambda out, y: -(0.5 * (out - y)).mean() * 2 + out.square().mean(), True),
        (lambda out, y: (y - out).reshape(-1).mean(), True),
        (lambda out, y: (out + y).sum(), False),
        (lambda out, y: (out + y).square().mean(), False),
        (lambda out, y: (out * y).mean(), False),
        (lambda out, y: ((out - y) * out).mean(), False),
        (lambda out, y: (out - y).mean(0).max(), False),
    ],
)
def test_a_mean_of_a_sum_is_that_of_its_rows(
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], harmless: bool
) -> None:
    """Checked against the sum that was meant: value and gradient."""
    assert {e.harmless for e in spread(loss)} == {harmless}
    torch.manual_seed(0)
    x, y = torch.randn(8, 1, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    columns, rows = (x.clone().requires_grad_() for _ in range(2))
    wide, meant = loss(columns, y), loss(rows[:, 0], y)
    wide.backward()
    meant.backward()
    assert columns.grad is not None
    assert rows.grad is not None
    same = torch.allclose(wide, meant) and torch.allclose(columns.grad, rows.grad)
    assert same == harmless
