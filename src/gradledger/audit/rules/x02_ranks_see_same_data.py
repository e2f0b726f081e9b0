"""# Ranks see the same data

## What it is
Several processes train one model and draw the very same batches, because nobody splits the data among them.  Or a
`DistributedSampler` splits it, and nobody tells it the epoch: `set_epoch` is never called.

## Why it matters
With equal data, two ranks cost twice as much as one and learn the same.  Without `set_epoch` the order, and with it
each batch, is the same in every epoch: there is no shuffling, and each rank sees its own part of the data for ever.

## How it is found
Each rank keeps digests of its first batches; it is reported when those that were trained on are equal in two ranks,
batch after batch.  Without a loader it is reported when the inputs of the network and the losses of the first reverse
passes are equal in all ranks, bit by bit, while the gradients are averaged over them.  It is reported when the samplers
of all ranks, made by the same line for as many replicas, are told one and the same rank.  And it is reported when a
shuffling sampler begins several passes that are trained on with the same epoch and seed.

## Near misses
- Samplers that do not shuffle; one pass alone; validation that every rank makes as a whole.
- One table in all ranks of which each takes its own rows; one input with noise, targets or terms of each rank's own.
- Batches that one rank sends to the others, and members of an ensemble, whose gradients nobody averages.
- Tensor and pipeline parallelism, where ranks work on one batch together: they hold different parameters, and other
  values than gradients travel.

## Fix
`sampler = DistributedSampler(data)`, and `sampler.set_epoch(epoch)` before each pass.  By hand: every rank its own
rows, `order[rank::world_size]`, or its own random stream, `torch.Generator().manual_seed(seed + rank)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gradledger.audit._code import lines_calling
from gradledger.audit._phrases import distinct, number, times
from gradledger.audit._source import source_lines
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, LoaderEpoch, RankBatch, RankLoss, RankParameters, SamplerPass
from gradledger.core.site import Site

RULE = Rule(
    "X2",
    "ranks-see-same-data",
    "ranks",
    "Ranks draw the same batches, or a distributed sampler repeats its order in every epoch.",
)
LISTENS: tuple[type[Event], ...] = (SamplerPass, RankBatch, RankLoss, RankParameters, LoaderEpoch, Backward)
KEPT = 2000
BATCHES = 3
_SAMPLERS = frozenset({"DistributedSampler", "Subset"})
_LOADERS = frozenset({"DataLoader"})
_ASKS_RANK = re.compile(r"get_rank\(|[\"'](LOCAL_|GLOBAL_|NODE_)?RANK[\"']")
_Line = tuple[tuple[str, int], int]


@dataclass(slots=True)
class _Passes:
    first: SamplerPass
    last: Site
    orders: list[tuple[int, int]] = field(default_factory=list)
    trained: int = 0


@dataclass(slots=True)
class State:
    """Passes of each loader and rank; the pass that is open; batches by loader, pass and index: digests by rank;
    reverse passes by their number: their losses by rank; whether other values than gradients travel between ranks, and
    whether gradients do; parameters by optimizer and step, and whether ranks ever held different ones."""

    passes: dict[tuple[int, int], _Passes] = field(default_factory=dict)
    open: _Passes | None = None
    batches: dict[tuple[int, int, int], dict[int, RankBatch]] = field(default_factory=dict)
    losses: dict[int, dict[int, RankLoss]] = field(default_factory=dict)
    exchanged: bool = False
    averaged: bool = False
    parameters: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    parts: bool = False


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
    elif isinstance(event, RankLoss):
        if len(state.losses) < KEPT:
            state.losses.setdefault(event.index, {})[event.rank] = event
    elif isinstance(event, RankParameters):
        state.exchanged |= event.exchanged
        state.averaged |= any(event.averaged)
        if len(state.parameters) < KEPT:
            held = state.parameters.setdefault((event.optimizer, event.step), event.digests)
            state.parts |= held != event.digests


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
                related=distinct(one.last, (made, *one.last.above(2))),
                evidence={"passes": len(one.orders), "epoch": one.orders[0][0], "replicas": one.first.replicas},
                count=len(one.orders),
                iteration=one.first.iteration,
            ),
        )
    return [*found.values(), *(_one_shard(state) or _equal(state) or _alike(state))]


def _one_shard(state: State) -> list[Finding]:
    """Samplers that divide the data by as many as there are ranks, and draw the same part of it in all of them."""
    lines: dict[tuple[str, int], dict[int, _Passes]] = {}
    for (rank, _), one in state.passes.items():
        if one.first.shard >= 0:
            lines.setdefault(one.first.made_site.key(), {})[rank] = one
    walked = {b.site.key() for ranks in state.batches.values() for b in ranks.values() if b.trained}
    found = []
    for ranks in lines.values():
        first = next(iter(ranks.values())).first
        alike = {(one.first.shard, one.first.replicas, one.orders[0]) for one in ranks.values()}
        trained = any(one.trained or one.first.site.key() in walked for one in ranks.values())
        if len(ranks) < 2 or len(ranks) != first.replicas or len(alike) != 1 or not trained:
            continue  # (ranks that hold parts of one model draw the same, by fewer replicas than ranks)
        made = first.made_site
        found.append(
            Finding(
                "X2",
                "error",
                made,
                f"the DistributedSampler of each of the {len(ranks)} ranks is told that it is rank {first.shard} of "
                f"{first.replicas}: all train on the same part of the data, and nobody on the rest.",
                "DistributedSampler(data, rank=dist.get_rank()), or no rank at all: it asks the group itself",
                related=distinct(made, (first.site, *made.above(2))),
                evidence={"ranks": len(ranks), "shard": first.shard, "replicas": first.replicas},
                iteration=first.iteration,
            )
        )
    return found


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
                related=distinct(event.site, _samplers(event.site)),
                evidence={"ranks": event.world, "equal_batches": len(batches), "distributed": event.distributed},
                count=len(batches),
                iteration=event.iteration,
            )
        )
    return found


def _samplers(site: Site) -> list[Site]:
    """Lines that divide the data among ranks, or ask which rank this is, in the files that led to the pass, and those
    that build loaders: one may be told the wrong rank."""
    files = dict.fromkeys((site.file, *(f.file for f in site.callers)))
    return [
        Site(file, line, "")
        for file in files
        for line in (
            *lines_calling(file, _SAMPLERS)[:3],
            *(number for number, text in enumerate(source_lines(file), 1) if _ASKS_RANK.search(text)),
            *lines_calling(file, _LOADERS)[:3],
        )[:8]
    ]


def _alike(state: State) -> list[Finding]:
    """Reverse passes that had the same inputs and the same loss in all ranks, whose gradients are averaged."""
    if state.exchanged or state.parts or not state.averaged:
        return []  # parts of one model work on one batch together; members of an ensemble are averaged by nobody
    equal: dict[tuple[str, int], list[RankLoss]] = {}
    apart: set[tuple[str, int]] = set()
    for _, ranks in sorted(state.losses.items()):
        first = next(iter(ranks.values()))
        if len(ranks) < first.world:
            continue
        if len({(r.loss, r.inputs) for r in ranks.values()}) == 1:
            equal.setdefault(first.site.key(), []).append(first)
        else:
            apart.update(r.site.key() for r in ranks.values())
    found = []
    for line, passes in equal.items():
        # where no input could be looked at, a term that no data enters (a decay of weights) would be equal, too
        blind = not all(p.inputs for p in passes)
        if line in apart or (blind and apart) or len({p.loss for p in passes}) < (2 * BATCHES if blind else BATCHES):
            continue
        found.append(_same_work(passes))
    return found


def _same_work(passes: list[RankLoss]) -> Finding:
    first = passes[0]
    places = [s for s in (*first.made, first.call_site, first.site) if s.file] or [first.site]
    above = [caller for place in places[:2] for caller in place.above(1)]
    values = [p.value for p in passes if p.value is not None]
    told = f" ({', '.join(number(v) for v in values[:3])} ...)" if values else ""
    return Finding(
        "X2",
        "error",
        places[0],
        f"all {first.world} ranks train on the same data: in the first {times(len(passes), 'reverse pass')} their "
        f"inputs and losses{told} are equal bit by bit, and the averaged gradient is that of one rank alone.",
        "give each rank rows of its own, order[rank::world_size], or a random stream of its own, "
        "torch.Generator().manual_seed(seed + rank)",
        related=distinct(places[0], (*places[1:], *above)),
        evidence={
            "ranks": first.world,
            "equal_passes": len(passes),
            "losses": values[:3],
            "inputs_compared": all(bool(p.inputs) for p in passes),
        },
        count=len(passes),
        iteration=first.iteration,
    )


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    several = any(len(batches) > 1 for batches in state.batches.values())
    several = several or any(len(losses) > 1 for losses in state.losses.values())
    return None if state.passes or several else "no DistributedSampler and no batches of two ranks were seen"
