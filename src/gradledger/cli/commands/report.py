"""`gradledger report FOLDER`: hypotheses, every trial, seeds and curves as one page, as Markdown, or as runs of MLflow.

Exit codes: 0 written; 2 the folder cannot be read, or MLflow is not installed or refuses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradledger.cli._atomic import check_path, write_text
from gradledger.core.errors import UsageError

SUMMARY = "Write the report of a folder of evidence: one HTML file, Markdown, or runs of MLflow."


def command(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder that a run left.")],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="FILE.html or FILE.md; default: Markdown here.")
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(
            "--mlflow", metavar="TARGET", help="Write the trials to MLflow: a folder (an SQLite store in it), or a URI."
        ),
    ] = None,
    experiment: Annotated[
        str, typer.Option("--experiment", metavar="NAME", help="Its name in MLflow; default: the name of the plan.")
    ] = "",
) -> None:
    """Write the report of a folder of evidence: one HTML file, Markdown, or runs of MLflow."""
    from gradledger.evidence import lock, mlflow_export, report

    if not any((Path(folder) / name).is_file() for name in (lock.LOCK, lock.TRIALS)):
        there = "which is not there" if not Path(folder).exists() else f"with neither {lock.LOCK} nor {lock.TRIALS}"
        raise UsageError(
            got=f"{folder}, {there}",
            wanted="a folder that a run left",
            where="gradledger report",
            next_step="name the --out folder of a run",
        )
    if experiment and mlflow is None:
        raise UsageError(
            got=f"--experiment {experiment}, and no --mlflow",
            wanted="--mlflow TARGET",
            where="gradledger report",
            next_step="name a folder or a tracking URI, such as --mlflow runs/mlflow",
        )
    path = check_path(output, "--output")
    if mlflow is not None:
        done = mlflow_export.export(Path(folder), mlflow, experiment=experiment)
        typer.echo(f"-> {done.runs} runs, {done.new} of them new, in experiment {done.experiment!r} of {done.uri}")
        typer.echo(f"look at them: mlflow ui --backend-store-uri {done.uri}")
        if path is None:
            return
    story = report.tell(Path(folder))
    if path is None:
        typer.echo(report.markdown(story), nl=False)
        return
    write_text(path, report.page(story) if path.suffix in (".html", ".htm") else report.markdown(story))
    typer.echo(f"-> {output}")
