"""# The target shares the memory of the network it should lag behind

## What it is
The sync binds the target's tensors to the online network's own memory, for instance `t.data = p.data`,
`load_state_dict(..., assign=True)`, a shallow `copy.copy(net)` or one vector unpacked into both, instead of copying the
values.  Or an average of the parameters, kept by hand, begins with `p.data` or `p.detach()` and no `.clone()`.

## Why it matters
From then on both networks are one: each optimizer step moves the target too, and there is no delayed target left.
Nothing shows it; a later sync changes nothing.

## How it is found
After an assignment two parameters of different modules have the same memory, and the two modules meet in a loss as
prediction and target, or it begins or is repeated while training goes on.  A parameter is blended with its own memory,
by weights that make one, in each update.

## Near misses
- Weight tying inside a model: `decoder.weight = embedding.weight`.
- An actor that shares the learner's weights on purpose and only collects data.
- One vector that is unpacked into both networks, cloned for the second.
- `t.data.copy_(p.data)`: values are copied, memory is not shared.
- Weight decay by hand, `p.mul_(1 - lr * wd)`: the weights of a blend make one.

## Fix
Copy values: `t.data.copy_(p.data)`, or `target.load_state_dict(net.state_dict())`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gradledger.audit import _code, _shadows
from gradledger.audit._phrases import distinct, times
from gradledger.audit._targets import Meeting, Watch, made_at, tree
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Comparison, Event, StorageShared
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "T3",
    "target-shares-storage",
    "target networks",
    "The target network's parameters live in the same memory as those of the network it should lag behind.",
)
LISTENS: tuple[type[Event], ...] = (Backward, Comparison, StorageShared, *_shadows.LISTENS)

_PAIRS = 4096


@dataclass(slots=True)
class _Shared:
    """One pair of tensors that came to share memory: the first time, and in how many iterations it was done again."""

    first: StorageShared
    count: int = 0
    iterations: set[int] = field(default_factory=set)


@dataclass(slots=True)
class State:
    watch: Watch = field(default_factory=Watch)
    shared: dict[tuple[int, int], _Shared] = field(default_factory=dict)
    shadows: _shadows.Shadows = field(default_factory=_shadows.Shadows)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, _shadows.LISTENS):
        _shadows.update(state.shadows, event, world)
        return
    if not isinstance(event, StorageShared):
        state.watch.take(event)
        return
    key = (event.target, event.source)
    kept = state.shared.get(key)
    if kept is None:
        if len(state.shared) >= _PAIRS:
            return
        kept = state.shared[key] = _Shared(event)
    kept.count += 1
    if len(kept.iterations) < 8:
        kept.iterations.add(event.iteration)


def not_checked(state: State, world: World) -> str | None:
    """With a single network there is nothing to share with."""
    targets = state.shared or state.shadows.averages or state.watch.meetings
    if targets or len({world.root(m) for m in world.modules}) > 1:
        return None
    return "the program has no second network"


def finish(state: State, world: World) -> list[Finding]:
    found = []
    groups: dict[tuple[str, int], list[_Shared]] = {}
    for one in state.shared.values():
        if not _inside_one_layer(one.first, world):
            groups.setdefault(one.first.site.key(), []).append(one)
    for group in groups.values():
        finding = _by_assignment(group, state.watch, world)
        if finding is not None:
            found.append(finding)
    if not found:
        found += _by_identity(state.watch, world)
    return found + _shadows.shared(state.shadows, world)


def _inside_one_layer(event: StorageShared, world: World) -> bool:
    mine, theirs = set(world.owners(event.target)), set(world.owners(event.source))
    return not mine or not theirs or bool(mine & theirs)


def _by_assignment(group: list[_Shared], watch: Watch, world: World) -> Finding | None:
    targets = {one.first.target for one in group}
    origins = {one.first.source for one in group}
    met = _meeting(targets, origins, watch, world)
    again = max(len(one.iterations) for one in group)
    if met is None and not (_whole_network(targets, origins, world) and (again > 1 or _late(group))):
        return None
    first = group[0].first
    callers = first.site.above(2)
    site, lines = _where(first, world)
    role = f" used as target (line {met.target_site.line})" if met is not None else ""
    return Finding(
        "T3",
        "error",
        site,
        f"This binds {times(len(targets), 'parameter')} of the network{role} to the memory of "
        f"{world.names(origins, 2)}: "
        "every optimizer step moves both, the target never lags.",
        _fix(site, world),
        related=distinct(site, (*callers, *lines, *((met.target_site, met.learner_site) if met is not None else ()))),
        evidence={
            "how": first.how,
            "tensors": len(targets),
            "names": [f"{world.name(one.first.target)} = {world.name(one.first.source)}" for one in group[:3]],
            "repeated_in_iterations": again,
        },
        count=max(one.count for one in group),
        iteration=first.iteration,
    )


def _late(group: list[_Shared]) -> bool:
    """Sharing that began while training went on (a look at the memory finds what was there before at iteration 1)."""
    return min(one.first.iteration for one in group) > (1 if any(one.first.how == "found" for one in group) else 0)


def _whole_network(targets: set[int], origins: set[int], world: World) -> bool:
    """All parameters of one network are bound to another network: no tying of single layers, none inside one model."""
    roots = {r for t in targets for r in world.owner_roots(t)}
    others = {r for t in origins for r in world.owner_roots(t)}
    return not roots & others and any(set(world.tensors_of(r)) <= targets for r in roots)


def _where(event: StorageShared, world: World) -> tuple[Site, list[Site]]:
    """The assignment; when the sharing was found by looking, the lines of the program that bind memory."""
    if event.site.file:
        return event.site, []
    made = made_at(world.root(next(iter(world.owners(event.target)), 0)), world)
    files = dict.fromkeys(f for f in (made.file, world.program.program if world.program is not None else "") if f)
    lines = [Site(file, line, "") for file in files for line in _code.sharing_lines(file)]
    return (lines[0], [*lines[1:4], made]) if lines else (made, [])


def _meeting(targets: set[int], origins: set[int], watch: Watch, world: World) -> Meeting | None:
    for met in watch.meetings.values():
        if met.target == met.learner:
            continue
        if tree(met.target, world) & targets and tree(met.learner, world) & origins:
            return met
    return None


def _fix(site: Site, world: World) -> str:
    line = world.source(site)
    match = re.match(r"^([\w.\[\]\"']+)\.data\s*=\s*(.+)$", line)
    if match:
        return f"{match[1]}.data.copy_({match[2].rstrip()})"
    if "assign=True" in line:
        return "load without assign=True, so that values are copied into the target's own memory"
    return "copy the values instead: target.load_state_dict(net.state_dict())"


def _by_identity(watch: Watch, world: World) -> list[Finding]:
    """Two module objects over the very same tensors, one predicting and one giving the target (a shallow copy)."""
    found = []
    told: set[int] = set()
    for met in watch.meetings.values():
        if met.target == met.learner or met.target_graph or met.target in told:
            continue
        mine, theirs = tree(met.target, world), tree(met.learner, world)
        same = mine & theirs
        if not same or same != mine or not any(world.trained(t) for t in same):
            continue
        if met.target in world.ancestors(met.learner) or met.learner in world.ancestors(met.target):
            continue  # a wrapper and what it wraps
        shallow = _shallow_copy(met.target_site)
        if shallow == NOWHERE and (mine != theirs or not met.bootstrap):
            continue  # heads over a shared trunk, or two views of one network
        told.add(met.target)
        site = shallow if shallow.file else made_at(met.target, world)
        found.append(
            Finding(
                "T3",
                "error",
                site if site.file else met.target_site,
                f"The network that gives the target (line {met.target_site.line}) holds the very parameters of the "
                "one being "
                f"trained: all {times(len(same), 'tensor')} are shared, so the target never lags.",
                "make a real copy: target = copy.deepcopy(net)",
                related=distinct(site, (met.target_site, met.learner_site, met.site)),
                evidence={
                    "how": "same tensors",
                    "tensors": len(same),
                    "names": [world.name(t) for t in list(same)[:3]],
                },
                count=met.count,
                iteration=met.first_iteration,
            )
        )
    return found


def _shallow_copy(near: Site) -> Site:
    line = _code.shallow_copy_line(near.file, _code.called_names(near.file, near.line))
    return Site(near.file, line, "") if line else NOWHERE
