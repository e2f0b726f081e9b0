"""# Related rows on both sides of a split

## What it is
Frames of one recording, windows of one person, crops of one picture, augmented copies of one item: the split shuffles
rows, not the recordings, people or items that they come from.

## Why it matters
The validation rows have near twins among the training rows, so the score measures memory.  On new recordings the model
is far worse than the score says.

## How it is found
Rows are followed from the program's tables to the forward calls: those that reverse passes walked are trained on, other
parts of the same table are held out.  The values of both are compared.  It is reported when rows cluster in many tight
groups with empty space between them (more groups than classes), when the stored order runs smoothly and jumps between
recordings, or when items hold the very same numbers shifted (overlapping windows), and most of the held-out rows belong
together with rows trained on (a fifth of them, where the relatives are copies with a little noise, as of a rare class
that is oversampled).  Where the program splits before torch sees the rows, the inputs of a training and of an
evaluation that is named for held-out rows (`x_val`, or what was taken by `fold == test_fold`), or that stands beside
one on the rows of training by the same function, are compared in the same way; copies among the rows held out, some of
which are trained on, count too.  And pairs, given to a module of two alike inputs, that were trained on the other way
round, where pairs that were trained on both ways had one target.

## Near misses
- Splits by group, by recording, or in time.
- Rows of one class each in a cluster: the clusters are the classes.
- Independent rows, dense or sparse; grids, sorted points of one variable, counted and categorical inputs.
- Pairs with a direction: (u, v) and (v, u) have targets of their own.
- Folds that are trained on in turn; parts that nobody evaluates.

## Fix
Split the groups: draw from the recordings, then take all rows of each (`GroupShuffleSplit`, `torch.isin(group, held)`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit import _met
from gradledger.audit._code import lines_calling
from gradledger.audit._phrases import distinct
from gradledger.audit._splits import is_held_out, lines_that_split
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, RowsMet, RowsShared

RULE = Rule(
    "D6",
    "related-rows-on-both-sides",
    "data",
    "Rows that belong together (a recording, a scene, near copies) are on both sides of a split.",
)
LISTENS: tuple[type[Event], ...] = (RowsShared, RowsMet)
NEEDS_DETAIL = True
KEPT = 200
SHARE = 0.5  # of the held-out rows
COPIED, NOISE = 0.2, 0.05  # of them, that are copies of others up to this share of the typical distance


@dataclass(slots=True)
class State:
    """The latest comparison of each pair of parts, by their lines."""

    seen: dict[tuple[tuple[str, int], str], RowsShared] = field(default_factory=dict)
    met: dict[tuple[tuple[str, int], str], RowsMet] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, RowsShared) and len(state.seen) < KEPT:
        state.seen[event.site.key(), event.how] = event
    elif isinstance(event, RowsMet) and len(state.met) < KEPT:
        state.met[event.site.key(), event.how] = event


def finish(state: State, world: World) -> list[Finding]:
    found = []
    for event in state.seen.values():
        if event.how == "same" or event.trained or not _enough(event):
            continue
        if not event.site.file or not is_held_out(event.site, event.evaluated):
            continue
        what = {
            "groups": f"the {event.rows} rows form {event.groups} tight groups",
            "runs": f"the {event.rows} rows are {event.groups} recordings, one after the other",
            "windows": f"the {event.rows} items are overlapping windows that hold the very same numbers",
        }[event.how]
        callers = event.site.above(1)
        # a helper that cuts several parts is asked for the one held out by its caller
        asked = lines_calling(event.site.file, frozenset({event.site.function})) if callers else []
        site = callers[0] if len(asked) > 1 else event.site
        split = lines_that_split(event.site)[:3] or _met.split_lines(event.site)
        found.append(
            Finding(
                "D6",
                "error",
                site,
                f"{what}, and {event.shared:.0%} of the {event.held} rows held out have relatives among those trained "
                f"on: the score measures memory, not what happens on new data.",
                "split by group: draw whole recordings (people, scenes), then take all their rows",
                related=distinct(site, (*split, event.site, *callers, event.train_site)),
                evidence={
                    "how": event.how,
                    "groups": event.groups,
                    "rows": event.rows,
                    "held_out": event.held,
                    "with_relatives": event.shared,
                    "distance_within": event.within,
                },
                confidence="certain" if event.how != "runs" else "likely",
                iteration=event.iteration,
            )
        )
    return found or [f for event in state.met.values() if (f := _by_value(event)) is not None][:1]


def _enough(event: RowsShared | RowsMet) -> bool:
    """Whether enough of the held-out rows have relatives; fewer will do where those are copies with a little noise."""
    copied = event.how == "groups" and event.within <= NOISE and event.shared >= COPIED
    return copied or event.shared >= SHARE


def _by_value(event: RowsMet) -> Finding | None:
    copies = _met.are_copies(event)
    related = event.how != "same" and _enough(event)
    if not (copies or related) or not (event.beside or _met.asks_for_held_out(event.site)):
        return None
    what = {
        "groups": f"the rows form {event.groups} tight groups",
        "windows": "the items are overlapping windows that hold the very same numbers",
        "mirrored": "each pair (u, v) is there as (v, u), too",
        "same": f"{event.repeated:.0%} of the rows asked for on line {event.site.line} are there more than once",
    }[event.how]
    split = _met.split_lines(event.site)
    site = split[0] if split else event.site
    relatives = "copies" if copies else "relatives"
    return Finding(
        "D6",
        "error",
        site,
        f"{what}, and {event.shared:.0%} of the {event.held} rows that line {event.site.line} evaluates have "
        f"{relatives} among those trained on (line {event.train_site.line}): the score measures memory, not what "
        "happens on new data.",
        "part the groups (recordings, people, pictures) first, and only then cut windows, copy or augment",
        related=distinct(site, (*split[1:], event.site, event.train_site)),
        evidence={
            "how": "copies" if copies else event.how,
            "groups": event.groups,
            "rows": event.rows,
            "held_out": event.held,
            "with_relatives": event.shared,
            "distance_within": event.within,
        },
        confidence="likely",
        iteration=event.iteration,
    )


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    return None if world.detailed else "no reverse pass was watched in detail"
