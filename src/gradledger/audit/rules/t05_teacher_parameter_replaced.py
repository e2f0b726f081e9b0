"""# A teacher's parameter object was replaced

## What it is
The update of a teacher, target or EMA copy puts new `nn.Parameter` objects into it (`teacher.fc.weight =
nn.Parameter(...)`) instead of writing values into the tensors it has.  Or an average that is kept by hand, in a list
or dict of plain tensors, has captured the parameters of a network, and some of these are replaced (a new head).

## Why it matters
Whoever captured the old tensors (an optimizer, an EMA helper, a list of parameters) goes on with tensors that nothing
uses any more.  A new Parameter requires grad, so a frozen teacher silently takes gradients again.  Assigning a plain
tensor to a parameter's name raises TypeError.

## How it is found
A registered parameter of a module that is a copy of another one is replaced by another tensor while training runs: with
gradient where the old one was frozen, while an optimizer holds the old one, or followed by copies into the old one.

A blend of plain tensors with parameters whose place another parameter has taken, and that one is trained; or a copy
into a module from such parameters, or into a part of it that another has taken the place of, again and again.

## Near misses
- A new head or LoRA layers put in place before the optimizer is built, or before the average begins.
- An average whose pairs of parameters are made anew after a head was replaced.
- `teacher.fc.weight.data = new`, `copy_`, `lerp_`: the object stays.
- A teacher that is deep-copied anew: a new module, no replaced tensor.
- A codebook that is made anew from averages at each step and never gets a gradient, whoever holds the old one.
- `functional_call(teacher, average, x)`: the average is lent to the teacher for one call.

## Fix
Write values under no_grad: `with torch.no_grad(): t.weight.lerp_(s.weight, 1 - m)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit import _shadows
from gradledger.audit._phrases import distinct, times
from gradledger.audit._targets import made_at
from gradledger.audit.rule import Finding, Rule, Severity
from gradledger.audit.world import World
from gradledger.core.events import Backward, Copied, DeepCopied, Event, RunEnded, TensorRegistered
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "T5",
    "teacher-parameter-replaced",
    "target networks",
    "Parameters of a teacher, or those that an average follows, are replaced by new objects.",
)
LISTENS: tuple[type[Event], ...] = (TensorRegistered, Copied, Backward, RunEnded, *_shadows.LISTENS)

LOOKED_AT = 32  # copies of one line after one replacement
_PLACES = 4096
_ASSIGNED = re.compile(r"cannot assign '([\w.]+)' (?:object )?(?:as|to) parameter '(\w+)'")


@dataclass(slots=True)
class _Replaced:
    """One registered name whose tensor changed: first and latest time, how often, what came with it."""

    first: TensorRegistered
    count: int = 0
    iterations: int = 0
    last_iteration: int = -1
    thawed: int = 0  # the new one requires grad, the old one did not
    held: int = 0  # an optimizer held the old one, and reverse passes had filled it
    new: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Followed:
    """Copies of one line between modules.  `looked`: at how many since the latest of `changes` replacements; `after`:
    in how many a source had been replaced by a tensor that is trained; `stale`: such sources, with the line that
    replaced them; `names`: of what stands in their place; `into`: it is targets that were replaced."""

    first: Copied
    changes: int = 0
    looked: int = 0
    after: int = 0
    stale: dict[int, Site] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    into: bool = False


@dataclass(slots=True)
class State:
    """`orphans`: replaced tensors, with the place they had; `written`: copies that went into them afterwards; `lent`:
    plain tensors that stood in the place of a parameter; `reached`: tensors that reverse passes filled."""

    places: dict[tuple[int, str], _Replaced] = field(default_factory=dict)
    orphans: dict[int, tuple[int, str]] = field(default_factory=dict)
    written: dict[tuple[int, str], Copied] = field(default_factory=dict)
    filled: set[tuple[int, str]] = field(default_factory=set)
    latest: dict[int, tuple[int, str]] = field(default_factory=dict)
    ended: RunEnded | None = None
    lent: set[int] = field(default_factory=set)
    reached: set[int] = field(default_factory=set)
    shadows: _shadows.Shadows = field(default_factory=_shadows.Shadows)
    followed: dict[tuple[str, int], _Followed] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, TensorRegistered):
        if event.lent:
            if len(state.lent) < _PLACES:
                state.lent.add(event.tensor)
        elif event.replaced is not None and event.replaced != event.tensor and event.role == "parameter":
            if event.replaced not in state.lent:
                _note(state, event, event.replaced, world)
    elif isinstance(event, Copied):
        if state.orphans and event.how != "replace":
            for _, target in event.pairs:
                place = state.orphans.get(target)
                if place is not None:
                    state.written.setdefault(place, event)
        if event.how != "replace":
            _follow(state, event, world)
    elif isinstance(event, Backward):
        if len(state.reached) < _PLACES:
            state.reached.update(event.leaves)
        if state.latest:
            state.filled.update(state.latest[t] for t in event.leaves if t in state.latest)
    elif isinstance(event, RunEnded):
        state.ended = event
    else:
        _shadows.update(state.shadows, event, world)


def _follow(state: State, event: Copied, world: World) -> None:
    one = state.followed.get(event.site.key())
    if one is None:
        if len(state.followed) >= _shadows.SITES:
            return
        one = state.followed[event.site.key()] = _Followed(event)
    changes = len(state.orphans) + len(state.shadows.swapped)
    if one.changes != changes:  # a head may be replaced after many updates
        one.changes, one.looked = changes, 0
    if one.looked >= LOOKED_AT:
        return
    one.looked += 1
    sources, targets = dict.fromkeys(s for s, _ in event.pairs), dict.fromkeys(t for _, t in event.pairs)
    found = {s: at for s in sources if (at := _shadows.replaced(s, state.shadows, world)) is not None}
    # a module of the one that follows was exchanged: what is written goes into the old one
    found |= {t: at for t in targets if (at := _shadows.replaced(t, state.shadows, world, trained=False)) is not None}
    one.after += 0 < len(found) < len(event.pairs)
    one.into = one.into or not targets.keys().isdisjoint(found)
    for tensor, (site, name) in found.items():
        one.stale[tensor] = site
        one.names[name] = None


def _note(state: State, event: TensorRegistered, old: int, world: World) -> None:
    place = (event.module, event.name)
    kept = state.places.get(place)
    if kept is None:
        if len(state.places) >= _PLACES:
            return
        kept = state.places[place] = _Replaced(event)
    kept.count += 1
    if event.iteration != kept.last_iteration:
        kept.iterations += 1
        kept.last_iteration = event.iteration
    before = world.tensor(old)
    kept.thawed += event.requires_grad and not before.requires_grad
    kept.held += bool(world.holders(old)) and old in state.reached
    state.orphans[old] = place
    state.latest = {t: p for t, p in state.latest.items() if p != place}
    state.latest[event.tensor] = place
    if len(state.orphans) > _PLACES:
        state.orphans.pop(next(iter(state.orphans)))


def not_checked(state: State, world: World) -> str | None:
    """Without a copy there is no teacher."""
    known = state.shadows.averages or _copies(world)
    return None if known else "no module was copied into another, and no average of parameters is kept"


def finish(state: State, world: World) -> list[Finding]:
    found = _loud(state, world)
    copies = _copies(world)
    groups: dict[int, list[tuple[tuple[int, str], _Replaced]]] = {}
    for place, one in state.places.items():
        if (one.last_iteration > 0 or place in state.written) and _is_copy(place[0], copies, world):
            groups.setdefault(world.root(place[0]), []).append((place, one))
    for group in groups.values():
        finding = _finding(group, state, copies, world)
        if finding is not None:
            found.append(finding)
    return found + _shadows.stale(state.shadows, world) + [*_stale(state, world)]


def _stale(state: State, world: World) -> Iterator[Finding]:
    """A target whose values come from parameters that were replaced since they were captured."""
    for one in state.followed.values():
        if one.after < _shadows.FEWEST:
            continue
        sites_ = list(dict.fromkeys(one.stale.values()))
        names = ", ".join(f"`{name}`" for name in list(one.names)[:2])
        line, target = one.first.site.line, world.module_name(one.first.target)
        yield Finding(
            "T5",
            "error",
            sites_[0],
            f"{names} took the place of what line {line} copies {'into' if one.into else 'from'}: the update of "
            f"`{target}` still {'writes into' if one.into else 'reads'} {times(len(one.stale), 'old parameter')}, "
            "which nothing else uses any more.",
            "write values in place here: load_state_dict, copy_; or make the pairs anew after the change",
            related=distinct(sites_[0], (*sites_[1:4], one.first.site, made_at(one.first.target, world))),
            evidence={"old": len(one.stale), "weight": one.first.tau, "updates_after": one.after},
            count=one.after,
            subject=next(iter(one.names)),
            iteration=one.first.iteration,
        )


def _copies(world: World) -> dict[int, Site]:
    """Modules that are copies of others: target -> line of the copy."""
    found: dict[int, Site] = {}
    for link in world.all_copies():
        first = link.first
        if isinstance(first, DeepCopied) or (isinstance(first, Copied) and not first.same):
            found.setdefault(first.target, first.site)
    return found


def _is_copy(module: int, copies: dict[int, Site], world: World) -> bool:
    return module in copies or any(a in copies for a in world.ancestors(module))


def _finding(
    group: list[tuple[tuple[int, str], _Replaced]], state: State, copies: dict[int, Site], world: World
) -> Finding | None:
    thawed = sum(one.thawed for _, one in group)
    held = sum(one.held for _, one in group)
    orphaned = [place for place, _ in group if place in state.written]
    filled = [place for place, _ in group if place in state.filled]
    again = max(one.iterations for _, one in group)
    if not (thawed or held or orphaned) and again < 2:
        return None
    severity: Severity = "info"
    parts = []
    if thawed:
        severity = "warning"
        parts.append("each new Parameter requires grad although the old one was frozen")
    if filled:
        severity = "error"
        parts.append(f"reverse passes now fill {len(filled)} of them")
    if held:
        severity = "error"
        parts.append("the optimizer goes on with the old ones")
    if orphaned:
        severity = "error"
        parts.append(
            f"line {state.written[orphaned[0]].site.line} goes on writing into the old ones, which nothing uses"
        )
    if not parts:
        parts.append("whoever keeps the old ones is left with tensors that nothing uses")
    first = group[0][1].first
    root = world.root(first.module)
    copied_at = copies.get(root) or next((copies[a] for a in world.ancestors(first.module) if a in copies), NOWHERE)
    writes = [state.written[place].site for place in orphaned[:1]]
    name = world.module_name(root)
    return Finding(
        "T5",
        severity,
        first.site,
        f"`{name}` gets new Parameter objects here ({times(len(group), 'name')}, in {times(again, 'iteration')}): "
        + "; ".join(parts)
        + ".",
        "write the values in place: with torch.no_grad(): p.lerp_(q, 1 - m)",
        related=distinct(first.site, (*(one.first.site for _, one in group), *writes, copied_at, made_at(root, world))),
        evidence={
            "module": name,
            "names": [f"{world.module_name(m)}.{n}" for (m, n), _ in group[:4]],
            "iterations": again,
            "old_frozen_new_requires_grad": thawed,
            "old_held_by_optimizer": held,
            "filled_by_backward": len(filled),
        },
        count=max(one.count for _, one in group),
        subject=name,
        iteration=first.iteration,
    )


def _loud(state: State, world: World) -> list[Finding]:
    """The program ended with the error that torch raises for a plain tensor under a parameter's name."""
    ended = state.ended
    match = _ASSIGNED.search(ended.message) if ended is not None and "TypeError" in ended.exception else None
    if ended is None or match is None or not ended.frames:
        return []
    here = ended.frames[-1]
    site = Site(here.file, here.line, here.function, 0, False, tuple(reversed(ended.frames[:-1])))
    return [
        Finding(
            "T5",
            "error",
            site,
            f"A plain tensor is assigned to the registered parameter `{match[2]}`, which torch refuses ({match[1]}): a "
            "parameter's values are changed in place, its object stays.",
            _in_place(world.source(site), match[2]),
            related=distinct(site, site.above(1)),
            evidence={"exception": ended.exception, "parameter": match[2], "got": match[1]},
            iteration=ended.iteration,
        )
    ]


def _in_place(line: str, name: str) -> str:
    match = re.match(r"^([\w.]+)\s*=(?!=)\s*(.+)$", line)
    if match and match[1].endswith(f".{name}"):
        return f"with torch.no_grad(): {match[1]}.copy_({match[2].rstrip()})"
    return f"with torch.no_grad(): module.{name}.copy_(new_values)"
