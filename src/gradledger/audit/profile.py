"""What a run did, in the few relations by which two runs of one program are compared; bounded memory, no torch.

`Profiler` takes the events of a run in order; `profile()` is the result.  See `compare`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Site

EARLY = 20  # iterations whose cycle and norms are compared one by one
MOST_TENSORS = 4096
MOST_COPIES = 64


@dataclass(frozen=True, slots=True)
class Received:
    """A parameter that a reverse pass filled: in which iteration first, by which line; `shape`."""

    iteration: int
    site: Site
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Cycle:
    """One iteration of the clear, fill, consume cycle: how many clears and reverse passes before its step."""

    clears: int
    passes: int
    old: int
    site: Site


@dataclass(frozen=True, slots=True)
class Built:
    """An optimizer: class, line, groups as (names, learning rate, weight decay), steps."""

    cls: str
    site: Site
    groups: tuple[tuple[tuple[str, ...], float | None, float | None], ...]
    steps: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Copies from one module into another: `count` of them by `how` with weight `tau`, about every `interval`
    iterations; `first`, `site`: the first of them; `since`, `since_site`: the first by `how`."""

    how: str
    count: int
    tau: float | None
    interval: float | None
    first: int
    site: Site
    since: int
    since_site: Site


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A scheduler: class, line, length-like arguments, calls per step of its optimizer."""

    cls: str
    site: Site
    horizon: tuple[tuple[str, float], ...]
    per_step: float | None


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of a module by the program: with a graph, in train mode and in eval mode; the line of the first."""

    train: int
    evaluating: int
    iteration: int
    site: Site


@dataclass(frozen=True, slots=True)
class Profile:
    """See the parts.  `parameters`: name -> (shape, requires_grad at the end); `norms`: (iteration, name) -> norm of
    the consumed gradient; `clears`, `passes`, `steps`: totals."""

    program: str = ""
    parameters: dict[str, tuple[tuple[int, ...], bool]] = field(default_factory=dict)
    received: dict[str, Received] = field(default_factory=dict)
    cycles: dict[int, Cycle] = field(default_factory=dict)
    norms: dict[tuple[int, str], float] = field(default_factory=dict)
    optimizers: tuple[Built, ...] = ()
    syncs: dict[tuple[str, str], Sync] = field(default_factory=dict)
    schedulers: tuple[Scheduled, ...] = ()
    modes: dict[str, Calls] = field(default_factory=dict)
    clears: int = 0
    passes: int = 0
    steps: int = 0
    step_site: Site = NOWHERE
    pass_site: Site = NOWHERE


class Profiler:
    """Takes the events of a run in order."""

    def __init__(self) -> None:
        self._filled: dict[int, Received] = {}
        self._cycles: dict[int, list[ev.Event]] = {}
        self._norms: dict[tuple[int, int], float] = {}
        self._syncs: dict[tuple[int, int], list[ev.Copied]] = {}
        self._sync_counts: Counter[tuple[int, int]] = Counter()
        self._calls: dict[int, Calls] = {}
        self._totals: Counter[str] = Counter()
        self._first: dict[type[ev.Event], Site] = {}

    def put(self, event: ev.Event, world: World) -> None:
        """Take one event; `world` has taken it already."""
        if isinstance(event, (ev.Backward, ev.Clear, ev.Step)):
            self._totals[event.KIND] += event.weight
            self._first.setdefault(type(event), event.site)
            if event.iteration < EARLY:
                self._cycles.setdefault(event.iteration, []).append(event)
            if isinstance(event, ev.Backward) and event.method == "backward" and not event.raised:
                for tensor in event.leaves:
                    if tensor not in self._filled and len(self._filled) < MOST_TENSORS:
                        self._filled[tensor] = Received(event.iteration, event.site)
        elif isinstance(event, ev.StepMeasured):
            if event.iteration < EARLY:
                for tensor, norm in zip(event.tensors[:MOST_TENSORS], event.gradients, strict=False):
                    self._norms[event.iteration, tensor] = norm
        elif isinstance(event, ev.Copied):
            self._copied(event)
        elif isinstance(event, ev.ModuleCalled) and event.output_has_graph:
            seen = self._calls.get(event.module) or Calls(0, 0, event.iteration, event.site)
            self._calls[event.module] = Calls(
                seen.train + event.training, seen.evaluating + (not event.training), seen.iteration, seen.site
            )

    def _copied(self, event: ev.Copied) -> None:
        key = (event.source, event.target)
        if event.same or (key not in self._syncs and len(self._syncs) >= MOST_COPIES):
            return
        kept = self._syncs.setdefault(key, [])
        if kept and kept[-1].iteration == event.iteration and kept[-1].site.key() == event.site.key():
            return  # tensor by tensor in one loop
        self._sync_counts[key] += event.weight
        if len(kept) < 64:
            kept.append(event)

    def profile(self, world: World) -> Profile:
        """What was taken in so far."""
        names = _names(world)
        parameters = {
            names[t.ident]: (t.shape, t.requires_grad) for t in world.tensors.values() if t.role == "parameter"
        }
        return Profile(
            program=world.program.program if world.program is not None else "",
            parameters=parameters,
            received={
                names[t]: Received(r.iteration, r.site, world.tensor(t).shape)
                for t, r in self._filled.items()
                if t in names
            },
            cycles={i: _cycle(events) for i, events in self._cycles.items() if _complete(events)},
            norms={(i, names[t]): norm for (i, t), norm in self._norms.items() if t in names},
            optimizers=tuple(
                Built(
                    info.short_cls,
                    info.site,
                    tuple(
                        (tuple(names.get(t, f"tensor {t}") for t in g.tensors), g.lr, g.weight_decay)
                        for g in info.groups
                    ),
                    info.steps,
                )
                for info in world.optimizers.values()
            ),
            syncs={
                (world.module_name(source), world.module_name(target)): _sync(events, self._sync_counts[source, target])
                for (source, target), events in self._syncs.items()
            },
            schedulers=tuple(
                Scheduled(
                    s.made.cls.rpartition(".")[2],
                    s.made.site,
                    s.made.horizon,
                    s.steps / steps if (steps := world.optimizer(s.made.optimizer).steps) else None,
                )
                for s in world.schedulers.values()
            ),
            modes={world.module_name(m): calls for m, calls in self._calls.items()},
            clears=self._totals["clear"],
            passes=self._totals["backward"],
            steps=self._totals["step"],
            step_site=self._first.get(ev.Step, NOWHERE),
            pass_site=self._first.get(ev.Backward, NOWHERE),
        )


def _names(world: World) -> dict[int, str]:
    """A distinct name for each parameter and other leaf: the second "net.weight" is "net.weight #2"."""
    taken: Counter[str] = Counter()
    names: dict[int, str] = {}
    for info in list(world.tensors.values())[:MOST_TENSORS]:
        if info.role == "buffer":
            continue
        name = world.name(info.ident)
        if not info.owners and name.startswith("free tensor"):
            name = f"free tensor {list(info.shape)}"
        taken[name] += 1
        names[info.ident] = name if taken[name] == 1 else f"{name} #{taken[name]}"
    return names


def _complete(events: Iterable[ev.Event]) -> bool:
    return any(isinstance(e, ev.Step) for e in events)


def _cycle(events: list[ev.Event]) -> Cycle:
    clears = [e for e in events if isinstance(e, ev.Clear)]
    passes = [e for e in events if isinstance(e, ev.Backward)]
    step = next(e for e in events if isinstance(e, ev.Step))
    old = max((sum(f.consumed > 0 for f in life.fills) for life in step.lives), default=0)
    return Cycle(len({c.site.key() for c in clears}), len(passes), old, clears[0].site if clears else step.site)


def _sync(events: list[ev.Copied], count: int) -> Sync:
    at = [e.iteration for e in events]
    gaps = sorted(b - a for a, b in pairwise(at))
    last = events[-1]
    middle = float(gaps[len(gaps) // 2]) if gaps else None
    since = next(e for e in events if e.how == last.how)
    return Sync(last.how, count, last.tau, middle, at[0], events[0].site, since.iteration, since.site)


__all__ = ["Built", "Calls", "Cycle", "Profile", "Profiler", "Received", "Scheduled", "Sync"]
