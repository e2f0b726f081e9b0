"""`gradledger card FOLDER`: compile card.toml into the model card, in which every number is a reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SUMMARY = "Compile the model card of a folder of evidence from its card.toml."


def command(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder with results and a card.toml.")],
) -> None:
    """Compile the model card of a folder of evidence from its card.toml."""
    from gradledger.evidence import model_card

    typer.echo(f"-> {model_card.write(Path(folder))}")
