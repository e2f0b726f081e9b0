"""A file that a reader sees whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from gradledger.core.errors import UsageError


def check_path(given: str | None, option: str) -> Path | None:
    """The absolute path of an output file, before any work is done for it.

    Raises UsageError when its folder does not exist or cannot be written to.
    """
    if given is None:
        return None
    path = Path(given).absolute()
    problem = None
    if not path.parent.is_dir():
        problem = f"make the folder: mkdir -p {path.parent}"
    elif path.is_dir():
        problem = "name a file in it"
    elif not os.access(path.parent, os.W_OK):
        problem = f"allow it: chmod u+w {path.parent}"
    if problem is not None:
        raise UsageError(
            got=given, wanted="a file in a folder that exists and can be written", where=option, next_step=problem
        )
    return path


def write_text(path: Path, text: str) -> None:
    """Write beside, then rename: also when the process dies in between, `path` is the old file or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
