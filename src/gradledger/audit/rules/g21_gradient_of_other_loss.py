"""# An optimizer applies the gradient of another network's loss

## What it is
The loss of one network is computed through another (an actor through its critic, a generator through its
discriminator) and leaves gradients there.  They are not cleared before the second network's own optimizer steps,
which applies both.

## Why it matters
The critic is pushed towards whatever the actor wants to hear, the discriminator towards being fooled.  Values grow
without bound, and both losses look fine while it happens.

## How it is found
At a step, tensors hold unused contributions of two reverse passes from different lines.  One of them fills this
optimizer's tensors only; the other reaches a whole module of them on its way to all tensors of a second optimizer, by
a forward call whose input came from there.

## Near misses
- Summed losses, or several losses of one optimizer over a shared trunk.
- An encoder and a decoder with an optimizer each, both meant to learn from one loss: the encoder is called on data.
- The critic's gradients are cleared after the actor's backward, or its parameters are frozen during it.

## Fix
Freeze the second network while the first one's loss is walked, take `torch.autograd.grad` with respect to the first
network's parameters only, or clear the second network's gradients before its own backward.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from gradledger.audit import oracle
from gradledger.audit._cycle import Path, fresh, loss_word, of_steps, optimizer_word, path_of
from gradledger.audit._phrases import distinct
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, CallRef, Event, OracleExplained, Step
from gradledger.core.site import Site

RULE = Rule(
    "G21",
    "gradient-of-other-loss",
    "gradient lifecycle",
    "A step applies, beside its own loss's gradient, one that another network's loss left behind on its way through.",
)
LISTENS: tuple[type[Event], ...] = (Step,)
PAIRS_KEPT = 256
PASSES_LOOKED_AT = 16


@dataclass(slots=True)
class _Pair:
    own: Site
    foreign: Site
    step: Step
    other: int
    through: CallRef
    seen: int = 0


@dataclass(slots=True)
class State:
    """`steps`: of each optimizer; `pairs`: two passes together in one optimizer's gradients."""

    steps: dict[int, int] = field(default_factory=dict)
    pairs: dict[tuple[int, Path, Path], _Pair] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if not isinstance(event, Step) or event.closure:
        return
    state.steps[event.optimizer] = state.steps.get(event.optimizer, 0) + 1
    if len(world.optimizers) < 2:
        return
    mixed = {i for life in event.lives if not life.frozen and len(new := fresh(life.fills)) > 1 for i in new}
    if not 2 <= len(mixed) <= PASSES_LOOKED_AT:
        return
    passes = [b for b in (world.backward(i) for i in sorted(mixed)) if b is not None]
    for foreign in passes:
        for own in passes:
            if own.backward != foreign.backward:
                _pair(state, event, own, foreign, world)


def _pair(state: State, step: Step, own: Backward, foreign: Backward, world: World) -> None:
    key = (step.optimizer, path_of(own.site), path_of(foreign.site))
    if key[1] == key[2]:
        return
    known = state.pairs.get(key)
    if known is not None:
        known.seen += 1
        return
    held = world.optimizer(step.optimizer).tensors
    trained_elsewhere = [t for t in own.leaves if t not in held and world.holders(t)]
    if trained_elsewhere or len(state.pairs) >= PAIRS_KEPT:
        return
    filled = set(foreign.leaves)
    for other in world.optimizers.values():
        rest = [t for t in other.tensors if t not in held and world.tensor(t).requires_grad]
        if other.ident == step.optimizer or not rest or not filled.issuperset(rest):
            continue
        through = _passed_through(step.optimizer, foreign, world)
        if through is not None:
            state.pairs[key] = _Pair(own.site, foreign.site, step, other.ident, through, 1)
            return


def _passed_through(optimizer: int, foreign: Backward, world: World) -> CallRef | None:
    """The forward call by which the foreign loss went through a module of this optimizer: all of its parameters were
    filled, and its input carried a graph."""
    held, filled = world.optimizer(optimizer).tensors, set(foreign.leaves)
    for call in foreign.calls:
        made = world.call(call.call)
        if made is None or not made.inputs_need_grad:
            continue
        tensors = world.tensors_of(call.module)
        if tensors and all(t in held and t in filled for t in tensors):
            return call
    return None


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    for (ident, _, _), pair in state.pairs.items():
        steps = state.steps.get(ident, 0)
        if pair.seen < 3 and not (pair.seen >= 2 and steps <= 3):
            continue
        word, loss = optimizer_word(pair.step.site, world), loss_word(pair.foreign, world)
        through = world.module_name(pair.through.module)
        meant = next(iter(world.owner_roots(next(iter(world.optimizer(pair.other).tensors)))), None)
        meant_for = f"`{world.module_name(meant)}`" if meant is not None else "another network"
        finding = Finding(
            "G21",
            "error",
            pair.foreign,
            f"`{loss}` trains {meant_for}, but its gradient also stays in `{through}`, whose own optimizer "
            "applies it "
            f"together with the loss of line {pair.own.line}: in {pair.seen} of {of_steps(steps, ident, world)}.",
            f"{through}.requires_grad_(False) while {loss} is built and walked, or clear {through} before its own "
            "backward",
            related=distinct(pair.foreign, (pair.through.site, pair.step.site, pair.own)),
            evidence={"steps": steps, "steps_with_both": pair.seen, "tensors": len(world.optimizer(ident).tensors)},
            count=pair.seen,
            subject=word,
            iteration=pair.step.iteration,
        )
        findings.append(oracle.weigh(finding, world, ident, partial(_applied, pair.foreign.key(), world)))
    return findings


def _applied(line: tuple[str, int], world: World, event: OracleExplained) -> bool | None:
    """Whether a gradient that the other loss left is in the consumed one."""
    verdicts = []
    for share in event.shares:
        known = {one.site.key() for b in share.backwards if (one := world.backward(b)) is not None}
        if line in known and share.kind != "constant":
            verdicts.append(oracle.there(share))
    if True in verdicts:
        return True
    return False if verdicts and None not in verdicts else None


def not_checked(state: State, world: World) -> str | None:
    return None if len(state.steps) > 1 else "fewer than two optimizers made steps"
