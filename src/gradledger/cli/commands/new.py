"""`gradledger new experiment NAME`: a first experiment, its plan and the words of its card, as files that run at once.

Exit codes: 0 all were written; 2 the name cannot be used, or a file is there already.
"""

from __future__ import annotations

import keyword
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from gradledger.core.errors import UsageError

SUFFIXES = (".py", ".toml", ".card.toml")
SUMMARY = "Write a first experiment of your own."


def experiment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the files NAME.py, NAME.toml and NAME.card.toml.")],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FOLDER", help="Where to write them; made if need be.")
    ] = ".",
) -> None:
    """Write NAME.py, a function (config, rng_seed) -> quantities; NAME.toml, its predictions; and NAME.card.toml, the
    words of its model card."""
    from gradledger.recipes._registry import TEMPLATES

    if not name.isidentifier() or keyword.iskeyword(name):
        raise _refused(repr(name), "a name that Python can import: letters, digits, underscores", "such as my_first")
    folder = Path(output)
    paths = {suffix: folder / f"{name}{suffix}" for suffix in SUFFIXES}
    for path in paths.values():
        if path.exists() or path.is_symlink():
            raise _refused(f"{path}, which is there already", "a new file", "choose another name: nothing is replaced")
    if name in sys.stdlib_module_names or find_spec(name) is not None:
        # the file would hide that module from everything that the experiment imports
        raise _refused(f"{name!r}, which is a module already", "a name of its own", f"such as my_{name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, path in paths.items():
            text = (TEMPLATES / f"experiment{suffix}").read_text(encoding="utf-8")
            with path.open("x", encoding="utf-8") as file:
                file.write(text.replace("NAME", name))
    except OSError as error:
        raise _refused(f"{folder}: {error.strerror}", "a folder that can be written to", "choose another") from error
    typer.echo("\n".join(f"-> {path}" for path in paths.values()))
    typer.echo(f"run it: python {paths['.py']}")


COMMANDS = {"experiment": experiment}


def _refused(got: str, wanted: str, next_step: str) -> UsageError:
    return UsageError(got=got, wanted=wanted, where="gradledger new experiment", next_step=next_step)
