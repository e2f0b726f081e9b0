"""Leaves that reverse passes fill again and again although no optimizer holds them (G12 and G17).

The record keeps a count of fills, clears and reads by leaf; leaves that were filled once and are gone (a fresh input
each iteration) are forgotten first.  Those of one line are counted together: each dies with its gradient, unread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit._orphans import classify
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Site

LISTENS: tuple[type[ev.Event], ...] = (ev.Backward, ev.Clear, ev.GradientsRead)
LEAVES_KEPT = 20_000
FEW = 3


@dataclass(slots=True)
class Filled:
    """One leaf.  `looked_at`: watched iterations that filled it, where reads are seen; `reads`: iterations in which the
    program read its gradient (an inner loop fills and reads many times in one); `asked`: iterations in which
    `autograd.grad` was asked for it; `calls`: the forward calls of the first watched fill; `alone`: fills by passes
    that reached nothing that an optimizer holds."""

    fills: int = 0
    alone: int = 0
    looked_at: int = 0
    clears: int = 0
    reads: int = 0
    asked: int = 0
    last_asked: int = -1
    last_read: int = -1
    last_looked: int = -1
    first: int = 0
    backward: Site = NOWHERE
    calls: tuple[ev.CallRef, ...] = ()

    @property
    def accumulates(self) -> bool:
        """Filled repeatedly, never cleared, neither read nor asked for as a habit: a picture made once is none."""
        return (
            self.fills >= FEW
            and 10 * self.clears <= self.fills
            and 5 * max(self.reads, self.asked) < max(self.looked_at, FEW)
        )

    @property
    def is_all_there_is(self) -> bool:
        """Whether no pass that filled it trained anything: its flag was there to let a loss without graph go through
        (G10)."""
        return self.alone == self.fills


@dataclass(slots=True)
class State:
    """`left`: of optimizers since whose last step another one was built."""

    leaves: OrderedDict[int, Filled] = field(default_factory=OrderedDict)
    left: dict[int, Filled] = field(default_factory=dict)


def update(state: State, event: ev.Event, world: World) -> None:
    """Take one event in."""
    if isinstance(event, ev.Backward):
        gone = over(world)
        alone = event.method == "backward" and not any(world.holders(tensor) for tensor in event.leaves)
        for tensor in event.leaves:
            holders = world.holders(tensor)
            if not holders:
                mine = _entry(state, tensor, event)
                mine.alone += alone
                _fill(mine, event)
            elif gone and gone.issuperset(holders) and (tensor in state.left or len(state.left) < LEAVES_KEPT):
                _fill(state.left.setdefault(tensor, Filled(first=event.iteration, backward=event.site)), event)
    elif isinstance(event, ev.Clear):
        for tensor in event.tensors:
            filled = state.leaves.get(tensor) or state.left.get(tensor)
            if filled is not None:
                filled.clears += 1
    elif isinstance(event, ev.GradientsRead):
        for tensor in event.tensors:
            filled = state.leaves.get(tensor) or state.left.get(tensor)
            if filled is not None and filled.last_read != event.iteration:
                filled.reads += 1
                filled.last_read = event.iteration


def over(world: World) -> set[int]:
    """Optimizers since whose last step another one was built that steps."""
    made = max((o.made_seq for o in world.optimizers.values() if o.steps), default=0)
    return {o.ident for o in world.optimizers.values() if o.last_step is not None and o.last_step.seq < made}


def _entry(state: State, tensor: int, event: ev.Backward) -> Filled:
    filled = state.leaves.get(tensor)
    if filled is None:
        if len(state.leaves) >= LEAVES_KEPT:
            _forget(state)
        filled = state.leaves[tensor] = Filled(first=event.iteration, backward=event.site)
    return filled


def _fill(filled: Filled, event: ev.Backward) -> None:
    if event.method != "backward":  # autograd.grad with respect to this leaf: its gradients are wanted
        if filled.last_asked != event.iteration:
            filled.asked += 1
            filled.last_asked = event.iteration
        return
    filled.fills += 1
    if event.detailed and filled.last_looked != event.iteration:
        filled.looked_at += 1
        filled.last_looked = event.iteration
    if event.detailed and not filled.calls:
        filled.calls = event.calls


def _forget(state: State) -> None:
    once = [t for t, f in state.leaves.items() if f.fills <= 1]
    for tensor in once[: len(once) // 2] or list(state.leaves)[: LEAVES_KEPT // 2]:
        del state.leaves[tensor]


def accumulating(state: State, world: World, code: str) -> Iterator[tuple[int, Filled]]:
    """Leaves that accumulate, are held by nobody at the end either, and are this code's to tell."""
    if not any(o.steps >= FEW for o in world.optimizers.values()):
        return
    told = set()
    for tensor, filled in state.leaves.items():
        if filled.accumulates and classify(tensor, world) == code and not (code == "G17" and filled.is_all_there_is):
            told.add(made_at(tensor, world).key())
            yield tensor, filled
    if code == "G17":
        yield from ((t, f) for t, f in _fresh(state, world) if made_at(t, world).key() not in told)


def made_at(tensor: int, world: World) -> Site:
    """Where a leaf was given its flag, or was made with it."""
    info = world.tensor(tensor)
    return info.unfrozen_site if info.unfrozen_site.file else info.site


def _fresh(state: State, world: World) -> Iterator[tuple[int, Filled]]:
    """Leaves that one line makes anew each time, added up."""
    lines: dict[tuple[str, int], tuple[int, Filled]] = {}
    for tensor, filled in state.leaves.items():
        site = made_at(tensor, world)
        if filled.accumulates or not site.file or classify(tensor, world) != "G17":
            continue
        _, whole = lines.setdefault(site.key(), (tensor, Filled(first=filled.first, backward=filled.backward)))
        for name in ("fills", "alone", "looked_at", "clears", "reads", "asked"):
            setattr(whole, name, getattr(whole, name) + getattr(filled, name))
    yield from (pair for pair in lines.values() if pair[1].accumulates and not pair[1].is_all_there_is)
