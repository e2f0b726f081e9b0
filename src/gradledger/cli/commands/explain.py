"""`gradledger explain GL-G01`: the manual page of a rule, with a program that has the fault and one that has not."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gradledger.audit import registry
from gradledger.audit.render.page import render

SUMMARY = "Show the manual page of a rule."


def command(rule: Annotated[str, typer.Argument(help="Its code (GL-G01, G1) or its name.")]) -> None:
    """Show the manual page of a rule, with a faulty and a correct program."""
    page = render(registry.load().find(rule))
    if not sys.stdout.isatty():
        typer.echo(page)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(width=min(Console().width, 100)).print(Markdown(page, code_theme="ansi_dark"))
