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
a forward call whose input came from there.  Or one pass walks the sum of two such losses.  Free numbers with an
optimizer of their own, such as a temperature, are filled by the loss in which they weigh another network's output, and
by their own, in whose line that output is detached.

## Near misses
- A sum in which the second loss compares with data, too: an adapter in front of a classifier, which learns from both.
- Summed losses, or several losses of one optimizer over a shared trunk.
- An encoder and a decoder with an optimizer each, both meant to learn from one loss: the encoder is called on data.
- Learned weights of losses and what holds them small: nothing is detached, both losses are theirs.
- A policy improved through a learned model, beside a cost of its own: the model's optimizer never takes that loss.
- The critic's gradients are cleared after the actor's backward, or its parameters are frozen during it.

## Fix
Freeze the second network while the first one's loss is walked, take `torch.autograd.grad` with respect to the first
network's parameters only, or clear the second network's gradients before its own backward.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial

from gradledger.audit import oracle
from gradledger.audit._cycle import Path, assigned_word, fresh, loss_word, of_steps, optimizer_word, path_of
from gradledger.audit._phrases import distinct
from gradledger.audit._source import source_line
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, CallRef, Comparison, Event, OracleExplained, Step, Term
from gradledger.core.site import Site

RULE = Rule(
    "G21",
    "gradient-of-other-loss",
    "gradient lifecycle",
    "A step applies, beside its own loss's gradient, one that another network's loss left behind on its way through.",
)
LISTENS: tuple[type[Event], ...] = (Comparison, Step)
PAIRS_KEPT = 256
PASSES_LOOKED_AT = 16
TERMS_LOOKED_AT = 16
CALLS_KEPT = 256
FREE_NUMBERS = 16
_DETACHES = re.compile(r"\.(detach|item|data)\b")
_MEETINGS = frozenset({"mul", "sub", "rsub"})  # of two outputs, no distance between them
_ONE_NUMBER = frozenset({"ones_like", "zeros_like", "full_like", "ones", "zeros", "full", "new_ones", "new_zeros"})


@dataclass(slots=True)
class _Pair:
    own: Site
    foreign: Site
    step: Step
    other: int
    through: CallRef | None  # None: the optimizer holds free numbers alone
    seen: int = 0
    summed: Site | None = None  # the line that computes the other loss, where one pass walks both
    passes: list[int] = field(default_factory=list)  # the first of these
    shared: bool = False  # and the other's optimizer consumes them as well


@dataclass(slots=True)
class State:
    """`steps`: of each optimizer; `pairs`: two passes, or two terms of one, together in one optimizer's gradients;
    `judged`: the last calls of which the output was compared with data; `taken`: by optimizer, the passes in its latest
    step."""

    steps: dict[int, int] = field(default_factory=dict)
    pairs: dict[tuple[int, Path, Path], _Pair] = field(default_factory=dict)
    judged: dict[int, None] = field(default_factory=dict)
    taken: dict[int, set[int]] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Comparison):
        _note(state, event)
    if not isinstance(event, Step) or event.closure:
        return
    state.steps[event.optimizer] = state.steps.get(event.optimizer, 0) + 1
    if len(world.optimizers) < 2:
        return
    news = [fresh(life.fills) for life in event.lives if not life.frozen]
    state.taken[event.optimizer] = {i for new in news for i in new}
    mixed = {i for new in news if len(new) > 1 for i in new}
    alone = {new[0] for new in news if len(new) == 1}
    if not mixed and len(alone) == 1:
        whole = world.backward(alone.pop())
        if whole is not None:
            _sum(state, event, whole, world)
    for pair in state.pairs.values():  # whichever of the two steps first
        if pair.passes and not pair.shared and event.optimizer in (pair.other, pair.step.optimizer):
            pair.shared = not state.taken.get(pair.other, set()).isdisjoint(pair.passes)
    if not 2 <= len(mixed) <= PASSES_LOOKED_AT:
        return
    passes = [b for b in (world.backward(i) for i in sorted(mixed)) if b is not None]
    for foreign in passes:
        for own in passes:
            if own.backward != foreign.backward:
                _pair(state, event, own, foreign, world)


def _note(state: State, event: Comparison) -> None:
    """Remember calls whose output is compared with data: with no other output, and not with one number throughout."""
    if event.op in _MEETINGS:
        return
    for mine, other in ((event.left, event.right), (event.right, event.left)):
        if not other.calls and other.op not in _ONE_NUMBER:
            state.judged.update(dict.fromkeys(call.call for call in mine.calls))
    while len(state.judged) > CALLS_KEPT:
        del state.judged[next(iter(state.judged))]


def _sum(state: State, step: Step, whole: Backward, world: World) -> None:
    """One pass over a sum: whether one term is this optimizer's own, and another is another's, on its way through."""
    key = (step.optimizer, path_of(whole.site), path_of(whole.site))
    known = state.pairs.get(key)
    if known is not None:
        known.seen += 1
        if len(known.passes) < PASSES_LOOKED_AT:
            known.passes.append(whole.backward)
        return
    terms = [term for term in whole.terms if term.leaves][:TERMS_LOOKED_AT]
    for foreign in terms:
        for own in terms:
            if own is not foreign and len(state.pairs) < PAIRS_KEPT:
                found = _gone_through(step, own, foreign, whole.calls, world)
                if found is not None and found[1].call not in state.judged:
                    other, through = found
                    state.pairs[key] = _Pair(
                        own.site, whole.site, step, other, through, 1, foreign.site, [whole.backward]
                    )
                    return


def _pair(state: State, step: Step, own: Backward, foreign: Backward, world: World) -> None:
    one, two = path_of(own.site), path_of(foreign.site)
    if one == two:  # two losses of one line, walked in a loop
        if set(own.leaves) == set(foreign.leaves):
            return
        one, two = (*one, ("", len(own.leaves))), (*two, ("", len(foreign.leaves)))
    key = (step.optimizer, one, two)
    known = state.pairs.get(key)
    if known is not None:
        known.seen += 1
        return
    if len(state.pairs) < PAIRS_KEPT:
        found = _gone_through(step, own, foreign, foreign.calls, world)
        if found is not None:
            state.pairs[key] = _Pair(own.site, foreign.site, step, *found, 1)
        elif (other := _weighed_by(step, own, foreign, world)) is not None:
            state.pairs[key] = _Pair(own.site, foreign.site, step, other, None, 1)


def _weighed_by(step: Step, own: Backward, foreign: Backward, world: World) -> int | None:
    """Another optimizer for whose tensors the foreign loss is, where this one holds a few free numbers that this loss
    reaches as well, and whose own loss takes no gradient to anything else: it detaches what it is computed from."""
    held = set(world.optimizer(step.optimizer).tensors)
    if sum(world.tensor(t).numel for t in held) > FREE_NUMBERS:
        return None
    if any(world.owners(t) and world.tensor(t).numel > 1 for t in held):  # a small network
        return None
    filled = set(foreign.leaves)
    if not held.issubset(filled) or not held.issuperset(own.leaves):
        return None
    lines = {(t.site.file, t.site.line) for t in own.terms} | {(own.root_site.file, own.root_site.line)}
    if not any(_DETACHES.search(source_line(*line)) for line in lines):
        return None
    for other in world.optimizers.values():
        rest = [t for t in other.tensors if t not in held and world.tensor(t).requires_grad]
        if other.ident != step.optimizer and rest and filled.issuperset(rest):
            return other.ident
    return None


def _gone_through(
    step: Step, own: Backward | Term, foreign: Backward | Term, calls: tuple[CallRef, ...], world: World
) -> tuple[int, CallRef] | None:
    """Another optimizer for whose tensors the foreign loss is, and the call by which it went through this one's; None
    where the own loss trains others too."""
    held = world.optimizer(step.optimizer).tensors
    if any(t not in held and world.holders(t) for t in own.leaves):
        return None
    filled = set(foreign.leaves)
    for other in world.optimizers.values():
        rest = [t for t in other.tensors if t not in held and world.tensor(t).requires_grad]
        if other.ident == step.optimizer or not rest or not filled.issuperset(rest):
            continue
        through = _passed_through(step.optimizer, filled, calls, world)
        if through is not None:
            return other.ident, through
    return None


def _passed_through(optimizer: int, filled: set[int], calls: tuple[CallRef, ...], world: World) -> CallRef | None:
    """The forward call by which the foreign loss went through a module of this optimizer: all of its parameters were
    filled, and its input carried a graph."""
    held = world.optimizer(optimizer).tensors
    for call in calls:
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
        if pair.summed is not None and not pair.shared:
            continue  # a loss over a model that others train: the model's optimizer never takes it
        word, loss = optimizer_word(pair.step.site, world), _loss_of(pair, world)
        through = _named(pair, ident, world)
        meant = next(iter(world.owner_roots(next(iter(world.optimizer(pair.other).tensors)))), None)
        meant_for = f"`{world.module_name(meant)}`" if meant is not None else "another network"
        finding = Finding(
            "G21",
            "error",
            pair.foreign,
            f"`{loss}` trains {meant_for}, but its gradient also stays in `{through}`, whose own optimizer "
            "applies it "
            f"together with the loss of line {pair.own.line}: in {pair.seen} of {of_steps(steps, ident, world)}.",
            f"{through}.detach() in {loss}, or clear it before its own backward"
            if pair.through is None
            else f"{through}.requires_grad_(False) while {loss} is built and walked, or clear {through} before its own "
            "backward"
            if pair.summed is None
            else f"walk the two losses apart, and {loss} with {through}.requires_grad_(False) while it is built and "
            "walked",
            related=distinct(
                pair.foreign,
                (
                    *((pair.summed,) if pair.summed else ()),
                    *((pair.through.site,) if pair.through else ()),
                    pair.step.site,
                    pair.own,
                ),
            ),
            evidence={"steps": steps, "steps_with_both": pair.seen, "tensors": len(world.optimizer(ident).tensors)},
            count=pair.seen,
            subject=word,
            iteration=pair.step.iteration,
        )
        findings.append(oracle.weigh(finding, world, ident, partial(_applied, pair.foreign.key(), world)))
    return findings


def _named(pair: _Pair, optimizer: int, world: World) -> str:
    if pair.through is not None:
        return world.module_name(pair.through.module)
    made = (world.tensor(t).site for t in world.optimizer(optimizer).tensors)
    return next((word for site in made if (word := assigned_word(site, world))), "the free parameter")


def _loss_of(pair: _Pair, world: World) -> str:
    if pair.summed is None:
        return loss_word(pair.foreign, world)
    return assigned_word(pair.summed, world) or f"the loss of line {pair.summed.line}"


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
