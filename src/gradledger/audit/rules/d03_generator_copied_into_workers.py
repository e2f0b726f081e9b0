"""# One random generator, copied into every worker

## What it is
A data set draws from a random generator of its own (a numpy Generator, a `random.Random`, a `torch.Generator`) and its
loader has worker processes.  Each worker receives an identical copy, and receives it anew in each epoch.

## Why it matters
All workers draw the same numbers: the augmentations of one batch repeat in the next, and the same few repeat epoch
after epoch.  There is far less variety than the code seems to make.

## How it is found
When a loader with workers begins a pass without a `worker_init_fn`, or with one that speaks of no random number, the
methods that fetch an item (and the transforms that they call) are searched for the generators that they use.  And the
workers themselves report from which generators
they draw for their first batch, and in which state these were: it is reported when two workers drew from equal states,
however they came to be equal (a `worker_init_fn` that seeds all of them alike, a data set that seeds itself).  Of an
iterable data set the first batches of all workers are compared: it is reported when they are the same.

A `worker_init_fn` that takes fresh entropy or the time (`default_rng()`, `np.random.seed()`) in a program that seeds
torch is a warning: the workers draw from it, and no seed of the run says what.

## Near misses
- No worker processes; a `worker_init_fn` that seeds by worker; a data set that asks `get_worker_info()`.
- Generators used only to build the data; generators made for an item from its index.
- torch's and numpy's global generators, which the loader seeds for each worker.
- Fresh entropy in a program that seeds nothing.

## Fix
`worker_init_fn=seed_worker`, which gives `get_worker_info().dataset` a generator seeded with `get_worker_info().seed`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct
from gradledger.audit._workers import generator_lines, init_fn_lines, seeded_at, seeding_lines, seeds_nothing, unseeded
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, WorkerDraws, WorkerGenerator, WorkersAlike

RULE = Rule(
    "D3",
    "generator-copied-into-workers",
    "data",
    "Every worker process draws from a copy of one random generator: the same numbers, again in each epoch.",
)
LISTENS: tuple[type[Event], ...] = (WorkerGenerator, WorkerDraws, WorkersAlike)
KEPT = 200


@dataclass(slots=True)
class State:
    """Generators that went to workers; what workers drew from, by loader, pass, generator and state."""

    seen: list[WorkerGenerator] = field(default_factory=list)
    draws: dict[tuple[int, int, str, str], list[WorkerDraws]] = field(default_factory=dict)
    alike: list[WorkersAlike] = field(default_factory=list)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, WorkerGenerator) and len(state.seen) < KEPT:
        state.seen.append(event)
    elif isinstance(event, WorkerDraws) and len(state.draws) < KEPT:
        state.draws.setdefault((event.loader, event.epoch, event.name, event.state), []).append(event)
    elif isinstance(event, WorkersAlike) and len(state.alike) < KEPT:
        state.alike.append(event)


def finish(state: State, world: World) -> list[Finding]:
    found: list[Finding] = []
    said: set[tuple[int, str]] = set()  # several readers share a generator
    for event in state.seen:
        loader = world.loaders.get(event.loader)
        passes = loader.epochs if loader is not None else 1
        again = passes > 1 and not event.persistent
        site = loader.made.site if loader is not None else event.site
        seeded = event.init_fn and not seeds_nothing(site)
        if seeded or (event.workers < 2 and not again) or (event.loader, event.name) in said:
            continue
        said.add((event.loader, event.name))
        whose = f"each of the {event.workers} worker processes" if event.workers > 1 else "the worker process"
        lines = generator_lines(event.reader.file, event.name, event.reader.line)
        often = f", the same in each of {passes} passes" if again else ""
        found.append(
            Finding(
                "D3",
                "error",
                site,
                f"`{event.name}` ({event.kind}) of the data set is copied into {whose}{often}: the random numbers "
                "that it draws for different items are identical.",
                "DataLoader(..., worker_init_fn=seed_worker), which seeds the generator with get_worker_info().seed",
                related=distinct(site, (*(lines or [event.reader]), event.site, *init_fn_lines(site))),
                evidence={"generator": event.name, "kind": event.kind, "workers": event.workers, "passes": passes},
                subject=event.name,
                iteration=event.iteration,
            )
        )
    told = {event.loader for event in state.seen if found}
    drawn = [finding for finding in _drawn(state, world) if finding.evidence["loader"] not in told]
    told |= {number for number, *_ in state.draws} if drawn else set()
    drawn += [finding for number in {n for n, *_ in state.draws} - told for finding in _unowned(number, state, world)]
    return [*found, *drawn, *(_of_streams(event, world) for event in state.alike if event.loader not in told)]


def _of_streams(event: WorkersAlike, world: World) -> Finding:
    loader = world.loaders.get(event.loader)
    made = loader.made.site if loader is not None else event.site
    site = event.reader if event.reader.file else made
    return Finding(
        "D3",
        "error",
        site,
        f"all {event.workers} workers give the same: their first {event.batches // event.workers} batches are equal, "
        f"value for value, so each sample comes {event.workers} times.",
        "seed by worker, default_rng([seed, get_worker_info().id]), or give each worker a part of the stream",
        related=distinct(site, (*seeding_lines(event.reader), made, event.site)),
        evidence={"workers": event.workers, "batches_compared": event.batches, "loader": event.loader},
        subject="workers",
        iteration=event.iteration,
    )


def _drawn(state: State, world: World) -> list[Finding]:
    """Generators that several workers of one pass drew from in one state."""
    found: dict[tuple[int, str], Finding] = {}
    for (number, _, name, _), events in state.draws.items():
        workers = sorted({e.worker for e in events})
        if len(workers) < 2 or (number, name) in found:
            continue
        event = events[0]
        loader = world.loaders.get(number)
        site = loader.made.site if loader is not None else event.site
        lines = [*init_fn_lines(site), *(generator_lines(site.file, name) if name.startswith("self.") else ())]
        found[number, name] = Finding(
            "D3",
            "error",
            site,
            f"workers {', '.join(map(str, workers[:8]))} of {event.workers} drew from `{name}` in the very same state "
            "for their first batch: the random numbers of their items are identical.",
            "seed by worker: np.random.seed(torch.initial_seed() % 2**32) in the worker_init_fn, or no seed at all",
            related=distinct(site, (*lines, event.site)),
            evidence={"generator": name, "workers": event.workers, "in_one_state": len(workers), "loader": number},
            subject=name,
            iteration=event.iteration,
        )
    return list(found.values())


def _unowned(number: int, state: State, world: World) -> list[Finding]:
    """Workers that draw from what their init function gave fresh entropy, in a program that seeds torch."""
    loader = world.loaders.get(number)
    made = loader.made.site if loader is not None else None
    fresh = unseeded(made) if made is not None else None
    seeded = seeded_at(made) if made is not None and fresh is not None else None
    if made is None or fresh is None or seeded is None:
        return []
    site, name = fresh
    drawn = [events for (of, _, drawn, _), events in state.draws.items() if of == number and _is_named(drawn, name)]
    if not drawn:
        return []
    return [
        Finding(
            "D3",
            "warning",
            site,
            f"the workers draw from `{name}`, which starts from fresh entropy in each of them, while line "
            f"{seeded.line} seeds the program: what they draw belongs to no seed, and no run can be repeated.",
            "seed by worker: default_rng(get_worker_info().seed), or torch.initial_seed() % 2**32",
            related=distinct(site, (*init_fn_lines(made), made, seeded)),
            evidence={"generator": name, "workers": drawn[0][0].workers, "loader": number},
            subject=name,
            iteration=drawn[0][0].iteration,
        )
    ]


def _is_named(drawn: str, name: str) -> bool:
    """Whether `self.transform.rng` is the attribute `rng`."""
    return drawn == name or (drawn.startswith("self.") and drawn.rpartition(".")[2] == name)


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    if any(loader.made.workers for loader in world.loaders.values()):
        return None
    return "no DataLoader with worker processes was built"
