"""Optimizers: built, groups added, clears, and steps (by the public global step hooks)."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradledger.core.events import Clear, Dropped, Fill, Group, GroupAdded, OptimizerMade, Step
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site
from gradledger.ledger._doze import Woken
from gradledger.ledger._lifecycle import Leaf
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session

_LAST = _FIRST = "gradledger"  # among the hooks of an optimizer, whose other names are numbers


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All tensors an optimizer holds, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.building: list[int] = []
        self.clearing = 0
        self.napped = False
        self.steps: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self.pending_steps: dict[int, tuple[Site, bool]] = {}

    # ------------------------------------------------------------------ construction

    def init_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.building.append(id(args[0]))

    def init_after(self, state: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._built()
        self.know(args[0], _site.built_at(args[0]))

    def init_raised(self, state: Any, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._built()

    def _built(self) -> None:
        if self.building:
            self.building.pop()

    def know(self, optimizer: torch.optim.Optimizer, site: Site) -> int:
        number = self.recorder.optimizers.find(optimizer)
        if number is not None:
            return number
        for other, known in self.recorder.optimizers.live():
            if other.param_groups is optimizer.param_groups:
                # a wrapper (accelerate, Lightning) around an optimizer that is known: one and the same
                self.recorder.optimizers.assign(optimizer, known)
                return known
        number = self.recorder.optimizers.number(optimizer)
        groups = tuple(self._group(g) for g in optimizer.param_groups)
        self.recorder.emit(OptimizerMade, site, optimizer=number, cls=type(optimizer).__name__, groups=groups)
        return number

    def _group(self, group: dict[str, Any]) -> Group:
        tensors = [self.session.lifecycle.follow(p).number for p in group["params"]]
        self.session.held.update(tensors)
        return Group(tuple(tensors), _number(group.get("lr")), _number(group.get("weight_decay")))

    def group_added(self, state: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        optimizer = args[0]
        if id(optimizer) in self.building or self.recorder.optimizers.find(optimizer) is None:
            return
        number = self.recorder.optimizers.number(optimizer)
        group = self._group(optimizer.param_groups[-1])
        self.recorder.emit(GroupAdded, _site.here(1), optimizer=number, group=group)

    # ------------------------------------------------------------------ steps

    def asked_to_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """torch calls the hooks for all optimizers before an optimizer's own, and those may clear, clip or fill: what
        the step consumes is there after the last of them.  So ours goes behind them for this step.  After the step it
        calls an optimizer's own first: ours goes before them."""
        after = getattr(optimizer, "_optimizer_step_post_hooks", None)
        if after and (self.recorder.enabled or self.recorder.abroad):
            after[_FIRST] = self.stepped
            after.move_to_end(_FIRST, last=False)
        own = getattr(optimizer, "_optimizer_step_pre_hooks", None)
        if not own:
            self.before_step(optimizer, args, kwargs)
        elif self.recorder.enabled or self.recorder.abroad:
            own[_LAST] = self.before_step

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.recorder.abroad:
            self.recorder.train_abroad()
        if not self.recorder.enabled:
            return
        self.napped = False
        if self.recorder.doze.asleep and self._passes("step", optimizer):
            self.napped = True
            return
        with self.recorder.guard("step"):
            site = _site.here(1)
            closure = bool(kwargs.get("closure")) or any(callable(a) for a in (args or ())[:2] if a is not optimizer)
            number = self.know(optimizer, site)
            self.session.trace.optimizer_running = number
            self.pending_steps[number] = (site, closure)
            if not closure:
                self._emit_step(optimizer, number, site, closure)
                self.session.trace.rest()

    def _emit_step(self, optimizer: torch.optim.Optimizer, number: int, site: Site, closure: bool) -> None:
        parameters = parameters_of(optimizer)
        lives, lost = self.session.lifecycle.lives(parameters)
        self.session.held.update(t for life in lives for t in life.tensors)  # groups may have been edited by hand
        if lost:
            self.emit_unseen(lost)
        self.session.before_step(parameters, site)
        index = self.steps.get(optimizer, 0)
        signature = (
            number,
            closure,
            tuple((v.tensors, v.grad, v.frozen, v.rescaled, self._fills(v.fills)) for v in lives),
        )
        self.recorder.note(
            Step,
            site,
            signature,
            {"optimizer": number, "index": index, "lives": lives, "closure": closure},
            key=("step", _site.mark(2), number),
        )
        if closure:
            self.recorder.doze.forbidden = True

    def _fills(self, fills: tuple[Fill, ...]) -> tuple[tuple[int, int], ...]:
        """What matters of a history: how old each contribution is and how often it was consumed, both capped."""
        now = self.recorder.backwards
        return tuple((min(now - f.backward, 8), min(f.consumed, 3)) for f in fills[-6:])

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if getattr(optimizer, "_optimizer_step_post_hooks", {}).pop(_FIRST, None) is None:
            self.stepped(optimizer, args, kwargs)

    def stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        getattr(optimizer, "_optimizer_step_pre_hooks", {}).pop(_LAST, None)
        if not self.recorder.enabled:
            return
        if self.napped:
            self.napped = False
            if self.recorder.dozed():
                self.steps[optimizer] = self.steps.get(optimizer, 0) + 1
                return
        with self.recorder.guard("step end"):
            number = self.know(optimizer, NOWHERE)
            self.session.trace.optimizer_running = 0
            site, closure = self.pending_steps.pop(number, (NOWHERE, False))
            if closure:
                self._emit_step(optimizer, number, site, closure)
            self.session.lifecycle.consumed(parameters_of(optimizer))
            self.steps[optimizer] = self.steps.get(optimizer, 0) + 1
            self.session.after_step()
            self.recorder.step_done()

    def emit_unseen(self, lost: tuple[Dropped, ...]) -> None:
        tensors = tuple(dict.fromkeys(t for d in lost for t in d.tensors))
        self.recorder.emit(Clear, NOWHERE, how="unseen", optimizer=None, module=None, tensors=tensors, dropped=lost)

    # ------------------------------------------------------------------ while dozing

    def _passes(self, kind: str, optimizer: torch.optim.Optimizer) -> bool:
        return self.recorder.passes((kind, _site.mark(2), self.recorder.optimizers.find(optimizer)))

    def skip_optimizer_clear(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """A clear like those before, from the same instruction."""
        return self.recorder.doze.asleep and self._passes("clear", args[0])

    def skip_module_clear(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """The same for `module.zero_grad()`."""
        recorder = self.recorder
        return recorder.doze.asleep and recorder.passes(("clear", _site.mark(1), recorder.modules.find(args[0])))

    def woken(self) -> Woken:
        """Dozing ends: histories are brought up to date."""
        return self.recorder.doze.wake(self.session.lifecycle)

    # ------------------------------------------------------------------ clears

    def optimizer_clear(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Leaf]:
        optimizer = args[0]
        return self._clearing(parameters_of(optimizer), optimizer=self.know(optimizer, _site.here(1)))

    def module_clear(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Leaf]:
        module = args[0]
        return self._clearing(module.parameters(), module=self.recorder.module_id(module))

    def _clearing(
        self, tensors: Iterable[torch.Tensor], optimizer: int | None = None, module: int | None = None
    ) -> list[Leaf]:
        numbers, dropped, leaves = self.session.lifecycle.clear(tensors)
        now = self.recorder.backwards
        signature = (
            "zero_grad",
            optimizer,
            module,
            numbers,
            tuple((min(now - d.backward, 8), min(d.consumed, 3), d.read, d.tensors) for d in dropped[-6:]),
        )
        self.recorder.note(
            Clear,
            _site.here(2),
            signature,
            {"how": "zero_grad", "optimizer": optimizer, "module": module, "tensors": numbers, "dropped": dropped},
            key=("clear", _site.mark(2), optimizer or module),
        )
        self.clearing += 1
        self.session.trace.rest()
        return leaves

    def clear_done(self, leaves: list[Leaf] | None, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.clearing = max(0, self.clearing - 1)
        self.session.trace.settle()
        self.session.lifecycle.cleared(leaves or [])

    def clear_failed(self, leaves: list[Leaf] | None, error: BaseException, args: Any, kwargs: Any) -> None:
        self.clearing = max(0, self.clearing - 1)
        self.session.trace.settle()

    def grad_set(self, tensor: torch.Tensor, new: Any) -> None:
        """`p.grad = None` (a clear) or `p.grad = g` (an assignment), in watched iterations."""
        if new is not None or self.clearing:
            return  # an assignment is seen at the next look; inside zero_grad the clear is already recorded
        number = self.recorder.tensors.find(tensor)
        leaf = self.session.lifecycle.leaves.get(number) if number is not None else None
        if leaf is None:
            return
        dropped = self.session.lifecycle.dropped([leaf])
        leaf.empty()
        leaf.grad = None
        self.recorder.emit(
            Clear, _site.here(1), how="none", optimizer=None, module=None, tensors=(leaf.number,), dropped=dropped
        )


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type == "cpu":
        return float(value.detach())
    return None


def install(session: Session) -> Undo:
    """Watch every optimizer of the program."""
    probe = _Probe(session)
    pre = register_optimizer_step_pre_hook(probe.asked_to_step)
    post = register_optimizer_step_post_hook(probe.after_step)
    base = torch.optim.Optimizer
    session.trace.listeners.grad_set.append(probe.grad_set)
    session.emit_unseen = probe.emit_unseen
    session.know_optimizer = probe.know
    session.recorder.on_wake.append(probe.woken)
    recorder = session.recorder
    return together(
        pre.remove,
        post.remove,
        observe(recorder, base, "__init__", before=probe.init_before, after=probe.init_after, raised=probe.init_raised),
        observe(recorder, base, "add_param_group", after=probe.group_added),
        observe(
            recorder,
            base,
            "zero_grad",
            before=probe.optimizer_clear,
            after=probe.clear_done,
            raised=probe.clear_failed,
            skip=probe.skip_optimizer_clear,
        ),
        observe(
            recorder,
            torch.nn.Module,
            "zero_grad",
            before=probe.module_clear,
            after=probe.clear_done,
            raised=probe.clear_failed,
            skip=probe.skip_module_clear,
        ),
    )
