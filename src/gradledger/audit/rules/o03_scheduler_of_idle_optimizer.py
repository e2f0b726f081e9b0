"""# The scheduler drives an optimizer that no longer steps

## What it is
The optimizer is built again (for fine-tuning, after loading, after unfreezing), and the scheduler is not: it goes on
changing the learning rate of the old optimizer, which nobody steps any more.  Or a scheduler is read back from a file
as an object, with a copy of its optimizer.

## Why it matters
The new optimizer keeps its first learning rate for the rest of the run, while `scheduler.get_last_lr()` prints a rate
that decays.

## How it is found
Calls of a scheduler between which its own optimizer made no step, while another optimizer stepped that was built later,
holds some of the same parameters (or those of the same model), and has no scheduler of its own that is stepped.  An
optimizer that the program never built, whose parameters no model has, came out of a file.

## Near misses
- Several optimizers, one of which pauses: they hold different parameters.
- Two optimizers over the same parameters, each with its scheduler.

## Fix
Build the scheduler again, on the new optimizer, next to the line that builds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct, number, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import OptimizerInfo, World
from gradledger.core.events import Event, SchedulerStep
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "O3",
    "scheduler-of-idle-optimizer",
    "optimizers and schedulers",
    "The scheduler is bound to an optimizer that nobody steps any more, so the rate in use never changes.",
)
LISTENS = (SchedulerStep,)


@dataclass(slots=True)
class Watched:
    """One scheduler: steps of all optimizers at its latest call, and how many calls in a row found that its own had not
    stepped while another one had (by that other)."""

    optimizer: int
    own_steps: int
    steps: dict[int, int]
    idle: dict[int, int] = field(default_factory=dict)
    since: dict[int, SchedulerStep] = field(default_factory=dict)
    site: Site = NOWHERE


def init() -> dict[int, Watched]:
    return {}


def update(state: dict[int, Watched], event: Event, world: World) -> None:
    if not isinstance(event, SchedulerStep):
        return
    steps = {o.ident: o.steps for o in world.optimizers.values()}
    known = state.get(event.scheduler)
    if known is None:
        state[event.scheduler] = Watched(event.optimizer, event.optimizer_steps, steps, site=event.site)
        return
    if event.optimizer_steps > known.own_steps or event.optimizer != known.optimizer:
        known.idle.clear()
        known.since.clear()
    else:
        for ident, count in steps.items():
            if ident != event.optimizer and count > known.steps.get(ident, 0):
                known.idle[ident] = known.idle.get(ident, 0) + event.weight
                known.since.setdefault(ident, event)
    known.optimizer, known.own_steps = event.optimizer, event.optimizer_steps
    known.steps, known.site = steps, event.site


def finish(state: dict[int, Watched], world: World) -> list[Finding]:
    findings = []
    for ident, watched in state.items():
        info = world.schedulers.get(ident)
        if info is None:
            continue
        own = world.optimizer(watched.optimizer)
        for other_ident, calls in watched.idle.items():
            other = world.optimizer(other_ident)
            never = own.steps == 0
            read = _read_back(own, other, world)
            if not own.site.file and not read:
                continue  # where it was built was not seen: it may be a wrapper that steps another
            if calls < 2 or (other.made_seq < own.made_seq and not never) or not (read or _succeeds(own, other, world)):
                continue
            if any(s.steps > 0 for s in world.schedulers_of(other_ident)):
                continue
            since = watched.since[other_ident]
            shared = len(own.tensors.keys() & other.tensors.keys())
            rate = other.groups[0].lr if other.groups else None
            cls = info.made.cls.rpartition(".")[2]
            here, before = _told_apart(other.site, own.site)
            if never:
                here, before = info.made.site, own.site
            findings.append(
                Finding(
                    "O3",
                    "error",
                    here,
                    f"{cls} came out of a file with an optimizer and parameters of its own, which no model has: over "
                    f"its last {times(calls, 'call')} {other.short_cls} from line {other.site.line} trained the model "
                    "at a rate that the scheduler does not reach."
                    if read
                    else f"{cls} drives an optimizer that was never stepped (line {before.line}): over its last "
                    f"{times(calls, 'call')} {other.short_cls} from line {other.site.line} trained "
                    f"{'the same parameters' if shared else 'the model'} at its first rate {number(rate)}."
                    if never
                    else f"{other.short_cls} is built here again, but {cls} (line {info.made.site.line}) still drives "
                    f"the optimizer from line {before.line}: over its last {times(calls, 'call')} that one made no "
                    f"step, while this one steps at its first rate {number(rate)}.",
                    f"keep the state_dict() of {cls} in the file; after loading, .optimizer = <the one that is stepped>"
                    if read
                    else f"{cls}(<the optimizer that is stepped>, ...)"
                    if never
                    else f"build the scheduler again here: scheduler = {cls}(<this optimizer>, ...)",
                    related=distinct(here, (watched.site, info.made.site, other.site, before)),
                    evidence={
                        "scheduler": cls,
                        "calls_without_step": calls,
                        "shared_parameters": shared,
                        "steps_of_new_optimizer": other.steps,
                        "rate_in_use": rate,
                    },
                    count=calls,
                    subject=cls,
                    iteration=since.iteration,
                )
            )
    return findings


def _told_apart(new: Site, old: Site) -> tuple[Site, Site]:
    """The lines that built two optimizers; when one helper built both, the lines from which it was called."""
    mine = [new, *new.above()]
    yours = [old, *old.above()]
    for here, there in zip(mine, yours, strict=False):
        if here.key() != there.key():
            return here, there
    return new, old


def _read_back(own: OptimizerInfo, other: OptimizerInfo, world: World) -> bool:
    """Whether an optimizer was never built or stepped, holds parameters that no model has, and is `other`'s like."""
    strange = not own.site.file and own.steps == 0 and not any(world.owners(t) for t in own.tensors)
    return strange and own.cls == other.cls and len(own.tensors) == len(other.tensors)


def _succeeds(own: OptimizerInfo, other: OptimizerInfo, world: World) -> bool:
    """Whether `other` took over: it holds some of the same tensors, or those of a model that replaced a freed one."""
    if own.tensors.keys() & other.tensors.keys():
        return True
    owners = [world.owners(t) for t in own.tensors]
    gone = all(all(world.module(m).freed for m in modules) for modules in owners)
    shapes = sorted(world.tensor(t).shape for t in own.tensors)
    return gone and shapes == sorted(world.tensor(t).shape for t in other.tensors)


def not_checked(state: dict[int, Watched], world: World) -> str | None:
    return None if state else "no scheduler was stepped"
