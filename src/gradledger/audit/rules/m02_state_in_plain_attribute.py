"""# State is kept in a plain tensor attribute

## What it is
A tensor that the forward needs and that does not come from the constructor (statistics of the training data, a running
average, a random projection) hangs on the module as an ordinary attribute.  It is neither parameter nor buffer:
`state_dict()` does not save it, `.to()` does not move it.

## Why it matters
The reloaded model is another model.  It standardises with the values of its constructor and gives other outputs,
without any message: all keys matched.

## How it is found
At `load_state_dict`, plain tensors of the module that gave the state and of the module that took it are compared: all
registered tensors agree and such an attribute differs (error).  It may be a list of tensors, and a statistic that is
carried on: by forward in train mode, itself or in a method that it calls then, or by a method that the program calls
(`norm.update(x)`).  Or the state was written to a file without an attribute
that was set once, outside of constructor and forward, or drawn at random by the constructor (warning).  Or forward
carries it on under `if self.training`, and nothing is saved in this run (warning).  Or the program raised on the line
where such a tensor met parameters that were converted or moved.

## Near misses
- Constants that the constructor makes again, with the same values.
- Caches and hidden state that the forward itself replaces.  (A statistic that it carries on from its own last value,
  and in train mode only, is no cache.)
- Noise that is drawn anew all the time.
- Weights taken over from a model of another class (pretraining), which had constants of its own.

## Fix
`self.register_buffer("mean", torch.zeros(d))`, and `self.mean.copy_(...)` where it is set.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from gradledger.audit import _resumes
from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._loops import calls_at, enclosing_function
from gradledger.audit._phrases import distinct
from gradledger.audit._source import source_line
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, FileTouched, PlainAttribute, PlainAttributes, StateLoaded, StateTaken
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "M2",
    "state-in-plain-attribute",
    "modules",
    "A tensor that forward needs is neither buffer nor parameter: a reload silently loses it.",
)
LISTENS = (PlainAttributes, StateTaken, StateLoaded, FileTouched)
_LEFT_BEHIND = re.compile(
    r"same dtype|expected scalar type|same device|dtype.*to be|on different devices|on the same device"
)
_DRAWS = frozenset({"randn", "rand", "randint", "randperm", "normal", "bernoulli", "rand_like", "randn_like"})
_BLENDS = frozenset({"lerp_", "mul_", "add_", "copy_", "div_", "sub_"})
OFTEN = 3  # values seen in the first three calls: drawn or updated all the time
KEPT = 4096


@dataclass(slots=True)
class Attribute:
    """One plain attribute of one module.  `values`: how many different tensors it was seen to hold; `set_at`: the
    latest line outside of `__init__` that made one; `made_at`: the first line."""

    module: int
    latest: PlainAttribute
    made_at: Site
    set_at: Site = NOWHERE
    values: int = 1
    in_forward: bool = False


@dataclass(slots=True)
class State:
    """By (module, name); loads whose plain attributes differ; states taken without one; lines that wrote files."""

    attributes: dict[tuple[int, str], Attribute] = field(default_factory=dict)
    differing: list[StateLoaded] = field(default_factory=list)
    taken: dict[int, StateTaken] = field(default_factory=dict)
    saved: list[FileTouched] = field(default_factory=list)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, PlainAttributes):
        for attribute in event.attributes:
            if attribute.kind in ("tensor", "tensors") and attribute.floating and len(state.attributes) < KEPT:
                _see(state, event.module, attribute)
    elif isinstance(event, StateLoaded):
        if event.owner == "module" and event.plain_differ and len(state.differing) < KEPT:
            state.differing.append(event)
    elif isinstance(event, StateTaken):
        if event.owner == "module" and event.missing and (event.ident in state.taken or len(state.taken) < KEPT):
            state.taken[event.ident] = event
    elif isinstance(event, FileTouched) and event.method == "save" and "module" in event.what:
        state.saved = [*state.saved[-8:], event]


def _see(state: State, module: int, attribute: PlainAttribute) -> None:
    outside = attribute.made_site.file and not attribute.made_in_init and not attribute.made_in_forward
    known = state.attributes.get((module, attribute.name))
    if known is None:
        known = state.attributes[module, attribute.name] = Attribute(module, attribute, attribute.made_site)
    elif known.latest.tensors != attribute.tensors:
        known.values += 1
        known.latest = attribute
    if outside:
        known.set_at = attribute.made_site
    known.in_forward = known.in_forward or attribute.made_in_forward


def finish(state: State, world: World) -> list[Finding]:
    found: dict[tuple[str, tuple[str, int]], Finding] = {}
    for finding in (
        *_lost_on_reload(state, world),
        *_left_out(state, world),
        *_left_behind(state, world),
        *_never_kept(state, world),
    ):
        found.setdefault((finding.subject.rpartition(".")[2], finding.site.key()), finding)
    return list(found.values())


def _lost_on_reload(state: State, world: World) -> Iterator[Finding]:
    for load in state.differing:
        if _resumes.another_kind(load, world):
            continue
        for path in load.plain_differ:
            taken = _find(state, load.origin_ident, path, world)
            given = _find(state, load.ident, path, world)
            source = taken or given
            name = source.latest.name if source is not None else ""
            kept = _kept_in_training(source, name) if source is not None else NOWHERE
            if source is not None and not kept.file:
                kept = _kept_by_method(source, name, world)
            if path.rpartition(".")[2].isdigit():
                path = path.rpartition(".")[0]  # one of a list
            if source is None or ((source.in_forward or source.values >= OFTEN) and not kept.file):
                continue
            if given is not None and (given.in_forward or given.set_at.file) and not kept.file:
                continue  # made anew by forward, or set again on the loaded module as well
            site = next((s for s in (source.set_at, source.made_at) if s.file), load.site)
            saved = state.saved[-1].site if state.saved else NOWHERE
            state_taken = state.taken.get(load.origin_ident) if load.origin_ident is not None else None
            out = state_taken.site if state_taken is not None else NOWHERE
            yield Finding(
                "M2",
                "error",
                site,
                f"`{path}` is a plain tensor: the state loaded on line {load.site.line} does not carry it, and after "
                f"the load its values differ from those of the model that was saved, although every key matched.",
                f'self.register_buffer("{name}", ...) in __init__, and self.{name}.copy_(...) where it is set',
                related=distinct(site, (source.made_at, kept, load.site, out, saved)),
                evidence={
                    "attribute": path,
                    "shape": list(source.latest.shape),
                    "keys_matched": load.matched,
                    "registered": False,
                    "differs_after_load": True,
                },
                subject=path,
                iteration=load.iteration,
            )


def _kept_in_training(known: Attribute, name: str) -> Site:
    """Where the program carries a statistic on, in train mode only: `if self.training: self.mean = 0.9 * self.mean +
    ...`.  NOWHERE for what forward makes anew, and for a state that it carries on in either mode."""
    file = known.latest.made_site.file or known.made_at.file
    tree = parsed(file) if file else None
    for test in walk(tree) if tree is not None else ():
        if not isinstance(test, ast.If) or not any(
            isinstance(n, ast.Attribute) and n.attr == "training" for n in walk(test.test)
        ):
            continue
        for node in (n for part in test.body for n in walk(part)):
            if isinstance(node, ast.AugAssign) and _is_own(node.target, name):
                return Site(file, node.lineno, "forward")
            if isinstance(node, ast.Assign) and any(_is_own(t, name) for t in node.targets):
                if any(_is_own(n, name) for n in walk(node.value)):
                    return Site(file, node.lineno, "forward")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _BLENDS:
                if any(_is_own(n, name) for n in walk(node.func.value)):
                    return Site(file, node.lineno, "forward")
            if tree is not None and isinstance(node, ast.Call) and _is_own(node.func, last_name(node.func)):
                called = _methods(tree).get(last_name(node.func))
                if called is not None and (line := _carries_on(called, name)) and _read_in_forward(tree, name):
                    return Site(file, line, called.name)
    return NOWHERE


def _kept_by_method(known: Attribute, name: str, world: World) -> Site:
    """Where a method that the program calls carries a statistic on that forward reads.  What it computes with
    parameters or submodules is no statistic but a state."""
    site = known.set_at
    tree = parsed(site.file) if site.file else None
    method = enclosing_function(site.file, site.line) if tree is not None else None
    if tree is None or not isinstance(method, ast.FunctionDef) or not _read_in_forward(tree, name):
        return NOWHERE
    info = world.module(known.module)
    read = {n.attr for n in walk(method) if isinstance(n, ast.Attribute) and _is_own(n, n.attr)}
    line = 0 if read & (info.tensors.keys() | info.children.keys()) else _carries_on(method, name)
    return Site(site.file, line, method.name) if line else NOWHERE


def _methods(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {n.name: n for n in walk(tree) if isinstance(n, ast.FunctionDef)}


def _carries_on(method: ast.FunctionDef, name: str) -> int:
    """The line where a method assigns `self.<name>` from a value that it carries on: its own, or another."""
    found = 0
    own: set[str] = set()  # carried on from their own values
    for node in walk(method):
        if not isinstance(node, (ast.Assign, ast.AugAssign)):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        given = {n.attr for t in targets for n in walk(t) if isinstance(n, ast.Attribute) and _is_own(n, n.attr)}
        read = {n.attr for n in walk(node.value) if isinstance(n, ast.Attribute) and _is_own(n, n.attr)}
        own |= given if isinstance(node, ast.AugAssign) or given & read else set()
        if name in given:
            found = node.lineno if name in own or read & own else 0
    return found


def _read_in_forward(tree: ast.Module, name: str) -> bool:
    return any(
        _is_own(n, name)
        for function in walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name == "forward"
        for n in walk(function)
    )


def _is_own(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.value, ast.Name)


def _left_out(state: State, world: World) -> Iterator[Finding]:
    """Saved to a file without it; nothing was loaded in this run."""
    if not state.saved or state.differing:
        return
    for ident, taken in state.taken.items():
        for path in taken.missing:
            known = _find(state, ident, path, world)
            if known is None or known.in_forward or known.values >= OFTEN or path.rpartition(".")[2].isdigit():
                continue  # (a list is told by the values after a load only)
            drawn = not known.set_at.file and _drawn_at(known.made_at)
            if not known.set_at.file and not drawn:
                continue
            if known.latest.requires_grad or not world.trained_module(world.root(ident)):
                continue
            name = path.rpartition(".")[2]
            site = known.made_at if drawn else known.set_at
            what = "is drawn at random here" if drawn else "is set here from outside the constructor"
            more = "here" if drawn else "in __init__, and self." + name + ".copy_(...) here"
            yield Finding(
                "M2",
                "warning",
                site,
                f"`{path}` {what} and is a plain tensor: the state written on line {state.saved[-1].site.line} does "
                "not carry it, so a reload gives another model.",
                f'self.register_buffer("{name}", ...) {more}',
                related=distinct(site, (known.made_at, taken.site, state.saved[-1].site)),
                evidence={"attribute": path, "shape": list(known.latest.shape), "registered": False},
                confidence="likely",
                subject=path,
                iteration=taken.iteration,
            )


def _never_kept(state: State, world: World) -> Iterator[Finding]:
    """A statistic that forward carries on in train mode and reads in eval mode; this run loads nothing, and what it
    saves, if anything, is without it."""
    if state.differing:
        return
    for (module, name), known in state.attributes.items():
        if state.taken and (not _is_missing(state, module, name, world) or _kept_beside(known, name)):
            continue
        kept = _kept_in_training(known, name)
        if not kept.file or known.latest.requires_grad or not world.trained_module(world.root(module)):
            continue
        path = f"{world.module_name(module)}.{name}"
        site = known.made_at if known.made_at.file else kept
        yield Finding(
            "M2",
            "warning",
            site,
            f"`{path}` is carried on in train mode (line {kept.line}) and is a plain tensor: `state_dict()` does not "
            "hold it and `.to()` does not move it, so a saved model is another one than this.",
            f'self.register_buffer("{name}", ...) in __init__, and self.{name}.copy_(...) where it is set',
            related=distinct(site, (kept, *(file.site for file in state.saved[-1:]))),
            evidence={"attribute": path, "shape": list(known.latest.shape), "registered": False},
            confidence="likely",
            subject=path,
        )


def _is_missing(state: State, module: int, name: str, world: World) -> bool:
    """Whether a file was written with a state that should hold the attribute, and does not."""
    return bool(state.saved) and any(
        _find(state, ident, path, world) is state.attributes[module, name]
        for ident, taken in state.taken.items()
        for path in taken.missing
    )


def _kept_beside(known: Attribute, name: str) -> bool:
    """Whether the program reads the attribute from outside, as to save it beside the state, or adds to the state."""
    file = known.made_at.file or known.latest.made_site.file
    tree = parsed(file) if file else None
    nodes = walk(tree) if tree is not None else ()
    methods = {id(n.func) for n in nodes if isinstance(n, ast.Call)}  # x.mean()
    return any(
        (isinstance(n, ast.FunctionDef) and n.name in ("get_extra_state", "state_dict"))
        or (_is_read(n, name) and id(n) not in methods and last_name(n.value) not in ("self", "cls"))
        for n in nodes
    )


def _is_read(node: ast.AST, name: str) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)


def _drawn_at(site: Site) -> bool:
    """Whether a line draws from a generator that nobody put into a known state there."""
    calls = calls_at(site.file, site.line) if site.file else []
    return any(
        last_name(call.func) in _DRAWS and not any(k.arg == "generator" for k in call.keywords) for call in calls
    )


def _left_behind(state: State, world: World) -> Iterator[Finding]:
    """The program raised where a plain tensor met parameters that `.to()` had converted or moved."""
    ended = world.ended
    if ended is None or not ended.exception or not ended.frames or _LEFT_BEHIND.search(ended.message) is None:
        return
    for frame in reversed(ended.frames[-2:]):
        line = source_line(frame.file, frame.line)
        for (module, name), known in state.attributes.items():
            info = world.module(module)
            if known.in_forward or not known.made_at.file or not re.search(rf"\bself\.{re.escape(name)}\b", line):
                continue
            path = f"{world.module_name(module)}.{name}"
            raised = Site(frame.file, frame.line, frame.function)
            site = known.set_at if known.set_at.file else known.made_at
            yield Finding(
                "M2",
                "error",
                site,
                f"`{path}` is a plain tensor: `.to()` and its like convert and move parameters and buffers only, and "
                f"line {frame.line} raised where it met them.",
                f'self.register_buffer("{name}", ...)',
                related=distinct(site, (raised, info.site)),
                evidence={"attribute": path, "shape": list(known.latest.shape), "registered": False},
                subject=path,
                iteration=ended.iteration,
            )
            return


def _find(state: State, root: int | None, path: str, world: World) -> Attribute | None:
    """The attribute at a dotted path below a module."""
    if root is None:
        return None
    module = root
    *above, name = path.split(".")
    if name.isdigit() and above:
        name = above.pop()  # one of a list
    for part in above:
        child = world.module(module).children.get(part)
        if child is None:
            return None
        module = child
    return state.attributes.get((module, name))


def not_checked(state: State, world: World) -> str | None:
    if world.ended is not None and _LEFT_BEHIND.search(world.ended.message):
        return None
    known = state.taken or state.differing or state.saved or state.attributes
    return None if known else "no module keeps a plain tensor, and no state was saved or loaded"
