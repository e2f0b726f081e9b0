"""# The scheduler is stepped before the optimizer

## What it is
`scheduler.step()` runs before `optimizer.step()` in every iteration.

## Why it matters
The schedule is one value ahead of the training: the first learning rate is never used, every drop comes one step
early, and a cosine ends with updates at rate 0.

## How it is found
A line of `scheduler.step()` whose first call comes before its optimizer made any step, with optimizer steps
between its calls from then on and after the last one.  A filled gradient waits for its step at these calls, or the
rate changes one call before it is due.

## Near misses
- `ReduceLROnPlateau` and other schedulers that are given a metric: they act on the past.
- A schedule wound forward before training, to resume it.
- A GradScaler that skips the first steps because of non-finite gradients.

## Fix
`optimizer.step()` first, then `scheduler.step()`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradledger.audit._cycle import optimizer_word, written
from gradledger.audit._phrases import distinct, number, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, ScalerCalled, SchedulerStep, Step
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "O1",
    "scheduler-before-optimizer",
    "optimizers and schedulers",
    "The scheduler moves before the optimizer: the first learning rate is never used and the schedule runs one ahead.",
    "warning",
)
LISTENS = (SchedulerStep, ScalerCalled, Backward, Step)
METRIC = ("ReduceLROnPlateau",)


@dataclass(slots=True)
class Watched:
    """One scheduler.  `early`: its first call came before any step of its optimizer; `regular`: every later call came
    from the same line and had optimizer steps before it; `changed_at`: the first call that changed the rate; `between`:
    calls with a filled gradient waiting for its step."""

    site: Site
    first_lrs: tuple[float, ...]
    lrs: tuple[float, ...]
    early: bool
    regular: bool = True
    calls: int = 1
    seen_steps: int = 0
    changed_at: int | None = None
    between: int = 0
    iteration: int = 0


@dataclass(slots=True)
class State:
    """By scheduler; optimizers whose step a scaler withheld; whether gradients were filled since the latest step."""

    watched: dict[int, Watched]
    scaled: set[int | None]
    filled: bool = False


def init() -> State:
    return State({}, set())


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Backward):
        state.filled = state.filled or (event.method == "backward" and bool(event.leaves))
        return
    if isinstance(event, Step):
        state.filled = False
        return
    if isinstance(event, ScalerCalled):
        if event.method == "step" and event.skipped:
            state.scaled.add(event.optimizer)
        return
    if not isinstance(event, SchedulerStep):
        return
    known = state.watched.get(event.scheduler)
    if known is None:
        info = world.schedulers.get(event.scheduler)
        before = info.made.lrs if info is not None else event.lrs
        attempted = event.optimizer in state.scaled or None in state.scaled
        early = event.index == 0 and event.optimizer_steps == 0 and not event.metric and not attempted
        changed = 0 if event.lrs != before else None
        state.watched[event.scheduler] = Watched(
            event.site,
            before,
            event.lrs,
            early,
            iteration=event.iteration,
            changed_at=changed,
            between=int(state.filled),
        )
        return
    if known.early:
        if event.site.key() != known.site.key() or event.optimizer_steps <= known.seen_steps:
            known.regular = False  # wound forward, or stepped at another place as well
        if known.changed_at is None and event.lrs != known.lrs:
            known.changed_at = event.index
    known.between += event.weight if state.filled else 0
    known.calls = max(known.calls + 1, event.index + 1)
    known.seen_steps = event.optimizer_steps
    known.lrs = event.lrs


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    for ident, watched in state.watched.items():
        info = world.schedulers.get(ident)
        if info is None or not (watched.early and watched.regular) or watched.calls < 2:
            continue
        made, optimizer = info.made, world.optimizer(info.made.optimizer)
        cls = made.cls.rpartition(".")[2]
        changed = watched.changed_at
        if cls in METRIC or changed is None:
            continue
        if watched.between < 0.9 * watched.calls and not _one_ahead(changed, dict(made.horizon)):
            continue
        if optimizer.steps <= watched.seen_steps:
            continue  # nothing was stepped after the last call: the order is the other one
        step = optimizer.last_step.site if optimizer.last_step is not None else NOWHERE
        rate = number(watched.first_lrs[0]) if watched.first_lrs else "?"
        consequence = (
            f"the first learning rate, {rate}, was never used"
            if changed == 0
            else f"the first change of the rate came at call {changed + 1}, one step early"
        )
        word = optimizer_word(step, world)
        findings.append(
            Finding(
                "O1",
                "warning",
                watched.site,
                f"{cls}.step() comes before the optimizer's step in all {watched.calls} calls: {consequence}, and the "
                f"schedule stays one value ahead.",
                f"{word}.step() first, then {written(watched.site, world) or 'scheduler.step()'}",
                related=distinct(watched.site, (step, made.site)),
                evidence={
                    "calls": watched.calls,
                    "optimizer_steps_before_first_call": 0,
                    "first_rate": watched.first_lrs[0] if watched.first_lrs else None,
                    "last_rate": watched.lrs[0] if watched.lrs else None,
                    "signature": f"one ahead for {times(optimizer.steps, 'step')}",
                },
                count=watched.calls,
                subject=cls,
                iteration=watched.iteration,
            )
        )
    return findings


def _one_ahead(changed: int, horizon: dict[str, float]) -> bool:
    """Whether the first change of the rate came one call too early: `step(epoch)` at the top of a loop does not."""
    if changed == 0:
        return True
    due = horizon.get("step_size")
    return due is None or changed + 1 == due


def not_checked(state: State, world: World) -> str | None:
    if not world.schedulers:
        return "no learning-rate scheduler was built"
    if not state.watched:
        return "no scheduler was stepped"
    return None
