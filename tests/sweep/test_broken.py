"""What adversarial programs found broken: blocks that are not what they were, hooks that keep what they see, traces."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradledger import sweep
from gradledger.core.errors import SweepError
from gradledger.sweep._state import equal_bits


def _mse(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().mean()


def _batch(k: int, n: int = 6, d: int = 4) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(k)
    return torch.randn(n, d, generator=g), torch.randn(n, d, generator=g)


@dataclass
class Case:
    """Blocks, what owns their parameters and buffers, and what happens before each step."""

    blocks: Any
    modules: list[nn.Module]
    loss: Callable[..., Any] = _mse
    before: Callable[[int], None] = lambda k: None
    batch: Callable[[int], tuple[Any, Any]] = _batch
    parameters: list[nn.Parameter] = field(default_factory=list)
    autocast: bool = False
    also: Callable[[], Any] = lambda: None


def _left(case: Case, loss: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {"loss": loss.detach().clone(), "random": torch.get_rng_state(), "also": case.also()}
    named = {f"{k}.{name}": p for k, m in enumerate(case.modules) for name, p in m.named_parameters()}
    named |= {f"own {k}": p for k, p in enumerate(case.parameters)}
    for name, p in named.items():
        found[f"grad of {name}"] = None if p.grad is None else p.grad.clone()
        found[name] = p.detach().clone()
    for k, m in enumerate(case.modules):
        found |= {f"buffer {k}.{name}": b.clone() for name, b in m.named_buffers()}
    with torch.no_grad():
        for p in named.values():
            if p.grad is not None:
                p -= 0.05 * p.grad
    return found


def _run(make: Callable[[], Case], steps: int, how: str, **options: Any) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    case = make()
    swept = None if how == "plain" else sweep.Sweep(case.blocks, case.loss, **options)
    torch.manual_seed(1)
    left = []
    for k in range(steps):
        case.before(k)
        x, y = case.batch(k)
        with torch.autocast("cpu", torch.bfloat16) if case.autocast else nullcontext():
            if swept is None:
                state = x
                for block in case.blocks:
                    state = block(state)
                loss = case.loss(state, y)
            elif how == "walk":
                walk = swept.reverse(x, y)
                assert all(event.grads is not None for event in walk)
                loss = walk.loss
            else:
                loss = swept.backward(x, y)
        if swept is None:
            loss.backward()
        left.append(_left(case, loss))
        if k % 3 == 2:  # else the gradients are added to
            for m in case.modules:
                m.zero_grad()
            for p in case.parameters:
                p.grad = None
    return left


def _differences(ours: list[dict[str, Any]], plain: list[dict[str, Any]]) -> list[str]:
    found = []
    for k, (a, b) in enumerate(zip(ours, plain, strict=True)):
        assert a.keys() == b.keys()
        found += [
            f"step {k}: {name}"
            for name in a
            if (isinstance(a[name], Tensor) != isinstance(b[name], Tensor))
            or not (equal_bits(a[name], b[name]) if isinstance(a[name], Tensor) else a[name] == b[name])
        ]
    return found


def _net(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


def _five() -> nn.Sequential:
    return _net(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def _replaced() -> Case:
    net = _five()

    def before(k: int) -> None:
        if k in (2, 4):
            torch.manual_seed(k)
            net[2].weight = nn.Parameter(torch.randn(4, 4))
            net[0].bias = nn.Parameter(torch.randn(4))

    return Case(net, [net], before=before)


def _loaded_by_assignment() -> Case:
    net = _five()
    net[4].weight = net[0].weight

    def before(k: int) -> None:
        if k == 2:
            torch.manual_seed(k)
            net.load_state_dict({name: torch.randn_like(v) for name, v in net.state_dict().items()}, assign=True)

    return Case(net, [net], before=before)


def _tied_and_untied() -> Case:
    net = _five()

    def before(k: int) -> None:
        if k == 2:
            net[4].weight = net[0].weight
        if k == 4:
            net[4].weight = nn.Parameter(net[0].weight.detach().clone())

    return Case(net, [net], before=before)


def _exchanged_layer() -> Case:
    net = _five()

    def before(k: int) -> None:
        if k == 2:
            torch.manual_seed(k)
            net[2] = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
        if k == 4:
            net[2][1] = nn.LayerNorm(4)

    return Case(net, [net], before=before)


def _dropout_switched_on() -> Case:
    net = _net(nn.Linear(4, 4), nn.Dropout(0.0), nn.Linear(4, 4), nn.Dropout(0.0), nn.Linear(4, 4))

    def before(k: int) -> None:
        net[1].p, net[3].p = (0.5, 0.2) if k > 1 else (0.0, 0.0)

    return Case(net, [net], before=before)


class _Observer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("on", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.on.item():
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.detach().mean(0))
        return self.linear(x)


def _observer_switched_on() -> Case:
    net = _net(nn.Linear(4, 4), _Observer(), nn.Tanh(), _Observer(), nn.Linear(4, 4))

    def before(k: int) -> None:
        if k == 2:
            net[1].on.fill_(1)
            net[3].on.fill_(1)

    return Case(net, [net], before=before)


class _FirstBatch(nn.Module):
    """A buffer that is None until the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        now = x.detach().mean(0)
        self.mean = now if self.mean is None else 0.9 * self.mean + now
        return self.linear(x)


def _buffer_from_the_first_batch() -> Case:
    net = _net(nn.Linear(4, 4), _FirstBatch(), nn.Tanh(), _FirstBatch(), nn.Linear(4, 4))
    return Case(net, [net])


class _Carries(nn.Module):
    """Scales by something that moves with every call and that torch does not know."""

    def __init__(self, carried: Any, take: Callable[[Any], float]) -> None:
        super().__init__()
        self.linear, self.carried, self.take = nn.Linear(4, 4), carried, take

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * (1 + self.take(self.carried))


class _Counter:
    def __init__(self) -> None:
        self.n = 0


def _count(held: Any, at: Any) -> float:
    held[at] += 1
    return float(held[at])


def _count_object(held: _Counter) -> float:
    held.n += 1
    return float(held.n)


def _count_queue(held: collections.deque[int]) -> float:
    held.append(len(held))
    return float(len(held))


CARRIED: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "numpy generator": (lambda: np.random.default_rng(0), lambda g: float(g.random())),
    "numpy state": (lambda: np.random.RandomState(0), lambda g: float(g.rand())),
    "python generator": (lambda: random.Random(0), lambda g: g.random()),
    "array": (lambda: np.zeros(2), lambda a: _count(a, 0)),
    "list": (lambda: [0], lambda a: _count(a, 0)),
    "dict in a list": (lambda: [{"n": 0}], lambda a: _count(a[0], "n")),
    "deque": (lambda: collections.deque([1]), _count_queue),
    "object": (_Counter, _count_object),
    "torch generator in a tuple": (
        lambda: (torch.Generator().manual_seed(0),),
        lambda g: float(torch.rand((), generator=g[0])),
    ),
}


def _carrying(what: str) -> Callable[[], Case]:
    def make() -> Case:
        carried, take = CARRIED[what]
        net = _net(nn.Linear(4, 4), _Carries(carried(), take), nn.Tanh(), nn.Linear(4, 4))
        return Case(net, [net])

    return make


class _Log(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(4, 4), []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(float(x.detach().sum()))
        return self.linear(x)


def _logging() -> Case:
    net = _net(nn.Linear(4, 4), _Log(), nn.Linear(4, 4))
    return Case(net, [net], also=lambda: list(net[1].seen))


class _Trainer:
    """No module itself: it keeps its modules in attributes."""

    def __init__(self) -> None:
        self.parts = _Counter()
        self.parts.inner = nn.Linear(4, 4)  # type: ignore[attr-defined]
        self.norm, self.drop, self.head = nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 4)

    def encode(self, x: Tensor) -> Tensor:
        return self._regular(self.parts.inner(x))  # type: ignore[attr-defined]

    def _regular(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(x))

    def decode(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x))


def _methods_of_a_trainer(closures: bool) -> Callable[[], Case]:
    def make() -> Case:
        t = _Trainer()
        modules = [t.parts.inner, t.norm, t.drop, t.head]  # type: ignore[attr-defined]
        blocks = [lambda x: t.encode(x), lambda x: t.decode(x)] if closures else [t.encode, t.decode]

        def before(k: int) -> None:
            for m in modules:
                m.train(k % 3 != 1)

        return Case(blocks, modules, before=before)

    return make


class _LayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x if torch.rand(()).item() < 0.5 else torch.tanh(self.linear(x))


def _layer_drop_first() -> Case:
    net = _net(_LayerDrop(), _LayerDrop(), nn.Linear(4, 4), _LayerDrop())
    return Case(net, [net])


class _Picks(nn.Module):
    """Its parameters are in a list that torch does not look into; each step takes another."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Parameter(torch.randn(4)) for _ in range(3)]
        self.at = 0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.hidden[self.at]


def _picking() -> Case:
    net = _net(nn.Linear(4, 4), _Picks(), nn.Linear(4, 4))

    def before(k: int) -> None:
        net[1].at = k % 3

    return Case(net, [net], before=before, parameters=net[1].hidden)


def _target_with_gradient() -> Case:
    net = _net(nn.Linear(4, 4), nn.Tanh())
    last: list[Tensor] = []

    def batch(k: int) -> tuple[Tensor, Tensor]:
        x, y = _batch(k)
        last[:] = [y.requires_grad_()]
        return x, y

    return Case(
        [*net, lambda h: (h * 2, h * 3)],
        [net],
        loss=lambda out, y: _mse(out[0], y) + _mse(out[1], y),
        batch=batch,
        also=lambda: None if last[0].grad is None else last[0].grad.tolist(),
    )


class _Thrice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.linear(x))
        return x


def _autocast_with_its_cache() -> Case:
    net = _net(nn.Linear(4, 4), _Thrice(), nn.Linear(4, 4), _Thrice())
    return Case(net, [net], autocast=True)


CASES: dict[str, Callable[[], Case]] = {
    "parameter replaced": _replaced,
    "loaded by assignment": _loaded_by_assignment,
    "tied and untied": _tied_and_untied,
    "layer exchanged": _exchanged_layer,
    "dropout switched on": _dropout_switched_on,
    "observer switched on": _observer_switched_on,
    "buffer from the first batch": _buffer_from_the_first_batch,
    **{f"carries {what}": _carrying(what) for what in CARRIED},
    "log in a list": _logging,
    "methods of a trainer": _methods_of_a_trainer(closures=False),
    "closures over a trainer": _methods_of_a_trainer(closures=True),
    "layer drop at the start": _layer_drop_first,
    "hidden parameters": _picking,
    "a target with a gradient": _target_with_gradient,
    "autocast with its cache": _autocast_with_its_cache,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "options",
    [{}, {"plan": "recompute_all"}, {"budget": "min"}, {"plan": "recompute_all", "engine": "autograd"}],
    ids=["keep", "recompute", "budget", "autograd"],
)
def test_as_a_plain_backward(case: str, options: dict[str, Any]) -> None:
    plain = _run(CASES[case], 6, "plain")
    assert _differences(_run(CASES[case], 6, "backward", **options), plain) == []
    if "engine" not in options:
        assert _differences(_run(CASES[case], 6, "walk", **options), plain) == []


def _large() -> nn.Sequential:
    torch.manual_seed(0)
    return _net(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


class _KeepsCotangent(torch.autograd.Function):
    kept: ClassVar[list[Tensor]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        _KeepsCotangent.kept.append(d)
        return d


@pytest.mark.parametrize("kind", ["tensor", "module", "function"])
def test_hooks_may_keep_the_cotangents_that_they_see(kind: str) -> None:
    seen: list[list[Tensor]] = []
    for swept in (False, True):
        net, kept = _large(), list[Tensor]()
        blocks: list[Any] = list(net)
        if kind == "tensor":
            net[2].register_forward_hook(lambda m, i, out, kept=kept: out.register_hook(kept.append) and None)
        elif kind == "module":
            net[2].register_full_backward_hook(lambda m, given, got, kept=kept: kept.extend((*given, *got)))
        else:
            blocks.insert(2, _KeepsCotangent.apply)
            _KeepsCotangent.kept = kept
        one = sweep.Sweep(blocks, _mse)
        for k in range(3):
            x, y = _batch(k, 2048, 64)
            if swept:
                one.backward(x, y)
            else:
                for block in blocks:
                    x = block(x)
                _mse(x, y).backward()
        seen.append(kept)
    assert len(seen[0]) == len(seen[1]) >= 3
    assert all(map(equal_bits, *seen))


def test_the_cotangents_of_a_walk_may_be_kept() -> None:
    one = sweep.Sweep(_large(), _mse)
    for k in range(2):
        kept, copies = [], []
        for event in one.reverse(*_batch(k, 2048, 64)):
            kept.append(event.cotangent)
            copies.append(event.cotangent.clone())
        assert all(map(equal_bits, kept, copies))


def test_a_plan_made_on_another_model() -> None:
    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return _net(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 4))

    x, y = _batch(0)
    planned = sweep.plan(make(), example=(x, y), loss=_mse, budget="min", repeats=1)
    plain = _run(lambda: (lambda net: Case(net, [net]))(make()), 2, "plain")
    assert _differences(_run(lambda: (lambda n: Case(n, [n]))(make()), 2, "backward", plan=planned), plain) == []


@pytest.mark.parametrize("leave", ["close", "with", "drop"])
def test_a_walk_that_is_left_before_it_began(leave: str) -> None:
    net = _net(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4))
    x, y = _batch(0)
    one = sweep.Sweep(net, _mse)
    one.backward(x, y)
    before = [(p.grad, p.grad.clone()) for p in net.parameters() if p.grad is not None]
    buffers, state = [b.clone() for b in net.buffers()], torch.get_rng_state()
    walk = one.reverse(x, y)
    if leave == "close":
        walk.close()
    elif leave == "with":
        with pytest.raises(ValueError, match="mine"), walk:
            raise ValueError("mine")
    del walk
    after = [p.grad for p in net.parameters()]
    assert all(a is g and equal_bits(g, v) for a, (g, v) in zip(after, before, strict=True))
    assert all(map(equal_bits, buffers, net.buffers()))
    assert torch.equal(state, torch.get_rng_state())


def test_the_callers_grad_mode_between_events() -> None:
    with torch.no_grad():
        for _ in sweep.Sweep(_five(), _mse).reverse(*_batch(0)):
            assert not torch.is_grad_enabled()


@pytest.mark.parametrize("engine", ["sweep", "autograd"])
def test_inputs_and_data_that_requires_a_gradient(engine: Any) -> None:
    def left(swept: bool, which: str) -> list[Tensor | None]:
        torch.manual_seed(0)
        net, (x, y) = _five(), _batch(0)
        x.requires_grad_()
        wanted = {"weight": [net[0].weight], "data": [x], "both": [x, net[2].bias]}[which]
        if swept:
            sweep.Sweep(net, _mse, engine=engine).backward(x, y, inputs=wanted)
        else:
            _mse(net(x), y).backward(inputs=wanted)
        return [x.grad, *(p.grad for p in net.parameters())]

    for which in ("weight", "data", "both"):
        for ours, plain in zip(left(True, which), left(False, which), strict=True):
            assert (ours is None) == (plain is None)
            assert ours is None or (plain is not None and equal_bits(ours, plain))


@dataclass
class _Opaque:
    h: Tensor


def test_a_state_that_cannot_be_cut_is_kept_and_right() -> None:
    class Wraps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, state: Any) -> _Opaque:
            return _Opaque(self.linear(state.h if isinstance(state, _Opaque) else state))

    def make() -> Case:
        net = _net(Wraps(), Wraps(), nn.Identity(), Wraps())
        return Case(net, [net], loss=lambda out, y: _mse(out.h, y))

    plain = _run(make, 3, "plain")
    for options in ({}, {"plan": "recompute_all"}, {"budget": "min"}):
        assert _differences(_run(make, 3, "backward", **options), plain) == []
    with pytest.raises(SweepError, match="_pytree"):  # part of the graph cut, part of it not
        sweep.Sweep([nn.Linear(4, 4), Wraps()], lambda out, y: _mse(out.h, y)).backward(*_batch(0))


def test_what_goes_past_the_state_is_refused() -> None:
    stack: list[Tensor] = []
    net = _net(nn.Linear(4, 4), nn.Linear(4, 4))

    def push(h: Tensor) -> Tensor:
        stack.append(h + 1)
        return h * 2

    with pytest.raises(SweepError, match="past the state"):
        sweep.Sweep([net[0], push, net[1], lambda h: h + stack.pop()], _mse).backward(*_batch(0))
    assert all(p.grad is None for p in net.parameters())


def test_sparse_gradients_are_put_back_after_an_error() -> None:
    table, broken = nn.Embedding(10, 4, sparse=True), [False]

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, d: Tensor) -> Tensor:
            if broken[0]:
                raise ValueError("planted")
            return d

    def again(h: Tensor) -> Tensor:
        return h + table(torch.tensor([4, 5, 6]))

    one = sweep.Sweep([table, Breaks.apply, again], lambda out, y: out.square().mean())
    one.backward(torch.tensor([1, 2, 3]))
    before = table.weight.grad.to_dense().clone()
    broken[0] = True
    with pytest.raises(ValueError, match="planted"):
        one.backward(torch.tensor([1, 2, 3]))
    assert equal_bits(table.weight.grad.to_dense(), before)


def test_lazy_modules_are_not_planned_before_they_have_a_shape() -> None:
    net = _net(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(4))
    with pytest.raises(SweepError, match="no shape yet"):
        sweep.Sweep(net, _mse, plan="recompute_all").backward(*_batch(0))
    sweep.Sweep(net, _mse).backward(*_batch(0))  # keeping everything needs no plan
    sweep.Sweep(net, _mse, plan="recompute_all").backward(*_batch(0))


def test_ragged_batches_are_one_kind() -> None:
    def make() -> Case:
        net = _net(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

        def batch(k: int) -> tuple[Tensor, None]:
            parts = [torch.full((2, 4), float(k)), torch.ones(3, 4)]
            return torch.nested.nested_tensor(parts, layout=torch.jagged), None

        return Case(net, [net], loss=lambda out, _: out.values().square().mean(), batch=batch)

    plain = _run(make, 3, "plain")
    for options in ({}, {"plan": "recompute_all"}):
        assert _differences(_run(make, 3, "backward", **options), plain) == []


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[int((x.detach().sum() * 100).abs()) % 3](x)


@pytest.mark.parametrize("keep_grads", [0, "1MB"])
def test_the_clip_counts_gradients_that_an_earlier_micro_batch_left(keep_grads: Any) -> None:
    weights = []
    for swept in (False, True):
        torch.manual_seed(0)
        net = _net(nn.Linear(4, 4), _Experts(), nn.Tanh(), _Experts())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        one = sweep.Sweep(net, _mse)
        for k in range(6):
            first, second = _batch(k), _batch(k + 50)
            if swept:
                one.backward(*first)
                one.step(*second, optimizer=optimizer, clip=0.05, keep_grads=keep_grads)
            else:
                for x, y in (first, second):
                    _mse(net(x), y).backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.05)
                optimizer.step()
                optimizer.zero_grad()
        weights.append([p.detach().clone() for p in net.parameters()])
    assert all(map(equal_bits, *weights))


def test_many_kinds_of_input_do_not_pile_up() -> None:
    one = sweep.Sweep(_five(), _mse)
    for k in range(300):
        one.backward(*_batch(k, 1 + k))
    assert len(one.chain._facts) <= 256
    assert len(one._plans) <= 256
