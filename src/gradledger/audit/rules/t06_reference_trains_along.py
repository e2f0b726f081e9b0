"""# A deep-copied reference trains along

## What it is
A reference policy or teacher was made by `copy.deepcopy` from a network in training, takes gradients from the term that
compares both, and is held by an optimizer.

## Why it matters
The anchor is trained to follow what it should hold in place: the penalty shrinks without holding anything.

## How it is found
A deep copy and its original meet in a comparison (kl, mse, ...) with a gradient into both, both are stepped by an
optimizer, and the copy receives gradient only from terms that also hold the original, while the original has a loss
of its own.  A program without an optimizer asks `autograd.grad` for the gradients of both, again and again.

## Near misses
- `ref.requires_grad_(False)`, or the reference's output under `no_grad`.
- Double critics and ensembles: each member has a loss of its own.
- A student made by deep copy from a frozen teacher.
- Fast weights of a hand-written inner loop, which have a loss of their own.
- Siamese networks trained by one symmetric loss.

## Fix
`ref = copy.deepcopy(policy).requires_grad_(False)`, and give the optimizer `policy.parameters()` only.
"""

from __future__ import annotations

from gradledger.audit import _code
from gradledger.audit._phrases import distinct, times
from gradledger.audit._targets import Link, Meeting, Watch, alone, call_into, frozen, links, made_at
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Comparison, Event
from gradledger.core.site import NOWHERE

RULE = Rule(
    "T6",
    "reference-trains-along",
    "target networks",
    "A deep-copied reference receives gradients and is trained together with the network it should anchor.",
)
LISTENS: tuple[type[Event], ...] = (Backward, Comparison)

_AGAIN = 8  # passes of `autograd.grad`
# Statistics over the batch or all pairs: two networks that are aligned with each other, not one anchored to the other.
_MIXING = frozenset({"matmul", "mm", "bmm", "einsum", "cdist", "cov", "var", "std"})


def init() -> Watch:
    return Watch()


def update(state: Watch, event: Event, world: World) -> None:
    state.take(event)


def not_checked(state: Watch, world: World) -> str | None:
    """Without a deep copy there is no reference."""
    return None if any(link.deep for link in links(world)) else "no module was deep-copied"


def finish(state: Watch, world: World) -> list[Finding]:
    known = links(world)
    found = []
    told: set[tuple[int, int]] = set()
    for link in known:
        if link.deep and (link.source, link.target) not in told and not _synced(link, known):
            finding = _judge(link, state, world)
            if finding is not None:
                told.add((link.source, link.target))
                found.append(finding)
    return found


def _synced(link: Link, known: list[Link]) -> bool:
    """The copy is also written while training goes on: a target network, which other rules judge."""
    written = {t for other in known if other.repeated for _, t in other.pairs}
    return any(t in written for _, t in link.pairs)


def _judge(link: Link, state: Watch, world: World) -> Finding | None:
    originals, copies = {s for s, _ in link.pairs}, {t for _, t in link.pairs}
    if not copies or frozen(link.target, world) or any(s == t for s, t in link.pairs):
        return None
    by_hand = not world.optimizers
    terms = state.asked if by_hand else state.terms
    both = [k for k in terms if k & originals and k & copies]
    if not both:
        return None
    copy_alone, original_alone = alone(terms, copies, originals), alone(terms, originals, copies)
    if copy_alone == original_alone and not _named(link, world):
        return None
    if copy_alone and original_alone:
        return None
    reference, network = (link.source, link.target) if copy_alone else (link.target, link.source)
    passive, active = (originals, copies) if copy_alone else (copies, originals)
    met = _meeting(passive, active, state, world)
    if met is not None and (met.bootstrap or (_MIXING & set(met.made_from) and not _named(link, world))):
        return None
    if met is None and not _named(link, world):
        return None
    held = [t for t in passive if world.trained(t)]
    if not any(world.trained(t) for t in active) and not (by_hand and _asked(passive, active, state) >= _AGAIN):
        return None
    return _finding(link, reference, network, held, met, terms[both[0]], world)


def _asked(passive: set[int], active: set[int], watch: Watch) -> int:
    """In how many passes the program asked for gradients of both: it uses them for an update of its own."""
    return sum(
        seen.count
        for leaves, seen in watch.fills.items()
        if seen.first.method != "backward" and not passive.isdisjoint(leaves) and not active.isdisjoint(leaves)
    )


def _named(link: Link, world: World) -> bool:
    """Whether the program calls the copy a reference, teacher, old or frozen network."""
    label = world.module_name(link.target).rpartition(".")[2]
    return _code.lagging(label)


def _meeting(passive: set[int], active: set[int], watch: Watch, world: World) -> Meeting | None:
    for met in watch.meetings.values():
        if met.learner == met.target or not met.target_graph:
            continue
        if passive & set(world.tensors_of(met.target)) and active & set(world.tensors_of(met.learner)):
            return met
    return None


def _finding(
    link: Link, reference: int, network: int, held: list[int], met: Meeting | None, backward: Backward, world: World
) -> Finding:
    name, other = world.module_name(reference), world.module_name(network)
    holder = world.optimizer(world.holders(held[0])[0]) if held else None
    call = call_into(backward, set(world.tensors_of(reference)), world)
    if holder is not None:
        site = holder.site
        what = f"{holder.short_cls} trains {times(len(held), 'parameter')} of it to follow what it should anchor."
        fix = f"{_variable(name)}.requires_grad_(False), and only the parameters of `{other}` in the optimizer"
    elif backward.method != "backward":
        site = link.site
        what = f"line {backward.site.line} asks for its gradients, too, and the update trains it to follow."
        fix = f"{_variable(name)}.requires_grad_(False) after the copy, and an update of what requires grad alone"
    else:
        site = link.site
        what = "no optimizer holds it, so its .grad only grows."
        fix = f"{_variable(name)}.requires_grad_(False) after the copy"
    if not site.file:
        site = made_at(reference, world)
    return Finding(
        "T6",
        "error" if holder is not None or backward.method != "backward" else "info",
        site,
        f"`{name}` is a deep copy of `{other}` and takes gradients only from the loss that compares both"
        + (f" (line {met.site.line})" if met is not None else "")
        + f": {what}",
        fix,
        related=distinct(
            site,
            (
                link.site,
                made_at(reference, world),
                call.site if call is not None else NOWHERE,
                *((met.target_site, met.site) if met is not None else ()),
                backward.site,
            ),
        ),
        evidence={
            "reference": name,
            "network": other,
            "parameters_in_optimizer": len(held),
            "compared_by": met.op if met is not None else "",
            "comparisons_seen": met.count if met is not None else 0,
        },
        count=max(met.count if met is not None else 1, 1),
        subject=name,
        iteration=backward.iteration if met is None else met.first_iteration,
    )


def _variable(name: str) -> str:
    return name.rpartition(".")[2] if name.rpartition(".")[2].isidentifier() else name
