"""Values that flow between networks: deep copies, target updates, averages, shared memory."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from harness import Watched, here, watching
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gradledger.core.events import Copied, DeepCopied, ModuleMade, StorageShared, TensorRegistered


def net(norm: bool = False) -> nn.Sequential:
    layers = [nn.Linear(2, 3), nn.BatchNorm1d(3)] if norm else [nn.Linear(2, 3)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(3, 1))


def two(norm: bool = False) -> tuple[nn.Sequential, nn.Sequential]:
    """An online network and a frozen target of the same kind with other values."""
    return net(norm), net(norm).requires_grad_(False)


def settle(watch: Watched) -> Copied:
    """The one update so far; the next event ends it."""
    nn.Linear(1, 1)
    watch.session.recorder.emit(ModuleMade, module=0, cls="", builtin=True)
    return watch.one(Copied)


# ------------------------------------------------------------------------------------------------ deep copies


def test_a_deep_copy_is_told_once_with_its_pairs() -> None:
    with watching() as watch:
        online = net(norm=True)
        target = copy.deepcopy(online)
        line = here() - 1
        event = watch.one(DeepCopied)
        assert (event.source, event.target, event.site.line) == (watch.module(online), watch.module(target), line)
        names = dict(online.named_parameters()) | dict(online.named_buffers())
        other = dict(target.named_parameters()) | dict(target.named_buffers())
        assert set(event.pairs) == {(watch.tensor(names[k]), watch.tensor(other[k])) for k in names}
        made = {e.module: e.site.line for e in watch.all(ModuleMade)}
        assert made[watch.module(target)] == made[watch.module(target[0])] == line
        assert watch.tensor(target[0].weight) in {e.tensor for e in watch.all(TensorRegistered)}


def test_a_deep_copy_of_something_that_holds_modules() -> None:
    class Agent:
        def __init__(self) -> None:
            self.online = net()
            self.nets = [net(), {"critic": net()}]

    with watching() as watch:
        agent = Agent()
        other = copy.deepcopy(agent)
        pairs = {(e.source, e.target) for e in watch.all(DeepCopied)}
        assert pairs == {
            (watch.module(agent.online), watch.module(other.online)),
            (watch.module(agent.nets[0]), watch.module(other.nets[0])),
            (watch.module(agent.nets[1]["critic"]), watch.module(other.nets[1]["critic"])),  # type: ignore[index]
        }


def test_modules_with_their_own_setstate() -> None:
    with watching() as watch:
        layer = nn.TransformerEncoderLayer(4, 2, 8)
        other = copy.deepcopy(layer)
        event = watch.one(DeepCopied)
        assert (event.source, event.target) == (watch.module(layer), watch.module(other))


def test_a_shallow_copy_and_pickling_are_no_deep_copies() -> None:
    with watching() as watch:
        online = net()
        copy.copy(online)
        pickle.loads(pickle.dumps(online))
        assert watch.all(DeepCopied) == []


# ------------------------------------------------------------------------------------------------ updates by hand


def data_copy(online: nn.Module, target: nn.Module) -> None:
    for t, p in zip(target.parameters(), online.parameters(), strict=True):
        t.data.copy_(p.data)


def no_grad_copy(online: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        for t, p in zip(target.parameters(), online.parameters(), strict=True):
            t.copy_(p)


def fill_slices(online: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        for t, p in zip(target.parameters(), online.parameters(), strict=True):
            t[:] = p


def blend_copy(online: nn.Module, target: nn.Module) -> None:
    for t, p in zip(target.parameters(), online.parameters(), strict=True):
        t.data.copy_(0.25 * p.data + 0.75 * t.data)


def lerp(online: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        for t, p in zip(target.parameters(), online.parameters(), strict=True):
            t.lerp_(p, 0.25)


def mul_add(online: nn.Module, target: nn.Module) -> None:
    for t, p in zip(target.parameters(), online.parameters(), strict=True):
        t.data.mul_(0.75).add_(p.data, alpha=0.25)


def mul_add_scaled(online: nn.Module, target: nn.Module) -> None:
    for t, p in zip(target.parameters(), online.parameters(), strict=True):
        t.data.mul_(0.75)
        t.data.add_(0.25 * p.data)


def polyak_out(online: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        for t, p in zip(target.parameters(), online.parameters(), strict=True):
            torch.mul(t.data, 0.75, out=t.data)
            torch.add(t.data, p.data, alpha=0.25, out=t.data)


def foreach_lerp(online: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 0.25)


def foreach_mul_add(online: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        torch._foreach_mul_(list(target.parameters()), 0.75)
        torch._foreach_add_(list(target.parameters()), list(online.parameters()), alpha=0.25)


def foreach_copy(online: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        torch._foreach_copy_(list(target.parameters()), list(online.parameters()))


def data_assign(online: nn.Module, target: nn.Module) -> None:
    for t, p in zip(target.parameters(), online.parameters(), strict=True):
        t.data = p.data.clone()


def data_assign_blend(online: nn.Module, target: nn.Module) -> None:
    for t, p in zip(target.parameters(), online.parameters(), strict=True):
        t.data = 0.25 * p.data + t.data * 0.75


def state_copy(online: nn.Module, target: nn.Module) -> None:
    own, other = target.state_dict(), online.state_dict()
    for key in own:
        own[key].copy_(other[key])


def vector(online: nn.Module, target: nn.Module) -> None:
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(online.parameters()), target.parameters())


def vector_blend(online: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        fast, slow = (nn.utils.parameters_to_vector(m.parameters()) for m in (online, target))
        nn.utils.vector_to_parameters(0.75 * slow + fast * 0.25, target.parameters())


def vector_slices(online: nn.Module, target: nn.Module) -> None:
    flat, at = torch.cat([p.detach().reshape(-1) for p in online.parameters()]), 0
    for t in target.parameters():
        t.data.copy_(flat[at : at + t.numel()].view(t.shape))
        at += t.numel()


def flat_views(online: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        for t, p in zip(target.parameters(), online.parameters(), strict=True):
            t.view(-1).copy_(p.view(-1))


UPDATES: list[tuple[Callable[[nn.Module, nn.Module], None], str, float]] = [
    (data_copy, "copy_", 1.0),
    (no_grad_copy, "copy_", 1.0),
    (fill_slices, "copy_", 1.0),
    (blend_copy, "copy_", 0.25),
    (lerp, "lerp_", 0.25),
    (mul_add, "mul_add", 0.25),
    (mul_add_scaled, "mul_add", 0.25),
    (polyak_out, "mul_add", 0.25),
    (foreach_lerp, "lerp_", 0.25),
    (foreach_mul_add, "mul_add", 0.25),
    (foreach_copy, "copy_", 1.0),
    (data_assign, "assign", 1.0),
    (data_assign_blend, "assign", 0.25),
    (state_copy, "copy_", 1.0),
    (vector, "assign", 1.0),
    (vector_blend, "assign", 0.25),
    (vector_slices, "copy_", 1.0),
    (flat_views, "copy_", 1.0),
]


@pytest.mark.parametrize(("update", "how", "tau"), UPDATES, ids=[u[0].__name__ for u in UPDATES])
def test_an_update_is_one_fact(update: Callable[[nn.Module, nn.Module], None], how: str, tau: float) -> None:
    with watching() as watch:
        online, target = two()
        update(online, target)
        event = settle(watch)
        assert (event.source, event.target) == (watch.module(online), watch.module(target))
        assert event.how == how
        assert event.tau == pytest.approx(tau)
        assert set(event.pairs) == {
            (watch.tensor(p), watch.tensor(t)) for p, t in zip(online.parameters(), target.parameters(), strict=True)
        }
        assert event.site.function == update.__name__
        assert event.site.callers[0].function.startswith("test_an_update")
        assert not event.same
        assert watch.all(StorageShared) == []


def test_an_update_layer_by_layer_is_one_fact() -> None:
    with watching() as watch:
        online, target = two()
        for i in (0, 2):
            target[i].weight.data.copy_(online[i].weight.data)
            target[i].bias.data.copy_(online[i].bias.data)
        event = settle(watch)
        assert (event.source, event.target, len(event.pairs)) == (watch.module(online), watch.module(target), 4)


def test_networks_inside_one_agent() -> None:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online = net()
            self.target = copy.deepcopy(self.online)

    with watching() as watch:
        agent = Agent()
        data_copy(agent.online, agent.target)
        event = settle(watch)
        assert (event.source, event.target) == (watch.module(agent.online), watch.module(agent.target))


def test_new_parameter_objects() -> None:
    with watching() as watch:
        online, target = two()
        old = watch.tensor(target[0].weight)
        for i in (0, 2):
            target[i].weight = nn.Parameter(0.75 * target[i].weight + 0.25 * online[i].weight)
        event = settle(watch)
        assert (event.how, event.source, event.target) == ("replace", watch.module(online), watch.module(target))
        assert event.tau == pytest.approx(0.25)
        assert any(e.replaced == old for e in watch.all(TensorRegistered))


def test_whether_the_target_changed() -> None:
    with watching() as watch:
        online, target = two()
        for value in (1.0, 1.0, 2.0):
            with torch.no_grad():
                online[0].weight.fill_(value)
            data_copy(online, target)
            watch.session.recorder.emit(ModuleMade, module=0, cls="", builtin=True)
        assert [e.changed for e in watch.all(Copied)] == [None, False, True]


def test_a_copy_onto_itself() -> None:
    with watching() as watch:
        _, target = two()
        data_copy(target, target)
        event = settle(watch)
        assert event.same
        assert event.source == event.target == watch.module(target)


class Codebook(nn.Module):
    """Codes that follow the data by running sums of their own; `update` is how each new sum comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("embed", torch.randn(4, 2))
        self.register_buffer("total", torch.randn(4, 2))
        self.register_buffer("size", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = torch.cdist(x, self.embed).argmin(-1)
        onehot = nn.functional.one_hot(chosen, 4).type(x.dtype)
        self.size.data.lerp_(onehot.sum(0).to(self.size), 0.1)
        self.total.data.lerp_(torch.einsum("nc,nd->cd", onehot, x).to(self.total), 0.1)
        self.embed.data.copy_(self.total / self.size.unsqueeze(-1))
        return self.embed[chosen]


def test_a_codebook_that_follows_the_data_is_no_copy() -> None:
    with watching() as watch:
        model = nn.Sequential(nn.Linear(2, 2), Codebook())
        model(torch.randn(8, 2))
        watch.session.recorder.emit(ModuleMade, module=0, cls="", builtin=True)
        assert watch.all(Copied) == []


def test_buffers_left_behind() -> None:
    with watching() as watch:
        online = net(norm=True)
        target = copy.deepcopy(online)
        online(torch.randn(8, 2))
        data_copy(online, target)
        event = settle(watch)
        assert (event.buffers, event.buffers_followed) == (2, 0)
        assert set(event.buffers_differ) == {"1.running_mean", "1.running_var"}


def test_buffers_that_are_copied_too() -> None:
    with watching() as watch:
        online = net(norm=True)
        target = copy.deepcopy(online)
        online(torch.randn(8, 2))
        data_copy(online, target)
        with torch.no_grad():
            for t, s in zip(target.buffers(), online.buffers(), strict=True):
                t.copy_(s)
        event = settle(watch)
        assert (event.buffers, event.buffers_followed, event.buffers_differ) == (2, 2, ())


@pytest.mark.parametrize("update", [data_copy, lerp, state_copy, foreach_lerp])
def test_an_update_that_comes_late_is_seen(update: Callable[[nn.Module, nn.Module], None]) -> None:
    with watching() as watch:
        online, target = two()
        optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
        for i in range(130):
            if i in (78, 128):
                update(online, target)
            online(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert [e.iteration for e in watch.all(Copied)] == [78, 128]


def test_training_and_initialisation_are_no_copies() -> None:
    with watching() as watch:
        model = net(norm=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=True)
        with torch.no_grad():
            for p in model.parameters():
                p.uniform_(-0.1, 0.1)
                p.add_(torch.randn_like(p), alpha=0.1)
        nn.init.orthogonal_(model[0].weight)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 2)).pow(2).mean().backward()
            optimizer.step()
        assert watch.all(Copied) == []


def test_averaged_models() -> None:
    with watching() as watch:
        model = net(norm=True)
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        model(torch.randn(8, 2))
        averaged.update_parameters(model)
        line = here() - 1
        model(torch.randn(8, 2))
        averaged.update_parameters(model)
        first, second = watch.all(Copied)
        assert (first.how, first.source, first.target) == (
            "averaged",
            watch.module(model),
            watch.module(averaged.module),
        )
        assert (first.site.line, first.buffers_differ, second.buffers_differ) == (line, (), ())
        assert watch.one(DeepCopied).target == watch.module(averaged.module)


# ------------------------------------------------------------------------------------------------ shared memory


def test_data_bound_to_the_others_memory() -> None:
    with watching() as watch:
        online, target = two()
        for t, p in zip(target.parameters(), online.parameters(), strict=True):
            t.data = p.data
        line = here() - 1
        events = watch.all(StorageShared)
        assert {(e.target, e.source) for e in events} == {
            (watch.tensor(t), watch.tensor(p)) for t, p in zip(target.parameters(), online.parameters(), strict=True)
        }
        assert {(e.how, e.site.line) for e in events} == {("data", line)}
        assert settle(watch).how == "assign"


def test_memory_that_came_to_be_shared_unseen_is_found_by_a_sample() -> None:
    with watching() as watch:
        online, target = two()
        optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
        with torch._C.DisableTorchFunction():
            for t, p in zip(target.parameters(), online.parameters(), strict=True):
                t.data = p.data
        for _ in range(4):
            online(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        events = watch.all(StorageShared)
        assert {(e.target, e.source, e.how) for e in events} == {
            (watch.tensor(t), watch.tensor(p), "found")
            for t, p in zip(target.parameters(), online.parameters(), strict=True)
        }
        assert len(events) == 4


def test_tied_and_flattened_weights_share_nothing() -> None:
    with watching() as watch:
        embed, out = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        out.weight = embed.weight
        nn.GRU(2, 2).flatten_parameters()
        model = nn.Sequential(embed, out)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.tensor([1])).sum().backward()
            optimizer.step()
        assert watch.all(StorageShared) == []


def test_values_are_the_same_as_without_us() -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        online = net(norm=True)
        target = copy.deepcopy(online).requires_grad_(False)
        averaged = AveragedModel(online)
        optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
        for i in range(30):
            optimizer.zero_grad()
            online(torch.randn(4, 2)).pow(2).mean().backward()
            optimizer.step()
            UPDATES[i % len(UPDATES)][0](online, target)
            averaged.update_parameters(online)
        return [t.clone() for m in (online, target, averaged) for t in m.state_dict().values()]

    plain = run()
    with watching():
        seen = run()
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


def test_a_copy_into_a_detached_parameter_of_values_that_have_a_graph() -> None:
    """What is written into then has a graph, too; it is the parameter all the same."""
    with watching() as watch:
        online, other = net(), net()
        for mine, theirs in zip(online.parameters(), other.parameters(), strict=True):
            mine.detach().copy_(theirs)
        event = settle(watch)
        assert (event.source, event.target, event.tau) == (watch.module(other), watch.module(online), 1.0)
        assert len(event.pairs) == 4
