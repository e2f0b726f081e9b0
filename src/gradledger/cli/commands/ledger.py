"""`gradledger ledger RUN`: the facts of a stored run, one a line, chosen by parameter, module, iteration and kind."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Annotated, Any

import typer

from gradledger.audit.describe import describe, mentions
from gradledger.audit.render._html import visible
from gradledger.audit.render._layout import shown_path
from gradledger.audit.world import World
from gradledger.cli import _usage
from gradledger.core.errors import UsageError
from gradledger.core.events import EVENTS, Event, to_json
from gradledger.ledger import _runs
from gradledger.ledger._store import read, read_meta

SUMMARY = "List the facts of a stored run."
WIDTH, WIDEST = 80, 160
_RANGE = re.compile(r"(\d+)?(\.\.)?(\d+)?")


def command(
    run: Annotated[str, typer.Argument(help="A run folder, a ledger.sqlite, the name of a kept run, or 'last'.")],
    parameter: Annotated[
        list[str] | None, typer.Option(help="Facts about tensors of this name.", metavar="GLOB")
    ] = None,
    module: Annotated[
        list[str] | None, typer.Option(help="Facts about this module, its parts and tensors.", metavar="GLOB")
    ] = None,
    iteration: Annotated[str, typer.Option(help="One iteration, or several: A..B, A.., ..B.", metavar="N|A..B")] = "",
    kind: Annotated[
        list[str] | None, typer.Option(help="Facts of this kind: step, clear, backward, ...", metavar="KIND")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many; 0: all.", min=0)] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with every field.")] = False,
) -> None:
    """List the facts of a stored run.

    Runs nothing and needs no torch. Options that may be given several times are alternatives; different options must
    all hold. Names are those at the end of the run. Exit code: 0; 1 when no fact was chosen; 2 when the run cannot be
    read.
    """
    path = _runs.find_run(run, "gradledger ledger")
    kinds = _kinds(kind or [])
    first, last = _iterations(iteration)
    world = World()
    for event in read(path):  # names are known once everything was made
        world.apply(event)
    chosen = _Choice(world, parameter or [], module or [])
    count, last_seen = 0, 0
    more = False
    for event in read(path):
        last_seen = max(last_seen, event.iteration)
        if (kinds and event.KIND not in kinds) or not first <= event.iteration <= last or not chosen.takes(event):
            continue
        if limit and count == limit:
            more = True
            break
        count += 1
        for line in [_as_json(event, world)] if as_json else _lines(event, world, _width()):
            typer.echo(line)
    if more:
        typer.echo(f"the first {limit} facts; --limit 0 shows all", err=True)
    note = read_meta(path).get("note")
    if note and not as_json:
        typer.echo(f"the ledger holds {note}", err=True)
    if not count:
        typer.echo(f"no fact was chosen; the run has iterations 0 to {last_seen}", err=True)
        raise typer.Exit(1)


class _Choice:
    """Which facts are about what was asked for."""

    def __init__(self, world: World, parameters: Iterable[str], modules: Iterable[str]) -> None:
        self._tensors: set[int] | None = None
        self._modules: set[int] | None = None
        parameters, modules = list(parameters), list(modules)
        if parameters:
            self._tensors = {t for t in world.tensors if _matches(world.name(t), parameters)}
            if not self._tensors:
                raise _nothing("--parameter", parameters, (world.name(t) for t in world.tensors))
        if modules:
            named = [m for m in world.modules if _matches(world.module_name(m), modules)]
            if not named:
                raise _nothing("--module", modules, (world.module_name(m) for m in world.modules))
            self._modules = {inner for m in named for inner in world.descendants(m)}
            self._inside = {t for m in self._modules for t in world.tensors_of(m, recurse=False, role="")}

    def takes(self, event: Event) -> bool:
        if self._tensors is None and self._modules is None:
            return True
        about = mentions(event)
        if self._tensors is not None and not self._tensors & about.tensors:
            return False
        return self._modules is None or bool(self._modules & about.modules or self._inside & about.tensors)


def _matches(name: str, globs: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _nothing(option: str, globs: list[str], names: Iterable[str]) -> UsageError:
    known = list(dict.fromkeys(names))
    shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    return UsageError(
        got=" ".join(globs),
        wanted="a name of this run, * and ? standing for anything",
        where=f"gradledger ledger {option}",
        next_step=f"there are: {shown}" if known else "the run made none",
    )


def _kinds(words: list[str]) -> set[str]:
    kinds = {word.strip() for given in words for word in given.split(",") if word.strip()}
    unknown = sorted(kinds - EVENTS.keys())
    if unknown:
        raise UsageError(
            got=", ".join(unknown),
            wanted="a kind of fact",
            where="gradledger ledger --kind",
            next_step=_usage.near(unknown[0], tuple(EVENTS), f"there are: {', '.join(sorted(EVENTS))}"),
        )
    return kinds


def _iterations(text: str) -> tuple[int, float]:
    """The first and last iteration of "7", "3..9", "3.." or "..9"; all for ""."""
    match = _RANGE.fullmatch(text.strip())
    if match is None or (text.strip() and not (match[1] or match[3])):
        raise _bad_range(text)
    if not text.strip():
        return 0, float("inf")
    first = int(match[1]) if match[1] else 0
    last = (int(match[3]) if match[3] else float("inf")) if match[2] else float(first)
    if last < first:
        raise _bad_range(text)
    return first, last


def _bad_range(text: str) -> UsageError:
    return UsageError(
        got=repr(text),
        wanted="an iteration such as 7, or several such as 3..9, 3.. or ..9",
        where="gradledger ledger --iteration",
        next_step="iterations count from 0, and end with each optimizer step",
    )


def _width() -> int:
    if not sys.stdout.isatty():
        return WIDTH
    return min(max(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH), WIDEST)


def _lines(event: Event, world: World, width: int) -> Iterator[str]:
    """`  123    4  step            train.py:9` and, indented, what it says."""
    where = f"{shown_path(event.site.file)}:{event.site.line}" if event.site.file else ""
    head = f"{event.seq:>7} {event.iteration:>6}  {event.KIND:<20} "
    room = width - len(head)
    yield (head + visible(where if len(where) <= room else "..." + where[3 - room :])).rstrip()
    text = visible(describe(event, world))
    yield from textwrap.wrap(
        text, width, initial_indent=" " * 16, subsequent_indent=" " * 18, break_on_hyphens=False, max_lines=4
    )


def _as_json(event: Event, world: World) -> str:
    about = mentions(event)
    values: dict[str, Any] = {f.name: to_json(getattr(event, f.name)) for f in fields(event)}
    site = event.site
    values["site"] = {"file": site.file, "line": site.line, "function": site.function}
    values["names"] = {
        "tensors": {str(t): world.name(t) for t in sorted(about.tensors)[:64]},
        "modules": {str(m): world.module_name(m) for m in sorted(about.modules)[:64]},
    }
    return json.dumps({"fact": event.KIND, **values}, default=str)
