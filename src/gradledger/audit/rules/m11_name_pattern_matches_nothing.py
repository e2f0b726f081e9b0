"""# Freezing or unfreezing that touches nothing

## What it is
A loop over `named_parameters()` sets `requires_grad` where the name matches a pattern, and no name does: the prefix is
from another model, or a wrapper (`module.`, `_orig_mod.`) stands before it.  Or the loop walks an iterator that is
already used up.

## Why it matters
The program believes that a part is frozen (or trained) and it is not.  Nothing fails.

## How it is found
The loop was given parameters, its body has a statement that sets `requires_grad` under a test of the name, and that
statement never ran.  The pattern is spelled out in the program.

## Near misses
- A list of patterns that is empty, or comes from a configuration: nothing was asked for.
- A second branch that matches instead.

## Fix
Print the names once (`[n for n, _ in model.named_parameters()]`) and correct the pattern; check that it matched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit import _iterators, _patterns
from gradledger.audit._phrases import distinct
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, ExhaustedIterator, GradFlagSet, ParametersIterated
from gradledger.core.site import Site

RULE = Rule(
    "M11",
    "name-pattern-matches-nothing",
    "modules",
    "A loop that freezes or unfreezes parameters by name matches no parameter, or walks an empty iterator.",
)
LISTENS = (ParametersIterated, GradFlagSet, ExhaustedIterator)
KEPT = 256
NAMES_SHOWN = 3

Place = tuple[str, int]


@dataclass(slots=True)
class Walk:
    """Walks from one line, called from one line.  `given`: parameters in all; `flags`: line of a statement -> values
    that it set (True, False)."""

    site: Site
    module: int
    iteration: int
    walks: int = 0
    given: int = 0
    flags: dict[int, set[bool]] = field(default_factory=dict)


@dataclass(slots=True)
class State:
    """Walks by line and calling line; the latest walk in each file; iterators that were used up."""

    walks: dict[tuple[Place, Place], Walk] = field(default_factory=dict)
    latest: dict[str, list[Walk]] = field(default_factory=dict)
    exhausted: dict[tuple[str, str, str], ExhaustedIterator] = field(default_factory=dict)
    flagged: set[Place] = field(default_factory=set)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, GradFlagSet):
        if len(state.flagged) < 16 * KEPT:
            state.flagged.add(event.site.key())
        for walk in state.latest.get(event.site.file, ()):
            if event.site.line >= walk.site.line:
                walk.flags.setdefault(event.site.line, set()).add(event.value)
    elif isinstance(event, ParametersIterated):
        _walked(state, event)
    elif isinstance(event, ExhaustedIterator) and len(state.exhausted) < KEPT:
        state.exhausted.setdefault((event.site.file, event.function, event.name), event)


def _walked(state: State, event: ParametersIterated) -> None:
    site = event.site
    above = (site.callers[0].file, site.callers[0].line) if site.callers else ("", 0)
    walk = state.walks.get((site.key(), above))
    if walk is None:
        if len(state.walks) >= KEPT:
            return
        walk = state.walks[site.key(), above] = Walk(site, event.module, event.iteration)
    walk.walks += 1
    walk.given += event.count
    latest = [w for w in state.latest.get(site.file, []) if w.site.line != site.line]
    state.latest[site.file] = [*latest[-7:], walk]


def finish(state: State, world: World) -> list[Finding]:
    return [*_patterns_without_match(state, world), *_used_up(state, world)]


def _patterns_without_match(state: State, world: World) -> Iterator[Finding]:
    for walk in state.walks.values():
        loop = _patterns.flag_loop(walk.site) if walk.given else None
        for statement in loop.statements if loop is not None else ():
            values = walk.flags.get(statement.line, set())
            if not statement.sure or not _failed(statement, values):
                continue
            site = Site(walk.site.file, statement.test_line, walk.site.function, callers=walk.site.callers)
            names = _names(walk.module, world)
            done = "set" if statement.by_value else "changed"
            yield Finding(
                "M11",
                "error",
                site,
                f"`{statement.test}` is {'true' if statement.negated else 'false'} for each of the {walk.given} "
                f"parameters that the loop was given: requires_grad is {done} nowhere as intended.  They are called "
                f"{names}.",
                f"match the names as they are ({names})",
                related=distinct(site, (walk.site, _line(walk.site, statement.line), _iterators.caller(walk.site))),
                evidence={
                    "parameters_given": walk.given,
                    "matched": walk.given if statement.negated else 0,
                    "walks": walk.walks,
                    "first_names": names,
                },
                count=walk.walks,
                subject=statement.test,
                iteration=walk.iteration,
            )


def _failed(statement: _patterns.FlagStatement, values: set[bool]) -> bool:
    if statement.by_value:
        return values == {statement.negated}
    return not values


def _used_up(state: State, world: World) -> Iterator[Finding]:
    for event in state.exhausted.values():
        if "requires_grad" not in _iterators.attributes_written(event.site):
            continue
        caller = _iterators.caller(event.site)
        site = next((s for s in (event.made_site, _iterators.made_at(caller, world), caller) if s.file), event.site)
        yield Finding(
            "M11",
            "error",
            site,
            f"`{event.name}` of {event.function}() is an iterator that was used up before: its loop runs zero times, "
            f"and requires_grad stays as it is.",
            "keep the parameters in a list: list(...)",
            related=distinct(site, (caller, event.site, *_iterators.loops_over(event.site, event.name))),
            evidence={"function": event.function, "argument": event.name},
            subject=event.function,
            iteration=event.iteration,
        )
    for loop in _iterators.used_up_loops(world):
        first, last = loop.body
        ran = any(file == loop.site.file and first <= line <= last for file, line in state.flagged)
        if loop.repeated or "requires_grad" not in loop.writes or ran:
            continue
        yield Finding(
            "M11",
            "error",
            loop.site,
            f"`{loop.name}` is an iterator made on line {loop.made.line} and used up before this loop: it runs zero "
            f"times and requires_grad stays as it is.",
            f"keep the parameters in a list: {loop.name} = list(...) on line {loop.made.line}",
            related=distinct(loop.site, (loop.made,)),
            evidence={"iterator": loop.name, "made_line": loop.made.line, "statements_run": 0},
            subject=loop.name,
        )


def _names(module: int, world: World) -> str:
    root = world.module_name(module)
    names = [world.name(t).removeprefix(f"{root}.") for t in world.tensors_of(module)]
    shown = ", ".join(f'"{n}"' for n in names[:NAMES_SHOWN])
    return shown + (", ..." if len(names) > NAMES_SHOWN else "")


def _line(site: Site, line: int) -> Site:
    return Site(site.file, line, site.function)


def not_checked(state: State, world: World) -> str | None:
    return None if state.walks or state.exhausted else "no loop over parameters was seen"
