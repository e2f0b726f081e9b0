"""`gradledger verify BUNDLE`: is the folder what was sealed, and does it hold together.

Exit codes: 0 yes; 1 no, each fault with its file and field; 2 the call cannot be understood.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

SUMMARY = "Check a folder of evidence: hashes, chains, verdicts, numbers of the card."


def command(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="A folder that a run left.")],
    seal: Annotated[bool, typer.Option("--seal", help="Seal it first: vouch for it as it is now.")] = False,
    expect: Annotated[str, typer.Option(metavar="HASH", help="What the seal must be, as you were told.")] = "",
) -> None:
    """Check a folder of evidence: hashes, chains, verdicts, numbers of the card."""
    from gradledger.evidence import bundle as bundles

    folder = Path(bundle)
    if seal:
        typer.echo(f"sealed: {bundles.seal(folder)}")
        typer.echo("keep this hash outside the folder: with --expect it also finds a folder forged as a whole")
    found = bundles.verify(folder, expect=expect)
    for one in found:
        typer.echo(str(one))
    if found:
        typer.echo(f"{len(found)} fault{'s' if len(found) != 1 else ''}: {folder} is not what it says")
        sys.exit(1)
    typer.echo(f"{folder} is what was sealed")
