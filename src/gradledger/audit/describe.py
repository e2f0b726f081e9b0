"""A fact in words, and what it is about: for lists of a stored run.

`describe` has a phrase for the facts that matter most, and shows the fields of any other, so that a new kind of event
needs no code here.  `mentions` finds the tensors and modules in a fact by the names of its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from gradledger.audit import oracle
from gradledger.audit._phrases import number, times
from gradledger.audit.flow import optimizer_label
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import Site

_TENSORS = frozenset({"tensor", "tensors", "leaves", "reached", "depends", "pairs"})
_MODULES = frozenset({"module", "modules", "parent", "child", "root", "fed_to", "attribute_of"})
_FROM_TO = frozenset({"source", "target"})  # modules, except where memory is shared: then tensors
_HIDDEN = frozenset({"seq", "iteration", "site", "weight", "node"})


@dataclass(frozen=True, slots=True)
class Mentions:
    """Numbers of the tensors and modules that a fact is about."""

    tensors: frozenset[int]
    modules: frozenset[int]


def mentions(event: ev.Event) -> Mentions:
    """What a fact is about, parts of it included."""
    tensors: set[int] = set()
    modules: set[int] = set()
    _collect(event, type(event), tensors, modules)
    if isinstance(event, (ev.StateTaken, ev.StateLoaded)) and event.owner == "module":
        modules.add(event.ident)
        if isinstance(event, ev.StateLoaded) and event.origin_ident is not None:
            modules.add(event.origin_ident)
    return Mentions(frozenset(tensors), frozenset(modules))


def _collect(value: Any, owner: type, tensors: set[int], modules: set[int]) -> None:
    for field in fields(value):
        inner = getattr(value, field.name)
        kind = _kind(field.name, owner)
        if kind is not None:
            (tensors if kind == "tensor" else modules).update(_numbers(inner))
        else:
            for part in inner if isinstance(inner, tuple) else (inner,):
                if is_dataclass(part) and not isinstance(part, (type, Site)):
                    _collect(part, owner, tensors, modules)


def _kind(name: str, owner: type) -> str | None:
    """Which objects a field numbers: "tensor", "module" or None."""
    if name in _TENSORS:
        return "tensor"
    if name in _MODULES:
        return "module"
    if name in _FROM_TO:
        return "tensor" if owner is ev.StorageShared else "module"
    if name == "replaced":
        return "tensor" if owner is ev.TensorRegistered else "module"
    return None


def _numbers(value: Any) -> Iterable[int]:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _numbers(part)


def describe(event: ev.Event, world: World) -> str:
    """One line of words; names are those that `world` knows."""
    phrase = _PHRASES.get(type(event))
    text = phrase(event, world) if phrase is not None else _fields(event, world)
    return f"{text} (stands for {event.weight})" if event.weight > 1 else text


def _fields(event: Any, world: World) -> str:
    parts = []
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name in _HIDDEN or value is None or value is False or value == "" or value == ():
            continue
        parts.append(f"{field.name.replace('_', ' ')} {_shown(value, _kind(field.name, type(event)), world)}")
    return ", ".join(parts)


def _shown(value: Any, kind: str | None, world: World) -> str:
    if kind == "tensor":
        return world.names(_numbers(value), limit=2)
    if kind == "module":
        return ", ".join(world.module_name(n) for n in list(_numbers(value))[:3])
    if isinstance(value, Site):
        return f"line {value.line}" if value.file else "unknown"
    if isinstance(value, bool):
        return "yes"
    if isinstance(value, float):
        return number(value)
    if is_dataclass(value) and not isinstance(value, type):
        return f"({_fields(value, world)})"
    if isinstance(value, tuple):
        shown = ", ".join(_shown(v, None, world) for v in value[:3])
        return f"[{shown}{', ...' if len(value) > 3 else ''}]"
    return str(value)


# ------------------------------------------------------------------------------------------- phrases


def _started(e: ev.RunStarted, w: World) -> str:
    return f"{' '.join([e.program, *e.argv])} (torch {e.torch or '?'}, python {e.python or '?'})"


def _ended(e: ev.RunEnded, w: World) -> str:
    error = f", {e.exception}: {e.message}" if e.exception else ""
    return f"exit code {e.exit_code}, {times(e.steps, 'step')}, {e.backwards} reverse passes{error}"


def _made(e: ev.ModuleMade, w: World) -> str:
    return f"{w.module_name(e.module)} ({e.cls.rpartition('.')[2]})"


def _attached(e: ev.ChildRegistered, w: World) -> str:
    return f"{w.module_name(e.parent)}.{e.name}" + (" replaces another" if e.replaced is not None else "")


def _registered(e: ev.TensorRegistered, w: World) -> str:
    frozen = "" if e.requires_grad or e.role != "parameter" else ", frozen"
    again = " replaces another" if e.replaced is not None else ""
    return f"{e.role} {w.name(e.tensor)} {list(e.shape)}{frozen}{again}"


def _optimizer(e: ev.OptimizerMade, w: World) -> str:
    groups = "; ".join(f"{times(len(g.tensors), 'tensor')}, lr {number(g.lr)}" for g in e.groups[:4])
    return f"{optimizer_label(w, e.optimizer)}: {groups}"


def _backward(e: ev.Backward, w: World) -> str:
    value = f" of loss {number(e.value)}" if e.value is not None else ""
    raised = f", raised {e.raised}" if e.raised else ""
    verb = "fills" if e.method == "backward" else "asks for"
    return f"pass {e.backward}{value} {verb} {w.names(e.leaves, limit=2) or 'nothing'}{raised}"


def _clear(e: ev.Clear, w: World) -> str:
    lost = [d for d in e.dropped if d.consumed == 0 and not d.read]
    unused = f", {times(len(lost), 'pass')} thrown away unused" if lost else ""
    return f"{e.how} empties {w.names(e.tensors, limit=2) or 'nothing'}{unused}"


def _step(e: ev.Step, w: World) -> str:
    counts: dict[str, int] = {}
    for life in e.lives:
        old = sum(f.consumed > 0 for f in life.fills)
        word = "frozen" if life.frozen else life.grad
        if word == "filled":
            word = f"filled by {times(len(life.fills) + life.omitted, 'pass')}" + (
                f" ({old} used before)" if old else ""
            )
        counts[word] = counts.get(word, 0) + len(life.tensors)
    told = ", ".join(f"{n} {word}" for word, n in counts.items())
    return f"{optimizer_label(w, e.optimizer)}, step {e.index}: {told or 'no tensors'}"


def _measured(e: ev.StepMeasured, w: World) -> str:
    total = sum(g * g for g in e.gradients) ** 0.5
    return f"{optimizer_label(w, e.optimizer)}: gradient norm {number(total)} over {times(len(e.tensors), 'tensor')}"


def _clip(e: ev.Clip, w: World) -> str:
    norm = f", norm was {number(e.total_norm)}" if e.total_norm is not None else ""
    return f"{e.method} to {number(e.limit)}: {len(e.tensors)} of {e.given} have a gradient{norm}"


def _copied(e: ev.Copied, w: World) -> str:
    tau = f", tau {number(e.tau)}" if e.tau is not None else ""
    return f"{w.module_name(e.source)} → {w.module_name(e.target)} by {e.how}{tau}, {times(len(e.pairs), 'tensor')}"


def _deep(e: ev.DeepCopied, w: World) -> str:
    return f"{w.module_name(e.source)} → {w.module_name(e.target)}"


def _shared(e: ev.StorageShared, w: World) -> str:
    return f"{w.name(e.target)} has the memory of {w.name(e.source)} ({e.how})"


def _called(e: ev.ModuleCalled, w: World) -> str:
    mode = "train" if e.training else "eval"
    graph = "" if e.output_has_graph else ", no graph"
    return f"{w.module_name(e.module)} in {mode} mode, batch {e.batch}{graph}" + ("" if e.grad_on else ", no_grad")


def _mode(e: ev.ModeSet, w: World) -> str:
    return f"{w.module_name(e.module)} to {'train' if e.training else 'eval'}, {times(e.changed, 'module')} changed"


def _flag(e: ev.GradFlagSet, w: World) -> str:
    return f"requires_grad {e.value} on {w.names(e.tensors, limit=2)}"


def _compared(e: ev.Comparison, w: World) -> str:
    sides = [f"{s.op or '?'} {list(s.shape)}{'' if s.has_graph else ' without graph'}" for s in (e.left, e.right)]
    return f"{e.op}: {sides[0]} with {sides[1]}"


def _schedule(e: ev.SchedulerStep, w: World) -> str:
    return f"{optimizer_label(w, e.optimizer)}: lr {', '.join(number(lr) for lr in e.lrs[:4])}"


def _explained(e: ev.OracleExplained, w: World) -> str:
    said = oracle.sentence(e, w)
    return f"{optimizer_label(w, e.optimizer)}: {said}" + (" (not explained)" if e.fit == "none" else "")


def _abstained(e: ev.OracleAbstained, w: World) -> str:
    return f"not replayable: {e.what}" + (f" (line {e.where.line})" if e.where.file else "")


_PHRASES: dict[type[ev.Event], Callable[[Any, World], str]] = {
    ev.RunStarted: _started,
    ev.RunEnded: _ended,
    ev.ModuleMade: _made,
    ev.ChildRegistered: _attached,
    ev.TensorRegistered: _registered,
    ev.OptimizerMade: _optimizer,
    ev.Backward: _backward,
    ev.Clear: _clear,
    ev.Step: _step,
    ev.StepMeasured: _measured,
    ev.Clip: _clip,
    ev.Copied: _copied,
    ev.DeepCopied: _deep,
    ev.StorageShared: _shared,
    ev.ModuleCalled: _called,
    ev.ModeSet: _mode,
    ev.GradFlagSet: _flag,
    ev.Comparison: _compared,
    ev.SchedulerStep: _schedule,
    ev.OracleExplained: _explained,
    ev.OracleAbstained: _abstained,
}

__all__ = ["Mentions", "describe", "mentions"]
