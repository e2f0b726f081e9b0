"""Step and free: the weights and the optimizer's state of the plain way, to the bit, and less memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import problems as P
from gradledger import sweep
from gradledger.core.errors import SweepError
from gradledger.sweep._state import equal_bits

STEPS = 3
# Parameters that the whole chain shares between blocks, buffers, dropout, compiled blocks, states of several tensors.
PROBLEMS = [p for p in P.PROBLEMS if p.compiled != "inductor" and p.replayable]

OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9, weight_decay=0.1),
    "adam": lambda ps: torch.optim.Adam(ps, lr=1e-3, amsgrad=True),
    "adamw-fused": lambda ps: torch.optim.AdamW(ps, lr=1e-3, fused=True),
    "adam-foreach": lambda ps: torch.optim.Adam(ps, lr=1e-3, foreach=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-3, centered=True, momentum=0.5),
    "radam": lambda ps: torch.optim.RAdam(ps, lr=1e-3),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=1e-2),
    "adamax": lambda ps: torch.optim.Adamax(ps, lr=1e-3),
    "counts": lambda ps: Counts(ps),
}


class Counts(torch.optim.Optimizer):
    """Keeps a counter in the group, as schedule-free optimizers do; its rate depends on it."""

    def __init__(self, params: list[Tensor]) -> None:
        super().__init__(params, {"lr": 0.1, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * group["lr"] / group["k"])


def _leaves(chain: P.Chain) -> list[Tensor]:
    return [p for _, p in P.named_leaves(chain) if isinstance(p, nn.Parameter) and p.requires_grad]


def _plain(chain: P.Chain, optimizer: torch.optim.Optimizer, clip: float | None, order: list[Tensor]) -> Any:
    loss = P._plain_backward(chain)
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(order, clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _run(problem: P.Problem, make: Any, step: Callable[..., Any]) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    chain = problem.make()
    if problem.compiled:
        torch.compiler.reset()
    optimizer = make(_leaves(chain))
    torch.manual_seed(7)
    losses = []
    for _ in range(STEPS):
        with problem.context():
            losses.append(step(chain, optimizer))
        torch.clear_autocast_cache()
    weights = {name: p.detach().clone() for name, p in P.named_leaves(chain)}
    return losses, weights, optimizer.state_dict()


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and equal_bits(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)
@pytest.mark.parametrize(("clip", "keep"), [(None, 0), (0.05, 0), (0.05, "1MB"), (1e9, 0)])
def test_the_weights_of_the_plain_way(problem: P.Problem, clip: float | None, keep: Any) -> None:
    make = OPTIMIZERS["adam"]
    sweeps: dict[int, sweep.Sweep] = {}

    def swept(chain: P.Chain, optimizer: torch.optim.Optimizer) -> Any:
        one = sweeps.setdefault(0, sweep.Sweep(chain.blocks, chain.loss_fn))
        loss = one.step(chain.x, chain.y, optimizer=optimizer, clip=clip, keep_grads=keep)
        assert all(p.grad is None for p in _leaves(chain))
        return loss

    def plain(chain: P.Chain, optimizer: torch.optim.Optimizer) -> Any:
        order = sweep.Sweep(chain.blocks, chain.loss_fn).chain.parameters()
        loss = _plain(chain, optimizer, clip, order)
        for leaf in [t for t in torch.utils._pytree.tree_leaves(chain.x) if isinstance(t, Tensor)]:
            leaf.grad = None
        return loss

    wanted, got = _run(problem, make, plain), _run(problem, make, swept)
    assert _equal(got[1], wanted[1])
    assert _equal(got[2], wanted[2])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("plan", [None, "recompute_all"])
def test_optimizers(name: str, clip: float | None, plan: Any) -> None:
    problem = next(p for p in P.PROBLEMS if p.id == "conv-batchnorm")
    sweeps: dict[int, sweep.Sweep] = {}

    def swept(chain: P.Chain, optimizer: torch.optim.Optimizer) -> Any:
        one = sweeps.setdefault(0, sweep.Sweep(chain.blocks, chain.loss_fn, plan=plan))
        return one.step(chain.x, chain.y, optimizer=optimizer, clip=clip)

    def plain(chain: P.Chain, optimizer: torch.optim.Optimizer) -> Any:
        return _plain(chain, optimizer, clip, _leaves(chain))

    wanted, got = _run(problem, OPTIMIZERS[name], plain), _run(problem, OPTIMIZERS[name], swept)
    assert _equal(got[0], wanted[0])
    assert _equal(got[1], wanted[1])
    assert _equal(got[2], wanted[2])
    assert wanted[2]["param_groups"][0]["params"] == got[2]["param_groups"][0]["params"]


def test_gradients_of_earlier_micro_batches_are_in_the_step() -> None:
    def build() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        return net, torch.optim.SGD(net.parameters(), lr=0.1)

    loss_fn = nn.functional.mse_loss
    x, y = torch.randn(6, 4), torch.randn(6, 1)
    for clip in (None, 0.01):
        plain, optimizer = build()
        for half in (slice(0, 3), slice(3, 6)):
            loss_fn(plain(x[half]), y[half]).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        optimizer.step()
        net, optimizer = build()
        one = sweep.Sweep(net, loss_fn)
        one.backward(x[:3], y[:3])
        one.step(x[3:], y[3:], optimizer=optimizer, clip=clip)
        assert all(equal_bits(p, q) for p, q in zip(net.parameters(), plain.parameters(), strict=True))


def test_groups_and_schedules_see_one_step() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    twin = copy.deepcopy(net)
    results = []
    for model, swept in ((net, True), (twin, False)):
        groups = [{"params": list(model[0].parameters()), "lr": 0.1}, {"params": list(model[2].parameters())}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        one = sweep.Sweep(model, nn.functional.mse_loss)
        for k in range(4):
            x = torch.full((3, 4), float(k + 1))
            if swept:
                one.step(x, torch.ones(3, 1), optimizer=optimizer, clip=0.1)
            else:
                nn.functional.mse_loss(model(x), torch.ones(3, 1)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
        results.append((optimizer.state_dict(), schedule.state_dict(), list(model.parameters())))
    assert _equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    assert all(equal_bits(p, q) for p, q in zip(results[0][2], results[1][2], strict=True))


def test_what_else_the_optimizer_holds_is_stepped_too() -> None:
    net, other = nn.Linear(2, 1), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([*net.parameters(), other], lr=0.5)
    other.grad = torch.ones(1)
    sweep.Sweep([net], nn.functional.mse_loss).step(torch.ones(1, 2), torch.ones(1, 1), optimizer=optimizer)
    assert other.item() == 0.5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda ps: torch.optim.LBFGS(ps), "LBFGS"),
        (lambda ps: object(), "wanted a torch.optim.Optimizer"),
    ],
)
def test_refused(make: Any, words: str) -> None:
    net = nn.Linear(2, 1)
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(SweepError, match=words):
        sweep.Sweep([net], nn.functional.mse_loss).step(
            torch.ones(1, 2), torch.ones(1, 1), optimizer=make(net.parameters())
        )
    assert all(p.grad is None and equal_bits(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_a_hook_would_run_twice_under_a_clip() -> None:
    net = nn.Linear(2, 1)
    net.weight.register_hook(lambda g: g * 2)
    one = sweep.Sweep([net], nn.functional.mse_loss)
    with pytest.raises(SweepError, match="the hook would run twice"):
        one.step(torch.ones(1, 2), torch.ones(1, 1), optimizer=torch.optim.SGD(net.parameters(), lr=1.0), clip=1.0)
    assert net.weight.grad is None


def test_an_error_after_the_first_parameter_was_stepped_says_so() -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, d_out: Tensor) -> Tensor:
            raise ValueError("broken backward")

    net = [nn.Linear(2, 2), Breaks.apply, nn.Linear(2, 1)]
    parameters = [*net[0].parameters(), *net[2].parameters()]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="broken backward") as caught:
        sweep.Sweep(net, nn.functional.mse_loss).step(
            torch.ones(1, 2), torch.zeros(1, 1), optimizer=torch.optim.SGD(parameters, lr=0.1)
        )
    assert "2 parameters had been stepped" in "".join(caught.value.__notes__)
    assert all(p.grad is None for p in parameters)
