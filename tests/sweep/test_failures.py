"""Whatever goes wrong, a clear error, and gradients, buffers, random state and hooks as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradledger import sweep
from gradledger.core.errors import GradledgerError, SweepError
from gradledger.sweep._state import equal_bits

PLANS = [None, "recompute_all", "0 (1 2) 3 4", "((0 1) 2) 3 4"]


class Breaks(nn.Module):
    """Raises at its `at`-th forward, or in its backward."""

    def __init__(self, at: int | None, error: type[BaseException], *, backward: bool = False) -> None:
        super().__init__()
        self.linear, self.at, self.error, self.backward = nn.Linear(4, 4), at, error, backward
        runs = [0]
        self.runs = lambda: runs  # in a closure, where nobody looks: the block may be run again

    def forward(self, x: Tensor) -> Tensor:
        self.runs()[0] += 1
        if self.runs()[0] == self.at:
            raise self.error("planted")
        out = self.linear(x)
        return _Raises.apply(out, self) if self.backward else out


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, owner: Breaks) -> Tensor:
        ctx.owner = owner
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        if ctx.owner.at is not None:
            raise ctx.owner.error("planted")
        return d_out, None


def _net(broken: Breaks) -> list[nn.Module]:
    return [nn.Linear(4, 4), nn.BatchNorm1d(4), broken, nn.Dropout(0.5)]


def _state(net: list[nn.Module], x: Tensor) -> list[Any]:
    everything = nn.ModuleList(net)
    return [
        *(p.grad if p.grad is None else (p.grad, p.grad.clone()) for p in everything.parameters()),
        *((b, b.clone()) for b in everything.buffers()),
        *(dict(m._forward_hooks) for m in everything.modules()),
        *((p._backward_hooks, getattr(p, "_post_accumulate_grad_hooks", None)) for p in everything.parameters()),
        torch.get_rng_state(),
        x.clone(),
    ]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(a[0], Tensor):
        return a[0] is b[0] and equal_bits(a[1], b[1])
    if isinstance(a, Tensor):
        return equal_bits(a, b)
    return bool(a == b)


def _fails_cleanly(
    net: list[nn.Module], act: Callable[[Tensor], Any], error: type[BaseException], x: Tensor, match: str
) -> BaseException:
    for older in (False, True):
        for p in nn.ModuleList(net).parameters():
            p.grad = torch.ones_like(p) if older else None
        before = _state(net, x)
        with pytest.raises(error, match=match) as caught:
            act(x)
        assert all(map(_same, before, _state(net, x))), "something was left behind"
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
    return caught.value


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("engine", ["sweep", "autograd"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("when", ["forward", "recompute", "reverse", "loss", "first"])
def test_an_exception_inside_a_block(plan: Any, engine: Any, error: type[BaseException], when: str) -> None:
    if when == "recompute" and plan is None:
        plan = "0 1 (2) 3 4"
    torch.manual_seed(0)
    broken = Breaks(None, error, backward=when == "reverse")
    net = _net(broken)
    loss_broken = [False]

    def loss_fn(out: Tensor, y: Tensor) -> Tensor:
        if loss_broken[0]:
            raise error("planted")
        return (out - y).square().mean()

    x, y = torch.randn(6, 4), torch.randn(6, 4)
    one = sweep.Sweep(net, loss_fn, plan=plan, engine=engine)
    if when != "first":  # what a first step has learnt must not be needed, nor hinder
        one.backward(x, y)

    def act(x: Tensor) -> Any:
        broken.runs()[0] = 0
        if when == "forward" or when == "first":
            broken.at = 1
        elif when == "recompute":
            broken.at = 2
        elif when == "reverse":
            broken.at = 1000
        else:
            loss_broken[0] = True
        return one.backward(x, y)

    caught = _fails_cleanly(net, act, error, x, "planted")
    if when in ("forward", "recompute") and error is ValueError and engine == "sweep":
        assert "in block 2 (2)" in "".join(getattr(caught, "__notes__", []))
    broken.at, loss_broken[0] = None, False  # and the sweep goes on working
    for p in nn.ModuleList(net).parameters():
        p.grad = None
    torch.manual_seed(3)
    one.backward(x, y)
    got = [p.grad for p in nn.ModuleList(net).parameters()]
    for p in nn.ModuleList(net).parameters():
        p.grad = None
    torch.manual_seed(3)
    loss_fn(nn.Sequential(*net)(x), y).backward()
    for p, g in zip(nn.ModuleList(net).parameters(), got, strict=True):
        assert p.grad is not None
        assert g is not None
        assert equal_bits(p.grad, g)


def test_leaving_a_walk_early_puts_everything_back() -> None:
    net = _net(Breaks(None, ValueError))
    one = sweep.Sweep(net, lambda out, y: (out - y).square().mean())
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    before = _state(net, x)
    with one.reverse(x, y) as walk:
        for event in walk:
            _ = event.grads
            if event.index == 1:
                break
    assert all(map(_same, before, _state(net, x)))
    walk = one.reverse(x, y)
    next(walk)
    del walk, event
    assert all(map(_same, before, _state(net, x)))


class _OwnForward(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def _hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 2))
    net.register_forward_hook(lambda *_: None)
    return net


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ([nn.Linear(2, 2), 3], "got a int, wanted a module or a function"),
        ([nn.Linear(2, 2), nn.ReLU], "got the class ReLU, not an instance"),
        ([], "at least one block"),
        (nn.Sequential(), "at least one block"),
        (nn.Linear, "wanted nn.Sequential, a list of modules"),
        (nn.Transformer(8, 2, 1, 1, 8), r"sweep.wrap\(model, layers=\['encoder', 'decoder'\]"),
        (_OwnForward(nn.Linear(2, 2)), "a forward of its own"),
        (_hooked(), "forward hooks on the container itself"),
        ("model", "got str"),
    ],
)
def test_no_chain(model: Any, words: str) -> None:
    with pytest.raises(SweepError, match=words):
        sweep.blocks(model)


@pytest.mark.parametrize("plan", [None, "recompute_all"])
def test_shapes_that_do_not_fit_name_the_block(plan: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 1))
    with pytest.raises(RuntimeError) as caught:
        sweep.Sweep(net, nn.functional.mse_loss, plan=plan).backward(torch.ones(2, 4), torch.ones(2, 1))
    assert "in block 1 (1) of 2, given (2, 3) float32 on cpu" in "".join(caught.value.__notes__)


def test_a_loss_that_is_not_scalar() -> None:
    net = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(SweepError, match="single element"):
        sweep.Sweep(net, lambda out, y: out).backward(torch.ones(2, 4))
    assert net[0].weight.grad is None


def test_create_graph_is_refused_with_the_way_out() -> None:
    net = nn.Sequential(nn.Linear(4, 1))
    with pytest.raises(SweepError, match=r"create_graph=True.*inside one block"):
        sweep.Sweep(net, nn.functional.mse_loss).backward(torch.ones(2, 4), torch.ones(2, 1), create_graph=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"engine": "jax"}, "'sweep' or 'autograd'"),
        ({"plan": "keep_all", "budget": "25%"}, "a plan and a budget"),
        ({"plan": "0 (1 2"}, "inside a segment"),
        ({"plan": "0 2 1 3"}, "each once, in order"),
        ({"plan": "0 1 (2 3)"}, "loss"),
        ({"plan": "0 1"}, "3 blocks|4 blocks"),
        ({"plan": "fastest"}, "one of .*optimal"),
        ({"plan": 3}, "plan of type int"),
        ({"engine": "autograd", "watch_cotangents": True}, "explicit walk"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], words: str) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    with pytest.raises(GradledgerError, match=words):
        sweep.Sweep(net, nn.functional.mse_loss, **arguments).backward(torch.ones(2, 4), torch.ones(2, 1))


@pytest.mark.parametrize("budget", ["25 %%", "lots", "-3", "0", 0, -1, 2.5, "10%%", True])
def test_budgets_that_cannot_be_read(budget: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    with pytest.raises(sweep.BudgetError, match="bytes above zero"):
        sweep.Sweep(net, nn.functional.mse_loss, budget=budget).backward(torch.ones(2, 4), torch.ones(2, 1))
    assert net[0].weight.grad is None


def test_an_infeasible_budget_names_the_smallest() -> None:
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
    x, y = torch.ones(32, 64), torch.ones(32, 64)
    with pytest.raises(sweep.BudgetError, match="smallest feasible") as caught:
        sweep.plan(net, example=(x, y), loss=nn.functional.mse_loss, budget=1000, repeats=1)
    assert caught.value.smallest is not None
    sweep.plan(net, example=(x, y), loss=nn.functional.mse_loss, budget=caught.value.smallest, repeats=1)
    with pytest.raises(sweep.BudgetError):
        sweep.plan(net, example=(x, y), loss=nn.functional.mse_loss, budget=caught.value.smallest // 2, repeats=1)


class _Noise(nn.Module):
    """Draws from a Python counter that no state of torch knows."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + self.calls)


def test_a_block_that_cannot_be_replayed_is_kept_by_name_and_reason() -> None:
    net = nn.Sequential(nn.Linear(8, 8), _Noise(), nn.Linear(8, 1))
    x, y = torch.ones(4, 8), torch.ones(4, 1)
    planned = sweep.plan(net, example=(x, y), loss=nn.functional.mse_loss, budget="min", repeats=1)
    assert planned.costs.forced.keys() == {1}
    assert "'calls' of _Noise" in planned.costs.forced[1]
    assert "'calls' of _Noise" in str(planned)
    assert net[1].calls == 0, "planning leaves no trace"
    with pytest.raises(sweep.PlanError, match=r"cannot be replayed.*calls"):
        sweep.Sweep(net, nn.functional.mse_loss, plan="0 (1) 2 3").backward(x, y)


def test_writing_into_memory_that_a_skip_carries_on() -> None:
    def split(x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(linear(x))
        return h, h.view(-1)

    linear = nn.Linear(4, 4)

    def write(state: tuple[Tensor, Tensor]) -> Tensor:
        h, flat = state
        return h.mul_(2).sum() + flat.sum()

    with pytest.raises(SweepError, match="shares"):
        sweep.Sweep([split, write], lambda out, y: out).backward(torch.ones(2, 4))


def test_inside_inference_mode() -> None:
    net = nn.Sequential(nn.Linear(4, 1))
    with torch.inference_mode(), pytest.raises(SweepError, match="inference_mode"):
        sweep.Sweep(net, nn.functional.mse_loss).backward(torch.ones(2, 4), torch.ones(2, 1))


def test_the_data_is_left_alone_by_a_block_that_writes_into_its_input() -> None:
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 1))
    x = torch.tensor([[-1.0, 2.0, -3.0, 4.0]])
    for plan in (None, "(0) 1 2", "recompute_all"):
        sweep.Sweep(net, nn.functional.mse_loss, plan=plan).backward(x, torch.ones(1, 1))
        assert x.tolist() == [[-1.0, 2.0, -3.0, 4.0]]


def test_a_second_backward_of_one_forward() -> None:
    net = nn.Sequential(nn.Linear(4, 1))
    step = sweep.Sweep(net, nn.functional.mse_loss).forward(torch.ones(2, 4))
    loss = step.output.sum()
    step.backward(loss)
    with pytest.raises(SweepError, match="a second backward"):
        step.backward(loss)


def test_forward_under_a_budget_before_a_plan() -> None:
    net = nn.Sequential(nn.Linear(4, 1))
    with pytest.raises(SweepError, match="needs the target"):
        sweep.Sweep(net, nn.functional.mse_loss, budget="50%").forward(torch.ones(2, 4))
