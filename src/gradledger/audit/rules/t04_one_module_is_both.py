"""# One module object is both prediction and target

## What it is
Two names, `q_net` and `target_net`, stand for one and the same module, by `self.target_net = self.q_net` at the start
or in place of a sync.  "Copying" one into the other then copies the network into itself.

## Why it matters
The target moves with every optimizer step.  The delayed target that the program was written to have does not exist, and
the sync line makes it look as if it did.

## How it is found
The same module gives the prediction and, without graph, the bootstrapped target; and one of these holds: its state was
copied into itself, the target's line used to call a separate copy which is no longer called there, or the source binds
the name that the target's line calls to the name that the prediction calls.  Or, whatever carries a graph, the module
is trained, compared, and blended with its own values again and again: a soft update of the network into itself.

## Near misses
- Semi-gradient TD without a target network: `value(s2).detach()`, one name for one network.
- Double DQN: the online network only selects the action, the target network values it.
- Siamese networks, and a soft update into a separate copy.
- `model.load_state_dict(best_state)`, which restores an earlier state.

## Fix
`target_net = copy.deepcopy(q_net)` once; afterwards only copy values into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit import _code
from gradledger.audit._phrases import distinct, times
from gradledger.audit._targets import Meeting, Watch, links, related, tree
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import CopyLink, World
from gradledger.core.events import Backward, Comparison, Copied, Event
from gradledger.core.site import Site

RULE = Rule(
    "T4",
    "one-module-is-both",
    "target networks",
    "The target network is the same module object as the network being trained, so the target is never delayed.",
)
LISTENS: tuple[type[Event], ...] = (Backward, Comparison)
NEEDS_DETAIL = True
_AGAIN = 8  # soft updates


@dataclass(slots=True)
class _Both:
    """A module that gives prediction and target: how they met, and what shows that two networks were meant."""

    met: Meeting
    self_copy: CopyLink | None = None
    alias: tuple[str, str, int] | None = None
    former: list[int] = field(default_factory=list)


def init() -> Watch:
    return Watch()


def update(state: Watch, event: Event, world: World) -> None:
    state.take(event)


def not_checked(state: Watch, world: World) -> str | None:
    """Without a comparison of two outputs there is no target."""
    return None if state.meetings else "no loss compares outputs of modules with each other"


def finish(state: Watch, world: World) -> list[Finding]:
    found = []
    told: set[int] = set()
    for met in state.meetings.values():
        if met.target != met.learner or met.target_graph or met.symmetric or met.target in told:
            continue
        both = _Both(met, _self_copy(met.target, world), _alias(met), _former(met, state, world))
        meant = both.self_copy is not None or both.former or (both.alias is not None and _code.lagging(both.alias[0]))
        if meant and (met.bootstrap or both.alias is not None):
            told.add(met.target)
            found.append(_finding(both, world))
    return found + list(_blended(state, told, world))


def _blended(watch: Watch, told: set[int], world: World) -> Iterator[Finding]:
    """A soft update of a trained network into itself, where its output meets another's or its own."""
    for link in world.all_copies():
        copy = link.first
        if not isinstance(copy, Copied) or not copy.same or copy.tau is None or not 0.0 < copy.tau < 1.0:
            continue
        mine = tree(copy.target, world)
        if link.count < _AGAIN or not any(world.trained(t) for t in mine) or any(mine & tree(m, world) for m in told):
            continue
        met = next((m for m in watch.meetings.values() if mine and mine <= tree(m.target, world)), None)
        if met is None:
            continue
        told.add(copy.target)
        name = world.module_name(copy.target)
        alias = [Site(met.target_site.file, line, "") for line in _code.property_lines(met.target_site)]
        yield Finding(
            "T4",
            "error",
            met.target_site,
            f"`{name}`, which is trained, gives the target here, and line {copy.site.line} blends it with itself "
            f"({times(link.count, 'time')}): the target follows every optimizer step instead of lagging.",
            "keep a separate module: target = copy.deepcopy(net).requires_grad_(False), and blend into that",
            related=distinct(met.target_site, (*alias, copy.site, *copy.site.above(1), met.site, met.learner_site)),
            evidence={"module": name, "losses_seen": met.count, "self_copies": link.count, "weight": copy.tau},
            count=met.count,
            subject=name,
            iteration=met.first_iteration,
        )


def _self_copy(module: int, world: World) -> CopyLink | None:
    for link in world.all_copies():
        if isinstance(link.first, Copied) and link.first.same:
            mine = {module, *world.ancestors(module), *world.descendants(module)}
            if link.first.target in mine and world.trained_module(module):
                return link
    return None


def _alias(met: Meeting) -> tuple[str, str, int] | None:
    """`a = b` where the target's line calls `a` and the prediction's line calls `b`, not the other way round."""
    called = _code.called_names(met.target_site.file, met.target_site.line)
    predicted = _code.called_names(met.learner_site.file, met.learner_site.line)
    only = [n for n in called if n not in predicted]
    alias = _code.alias_line(met.target_site.file, only, [n for n in predicted if n not in called])
    return alias if alias is not None and _code.is_network_alias(alias) else None


def _former(met: Meeting, state: Watch, world: World) -> list[int]:
    """Separate copies of the learner that this very line called before, and no longer does."""
    known = links(world)
    return [
        other.target
        for other in state.meetings.values()
        if other.target != met.learner
        and other.learner == met.learner
        and other.target_site.key() == met.target_site.key()
        and other.last_iteration < met.first_iteration
        and related(other.target, met.learner, world, known)
    ]


def _finding(both: _Both, world: World) -> Finding:
    met = both.met
    name = world.module_name(met.target)
    copy = both.self_copy
    site = Site(met.target_site.file, both.alias[2], "") if both.alias is not None else met.target_site
    if copy is not None:
        proof = f"its state was copied into itself {times(copy.count, 'time')} (line {copy.first.site.line})"
    elif both.former:
        proof = "this line called a separate copy before"
    elif both.alias is not None:
        proof = f"`{both.alias[0]}` is bound to `{both.alias[1]}`"
    else:
        proof = ""
    copies = (
        ()
        if copy is None
        else (copy.first.site, *copy.first.site.above(1))
    )
    if both.alias is not None:
        fix = f"{both.alias[0]} = copy.deepcopy({both.alias[1]}) once, then only {both.alias[0]}.load_state_dict(...)"
    else:
        fix = "keep a separate module: target = copy.deepcopy(net), then only copy values into it"
    return Finding(
        "T4",
        "error",
        site,
        f"`{name}` gives both the prediction (line {met.learner_site.line}) and the target (line "
        f"{met.target_site.line}), {proof}: "
        "the target follows every optimizer step instead of lagging.",
        fix,
        related=distinct(site, (met.target_site, *copies, met.learner_site)),
        evidence={
            "module": name,
            "losses_seen": met.count,
            "self_copies": copy.count if copy is not None else 0,
            "alias": f"{both.alias[0]} = {both.alias[1]}" if both.alias is not None else "",
            "former_targets": len(both.former),
            "discount": met.discount,
        },
        count=met.count,
        subject=name,
        iteration=met.first_iteration,
    )
