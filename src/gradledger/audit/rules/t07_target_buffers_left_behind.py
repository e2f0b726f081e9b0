"""# The target follows parameters but not buffers

## What it is
The update of a target, teacher or EMA copy walks `parameters()` only.  Running statistics of BatchNorm and other
buffers of the copy stay at the values they had when it was made.

## Why it matters
In eval mode the copy normalises with statistics of an untrained network; its outputs are wrong although every weight is
right.

## How it is found
Parameters are copied again and again, floating buffers of the copy never are, and after the latest copy they differ
from the source's; the copy does not move them by forward passes of its own, and it is used.

## Near misses
- Networks without buffers, or buffers that are copied too (`load_state_dict`, a second loop over `buffers()`).
- A teacher in train mode, whose statistics follow its own inputs.
- `AveragedModel` followed by `update_bn`.
- Shadow weights that are swapped into the network for evaluation and never run themselves.

## Fix
Add `for s, d in zip(source.buffers(), target.buffers()): d.copy_(s)` to the update.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct, times
from gradledger.audit._targets import made_at
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Copied, Event, ModuleCalled, StateTaken, StatisticsMoved
from gradledger.core.site import Site

RULE = Rule(
    "T7",
    "target-buffers-left-behind",
    "target networks",
    "A target or EMA copy follows the parameters of its network but not the buffers, such as BatchNorm statistics.",
)
LISTENS: tuple[type[Event], ...] = (Copied, ModuleCalled, StateTaken, StatisticsMoved)


@dataclass(slots=True)
class _Follow:
    """Copies from one module into another: first, latest one looked at, how many, how often buffers came along."""

    first: Copied
    last: Copied
    count: int = 0
    iterations: int = 0
    with_buffers: int = 0
    differing: int = 0
    last_iteration: int = -1


@dataclass(slots=True)
class State:
    follows: dict[tuple[int, int], _Follow] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)  # layers whose statistics move by their own forward passes
    called: dict[int, Site] = field(default_factory=dict)
    saved: set[int] = field(default_factory=set)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Copied):
        if not event.same:
            _note(state, event, world)
    elif isinstance(event, ModuleCalled):
        state.called.setdefault(event.module, event.site)
    elif isinstance(event, StatisticsMoved):
        state.moved.add(event.module)
    elif isinstance(event, StateTaken) and event.owner == "module":
        state.saved.add(event.ident)


def _note(state: State, event: Copied, world: World) -> None:
    key = (event.source, event.target)
    kept = state.follows.get(key)
    if kept is None:
        kept = state.follows[key] = _Follow(event, event)
    if kept.count == 0 or event.iteration != kept.last_iteration:
        kept.iterations += 1
    kept.count += event.weight
    carried = bool(event.buffers_followed) or any(world.tensor(t).role == "buffer" for _, t in event.pairs)
    if carried and event.iteration > 0:
        kept.with_buffers += 1
    kept.differing += bool(event.buffers_differ)
    if event.changed is not None or event.buffers_differ:  # its values were looked at
        kept.last = event
    kept.last_iteration = event.iteration


def not_checked(state: State, world: World) -> str | None:
    """Without repeated copies there is nothing that follows."""
    if any(f.iterations >= 2 for f in state.follows.values()):
        return None
    return "no module was copied into another more than once"


def finish(state: State, world: World) -> list[Finding]:
    found = []
    for (source, target), follow in state.follows.items():
        below = world.descendants(target)
        if follow.iterations < 2 or not follow.last.buffers_differ or follow.last.iteration == 0:
            continue
        if any(_carries(other, target, below, world) for other in state.follows.items()):
            continue
        if any(m in state.moved for m in below):
            continue
        called = next((state.called[m] for m in (*below, *world.ancestors(target)) if m in state.called), None)
        given_back = any(s == target for s, _ in state.follows)  # the network that runs has statistics of its own
        if called is None and (given_back or target not in state.saved):
            continue
        found.append(_finding(source, target, follow, called, world))
    return found


def _carries(other: tuple[tuple[int, int], _Follow], target: int, below: list[int], world: World) -> bool:
    """Another (or the same) chain of copies takes buffers along while training goes on."""
    (_, into), follow = other
    return follow.with_buffers > 0 and (into in below or into in world.ancestors(target))


def _finding(source: int, target: int, follow: _Follow, called: Site | None, world: World) -> Finding:
    last = follow.last
    name, origin = world.module_name(target), world.module_name(source)
    callers = last.site.above(1)
    names = list(last.buffers_differ)
    return Finding(
        "T7",
        "error",
        last.site,
        f"`{name}` follows the parameters of `{origin}` ({times(follow.count, 'update')}) but not its buffers: "
        f"{len(names)} of {times(last.buffers, 'floating buffer')} still differ after the latest one "
        f"({', '.join(names[:2])}).",
        "also copy buffers: for s, t in zip(source.buffers(), target.buffers()): t.copy_(s)",
        related=distinct(last.site, (*callers, made_at(target, world), *_one(called))),
        evidence={
            "target": name,
            "network": origin,
            "updates": follow.count,
            "buffers": last.buffers,
            "followed": last.buffers_followed,
            "differ": names[:6],
            "updates_with_differing_buffers": follow.differing,
        },
        count=follow.count,
        subject=name,
        iteration=follow.first.iteration,
    )


def _one(site: Site | None) -> tuple[Site, ...]:
    return (site,) if site is not None else ()
