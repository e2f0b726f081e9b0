"""# One data set behind two names

## What it is
`Subset` and `random_split` do not copy: all parts hold the same data set object.  `val.dataset.transform = ...` sets
the transform of the training part, too.

## Why it matters
The setting that comes last holds for everything: training runs without its augmentation, or validation with it.

## How it is found
When a pass over one of several subsets of one data set begins, a setting was set anew since the subsets were made, and
the program sets it by way of a subset; or it sets it by way of two subsets to different values.

## Near misses
- Shared data sets whose settings stay as they are.
- A setting that is set before each pass, for that pass; the same setting for all parts.
- A part that is given a data set of its own: `val.dataset = copy.copy(val.dataset)`.

## Fix
Build two data set objects, one with each transform, and take `Subset(train_data, train_rows)` and
`Subset(val_data, val_rows)`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit._code import last_name, parsed
from gradledger.audit._loops import enclosing_function
from gradledger.audit._phrases import distinct
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, SharedDataset
from gradledger.core.site import Site

RULE = Rule(
    "D10",
    "one-dataset-behind-two-names",
    "data",
    "Two subsets share one data set object: a transform that is set for one of them holds for the other.",
)
LISTENS: tuple[type[Event], ...] = (SharedDataset,)
KEPT = 200


@dataclass(slots=True)
class State:
    """Data sets that subsets share, by class."""

    seen: dict[str, list[SharedDataset]] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, SharedDataset) and len(state.seen) < KEPT:
        state.seen.setdefault(event.dataset, []).append(event)


def finish(state: State, world: World) -> list[Finding]:
    return [
        finding
        for events in state.seen.values()
        for attribute in dict.fromkeys(name for event in events for name in event.settings)
        for finding in _judge(events, attribute)
    ]


def _judge(events: list[SharedDataset], attribute: str) -> list[Finding]:
    event = events[0]
    dataset = event.dataset
    anew = attribute in event.anew
    if any(attribute in later.anew for later in events[1:]):
        return []  # set for a pass, not for a part
    files = dict.fromkeys(s.file for s in (event.site, *event.made))
    places = [place for file in files for place in _set_through_subsets(file, attribute)]
    parts = {part for _, part, _, _ in places}
    values = {value for _, _, value, _ in places}
    # one value for all parts is meant for all
    if not places or any(again for *_, again in places) or (len(parts) > 1 and len(values) == 1):
        return []
    if not anew and len(parts) < 2:
        return []
    functions = {enclosing_function(*place.key()) for place, *_ in places}
    here = enclosing_function(*event.site.key())
    if len(functions) > 1 or (here in functions and any(place.line > event.site.line for place, *_ in places)):
        return []  # set where a pass begins, or after it
    site, part, _, _ = places[-1]
    return [
        Finding(
            "D10",
            "error",
            site,
            f"`{part}.dataset` is the one `{dataset}` that {event.subsets} subsets share: the `{attribute}` set "
            "here holds for all of them.",
            f"build a {dataset} of its own for each part and index both",
            related=distinct(site, (*(p[0] for p in places[:-1]), *event.made, event.site)),
            evidence={"attribute": attribute, "subsets": event.subsets, "set_through": sorted(parts)},
            subject=f"{dataset}.{attribute}",
            iteration=event.iteration,
        )
    ]


def _set_through_subsets(file: str, attribute: str) -> Iterator[tuple[Site, str, str, bool]]:
    """(line, subset, value, in a loop) of every `subset.dataset.attribute = value`."""
    tree = parsed(file)
    loops = [n for n in (ast.walk(tree) if tree is not None else ()) if isinstance(n, (ast.For, ast.While))]
    lines = []
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if not isinstance(target, ast.Attribute) or target.attr != attribute:
                continue
            if isinstance(target.value, ast.Attribute) and target.value.attr == "dataset":
                again = any(loop.lineno < node.lineno <= (loop.end_lineno or loop.lineno) for loop in loops)
                lines.append((node.lineno, last_name(target.value.value), ast.dump(node.value), again))
    for line, part, value, again in sorted(lines):
        yield Site(file, line, ""), part, value, again


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    return None if world.loaders else "no DataLoader was built"
