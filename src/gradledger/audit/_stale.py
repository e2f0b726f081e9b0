"""Gradients that a step has used and that still stand when the next step comes (G1 and G3).

A step is stale when some tensor's gradient mixes contributions of different ages: what an earlier step has used
already, and something newer on top.  Steps that meet one old gradient and nothing new are not stale in this sense.

Clears tell the two apart by how many steps lie between them.  Where they are rarer than steps all along, they stand in
the wrong loop (G3); where each step has its clear in another part of the program, and none here, one is missing here
(G1).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gradledger.audit._loops import loops_around
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Site

LISTENS: tuple[type[ev.Event], ...] = (ev.Step, ev.Clear)
CLEAR_LINES_KEPT = 64


@dataclass(slots=True)
class ClearLine:
    """Clears of one optimizer's tensors at one line.  `tensors`: those whose used gradients they threw away."""

    site: Site
    how: str
    whole: bool
    count: int = 0
    tensors: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Watched:
    """One optimizer.  `multiple`: the most reverse passes in one gradient; `tensors`: those found stale; `at_clear`:
    steps when a clear was last seen; `single`, `several`: clears that one step, or more, had preceded; `lines`: of each
    line with steps, how many there were, and how many of them came right after a clear; `lent`: the gradients belong
    to other leaves, which are `tensors` then."""

    steps: int = 0
    stale: int = 0
    multiple: int = 0
    first: int = 0
    step_site: Site = NOWHERE
    fill_site: Site = NOWHERE
    tensors: set[int] = field(default_factory=set)
    clears: dict[tuple[str, int], ClearLine] = field(default_factory=dict)
    at_clear: int = 0
    single: int = 0
    several: int = 0
    lines: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    lent: bool = False

    @property
    def elsewhere(self) -> list[ClearLine]:
        """Clears of another part of the program: there, each step has its own; the stale steps have none."""
        unfinished = int(self.steps - self.at_clear > 1)
        mostly = self.single >= 2 and self.single > self.several + unfinished
        if not mostly and not self._of_other_lines:
            return []
        clears, here = self.clears_of_stale(), {_part(self.fill_site), _part(self.step_site)}
        return clears if all(_part(c.site) not in here for c in clears) else []

    @property
    def _of_other_lines(self) -> bool:
        """Whether the line of the stale steps never has a clear, and other lines with steps each have their own."""
        others = [line for key, line in self.lines.items() if key != self.step_site.key()]
        return (
            self.lines.get(self.step_site.key(), [0, 1])[1] == 0
            and bool(others)
            and all(steps >= 2 and cleared >= steps - 1 for steps, cleared in others)
        )

    def clears_of_stale(self) -> list[ClearLine]:
        """Lines that do clear what was found stale, the most frequent first; clears by nobody's line only if alone."""
        lines = [c for c in self.clears.values() if (c.whole and not self.lent) or c.tensors & self.tensors]
        placed = [c for c in lines if c.site.file]
        return sorted(placed or lines, key=lambda c: -c.count)

    @property
    def regular(self) -> bool:
        """Often enough to be the way the program is written."""
        return self.stale >= 3 or (self.stale >= 2 and self.steps <= 4)


@dataclass(slots=True)
class State:
    """`by`: each optimizer by its number; `lines`: where anything was cleared, and the tensors there."""

    by: dict[int, Watched] = field(default_factory=dict)
    lines: dict[tuple[str, int], tuple[Site, set[int]]] = field(default_factory=dict)

    def beside(self, watched: Watched, most: int = 3) -> list[Site]:
        """Clears in the functions that fill or step, or called from there, that do not reach what is stale."""
        here = {(s.file, s.function) for s in (watched.step_site, watched.fill_site) if s.file}
        found: dict[tuple[str, int], Site] = {}
        for site, tensors in self.lines.values():
            ways = (site, *site.above(2))
            reached = next((i for i, s in enumerate(ways) if (s.file, s.function) in here), None)
            if reached is not None and not tensors & watched.tensors:
                found |= {s.key(): s for s in ways[: reached + 1]}
        return list(found.values())[:most]


def _part(site: Site) -> tuple[str, str, int]:
    """File, function and innermost loop in it: what runs as one."""
    loops = loops_around(replace(site, callers=()))
    return site.file, site.function, loops[0].line if loops else 0


def update(state: State, event: ev.Event, world: World) -> None:
    """Take one event in."""
    if isinstance(event, ev.Step):
        _step(state.by.setdefault(event.optimizer, Watched()), event, world)
    elif isinstance(event, ev.Clear):
        _clear(state, event, world)


def _step(watched: Watched, event: ev.Step, world: World) -> None:
    line = watched.lines.setdefault(event.site.key(), [0, 0])
    line[0] += event.weight
    if watched.at_clear == watched.steps and watched.clears:
        line[1] += event.weight
    watched.steps += event.weight
    stale = False
    for life in event.lives:
        if life.frozen or len(life.fills) < 2:
            continue
        ages = [f.consumed for f in life.fills]
        if max(ages) == min(ages):
            continue
        stale = True
        watched.tensors.update(life.lenders or life.tensors)
        watched.lent = watched.lent or bool(life.lenders)
        watched.multiple = max(watched.multiple, len(life.fills) + life.omitted)
        if not watched.fill_site.file:
            last = world.backward(life.fills[-1].backward)
            watched.fill_site = last.site if last is not None else NOWHERE
    if stale:
        watched.stale += event.weight
        if watched.stale == event.weight:
            watched.first, watched.step_site = event.iteration, event.site


def _clear(state: State, event: ev.Clear, world: World) -> None:
    if event.site.file and (event.site.key() in state.lines or len(state.lines) < CLEAR_LINES_KEPT):
        state.lines.setdefault(event.site.key(), (event.site, set()))[1].update(event.tensors)
    used = {t for d in event.dropped if d.consumed for t in d.tensors}
    for ident, optimizer in world.optimizers.items():
        known = state.by.get(ident)
        mine = {t for t in used if t in optimizer.tensors or (known is not None and t in known.tensors)}
        whole = event.optimizer == ident
        if not mine and not whole:
            continue
        clears = state.by.setdefault(ident, Watched()).clears
        line = clears.get(event.site.key())
        if line is None:
            if len(clears) >= CLEAR_LINES_KEPT:
                continue
            line = clears[event.site.key()] = ClearLine(event.site, event.how, whole)
        line.count += event.weight
        line.tensors |= mine
        watched = state.by[ident]
        since, watched.at_clear = watched.steps - watched.at_clear, watched.steps
        if 0 < since <= event.weight:
            watched.single += event.weight
        elif since:
            watched.several += event.weight
