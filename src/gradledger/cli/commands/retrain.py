"""`gradledger retrain FOLDER`: run recorded trials anew in another folder, and compare what they measure.

Exit codes: 0 every quantity that decides agrees; 1 one does not, the first is named; 2 it cannot be done.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

SUMMARY = "Run recorded trials anew, and compare their quantities within the registered tolerance."


def command(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder that a run left; it is only read.")],
    seeds: Annotated[int, typer.Option(metavar="K", help="How many of the recorded random seeds, of every arm.")] = 1,
    arm: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this arm; may be repeated.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Relative, for every quantity of the plan, in place of the registered ones.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", "--jobs", metavar="N", help="Trials at a time, each in a process.")
    ] = 1,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="SCRATCH", help="Keep the new trials here.")
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(metavar="FILE.py", help="With a function experiment; default: the recipe that made the folder."),
    ] = None,
) -> None:
    """Run recorded trials anew, and compare their quantities within the registered tolerance."""
    from gradledger.cli._code import function
    from gradledger.evidence import retrain as retraining
    from gradledger.evidence.live import Display

    experiment = function(Path(folder), "experiment", code=code)
    with tempfile.TemporaryDirectory() as scratch, Display() as display:
        found = retraining.retrain(
            Path(folder),
            experiment,
            Path(output or scratch),
            seeds=seeds,
            arms=arm or (),
            tolerance=tolerance,
            workers=workers,
            watcher=display,
            beat=display.beat,
        )
    for one in found:
        told = "agrees" if one.agrees else f"DIFFERS: {one.why}"
        if one.agrees is None:
            told = f"no tolerance registered, decides nothing: {one.why or 'equal'}"
        values = f"recorded {_short(one.recorded)}, again {_short(one.again)}"
        room = "" if one.tolerance is None else f" (tolerance {one.tolerance:g})"
        typer.echo(f"{one.arm}, seed {one.rng_seed}, {one.quantity}: {values}: {told}{room}")
    wrong = [one for one in found if one.agrees is False]
    deciding = sum(one.agrees is not None for one in found)
    typer.echo(f"{deciding - len(wrong)} of {deciding} quantities agree")
    if wrong:
        typer.echo(f"first that differs: {wrong[0].quantity} of {wrong[0].arm}, seed {wrong[0].rng_seed}")
        sys.exit(1)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.17g}" if value.is_integer() else f"{value:.8g}"  # of a fingerprint every digit tells
    return f"{len(value)} values" if isinstance(value, list) else str(value)
