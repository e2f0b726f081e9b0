"""# A recompute counts the batch twice

## What it is
Activation checkpointing runs a part of the forward again in the reverse pass.  A BatchNorm in that part moves its
running statistics each time: every batch counts twice.  So does a counter or an average that this part keeps itself,
and the power iteration of a spectral norm.

## Why it matters
The statistics follow the latest batches twice as fast as `momentum` says; evaluation uses noisier statistics than the
same model trained without recompute, and results differ between the two.

## How it is found
In watched iterations, the running mean right after the forward is compared with the one after the reverse pass.  It is
reported when it was moved again and by nothing but the recomputation.  The same of a tensor without graph that both
runs write in place (or by `out=`, as a spectral norm does), and that holds another value after the second.  Where the
part reads what it writes, the second run computes another function than the first: that is an error.

## Near misses
- A BatchNorm in evaluation mode, or outside of the recomputed part.
- Layers without running statistics (LayerNorm, GroupNorm).
- A recomputation that puts the statistics back.
- Writes that may be repeated: a cache that is filled with the same values again, scratch memory made anew.

## Fix
Leave the normalisation outside of the recomputed part, or give it the momentum `1 - sqrt(1 - m)`, with which two moves
are as good as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct
from gradledger.audit._recomputes import follows
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, Recomputed

RULE = Rule(
    "S2",
    "recompute-repeats-side-effect",
    "recompute",
    "A BatchNorm (or a counter) inside a recomputed part moves its running statistics twice for each batch.",
    severity="warning",
)
LISTENS = (Recomputed,)
NEEDS_DETAIL = True
KEPT = 256


@dataclass(slots=True)
class State:
    """The first time that statistics were moved twice, by the line of the recompute, and what came out otherwise."""

    moved: dict[tuple[str, int], Recomputed] = field(default_factory=dict)
    changed: dict[tuple[str, int], Recomputed] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Recomputed) and event.what == "statistics" and len(state.moved) < KEPT:
        state.moved.setdefault(event.site.key(), event)
    elif isinstance(event, Recomputed) and event.what == "state" and len(state.changed) < KEPT:
        state.changed.setdefault(event.site.key(), event)


def finish(state: State, world: World) -> list[Finding]:
    return [_finding(event, state.changed.get(key)) for key, event in state.moved.items()]


def _finding(event: Recomputed, changed: Recomputed | None) -> Finding:
    message, fix = _words(event)
    felt = changed is not None and follows(changed, event)
    lines = (event.op_site, *event.op_site.above(3))
    if felt and changed is not None:
        lines = (*lines, changed.op_site)
        if event.op != "normalize":
            message += f"  What line {changed.op_site.line} makes of it differs: the gradient is not that of the loss."
    return Finding(
        "S2",
        "error" if felt else "warning",
        event.site,
        message,
        fix,
        related=distinct(event.site, lines),
        evidence={"moves_for_each_batch": 2, "changes_the_output": felt},
        iteration=event.iteration,
    )


def _words(event: Recomputed) -> tuple[str, str]:
    """Message and fix."""
    if event.op == "batch_norm":
        what = "a BatchNorm runs inside this recompute in train mode: the forward moves its running statistics, and "
        fix = "keep the BatchNorm outside of the recomputed part, or give it momentum 1 - sqrt(1 - m)"
        return f"{what}the reverse pass moves them once more with the same batch.", fix
    if event.op == "normalize":
        what = "a spectral norm runs inside this recompute in train mode: the forward iterates its vectors once, "
        fix = "keep the layers with a spectral norm outside of the recomputed part"
        return f"{what}and the reverse pass once more, and takes the gradient of the weight that follows.", fix
    line = event.op_site.line
    what = f"line {line} writes in place into a tensor that outlives this recompute (`{event.op}`): the forward"
    return f"{what} does it, and the reverse pass does it once more.", f"keep line {line} out of the recomputed part"
