"""Loaders whose name says that their rows are held out, and which are trained on all the same, batch by batch."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._evaluation import words
from gradledger.audit._met import HELD, TRAINED
from gradledger.audit.world import LoaderInfo, World
from gradledger.core.events import Event, LoaderEpoch, ModuleCalled, Step
from gradledger.core.site import Site

KEPT = 256
FEW = 3  # batches of a pass
STEPPED = 0.8  # of the batches of a pass


@dataclass(slots=True)
class Walked:
    """Steps of one optimizer in the passes over one loader.  `began`: its first step in the pass under way (all by the
    numbers that steps carry, so that a record with gaps gives the same); `most`: in one pass; `site`: the first."""

    site: Site
    epoch: int
    began: int
    most: int = 0


@dataclass(slots=True)
class Passes:
    """By loader and optimizer; the pass under way; loaders in whose passes something was asked without a graph: steps
    after such a pass may belong to an iterator that was begun long before."""

    walked: dict[tuple[int, int], Walked] = field(default_factory=dict)
    judged: set[int] = field(default_factory=set)
    begun: LoaderEpoch | None = None


def update(state: Passes, event: Event) -> None:
    """Take a pass that begins, a call or a step."""
    if isinstance(event, LoaderEpoch):
        state.begun = event
    elif isinstance(event, ModuleCalled):
        if not event.grad_on and state.begun is not None and len(state.judged) < KEPT:
            state.judged.add(state.begun.loader)
    elif isinstance(event, Step) and state.begun is not None:
        key = state.begun.loader, event.optimizer
        one = state.walked.get(key)
        if one is None:
            if len(state.walked) >= KEPT:
                return
            one = state.walked[key] = Walked(event.site, state.begun.epoch, event.index)
        if one.epoch != state.begun.epoch:
            one.epoch, one.began = state.begun.epoch, event.index
        one.most = max(one.most, event.index - one.began + 1)


def trained_on(state: Passes, world: World) -> list[tuple[LoaderInfo, Walked]]:
    """Loaders that are called validation, of which an optimizer steps through whole passes; it does so through another
    loader, too (a search that trains its own parameters on validation rows has an optimizer for that)."""
    found = []
    for (loader, optimizer), one in state.walked.items():
        info = world.loaders.get(loader)
        if info is None or loader in state.judged or info.made.length < FEW:
            continue
        if not STEPPED * info.made.length <= one.most <= info.made.length:
            continue
        others = [w for (n, o), w in state.walked.items() if n != loader and o == optimizer and w.most >= FEW]
        named = _named(info.made.site)
        if others and named & HELD and not named & TRAINED:
            found.append((info, one))
    return found


def _named(site: Site) -> set[str]:
    """Words of the name that a line gives to the loader which it builds: a variable, an argument, a key."""
    tree = parsed(site.file) if site.file else None
    for node in walk(tree) if tree is not None else ():
        pairs: list[tuple[str, ast.expr]] = []
        if isinstance(node, ast.Dict):
            keyed = zip(node.keys, node.values, strict=True)
            pairs = [(str(k.value), v) for k, v in keyed if isinstance(k, ast.Constant)]
        elif isinstance(node, ast.Assign):
            pairs = [(last_name(t), node.value) for t in node.targets]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = [(last_name(t), v) for t, v in zip(node.targets[0].elts, node.value.elts, strict=False)]
        elif isinstance(node, ast.keyword) and node.arg:
            pairs = [(node.arg, node.value)]
        for name, value in pairs:
            inside = value.lineno <= site.line <= (value.end_lineno or value.lineno)
            if inside and not isinstance(value, (ast.Dict, ast.Lambda)) and words(name) & (HELD | TRAINED):
                return words(name)
    return set()
