"""A command line out of a recipe's Args: each field an option, its metadata the help, presets before options."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

Args = TypeVar("Args")


def option(default: Any, help_text: str) -> Any:
    """A field of Args with its line of help."""
    return dataclasses.field(default=default, metadata={"help": help_text})


def parse(
    kind: type[Args],
    presets: Mapping[str, Mapping[str, Any]],
    argv: Sequence[str] | None,
    *,
    description: str,
    default_preset: str,
) -> tuple[Args, dict[str, Any]]:
    """Parse `argv` into an instance of the frozen dataclass `kind`.

    The preset fills first, then the options that were given. Returns the instance and what was given by hand: a
    resumed run takes all other values from its checkpoint. Errors of the command line end the program with status 2.
    """
    parser = argparse.ArgumentParser(
        description=description, argument_default=argparse.SUPPRESS, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--preset", choices=sorted(presets), help=f"values to start from (default: {default_preset})")
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        name = "--" + field.name.replace("_", "-")
        text = f"{field.metadata.get('help', '')} (default: {field.default})"
        if field.name == "preset":
            continue
        if hints[field.name] is bool:
            parser.add_argument(name, action=argparse.BooleanOptionalAction, help=text)
        else:
            parser.add_argument(name, help=text, **_reader(hints[field.name]))
    given = vars(parser.parse_args(argv))
    preset = given.get("preset", default_preset)
    return kind(**{**presets[preset], **given, "preset": preset}), given


def _reader(hint: Any) -> dict[str, Any]:
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        return {"type": type(choices[0]), "choices": choices}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (inner,) = [one for one in typing.get_args(hint) if one is not type(None)]
        return {"type": lambda text: None if text == "none" else inner(text), "metavar": inner.__name__.upper()}
    return {"type": hint, "metavar": "PATH" if hint is Path else hint.__name__.upper()}
