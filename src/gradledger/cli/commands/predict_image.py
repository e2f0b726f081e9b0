"""`gradledger predict-image PATH --bundle FOLDER`: one crop to an offset with its interval, or to the reason for none.

Exit codes: 0 answered; 1 abstained, or the file is no crop of the contract; 2 there is no file, or the folder is not
what was sealed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

SUMMARY = "Ask the model of a sealed folder about one image: an answer with its interval, or why there is none."
LARGEST = 64 << 20  # bytes of a file


def command(
    path: Annotated[str, typer.Argument(metavar="PATH", help="An image file, or a .npy file with one crop.")],
    folder: Annotated[str, typer.Option("--bundle", metavar="FOLDER", help="A sealed folder that a run left.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """Ask the model of a sealed folder about one image: an answer with its interval, or why there is none."""
    from gradledger.cli._code import function
    from gradledger.core.errors import UsageError

    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST + 1)  # a device has no end
        got, why = f"more than {LARGEST} bytes" if len(raw) > LARGEST else "", None
    except OSError as error:
        got, why = f"{type(error).__name__}: {error.strerror}", error
    if got:
        raise UsageError(got=got, wanted="an image file", where=path, next_step="check the path") from why
    said = function(Path(folder), "predict_image", code=None)(Path(folder), raw)
    typer.echo(json.dumps(said.record(), indent=1) if as_json else said.text())
    sys.exit(0 if said.offset is not None else 1)
