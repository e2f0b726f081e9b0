"""The trace: what it remembers, what it forgets, and that it changes nothing."""

from __future__ import annotations

import contextlib
import gc
import weakref

import torch
from accelerate import Accelerator
from harness import watching
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from gradledger.core.events import AliasWritten, Backward, LeafSeen, ModuleCalled, Step
from gradledger.ledger._mode import Mode
from gradledger.ledger._naming import canonical, is_inplace


def test_spellings_of_one_operation_have_one_name() -> None:
    spellings = [torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.__iadd__]
    assert {canonical(f) for f in spellings} == {"add"}
    assert canonical(torch.Tensor.__rsub__) == "rsub"
    assert canonical(torch.nn.functional.mse_loss) == "mse_loss"


def test_in_place_is_told_by_name() -> None:
    assert all(
        is_inplace(f) for f in (torch.Tensor.add_, torch.Tensor.__iadd__, torch.Tensor.__setitem__, torch.Tensor.copy_)
    )
    assert not any(
        is_inplace(f) for f in (torch.add, torch.Tensor.__int__, torch.Tensor.__add__, torch.Tensor.__index__)
    )


def test_origin_names_operation_line_and_function() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.ones(3)

    with watching() as w:
        module = Scaled()
        origin = w.session.trace.origin(module.scale)
    assert origin is not None
    assert (origin.op, origin.site.function, origin.in_init) == ("ones", "__init__", True)


def test_no_tensor_is_kept_alive() -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        out = model(torch.ones(2, 3))
        mark = weakref.ref(out)
        del out
        gc.collect()
        assert mark() is None
        assert w.session.trace.values


def test_values_of_old_iterations_are_forgotten() -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sizes = []
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).mean().backward()
            optimizer.step()
            sizes.append(len(w.session.trace.values))
    assert max(sizes[4:]) <= sizes[4] + 2


def test_our_mode_lies_below_the_programs_modes_and_leaves_them_alone() -> None:
    class Counting(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Counting.seen += 1
            return func(*args, **(kwargs or {}))

    with watching() as w:
        with Counting() as mine:
            w.session.trace.off()
            assert _get_current_function_mode_stack() == [mine]
            w.session.trace.on()
            assert _get_current_function_mode_stack()[-1] is mine
            assert len(_get_current_function_mode_stack()) == 2
            torch.ones(2) + 1
        assert Counting.seen >= 1
    assert _get_current_function_mode_stack() == []


def test_a_write_through_a_detached_alias_of_a_walked_tensor() -> None:
    with watching() as w:
        model = nn.Linear(3, 2)
        out = model(torch.ones(4, 3))
        copy = out.detach().clone()
        copy += 1
        alias = out.detach()
        alias.clamp_(-0.1, 0.1)
        out.mean().backward()
    assert [(e.op, e.alias_how) for e in w.all(AliasWritten)] == [("clamp_", "detach")]


def test_what_out_names_is_written_and_nothing_else() -> None:
    with watching() as w:
        model = nn.Linear(3, 2)
        out = model(torch.ones(4, 3))
        alias, buffer = out.detach(), torch.empty(4, 2)
        nn.functional.normalize(alias, dim=1)  # hands `out=None` on
        torch.norm(alias, out=None)
        torch.mul(alias, 2.0, out=buffer)
        out.mean().backward()
        assert not w.all(AliasWritten)
        out = model(torch.ones(4, 3))
        torch.mul(buffer, 2.0, out=out.detach())
        out.mean().backward()
    assert [(e.op, e.alias_how) for e in w.all(AliasWritten)] == [("mul", "detach")]


def test_a_free_leaf_fed_to_a_module_is_named_with_its_line() -> None:
    with watching() as w:
        data = torch.randn(8, 3, requires_grad=True)
        model = nn.Linear(3, 1)
        model(data[:4]).mean().backward()
    seen = w.one(LeafSeen)
    assert seen.shape == (8, 3)
    assert seen.fed_to == (w.module(model),)
    assert seen.site.function == "test_a_free_leaf_fed_to_a_module_is_named_with_its_line"


def test_only_calls_of_the_program_itself_are_calls() -> None:
    with watching() as w:
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        model(torch.ones(2, 3))
        with torch.no_grad():
            model[0](torch.ones(5, 3))
    assert [(e.module, e.grad_on, e.output_has_graph, e.batch) for e in w.all(ModuleCalled)] == [
        (w.module(model), True, True, 2),
        (w.module(model[0]), False, False, 5),
    ]


def test_a_forward_that_raises_does_not_derange_the_depth() -> None:
    class Picky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 2:
                raise ValueError("too many")
            return x

    with watching() as w:
        model = nn.Sequential(Picky())
        for rows in (3, 1, 3, 2):
            with contextlib.suppress(ValueError):
                model(torch.ones(rows, 1))
    assert [e.batch for e in w.all(ModuleCalled)] == [1, 2]


def test_detail_rests_in_a_long_run_and_wakes_for_samples() -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        detailed = []
        for i in range(105):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).mean().backward()
            if w.session.trace.active:
                detailed.append(i)
            optimizer.step()
    assert detailed == [*range(20), 50, 51, 100, 101]


def test_a_default_device_stays_at_the_bottom_of_the_modes() -> None:
    with watching() as w:
        torch.set_default_device("meta")
        try:
            w.session.trace.rest()
            w.session.trace.settle()
            assert type(_get_current_function_mode_stack()[0]).__name__ == "DeviceContext"
            assert torch.ones(2).device.type == "meta"
        finally:
            torch.set_default_device(None)
        assert torch.ones(2).device.type == "cpu"
        assert w.session.trace.active


def test_a_library_below_the_training_loop_is_no_line_to_edit() -> None:
    """accelerate walks the loss and steps the optimizer for the loop that asks it to."""
    with watching() as w:
        accelerator = Accelerator(cpu=True)
        net = nn.Linear(3, 1)
        net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        accelerator.backward(net(torch.ones(4, 3)).mean())
        optimizer.step()
    (backward,), (step,) = w.all(Backward), w.all(Step)
    assert {backward.site.file, step.site.file} == {__file__}


def test_the_mode_never_stands_twice() -> None:
    """torch sets a mode aside while it runs: taken for gone and put in anew, it would see every operation twice."""
    with watching() as w:
        trace = w.session.trace

        class Settles:
            @classmethod
            def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> int:
                trace.settle()
                return 0

        assert _modes() == 1
        trace.wanted = False  # as where `off()` could not take it out yet
        torch.add(torch.ones(2), Settles())  # type: ignore[call-overload]
        trace.on()
        assert _modes() == 1
        before = trace.ops
        torch.ones(2).neg()
        assert trace.ops == before + 2
    assert _modes() == 0


def _modes() -> int:
    return sum(isinstance(mode, Mode) for mode in _get_current_function_mode_stack())


def test_the_mode_leaves_when_detail_ends_within_an_operation() -> None:
    """Without an optimizer an iteration ends inside `Tensor.backward`, of which torch has set the mode aside."""
    net = nn.Linear(3, 1)
    with watching() as w:
        for _ in range(60):
            net(torch.ones(2, 3)).sum().backward()
        assert not w.session.recorder.detail
        net(torch.ones(2, 3)).sum()
        assert _modes() == 0
    with watching() as w:
        while w.session.recorder.detail:
            net(torch.ones(2, 3)).sum().backward()
        assert _modes() == 1
    assert _modes() == 0
    assert not torch.nn.modules.module._global_forward_pre_hooks
