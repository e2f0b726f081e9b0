"""# State that a reload loses

## What it is
The program saves or keeps state in order to come back to it, and what comes back is something else:

- `best = model.state_dict()`: the tensors in it *are* the model's.  Training goes on and changes them, so that
  "restoring the best epoch" restores the last one.
- The scheduler's state is in the file, and nothing loads it: the schedule starts over.

## Why it matters
The reported model is not the one that was chosen; the resumed learning rate is not the one that was planned.  No error
is raised in either case.

## How it is found
Each state that a module hands out is known by its tensors and the iteration.  A load is reported when the state it is
given is the live memory of that very module, handed out before later steps of its optimizer.  A scheduler is reported
when the file held a scheduler's state, module or optimizer were filled from it, and the scheduler then steps from its
beginning.

## Near misses
- `copy.deepcopy(model.state_dict())`, or `{k: v.clone() ...}`: a copy indeed.
- A state that is taken and given to another network at once.
- Starting a new schedule on purpose, from pretrained weights; `last_epoch=` given, or the scheduler driven forward.

## Fix
`best = copy.deepcopy(model.state_dict())`; `scheduler.load_state_dict(checkpoint["scheduler"])`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gradledger.audit import _resumes
from gradledger.audit._phrases import distinct, times
from gradledger.audit._resumes import Resumes
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, StateLoaded
from gradledger.core.site import NOWHERE

RULE = Rule(
    "C3",
    "restored-state-is-lost",
    "checkpoint",
    "What is restored is not what was kept: a state that is the live memory itself, or a schedule that starts over.",
)
LISTENS = _resumes.LISTENS
RARELY = 3  # restores; a program that loads its own memory again and again writes into it by that way
KEPT = 64


@dataclass(slots=True)
class State:
    """The resumes, and loads of a module's own live memory with the steps that lay between: by line, and how many."""

    resumes: Resumes = field(default_factory=Resumes)
    own: dict[tuple[str, int], tuple[StateLoaded, int]] = field(default_factory=dict)
    count: Counter[tuple[str, int]] = field(default_factory=Counter)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    _resumes.update(state.resumes, event, world)
    if isinstance(event, StateLoaded) and event.own_since is not None and world.trained_module(event.ident):
        key = event.site.key()
        steps = event.iteration - event.own_since
        if steps > 0 and (key in state.own or len(state.own) < KEPT):
            state.own.setdefault(key, (event, steps))
        state.count[key] += 1


def finish(state: State, world: World) -> list[Finding]:
    own = [_own(load, steps, world) for key, (load, steps) in state.own.items() if state.count[key] <= RARELY]
    return own + _schedules(state.resumes, world)


def _own(load: StateLoaded, steps: int, world: World) -> Finding:
    name = world.module_name(load.ident)
    site = load.taken_site if load.taken_site.file else load.site
    return Finding(
        "C3",
        "error",
        site,
        f"this state is the memory of `{name}` itself, and {times(steps, 'step')} changed it before line "
        f"{load.site.line} loads it: the load changes nothing, and the kept state is the latest one.",
        "keep a copy: copy.deepcopy(model.state_dict())",
        related=distinct(site, (load.site,)),
        evidence={"steps_between": steps, "taken_at_iteration": load.own_since},
        subject=name,
        iteration=load.iteration,
    )


def _schedules(state: Resumes, world: World) -> list[Finding]:
    found = []
    for load, optimizer in _resumes.begun_anew(state, world):
        if "scheduler" not in load.held or not _resumes.means_to_resume(load, world):
            continue
        for scheduler in _resumes.schedulers_begun(state, load, optimizer, world):
            saved = next((s.site for s in reversed(state.saved) if "scheduler" in s.what), NOWHERE)
            last = scheduler.last_step.site if scheduler.last_step is not None else NOWHERE
            name = world.module_name(load.event.ident)
            found.append(
                Finding(
                    "C3",
                    "error",
                    load.event.site,
                    f"the file from which `{name}` goes on holds the state of a scheduler, and nothing loads it: "
                    f"{scheduler.made.cls} starts over, and so does the learning rate.",
                    'scheduler.load_state_dict(checkpoint["scheduler"])',
                    related=distinct(load.event.site, (scheduler.made.site, saved, load.read_at, last)),
                    evidence={"file_holds": sorted(load.held), "lrs": list(scheduler.made.lrs)},
                    confidence="likely",
                    subject=scheduler.made.cls,
                    iteration=load.event.iteration,
                )
            )
    return found


def not_checked(state: State, world: World) -> str | None:
    return None if state.resumes.loads or state.count else "no module's state was restored"
