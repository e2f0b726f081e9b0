"""What a learning-rate schedule did in a run: how often it was stepped, per what, and where its rate went.

One summary a scheduler, of bounded size: the rate is kept at no more than 512 of its calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Site

LISTENS: tuple[type[ev.Event], ...] = (ev.SchedulerMade, ev.SchedulerStep, ev.LoaderEpoch, ev.Step)
RATES_KEPT = 512
LOADERS_KEPT = 1024


@dataclass(slots=True)
class Passes:
    """Passes over one loader in which an optimizer stepped.  All by the numbers that the events carry, so that a record
    in which repeated iterations were left out gives the same.  `first`, `last`: numbers of passes; `began`: the index
    of the first step in the pass under way; `most`: steps in the longest pass."""

    first: int
    last: int
    began: int
    most: int = 1
    steps: int = 0

    @property
    def passes(self) -> int:
        """How many."""
        return self.last - self.first + 1


@dataclass(slots=True)
class Schedule:
    """One scheduler.  `ones`, `mores`: calls after the first with one or several optimizer steps since the call
    before; `rates`: (call, rate of the first group), thinned by `stride`; `optimizer_steps`: at the latest call;
    `loaders`: by loader the passes while it was in use; `negative`: the first call that gave a rate below zero."""

    made: ev.SchedulerMade
    site: Site = NOWHERE
    calls: int = 0
    ones: int = 0
    mores: int = 0
    seen: int = 0
    optimizer_steps: int = 0
    steps_at_making: int = 0
    iteration: int = 0
    peak: float = 0.0
    last: float = 0.0
    negative: int | None = None
    rates: list[tuple[int, float]] = field(default_factory=list)
    stride: int = 1
    loaders: dict[int, Passes] = field(default_factory=dict)

    @property
    def cls(self) -> str:
        """Class name without its module."""
        return self.made.cls.rpartition(".")[2]

    @property
    def horizon(self) -> dict[str, float]:
        """Length-like arguments by name."""
        return dict(self.made.horizon)

    @property
    def per_step(self) -> bool:
        """Stepped once for (nearly) every optimizer step."""
        return self.calls >= 2 and self.mores <= 0.05 * self.calls

    @property
    def rarer(self) -> bool:
        """Stepped once for several optimizer steps."""
        return self.mores >= 1 and self.ones <= 0.1 * self.calls

    def rate_at(self, call: int) -> float:
        """The rate after call number `call` (from 1), by the nearest one that was kept before it."""
        found = self.made.lrs[0] if self.made.lrs else 0.0
        for index, rate in self.rates:
            if index > call:
                break
            found = rate
        return found

    def first_call_at_or_below(self, rate: float) -> int | None:
        """The first kept call after the peak with a rate of `rate` or less."""
        peaked = False
        for index, value in [(0, self.made.lrs[0] if self.made.lrs else 0.0), *self.rates]:
            peaked = peaked or value >= 0.999 * self.peak
            if peaked and value <= rate:
                return index
        return None

    def epochs(self, world: World) -> tuple[int, int, int] | None:
        """(passes, steps a pass, loader) of the loader behind most of the optimizer's steps; None without a loader.

        Loaders made on one line (anew for each epoch) count as one.
        """
        lines: dict[tuple[str, int], list[int]] = {}
        for ident in self.loaders:
            info = world.loaders.get(ident)
            lines.setdefault(info.made.site.key() if info is not None else ("", ident), []).append(ident)
        if not lines:
            return None
        same = max(lines.values(), key=lambda idents: sum(self.loaders[i].steps for i in idents))
        return sum(self.loaders[i].passes for i in same), max(self.loaders[i].most for i in same), same[0]


@dataclass(slots=True)
class State:
    """Schedules by scheduler and by optimizer; the loader pass under way."""

    schedules: dict[int, Schedule] = field(default_factory=dict)
    of_optimizer: dict[int, list[Schedule]] = field(default_factory=dict)
    begun: ev.LoaderEpoch | None = None


def update(state: State, event: ev.Event, world: World) -> None:
    """Take in one event of `LISTENS`."""
    if isinstance(event, ev.Step):
        if state.begun is not None:
            for schedule in state.of_optimizer.get(event.optimizer, ()):
                _count_pass(schedule, state.begun, event)
    elif isinstance(event, ev.SchedulerStep):
        stepped = state.schedules.get(event.scheduler)
        if stepped is not None:
            _called(stepped, event)
    elif isinstance(event, ev.LoaderEpoch):
        state.begun = event
    elif isinstance(event, ev.SchedulerMade):
        steps = world.optimizer(event.optimizer).steps
        rate = event.lrs[0] if event.lrs else 0.0
        schedule = Schedule(event, optimizer_steps=steps, steps_at_making=steps, peak=rate, last=rate)
        state.schedules[event.scheduler] = schedule
        state.of_optimizer.setdefault(event.optimizer, []).append(schedule)


def _count_pass(schedule: Schedule, begun: ev.LoaderEpoch, step: ev.Step) -> None:
    passes = schedule.loaders.get(begun.loader)
    if passes is None:
        if len(schedule.loaders) < LOADERS_KEPT:
            schedule.loaders[begun.loader] = Passes(begun.epoch, begun.epoch, step.index)
        return
    passes.steps += 1
    if begun.epoch == passes.last:
        passes.most = max(passes.most, step.index - passes.began + 1)
    else:
        if begun.epoch == passes.last + 1 and len(schedule.loaders) == 1:
            passes.most = max(passes.most, step.index - passes.began)
        passes.last, passes.began = begun.epoch, step.index


def _called(schedule: Schedule, event: ev.SchedulerStep) -> None:
    steps = event.optimizer_steps - schedule.optimizer_steps
    calls = event.index + 1 - schedule.calls
    if calls <= 0:
        return
    if schedule.calls == 0:
        schedule.iteration, schedule.site = event.iteration, event.site
    elif steps == calls:
        schedule.ones += calls
    elif steps > calls:
        schedule.mores += calls
    schedule.optimizer_steps = event.optimizer_steps
    schedule.calls = event.index + 1
    if not event.lrs:
        return
    rate = event.lrs[0]
    schedule.last = rate
    schedule.peak = max(schedule.peak, rate)
    if rate < 0 and schedule.negative is None:
        schedule.negative = schedule.calls
    schedule.seen += 1
    if schedule.seen % schedule.stride == 0:
        schedule.rates.append((schedule.calls, rate))
        if len(schedule.rates) > RATES_KEPT:
            schedule.rates = schedule.rates[1::2]
            schedule.stride *= 2
