"""A command line out of a recipe's Args: each field an option, its metadata the help, presets before options."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from gradledger.core.errors import UsageError
from gradledger.evidence.runner import Backend
from gradledger.recipes._registry import Recipe

Args = TypeVar("Args")


@dataclass(frozen=True)
class Words(Generic[Args]):
    """A command line, read. given: what was given by hand, by field. seeds: of ``--seeds``; empty: one run. jobs: how
    many of them at a time, each in a process; backend: of `evidence.runner.run_trials`."""

    args: Args
    given: dict[str, Any]
    seeds: tuple[int, ...] = ()
    jobs: int = 1
    backend: Backend = "processes"


def option(
    default: Any,
    help_text: str,
    *,
    aliases: Sequence[str] = (),
    metavar: str = "",
    or_value_of: str = "",
    reader: Callable[[str], Any] | None = None,
) -> Any:
    """A field of Args with its line of help.

    Args:
        aliases: further names, with dashes.
        metavar: what the help shows for the value.
        or_value_of: for a flag, the field that a value after the flag goes to: ``--resume DIR`` is ``--resume`` and
            ``--out DIR`` in one.
        reader: makes the value out of the word; default: what the field's type says.
    """
    facts = {
        "help": help_text,
        "aliases": tuple(aliases),
        "metavar": metavar,
        "or_value_of": or_value_of,
        "reader": reader,
    }
    return dataclasses.field(default=default, metadata=facts)


class _Parser(argparse.ArgumentParser):
    """argparse, its complaints in the words of the house."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            got=message,
            wanted="options as --help lists them",
            where=self.prog,
            next_step=f"`{self.prog} --help` shows every option with its default",
        )


def parse(
    kind: type[Args],
    presets: Mapping[str, Mapping[str, Any]],
    argv: Sequence[str] | None,
    *,
    recipe: Recipe,
    description: str,
    prog: str | None = None,
    series: bool = True,
) -> Words[Args]:
    """Parse `argv` into an instance of the frozen dataclass `kind`, whose fields `rng_seed`, `out` and `resume` are
    those of every recipe.

    The preset fills first, then the options that were given. What was given by hand is returned too: a resumed run
    takes all other values from its checkpoint. ``--help`` ends the program with status 0. series: whether the caller
    runs the seeds of ``--seeds`` one after the other; otherwise the option is refused.

    Raises:
        UsageError: an unknown option, a value that is none, or two options that contradict each other.
    """
    parser = _Parser(
        prog=prog,
        usage="%(prog)s [options]",
        description=_for_screen(description, recipe),
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = f"values to start from (default: {recipe.default_preset})"
    parser.add_argument("--preset", choices=list(recipe.presets), help=what)
    hints = typing.get_type_hints(kind)
    fields = {one.name: one for one in dataclasses.fields(kind) if one.name != "preset"}  # type: ignore[arg-type]
    for name, one in fields.items():
        # The field of --break is break_: a word of the language cannot be a field.
        names = [f"--{name.rstrip('_').replace('_', '-')}", *one.metadata.get("aliases", ())]
        if one.metadata.get("or_value_of"):
            facts: dict[str, Any] = {"nargs": "?", "const": True, "metavar": "DIR"}
        elif set(typing.get_args(hints[name]) or (hints[name],)) <= {bool, type(None)}:
            facts = {"action": argparse.BooleanOptionalAction}
        else:
            facts = _reader(hints[name], str(one.metadata.get("metavar", "")))
            facts |= {"type": one.metadata["reader"]} if one.metadata.get("reader") else {}
        shown = "auto" if one.default is None and facts.get("action") else str(one.default).lower()
        if not isinstance(one.default, bool | None):
            shown = str(one.default) or "none"
        text = f"{one.metadata.get('help', '')} (default: {shown})".replace("%", "%%")
        parser.add_argument(*names, dest=name, help=text, **facts)
        if name == "rng_seed" and series:
            parser.add_argument("--seeds", type=seed_list, metavar="LIST", help=_SEEDS)
            # Of the series, no fields: a recipe that runs a plan has options of these names among its own.
            parser.add_argument("--jobs", dest="series jobs", type=count, metavar="N", help=_JOBS)
            parser.add_argument("--backend", dest="series backend", choices=typing.get_args(Backend), help=_BACKEND)
    found, rest = parser.parse_known_args(argv)
    if not series and any(word.partition("=")[0] == "--seeds" for word in rest):
        whence = "--rng-seed N, once a call, each into an --out of its own" if "rng_seed" in fields else "its plan"
        parser.error(f"--seeds: this recipe runs no series; its seeds come from {whence}")
    if rest:
        near = difflib.get_close_matches(rest[0].partition("=")[0], parser._option_string_actions, n=1)
        parser.error(f"unknown: {' '.join(rest)}" + (f" (did you mean {near[0]}?)" if near else ""))
    given = vars(found)
    seeds, jobs = given.pop("seeds", ()), given.pop("series jobs", 1)
    backend = given.pop("series backend", "processes")
    if seeds and "rng_seed" in given:
        parser.error("--seeds beside --rng-seed")
    for name, one in fields.items():
        other = one.metadata.get("or_value_of")
        if other and isinstance(given.get(name), str):
            value = hints[other](given[name])
            if given.setdefault(other, value) != value:
                parser.error(f"--{name} {value} and --{other} {given[other]}: two folders")
            given[name] = True
    preset = given.get("preset", recipe.default_preset)
    return Words(kind(**{**presets[preset], **given, "preset": preset}), given, seeds, jobs, backend)


_SEEDS = "several runs, into OUT/seed-N: 1,2,3 or 1..3; a table of all at the end"
_JOBS = "of --seeds, so many at a time, each in a process of its own (default: 1, one after the other)"
_BACKEND = "what runs them: processes of this machine, or a Ray cluster (default: processes)"


def count(text: str) -> int:
    """1 or more."""
    found = int(text)
    if found < 1:
        raise ValueError(text)
    return found


def seed_list(text: str) -> tuple[int, ...]:
    """``1,2,3`` or ``1..3`` or both: ``1..3,7``. Each seed once, in the order given."""
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        found += range(int(first), int(last) + 1) if dots else [int(first)]
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise ValueError(text)
    return tuple(found)


seed_list.__name__ = "list of seeds (1,2,3 or 1..3, each once)"  # argparse: "invalid list of seeds ... value: 'x'"


def _reader(hint: Any, metavar: str) -> dict[str, Any]:
    """How argparse reads a value of this type."""
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        return {"type": type(choices[0]), "choices": choices}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        words = [word for one in typing.get_args(hint) for word in _words(one)]
        (inner,) = [one for one in typing.get_args(hint) if not _words(one)]

        def read(text: str) -> Any:
            return None if text == "none" and "none" in words else text if text in words else inner(text)

        read.__name__ = f"{inner.__name__} or {' or '.join(words)}"  # argparse: "invalid int or auto value"
        return {"type": read, "metavar": metavar or "|".join([inner.__name__.upper(), *words])}
    return {"type": hint, "metavar": metavar or ("DIR" if hint is Path else hint.__name__.upper())}


def _words(hint: Any) -> list[str]:
    """Words that stand for a value: of None, and of a Literal."""
    if hint is type(None):
        return ["none"]
    return [str(word) for word in typing.get_args(hint)] if typing.get_origin(hint) is typing.Literal else []


def _for_screen(description: str, recipe: Recipe) -> str:
    """The docstring, its paragraphs as wide as the screen, its indented lines as they are; then the presets."""
    width = max(shutil.get_terminal_size().columns - 2, 40)
    parts = [
        part if part.startswith("    ") else textwrap.fill(" ".join(part.split()), width)
        for part in description.strip().split("\n\n")
    ]
    presets = ["presets:"]
    for name, text in recipe.presets.items():
        presets += textwrap.wrap(text, width, initial_indent=f"  {name:<11} ", subsequent_indent=" " * 14)
    return "\n\n".join([*parts, "\n".join(presets)])
