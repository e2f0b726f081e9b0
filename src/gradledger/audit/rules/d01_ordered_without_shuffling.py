"""# Ordered data without shuffling

## What it is
The training set is stored in an order that follows its content (class after class, a slow sweep, one recording after
the other) and the loader reads it in that order.

## Why it matters
Consecutive batches come from one region.  Each step unlearns what the last ones learned, the gradient of a batch says
little about that of the whole set, and BatchNorm sees one class at a time.

## How it is found
In the first passes over a loader that does not shuffle, the variance of each column of its batches is split into what
lies within batches and what lies between them.  With rows in random order about 1/B of it lies between; it is reported
from half of it on, when reverse passes ran after the batches.  The same of batches that are cut from one table, piece
after piece in memory, and given to a module; a table that is shuffled is another piece of memory, in random order.  And
of batches that a program makes by itself, when the same ones, told by value, come again in the same order, neighbours
alike.

An `IterableDataset` makes its order itself: it is reported when a second pass goes through the same order.  A sampler
or batch sampler of the program's own, or a list of numbers in its place, counts when its numbers come nearly as the
rows are stored, and when a second pass goes through the same order.  Of whole numbers (tokens, lengths, times) only the
classes that a loss takes for its target count.  A loader that shuffles its numbers, over a data set of the program's
own, counts when its batches are ordered all the same, in one order in every pass: `__getitem__` does not give the item
whose number it is asked for.

## Near misses
- Validation loaders: nothing is trained on them.
- Data stored in random order, read without shuffling.
- Batches of rows of like length that come in random order, or whose classes do not go with the length.
- One item a step in an order that is kept, but follows nothing; steps of the whole set, piece by piece.
- Sequences that carry the state of a recurrent network from batch to batch.

## Fix
`DataLoader(..., shuffle=True)`, or a `RandomSampler`; `for idx in torch.randperm(len(x)).split(size)` without a loader.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from gradledger.audit._code import last_name, lines_calling, parsed, walk
from gradledger.audit._loops import enclosing_function
from gradledger.audit._made_at import made_at
from gradledger.audit._order import cut, walks_in
from gradledger.audit._phrases import distinct
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import BatchesCompared, Event
from gradledger.core.site import Site

RULE = Rule(
    "D1",
    "ordered-without-shuffling",
    "data",
    "Training data is ordered by its content and read without shuffling: each batch comes from one region.",
    "warning",
)
LISTENS: tuple[type[Event], ...] = (BatchesCompared,)
KEPT = 500
SHARE = 0.5  # of the variance lies between batches
INPUTS = 0.25  # of that of some column of floating point or class: a sorted number of an item alone says nothing
BATCHES = 4
ROWS = 8
_ORDERS = frozenset({"permutation", "randperm", "sort", "sorted", "argsort", "lexsort"})
_STATEFUL = ("RNN", "LSTM", "GRU")


@dataclass(slots=True)
class State:
    """The passes over loaders that do not shuffle."""

    passes: list[BatchesCompared] = field(default_factory=list)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, BatchesCompared) and len(state.passes) < KEPT:
        state.passes.append(event)


def finish(state: State, world: World) -> list[Finding]:
    if any(m.builtin and m.short_cls.startswith(_STATEFUL) for m in world.modules.values()):
        return []
    found = []
    for event in state.passes:
        if event.batches < BATCHES or event.rows < ROWS or 2 * event.trained < event.batches:
            continue
        if event.between < SHARE or event.between_inputs < max(INPUTS, 5 / event.rows):
            continue
        loader = world.loaders.get(event.loader)
        site = loader.made.site if loader is not None else event.site
        reads = "the loader reads" if loader is not None else "the batches cut here read"
        fix = "DataLoader(..., shuffle=True)"
        loops: tuple[Site, ...] = ()
        if loader is None:
            fix = "for idx in torch.randperm(len(x)).split(size): x[idx], y[idx]"
            site, loops = cut(event.site)
            loops = (*loops, *_order_of(site), *(Site(site.file, n, "") for n in lines_calling(site.file, _ORDERS)[:3]))
        elif event.order_site.file and loader.made.shuffled and event.order_site.function == "__getitem__":
            reads = "the loader shuffles its numbers, but the data set gives its items in one order: batches hold"
            fix = "let __getitem__ give the item whose number it is asked for"
            site, loops = event.order_site, (site,)
        elif event.order_site.file:
            fix = "shuffle in the __iter__ that gives the order: torch.randperm(n).tolist(), or a buffer of many rows"
            loops = (*walks_in(event.order_site), *made_at(site)[:1])
        found.append(
            Finding(
                "D1",
                "warning",
                site,
                f"{reads} the data in order and the data is ordered: {event.between:.0%} of the variance lies "
                f"between the {event.batches} batches of {event.rows} rows (about {1 / event.rows:.0%} when rows "
                f"are in random order), and {event.trained} of them were trained on.",
                fix,
                related=distinct(site, (event.site, *loops)),
                evidence={
                    "between_batches": round(event.between, 4),
                    "expected": round(1 / event.rows, 4),
                    "batches": event.batches,
                    "rows": event.rows,
                    "item": event.item,
                },
                iteration=event.iteration,
            )
        )
    return found


def _order_of(site: Site) -> list[Site]:
    """Where what is cut on the line was made, in its function: an order of rows that nobody draws."""
    tree, function = parsed(site.file), enclosing_function(site.file, site.line)
    nodes = walk(tree) if tree is not None else ()
    cuts = [n for n in nodes if isinstance(n, ast.Subscript) and n.lineno <= site.line <= (n.end_lineno or n.lineno)]
    names = {n.value.id for n in cuts if isinstance(n.value, ast.Name)}
    inside = walk(function) if function is not None else nodes
    made = [n for n in inside if isinstance(n, ast.Assign) and n.lineno < site.line]
    return [Site(site.file, n.lineno, site.function) for n in made if names & {last_name(t) for t in n.targets}][-2:]


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    return None if world.loaders or state.passes else "no DataLoader was built"
