"""# Padding in the loss

## What it is
Sequences of different lengths are padded to one length, and the loss compares all positions: the model is trained on
the padding, too.

## Why it matters
The loss looks better than it is, since the padding is easy.  Short sequences teach mostly "predict the padding", and
the gradient of the real steps shrinks with the longest sequence of the batch.

## How it is found
Where a batch is padded is read from its values: rows that end (or begin) in one value that stands nowhere else, at
the same places in input and target; a mask or a vector of lengths that says the same; `pad_sequence`.  It is reported
when those positions of the target get a gradient in the program's own reverse passes, which sees every way of masking
alike.  Of rows whose input and target end together it is reported, too, when just the first padded position of each
gets one, by a mask that is longer by one (`<=` for `<`).  And a CTC loss, when it is told the padded width as the
length of every row.

## Near misses
- Masks (by product, indexing, `where`), `ignore_index`, packed sequences, weights that are zero at the padding.
- Zeros that stand among the content, too: images, sparse rewards, one-hot rows.
- One step more than the input is long: the end that is to be predicted, the state after the last action.
- Alignments over frames that are as long in all rows, or made blank by hand.
- Targets that are the input itself (autoencoders), unless a mask or lengths are there.

## Fix
`(loss * mask).sum() / mask.sum()`, `loss[mask].mean()`, or `cross_entropy(..., ignore_index=PAD)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._padded import lines_that_pad
from gradledger.audit._phrases import distinct, number
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, PaddingCounted
from gradledger.core.site import Site

RULE = Rule(
    "D4",
    "padding-in-the-loss",
    "data",
    "Padded positions of sequences are compared in the loss like real ones.",
)
LISTENS: tuple[type[Event], ...] = (PaddingCounted, Backward)
NEEDS_DETAIL = True
KEPT = 200
NEEDED = 2  # reverse passes
LEAST_SHARE = 0.4  # of the comparisons at a line: one in which rows end alike by chance is no padding
ROOTS = 4  # lines


@dataclass(slots=True)
class State:
    """Comparisons that counted padding, by line, and where the losses that they went into were averaged; those of the
    reverse pass under way; reverse passes that were looked at."""

    seen: dict[tuple[str, int], list[PaddingCounted]] = field(default_factory=dict)
    averaged: dict[tuple[str, int], dict[tuple[str, int], Site]] = field(default_factory=dict)
    open: list[PaddingCounted] = field(default_factory=list)
    walked: int = 0


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, PaddingCounted) and len(state.seen) < KEPT:
        state.seen.setdefault(event.site.key(), []).append(event)
        state.open = [*state.open[-7:], event]
    elif isinstance(event, Backward):
        state.walked += event.detailed
        _averaged(state, event)


def _averaged(state: State, event: Backward) -> None:
    """The pass that counted padding is told after it: the lines that made its loss out of single positions."""
    counted, state.open = state.open, []
    made = [event.root_site, *(t.site for t in event.terms if t.has_graph and t.op in ("mean", "sum"))][:ROOTS]
    for one in counted:
        places = state.averaged.setdefault(one.site.key(), {})
        for site in made:
            if site.file and len(places) < ROOTS:
                places.setdefault(site.key(), site)


_TOLD = {
    "input": "the input is padded at the same places",
    "mask": "a mask says where",
    "lengths": "the lengths stand in the batch",
    "pad_sequence": "`pad_sequence` made it",
}


_FIX = "(loss * mask).sum() / mask.sum(), or ignore_index=PAD for classes"
_FIXES = {"one more": "torch.arange(steps) < lengths[:, None]", "ctc_loss": "input_lengths: the frames of each row"}


def _message(event: PaddingCounted, more: str) -> str:
    size = f"{event.padded:.0%} of the {event.rows} x {event.steps} positions"
    if event.told_by == "one more":
        return (
            f"the mask is longer by one: the first padded position of each row, {size}, is compared by `{event.op}` "
            "like a real one; input and target have ended there."
        )
    if event.op == "ctc_loss":
        return f"`ctc_loss` is told that all rows are as long as the longest, and {size} are padding{more}."
    return (
        f"`{event.op}` compares padded positions like real ones: {size} are padding{more}; "
        f"{_TOLD.get(event.told_by, event.told_by)}."
    )


def finish(state: State, world: World) -> list[Finding]:
    found = []
    for place, events in state.seen.items():
        if len(events) < NEEDED or events[-1].found < LEAST_SHARE * events[-1].looked:
            continue
        event = events[0]
        averaged = state.averaged.get(place, {}).values()
        pulled = [e.pulled for e in events if e.pulled is not None]
        share = f" and gets {pulled[0]:.0%} of the gradient" if pulled else ""
        filled = f" (filled with {number(event.value)})" if event.value is not None else ""
        callers = event.site.above(2)
        site = event.mask_site if event.mask_site.file else event.site
        masked = event.mask_site.above(1)
        found.append(
            Finding(
                "D4",
                "error",
                site,
                _message(event, filled + share),
                _FIXES.get(event.told_by) or _FIXES.get(event.op) or _FIX,
                related=distinct(site, (*masked, event.site, *callers, *averaged, *lines_that_pad(event))),
                evidence={
                    "rows": event.rows,
                    "steps": event.steps,
                    "padded": event.padded,
                    "gradient_on_padding": pulled[0] if pulled else None,
                    "padding_value": event.value,
                    "told_by": event.told_by,
                },
                count=len(events),
                iteration=event.iteration,
            )
        )
    return found


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    return None if state.walked else "no reverse pass was watched in detail"
