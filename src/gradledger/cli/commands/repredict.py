"""`gradledger repredict FOLDER`: load the weights, predict for the saved inputs, compare with the saved predictions.

Exit codes: 0 every array agrees; 1 one does not, the first is named; 2 it cannot be done.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

SUMMARY = "Predict again from the saved weights and inputs, and compare."


def command(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder that a run left.")],
    tolerance: Annotated[
        float, typer.Option(help="|again - saved| may be this times max(1, |saved|); 0 asks for equal values.")
    ] = 1e-5,
    code: Annotated[
        str | None,
        typer.Option(metavar="FILE.py", help="With a function repredict; default: the recipe that made the folder."),
    ] = None,
) -> None:
    """Predict again from the saved weights and inputs, and compare."""
    from gradledger.cli._code import function
    from gradledger.evidence.repredict import repredict

    found = repredict(Path(folder), function(Path(folder), "repredict", code=code), tolerance=tolerance)
    for one in found:
        if one.agrees:
            told = "equal to the last bit" if one.bits else f"agrees, off by {one.away:.3g}"
        else:
            told = f"DIFFERS: {one.why}"
        typer.echo(f"{one.arm}, seed {one.rng_seed}, {one.array}: {told}")
    wrong = [one for one in found if not one.agrees]
    typer.echo(f"{len(found) - len(wrong)} of {len(found)} arrays agree (tolerance {tolerance:g})")
    if wrong:
        typer.echo(f"first that differs: {wrong[0].array} of {wrong[0].arm}, seed {wrong[0].rng_seed}")
        sys.exit(1)
