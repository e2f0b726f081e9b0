"""# Ranks see the same data

## What it is
Several processes train one model and draw the very same batches, because nobody splits the data among them.  Or a
`DistributedSampler` splits it, and nobody tells it the epoch: `set_epoch` is never called.

## Why it matters
With equal batches, two ranks cost twice as much as one and learn the same.  Without `set_epoch` the order, and with it
each batch, is the same in every epoch: there is no shuffling, and each rank sees its own part of the data for ever.

## How it is found
Each rank keeps digests of its first batches; it is reported when those that were trained on are equal in two ranks,
batch after batch.  And it is reported when a shuffling sampler begins several passes that are trained on with the same
epoch and seed.

## Near misses
- Samplers that do not shuffle; one pass alone; validation that every rank makes as a whole.
- Tensor and pipeline parallelism, where ranks work on one batch together: other values than gradients travel.

## Fix
`sampler = DistributedSampler(data)`, and `sampler.set_epoch(epoch)` before each pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, LoaderEpoch, RankBatch, RankParameters, SamplerPass
from gradledger.core.site import Site

RULE = Rule(
    "X2",
    "ranks-see-same-data",
    "ranks",
    "Ranks draw the same batches, or a distributed sampler repeats its order in every epoch.",
)
LISTENS: tuple[type[Event], ...] = (SamplerPass, RankBatch, RankParameters, LoaderEpoch, Backward)
KEPT = 2000
BATCHES = 3
_Line = tuple[tuple[str, int], int]


@dataclass(slots=True)
class _Passes:
    first: SamplerPass
    last: Site
    orders: list[tuple[int, int]] = field(default_factory=list)
    trained: int = 0


@dataclass(slots=True)
class State:
    """Passes of each loader and rank; the pass that is open; batches by loader, pass and index: digests by rank."""

    passes: dict[tuple[int, int], _Passes] = field(default_factory=dict)
    open: _Passes | None = None
    batches: dict[tuple[int, int, int], dict[int, RankBatch]] = field(default_factory=dict)
    exchanged: bool = False


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, SamplerPass):
        key = (event.rank, event.loader)
        if key in state.passes or len(state.passes) < KEPT:
            one = state.passes.setdefault(key, _Passes(event, event.site))
            if len(one.orders) < KEPT:
                one.orders.append(event.order)
            one.last = event.site
            state.open = one
    elif isinstance(event, LoaderEpoch):
        if state.open is not None and event.loader != state.open.first.loader:
            state.open = None
    elif isinstance(event, Backward):
        if state.open is not None and event.method == "backward":
            state.open.trained += 1
    elif isinstance(event, RankBatch):
        if len(state.batches) < KEPT:
            state.batches.setdefault((event.loader, event.epoch, event.index), {})[event.rank] = event
    elif isinstance(event, RankParameters):
        state.exchanged |= event.exchanged


def finish(state: State, world: World) -> list[Finding]:
    found: dict[tuple[str, int], Finding] = {}
    for one in state.passes.values():
        made = one.first.made_site
        same = len(one.orders) > 1 and len(set(one.orders)) == 1
        if not same or one.trained < len(one.orders):
            continue
        found.setdefault(
            one.last.key(),
            Finding(
                "X2",
                "error",
                one.last,
                f"the DistributedSampler begins {times(len(one.orders), 'pass')} with epoch {one.orders[0][0]} and the "
                f"same seed: the order and every batch repeat, and this rank never sees the other "
                f"{one.first.replicas - 1} of {one.first.replicas} parts of the data.",
                "sampler.set_epoch(epoch) before each pass",
                related=distinct(one.last, (made, *(Site(f.file, f.line, f.function) for f in one.last.callers[:2]))),
                evidence={"passes": len(one.orders), "epoch": one.orders[0][0], "replicas": one.first.replicas},
                count=len(one.orders),
                iteration=one.first.iteration,
            ),
        )
    return [*found.values(), *_equal(state)]


def _equal(state: State) -> list[Finding]:
    """Batches that two ranks have in common, at the same place."""
    if state.exchanged:
        return []
    equal: dict[int, list[RankBatch]] = {}
    apart: set[int] = set()
    for (loader, _, _), ranks in sorted(state.batches.items()):
        trained = [b for b in ranks.values() if b.trained]
        if len(trained) < 2:
            continue
        if len({b.digest for b in trained}) == 1:
            equal.setdefault(loader, []).append(trained[0])
        else:
            apart.add(loader)
    found = []
    for loader, batches in equal.items():
        if loader in apart or len(batches) < BATCHES:
            continue
        event = batches[0]
        found.append(
            Finding(
                "X2",
                "error",
                event.site,
                f"all ranks draw the same {len(batches)} batches that were compared: {event.world} ranks do the work "
                "of one.",
                "DataLoader(..., sampler=DistributedSampler(data)) splits the data among the ranks",
                evidence={"ranks": event.world, "equal_batches": len(batches), "distributed": event.distributed},
                count=len(batches),
                iteration=event.iteration,
            )
        )
    return found


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    several = any(len(ranks) > 1 for ranks in state.batches.values())
    return None if state.passes or several else "no DistributedSampler and no batches of two ranks were seen"
