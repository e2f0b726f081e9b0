"""# One data set behind two names

## What it is
`Subset` and `random_split` do not copy: all parts hold the same data set object.  `val.dataset.transform = ...` sets
the transform of the training part, too.  So does `val.transform.active = False` where two data sets were given one
transform object, one configuration, or one list that is the default of an argument.

## Why it matters
The setting that comes last holds for everything: training runs without its augmentation, or validation with it.

## How it is found
When a pass over one of several subsets of one data set begins, a setting was set anew since the subsets were made, and
the program sets it by way of a subset; or it sets it by way of two subsets to different values; or an evaluation sets
it once, and training goes on reading the data set with it.  Of an object that the
data sets of two loaders hold, one of them trained on, when the program gives one of its settings a plain value by way
of one of them, and the setting has that value in the passes over the other; or when one of its own methods, which
gives the object back, changes it on the way to the second data set, or is called once by way of the data set that is
held out.  A list, or an object of the program's own, that
is the default of an argument is read from the text: kept as it is, changed by way of one data set, and another was made
without the argument, too.

## Near misses
- Shared data sets whose settings stay as they are.
- A setting that is set before each pass, for that pass; the same setting for all parts.
- A part that is given a data set of its own: `val.dataset = copy.copy(val.dataset)`.
- A default that is copied before it is kept, or a data set that is given a list of its own.
- A setting that both data sets want, such as the side of a tokenizer's padding, made by way of the training data.

## Fix
Build two data set objects, one with each transform, and take `Subset(train_data, train_rows)` and
`Subset(val_data, val_rows)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit._code import aliases, last_name, parsed, walk
from gradledger.audit._defaults import shared_defaults
from gradledger.audit._evaluation import evaluates
from gradledger.audit._loops import enclosing_function
from gradledger.audit._phrases import distinct
from gradledger.audit._switched import switched_by_call
from gradledger.audit._turned import CHANGES, HELD_OUT, turned_in_passing
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, LoaderEpoch, LoaderMade, SharedDataset, SharedPart, Step
from gradledger.core.site import Site, is_installed

RULE = Rule(
    "D10",
    "one-dataset-behind-two-names",
    "data",
    "Two subsets share one data set object: a transform that is set for one of them holds for the other.",
)
LISTENS: tuple[type[Event], ...] = (LoaderEpoch, LoaderMade, SharedDataset, SharedPart, Step)
KEPT = 200
_AUGMENTATION = re.compile(
    r"aug|random|jitter|noise|flip|crop|erase|mix|shake|train|active|enabled|^p$|prob", re.IGNORECASE
)


@dataclass(slots=True)
class State:
    """Data sets that subsets share, by class; objects that data sets share; loaders that are trained on: the shuffled
    ones, and that of the pass in which the first step comes."""

    seen: dict[str, list[SharedDataset]] = field(default_factory=dict)
    parts: dict[int, list[SharedPart]] = field(default_factory=dict)
    trained: set[int] = field(default_factory=set)
    later: dict[str, set[int]] = field(default_factory=dict)  # loaders begun since a setting of the data set changed
    current: int | None = None
    stepped: bool = False


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, SharedDataset) and len(state.seen) < KEPT:
        state.seen.setdefault(event.dataset, []).append(event)
        if event.anew:
            state.later[event.dataset] = set()
    elif isinstance(event, SharedPart) and len(state.parts) < KEPT:
        state.parts.setdefault(event.part, []).append(event)
    elif isinstance(event, LoaderMade) and event.shuffled and len(state.trained) < KEPT:
        state.trained.add(event.loader)
    elif isinstance(event, LoaderEpoch):
        state.current = event.loader
        for begun in state.later.values():
            begun.add(event.loader)
    elif isinstance(event, Step) and not state.stepped:
        state.stepped = True
        if state.current is not None:
            state.trained.add(state.current)


def finish(state: State, world: World) -> list[Finding]:
    found = [
        finding
        for events in state.seen.values()
        for attribute in dict.fromkeys(name for event in events for name in event.settings)
        for finding in _judge(events, attribute) or _judge_for_good(events, attribute, state)
    ]
    told = {finding.site.key() for finding in found}
    for shown in state.parts.values():
        if not any(event.loader in state.trained for event in shown):
            continue
        for setting, _ in shown[0].settings:
            first = shown[0]
            more = _judge_part(shown, setting) or _judge_alias(first, setting) or _judge_turned(first, setting, world)
            more = more or _judge_called(shown, setting)
            found += [finding for finding in more if finding.site.key() not in told]
    return found or _judge_defaults(world)


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
    if _for_a_pass([place for place, *_ in places], event.site):
        return []
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


def _judge_for_good(events: list[SharedDataset], attribute: str, state: State) -> list[Finding]:
    """An evaluation switches a setting of the data set that training reads, too, and nothing ever switches it back."""
    first = events[0]
    changed = [event for event in events[1:] if attribute in event.anew and event.number == first.number]
    if attribute in first.anew or len(changed) != 1 or not evaluates(changed[0].site):
        return []
    event, trained = changed[0], first.loader
    if trained not in state.trained or event.loader == trained or trained not in state.later.get(event.dataset, ()):
        return []
    file, here = event.site.file, enclosing_function(*event.site.key())
    places = [
        (line, target, value)
        for line, target, value, _ in _assignments(file)
        if target.attr == attribute and last_name(target.value) != "self"
    ]
    if len(places) != 1 or enclosing_function(file, places[0][0]) is not here or places[0][0] > event.site.line:
        return []
    line, target, value = places[0]
    site = Site(file, line, event.site.function)
    return [
        Finding(
            "D10",
            "error",
            site,
            f"the evaluation sets `{attribute}` of the one `{event.dataset}` that {event.subsets} subsets share to "
            f"{ast.unparse(value)}, and nothing sets it back: the later passes of training are read with it, too.",
            f"build a {event.dataset} of its own for each part and index both",
            related=distinct(site, (*event.made, event.site, first.site)),
            evidence={"attribute": attribute, "subsets": event.subsets, "set_through": [ast.unparse(target)]},
            subject=f"{event.dataset}.{attribute}",
            iteration=event.iteration,
        )
    ]


def _judge_part(events: list[SharedPart], setting: str) -> list[Finding]:
    event = events[0]
    values = {dict(later.settings).get(setting, "") for later in events}
    files = dict.fromkeys(s.file for s in (event.site, *event.made))
    places = [place for file in files for place in _set_by_way_of(file, event.attribute, setting)]
    if len(values) > 1 or not places or any(again for *_, again in places):
        return []  # set for a pass, not for a data set
    site, part, value, _ = places[-1]
    parts = {part for _, part, _, _ in places}
    if value not in values or (len(parts) > 1 and len({value for _, _, value, _ in places}) == 1):
        return []
    if _for_a_pass([place for place, *_ in places], event.site) or not (len(parts) > 1 or _of_one(part, setting)):
        return []
    return [
        Finding(
            "D10",
            "error",
            site,
            f"`{part}.{event.attribute}` is one `{event.kind}` that {event.holders} data sets hold: `{setting} = "
            f"{value}`, set here, holds for all of them.",
            f"give each data set a {event.kind} of its own: copy.deepcopy({event.attribute})",
            related=distinct(site, (*(p[0] for p in places[:-1]), *event.made, event.site)),
            evidence={"attribute": f"{event.attribute}.{setting}", "holders": event.holders, "value": value},
            subject=f"{event.kind}.{setting}",
            iteration=event.iteration,
        )
    ]


def _judge_alias(event: SharedPart, setting: str) -> list[Finding]:
    """`val_tf = train_tf`, and then `val_tf.steps.remove(...)` or `val_tf.active = False`."""
    for file in dict.fromkeys(s.file for s in (event.site, *event.made)):
        for name, other, line in aliases(file):
            changes = _changes(file, name, setting) if HELD_OUT.search(name) and not HELD_OUT.search(other) else []
            if not changes or min(changes) < line:
                continue
            site = Site(file, min(changes), "")
            return [
                Finding(
                    "D10",
                    "error",
                    site,
                    f"`{name}` is `{other}` under a second name (line {line}), one `{event.kind}` that {event.holders} "
                    f"data sets hold: what is done to its `{setting}` here holds for all of them.",
                    f"{name} = copy.deepcopy({other})",
                    related=distinct(site, (Site(file, line, ""), *event.made, event.site)),
                    evidence={"attribute": setting, "holders": event.holders, "alias_of": other},
                    subject=f"{event.kind}.{setting}",
                    iteration=event.iteration,
                )
            ]
    return []


def _judge_turned(event: SharedPart, setting: str, world: World) -> list[Finding]:
    """`Rows(a, transform)`, and then `Rows(b, transform.eval())`: the method sets `setting` and gives back itself."""
    files = dict.fromkeys(s.file for s in (event.site, *event.made))
    for info in world.optimizers.values():
        files.update(dict.fromkeys((info.site.file, *(f.file for f in info.site.callers))))
    for turned in (t for file in files for t in turned_in_passing(file, event.kind.rpartition(".")[2], setting)):
        site, *others = (Site(turned.file, line, "") for line in turned.lines)
        return [
            Finding(
                "D10",
                "error",
                site,
                f"`{turned.text}` changes `{turned.name}` itself and gives it back: one `{event.kind}` that "
                f"{event.holders} data sets hold, and the `{setting}` set here holds for all of them.",
                f"give each data set a {event.kind} of its own: copy.deepcopy({turned.name})",
                related=distinct(site, (*others[:3], *event.made)),
                evidence={"attribute": setting, "holders": event.holders},
                subject=f"{event.kind}.{setting}",
                iteration=event.iteration,
            )
        ]
    return []


def _judge_called(events: list[SharedPart], setting: str) -> list[Finding]:
    """`val.augment.disable()`, where the method sets `p`, and it stays so in all passes."""
    event = events[0]
    if len({dict(later.settings).get(setting, "") for later in events}) > 1:
        return []
    for file in dict.fromkeys(s.file for s in (event.site, *event.made)):
        one = switched_by_call(file, event.kind.rpartition(".")[2], event.attribute, setting)
        if one is None or _for_a_pass([Site(file, one.line, "")], event.site):
            continue
        site = Site(file, one.line, "")
        return [
            Finding(
                "D10",
                "error",
                site,
                f"`{one.text}` sets `{setting}` (line {one.method}) of the one `{event.kind}` that {event.holders} "
                "data sets hold: it is switched for all of them.",
                f"give each data set a {event.kind} of its own: copy.deepcopy({event.attribute})",
                related=distinct(site, (Site(file, one.method, ""), *event.made, event.site)),
                evidence={"attribute": f"{event.attribute}.{setting}", "holders": event.holders},
                confidence="likely",
                subject=f"{event.kind}.{setting}",
                iteration=event.iteration,
            )
        ]
    return []


def _judge_defaults(world: World) -> list[Finding]:
    """`def __init__(self, rows, transforms=[])`, and then `train.transforms.append(...)`."""
    files: dict[str, None] = {}
    for info in world.optimizers.values():
        if info.steps:
            files.update(dict.fromkeys((info.site.file, *(f.file for f in info.site.callers))))
    return [
        Finding(
            "D10",
            "error",
            Site(file, one.line, ""),
            f"`{one.text}` changes the one object that is the default of `{one.cls}` (line {one.declared[0]}): "
            f"`{one.other}`, which was made without the argument, too, has the same one.",
            f"keep a copy: self.{one.attribute} = list(...), with () or None as default",
            related=tuple(Site(file, line, "") for line in (*one.declared, one.made)),
            evidence={"attribute": one.attribute, "changed_through": one.name, "shared_with": one.other},
            confidence="likely",
            subject=f"{one.cls}.{one.attribute}",
        )
        for file in files
        if file and not is_installed(file)
        for one in shared_defaults(file)
    ]


def _changes(file: str, name: str, setting: str) -> list[int]:
    """Lines that set `name.setting`, or change the list that it is."""
    found = [
        line
        for line, target, _, again in _assignments(file)
        if target.attr == setting and last_name(target.value) == name and not again
    ]
    tree = parsed(file)
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            inner = node.func.value
            if isinstance(inner, ast.Attribute) and inner.attr == setting and last_name(inner.value) == name:
                found.append(node.lineno)
    return found


def _of_one(part: str, setting: str) -> bool:
    """Whether a setting made by way of one data set is meant for that one: for a held-out one, or augmentation."""
    return bool(HELD_OUT.search(part) or _AUGMENTATION.search(setting))


def _for_a_pass(places: list[Site], begins: Site) -> bool:
    """Whether a setting belongs to a pass: it is set in several functions, where a pass begins, or after it."""
    functions = {enclosing_function(*place.key()) for place in places}
    here = enclosing_function(*begins.key())
    return len(functions) > 1 or (here in functions and any(place.line > begins.line for place in places))


def _set_by_way_of(file: str, attribute: str, setting: str) -> Iterator[tuple[Site, str, str, bool]]:
    """(line, data set, value, in a loop) of every `dataset.attribute.setting = plain value`; a value that is none
    stands as "..."."""
    for line, target, value, again in _assignments(file):
        inner = target.value
        while isinstance(inner, ast.Subscript) and not isinstance(getattr(inner.slice, "value", None), str):
            inner = inner.value  # transform.transforms[0].p
        if target.attr != setting or not isinstance(inner, ast.Attribute) or inner.attr != attribute:
            continue
        holder = inner.value
        while isinstance(holder, ast.Attribute) and not isinstance(holder.value, ast.Name):
            holder = holder.value
        name = last_name(holder.value if isinstance(holder, ast.Attribute) else holder)
        if isinstance(holder, ast.Attribute) and name in ("self", "cls"):
            name = holder.attr
        if name and name not in ("self", "cls"):
            yield Site(file, line, ""), name, _plain(value), again


def _plain(value: ast.expr) -> str:
    try:
        return repr(ast.literal_eval(value))
    except (ValueError, TypeError, SyntaxError):
        return "..."


def _set_through_subsets(file: str, attribute: str) -> Iterator[tuple[Site, str, str, bool]]:
    """(line, subset, value, in a loop) of every `subset.dataset.attribute = value`."""
    for line, target, value, again in _assignments(file):
        if target.attr == attribute and isinstance(target.value, ast.Attribute) and target.value.attr == "dataset":
            yield Site(file, line, ""), last_name(target.value.value), ast.dump(value), again


def _assignments(file: str) -> Iterator[tuple[int, ast.Attribute, ast.expr, bool]]:
    """(line, target, value, in a loop) of every assignment to an attribute, in the order of lines."""
    tree = parsed(file)
    nodes = list(walk(tree)) if tree is not None else []
    loops = [(n.lineno, n.end_lineno or n.lineno) for n in nodes if isinstance(n, (ast.For, ast.While))]
    for node in sorted((n for n in nodes if isinstance(n, ast.Assign)), key=lambda n: n.lineno):
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                again = any(first < node.lineno <= last for first, last in loops)
                yield node.lineno, target, node.value, again


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    return None if world.loaders else "no DataLoader was built"
