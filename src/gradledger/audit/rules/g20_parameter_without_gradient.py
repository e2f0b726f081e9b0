"""# A parameter in the optimizer never receives a gradient

## What it is
A module is built and its parameters are handed to the optimizer, but no backward of the whole run reaches them while
others are reached: forward never calls the module, or calls it and its output leaves the graph before the loss.

## Why it matters
The parameters stay at their initial values.  A layer that was meant to be there is not, or a part of the model that
was meant to learn does not; weight decay may even shrink it.

## How it is found
At every step the ledger sees which of the optimizer's tensors hold a gradient.  A tensor that never did over ten
steps that used others, of this optimizer or of those beside it, and that required grad all the time, is reported with
the line where its module was built, and
with the line where it runs or leaves the graph, if it does.

## Near misses
- Frozen groups kept in the optimizer.
- Experts, heads and layers that are used in some steps only; members of a container of equal siblings that happen not
  to be used are an `info` at most.
- Parameters that the program moves itself with results of `torch.autograd.grad` (a natural gradient, a line search).
- A loss of derivatives only (score matching, forces from an energy): what is merely added to the differentiated value,
  the last bias, drops out by the mathematics.
- Layers that were replaced: GL-M04 and GL-M05 speak of them.

## Fix
Call the module in forward, or delete it; where its output is detached, detach only the copy that is meant to be.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field

from gradledger.audit._code import parsed, walk
from gradledger.audit._cuts import cut_after
from gradledger.audit._cycle import has_gradient
from gradledger.audit._loops import enclosing_function
from gradledger.audit._phrases import distinct, times, way_out
from gradledger.audit.rule import Finding, Rule, Severity
from gradledger.audit.world import World
from gradledger.core.events import Backward, Cut, Event, Step
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "G20",
    "parameter-without-gradient",
    "gradient lifecycle",
    "Parameters in an optimizer never receive a gradient over the run while others do.",
)
LISTENS: tuple[type[Event], ...] = (Step, Backward)
ENOUGH = 10
TERMS = 16
CONTAINERS = ("ModuleList", "ModuleDict")


@dataclass(slots=True)
class _Watched:
    """One optimizer.  `waiting`: tensors without any gradient so far -> the used steps before they came; `used`:
    steps that found a gradient in some tensor, or came after one of another optimizer that did; `last`: iteration of
    the latest; `beside`: such steps of all optimizers when it last stepped."""

    waiting: dict[int, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    used: int = 0
    last: int = 0
    beside: int = 0
    step: Site = NOWHERE


@dataclass(slots=True)
class State:
    """`filled`: every tensor that some reverse pass wrote a gradient into, used by a step or not, or whose gradient the
    program asked autograd.grad for.  `differentiated`: tensors -> sets of tensors under one value that the program
    differentiated with `create_graph`: a loss of that derivative does not depend on what the value only adds."""

    optimizers: dict[int, _Watched] = field(default_factory=dict)
    filled: set[int] = field(default_factory=set)
    differentiated: dict[int, tuple[int, ...]] = field(default_factory=dict)
    latest: tuple[int, ...] = ()
    cuts: dict[int, Cut] = field(default_factory=dict)
    terms: dict[tuple[str, int], Site] = field(default_factory=dict)  # lines that called what made terms of a loss
    used: int = 0  # steps of all optimizers that found a gradient


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Step):
        _step(state, state.optimizers.setdefault(event.optimizer, _Watched(beside=state.used)), event)
    elif isinstance(event, Backward):
        if event.method == "backward" and event.leaves != state.latest:
            state.latest = event.leaves
            state.filled.update(t for t in event.leaves if world.holders(t))
        if event.method == "grad":  # asked for by name: the program applies the result itself
            state.filled.update(set(event.leaves).intersection(event.reached))
            if event.create_graph and not event.raised:
                for tensor in event.reached:
                    state.differentiated.setdefault(tensor, event.reached)
        for term in event.terms:
            if term.has_graph and len(state.terms) < TERMS:
                state.terms.update((site.key(), site) for site in term.site.above(1))
            if term.cut is not None:
                for tensor in term.depends:
                    state.cuts.setdefault(tensor, term.cut)


def _step(state: State, watched: _Watched, event: Step) -> None:
    found, beside = has_gradient(event), state.used > watched.beside
    state.used += found
    watched.beside = state.used
    if not found and not beside:
        return
    if sum(len(life.tensors) for life in event.lives) != len(watched.seen):
        for life in event.lives:
            for tensor in life.tensors:
                if tensor not in watched.seen:
                    watched.seen.add(tensor)
                    watched.waiting[tensor] = watched.used
    watched.used += 1
    watched.last, watched.step = event.iteration, event.site
    if not watched.waiting:
        return
    for life in event.lives:
        if life.frozen or life.moved or life.grad in ("filled", "assigned"):
            for tensor in life.tensors:
                watched.waiting.pop(tensor, None)


def finish(state: State, world: World) -> list[Finding]:
    findings: list[Finding] = []
    for ident, watched in state.optimizers.items():
        silent = [
            t for t, since in watched.waiting.items()
            if watched.used - since >= ENOUGH and t not in state.filled and not _replaced(t, watched.last, world)
            and state.filled.isdisjoint(state.differentiated.get(t, ()))
        ]  # fmt: skip
        targets = _targets(set(silent), world)
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for tensor in silent:
            if tensor in targets:
                continue
            groups[_top(tensor, set(silent), world)].append(tensor)
        findings += [_finding(ident, watched, module, tensors, state, world) for module, tensors in groups.items()]
    return findings


def _targets(silent: set[int], world: World) -> set[int]:
    """Tensors of networks that follow others by copies and are to get no gradient: GL-T02 speaks of these."""
    found: set[int] = set()
    for link in world.all_copies():
        tensors = set(world.tensors_of(link.first.target))
        if link.first.source != link.first.target and tensors and tensors <= silent:
            found |= tensors
    return found


def _replaced(tensor: int, last: int, world: World) -> bool:
    """Whether the tensor left its model: replaced, its owners freed, or in a module that was taken out."""
    info = world.tensor(tensor)
    if not info.numel or info.replaced_by is not None:
        return True
    if not info.owners:
        return bool(info.former)
    live = [m for m in world.owners(tensor) if not _freed_before(m, last, world)]
    if not live:
        return True
    roots = {world.root(m) for m in live}
    return all(world.module(r).attached_seq > 0 for r in roots)


def _freed_before(module: int, last: int, world: World) -> bool:
    freed = world.module(module).freed_iteration
    return freed is not None and freed <= last


def _top(tensor: int, silent: set[int], world: World) -> int:
    """The outermost module all of whose parameters are silent; -tensor for one that no module owns."""
    owners = world.owners(tensor)
    if not owners:
        return -tensor
    top = owners[0]
    if not silent.issuperset(world.tensors_of(top)):
        return -tensor  # others of it, or of the modules within, do receive one
    for module in world.ancestors(top):
        if not silent.issuperset(world.tensors_of(module)) or world.module(module).short_cls in CONTAINERS:
            break
        top = module
    return top


def _optional(module: int, silent: list[int], world: World) -> bool:
    """Whether the module is one of several equal members of a container, of which others do receive gradients."""
    for current in (module, *world.ancestors(module)):
        for parent in world.parents(current):
            info = world.module(parent)
            if info.short_cls not in CONTAINERS:
                continue
            others = [c for c in info.children.values() if c != current]
            alike = [c for c in others if _signature(c, world) == _signature(current, world)]
            if info.short_cls == "ModuleDict":
                alike = others
            if any(not set(world.tensors_of(c)) & set(silent) for c in alike):
                return True
    return False


def _reentrant(file: str) -> list[Site]:
    """Lines of the file that checkpoint in the old way, which walks nothing where no input requires grad."""
    calls = [n for n in walk(parsed(file) or ast.Module([], [])) if isinstance(n, ast.Call)]
    return [
        Site(file, call.lineno, "")
        for call in calls
        for word in call.keywords
        if word.arg == "use_reentrant" and isinstance(word.value, ast.Constant) and word.value.value is True
    ][:2]


def _signature(module: int, world: World) -> tuple[str, tuple[tuple[int, ...], ...]]:
    return (world.module(module).cls, tuple(world.tensor(t).shape for t in world.tensors_of(module)))


def _finding(
    ident: int, watched: _Watched, module: int, tensors: list[int], state: State, world: World
) -> Finding:  # fmt: skip
    optimizer = world.optimizer(ident)
    owner = module if module > 0 else next(iter(world.owners(-module)), 0)
    whole = module > 0
    name = world.module_name(module) if whole else world.name(-module)
    made = NOWHERE if whole else world.tensor(-module).site
    built = world.module(owner).site if owner else made
    cut = next((state.cuts[t] for t in tensors if t in state.cuts), None)
    ran = [m for m in world.descendants(owner) if world.module(m).used_site.file] if owner else []
    ran_at = world.module(ran[0]).used_site if ran else NOWHERE
    optional = owner and _optional(owner, list(watched.waiting), world)
    severity: Severity = "info" if optional else "error" if cut is not None or ran else "warning"
    steps = watched.used
    reads: list[tuple[str, Site]] = []
    places: list[Site] = []
    if cut is not None:
        site = cut.site if cut.site.file else built
        why = f"it runs, but its output leaves the graph by {way_out(cut)} on line {cut.site.line}"
        fix = f"let the gradient through on line {cut.site.line}, or take {name} out of the optimizer"
    elif ran:
        site = made if made.file else ran_at
        what = "it" if whole else f"`{world.module_name(owner)}`"
        why = f"{what} runs on line {ran_at.line}, but no loss is reached from there by the graph"
        reads = _reads(owner, tensors, ran_at.file, world)
        if reads:
            why += f" ({', '.join(f'`self.{name}` is read on line {at.line}' for name, at in reads)})"
        fix = f"look for a detach, .data, no_grad or an unused output between {name} and the loss"
        reentrant = _reentrant(ran_at.file)
        if reentrant:
            why += f"; checkpoint on line {reentrant[0].line} hands none on where no input requires grad"
            fix = f"pass use_reentrant=False on line {reentrant[0].line}; else {fix}"
        function = enclosing_function(ran_at.file, ran_at.line)
        places = cut_after(ran_at) or ([Site(ran_at.file, function.lineno, function.name)] if function else [])
        places += [*reentrant, *list(state.terms.values())[:3]]
    else:
        places = _walked_at(module, world) if whole else []
        site = built if built.file else watched.step
        why = "no forward pass calls it" if whole else "no forward pass uses it"
        fix = f"call {name} in forward, or delete it"
    return Finding(
        "G20",
        severity,
        site if site.file else optimizer.site,
        f"`{name}` is in the optimizer but received no gradient in {times(steps, 'step')}: {why}.",
        fix,
        related=distinct(
            site,
            (made, built, *(at for _, at in reads), ran_at, optimizer.site, watched.step, *built.above(1), *places),
        ),
        evidence={
            "tensors": len(tensors),
            "elements": sum(world.tensor(t).numel for t in tensors),
            "steps": steps,
            "called": bool(ran or cut),
        },
        count=len(tensors),
        subject=name,
    )


def _reads(module: int, tensors: list[int], file: str, world: World) -> list[tuple[str, Site]]:
    """Where the class of a module reads its own silent parameters, in the file in which it runs: name and line."""
    names = {world.name(t).rpartition(".")[2] for t in tensors if module in world.owners(t)}
    return _read_by(world.module(module).short_cls, names, file)


def _walked_at(module: int, world: World) -> list[Site]:
    """Where the class that holds a module, or the list that it is in, reads that attribute: a loop that ends before
    it, a branch that was not taken."""
    found: list[Site] = []
    for parent in world.parents(module):
        info = world.module(parent)
        if info.short_cls in CONTAINERS:
            found += _walked_at(parent, world)
        names = {name for name, child in info.children.items() if child == module}
        for file in dict.fromkeys((info.site.file, world.module(module).site.file)):
            found += [site for _, site in _read_by(info.short_cls, names, file)]
    return found[:3]


def _read_by(cls: str, names: set[str], file: str) -> list[tuple[str, Site]]:
    """Lines on which methods of a class, its constructor apart, read attributes of their own: name and line."""
    tree = parsed(file) if file else None
    found: dict[tuple[str, int], Site] = {}
    for node in walk(tree) if tree is not None and names else ():
        if not isinstance(node, ast.ClassDef) or node.name != cls:
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                for n in walk(method):
                    if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and n.attr in names:
                        if isinstance(n.value, ast.Name) and n.value.id == "self":
                            found.setdefault((n.attr, n.lineno), Site(file, n.lineno, method.name))
    return [(name, site) for (name, _), site in found.items()][:3]


def not_checked(state: State, world: World) -> str | None:
    if not any(w.used >= ENOUGH for w in state.optimizers.values()):
        return f"no optimizer made {ENOUGH} steps that used a gradient"
    return None
