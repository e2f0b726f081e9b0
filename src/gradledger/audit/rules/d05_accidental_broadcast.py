"""# [B] against [B, 1] broadcasts to [B, B]

## What it is
A column of shape [B, 1] meets a vector of shape [B] in a loss or in arithmetic that ends in a loss.  Torch broadcasts
them to a [B, B] matrix: every prediction against every target.

## Why it matters
The loss is finite, falls, and is minimised by predicting the mean of the batch.  In a policy gradient every action is
reinforced by every advantage, and the gradient averages out.

## How it is found
Shapes of the operands of loss calls and of arithmetic in watched iterations.  A matrix made from [B] and [B, 1] is
reported when it reaches the loss by way of elementwise operations and reductions only, and nobody asked for it: no
operand was reshaped in the same expression, both do not come from one tensor, and it is not combined with a genuine
[B, B] matrix on the way.  Where the loss is a mean of the sum of the two, and nothing else, it is a warning: the mean
over all pairs is the sum of the means, and only time and memory are lost.

## Near misses
- Pairwise losses, distance matrices, quantile regression: `a.unsqueeze(1) - b`.
- Attention masks and embeddings inside a model; per-channel and per-class constants.
- Column against column.
- Signals drawn from columns over as many places as the batch has rows: a network's own output is compared with them.

## Fix
Give both the same shape: `model(x).squeeze(1) - target`, or `target.unsqueeze(1)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Broadcast, Event

RULE = Rule(
    "D5",
    "accidental-broadcast",
    "data",
    "[B] and [B, 1] broadcast to [B, B] in a loss: every prediction is compared with every target.",
)
LISTENS: tuple[type[Event], ...] = (Broadcast,)
NEEDS_DETAIL = True


@dataclass(slots=True)
class _Spot:
    first: Broadcast
    seen: int = 0
    explicit: bool = False
    graph: bool = False
    harmful: bool = False


@dataclass(slots=True)
class State:
    """Broadcasts by line."""

    spots: dict[tuple[str, int], _Spot] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if not isinstance(event, Broadcast):
        return
    spot = state.spots.setdefault(event.site.key(), _Spot(event))
    spot.seen += 1
    spot.explicit |= event.explicit
    spot.graph |= event.has_graph
    spot.harmful |= not event.harmless


def finish(state: State, world: World) -> list[Finding]:
    kept: list[Finding] = []
    for finding in (_finding(spot) for spot in state.spots.values() if not spot.explicit):
        # `ratio * adv` and `clipped * adv`: one operand of the wrong shape is one fault
        for index, other in enumerate(kept):
            if _is_one_fault(finding, other):
                lines = distinct(other.site, (*other.related, finding.site, *finding.related))
                kept[index] = replace(other, related=lines, count=other.count + finding.count)
                break
        else:
            kept.append(finding)
    # who hands the operands over, for a loss that is given the wrong shape
    return [replace(f, related=distinct(f.site, (*f.related, *f.site.above(2)))) for f in kept]


def _is_one_fault(a: Finding, b: Finding) -> bool:
    """Two lines that have an operand in common, or operands of the same shapes in one call of one function."""
    if {s.key() for s in a.related} & {s.key() for s in b.related}:
        return True
    shapes = [{str(f.evidence["left"]), str(f.evidence["right"])} for f in (a, b)]
    places = [(f.site.file, f.site.function, f.site.callers) for f in (a, b)]
    return bool(a.site.callers) and shapes[0] == shapes[1] and places[0] == places[1]


def _finding(spot: _Spot) -> Finding:
    event = spot.first
    rows = max(event.left[0] if event.left else 0, event.right[0] if event.right else 0)
    left, right = list(event.left), list(event.right)
    out = [rows, *min(left, right, key=len)]
    tail = "" if spot.harmful else "  Only a mean of this sum is taken, so that value and gradient are those meant."
    return Finding(
        "D5",
        "error" if spot.harmful else "warning",
        event.site,
        f"`{event.op}` of {left} and {right} broadcasts to {out}: each of the {rows} rows meets all "
        f"{rows} of the other operand ({rows}x the terms meant); seen {times(spot.seen, 'time')}.{tail}",
        "give both operands one shape: .squeeze(-1) on the column, or .unsqueeze(-1) on the vector"
        if len(out) == 2
        else "give both operands one shape: .squeeze(1) on the longer one, or .unsqueeze(1) on the other",
        related=distinct(event.site, (event.left_site, event.right_site)),
        evidence={
            "op": event.op,
            "left": left,
            "right": right,
            "result": out,
            "terms_per_row": rows,
            "seen": spot.seen,
            "operand_with_graph": spot.graph,
            "changes_the_loss": spot.harmful,
        },
        count=spot.seen,
        iteration=event.iteration,
    )
