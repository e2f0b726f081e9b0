"""Where gradients flow in one iteration, parameter by parameter, and where they stop, by what and on which line.

`FlowWatch` takes the events of a run in order and keeps those of one iteration; `flow()` is then the table.  With
several optimizers the iteration goes on until each has stepped once, so that the networks of a GAN or an actor-critic
are seen together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradledger.audit._phrases import WAYS, way_out
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Site

TRIED = 20  # iterations looked at until one fills and consumes gradients, when none was asked for
MAX_EVENTS = 20_000  # of one iteration
SPAN = 8  # iterations at most until each optimizer has stepped


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter. `shape`: None when not known; `optimizer`: "Adam 1, group 0", or "" when none holds it;
    `carries`: a reverse pass of this iteration filled its gradient; `passes`: contributions that stand in it at the
    step, `old` of them consumed before; `norm`: of the consumed gradient, None when not measured; `stop`: what kept
    the gradient away in one word ("" when it carries), `why` in words, `site` where, when known."""

    name: str
    shape: tuple[int, ...] | None
    requires_grad: bool
    optimizer: str
    carries: bool
    passes: int = 0
    old: int = 0
    norm: float | None = None
    stop: str = ""
    why: str = ""
    site: Site = NOWHERE


@dataclass(frozen=True, slots=True)
class Stop:
    """A line at which values left the graph on their way to a loss: `how` in words, `of`: the modules behind it."""

    how: str
    site: Site
    of: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """`iteration`: the first one looked at, `last`: the last; `passes`: lines of the reverse passes and their losses;
    `stepped`: optimizers that stepped; `detailed`: whether single operations were looked at."""

    iteration: int
    last: int
    rows: tuple[Row, ...]
    stops: tuple[Stop, ...]
    passes: tuple[tuple[Site, str, float | None], ...]
    stepped: tuple[str, ...]
    detailed: bool

    @property
    def carrying(self) -> int:
        """How many parameters carry a gradient."""
        return sum(row.carries for row in self.rows)


class FlowWatch:
    """Keeps one iteration of a run.  `iteration`: which; None: the first whose gradients are filled and consumed."""

    def __init__(self, iteration: int | None = None) -> None:
        self.wanted = iteration
        self._events: list[ev.Event] = []
        self._frozen_at: dict[int, Site] = {}
        self._found: Flow | None = None
        self._second_best: Flow | None = None
        self._done = False

    def put(self, event: ev.Event, world: World) -> None:
        """Take one event; `world` has taken it already."""
        if isinstance(event, ev.GradFlagSet):
            if not event.value and len(self._frozen_at) < 100_000:
                self._frozen_at.update(dict.fromkeys(event.tensors, event.site))
        if self._done or (self.wanted is not None and event.iteration < self.wanted):
            return
        if self._events and self._is_over(event, world) and self._close(world):
            return
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)

    @property
    def done(self) -> bool:
        """Whether the iteration has been seen to its end."""
        return self._done

    def flow(self, world: World) -> Flow | None:
        """The table; None when there was no such iteration."""
        if not self._done and self._events:
            self._close(world)
        return self._found or self._second_best

    def _is_over(self, event: ev.Event, world: World) -> bool:
        if event.iteration == self._events[-1].iteration and not isinstance(event, ev.RunEnded):
            return False
        stepped = {e.optimizer for e in self._events if isinstance(e, ev.Step)}
        walked = any(isinstance(e, ev.Backward) for e in self._events)
        if isinstance(event, ev.RunEnded):
            return bool(stepped) or walked
        if not stepped:
            return walked and not world.optimizers  # a program without optimizers: each pass is an iteration
        again = isinstance(event, ev.Step) and event.optimizer in stepped
        waiting = {o for o in world.optimizers if o not in stepped}
        return not waiting or again or event.iteration - self._events[0].iteration >= SPAN

    def _close(self, world: World) -> bool:
        """The iteration is over; whether it was the one wanted."""
        events, self._events = self._events, []
        if not any(isinstance(e, (ev.Step, ev.Backward)) for e in events):
            return False
        found = _flow(events, world, self._frozen_at)
        if self.wanted is not None:
            self._found = found if found.iteration == self.wanted else None
            self._done = True
        elif found.carrying:
            self._found, self._done = found, True
        else:
            self._second_best = self._second_best or found
            self._done = found.last >= TRIED
        return self._done


# ------------------------------------------------------------------------------------------- the table


def _flow(events: list[ev.Event], world: World, frozen_at: dict[int, Site]) -> Flow:
    backwards = [e for e in events if isinstance(e, ev.Backward)]
    fresh = {e.backward for e in backwards}
    filled = {t for e in backwards if e.method == "backward" and not e.raised for t in e.leaves}
    lives: dict[int, ev.Life] = {}
    norms: dict[int, float] = {}
    steps = [e for e in events if isinstance(e, ev.Step)]
    for step in steps:
        for life in step.lives:
            lives.update(dict.fromkeys(life.tensors, life))
    for event in events:
        if isinstance(event, ev.StepMeasured):
            norms.update(zip(event.tensors, event.gradients, strict=False))
    cause = _Causes(events, world, frozen_at)
    rows = [
        _row(tensor, lives.get(tensor), fresh, tensor in filled, norms.get(tensor), world, cause)
        for tensor in _parameters(world, filled, lives)
    ]
    return Flow(
        iteration=events[0].iteration if not steps else min(e.iteration for e in (*steps, *backwards)),
        last=events[-1].iteration if not steps else steps[-1].iteration,
        rows=tuple(rows),
        stops=tuple(cause.stops()),
        passes=tuple((e.site, e.method, e.value) for e in backwards),
        stepped=tuple(dict.fromkeys(optimizer_label(world, s.optimizer) for s in steps)),
        detailed=any(e.detailed for e in backwards),
    )


def optimizer_label(world: World, optimizer: int) -> str:
    """ "Adam 1": class and number."""
    return f"{world.optimizer(optimizer).short_cls} {optimizer}"


def _parameters(world: World, filled: Iterable[int], held: Iterable[int]) -> list[int]:
    """Registered parameters of living modules, in order of registration, then other leaves that take part."""
    known = [
        t.ident
        for t in world.tensors.values()
        if t.role == "parameter" and t.owners and not all(world.module(m).freed for m, _ in t.owners)
    ]
    return list(dict.fromkeys([*known, *sorted({*filled, *held})]))


def _row(
    tensor: int,
    life: ev.Life | None,
    fresh: set[int],
    filled: bool,
    norm: float | None,
    world: World,
    cause: _Causes,
) -> Row:
    info = world.tensor(tensor)
    holders = world.holders(tensor)
    held = ""
    if holders:
        group = world.optimizer(holders[0]).tensors.get(tensor, 0)
        several = len(world.optimizer(holders[0]).groups) > 1
        held = optimizer_label(world, holders[0]) + (f", group {group}" if several else "")
    fills = life.fills if life is not None and life.grad == "filled" else ()
    carries = any(f.backward in fresh for f in fills) if life is not None else filled
    passes = len(fills) + (life.omitted if life is not None else 0)
    old = sum(f.consumed > 0 for f in fills)
    stop, why, site = ("", "", NOWHERE)
    if not carries:
        stop, why, site = cause.of(tensor, life)
    elif not holders:
        stop, why, site = "not held", "no optimizer holds it: its gradient is never used", info.site
    shape = info.shape if info.role != "unknown" else None
    return Row(
        world.name(tensor), shape, info.requires_grad, held, carries, passes, old, norm, stop, why, site
    )  # fmt: skip


def _how(cut: ev.Cut) -> str:
    """The way out in words; an operation that is none by itself had nothing to carry on."""
    words = way_out(cut)
    return words if cut.how in WAYS else f"{words} of values without graph"


class _Causes:
    """Why parameters received nothing: from the most direct fact to the least."""

    def __init__(self, events: list[ev.Event], world: World, frozen_at: dict[int, Site]) -> None:
        self.world = world
        self.frozen_at = frozen_at
        self.backwards = [e for e in events if isinstance(e, ev.Backward)]
        self.calls = [e for e in events if isinstance(e, ev.ModuleCalled)]
        self.depends: dict[int, ev.Cut] = {}
        self.behind: dict[tuple[str, Site], dict[str, None]] = {}
        self.refs: list[tuple[ev.CallRef, ev.Cut | None]] = []
        self.discarded = {e.module: e for e in events if isinstance(e, ev.GraphDiscarded)}
        for event in events:
            if isinstance(event, ev.Backward):
                self._take_backward(event)
            elif isinstance(event, ev.Comparison):
                for operand in (event.left, event.right):
                    self._take_operand(operand)

    def _take_backward(self, event: ev.Backward) -> None:
        for term in event.terms:
            if term.cut is not None and (term.depends or not term.has_graph):
                names = {self.world.module_name(r) for t in term.depends for r in self.world.owner_roots(t)}
                self._behind(_how(term.cut), term.cut.site, names)
                for tensor in term.depends:
                    self.depends.setdefault(tensor, term.cut)
        for cut in event.cuts:
            self._behind(_how(cut), cut.site, ())
        if event.no_grad_site.file:
            self._behind("no_grad", event.no_grad_site, ())

    def _take_operand(self, operand: ev.Operand) -> None:
        for ref in operand.calls:
            if ref.graph:
                continue
            self.refs.append((ref, operand.cut))
            name = self.world.module_name(ref.module)
            if not ref.grad_on:
                self._behind("no_grad", ref.site, (name,))
            elif operand.cut is not None:
                self._behind(_how(operand.cut), operand.cut.site, (name,))

    def _behind(self, how: str, site: Site, names: Iterable[str]) -> None:
        self.behind.setdefault((how, site), {}).update(dict.fromkeys(sorted(names)))

    def stops(self) -> list[Stop]:
        return [Stop(how, site, tuple(of)) for (how, site), of in self.behind.items() if site.file]

    def of(self, tensor: int, life: ev.Life | None) -> tuple[str, str, Site]:
        """(word, reason, line) for a parameter without a gradient of this iteration."""
        info = self.world.tensor(tensor)
        if (life is not None and life.frozen) or not info.requires_grad:
            site = self.frozen_at.get(tensor) or info.site
            return "frozen", "requires_grad is False", site
        if life is not None and life.grad == "assigned":
            return "assigned", "the program wrote .grad itself", NOWHERE
        if not self.backwards:
            return "no pass", "no reverse pass ran", NOWHERE
        cut = self.depends.get(tensor)
        if cut is not None:
            return cut.how, f"its values leave the graph by {_how(cut)}", cut.site
        return self._by_module(tensor)

    def _by_module(self, tensor: int) -> tuple[str, str, Site]:
        owners = self.world.owners(tensor)
        around = set(owners).union(*(self.world.ancestors(m) for m in owners)) if owners else set()
        for ref, cut in self.refs:
            if ref.module in around:
                if not ref.grad_on:
                    return "no_grad", "its module was called under no_grad", ref.site
                if cut is not None:
                    return cut.how, f"its output leaves the graph by {_how(cut)}", cut.site
        asked = next((b for b in self.backwards if b.method == "grad" and tensor in b.leaves), None)
        if asked is not None:
            return "autograd.grad", "its gradient was asked for by autograd.grad, which fills no .grad", asked.site
        mine = [c for c in self.calls if c.module in around]
        if not mine:
            if not owners:
                return "unused", "no loss of this iteration depends on it", self.world.tensor(tensor).site
            if not self.calls or not any(b.detailed for b in self.backwards):
                return "unreached", "no reverse pass reached it", NOWHERE
            return "unused", "its module was not called", self.world.tensor(tensor).site
        if not any(c.grad_on for c in mine):
            return "no_grad", "its module was called under no_grad", mine[-1].site
        if (
            owners
            and not any(self.world.module(m).used_site.file for m in owners)
            and not set(owners) & {c.module for c in mine}
        ):
            return "unused", "its forward never ran", self.world.tensor(tensor).site
        for backward in self.backwards:
            if backward.no_grad_site.file:
                return "no_grad", "the loss was computed under no_grad", backward.no_grad_site
            if backward.cuts:
                nearest = backward.cuts[0]
                return nearest.how, f"the loss leaves the graph by {_how(nearest)}", nearest.site
        raised = next((b for b in self.backwards if b.raised), None)
        if raised is not None:
            return "raised", f"the reverse pass raised: {raised.raised[:60]}", raised.site
        thrown = next((e for m, e in self.discarded.items() if m in around), None)
        if thrown is not None and thrown.then_site.file:
            return thrown.then, f"its output was only used through .{thrown.then}()", thrown.then_site
        return "unreached", "its output reaches no loss that was walked", self._ran(owners) or mine[-1].site

    def _ran(self, owners: Iterable[int]) -> Site | None:
        """Where the largest module around it was called of which nothing was filled: it is cut off behind that line."""
        filled = {owner for b in self.backwards for leaf in b.leaves for owner in self.world.owners(leaf)}
        live = filled.union(*(self.world.ancestors(owner) for owner in filled))
        around = [m for owner in owners for m in (owner, *self.world.ancestors(owner)) if m not in live]
        return next((s for m in reversed(around) if (s := self.world.module(m).used_site).file), None)


__all__ = ["Flow", "FlowWatch", "Row", "Stop", "optimizer_label"]
