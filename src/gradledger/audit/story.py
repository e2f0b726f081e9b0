"""What the pictures of a report are drawn from: the life of gradients, curves, what exists, where gradients flow.

`Storyteller` takes the events of a run in order, in bounded memory; `story()` is the result.  A *lane* is one parameter
group of one optimizer: what stands in its gradients is followed mark by mark (clear, fill, step).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gradledger.audit._bins import Curve, States
from gradledger.audit.flow import Flow, FlowWatch, optimizer_label
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import Site

FIRST = 8  # iterations whose marks are kept from the start
ALIKE = 3  # further iterations of one shape
MOST_ITERATIONS = 400
MOST_MARKS = 60  # of one lane in one iteration
MOST_LANES = 24
MOST_CURVES = 40
MOST_ROWS = 400


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to the gradients of a lane.  `what`: clear, fill, step; `standing`: contributions in them
    afterwards (before it, for a step), `old` of them consumed by an earlier step; `share`: part of the lane's tensors
    that it touched."""

    what: str
    site: Site
    standing: int
    old: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Lane:
    """`label`: "Adam 1, group 0"; `iterations`: marks of those that were kept, by number; `states`: of each step, over
    the whole run: "fresh", "several", "old", "empty"."""

    optimizer: int
    label: str
    tensors: int
    iterations: dict[int, tuple[Mark, ...]]
    states: States


@dataclass(frozen=True, slots=True)
class Series:
    """A curve with its name."""

    label: str
    curve: Curve


@dataclass(frozen=True, slots=True)
class Held:
    """An optimizer: its groups as (tensors, elements, learning rate, weight decay)."""

    label: str
    site: Site
    groups: tuple[tuple[int, int, float | None, float | None], ...]
    steps: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the registry.  `kind`: parameter, buffer, plain."""

    name: str
    kind: str
    shape: tuple[int, ...]
    requires_grad: bool
    optimizer: str


@dataclass(frozen=True, slots=True)
class Story:
    """Everything the pictures need.  `watched`: counts of facts by kind; `detailed`: iterations looked at in full."""

    lanes: tuple[Lane, ...] = ()
    losses: tuple[Series, ...] = ()
    rates: tuple[Series, ...] = ()
    gradients: tuple[Series, ...] = ()
    values: tuple[Series, ...] = ()
    updates: tuple[Series, ...] = ()
    optimizers: tuple[Held, ...] = ()
    unheld: tuple[str, ...] = ()
    registry: tuple[Entry, ...] = ()
    registry_left_out: int = 0
    flow: Flow | None = None
    watched: dict[str, int] = field(default_factory=dict)
    iterations: int = 0
    detailed: int = 0


class _Lane:
    def __init__(self, optimizer: int, group: int, tensors: tuple[int, ...]) -> None:
        self.optimizer, self.group, self.tensors = optimizer, group, frozenset(tensors)
        self.fills: list[list[int]] = []  # [backward, consumed]
        self.open: list[Mark] = []
        self.kept: dict[int, tuple[Mark, ...]] = {}
        self.shapes: Counter[tuple[tuple[object, ...], ...]] = Counter()
        self.states = States()
        self.last: tuple[int, tuple[Mark, ...]] | None = None
        self.follow = 0

    def share(self, tensors: Iterable[int]) -> float:
        return len(self.tensors.intersection(tensors)) / max(len(self.tensors), 1)

    def mark(self, what: str, site: Site, share: float = 1.0) -> None:
        if len(self.open) < MOST_MARKS:
            old = sum(consumed > 0 for _, consumed in self.fills)
            self.open.append(Mark(what, site, len(self.fills), old, share))

    def close(self, iteration: int) -> None:
        """The iteration is over: keep its marks when they are early or of a new shape, and those around them."""
        marks, self.open = tuple(self.open), []
        if not marks:
            return
        shape = tuple((m.what, m.site.line, min(m.standing, 9), min(m.old, 9)) for m in marks)
        self.shapes[shape] += 1
        new = self.shapes[shape] <= ALIKE and len(self.shapes) < 64
        if len(self.kept) < MOST_ITERATIONS and (len(self.kept) < FIRST or new or self.follow > 0):
            if new and self.last is not None:
                self.kept.setdefault(*self.last)
            self.follow = 3 if self.shapes[shape] == 1 else self.follow - 1
            self.kept[iteration] = marks
        self.last = (iteration, marks)


class Storyteller:
    """Takes the events of a run in order."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._iteration = 0
        self._losses: dict[tuple[str, int], Curve] = {}
        self._rates: dict[str, Curve] = {}
        self._norms: tuple[dict[int, Curve], ...] = ({}, {}, {})
        self._parents: dict[int, int] = {}
        self._watched: Counter[str] = Counter()
        self._flow = FlowWatch()
        self._detailed: int = 0
        self._last_detailed = -1

    def put(self, event: ev.Event, world: World) -> None:
        """Take one event; `world` has taken it already."""
        self._watched[event.KIND] += event.weight
        if not self._flow.done:
            self._flow.put(event, world)
        if event.iteration != self._iteration:
            self._close()
            self._iteration = event.iteration
        take = _TAKES.get(type(event))
        if take is not None:
            take(self, event, world)

    def _close(self) -> None:
        for lane in self._lanes.values():
            lane.close(self._iteration)

    # ------------------------------------------------------------------------------------------- lanes

    def _made(self, event: ev.OptimizerMade, world: World) -> None:
        for group in event.groups:
            self._new_lane(event.optimizer, group)
        self._rate(optimizer_label(world, event.optimizer), event.iteration, [g.lr for g in event.groups])

    def _added(self, event: ev.GroupAdded, world: World) -> None:
        self._new_lane(event.optimizer, event.group)

    def _new_lane(self, optimizer: int, group: ev.Group) -> None:
        number = sum(o == optimizer for o, _ in self._lanes)
        if len(self._lanes) < MOST_LANES:
            self._lanes[optimizer, number] = _Lane(optimizer, number, group.tensors)

    def _backward(self, event: ev.Backward, world: World) -> None:
        if event.detailed and event.iteration != self._last_detailed:
            self._detailed, self._last_detailed = self._detailed + 1, event.iteration
        if event.value is not None:
            key = (event.site.file, event.site.line)
            if key in self._losses or len(self._losses) < 6:
                self._losses.setdefault(key, Curve()).add(event.iteration, event.value)
        if event.method != "backward":
            return
        for lane in self._lanes.values():
            share = lane.share(event.leaves)
            if share:
                lane.fills.append([event.backward, 0])
                del lane.fills[:-64]
                lane.mark("fill", event.site, share)

    def _clear(self, event: ev.Clear, world: World) -> None:
        for lane in self._lanes.values():
            share = lane.share(event.tensors)
            if share:
                if share > 0.5:
                    lane.fills = []
                lane.mark("clear", event.site, share)
            elif event.optimizer == lane.optimizer or (event.optimizer is None and not event.tensors):
                lane.mark("clear", event.site, 0.0)  # a clear that finds nothing

    def _step(self, event: ev.Step, world: World) -> None:
        for lane in self._lanes.values():
            if lane.optimizer != event.optimizer:
                continue
            widest: ev.Life | None = None
            filled = 0
            for life in event.lives:
                size = len(lane.tensors.intersection(life.tensors))
                filled += size if life.grad in ("filled", "assigned") and not life.frozen else 0
                if size and (widest is None or len(life.fills) > len(widest.fills)):
                    widest = life
            lane.fills = [[f.backward, f.consumed] for f in widest.fills] if widest is not None else []
            share = filled / max(len(lane.tensors), 1)
            lane.mark("step", event.site, share)
            old = any(consumed for _, consumed in lane.fills)
            word = "empty" if not filled else "old" if old else "several" if len(lane.fills) > 1 else "fresh"
            lane.states.add(event.iteration, word, event.weight)
            for fill in lane.fills:
                fill[1] += 1

    # ------------------------------------------------------------------------------------------- curves

    def _rate(self, label: str, iteration: int, rates: Iterable[float | None]) -> None:
        for number, rate in enumerate(rates):
            name = label if number == 0 else f"{label}, group {number}"
            if rate is not None and (name in self._rates or len(self._rates) < 6):
                self._rates.setdefault(name, Curve()).add(iteration, rate)

    def _scheduler(self, event: ev.SchedulerStep, world: World) -> None:
        self._rate(optimizer_label(world, event.optimizer), event.iteration, event.lrs)

    def _measured(self, event: ev.StepMeasured, world: World) -> None:
        for curves, numbers in zip(self._norms, (event.gradients, event.values, event.updates), strict=True):
            squares: dict[int, float] = {}
            for tensor, number in zip(event.tensors, numbers, strict=False):
                owner = self._owner(tensor, world)
                squares[owner] = squares.get(owner, 0.0) + number * number
            for owner, square in squares.items():
                if owner in curves or len(curves) < MOST_CURVES:
                    curves.setdefault(owner, Curve()).add(event.iteration, square**0.5)

    def _owner(self, tensor: int, world: World) -> int:
        known = self._parents.get(tensor)
        if known is None:
            owners = world.owners(tensor)
            known = self._parents[tensor] = owners[0] if owners else -tensor
        return known

    # ------------------------------------------------------------------------------------------- the end

    def story(self, world: World) -> Story:
        """What was taken in so far."""
        self._close()
        several = Counter(lane.optimizer for lane in self._lanes.values())
        lanes = [
            Lane(
                lane.optimizer,
                optimizer_label(world, lane.optimizer) + (f", group {group}" if several[lane.optimizer] > 1 else ""),
                len(lane.tensors),
                dict(lane.kept),
                lane.states,
            )
            for (_, group), lane in self._lanes.items()
        ]
        gradients, values, updates = (
            tuple(Series(_owner_name(owner, world), curve) for owner, curve in curves.items()) for curves in self._norms
        )
        registry = _registry(world)
        return Story(
            lanes=tuple(lanes),
            losses=tuple(Series(f"{file}:{line}", curve) for (file, line), curve in self._losses.items()),
            rates=tuple(Series(label, curve) for label, curve in self._rates.items()),
            gradients=gradients,
            values=values,
            updates=updates,
            optimizers=tuple(_held(world)),
            unheld=tuple(_unheld(world)),
            registry=tuple(registry[:MOST_ROWS]),
            registry_left_out=max(len(registry) - MOST_ROWS, 0),
            flow=self._flow.flow(world),
            watched=dict(self._watched),
            iterations=world.ended.steps if world.ended is not None else world.iteration,
            detailed=self._detailed,
        )


_TAKES: dict[type[ev.Event], Any] = {
    ev.OptimizerMade: Storyteller._made,
    ev.GroupAdded: Storyteller._added,
    ev.Backward: Storyteller._backward,
    ev.Clear: Storyteller._clear,
    ev.Step: Storyteller._step,
    ev.SchedulerStep: Storyteller._scheduler,
    ev.StepMeasured: Storyteller._measured,
}


def _owner_name(owner: int, world: World) -> str:
    return world.module_name(owner) if owner > 0 else world.name(-owner)


def _held(world: World) -> Iterable[Held]:
    for info in world.optimizers.values():
        groups = tuple(
            (len(g.tensors), sum(world.tensor(t).numel for t in g.tensors), g.lr, g.weight_decay) for g in info.groups
        )
        yield Held(optimizer_label(world, info.ident), info.site, groups, info.steps)


def _unheld(world: World) -> Iterable[str]:
    """Parameters that require grad, live in a module, and sit in no optimizer."""
    for info in world.tensors.values():
        if info.role == "parameter" and info.requires_grad and info.owners and not world.holders(info.ident):
            if not all(world.module(m).freed for m, _ in info.owners):
                yield world.name(info.ident)


def _registry(world: World) -> list[Entry]:
    entries: list[Entry] = []
    for module in list(world.modules.values()):
        if module.freed:
            continue
        for tensor in module.tensors.values():
            info = world.tensor(tensor)
            if world.owners(tensor)[:1] == [module.ident]:
                holders = world.holders(tensor)
                held = optimizer_label(world, holders[0]) if holders else ""
                entries.append(Entry(world.name(tensor), info.role, info.shape, info.requires_grad, held))
        for plain in module.plain:
            name = f"{world.module_name(module.ident)}.{plain.name}"
            entries.append(Entry(name, f"plain {plain.kind}", plain.shape, plain.requires_grad, ""))
    return entries


__all__ = ["Entry", "Held", "Lane", "Mark", "Series", "Story", "Storyteller"]
