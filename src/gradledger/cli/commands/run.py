"""`gradledger run RECIPE ...`: a recipe by its name, with the recipe's own options.

Exit codes: the recipe's own (0 all is well; 2 the call cannot be understood or the folder cannot be used; 130 and 143
stopped by a signal, the run saved); 2 for a recipe that is not there or whose packages are not installed.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence

import typer

from gradledger.core.errors import UsageError
from gradledger.recipes._registry import Recipe, find, load, recipes

SUMMARY = "Run a recipe: a whole training program with a run folder, resumable to the bit."

USAGE = """\
Usage: gradledger run RECIPE [options of the recipe]
       gradledger run --list [--json]

`gradledger run RECIPE --help` shows the options of a recipe.
"""


def main(argv: Sequence[str]) -> None:
    """Run the recipe that is named first; everything after its name is the recipe's. Ends with its exit code."""
    words = list(argv)
    if not words or words == ["--help"] or words == ["-h"]:
        print(USAGE)
        print("\n".join(_listed(recipes(), shutil.get_terminal_size().columns)))
        raise typer.Exit(0 if words else 2)
    if words[0] == "--list":
        _list(words[1:])
        return
    if words[0].startswith("-"):
        raise UsageError(
            got=words[0],
            wanted="the name of a recipe before its options",
            where="gradledger run",
            next_step=f"gradledger run RECIPE {' '.join(words)}, with RECIPE one of {', '.join(recipes())}",
        )
    recipe = find(words[0])
    code: int = load(recipe).main(words[1:], prog=f"gradledger run {recipe.name}")
    sys.stdout.flush()
    raise typer.Exit(code)


def _list(words: Sequence[str]) -> None:
    found = recipes()
    if list(words) == ["--json"]:
        print(json.dumps([dataclasses.asdict(recipe) for recipe in found.values()], indent=1))
    elif words:
        raise UsageError(
            got=" ".join(words), wanted="--list or --list --json", where="gradledger run", next_step="leave it out"
        )
    else:
        print("\n".join(_listed(found, shutil.get_terminal_size().columns)))


def _listed(found: dict[str, Recipe], columns: int) -> list[str]:
    width = max(columns - 2, 40)
    lines = []
    for recipe in found.values():
        lines += textwrap.wrap(recipe.summary, width, initial_indent=f"{recipe.name}  ", subsequent_indent="  ")
        for name, text in recipe.presets.items():
            head = f"  --preset {name}"
            told = text + (" (default)" if name == recipe.default_preset else "")
            lines += textwrap.wrap(told, width, initial_indent=f"{head:<21} ", subsequent_indent=" " * 22)
    return lines
