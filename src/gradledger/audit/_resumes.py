"""Resumed runs: which optimizers and schedulers began anew after a module was filled from a file, and whether that run
means to go on where an earlier one stopped.

To begin anew from pretrained weights is right, and the events look alike.  A run counts as resumed when something says
so beside the weights: a counter or an optimizer's state in the file, or the words of the program around the load; and
nothing there speaks of pretraining, fine-tuning or serving.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit._code import is_computed_with, lines_asking, mentions
from gradledger.audit._records import CopyLink, OptimizerInfo, SchedulerInfo
from gradledger.audit._source import source_lines
from gradledger.audit.world import World
from gradledger.core.events import Copied, Event, FileTouched, SchedulerStep, StateLoaded, Step
from gradledger.core.site import NOWHERE, Site

LISTENS: tuple[type[Event], ...] = (FileTouched, StateLoaded, Step, SchedulerStep)
KEPT = 64
LEAST_COUNT = 3  # steps: a smaller number may be one of epochs
FEW_AVERAGES = 3  # updates of an average, at least
FEW_STEPS = 3
_AROUND = 8  # lines above and below a load whose words count
_RESUMES = re.compile(
    r"resum|restart|continu|interrupt|preempt|ckpt|checkpoint|start_?(epoch|step|iter)|last\.pt", re.IGNORECASE
)
_BEGINS = re.compile(
    r"pre.?train|fine.?tun|backbone|transfer|warm.?start|distil|teacher|deploy|serv(e|ing)|infer|downstream|new.?task",
    re.IGNORECASE,
)
_PLAIN = frozenset({"SGD", "ASGD"})  # nothing to lose, but for a momentum


@dataclass(slots=True)
class Load:
    """A module was filled from a file.  `held`: what the file, or the files read since the load before, held;
    `optimizers`: those that had stepped by then, and how often; `schedulers`: those that had."""

    event: StateLoaded
    held: frozenset[str]
    read_at: Site
    optimizers: dict[int, int]
    schedulers: frozenset[int]
    counts: dict[str, int] = field(default_factory=dict)  # how far the file says that its run was
    written: FileTouched | None = None  # the first file that the run wrote when it had gone on
    went: int = 0  # steps of the run from there to `written`


@dataclass(slots=True)
class Resumes:
    """Loads of modules from files, owners whose state was loaded, and lines that wrote files."""

    loads: dict[int, Load] = field(default_factory=dict)  # by module: the latest
    restored: set[tuple[str, int]] = field(default_factory=set)
    filled: set[int] = field(default_factory=set)  # modules whose state was loaded
    held: frozenset[str] = frozenset()
    read_at: Site = NOWHERE
    counts: dict[str, int] = field(default_factory=dict)
    fresh: bool = False  # a file was read and no module filled since
    saved: list[FileTouched] = field(default_factory=list)
    # schedulers that stepped again before their optimizer did: driven forward by hand
    driven: set[int] = field(default_factory=set)
    restored_optimizer_at: dict[int, StateLoaded] = field(default_factory=dict)


def update(state: Resumes, event: Event, world: World) -> None:
    """Take one event in."""
    if isinstance(event, FileTouched):
        if event.method == "save":
            if len(state.saved) < KEPT:
                state.saved.append(event)
            for load in state.loads.values():
                if load.written is None and event.counts and (went := _went_on(state, load, world)):
                    load.written, load.went = event, went
        else:
            state.counts = dict(event.counts)
            state.held = frozenset(event.what) | (state.held if state.fresh else frozenset())
            state.read_at, state.fresh = event.site, True
            if not set(event.what) & {"module"}:
                for load in state.loads.values():  # a second file, of the same checkpoint
                    load.held |= frozenset(event.what) if load.event.iteration == event.iteration else frozenset()
    elif isinstance(event, StateLoaded):
        if event.owner == "module":
            state.filled.add(event.ident)
        if event.owner != "module":
            state.restored.add((event.owner, event.ident))
            if event.owner == "optimizer":
                state.restored_optimizer_at[event.ident] = event
            state.held -= {event.owner}  # it was for this one
        elif event.origin == "file" and event.matched and not event.missing:
            if event.ident in state.loads or len(state.loads) < KEPT:
                state.loads[event.ident] = Load(
                    event,
                    state.held,
                    state.read_at,
                    {o.ident: o.steps for o in world.optimizers.values() if o.steps},
                    frozenset(i for i, s in world.schedulers.items() if s.steps),
                    state.counts,
                )
                state.fresh = False
    elif isinstance(event, Step):
        if state.fresh:  # what was read and filled nothing is no part of what is read from now on
            state.held, state.fresh = frozenset(), False
    elif isinstance(event, SchedulerStep):
        if event.index and not event.optimizer_steps:
            state.driven.add(event.scheduler)


def _went_on(state: Resumes, load: Load, world: World) -> int:
    """How many steps an optimizer of what was loaded, that got its state back then, has made since."""
    tensors = set(world.tensors_of(load.event.ident))
    for ident, at in state.restored_optimizer_at.items():
        optimizer = world.optimizers.get(ident)
        if optimizer is None or at.iteration != load.event.iteration or not tensors & optimizer.tensors.keys():
            continue
        if optimizer.last_step is not None and optimizer.last_step.seq > max(at.seq, load.event.seq):
            return optimizer.steps - load.optimizers.get(ident, 0)
    return 0


def counted_anew(state: Resumes) -> Iterator[tuple[Load, str, FileTouched, Site]]:
    """(load, name, the next file, line): the run asks a file by `name` how far it was, on that line, and the next file
    that it writes says less, or just as many as the run has made since."""
    for load in state.loads.values():
        if load.written is None:
            continue
        before, after = load.counts, dict(load.written.counts)
        both = [name for name in before if name in after]
        # as many as were made since, where a run that goes on would have come so much further
        names = [name for name in both if after[name] == load.went > before[name] > LEAST_COUNT]
        if not names and all(after[name] < before[name] - 1 for name in both):
            names = both  # (a count within the epoch falls while that of the epochs grows)
        for name in names[:1]:
            lines = lines_asking(load.read_at.file, name)
            near = [line for line in lines if line >= load.read_at.line]
            if lines and not name.startswith("batch"):
                yield load, name, load.written, Site(load.read_at.file, (near or lines)[0], load.read_at.function)


def left_in_file(load: Load) -> Iterator[tuple[str, int]]:
    """(name, number) of counts that a file held, that nothing asks it for, and that the program computes with."""
    for name, number in load.counts.items():
        if number > 0 and mentions(load.read_at.file, name) == 1 and is_computed_with(load.read_at.file, name):
            yield name, number


def begun_anew(state: Resumes, world: World) -> Iterator[tuple[Load, OptimizerInfo]]:
    """(load, optimizer): the optimizer made its first step after the load, over the parameters that were loaded, and
    over no others: a network of which a part is new does not go on."""
    filled = {t for load in state.loads.values() for t in world.tensors_of(load.event.ident)}
    for load in state.loads.values():
        tensors = set(world.tensors_of(load.event.ident))
        for optimizer in world.optimizers.values():
            held = tensors & optimizer.tensors.keys()
            new = [t for t in optimizer.tensors if t not in filled and world.owners(t)]
            if optimizer.steps and optimizer.ident not in load.optimizers and tensors and 2 * len(held) >= len(tensors):
                if not new:
                    yield load, optimizer


def left_behind(state: Resumes, load: Load, world: World) -> list[tuple[OptimizerInfo, OptimizerInfo]]:
    """(optimizer, the one before it): it began anew with this load, where others of the same run go on from the file.
    """
    begun = [o for o in world.optimizers.values() if o.steps and o.ident not in load.optimizers]
    went_on = [
        o
        for o in begun
        if (at := state.restored_optimizer_at.get(o.ident)) is not None
        and at.iteration == load.event.iteration
        and twin(o, load, world) is not None
    ]
    lost = [
        o
        for o in begun
        if ("optimizer", o.ident) not in state.restored
        and has_state(o, world)
        # made beside one that goes on, by a line of its own
        and any(w.site.callers == o.site.callers and w.site.key() != o.site.key() for w in went_on)
    ]
    pairs = [(o, before) for o in lost if (before := twin(o, load, world)) is not None]
    return [(o, before) for o, before in pairs if before.steps and o.steps >= FEW_STEPS]


def put_into_another(state: Resumes, load: Load, optimizer: OptimizerInfo, world: World) -> OptimizerInfo | None:
    """The optimizer over the same parameters that was given the state of the file, and never stepped after it."""
    for other in world.optimizers.values():
        at, last = state.restored_optimizer_at.get(other.ident), other.last_step
        if other.ident == optimizer.ident or at is None or not other.tensors.keys() & optimizer.tensors.keys():
            continue
        if at.iteration == load.event.iteration and (last is None or last.seq < at.seq):
            return other
    return None


def averages_begun(state: Resumes, load: Load, world: World) -> Iterator[CopyLink]:
    """Averages of the loaded module that go on from what they were made with before the load, for nothing was loaded or
    copied into them as a whole; the run that is resumed had one, too, followed by the same line."""
    near = {load.event.ident, *world.ancestors(load.event.ident), *world.descendants(load.event.ident)}
    links = [(link, link.first) for link in world.all_copies() if isinstance(link.first, Copied)]
    for link, first in links:
        begun = first.seq > load.event.seq > world.module(first.target).made_seq
        if not begun or not _averages(first) or link.count < FEW_AVERAGES or first.source not in near:
            continue
        tree = {first.target, *world.ancestors(first.target), *world.descendants(first.target)}
        into = [one for other, one in links if one.target in tree and other.last.seq > load.event.seq]
        if tree & (state.filled | near) or not all(_averages(one) for one in into):
            continue
        if any(
            other.last.seq < load.event.seq
            and one.site.key() == first.site.key()
            and world.module(one.target).cls == world.module(first.target).cls
            for other, one in links
        ):
            yield link


def from_average(state: Resumes, load: Load, world: World) -> CopyLink | None:
    """The average whose weights a network goes on from as its own, with the optimizer's state that belongs to others:
    the file held the state of the average alone."""
    origin = load.event.origin_ident
    links = [link for link in world.all_copies() if link.first.target == origin and link.count >= FEW_AVERAGES]
    if origin is None or not links or not all(isinstance(k.first, Copied) and _averages(k.first) for k in links):
        return None
    mine = set(world.tensors_of(load.event.ident))
    for ident, at in state.restored_optimizer_at.items():
        optimizer = world.optimizer(ident)
        if at.iteration == load.event.iteration and optimizer.steps >= FEW_STEPS and mine & optimizer.tensors.keys():
            return links[0]
    return None


def _averages(copied: Copied) -> bool:
    return not copied.same and copied.tau is not None and copied.tau < 1


def means_to_resume(load: Load, world: World) -> bool:
    """Whether the program says that it goes on where an earlier run stopped."""
    text = _text_around(load.event.site) + _text_around(load.read_at)
    if _BEGINS.search(text):
        return False
    return bool(load.held & {"number", "optimizer", "scheduler", "rng"}) or _RESUMES.search(text) is not None


def another_kind(load: StateLoaded, world: World) -> bool:
    """Whether the weights came from a model of another class: a warm start from pretraining is no reload."""
    if load.origin_ident is None:
        return False
    mine, origin = world.module(load.ident).cls, world.module(load.origin_ident).cls
    return bool(mine and origin) and mine != origin


def twin(optimizer: OptimizerInfo, load: Load, world: World) -> OptimizerInfo | None:
    """The optimizer of the run that is resumed, when it ran in this process: made by the same line, alike in all."""
    for other in world.optimizers.values():
        if other.ident in load.optimizers and _alike(other, optimizer):
            return other
    return None


def _alike(a: OptimizerInfo, b: OptimizerInfo) -> bool:
    rates = [[g.lr for g in o.groups] for o in (a, b)]
    return a.cls == b.cls and a.site.key() == b.site.key() and len(a.tensors) == len(b.tensors) and rates[0] == rates[1]


def has_state(optimizer: OptimizerInfo, world: World) -> bool:
    """Whether an optimizer keeps something between its steps."""
    return optimizer.short_cls not in _PLAIN or "momentum" in world.source(optimizer.site)


def scheduler_twin(scheduler: SchedulerInfo, load: Load, world: World) -> SchedulerInfo | None:
    """A scheduler made by the same line that had stepped before the load."""
    for number, other in world.schedulers.items():
        same = other.made.cls == scheduler.made.cls and other.made.site.key() == scheduler.made.site.key()
        if number in load.schedulers and same:
            return other
    return None


def schedulers_begun(state: Resumes, load: Load, optimizer: OptimizerInfo, world: World) -> list[SchedulerInfo]:
    """Schedulers of an optimizer that started from nothing after the load, and that nobody drove forward."""
    return [
        s
        for s in world.schedulers_of(optimizer.ident)
        if s.steps
        and s.made.scheduler not in load.schedulers
        and s.made.scheduler not in state.driven
        and ("scheduler", s.made.scheduler) not in state.restored
        and "last_epoch" not in world.source(s.made.site)
        # nobody saw it built: it came out of the file as a whole
        and not (s.last_step is not None and s.made.site.key() == s.last_step.site.key())
    ]


def _text_around(site: Site) -> str:
    lines = source_lines(site.file) if site.file else ()
    return "\n".join(lines[max(0, site.line - 1 - _AROUND) : site.line + _AROUND])
