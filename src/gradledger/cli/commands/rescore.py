"""`gradledger rescore FOLDER`: compute a metric again from saved predictions and compare it with what was recorded.

Exit codes: 0 every trial agrees; 1 one does not; 2 the call cannot be understood.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

SUMMARY = "Compute a metric again from the predictions that the trials saved."


def command(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder that a run left.")],
    quantity: Annotated[str, typer.Option(metavar="NAME", help="The quantity as it was recorded.")],
    metric: Annotated[
        str, typer.Option(metavar="METRIC", help="mse, rmse, mae, max_error, mean_difference or accuracy.")
    ] = "mse",
    prediction: Annotated[str, typer.Option(metavar="ARRAY", help="The saved predictions.")] = "prediction",
    target: Annotated[str, typer.Option(metavar="ARRAY", help="The saved targets.")] = "target",
    tolerance: Annotated[float, typer.Option(help="Relative.")] = 1e-5,
) -> None:
    """Compute a metric again from the predictions that the trials saved."""
    from gradledger.evidence.rescore import rescore

    scores = rescore(
        Path(folder), quantity=quantity, metric=metric, prediction=prediction, target=target, tolerance=tolerance
    )
    for one in scores:
        recorded = "-" if one.recorded is None else f"{one.recorded:.8g}"
        again = one.why if one.again is None else f"{one.again:.8g}"
        sign = "agrees" if one.agrees else "DIFFERS"
        typer.echo(f"{one.arm}, seed {one.rng_seed}: recorded {recorded}, again {again}: {sign}")
    wrong = sum(not one.agrees for one in scores)
    typer.echo(f"{len(scores) - wrong} of {len(scores)} trials agree")
    sys.exit(1 if wrong else 0)
