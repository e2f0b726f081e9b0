"""Registration of parameters, buffers and submodules, and what merely hangs on a module."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections import deque
from collections.abc import Iterator

import pytest
import torch
from harness import here, watching
from torch import nn

from gradledger.core.events import (
    ChildRegistered,
    ModuleFreed,
    ModuleMade,
    PlainAttribute,
    PlainAttributes,
    TensorRegistered,
)
from gradledger.ledger._registry import Registry
from gradledger.ledger.probes import calls, modules


class Block(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.fc = nn.Linear(width, width)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(3, 1)


def attributes(watch: object, module: nn.Module) -> dict[str, PlainAttribute]:
    """What was last recorded as hanging on a module."""
    events = [e for e in watch.all(PlainAttributes) if e.module == watch.module(module)]  # type: ignore[attr-defined]
    return {a.name: a for a in events[-1].attributes} if events else {}


def test_building_a_model_is_recorded_where_the_user_builds_it() -> None:
    with watching(modules) as watch:
        net = Net()
        line = here() - 1
        made = {e.module: e for e in watch.all(ModuleMade)}
        assert made[watch.module(net)].site.line == line
        assert made[watch.module(net)].cls.endswith("test_modules.Net")
        assert not made[watch.module(net)].builtin
        fc = made[watch.module(net.block.fc)]
        assert (fc.cls, fc.builtin, fc.site.function, fc.site.in_init) == ("Linear", True, "__init__", True)
        assert made[watch.module(net.block)].site.line == Net.__init__.__code__.co_firstlineno + 2
        children = {(e.parent, e.name): e.child for e in watch.all(ChildRegistered)}
        assert children[watch.module(net), "block"] == watch.module(net.block)
        assert children[watch.module(net.block), "fc"] == watch.module(net.block.fc)
        weight = next(e for e in watch.all(TensorRegistered) if e.tensor == watch.tensor(net.head.weight))
        assert (weight.name, weight.role, weight.shape, weight.requires_grad) == ("weight", "parameter", (1, 3), True)
        roles = {e.name: e.role for e in watch.all(TensorRegistered) if e.module == watch.module(net.block.norm)}
        assert roles == dict.fromkeys(("weight", "bias"), "parameter") | dict.fromkeys(
            ("running_mean", "running_var", "num_batches_tracked"), "buffer"
        )


def test_replacing_a_parameter_names_the_old_one() -> None:
    with watching(modules) as watch:
        fc = nn.Linear(2, 2)
        old = watch.tensor(fc.weight)
        fc.weight = nn.Parameter(torch.ones(2, 2))
        event = watch.all(TensorRegistered)[-1]
        assert (event.replaced, event.tensor, event.site.line) == (old, watch.tensor(fc.weight), here() - 2)


def test_replacing_a_parameter_of_a_model_built_before_the_watch() -> None:
    fc = nn.Linear(2, 2)
    keep = fc.weight
    with watching(modules) as watch:
        fc.weight = nn.Parameter(torch.ones(2, 2))
        assert watch.all(TensorRegistered)[-1].replaced == watch.tensor(keep)


def test_setting_the_same_parameter_again_is_no_event() -> None:
    with watching(modules) as watch:
        fc = nn.Linear(2, 2)
        count = len(watch.sink.events)
        fc.weight = fc.weight
        assert len(watch.sink.events) == count


def test_replacing_a_child_names_the_old_one() -> None:
    with watching(modules) as watch:
        net = Net()
        old = watch.module(net.head)
        net.head = nn.Linear(3, 2)
        event = watch.all(ChildRegistered)[-1]
        assert (event.replaced, event.child, event.name) == (old, watch.module(net.head), "head")


def test_a_tied_parameter_has_two_places() -> None:
    with watching(modules) as watch:
        embed, out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        out.weight = embed.weight
        shared = watch.tensor(embed.weight)
        assert {e.module for e in watch.all(TensorRegistered) if e.tensor == shared} == {
            watch.module(embed),
            watch.module(out),
        }
        registry = watch.session.recorder.part(Registry)
        assert registry.owners[shared].module == watch.module(embed)
        before = len(watch.sink.events)
        modules.scan_tree(watch.session, nn.Sequential(embed, out))
        assert [e for e in watch.sink.events[before:] if isinstance(e, TensorRegistered)] == []


def test_a_model_from_before_the_watch_is_taken_in_at_its_first_call() -> None:
    net = Net()
    with watching(modules, calls) as watch:
        net.head(torch.zeros(2, 3))
        assert {e.name for e in watch.all(TensorRegistered)} == {"weight", "bias"}
        modules.scan_tree(watch.session, net)
        assert len(watch.all(TensorRegistered)) == len(list(net.parameters())) + len(list(net.buffers()))
        assert len(watch.all(ChildRegistered)) == 4


def test_an_unpickled_model_is_taken_in_at_its_first_call() -> None:
    file = io.BytesIO()
    torch.save(nn.Linear(2, 1), file)
    file.seek(0)
    with watching(modules, calls) as watch:
        net = torch.load(file, weights_only=False)
        net(torch.zeros(1, 2))
        assert len(watch.all(TensorRegistered)) == 2


def test_a_conversion_that_makes_new_buffers_registers_them() -> None:
    with watching(modules) as watch:
        net = Net()
        old = watch.tensor(net.block.norm.running_mean)
        weight = watch.tensor(net.head.weight)
        net.double()
        new = watch.tensor(net.block.norm.running_mean)
        assert new != old
        assert watch.tensor(net.head.weight) == weight
        assert any(e.tensor == new and e.replaced == old and e.role == "buffer" for e in watch.all(TensorRegistered))


def test_a_lazy_module_is_no_problem() -> None:
    with watching(modules) as watch:
        net = nn.LazyLinear(3)
        assert watch.all(TensorRegistered)[-1].shape == ()
        net(torch.zeros(2, 5))
        modules.scan_tree(watch.session, net)


def test_a_freed_module_is_told() -> None:
    with watching(modules) as watch:
        net = nn.Linear(2, 2)
        number = watch.module(net)
        del net
        gc.collect()
        nn.Linear(1, 1)
        assert number in {e.module for e in watch.all(ModuleFreed)}


def test_roots_between_which_a_tensor_is_copied() -> None:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online = Block()
            self.target = copy.deepcopy(self.online)

    with watching(modules) as watch:
        agent, other = Agent(), Block()
        modules.scan_tree(watch.session, agent)
        registry = watch.session.recorder.part(Registry)
        numbers = watch.tensor(agent.online.fc.weight), watch.tensor(agent.target.fc.weight)
        assert registry.roots_of_pair(*numbers) == (watch.module(agent.online), watch.module(agent.target))
        assert registry.roots_of_pair(numbers[0], watch.tensor(other.fc.weight)) == (
            watch.module(agent),
            watch.module(other),
        )
        assert registry.roots_of_pair(numbers[0], 10**6) is None
        own = watch.tensor(agent.online.norm.weight)
        assert registry.roots_of_pair(own, own) == (watch.module(agent.online.norm),) * 2


# ------------------------------------------------------------------------------------------------ plain attributes


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(x)
        return out


def test_tensors_on_a_module() -> None:
    with watching(modules, calls) as watch:
        net = Holder()
        net.mean = torch.zeros(4)
        net.scale = torch.ones(1, requires_grad=True)
        net.steps = torch.tensor(3)
        net.table = {"a": [torch.zeros(2), torch.zeros(2)], "b": 3}
        net.loose = nn.Parameter(torch.ones(2)).to(torch.float64)
        net.name = "holder"
        net(torch.zeros(1, 2))
        found = attributes(watch, net)
        assert set(found) == {"mean", "scale", "steps", "table", "loose"}
        assert found["mean"].kind == "tensor"
        assert (found["mean"].shape, found["mean"].requires_grad, found["mean"].floating) == ((4,), False, True)
        assert found["mean"].made_site.line == here() - 11
        assert (found["scale"].requires_grad, found["scale"].is_leaf, found["scale"].is_parameter) == (
            True,
            True,
            False,
        )
        assert not found["steps"].floating
        assert (found["table"].kind, len(found["table"].tensors)) == ("tensors", 2)
        assert found["loose"].made_from_parameter
        assert not found["loose"].is_leaf


def test_made_in_init_and_made_in_forward() -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.grid = torch.linspace(0, 1, 2)
            self.last: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = x * self.weight
            return self.last + self.grid

    with watching(modules, calls) as watch:
        net = Caching()
        net(torch.ones(2))
        modules.scan_tree(watch.session, net)
        found = attributes(watch, net)
        assert (found["grid"].made_in_init, found["grid"].made_in_forward) == (True, False)
        assert (found["last"].made_in_init, found["last"].made_in_forward) == (False, True)


def test_registered_tensors_in_a_list_are_not_plain() -> None:
    with watching(modules, calls) as watch:
        rnn = nn.GRU(2, 2)  # torch itself keeps a list of its weights
        net = Holder()
        net.all_weights = list(net.parameters())
        rnn(torch.zeros(1, 1, 2))
        net(torch.zeros(1, 2))
        assert watch.all(PlainAttributes) == []


@pytest.mark.parametrize("kind", ["list", "tuple", "dict", "nested", "deque", "hidden"])
def test_modules_kept_in_plain_containers(kind: str) -> None:
    with watching(modules, calls) as watch:
        net = Holder()
        inner = [nn.Linear(2, 2), nn.Linear(2, 2)]
        if kind == "hidden":
            net.__dict__["blocks"] = inner[0]
        else:
            net.blocks = {
                "list": inner,
                "tuple": tuple(inner),
                "dict": dict(enumerate(inner)),
                "nested": [("first", [inner[0]]), ("second", {"x": inner[1]})],
                "deque": deque(inner),
            }[kind]
        net(torch.zeros(1, 2))
        (found,) = attributes(watch, net).values()
        wanted = inner[:1] if kind == "hidden" else inner
        assert found.kind == ("module" if kind == "hidden" else "modules")
        assert found.modules == tuple(watch.module(m) for m in wanted)
        assert set(found.tensors) == {watch.tensor(p) for m in wanted for p in m.parameters()}


def test_modules_registered_on_the_same_tree_are_not_plain() -> None:
    with watching(modules, calls) as watch:
        net = Holder()
        net.blocks = [nn.Linear(2, 2)]
        net.registered = nn.ModuleList(net.blocks)
        net(torch.zeros(1, 2))
        assert watch.all(PlainAttributes) == []


def test_what_hangs_on_a_hidden_module_is_found_too() -> None:
    with watching(modules, calls) as watch:
        net, inner = Holder(), Holder()
        inner.mean = torch.zeros(3)
        net.inner = [inner]
        net(torch.zeros(1, 2))
        assert set(attributes(watch, inner)) == {"mean"}


def test_a_change_is_told_again_and_a_cache_a_few_times_only() -> None:
    with watching(modules) as watch:
        net = Holder()
        modules.scan_tree(watch.session, net)
        assert watch.all(PlainAttributes) == []
        for _ in range(100):
            net.cache = torch.zeros(1)
            modules.scan_tree(watch.session, net)
        assert 4 <= len(watch.all(PlainAttributes)) <= 12
        del net.cache
        modules.scan_tree(watch.session, net)


def test_nothing_of_the_program_runs_and_nothing_is_written() -> None:
    class Touchy(Holder):
        def __getattr__(self, name: str) -> object:
            if name in ("surprise", "modules", "blocks"):
                raise AssertionError(name)
            return super().__getattr__(name)

        def named_parameters(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            raise AssertionError

    with watching(modules) as watch:
        net = Touchy()
        before = set(net.__dict__)
        modules.scan_tree(watch.session, net)
        assert set(net.__dict__) == before


@pytest.fixture
def _swapping() -> Iterator[None]:
    """Conversions swap the contents of tensors, as they do for tensor subclasses."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("_swapping")
def test_our_weak_references_do_not_keep_torch_from_swapping() -> None:
    with watching() as watch:
        net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        number = watch.tensor(net[0].weight)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for dtype in (torch.float64, torch.float32):
            net.to(dtype)
            net(torch.randn(4, 2, dtype=dtype)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        net.load_state_dict(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).state_dict())
        assert net[0].weight.dtype == torch.float32
        assert watch.tensor(net[0].weight) == number


@pytest.mark.usefixtures("_swapping")
def test_the_programs_weak_references_still_do() -> None:
    with watching():
        net = nn.Linear(2, 2)
        ref = weakref.ref(net.weight)
        with pytest.raises(RuntimeError, match=r"Couldn't swap Linear\.weight"):
            net.double()
        assert ref() is net.weight


def test_everything_is_removed_again() -> None:
    from torch.nn.modules import module as m

    tables = (
        m._global_parameter_registration_hooks,
        m._global_buffer_registration_hooks,
        m._global_module_registration_hooks,
    )
    before = [len(t) for t in tables], nn.Module.__dict__["_apply"]
    assert torch.utils.weakref is weakref  # type: ignore[attr-defined]
    with watching(modules):
        assert [len(t) for t in tables] != before[0]
    assert ([len(t) for t in tables], nn.Module.__dict__["_apply"]) == before
    assert torch.utils.weakref is weakref  # type: ignore[attr-defined]
