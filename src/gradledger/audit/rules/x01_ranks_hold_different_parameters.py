"""# Ranks hold different parameters

## What it is
Several processes train one model, each with a copy of it, and the copies are not equal: they were initialised with
different seeds and never broadcast, a part of the model is outside DistributedDataParallel, or nobody averages the
gradients at all.

## Why it matters
Averaged gradients of different models belong to none of them.  Without averaging each rank trains a model of its own on
a part of the data, and what is saved is one of them.

## How it is found
Each rank keeps digests of its parameters at the first few optimizer steps, and which gradients travelled (by
DistributedDataParallel, or by a collective on `.grad`).  They are compared side by side: under
`torchrun --nproc-per-node 2 -m gradledger audit train.py` rank 0 reports for all, and ranks that a script starts itself
(`torch.multiprocessing.spawn`, forked processes) are watched with it.  It is reported when
parameters of one shape differ although their gradients are averaged; or when gradients are not averaged although the
data is split among the ranks or other gradients of the same optimizer are.

## Near misses
- Tensor, pipeline and expert parallelism: ranks hold different parts, and other values than gradients travel.
- Sharded parameters (FSDP); independent runs that share nothing, one a rank.

## Fix
`DistributedDataParallel(model)`, which broadcasts at the start and averages in each reverse pass; or
`for p in model.parameters(): dist.broadcast(p.data, 0)` before the first step, and an `all_reduce` of every gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._code import lines_calling
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, RankParameters
from gradledger.core.site import Site

RULE = Rule(
    "X1",
    "ranks-hold-different-parameters",
    "ranks",
    "Ranks that train one model hold different parameters.",
)
LISTENS: tuple[type[Event], ...] = (RankParameters,)
KEPT = 2000
_WRAPPERS = frozenset({"DistributedDataParallel", "DDP"})
_SENDS = frozenset({"broadcast", "broadcast_object_list"})
_SEEDS = frozenset({"manual_seed", "seed_everything", "set_seed"})


@dataclass(slots=True)
class State:
    """Steps by optimizer and number: each rank's parameters."""

    steps: dict[tuple[int, int], dict[int, RankParameters]] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, RankParameters) and len(state.steps) < KEPT:
        state.steps.setdefault((event.optimizer, event.step), {})[event.rank] = event


def finish(state: State, world: World) -> list[Finding]:
    found: dict[int, Finding] = {}
    for (optimizer, step), ranks in sorted(state.steps.items()):
        if len(ranks) < 2 or optimizer in found:
            continue
        first, *others = (ranks[r] for r in sorted(ranks))
        for other in others:
            finding = _compare(first, other, step)
            if finding is not None:
                found[optimizer] = finding
                break
    return list(found.values())


def _compare(a: RankParameters, b: RankParameters, step: int) -> Finding | None:
    if a.shapes != b.shapes:
        return None  # not copies of one model
    differ = [i for i, (x, y) in enumerate(zip(a.digests, b.digests, strict=True)) if x and y and x != y]
    if not differ:
        return None
    averaged = [i for i in differ if a.averaged[i] and b.averaged[i]]
    alone = [i for i in differ if not a.averaged[i] and not b.averaged[i]]
    if averaged:
        chosen, why = averaged, "although their gradients are averaged over the ranks"
    elif alone and not a.exchanged and not b.exchanged and (a.sharded_data or any(a.averaged)):
        chosen, why = alone, "and their gradients are not averaged, although the ranks train on parts of one data set"
        if any(a.averaged):
            why = "and their gradients are not averaged, although others of the same optimizer are"
    else:
        return None
    since = "from the start" if step == 1 else f"at step {step}"
    return Finding(
        "X1",
        "error",
        a.site,
        f"{times(len(chosen), 'parameter')} of {len(a.shapes)} differ between ranks {a.rank} and {b.rank} {since}, "
        f"{why}.",
        "wrap the whole model in DistributedDataParallel, or broadcast the parameters of rank 0 before the first step",
        related=distinct(a.site, (*_made(a, chosen), *_seeds(a.made_site))),
        evidence={
            "ranks": [a.rank, b.rank],
            "step": step,
            "different": len(differ),
            "averaged": sum(a.averaged),
            "shapes": [a.shapes[i] for i in chosen[:6]],
        },
        iteration=a.iteration,
    )


def _made(event: RankParameters, chosen: list[int]) -> list[Site]:
    """Where the modules of those parameters were made, and the lines that led there."""
    places = dict.fromkeys(event.made_at[i] for i in chosen if i < len(event.made_at))
    made = [event.made[at] for at in places if at >= 0][:2] or [event.made_site]
    return [place for site in made for place in (site, *site.above(2))]


def _seeds(built: Site) -> list[Site]:
    """Lines that seed, in the file that builds the model: models of several ranks begin alike by one seed.  And those
    that wrap the model or send it around, after which each rank writes for itself."""
    lines = [line for names in (_SEEDS, _WRAPPERS, _SENDS) for line in lines_calling(built.file, names)[:3]]
    return [Site(built.file, line, "") for line in lines]


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    several = any(len(ranks) > 1 for ranks in state.steps.values())
    return None if several else "the parameters of two ranks were not seen at one step"
