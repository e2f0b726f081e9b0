"""# Augmentation changes the stored data

## What it is
An item is handed out as a view of what the data set keeps, and is then changed in place: noise is added, a value
subtracted, a part blanked.

## Why it matters
The change stays.  Each epoch augments what the last one augmented, the data drifts away from what was recorded, and a
normalisation is applied again and again.

## How it is found
In the first passes, what a data set keeps for the items of a batch is compared before and after they are fetched.  It
is reported when the values of stored items changed in two passes.  A data set that is built anew for each pass counts
when a pass finds items as an earlier one left them and changes them again: then what lies under it is the same.  So
are pieces that a program cuts from a table, or from an array of numpy, without any data set, when it computes into them
and trains on them again, as they are or stacked; and records of a tensor each, when parts of them are masked again and
again and nothing else is written into them.

## Near misses
- Batches changed in place after the loader has stacked them: a copy.
- Caches, each place of which is filled once, in whichever pass comes to it first; counts that are only written.
- Fresh copies for each pass, or stored values that are put back before it, and augmented in place.
- `clone()`, `copy()`, or an operation that makes a new tensor, before the change.

## Fix
`item = self.items[i].clone()` (`.copy()` for arrays) before anything in place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._phrases import times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, StoredDataChanged
from gradledger.core.site import Site

RULE = Rule(
    "D2",
    "stored-data-changed-in-place",
    "data",
    "Items are changed in place on their way out of the data set, so the stored data drifts epoch after epoch.",
)
LISTENS: tuple[type[Event], ...] = (StoredDataChanged,)
KEPT = 100
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class State:
    """What was seen to change."""

    changes: list[StoredDataChanged] = field(default_factory=list)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, StoredDataChanged) and len(state.changes) < KEPT:
        state.changes.append(event)


def finish(state: State, world: World) -> list[Finding]:
    found = []
    told = any(event.dataset != "tensor" for event in state.changes)
    for event in state.changes:
        if told and event.dataset == "tensor":
            continue  # the pieces of what a data set hands out
        read, written = _lines(event)
        if _is_record(event):
            continue
        site = read[0] if read else written[0] if written else event.readers[0] if event.readers else event.site
        more = () if written else _handed_on(event)
        related = tuple(s for s in dict.fromkeys((*read, *written, *more)) if s.key() != site.key())
        found.append(
            Finding(
                "D2",
                "error",
                site,
                f"{'this' if event.dataset == 'tensor' else 'fetching items'} changes {_stored(event)} in place: "
                f"{times(event.items, 'stored item')} looked at had other values afterwards, in {event.passes} passes.",
                "copy the item first: .clone() of a tensor, .copy() of an array",
                related=related[:6],
                evidence={"attribute": event.attribute, "items": event.items, "passes": event.passes},
                count=event.items,
                subject=f"{event.dataset}.{event.attribute}".rstrip("."),
                iteration=event.iteration,
            )
        )
    return found


def _stored(event: StoredDataChanged) -> str:
    """ "`x` of `Frames`"; a plain list of items has no attribute, a table that batches are cut from no class."""
    if event.dataset == "tensor":
        return "the records that batches are made of" if event.attribute else "the table that batches are cut from"
    return f"`{event.attribute}` of `{event.dataset}`" if event.attribute else f"the items of the {event.dataset}"


def _lines(event: StoredDataChanged) -> tuple[list[Site], list[Site]]:
    """The lines that take an item out of what is stored, those of a reader that changes something in place first; and
    the lines that do."""
    ready: list[Site] = []
    other: list[Site] = []
    written: list[Site] = []
    for reader in event.readers:
        body, whole = _bodies(reader)
        read = _reads(body, event, reader) or _reads(whole, event, reader)
        fills = {id(n) for function in whole for n in _fills(function, event.attribute)}
        writes = [
            Site(reader.file, node.lineno, getattr(function, "name", ""))
            for function in whole
            for node in walk(function)
            if isinstance(node, (ast.expr, ast.stmt)) and _in_place(node) and id(node) not in fills
        ]
        written += writes
        (ready if writes else other).extend(read)
    return ready or ([] if written else other), written


def _handed_on(event: StoredDataChanged) -> list[Site]:
    """Where a reader gives what it has read to something else, and the lines of that which change what they are given
    in place: a transform of the program's own."""
    found: list[Site] = []
    for reader in event.readers[:1]:
        calls = [n for f in _bodies(reader)[0] for n in walk(f) if isinstance(n, ast.Call)]
        given = [n for n in calls if any(isinstance(a, ast.Name) for a in n.args) and last_name(n.func)]
        names = {last_name(n.func) for n in given}
        tree = parsed(reader.file)
        for function in walk(tree) if tree is not None else ():
            if isinstance(function, ast.FunctionDef) and function.name in {*names, "__call__"}:
                own = {a.arg for a in function.args.args} - {"self"}
                changes = [n for n in walk(function) if isinstance(n, (ast.stmt, ast.Call)) and _in_place(n)]
                lines = [n.lineno for n in changes if _root(n) in own]
                if lines:
                    found += [Site(reader.file, n.lineno, reader.function) for n in given]
                    found += [Site(reader.file, line, function.name) for line in lines]
    return found[:5]


def _root(node: ast.AST) -> str:
    """The name of what a statement or call changes in place: `seg` of `seg[0] *= 2` and of `seg.mul_(2)`."""
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        node = node.targets[0] if isinstance(node, ast.Assign) else node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _reads(functions: list[ast.AST], event: StoredDataChanged, reader: Site) -> list[Site]:
    return [
        Site(reader.file, node.lineno, getattr(function, "name", reader.function))
        for function in functions
        for node in walk(function)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
        if last_name(node.value) == event.attribute
    ]


def _fills(function: ast.AST, attribute: str) -> Iterator[ast.AST]:
    """What stands under `if i not in self.cache:`, where a cache is filled."""
    for node in walk(function):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.NotIn):
            if last_name(node.test.comparators[0]) == attribute:
                yield from (part for statement in node.body for part in walk(statement))


def _is_record(event: StoredDataChanged) -> bool:
    """Whether the reader writes to the attribute by its name and never reads from it: a count, a priority."""
    stored = loaded = False
    for reader in event.readers:
        for function in _bodies(reader)[1]:
            for node in walk(function):
                if isinstance(node, ast.Subscript) and last_name(node.value) == event.attribute:
                    stored |= isinstance(node.ctx, ast.Store)
                    loaded |= isinstance(node.ctx, ast.Load)
    return stored and not loaded


def _bodies(reader: Site) -> tuple[list[ast.AST], list[ast.AST]]:
    """The function that reads, alone; and with it the other methods of its class."""
    tree = parsed(reader.file)
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.ClassDef):
            methods = [f for f in node.body if isinstance(f, _FUNCTIONS)]
            mine = [f for f in methods if _begins(f) == reader.line]
            if mine:
                return list(mine), [f for f in methods if f.name not in ("__init__", "__len__")]
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, _FUNCTIONS) and _begins(node) == reader.line:
            return [node], [node]
    return [], []


def _begins(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def _in_place(node: ast.AST) -> bool:
    if isinstance(node, ast.AugAssign):
        return True
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Subscript) for t in node.targets)
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return (name.endswith("_") and not name.endswith("__")) or any(k.arg == "out" for k in node.keywords)
    return False


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    if not world.loaders:
        return "no DataLoader was built"
    if all(loader.made.workers for loader in world.loaders.values()):
        return "every DataLoader fetches in worker processes, whose copies of the data set are not seen"
    return None
