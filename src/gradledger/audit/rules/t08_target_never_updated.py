"""# The target is never effectively updated

## What it is
A network is used as target and the program has code to update it, but no update arrives: the target is copied into
itself, copied in the wrong direction, blended with weight 0 or from a network that nobody trains, or the update's
condition never comes true.  Or pairs of parameters that can be walked once are kept for all updates.  Or the average
is a list of plain tensors, and the loop over it gives the new value to a name: `s = d * s + (1 - d) * p`.

## Why it matters
Every target comes from the untrained first network.  The loss falls all the same; what is learned is wrong.

## How it is found
By the copies themselves (source and target are one module, nothing changed, the trained network is overwritten), or,
when no copy was seen in 50 steps and the target's values stand still, by an update of the target in the source that
never ran or had no effect.  A copy of the trained network whose discounted output is the target in 200 steps, which
stands still, and for which the source holds no update of any kind, is one that was forgotten.  So is a copy of a policy
or an encoder that is trained through the critic and whose output the critic's target is given.  A blend of a parameter
and a plain tensor that nothing uses, that is gone, and that begins with the same value each time, was dropped.  One
update and no more, in a loop over what the source binds once to a zip or generator, was the last.  A blend that changes
nothing, from a network of which a deep copy is trained, follows the wrong one.  `copy.state_dict().update(new)`, and
`copy.state_dict()[key] = new`, write into a dictionary and not into the copy.

## Near misses
- Frozen references, random networks to be predicted, pretrained teachers and critics: no code tries to update them,
  and no discounted output of a copy of the trained network is the target.
- A policy that is kept as it was and evaluated by a critic of its own, while the one it was copied off learns on.
- One copy on purpose, late in a run, over a list or in a function that makes its iterator anew.
- A target that is replaced by a new deep copy; an average whose new values are stored, or used once and dropped.
- Long intervals that have not come round yet are reported only when the source holds an update and 50 steps have
  passed.

## Fix
Copy from the trained network: `target.load_state_dict(net.state_dict())`, and check that the condition comes true.
"""

from __future__ import annotations

import re

from gradledger.audit import _code, _shadows
from gradledger.audit._phrases import distinct, times
from gradledger.audit._targets import Meeting, Watch, links, made_at, tree
from gradledger.audit._vain import Effect, State, followed, never_ran, stands
from gradledger.audit._vain_sources import dropped, untrained, used_up
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import (
    Backward,
    Comparison,
    Copied,
    DeepCopied,
    Event,
    ParametersIterated,
    StateLoaded,
    StateTaken,
    ValuesCompared,
)
from gradledger.core.site import Frame, Site

RULE = Rule(
    "T8",
    "target-never-updated",
    "target networks",
    "A target network is meant to follow another one, but no update ever reaches it.",
)
LISTENS: tuple[type[Event], ...] = (
    Backward,
    Comparison,
    Copied,
    DeepCopied,
    ParametersIterated,
    StateLoaded,
    StateTaken,
    ValuesCompared,
    *_shadows.LISTENS,
)

_LOADS = 8
_FILES = 32


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Copied):
        key = (event.source, event.target, event.site.key())
        kept = state.effects.get(key)
        if kept is None:
            kept = state.effects[key] = Effect(event, event)
        kept.count += event.weight
        kept.idle += event.weight if event.changed is False or event.tau == 0.0 else 0
        kept.last = event
        _ran(state, event.site)
    elif isinstance(event, StateLoaded):
        _ran(state, event.site)
        if event.owner == "module" and event.iteration > 0:
            state.loads.setdefault(event.ident, []).append(event)
            del state.loads[event.ident][_LOADS:]
    elif isinstance(event, (DeepCopied, ParametersIterated, StateTaken)):
        if event.iteration > 0 and len(state.walked) < 10_000:
            state.walked.add(event.site.key())
            if isinstance(event, StateTaken) and event.owner == "module":
                state.taken.setdefault(event.site.key(), event)
    elif isinstance(event, ValuesCompared):
        if event.changed:
            state.moved.add(event.module)
            state.still.pop(event.module, None)
        else:
            state.still[event.module] = event.iteration - event.since
    elif isinstance(event, _shadows.LISTENS):
        _shadows.update(state.shadows, event, world)
    else:
        if isinstance(event, Backward) and len(state.files) < _FILES:
            state.files.update(_files_of_program(event.site))
        state.watch.take(event)


def _files_of_program(site: Site) -> set[str]:
    """Of a line and its callers, up to the level of a module: what started that module is another program."""
    found: set[str] = set()
    frames: list[Site | Frame] = [site, *site.callers]
    for frame in frames:
        found.add(frame.file)
        if frame.function in ("", "<module>"):
            break
    return found - {""}


def _ran(state: State, site: Site) -> None:
    if len(state.ran) < 10_000:
        state.ran.add(site.key())
        state.ran.update((f.file, f.line) for f in site.callers)


def not_checked(state: State, world: World) -> str | None:
    """Without a copy or a bootstrapped comparison there is no target."""
    bootstraps = any(m.bootstrap for m in state.watch.meetings.values())
    if state.effects or state.shadows.averages or bootstraps or links(world):
        return None
    return "no module was copied into another and no loss bootstraps"


def finish(state: State, world: World) -> list[Finding]:
    found: list[Finding] = []
    told: set[int] = set()
    for finding, module in (
        *_self_copies(state, world),
        *_without_effect(state, world),
        *_wrong_way(state, world),
        *never_ran(state, world),
        *used_up(state, world),
        *untrained(state, world),
        *dropped(state, world),
    ):
        if not told & tree(module, world):
            told |= tree(module, world)
            found.append(finding)
    return found + _shadows.lost(state.shadows, world)


# ----------------------------------------------------------------------------------------------- copied into itself


def _self_copies(state: State, world: World) -> list[tuple[Finding, int]]:
    found = []
    for effect in state.effects.values():
        copy = effect.first
        if not copy.same or world.trained_module(copy.target) or followed(copy.target, state, world):
            continue
        if any(e.left_out and e.site.key() == copy.site.key() for e in state.loads.get(copy.target, ())):
            continue  # its own state with one from a file put over it, in vain: GL-C02
        met = _as_target(copy.target, state.watch, world)
        if met is None and effect.count < 2:
            continue
        name = world.module_name(copy.target)
        online = world.module_name(met.learner) if met is not None else "the trained network"
        found.append(
            (
                Finding(
                    "T8",
                    "error",
                    copy.site,
                    f"`{name}` is copied into itself ({times(effect.count, 'time')}), so it keeps the weights it "
                    "was made with" + (f" while `{online}` trains against it." if met is not None else "."),
                    _fix_self(copy.site, met, world),
                    related=_where(copy.site, met, copy.target, world),
                    evidence={
                        "target": name,
                        "network": online,
                        "self_copies": effect.count,
                        "why": "copied into itself",
                    },
                    count=effect.count,
                    subject=name,
                    iteration=copy.iteration,
                ),
                copy.target,
            )
        )
    return found


def _fix_self(site: Site, met: Meeting | None, world: World) -> str:
    line = world.source(site)
    match = re.match(r"^([\w.\[\]\"']+)\.load_state_dict\(", line)
    names = _code.called_names(met.learner_site.file, met.learner_site.line) if met is not None else []
    if match and names:
        prefix = "self." if match[1].startswith("self.") else ""
        online = _network_name(names, met, world)
        return f"{match[1]}.load_state_dict({prefix}{online}.state_dict())"
    return "copy from the trained network instead: target.load_state_dict(net.state_dict())"


def _network_name(names: list[str], met: Meeting | None, world: World) -> str:
    label = world.module_name(met.learner).rpartition(".")[2] if met is not None else ""
    return label if label in names else names[-1]


# ----------------------------------------------------------------------------------------------- no effect


def _without_effect(state: State, world: World) -> list[tuple[Finding, int]]:
    """Copies from a trained network that change nothing although it moved in between."""
    found = []
    for effect in state.effects.values():
        copy, last = effect.first, effect.last
        if copy.same or last.iteration <= copy.iteration or effect.count < 2:
            continue
        still = stands(copy.target, state)  # a blend of a value with itself moves it by rounding alone
        if effect.idle < effect.count and (not still or any(world.tensor(t).lent for _, t in copy.pairs)):
            continue  # (tensors that are only lent to the module for a call move, and its own need not)
        if not world.trained_module(copy.source) or world.trained_module(copy.target):
            continue
        if not still and any(
            o.idle < o.count and o.last.iteration > 0 for o in state.effects.values() if o.first.target == copy.target
        ):
            continue
        name, online = world.module_name(copy.target), world.module_name(copy.source)
        why = "without changing a value"
        if last.tau is not None and last.tau < 1 and not still:
            why = f"with weight {last.tau:g}"
        found.append(
            (
                Finding(
                    "T8",
                    "error",
                    copy.site,
                    f"`{name}` was updated from `{online}` {times(effect.count, 'time')} {why}: it still has the "
                    "weights it "
                    "was made with.",
                    "blend in the trained network's values of now, not a copy that was taken before it was trained"
                    if still and last.tau
                    else "give the trained network's values a weight above 0: t.lerp_(p, tau)",
                    related=_where(copy.site, _as_target(copy.target, state.watch, world), copy.target, world),
                    evidence={"target": name, "network": online, "updates": effect.count, "tau": last.tau, "why": why},
                    count=effect.count,
                    subject=name,
                    iteration=copy.iteration,
                ),
                copy.target,
            )
        )
    return found


# ----------------------------------------------------------------------------------------------- wrong direction


def _wrong_way(state: State, world: World) -> list[tuple[Finding, int]]:
    """The trained network is overwritten by its own target, which itself never changes."""
    found = []
    for effect in state.effects.values():
        copy, last = effect.first, effect.last
        if (
            copy.same
            or last.iteration == 0
            or not world.trained_module(copy.target)
            or world.trained_module(copy.source)
        ):
            continue
        if followed(copy.source, state, world):
            continue
        met = _as_target(copy.source, state.watch, world)
        if met is None or not tree(met.learner, world) & tree(copy.target, world):
            continue
        blended = last.tau is not None and 0 < last.tau < 1
        if not (met.bootstrap or (blended and effect.count > 2)):
            continue
        name, online = world.module_name(copy.source), world.module_name(copy.target)
        found.append(
            (
                Finding(
                    "T8",
                    "error",
                    copy.site,
                    f"The update runs the wrong way: it writes the target `{name}` into the trained `{online}` "
                    f"({times(effect.count, 'time')}), and `{name}` itself never changes.",
                    _fix_way(copy.site, world),
                    related=_where(copy.site, met, copy.source, world),
                    evidence={
                        "target": name,
                        "network": online,
                        "updates": effect.count,
                        "tau": last.tau,
                        "why": "wrong direction",
                    },
                    count=effect.count,
                    subject=name,
                    iteration=copy.iteration,
                ),
                copy.source,
            )
        )
    return found


def _fix_way(site: Site, world: World) -> str:
    match = re.match(r"^([\w.\[\]\"']+)\.load_state_dict\(([\w.\[\]\"']+)\.state_dict\(\)\)$", world.source(site))
    if match:
        return f"{match[2]}.load_state_dict({match[1]}.state_dict())"
    return "exchange source and target of the update"


# ----------------------------------------------------------------------------------------------- shared


def _as_target(module: int, watch: Watch, world: World) -> Meeting | None:
    """A comparison in which the module (or a part of it) gives the target side for another one."""
    mine = tree(module, world)
    best = None
    for met in watch.meetings.values():
        if met.target != met.learner and not met.symmetric and tree(met.target, world) & mine:
            if met.bootstrap:
                return met
            best = best or met
    return best


def _where(site: Site, met: Meeting | None, module: int, world: World) -> tuple[Site, ...]:
    callers = site.above(1)
    return distinct(site, (*callers, *((met.target_site,) if met is not None else ()), made_at(module, world)))
