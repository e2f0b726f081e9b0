"""Values that flow from one network into another: deep copies, target updates written by hand, averages, shared memory.

A target update is a loop over tensors.  Its writes are collected and told as one `Copied` right before the next event
that matters, with what else can be seen then: whether the target changed, and what became of its buffers.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.optim import swa_utils

from gradledger.core.events import (
    Copied,
    DeepCopied,
    Event,
    GradFlagSet,
    ParametersIterated,
    PlainAttributes,
    StateTaken,
    StorageShared,
    TensorRegistered,
)
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site, _writes
from gradledger.ledger._blends import of_itself
from gradledger.ledger._iterators import variables
from gradledger.ledger._often import Often
from gradledger.ledger._operations import Op
from gradledger.ledger._patch import Nest, Undo, observe, together
from gradledger.ledger._registry import Registry, tree_tensors
from gradledger.ledger._session import Session
from gradledger.ledger._values import buffers_that_differ, elements, floating_buffers, print_of, same_memory
from gradledger.ledger.probes.modules import register_tree

# A write is part of an update while only these come between.
_PASSED: frozenset[type[Event]] = frozenset(
    {ParametersIterated, GradFlagSet, PlainAttributes, StateTaken, StorageShared, TensorRegistered}
)
_ITSELF = -1  # stands for both modules while tensors are copied onto themselves
_HOW = {"copy_": "copy_", "setitem": "copy_", "lerp_": "lerp_", "add": "mul_add", "sub": "mul_add", "mul": "mul_add"}


@dataclass(slots=True)
class _Update:
    """Writes from one module into another since the last event."""

    site: Site
    how: str
    pairs: dict[tuple[int, int], float | None] = field(default_factory=dict)


class Copies:
    """Updates under way, and what was seen of targets at the last one.

    `captured`: while a list, writes are collected there instead (the one that set it tells them).
    """

    def __init__(self) -> None:
        self.updates: dict[tuple[int, int], _Update] = {}
        self.captured: list[tuple[torch.Tensor, torch.Tensor, float | None]] | None = None
        self.prints: dict[int, tuple[float, ...]] = {}
        self.buffers: dict[int, dict[str, tuple[float, ...] | None]] = {}
        self.floating: dict[int, frozenset[int]] = {}  # numbers of a target's floating buffers
        self.often = Often()
        self.shared: Counter[tuple[int, int]] = Counter()


# ------------------------------------------------------------------------------------------------ writes


def tensor_written(
    session: Session, target: torch.Tensor, source: torch.Tensor, how: str, tau: float | None, site: Site | None = None
) -> None:
    """The program wrote `source` (times `tau`, when known) into `target`; both are registered tensors."""
    recorder = session.recorder
    copies = recorder.part(Copies)
    if copies.captured is not None:
        copies.captured.append((target, source, tau))
        return
    numbers = recorder.tensors.find(source), recorder.tensors.find(target)
    if numbers[0] is None or numbers[1] is None:
        return
    registry = recorder.part(Registry)
    roots = registry.roots_of_pair(numbers[0], numbers[1])
    if roots is None or (roots[0] == roots[1] and target is not source):
        return  # one state of a module made from another (a codebook from its sums) is no update of a network
    key = (_ITSELF, _ITSELF) if target is source else roots
    _update(session, key, how, site).pairs[numbers[0], numbers[1]] = tau


def _update(session: Session, roots: tuple[int, int], how: str, site: Site | None) -> _Update:
    """The update under way between two modules."""
    copies = session.recorder.part(Copies)
    update = copies.updates.get(roots)
    if update is None:
        update = copies.updates[roots] = _Update(site or _site.here(1), how)
        session.recorder.defer("copies", lambda: flush(session), _PASSED)
    return update


def flush(session: Session) -> None:
    """Tell the updates collected so far."""
    copies = session.recorder.part(Copies)
    updates, copies.updates = copies.updates, {}
    for (source, target), update in updates.items():
        if source == _ITSELF:
            source = target = _around(session.recorder.part(Registry), [t for _, t in update.pairs])
        taus = [tau for tau in update.pairs.values() if tau is not None]
        tell(session, update.site, update.how, source, target, tuple(update.pairs), taus[0] if taus else None)


def _around(registry: Registry, tensors: list[int]) -> int:
    """The innermost module that holds all these tensors (their first one's, when there is none)."""
    owners = [registry.owners[t].module for t in tensors]
    shared = [m for m in registry.ancestors(owners[0]) if all(m in registry.ancestors(o) for o in owners[1:])]
    return (shared or owners)[0]


def tell(
    session: Session,
    site: Site,
    how: str,
    source: int,
    target: int,
    pairs: tuple[tuple[int, int], ...],
    tau: float | None,
    changed: bool | None = None,
) -> None:
    """Record one copy from module `source` into module `target`, looking at the target's values now and then."""
    recorder = session.recorder
    copies = recorder.part(Copies)
    sources, targets = recorder.modules.get(source), recorder.modules.get(target)
    differ: tuple[str, ...] = ()
    if targets is not None:
        if copies.often.worth_telling((source, target), first=20):
            buffers = floating_buffers(targets)
            copies.floating[target] = frozenset(recorder.tensor_id(b) for b in buffers.values())
            seen = print_of(targets)
            before = copies.prints.get(target)
            copies.prints[target] = seen
            if changed is None and before is not None:
                changed = seen != before
            if sources is not None and sources is not targets:
                differ = _left_behind(copies, target, buffers, buffers_that_differ(sources, targets))
    if len(copies.prints) > 4096:
        copies.prints = {n: p for n, p in copies.prints.items() if recorder.modules.get(n) is not None}
        copies.floating = {n: b for n, b in copies.floating.items() if n in copies.prints}
        copies.buffers = {n: b for n, b in copies.buffers.items() if n in copies.prints}
    floating = copies.floating.get(target, frozenset())
    recorder.emit(
        Copied,
        site,
        how=how,
        source=source,
        target=target,
        pairs=pairs,
        tau=tau,
        changed=changed,
        same=source == target,
        buffers=len(floating),
        buffers_followed=len(floating.intersection(t for _, t in pairs)),
        buffers_differ=differ,
    )


def _left_behind(
    copies: Copies, target: int, buffers: dict[str, torch.Tensor], differ: tuple[str, ...]
) -> tuple[str, ...]:
    """Of buffers that differ from the source's, those that do not move by themselves (noise, statistics of its own)."""
    if len(copies.buffers) > 4096:
        copies.buffers.clear()
    known = copies.buffers.setdefault(target, {})
    left = []
    for name in differ:
        now = elements(buffers[name]) if name in buffers else ()
        before = known.setdefault(name, now)
        if before is None or before != now:
            known[name] = None  # moves for good
        else:
            left.append(name)
    return tuple(left)


def tell_shared(
    session: Session, target: torch.Tensor, source: torch.Tensor, how: str, site: Site | None = None
) -> bool:
    """Record that two followed tensors have the same memory, when they do."""
    recorder = session.recorder
    numbers = recorder.tensors.find(target), recorder.tensors.find(source)
    if numbers[0] is None or numbers[1] is None or target is source or not same_memory(target, source):
        return False
    copies = recorder.part(Copies)
    key = min(numbers[0], numbers[1]), max(numbers[0], numbers[1])
    copies.shared[key] += 1
    if copies.shared[key] <= 4:
        recorder.emit(StorageShared, site, target=numbers[0], source=numbers[1], how=how)
    return True


def find_shared(session: Session) -> None:
    """Look over all registered tensors for two that have the same memory, however that came about."""
    recorder = session.recorder
    copies = recorder.part(Copies)
    at: dict[tuple[int, tuple[int, ...]], tuple[torch.Tensor, int]] = {}
    for number in list(recorder.part(Registry).owners):
        tensor = recorder.tensors.get(number)
        if tensor is None or is_lazy(tensor) or tensor.layout != torch.strided:
            continue
        if tensor.device.type == "meta" or not tensor.numel():
            continue
        other = at.setdefault((tensor.data_ptr(), tuple(tensor.shape)), (tensor, number))
        key = min(other[1], number), max(other[1], number)
        if other[0] is not tensor and key not in copies.shared:
            target, source = (other[0], tensor) if number in session.held else (tensor, other[0])
            tell_shared(session, target, source, "found", NOWHERE)


# ------------------------------------------------------------------------------------------------ deep copies


def _copying(frame: FrameType | None) -> tuple[torch.nn.Module, bool] | None:
    """(source, is it inside the copy of another module) of the deep copy that runs `frame`; None when there is none."""
    source: torch.nn.Module | None = None
    while frame is not None:
        if frame.f_code is _RECONSTRUCT:
            found = variables(frame, ["x", "memo"])
            if isinstance(found.get("x"), torch.nn.Module):
                if found.get("memo") is None:
                    return None  # a shallow copy
                if source is not None:
                    return source, True
                source = found["x"]
        frame = frame.f_back
    return None if source is None else (source, False)


_RECONSTRUCT = copy._reconstruct.__code__  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------ install


def install(session: Session) -> Undo:
    """Watch deep copies, writes into registered tensors, `.data` assignments and averaged models."""
    recorder = session.recorder
    copies = recorder.part(Copies)
    listeners = session.trace.listeners

    def state_set(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        target = args[0]
        found = _copying(sys._getframe(1))
        if found is None or found[1] or not isinstance(target, type(found[0])):
            return
        source = found[0]
        site = _site.here(1)
        register_tree(recorder, source)
        register_tree(recorder, target, site)
        mine, yours = tree_tensors(source), tree_tensors(target)
        pairs = [(recorder.tensor_id(mine[k][1]), recorder.tensor_id(yours[k][1])) for k in mine if k in yours]
        recorder.emit(
            DeepCopied,
            site,
            source=recorder.module_id(source),
            target=recorder.module_id(target, site),
            pairs=tuple(dict.fromkeys(pairs)),
        )

    def written(target: torch.Tensor, source: torch.Tensor | None, raw: str, tau: float | None, op: Op) -> None:
        if source is None and raw in ("copy_", "lerp_", "setitem"):
            if _is_own(session, target, op):
                source = target
            elif raw != "lerp_" and op.ins:
                tau = of_itself(session.trace, op.ins[-1], recorder.tensors.find(target))
                source = target if tau is not None else None
        if source is not None and raw in _HOW:
            tensor_written(session, target, source, _HOW[raw], tau, op.site)

    def data_set(target: torch.Tensor, new: torch.Tensor, number: int | None, tau: float | None) -> None:
        source = recorder.tensors.get(number) if number is not None else None
        if source is not None:
            tell_shared(session, target, source, "data")
            tensor_written(session, target, source, "assign", tau)

    def parameter_set(module: torch.nn.Module, name: str, new: Any) -> None:
        old = module.__dict__["_parameters"].get(name)
        if not isinstance(old, torch.nn.Parameter) or is_lazy(old) or is_lazy(new) or old is new:
            return
        if recorder.enabled and session.trace.active:
            with recorder.guard("parameter replaced"):
                _replaced(session, old, new)

    def average_before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        copies.captured = []

    def averaged(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        copies.captured = None
        target, source = args[0].module, args[1] if len(args) > 1 else kwargs["model"]
        register_tree(recorder, target)
        register_tree(recorder, source)
        mine, yours = tree_tensors(source), tree_tensors(target)
        # (before torch 2.6 buffers were left alone unless `use_buffers`: their values tell)
        pairs = [(recorder.tensor_id(mine[k][1]), recorder.tensor_id(yours[k][1])) for k in mine if k in yours]
        numbers = recorder.module_id(source), recorder.module_id(target)
        tell(session, _site.here(1), "averaged", *numbers, tuple(dict.fromkeys(pairs)), None)

    def average_raised(before: Any, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        copies.captured = None

    def sample(iteration: int) -> None:
        if iteration & (iteration - 1) == 0:
            find_shared(session)

    def at_end() -> None:
        flush(session)
        find_shared(session)

    listeners.written.append(written)
    listeners.data_set.append(data_set)
    recorder.on_iteration.append(sample)
    session.at_end.append(at_end)
    hook = register_module_parameter_registration_hook(parameter_set)
    return together(
        hook.remove,
        lambda: listeners.written.remove(written),
        lambda: listeners.data_set.remove(data_set),
        lambda: recorder.on_iteration.remove(sample),
        observe(recorder, torch.nn.Module, "__setstate__", after=state_set),
        observe(
            recorder,
            swa_utils.AveragedModel,
            "update_parameters",
            before=average_before,
            after=averaged,
            raised=average_raised,
            nest=Nest(),
        ),
    )


def _replaced(session: Session, old: torch.nn.Parameter, new: torch.nn.Parameter) -> None:
    """A new Parameter takes the place of an old one: was it made from another network's values?"""
    recorder = session.recorder
    made_from = session.trace.newest(new)
    source, tau = _writes.blend_source(session.trace, (made_from,), old) if made_from is not None else (None, None)
    numbers = recorder.tensors.find(source) if source is not None else None, recorder.tensors.find(old)
    if numbers[0] is None or numbers[1] is None:
        return
    roots = recorder.part(Registry).roots_of_pair(numbers[0], numbers[1])
    if roots is not None and roots[0] != roots[1]:
        update = _update(session, roots, "replace", None)
        update.pairs[numbers[0], recorder.tensor_id(new)] = tau


def _is_own(session: Session, target: torch.Tensor, op: Op) -> bool:
    """Whether the value written into a tensor is (an alias of) that very tensor."""
    trace = session.trace
    for token in op.ins[1:]:
        value = trace.values.get(token)
        alias = trace.param_aliases.get(token)
        if (value is not None and value.leaf == session.recorder.tensors.find(target)) or (alias and alias() is target):
            return True
    return False
