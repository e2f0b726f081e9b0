"""`gradledger predict PLAN -o FOLDER`: register predictions before the run; later changes are numbered amendments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SUMMARY = "Register predictions in a folder, before anything runs there."


def command(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A TOML file, see docs/evidence.md.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FOLDER", help="Where the run will be.")],
    amend: Annotated[str, typer.Option(metavar="REASON", help="Register a changed plan as the next version.")] = "",
) -> None:
    """Register predictions in a folder, before anything runs there."""
    from gradledger.evidence import lock
    from gradledger.evidence.predicate import described

    folder = Path(output)
    version = lock.amend(folder, Path(plan), reason=amend) if amend else lock.lock(folder, Path(plan))
    for one in version.plan.hypotheses:
        seeds = ", ".join(map(str, one.rng_seeds))
        typer.echo(f"{one.id} {described(one.predicate)}: {one.quantity} of {', '.join(one.arms)}; rng_seed {seeds}")
    typer.echo(f"version {version.number}, registered {version.at}, SHA-256 {version.sha256}")
    if version.trials_before:
        typer.echo(f"{version.trials_before} trials had ended before: of these it is no prediction")
