"""`requires_grad` by hand, walks over parameters, and iterators that are used up."""

from __future__ import annotations

import gc
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from harness import here, watching
from torch import nn

from gradledger.core.events import ExhaustedIterator, GradFlagSet, ParametersIterated
from gradledger.core.site import NOWHERE
from gradledger.ledger._iterators import Iterators, read_each_pass, untouched, variables
from gradledger.ledger.probes import calls, flags, modules


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


# ------------------------------------------------------------------------------------------------ requires_grad


def test_freezing_a_module_is_one_fact() -> None:
    with watching(modules, calls, flags) as watch:
        model = net()
        model.requires_grad_(False)
        line = here() - 1
        event = watch.one(GradFlagSet)
        assert event.tensors == tuple(watch.tensor(p) for p in model.parameters())
        assert (event.value, event.changed, event.site.line) == (False, 4, line)
        assert model[0].requires_grad_(requires_grad=True) is model[0]
        assert [(e.value, e.changed) for e in watch.all(GradFlagSet)] == [(False, 4), (True, 2)]


def test_freezing_in_a_loop_is_one_fact() -> None:
    with watching(modules, calls, flags) as watch:
        model = net()
        for p in model.parameters():
            p.requires_grad = False
        line = here() - 1
        for p in model[0].parameters():
            p.requires_grad_(True)
        nn.Linear(1, 1)  # the next event
        first, second = watch.all(GradFlagSet)
        assert (len(first.tensors), first.value, first.changed, first.site.line) == (4, False, 4, line)
        assert (len(second.tensors), second.value, second.changed) == (2, True, 2)


def test_a_flag_that_was_so_already_changes_nothing() -> None:
    with watching(modules, calls, flags) as watch:
        model = net()
        model[0].weight.requires_grad = True
        nn.Linear(1, 1)
        assert watch.one(GradFlagSet).changed == 0


def test_tensors_that_nobody_follows_are_not_told() -> None:
    with watching(modules, calls, flags) as watch:
        torch.zeros(2).requires_grad_(False)
        nn.Linear(1, 1)
        assert watch.all(GradFlagSet) == []


# ------------------------------------------------------------------------------------------------ walks


def test_a_walk_by_the_program_is_counted_without_being_walked() -> None:
    with watching(flags) as watch:
        model = net()
        walk = model.named_parameters()
        line = here() - 1
        event = watch.one(ParametersIterated)
        assert (event.module, event.method, event.count) == (watch.module(model), "named_parameters", 4)
        assert event.site.line == line
        assert isinstance(walk, types.GeneratorType)
        assert next(walk)[0] == "0.weight"
        assert [n for n, _ in walk] == ["0.bias", "2.weight", "2.bias"]


def test_walks_by_torch_are_not_told() -> None:
    with watching(flags) as watch:
        model = net()
        model.zero_grad()
        model.requires_grad_(True)
        assert watch.all(ParametersIterated) == []


def test_a_tied_parameter_counts_once_and_a_loop_is_told_a_few_times() -> None:
    with watching(flags) as watch:
        model = net()
        model.add_module("again", model[0])
        for _ in range(100):
            list(model.parameters())
        events = watch.all(ParametersIterated)
        assert {e.count for e in events} == {4}
        assert 3 <= len(events) <= 9


def test_a_loop_over_parameters_late_in_a_run_is_watched_in_full() -> None:
    with watching() as watch:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(120):
            if i == 77:
                for p in model[0].parameters():
                    p.requires_grad = False
                line = here() - 1
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        event = watch.one(GradFlagSet)
        assert (event.iteration, event.site.line, event.changed) == (77, line, 2)


# ------------------------------------------------------------------------------------------------ used-up iterators


def parameters_code() -> Iterators:
    iterators = Iterators()
    iterators.codes = {nn.Module.parameters.__code__, nn.Module.named_parameters.__code__}
    return iterators


MAKERS: dict[str, Callable[[nn.Module], Iterator[object]]] = {
    "generator": lambda m: m.parameters(),
    "named": lambda m: m.named_parameters(),
    "filter": lambda m: filter(lambda p: p.requires_grad, m.parameters()),
    "map": lambda m: map(id, m.parameters()),
    "zip": lambda m: zip(m.parameters(), m.parameters(), strict=False),
    "enumerate": lambda m: enumerate(m.parameters()),
    "genexpr": lambda m: (p for p in m.parameters() if p.requires_grad),
    "filter of genexpr": lambda m: filter(torch.is_tensor, (p for _, p in m.named_parameters())),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_looking_consumes_nothing_and_tells_used_from_fresh(kind: str) -> None:
    iterators = parameters_code()
    walk = MAKERS[kind](net())
    state = iterators.look(walk)
    assert state is not None
    assert not state.used
    next(walk)
    state = iterators.look(walk)
    assert state is not None
    assert not state.used
    assert len(list(walk)) == 3
    state = iterators.look(walk)
    assert state is not None
    assert state.used


@pytest.mark.parametrize(
    "value",
    [iter([1, 2]), (x for x in range(3)), filter(None, [1]), [1], itertools.count(), "text", None, map(len, [])],
    ids=lambda value: type(value).__name__,
)
def test_other_iterators_are_none_of_our_business(value: object) -> None:
    assert parameters_code().look(value) is None


def test_a_chain_over_parameters_is_seen_while_it_lives() -> None:
    model = net()
    state = parameters_code().look(itertools.chain(model.parameters(), model.parameters()))
    assert state is not None
    assert not state.used


def clip_by_norm(params: Iterable[nn.Parameter], limit: float) -> torch.Tensor:
    total = torch.zeros(())
    for p in params:
        if p.grad is not None:
            total += p.grad.pow(2).sum()
    return total.sqrt() / limit


def norm_of(params: Iterable[nn.Parameter], limit: float) -> torch.Tensor:
    grads = [p.grad for p in params if p.grad is not None]
    return torch.stack([g.norm() for g in grads]).norm() / limit


def plain_norm(params: Iterable[nn.Parameter], limit: float) -> float:
    total = 0.0
    for p in params:
        assert p.grad is not None
        total += float(p.grad.norm())
    return total / limit


def train(
    model: nn.Module, use: Callable[..., object], make: Callable[[], Iterable[nn.Parameter]], steps: int = 3
) -> int:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 2)).sum().backward()
        use(make(), 0.5)
        line = here() - 1
        optimizer.step()
    return line


def test_an_argument_that_came_in_used_up() -> None:
    with watching() as watch:
        model = net()
        walk = filter(lambda p: p.requires_grad, model.parameters())
        made = here() - 1
        train(model, clip_by_norm, lambda: walk)
        event = watch.one(ExhaustedIterator)
        assert (event.function, event.name, event.made_site.line) == ("clip_by_norm", "params", made)
        assert event.site.line == clip_by_norm.__code__.co_firstlineno + 1


@pytest.mark.parametrize("use", [clip_by_norm, norm_of, plain_norm])
def test_a_fresh_iterator_each_time_is_right(use: Callable[..., object]) -> None:
    with watching() as watch:
        model = net()
        train(model, use, lambda: filter(lambda p: p.requires_grad, model.parameters()))
        train(model, use, model.parameters)
        assert watch.all(ExhaustedIterator) == []


def test_a_list_is_right() -> None:
    with watching() as watch:
        model = net()
        walk = list(model.parameters())
        train(model, clip_by_norm, lambda: walk)
        assert watch.all(ExhaustedIterator) == []


def test_a_variable_that_each_pass_of_a_loop_uses() -> None:
    def fit(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        walk = (p for p in model.parameters() if p.requires_grad)
        for _ in range(4):
            loss = model(torch.ones(4, 2)).sum()
            loss.backward()
            plain_norm(walk, 0.5)
            optimizer.step()

    with watching() as watch:
        fit(net())
        event = watch.one(ExhaustedIterator)
        assert (event.function, event.name) == ("fit", "walk")


def test_a_variable_that_only_the_first_pass_uses() -> None:
    def fit(model: nn.Module, walk: Iterable[nn.Parameter]) -> None:
        optimizer = torch.optim.SGD(walk, lr=0.1)
        again = model.parameters()
        for i in range(4):
            loss = model(torch.ones(4, 2)).sum()
            loss.backward()
            if i == 0:
                plain_norm(again, 0.5)
            optimizer.step()

    with watching() as watch:
        model = net()
        fit(model, model.parameters())
        assert watch.all(ExhaustedIterator) == []


def test_byte_code_of_loops() -> None:
    def sample(a: object, b: object) -> int:
        x = len(str(a))
        for i in range(3):
            y = len(str(i))
            if y:
                x += len(str(b))
            x += len(str(a))
        return x

    import dis

    lines = {step.offset: step.positions.lineno for step in dis.get_instructions(sample) if step.positions}
    first = sample.__code__.co_firstlineno
    at = {line - first: offset for offset, line in reversed(lines.items()) if line is not None}
    assert untouched(sample.__code__, at[1], "b")
    assert not untouched(sample.__code__, at[7], "a")
    assert not untouched(sample.__code__, at[3], "b")  # inside a loop
    assert "a" in read_each_pass(sample.__code__, at[3])
    assert "b" not in read_each_pass(sample.__code__, at[3])  # under an if
    assert "x" not in read_each_pass(sample.__code__, at[3])  # set in the loop
    assert read_each_pass(sample.__code__, at[1]) == []


def test_looking_at_variables_keeps_nothing_alive() -> None:
    class Big:
        pass

    def look() -> object:
        return variables(sys._getframe(1), ["big"])["big"]

    def running() -> tuple[bool, bool]:
        big = Big()
        ref = weakref.ref(big)
        seen = look() is big
        del big
        gc.collect()
        return seen, ref() is None

    assert running() == (True, True)


def test_a_function_that_asks_for_its_variables_is_left_alone() -> None:
    def look() -> object:
        return variables(sys._getframe(1), ["x"])

    def running() -> dict[str, object]:
        x = 1
        mine = locals()
        seen = look()
        return dict(mine, x=x, seen=seen)

    mine = running()
    assert mine["seen"] == {}
    assert mine["x"] == 1


def test_everything_is_removed_again() -> None:
    before = [nn.Module.__dict__[n] for n in ("parameters", "named_parameters", "requires_grad_")]
    with watching(flags) as watch:
        assert watch.session.trace.listeners.flag_set != []
    assert watch.session.trace.listeners.flag_set == []
    assert [nn.Module.__dict__[n] for n in ("parameters", "named_parameters", "requires_grad_")] == before
    assert NOWHERE.file == ""
