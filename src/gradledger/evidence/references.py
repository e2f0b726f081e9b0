"""References into a folder: `results.json#trials[0].validation`, and texts in which every number is one."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradledger.evidence.errors import CardError

_PLACE = re.compile(r"\{\{\s*(?P<table>table\s+)?(?P<ref>[^|{}]+?)\s*(?:\|(?P<form>[^{}]*))?\}\}")
# A number that stands alone: not the 1 of H1 or the 95 of p95.
_NUMBER = re.compile(r"(?<![\w.\-])[-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?(?![A-Za-z_\d])")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def resolve(folder: Path, ref: str) -> Any:
    """The value that a reference names, in a JSON or TOML file of the folder.

    Raises:
        CardError: no such file or field, or a path that leaves the folder.
    """
    file, _, field = ref.partition("#")
    path = folder / file
    if not field or Path(file).is_absolute() or ".." in Path(file).parts:
        raise _refused(
            f"the reference {ref!r}", "FILE#FIELD inside the folder", ref, "such as results.json#trials[0].loss"
        )
    try:
        text = path.read_text(encoding="utf-8")
        value: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise _refused(f"{type(error).__name__}: {error}", "a JSON or TOML file", ref, "check the name") from error
    gone = ""
    for name, number in _STEP.findall(field):
        try:
            value = value[int(number)] if number else value[name]
        except (KeyError, IndexError, TypeError) as error:
            there = ", ".join(map(str, list(value)[:8])) if isinstance(value, Mapping) else f"a {type(value).__name__}"
            what = f"[{number}]" if number else name
            raise _refused(f"no {what} in {file}#{gone or '(top)'}", f"one of: {there}", ref, "correct it") from error
        gone += f"[{number}]" if number else f".{name}" if gone else name
    return value


def fill(folder: Path, text: str, *, where: str) -> list[tuple[str, tuple[str, ...]]]:
    """Lines of a text with its references replaced, each with the references that it shows.

    ``{{FILE#FIELD}}`` or ``{{FILE#FIELD|.4f}}`` becomes the value; ``{{table FILE#ROWS|a,b:.3f}}``, alone on its line,
    a table with these columns.

    Raises:
        CardError: a number that is no reference, a reference to nothing, or a form that does not fit the value.
    """
    lines: list[tuple[str, tuple[str, ...]]] = []
    for at, line in enumerate(text.strip("\n").splitlines(), start=1):
        place = f"{where}, line {at}"
        bare = _NUMBER.search(_PLACE.sub("", line))
        if bare:
            raise _refused(
                f"the number {bare[0]} written by hand",
                "a reference: {{results.json#FIELD|.3f}}",
                place,
                "a constant goes under [facts] of card.toml: {{card.toml#facts.NAME}}",
            )
        found = list(_PLACE.finditer(line))
        if len(found) == 1 and found[0]["table"]:
            lines += table(folder, found[0]["ref"], found[0]["form"] or "", where=place)
        else:
            pieces, end = [], 0
            for one in found:
                value = shown_value(resolve(folder, one["ref"]), one["form"] or "", where=place)
                pieces += [line[end : one.start()], value]
                end = one.end()
            lines.append(("".join([*pieces, line[end:]]), tuple(one["ref"] for one in found)))
    return lines


def table(folder: Path, ref: str, columns: str, *, where: str) -> list[tuple[str, tuple[str, ...]]]:
    """A Markdown table of a list of rows. columns: ``name``, or ``name:form``, with commas between."""
    rows = resolve(folder, ref)
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not all(isinstance(row, Mapping) for row in rows):
        raise _refused(f"a {type(rows).__name__}", "a list of rows", f"{where}: {ref}", "name a list")
    names = [tuple(part.strip().partition(":")[::2]) for part in columns.split(",") if part.strip()]
    if not rows or not names:
        raise _refused(f"{len(rows)} rows, {len(names)} columns", "one or more of each", f"{where}: {ref}", "|a,b:.3f")
    lines: list[tuple[str, tuple[str, ...]]] = [
        (f"| {' | '.join(name.replace('_', ' ') for name, _ in names)} |", ()),
        (f"|{'---|' * len(names)}", ()),
    ]
    for at, row in enumerate(rows):
        cells = []
        for name, form in names:
            value = row
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            cells.append("-" if value is None else shown_value(value, form, where=f"{where}: {ref}[{at}].{name}"))
        refs = tuple(f"{ref}[{at}].{name}" for name, _ in names)
        lines.append((f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |", refs))
    return lines


def shown_value(value: Any, form: str, *, where: str) -> str:
    """A value in Python's format language; lists with commas between.

    Raises:
        CardError: the form does not fit, or the value is a table.
    """
    if isinstance(value, Mapping):
        raise _refused("a table of fields", "one value", where, f"name one of {', '.join(list(value)[:8])}")
    if isinstance(value, list):
        return ", ".join(shown_value(one, form, where=where) for one in value)
    if value is None or isinstance(value, bool):
        return "none" if value is None else "yes" if value else "no"
    if isinstance(value, str):
        return " ".join(value.split())
    try:
        return format(value, form.strip() or (".6g" if isinstance(value, float) else ""))
    except (ValueError, TypeError) as error:
        raise _refused(
            f"the form {form!r} for {value!r} ({error})", "such as .4f", where, "correct the form"
        ) from error


def _refused(got: str, wanted: str, where: str, next_step: str) -> CardError:
    return CardError(got=got, wanted=wanted, where=where, next_step=next_step)
