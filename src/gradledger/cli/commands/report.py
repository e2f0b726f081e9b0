"""`gradledger report FOLDER`: hypotheses, every trial, seeds and curves as one page, or as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradledger.cli._atomic import check_path, write_text

SUMMARY = "Write the report of a folder of evidence: one HTML file, or Markdown."


def command(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder that a run left.")],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="FILE.html or FILE.md; default: Markdown here.")
    ] = None,
) -> None:
    """Write the report of a folder of evidence: one HTML file, or Markdown."""
    from gradledger.evidence import report

    path = check_path(output, "--output")
    story = report.tell(Path(folder))
    if path is None:
        typer.echo(report.markdown(story), nl=False)
        return
    write_text(path, report.page(story) if path.suffix in (".html", ".htm") else report.markdown(story))
    typer.echo(f"-> {output}")
