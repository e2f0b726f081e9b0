"""Programs that update their leaves themselves, with no optimizer: gradients that were read and never cleared (G1).

The program reads `.grad`, the next reverse pass from the same line adds to the same leaves, and nothing empties them.
A gradient that the program changes in place (momentum kept in `.grad`) is its own business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gradledger.audit._source import source_lines
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Site

LISTENS: tuple[type[ev.Event], ...] = (ev.Backward, ev.Clear, ev.GradientsRead)
KEPT = 64  # lines of reverse passes
STALE = 5  # passes in a row that added to what was read
_CHANGED = re.compile(
    r"\.grad(\.data)?\s*(\*=|/=|\+=|-=|\.(mul|div|copy|lerp|add|sub|zero|fill)_\()"
    r"|\b_foreach_\w+_\(\s*[^,)]*\b(g|gs|grad|grads|gradients?)\b"  # what is written comes first
)


@dataclass(slots=True)
class Filled:
    """Reverse passes from one line over one set of leaves.  `stale`: those that added to what had been read."""

    site: Site
    leaves: frozenset[int]
    iteration: int
    passes: int = 0
    stale: int = 0
    read: Site = NOWHERE
    cleared: bool = False


@dataclass(slots=True)
class State:
    """By line and leaves."""

    filled: dict[tuple[tuple[str, int], frozenset[int]], Filled] = field(default_factory=dict)


def update(state: State, event: ev.Event, world: World) -> None:
    """Take in one event of `LISTENS`."""
    if world.optimizers:
        return
    if isinstance(event, ev.Backward):
        if event.method != "backward" or event.raised or not event.leaves:
            return
        leaves = frozenset(event.leaves)
        key = (event.site.key(), leaves)
        one = state.filled.get(key)
        if one is None:
            if len(state.filled) >= KEPT:
                return
            one = state.filled[key] = Filled(event.site, leaves, event.iteration)
        one.passes += event.weight
        one.stale += event.weight if one.read.file else 0
    elif isinstance(event, ev.Clear):
        for one in state.filled.values():
            one.cleared = one.cleared or not one.leaves.isdisjoint(event.tensors)
    elif isinstance(event, ev.GradientsRead):
        for one in state.filled.values():
            if not one.leaves.isdisjoint(event.tensors):
                one.read = event.site


def never_cleared(state: State, world: World) -> list[Filled]:
    """Lines whose gradients are used again and again, and only ever grow."""
    if world.optimizers:
        return []
    return [
        one for one in state.filled.values()
        if one.stale >= STALE and not one.cleared and not _changed(one)
    ]  # fmt: skip


def _changed(one: Filled) -> bool:
    """Whether the text writes into gradients in some other way."""
    return any(_CHANGED.search(line) for file in {one.site.file, one.read.file} for line in source_lines(file))
