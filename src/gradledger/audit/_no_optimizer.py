"""Leaves that reverse passes fill although no optimizer holds them: how often, since when, from which line.

Shared by the rules that each own one reason for it (`_orphans.classify` says which).  Memory is bounded: reverse passes
that wrote the same leaves share one entry, the entries least recently used are dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from gradledger.audit import _orphans
from gradledger.audit.world import OptimizerInfo, World
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Site

LISTENS: tuple[type[ev.Event], ...] = (ev.Backward, ev.Clear, ev.GradientsRead)
LEAF_SETS_KEPT = 256
BY_HAND_KEPT = 4096


@dataclass(slots=True)
class Reached:
    """Reverse passes that wrote one set of leaves.  `iterations`: distinct ones; `site`, `iteration`: of the first."""

    site: Site
    iteration: int
    count: int = 0
    iterations: int = 0
    last_iteration: int = -1


@dataclass(slots=True)
class State:
    """`reached`: by the set of leaves; `cleared`, `read`: leaves whose gradient was cleared one by one, or read."""

    reached: OrderedDict[tuple[int, ...], Reached] = field(default_factory=OrderedDict)
    cleared: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Unheld:
    """One leaf that is filled and in no optimizer.  `fills`: reverse passes that wrote it; `iterations`: over how many
    optimizer steps; `site`: the first reverse pass."""

    tensor: int
    fills: int
    iterations: int
    iteration: int
    site: Site


def update(state: State, event: ev.Event, world: World) -> None:
    """Take in one event of `LISTENS`."""
    if isinstance(event, ev.Backward):
        if event.method != "backward" or not event.leaves:
            return
        seen = state.reached.get(event.leaves)
        if seen is None:
            seen = state.reached[event.leaves] = Reached(event.site, event.iteration)
            if len(state.reached) > LEAF_SETS_KEPT:
                state.reached.popitem(last=False)
        else:
            state.reached.move_to_end(event.leaves)
        seen.count += event.weight
        if event.iteration != seen.last_iteration:
            seen.iterations += event.weight
            seen.last_iteration = event.iteration
    elif isinstance(event, ev.Clear):
        if event.how in ("none", "zero") and len(state.cleared) < BY_HAND_KEPT:
            state.cleared.update(t for t in event.tensors if not world.holders(t))
    elif isinstance(event, ev.GradientsRead) and len(state.read) < BY_HAND_KEPT:
        state.read.update(t for t in event.tensors if not world.holders(t))


def unheld(state: State, world: World, code: str, *, together: bool = True) -> list[Unheld]:
    """Leaves whose reason is `code`: filled in two iterations at least and not updated by hand (read and cleared).

    `together`: only reverse passes count that fill something an optimizer holds as well; a pass through another model
    alone (importance weights, saliency) is no training.
    """
    total: dict[int, Unheld] = {}
    for leaves, seen in state.reached.items():
        if together and not any(world.holders(t) for t in leaves):
            continue
        for tensor in leaves:
            if world.holders(tensor) or (tensor in state.cleared and tensor in state.read):
                continue
            entry = total.get(tensor)
            if entry is None:
                total[tensor] = Unheld(tensor, seen.count, seen.iterations, seen.iteration, seen.site)
                continue
            entry.fills += seen.count
            entry.iterations += seen.iterations
            if seen.iteration < entry.iteration:
                entry.iteration, entry.site = seen.iteration, seen.site
    return [u for u in total.values() if u.iterations >= 2 and _orphans.classify(u.tensor, world) == code]


def unfrozen_too_late(state: State, world: World) -> dict[int, tuple[Unheld, OptimizerInfo]]:
    """Leaves that only an optimizer of an earlier stage holds, which never steps again, and that were unfrozen after
    the one that steps now was built: with that one."""
    found: dict[int, tuple[Unheld, OptimizerInfo]] = {}
    for leaves, seen in state.reached.items():
        holders = {i for t in leaves for i in world.holders(t)}
        busy = [o for o in map(world.optimizer, holders) if _last(o) >= seen.iteration]
        if not busy or seen.iterations < 2:
            continue
        for tensor in leaves:
            own = [world.optimizer(i) for i in world.holders(tensor)]
            late = world.tensor(tensor).unfrozen_seq
            if late is None or not own or not all(0 <= _last(o) < seen.iteration for o in own):
                continue
            if late > max(o.made_seq for o in busy):
                entry = Unheld(tensor, seen.count, seen.iterations, seen.iteration, seen.site)
                found[tensor] = entry, max(busy, key=lambda o: o.steps)
    return found


def _last(optimizer: OptimizerInfo) -> int:
    """The iteration of the last step; -1 when there was none."""
    return optimizer.last_step.iteration if optimizer.last_step is not None else -1


def kept_in(tensor: int, world: World) -> tuple[int, ev.PlainAttribute] | None:
    """(module, attribute) in which an unregistered tensor is kept, alone or in a list or dict of tensors."""
    for module in world.modules.values():
        for attribute in module.plain:
            if tensor in attribute.tensors and attribute.kind in ("tensor", "tensors"):
                return module.ident, attribute
    return None


def by_line(leaves: list[Unheld], place: Callable[[int], Site]) -> list[tuple[Site, list[Unheld]]]:
    """Leaves grouped by the line `place(tensor)`, in order."""
    groups: dict[tuple[str, int], tuple[Site, list[Unheld]]] = {}
    for leaf in leaves:
        site = place(leaf.tensor)
        groups.setdefault(site.key(), (site, []))[1].append(leaf)
    return list(groups.values())


def optimizer_of(tensor: int, world: World) -> OptimizerInfo | None:
    """The optimizer that ought to hold the tensor: one over the rest of its model, else the busiest of the run."""
    close = _orphans.siblings_optimizers(tensor, world)
    pool = close or [o for o in world.optimizers.values() if o.steps > 0]
    return max(pool, key=lambda o: (o.steps, -o.ident)) if pool else None


def step_site(optimizer: OptimizerInfo | None) -> Site:
    """Where the optimizer steps; NOWHERE when it never did."""
    return optimizer.last_step.site if optimizer is not None and optimizer.last_step is not None else NOWHERE
