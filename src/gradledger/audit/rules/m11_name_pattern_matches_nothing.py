"""# Freezing or unfreezing that touches nothing

## What it is
A loop over `named_parameters()` sets `requires_grad` where the name matches a pattern, and no name does: the prefix is
from another model, or a wrapper (`module.`, `_orig_mod.`) stands before it.  Or the loop walks an iterator that is
already used up.

## Why it matters
The program believes that a part is frozen (or trained) and it is not.  Nothing fails.

## How it is found
The loop was given parameters, its body has a statement that sets `requires_grad` under a test of the name, and that
statement never ran.  The pattern is spelled out in the program.  Or it is one of a list, also one that the program puts
together, a path into the model that matches no name while others of the list do.  Or whole names are asked to be in a
set, and the set holds names of submodules.  Or a loop over `named_children()` asks for one name by `==`, and no
submodule that it was given has that name: a path such as "encoder.data" is the name of no child.

## Near misses
- A list of patterns that is empty, or comes from a configuration: nothing was asked for.
- A second branch that matches instead.
- A list of words ("norm", "ln") of which this model has some.
- Names of submodules with which the loop compares a part of the name, too.

## Fix
Print the names once (`[n for n, _ in model.named_parameters()]`) and correct the pattern; check that it matched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit import _iterators, _members, _partial, _patterns
from gradledger.audit._phrases import distinct
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, ExhaustedIterator, GradFlagSet, ParametersIterated
from gradledger.core.site import Site, is_installed

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
    """Walks by line and calling line; the latest walk in each file; iterators that were used up; lines that set
    a flag, with the line that called them; walks over named submodules."""

    walks: dict[tuple[Place, Place], Walk] = field(default_factory=dict)
    latest: dict[str, list[Walk]] = field(default_factory=dict)
    exhausted: dict[tuple[str, str, str], ExhaustedIterator] = field(default_factory=dict)
    flagged: set[tuple[str, int, int]] = field(default_factory=set)
    children: dict[Place, Walk] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, GradFlagSet):
        if len(state.flagged) < 16 * KEPT:
            above = event.site.callers[0].line if event.site.callers else 0
            state.flagged.add((*event.site.key(), above))
        for walk in state.latest.get(event.site.file, ()):
            if event.site.line >= walk.site.line:
                walk.flags.setdefault(event.site.line, set()).add(event.value)
    elif isinstance(event, ParametersIterated) and event.method in _patterns.CHILDREN:
        _walked_below(state, event)
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


def _walked_below(state: State, event: ParametersIterated) -> None:
    key = event.site.key()
    if key in state.children or len(state.children) < KEPT:
        walk = state.children.setdefault(key, Walk(event.site, event.module, event.iteration))
        walk.walks += 1
        walk.given += event.count


def finish(state: State, world: World) -> list[Finding]:
    found = [*_patterns_without_match(state, world), *_no_child_chosen(state, world), *_used_up(state, world)]
    return found or [*_one_of_a_list(state, world), *_names_of_modules(state, world)]


def _patterns_without_match(state: State, world: World) -> Iterator[Finding]:
    for walk in state.walks.values():
        loop = _patterns.flag_loop(walk.site) if walk.given else None
        for statement in loop.statements if loop is not None else ():
            values = walk.flags.get(statement.line, set())
            if not statement.sure or not _failed(statement, values) or is_installed(walk.site.file):
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


def _one_of_a_list(state: State, world: World) -> Iterator[Finding]:
    told: set[Place] = set()
    for walk in state.walks.values():
        loop = _patterns.flag_loop(walk.site)
        if not walk.given or not walk.flags or is_installed(walk.site.file) or loop is None:
            continue
        root = world.module_name(walk.module)
        names = [world.name(t).removeprefix(f"{root}.") for t in world.tensors_of(walk.module)]
        built = (o for s in loop.statements for o in _partial.unmatched_built(walk.site.file, s.test, names))
        for one in (*_partial.unmatched(walk.site.file, names), *built):
            site = Site(walk.site.file, one.line, "")
            if site.key() in told:
                continue
            told.add(site.key())
            shown = _names(walk.module, world)
            yield Finding(
                "M11",
                "error",
                site,
                f'"{one.pattern}" matches none of the {len(names)} parameters that the loop on line {walk.site.line} '
                f"walks, while other patterns of its list match {one.matched}: what it was meant for stays as it is.  "
                f"They are called {shown}.",
                f"match the names as they are ({shown})",
                related=distinct(site, (walk.site, _iterators.caller(walk.site))),
                evidence={"parameters_given": len(names), "matched": 0, "matched_by_others": one.matched},
                confidence="likely",
                count=walk.walks,
                subject=one.pattern,
                iteration=walk.iteration,
            )


def _names_of_modules(state: State, world: World) -> Iterator[Finding]:
    told: set[Place] = set()
    for walk in state.walks.values():
        if not walk.given or is_installed(walk.site.file):
            continue
        root = world.module_name(walk.module)
        names = [world.name(t).removeprefix(f"{root}.") for t in world.tensors_of(walk.module)]
        for one in _members.never_equal(walk.site, names):
            site = Site(walk.site.file, one.line, walk.site.function)
            if site.key() in told:
                continue
            told.add(site.key())
            shown = ", ".join(f'"{n}"' for n in one.members[:NAMES_SHOWN])
            yield Finding(
                "M11",
                "error",
                site,
                f"`{one.test}` asks whether the whole name of a parameter is one of {shown}: these are submodules, and "
                f"no parameter is called so.  They are called {_names(walk.module, world)}.",
                "compare the part of the name before the last dot: name.rpartition('.')[0]",
                related=distinct(site, (walk.site, _iterators.caller(walk.site))),
                evidence={"parameters_given": len(names), "matched": 0, "first_members": shown},
                count=walk.walks,
                subject=one.test,
                iteration=walk.iteration,
            )


def _no_child_chosen(state: State, world: World) -> Iterator[Finding]:
    """Loops over named submodules that came to the line which sets a flag for none of them."""
    for walk in state.children.values():
        loop = _patterns.child_loop(walk.site) if walk.given and not is_installed(walk.site.file) else None
        for statement in loop.statements if loop is not None else ():
            asked = statement.whole or (statement.sure and not statement.by_value)
            if asked and not _set_there(state, walk.site.file, statement):
                yield _no_child(walk.site, statement, walk.site.above(2))
    ran: dict[str, set[int]] = {}
    for optimizer in world.optimizers.values():
        for file, line in (
            (optimizer.site.file, optimizer.site.line),
            *((f.file, f.line) for f in optimizer.site.callers),
        ):
            ran.setdefault(file, set()).add(line)
    for file, lines in ran.items():
        for site, loop in _patterns.child_loops(file, lines) if file and not is_installed(file) else ():
            for statement in loop.statements:
                seen = site.key() in state.children
                if statement.sure and not statement.by_value and not seen and not _set_there(state, file, statement):
                    yield _no_child(site, statement)


def _set_there(state: State, file: str, statement: _patterns.FlagStatement) -> bool:
    return any(f == file and line == statement.line for f, line, _ in state.flagged)


def _no_child(site: Site, statement: _patterns.FlagStatement, callers: tuple[Site, ...] = ()) -> Finding:
    here = _line(site, statement.test_line)
    return Finding(
        "M11",
        "error",
        here,
        f"`{statement.test}` was true for no submodule: line {statement.line}, which sets requires_grad, never ran.",
        "match the names as they are: print([n for n, _ in model.named_children()])",
        related=distinct(here, (site, _line(site, statement.line), *callers)),
        evidence={"matched": 0, "statement_line": statement.line},
        confidence="likely",
        subject=statement.test,
    )


def _failed(statement: _patterns.FlagStatement, values: set[bool]) -> bool:
    if statement.by_value:
        return values == {statement.negated}
    return not values


def _used_up(state: State, world: World) -> Iterator[Finding]:
    for event in state.exhausted.values():
        caller = _iterators.caller(event.site)
        for use in _iterators.uses_of(event.site, event.name):
            if "requires_grad" in use.writes and not _ran(state, use, caller.line):
                made = next((s for s in (event.made_site, _iterators.made_at(caller, world)) if s.file), caller)
                yield _nothing_walked(event.name, made, use, (caller,), event.iteration)
    for found in _iterators.used_up(world, [w.site for w in state.walks.values() if not is_installed(w.site.file)]):
        use = found.use
        inside = use.site.line if use.site.key() != use.loop.key() else 0
        if "requires_grad" in use.writes and not (found.repeated or found.perhaps or _ran(state, use, inside)):
            yield _nothing_walked(found.name, found.made, use, (), None)


def _ran(state: State, use: _iterators.Use, caller: int) -> bool:
    """Whether a flag was set in the body of the loop, called from that line (0: from anywhere)."""
    first, last = use.body
    return any(
        file == use.loop.file and first <= line <= last and caller in (0, above) for file, line, above in state.flagged
    )


def _nothing_walked(
    name: str, made: Site, use: _iterators.Use, more: tuple[Site, ...], iteration: int | None
) -> Finding:
    site = made if made.file else use.site
    line = f" (made on line {made.line})" if made.file else ""
    return Finding(
        "M11",
        "error",
        site,
        f"`{name}`{line} is an iterator that has been walked before: the loop on line {use.loop.line} runs zero times, "
        f"and requires_grad stays as it is.",
        "keep the parameters in a list: list(...)",
        related=distinct(site, (use.site, use.loop, *more)),
        evidence={"iterator": name, "made_line": made.line, "loop_line": use.loop.line, "parameters_walked": 0},
        subject=name,
        iteration=iteration,
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
