"""`gradledger compare FOLDER FIRST SECOND QUANTITY`: two arms on the seeds that both have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SUMMARY = "Compare two arms of a run, seed by seed."


def command(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder that a run left.")],
    first: Annotated[str, typer.Argument(metavar="FIRST", help="An arm.")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="Another arm.")],
    quantity: Annotated[str, typer.Argument(metavar="QUANTITY", help="A number that both recorded.")],
) -> None:
    """Compare two arms of a run, seed by seed."""
    from gradledger.evidence import compare
    from gradledger.evidence.record import TrialRecord

    found = compare.compare(TrialRecord(Path(folder)).latest(), first, second, quantity)
    typer.echo(f"{quantity}: {first} - {second}")
    for seed, value in found.paired.differences.items():
        typer.echo(f"  seed {seed}: {value:.6g}")
    for arm, seeds in ((first, found.paired.only_first), (second, found.paired.only_second)):
        if seeds:
            typer.echo(f"  only {arm} has seed {', '.join(map(str, seeds))}")
    summary = found.paired.summary
    held = summary.interval
    shown = held.why if held.low is None or held.high is None else f"{held.low:.6g} to {held.high:.6g}"
    typer.echo(f"mean {summary.mean:.6g}, IQM {summary.iqm:.6g}, interval at {held.level:g}: {shown}")
    if found.paired.p is not None:
        typer.echo(f"p of no difference, by exchange of signs: {found.paired.p:.4g}")
    isolated = "isolated" if found.isolated else "not isolated"
    typer.echo(f"{isolated}: the arms differ in {', '.join(found.differs) or 'nothing'}")
