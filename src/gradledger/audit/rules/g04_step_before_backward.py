"""# The step stands before the backward

## What it is
`optimizer.step()` runs before `loss.backward()` of the same iteration.  It applies the gradient of the batch before
(or none at all the first time), taken at weights that have changed since.

## Why it matters
Every update is one iteration late and belongs to another batch; the last gradient is never applied.  In a network
with more than one layer the step changes weights that the waiting graph needs, and the next backward raises "one of
the variables needed for gradient computation has been modified by an inplace operation".

## How it is found
Between the reverse pass whose gradient a step uses and that step lies a forward pass whose graph is walked only after
the step; or steps find nothing because the clear, the step and then the backward follow each other.  A step at the
top of the loop, before the forward pass, is reported as a warning: its gradients are right, but the first step is
empty and the last gradient is lost.  When the program ends with the error above, the steps between that forward and
its backward are named.

## Near misses
- Two optimizers over different parameters, each stepped after its own backward.
- A generator's forward before the discriminator's step: it walks back through other parameters.
- One early `optimizer.step()` to quiet a scheduler's warning.

## Fix
Order: `optimizer.zero_grad()`, `loss.backward()`, `optimizer.step()`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit import _lost
from gradledger.audit._cycle import loss_word, of_steps, optimizer_word
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, ModuleCalled, RunEnded, Step
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "G4",
    "step-before-backward",
    "gradient lifecycle",
    "optimizer.step() runs before the backward of its iteration and applies the previous gradient, or none.",
)
LISTENS = (*_lost.LISTENS, RunEnded)

CALLS_KEPT = 256
IN_PLACE = "modified by an inplace operation"


@dataclass(slots=True)
class _Watched:
    """One optimizer.  `calls`: forward calls with graph since its tensors were last filled; `waiting`: those that lay
    before its last step; `late`: steps after which such a graph was walked."""

    calls: list[int] = field(default_factory=list)
    waiting: frozenset[int] = frozenset()
    waiting_step: Step | None = None
    steps: int = 0
    full_steps: int = 0
    passes: int = 0
    unused: int = 0
    first_empty: Site | None = None
    late: int = 0
    late_step: Step | None = None
    late_backward: Site = NOWHERE
    last_backward: Site = NOWHERE


@dataclass(slots=True)
class State:
    lost: _lost.State = field(default_factory=_lost.State)
    optimizers: dict[int, _Watched] = field(default_factory=dict)
    raised: Backward | None = None
    crossed: tuple[Step, ...] = ()
    last_steps: dict[int, Step] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    _lost.update(state.lost, event, world)
    if isinstance(event, ModuleCalled):
        if event.output_has_graph:
            for watched in state.optimizers.values():
                if len(watched.calls) < CALLS_KEPT:
                    watched.calls.append(event.call)
    elif isinstance(event, Step):
        _step(state, event)
    elif isinstance(event, Backward) and event.method == "backward":
        _backward(state, event, world)


def _step(state: State, event: Step) -> None:
    watched = state.optimizers.setdefault(event.optimizer, _Watched())
    state.last_steps[event.optimizer] = event
    watched.steps += 1
    watched.waiting = frozenset()
    if event.closure:
        return
    new = any(f.consumed == 0 for life in event.lives if not life.frozen for f in life.fills)
    if event.index == 0 and not new and watched.passes == 0:
        watched.first_empty = event.site
    if new:
        watched.full_steps += 1
        watched.unused = 0
        watched.waiting, watched.waiting_step = frozenset(watched.calls), event


def _backward(state: State, event: Backward, world: World) -> None:
    if event.raised and IN_PLACE in event.raised:
        state.raised = event
        since = event.root_age if event.root_age is not None else 0
        crossed = [s for s in state.last_steps.values() if s.iteration >= event.iteration - since]
        state.crossed = tuple(crossed)
        return
    walked = {c.call for c in event.calls}
    for ident, optimizer in world.optimizers.items():
        watched = state.optimizers.setdefault(ident, _Watched())
        if not any(t in optimizer.tensors for t in event.leaves):
            continue
        watched.passes += 1
        watched.unused += 1
        watched.last_backward = event.site
        watched.calls = []
        if watched.waiting & walked and watched.waiting_step is not None:
            watched.late += 1
            if watched.late_step is None:
                watched.late_step, watched.late_backward = watched.waiting_step, event.site
        watched.waiting = frozenset()


def finish(state: State, world: World) -> list[Finding]:
    findings: list[Finding] = []
    if state.raised is not None and state.crossed and world.ended is not None and IN_PLACE in world.ended.message:
        findings.append(_loud(state.raised, state.crossed, world))
    for watched in state.optimizers.values():
        if watched.late >= 3 and watched.late_step is not None:
            findings.append(_late(watched, watched.late_step, world))
        elif _top_of_loop(watched):
            findings.append(_delayed(watched, world))
    for ident, record, case in _lost.cases(state.lost, world):
        if _lost.step_comes_first(record, case):
            findings.append(_empty(ident, record, case, world))
    return findings


def _order(word: str, loss: str) -> str:
    return f"order the lines: {word}.zero_grad(); {loss}.backward(); {word}.step()"


def _late(watched: _Watched, step: Step, world: World) -> Finding:
    word = optimizer_word(step.site, world)
    return Finding(
        "G4",
        "error",
        step.site,
        f"`{word}.step()` runs between the forward pass and its backward on line {watched.late_backward.line}: it "
        f"applies the gradient of the iteration before, seen at {times(watched.late, 'watched step')}"
        + (", and the first step found none." if watched.first_empty else "."),
        _order(word, loss_word(watched.late_backward, world)),
        related=distinct(step.site, (watched.late_backward,)),
        evidence={
            "late_steps": watched.late,
            "steps": watched.steps,
            "first_step_empty": watched.first_empty is not None,
        },
        count=watched.late,
        subject=word,
        iteration=step.iteration,
    )


def _top_of_loop(watched: _Watched) -> bool:
    return (
        watched.first_empty is not None
        and watched.full_steps >= 3
        and watched.full_steps == watched.steps - 1
        and watched.passes == watched.steps
        and watched.unused == 1
    )


def _delayed(watched: _Watched, world: World) -> Finding:
    step = watched.first_empty or NOWHERE
    word = optimizer_word(step, world)
    return Finding(
        "G4",
        "warning",
        step,
        f"`{word}.step()` comes before the backward of its iteration: the first of {watched.steps} steps found no "
        "gradient and the gradient of the last backward is never applied.",
        _order(word, loss_word(watched.last_backward, world)),
        related=distinct(step, (watched.last_backward,)),
        evidence={"steps": watched.steps, "backwards": watched.passes, "first_step_empty": True},
        count=watched.steps,
        subject=word,
        iteration=0,
    )


def _empty(ident: int, record: _lost.Watched, case: _lost.Case, world: World) -> Finding:
    word = optimizer_word(case.step.site, world)
    return Finding(
        "G4",
        "error",
        case.step.site,
        f"`{word}.step()` comes before the backward on line {case.loss.fill.line}, whose gradient is then cleared "
        f"unused: {case.seen} of {of_steps(record.steps, ident, world)} found nothing to apply.",
        _order(word, loss_word(case.loss.fill, world)),
        related=distinct(case.step.site, (case.loss.fill, case.loss.clear)),
        evidence={"steps": record.steps, "empty_steps": case.seen, "reverse_passes_lost": case.lost},
        count=case.seen,
        subject=word,
        iteration=case.step.iteration,
    )


def _loud(event: Backward, crossed: tuple[Step, ...], world: World) -> Finding:
    step = crossed[0]
    word = optimizer_word(step.site, world)
    return Finding(
        "G4",
        "error",
        step.site,
        f"The backward on line {event.site.line} raises because `{word}.step()` on line {step.site.line} changed, in "
        "place, weights that the graph built before it still needs.",
        _order(word, loss_word(event.site, world)),
        related=distinct(step.site, (event.site, *(s.site for s in crossed[1:]))),
        evidence={"error": event.raised[:200], "steps_since_forward": len(crossed)},
        subject=word,
        iteration=event.iteration,
    )


def not_checked(state: State, world: World) -> str | None:
    return None if state.last_steps else "no optimizer made a step"
