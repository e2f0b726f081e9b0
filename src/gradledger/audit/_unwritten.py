"""A target that no copy reaches: statements that would update it and did not, or that no statement is there (T8)."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass

from gradledger.audit import _code, _updates
from gradledger.audit._code import walk
from gradledger.audit._source import source_lines
from gradledger.audit._targets import Link, Meeting, made_at, related
from gradledger.audit.world import World
from gradledger.core.site import Frame, Site, is_installed

Line = tuple[str, int]
LONG = 1000  # optimizer steps before a condition that cannot be read counts as one that never comes true
FORGOTTEN = 200  # ... and before an update that the source does not hold at all counts as forgotten
_MAY_UPDATE = re.compile(
    r"(update|sync|polyak|copy|lerp|load|refresh|track|follow|blend|ema|soft(?!max|plus|min|sign)|hard|mul_|add_|set_|swap)\w*\s*\(|\.data\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A statement that would update the target.  `ran`: it was seen to run; `due`: steps its condition may wait."""

    sites: tuple[Site, ...]
    ran: bool
    due: float = 0


def names_of(met: Meeting, world: World) -> set[str]:
    """What the program calls the target, and what it is reached through."""
    target, learner = ((s.file, s.line) for s in (met.target_site, met.learner_site))
    called = {*_code.called_names(*target), *_code.owners_called(*target)}
    names = called.difference(_code.called_names(*learner), _code.owners_called(*learner))
    label = world.module_name(met.target).rpartition(".")[2]
    if met.feeds is not None:  # both are called on that line
        names = set() if label.isidentifier() else names - {world.module_name(met.feeds).rpartition(".")[2]}
    return names | ({label} if label.isidentifier() else set())


def files_of(met: Meeting, world: World) -> list[str]:
    sites = (met.target_site, made_at(met.target, world), met.site)
    return list(dict.fromkeys(s.file for s in sites if s.file))


def pending(met: Meeting, ran_lines: Container[Line], walked: Container[Line], world: World) -> list[Attempt] | None:
    """Statements of the program that would update the target and by which no copy has happened; None where the turn of
    one may not have come yet."""
    names, files = names_of(met, world), files_of(met, world)
    steps = world.iteration - met.first_iteration
    found = []
    for file in files:
        for line, span in _updates.update_lines(file, names).items():
            if any((file, inner) in ran_lines for inner in span):
                continue
            ran = any((file, inner) in walked for inner in span)
            due = _code.due_every(file, line)
            if due is None and (ran or (steps >= LONG and not is_installed(file))):
                due = 0
            if due is None or due > steps:
                return None
            # of a loop, the line in it that writes comes first
            sites = [Site(file, inner, "") for inner in span[:3]]
            found.append(Attempt((*sites[1:2], sites[0], *sites[2:]), ran, due))
    # what ran in vain is the line to edit; else the condition that never came true
    return sorted(found, key=lambda a: (not a.ran, a.due == 0))


def forgotten(met: Meeting, ran: set[Line], trains: set[str], world: World, known: list[Link]) -> bool:
    """Whether a copy of the learner gives its discounted output as target, for long, and no line of the program's files
    could write into it but those that ran before the training. trains: files of the lines that train."""
    steps = world.iteration - met.first_iteration
    copies = related(met.target, met.learner, world, known)
    if not met.bootstrap or steps < FORGOTTEN or not copies:
        return False
    places: list[Site | Frame] = [made_at(met.target, world)]
    for link in copies:
        places += [link.site, *link.site.callers]
    done, names = ran | {(place.file, place.line) for place in places}, names_of(met, world)
    return not any(speaks_of_update(file, names, done) for file in {*files_of(met, world), *trains})


def speaks_of_update(file: str, names: Iterable[str], done: Container[Line]) -> bool:
    """Whether some statement of the file, none of those that are `done`, may give new values to what one of `names`
    stands for, in any way at all: a call with an updating word on a line with the name, or a second assignment to
    it."""
    wanted = set(names)
    if not wanted:
        return True
    name = re.compile(rf"\b({'|'.join(map(re.escape, sorted(wanted)))})\b")
    for at, line in enumerate(source_lines(file), start=1):
        code = line.partition("#")[0]
        if (file, at) not in done and _MAY_UPDATE.search(code) and name.search(code):
            return True
    tree = _code.parsed(file)
    assigned = Counter(  # `self.target` and a local `target` are two
        ast.unparse(target)
        for node in (walk(tree) if tree is not None else ())
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if _code.last_name(target) in wanted
    )
    return tree is None or any(count > 1 for count in assigned.values())
