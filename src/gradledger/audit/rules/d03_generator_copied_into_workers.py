"""# One random generator, copied into every worker

## What it is
A data set draws from a random generator of its own (a numpy Generator, a `random.Random`, a `torch.Generator`) and its
loader has worker processes.  Each worker receives an identical copy, and receives it anew in each epoch.

## Why it matters
All workers draw the same numbers: the augmentations of one batch repeat in the next, and the same few repeat epoch
after epoch.  There is far less variety than the code seems to make.

## How it is found
When a loader with workers begins a pass without a `worker_init_fn`, the methods that fetch an item (and the transforms
that they call) are searched for the generators that they use.

## Near misses
- No worker processes; a `worker_init_fn` that seeds by worker; a data set that asks `get_worker_info()`.
- Generators used only to build the data; generators made for an item from its index.
- torch's and numpy's global generators, which the loader seeds for each worker.

## Fix
`worker_init_fn=seed_worker`, which gives `get_worker_info().dataset` a generator seeded with `get_worker_info().seed`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, WorkerGenerator

RULE = Rule(
    "D3",
    "generator-copied-into-workers",
    "data",
    "Every worker process draws from a copy of one random generator: the same numbers, again in each epoch.",
)
LISTENS: tuple[type[Event], ...] = (WorkerGenerator,)
KEPT = 200


@dataclass(slots=True)
class State:
    """Generators that went to workers."""

    seen: list[WorkerGenerator] = field(default_factory=list)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, WorkerGenerator) and len(state.seen) < KEPT:
        state.seen.append(event)


def finish(state: State, world: World) -> list[Finding]:
    found = []
    for event in state.seen:
        loader = world.loaders.get(event.loader)
        passes = loader.epochs if loader is not None else 1
        again = passes > 1 and not event.persistent
        if event.init_fn or (event.workers < 2 and not again):
            continue
        site = loader.made.site if loader is not None else event.site
        whose = f"each of the {event.workers} worker processes" if event.workers > 1 else "the worker process"
        often = f", the same in each of {passes} passes" if again else ""
        found.append(
            Finding(
                "D3",
                "error",
                site,
                f"`{event.name}` ({event.kind}) of the data set is copied into {whose}{often}: the random numbers "
                "that it draws for different items are identical.",
                "DataLoader(..., worker_init_fn=seed_worker), which seeds the generator with get_worker_info().seed",
                related=distinct(site, (event.reader, event.site)),
                evidence={"generator": event.name, "kind": event.kind, "workers": event.workers, "passes": passes},
                subject=event.name,
                iteration=event.iteration,
            )
        )
    return found


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    if any(loader.made.workers for loader in world.loaders.values()):
        return None
    return "no DataLoader with worker processes was built"
