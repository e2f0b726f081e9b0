"""# A loss against one's own detached value

## What it is
Both sides of a comparison are the same tensor, one of them detached: `F.mse_loss(action, action.detach())`.

## Why it matters
The value is exactly 0 at every step and so is the gradient.  A trust region, an anchor or a consistency term that looks
perfectly satisfied does nothing at all.

## How it is found
The two operands of a loss call, or of a difference that is then squared or made absolute, are the same value up to
`detach`, views and copies, and the value is 0 each time it was looked at.

## Near misses
- Stop-gradient losses whose sides are computed separately (VQ commitment, BYOL, SimSiam).
- `exp(logp - logp.detach()) * A`: value 1, gradient not zero.
- The loss against the output of a frozen copy, which is 0 at the first step only.

## Fix
Compare with what was meant: `anchor = previous(obs)`, the output of the earlier or of the averaged network.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Comparison, Event, Operand

RULE = Rule(
    "G19",
    "compared-with-itself",
    "gradient lifecycle",
    "A loss compares a tensor with its own detached value: it is 0 and so is its gradient.",
)
LISTENS: tuple[type[Event], ...] = (Comparison,)
NEEDS_DETAIL = True

# Losses whose value and gradient are both zero when the two sides are equal (cross-entropy of equal sides is neither).
_ZERO_AT_EQUAL = frozenset(
    {
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "kl_div",
        "difference",
        "cosine_similarity",
        "cosine_embedding_loss",
    }
)
_ZERO = 1e-6


@dataclass(slots=True)
class _Pair:
    first: Comparison
    alias: int = 0
    other: int = 0


@dataclass(slots=True)
class State:
    """Comparisons by line, operation and where the two sides were made; `others`: those that are none with itself, by
    line, the line that called it, operation and either side."""

    pairs: dict[tuple[object, ...], _Pair] = field(default_factory=dict)
    others: Counter[tuple[object, ...]] = field(default_factory=Counter)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if not isinstance(event, Comparison) or event.op not in _ZERO_AT_EQUAL:
        return
    alias = event.left.alias_of_other or event.right.alias_of_other
    moves = event.left.has_graph or event.right.has_graph
    zero = event.value is None or abs(event.value) <= _ZERO
    sides = (event.left.op, event.left.site.key(), event.right.op, event.right.site.key())
    pair = state.pairs.setdefault((event.site.key(), event.op, *sides), _Pair(event))
    if alias and moves and zero:
        if not pair.alias:
            pair.first = event
        pair.alias += 1
    else:
        pair.other += 1
        state.others.update((*_place(event), side.site.key()) for side in (event.left, event.right))


def _place(event: Comparison) -> tuple[object, ...]:
    return event.op, event.site.key(), *(site.key() for site in event.site.above(1))


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    for pair in state.pairs.values():
        if not pair.alias or pair.other:
            continue
        event = pair.first
        detached: Operand = event.left if event.left.alias_of_other and not event.left.has_graph else event.right
        cut = detached.cut.site if detached.cut is not None else detached.site
        source = event.right if detached is event.left else event.left
        if state.others[*_place(event), source.site.key()] > pair.alias:
            continue  # nothing was kept yet to compare with: the first step of many
        findings.append(
            Finding(
                "G19",
                "error",
                event.site,
                f"This `{event.op}` compares the `{source.op}` of line {source.site.line} with its own detached value: "
                f"the gradient is exactly zero, each of the {times(pair.alias, 'time')} it was looked at.",
                "compare with what was meant: the output of the earlier, frozen or averaged network",
                related=distinct(event.site, (cut, detached.site, source.site, *event.site.above(2))),
                evidence={"op": event.op, "value": 0.0, "looked": pair.alias, "shape": list(event.left.shape)},
                count=pair.alias,
                iteration=event.iteration,
            )
        )
    return findings
