"""# A target network sits in an optimizer

## What it is
The parameters of a target or teacher, which are meant to follow another network by copies alone, were also given to an
optimizer, usually by `agent.parameters()` over a module that holds both networks.

## Why it matters
Between two copies the optimizer moves the target: by gradient where the target is not detached, otherwise by momentum
or weight decay.  The target is no longer the delayed copy that the method rests on.

## How it is found
A module whose output is the bootstrap or teacher side of a comparison with another network, that is a copy of this
network or is written from it, never stands on the prediction side itself, and whose parameters an optimizer holds and
steps.  Or one that a soft update draws towards this network: predictions of its own, too, do not make it a network
that is meant to train.  Or a module that is written from a network at nearly every step, or drawn towards it again and
again, and sits, unfrozen, in the optimizer of this network, although no gradient has come to it: an error where its
steps move it nevertheless, else a warning.

## Near misses
- A frozen target in the optimizer, which cannot move; unless the optimizer is one that decays all that it holds.
- Weight tying: one tensor under two names.
- Double critics and Double Q-learning: both networks are trained on their own predictions.
- A momentum branch that stays frozen when the rest is unfrozen and given to the optimizer.
- Federated clients, lookahead and population training: networks that are overwritten *and* meant to train.

## Fix
Hand the optimizer the online network alone: `Adam(agent.online.parameters())`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._loops import parameters_line
from gradledger.audit._phrases import distinct, times
from gradledger.audit._targets import Link, Meeting, Watch, filled_together, kin, links, made_at, related, tree
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Comparison, Event, GroupAdded, Step
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "T2",
    "target-in-optimizer",
    "target networks",
    "The parameters of a target network, which copies are meant to move, are held by an optimizer.",
)
LISTENS: tuple[type[Event], ...] = (Backward, Comparison, GroupAdded, Step)


IDLE = "momentum copy"
FEW = 8  # steps
KEPT = 4096  # tensors


@dataclass(slots=True)
class State:
    """`used`: tensors that a step found with a filled gradient, or moved, and in how many steps; `added`: those that
    were given to an optimizer later, with the line."""

    watch: Watch = field(default_factory=Watch)
    used: dict[int, int] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    drifted: set[int] = field(default_factory=set)  # those that an optimizer's own step wrote without a gradient
    added: dict[int, Site] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Step):
        for life in event.lives:
            if life.drifted:
                state.drifted.update(life.tensors)
            if life.frozen:
                continue
            if life.grad in ("filled", "assigned"):
                for tensor in life.tensors:
                    state.used[tensor] = state.used.get(tensor, 0) + 1
            elif life.moved:
                state.moved.update(life.tensors)
    elif isinstance(event, GroupAdded):
        if len(state.added) < KEPT:
            state.added.update(dict.fromkeys(event.group.tensors, event.site))
    else:
        state.watch.take(event)


def not_checked(state: State, world: World) -> str | None:
    """Without copies there is no target network."""
    return None if links(world) else "no module was copied into another"


@dataclass(frozen=True, slots=True)
class _Target:
    module: int
    source: int
    link: Link
    site: Site
    role: str


def finish(state: State, world: World) -> list[Finding]:
    found = []
    told: set[int] = set()
    for target in _targets(state.watch, world):
        mine = {t for t in tree(target.module, world) if world.trained(t)}
        held = {t for t in mine if world.tensor(t).requires_grad or t in state.drifted}
        held -= tree(target.source, world) | told
        if held:
            told |= held
            found.append(_finding(target, held, state, world))
    for target in _idle_targets(state, world, told):
        held = {t for t in tree(target.module, world) if world.trained(t)} - tree(target.source, world)
        found.append(_finding(target, held, state, world))
    return found


def _targets(watch: Watch, world: World) -> list[_Target]:
    known = links(world)
    found = []
    for met in watch.meetings.values():
        if met.target == met.learner or met.symmetric:
            continue
        written = [k for k in related(met.target, met.learner, world, known) if k.repeated]
        if watch.judged.get(met.target) or _both_predict(met, watch):
            back = related(met.learner, met.target, world, known) if written else []
            between = [] if any(k.repeated for k in back) else [k for k in written if met.bootstrap and _drawn(k)]
        else:
            between = kin(met.target, met.learner, world, known) if met.bootstrap else written
        if between:
            role = "bootstrap target" if met.bootstrap else "teacher"
            found.append(_Target(met.target, met.learner, between[-1], met.target_site, role))
    for link in known:
        if not link.repeated or not any(True for _ in filled_together(link, watch)):
            continue
        sources, targets = {s for s, _ in link.pairs}, {t for _, t in link.pairs}
        # (one comparison with data may hold the outputs of both: similarities of queries and keys)
        if not watch.judged.get(link.target) or (_drawn(link) and not watch.alone(targets, sources)):
            found.append(_Target(link.target, link.source, link, NOWHERE, "copy in the same loss"))
    return found


def _drawn(link: Link) -> bool:
    """A soft update, again and again: the target is an average of the network."""
    return link.tau is not None and 0.0 < link.tau < 1.0 and link.count >= FEW


def _idle_targets(state: State, world: World, told: set[int]) -> list[_Target]:
    """Copies that no gradient has moved yet: written from a network at nearly every step, or drawn towards it again and
    again, and held, unfrozen, by the very optimizer that trains this network."""
    found = []
    for link in links(world):
        source, target = tree(link.source, world), tree(link.target, world) - tree(link.source, world)
        held = {t for t in target if world.trained(t) and world.tensor(t).requires_grad}
        if not held or held & told or not link.repeated or held & state.used.keys():
            continue
        holders = {o for t in held for o in world.holders(t)}
        optimizers = [world.optimizer(o) for o in holders if any(o in world.holders(t) for t in source)]
        written = {t for _, t in link.pairs}
        # (of a long run not every copy is seen)
        steady = any(2 * link.count >= o.steps >= FEW for o in optimizers)
        if held <= written and optimizers and (steady or _drawn(link)):
            found.append(_Target(link.target, link.source, link, link.site, IDLE))
    return found


def _both_predict(met: Meeting, watch: Watch) -> bool:
    """The target also stands on a prediction side somewhere: it is a network of its own."""
    return any(other.learner == met.target and not other.symmetric for other in watch.meetings.values())


def _finding(target: _Target, held: set[int], state: State, world: World) -> Finding:
    holders = sorted({o for t in held for o in world.holders(t)})
    optimizer = world.optimizer(holders[0])
    steps = max((state.used.get(t, 0) for t in held), default=0)
    # (the copies themselves write into it, too)
    drifted = held & state.drifted
    effective = steps > 0 or bool(drifted) or (target.role != IDLE and bool(held & state.moved))
    name, source = world.module_name(target.module), world.module_name(target.source)
    if steps:
        what = f"in {steps} of {times(optimizer.steps, 'step')} it applied a gradient, so the target moves by itself."
    elif effective:
        what = (
            "its steps moved them without any gradient (weight decay or momentum), so the target drifts between copies."
        )
    else:
        what = (
            "no gradient has reached them so far, so nothing moved yet; the first that does, or an optimizer that "
            "decays all it holds, moves the target."
        )
    later = list(dict.fromkeys(state.added[t] for t in sorted(held) if t in state.added))
    thawed = [world.tensor(t).unfrozen_site for t in sorted(held)]
    site = later[0] if later and held <= state.added.keys() else optimizer.site
    return Finding(
        "T2",
        "error" if effective else "warning" if target.role == IDLE else "info",
        site,
        f"{optimizer.short_cls} holds {times(len(held), 'parameter')} of `{name}`, which is the {target.role} for "
        f"`{source}`: {what}",
        f"give the optimizer only the parameters of `{source}`, not those of `{name}`",
        related=distinct(
            site,
            (
                *later[:2],
                *thawed[:1],
                optimizer.site,
                target.site,
                made_at(target.module, world),
                target.link.site,
                *parameters_line(optimizer.site),
            ),
        ),
        evidence={
            "target": name,
            "network": source,
            "role": target.role,
            "parameters": len(held),
            "steps_with_gradient": steps,
            "optimizer_steps": optimizer.steps,
            "moved_without_gradient": sorted(world.name(t) for t in drifted | (held & state.moved))[:4],
        },
        count=max(steps, 1),
        subject=name,
        iteration=optimizer.made_iteration,
    )
