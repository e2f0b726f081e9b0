"""The report for a person: 80 columns, read in 20 seconds; with colour on a terminal, plain elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TextIO

from gradledger.audit.render._layout import layout
from gradledger.audit.report import Report

WIDTH = 80
WIDEST = 100


def render(report: Report, *, width: int = WIDTH, footer: Sequence[str] = (), ascii_only: bool = False) -> str:
    """Plain text with a final line end.  `footer`: further lines, such as where the run is kept."""
    lines = layout(report, width=width, footer=footer, ascii_only=ascii_only)
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines) + "\n"


def compose(report: Report, stream: TextIO, *, footer: Sequence[str] = ()) -> str:
    """What to write to `stream`: in colour when it is a terminal (NO_COLOR and TERM=dumb are obeyed)."""
    ascii_only = not _takes_unicode(stream)
    if not _wants_colour(stream):
        return render(report, footer=footer, ascii_only=ascii_only)
    from rich.console import Console
    from rich.text import Text

    width = min(max(shutil.get_terminal_size((WIDTH, 24)).columns, 40), WIDEST)
    console = Console(file=stream, width=width, highlight=False, soft_wrap=True)
    with console.capture() as captured:
        for line in layout(report, width=width, footer=footer, ascii_only=ascii_only):
            console.print(Text.assemble(*line))
    return captured.get()


def _wants_colour(stream: TextIO) -> bool:
    try:
        terminal = stream.isatty()
    except (AttributeError, ValueError):
        return False
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _takes_unicode(stream: TextIO) -> bool:
    try:
        "│▸".encode(getattr(stream, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
