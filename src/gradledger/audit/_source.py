"""Source lines of the user's files, read once.

`linecache` is asked only for what has no file, the cells of a notebook, and only what it already holds: the audit may
run inside the watched process, whose caches are not ours to fill.
"""

from __future__ import annotations

import sys
import tokenize
from functools import lru_cache


@lru_cache(maxsize=256)
def source_lines(file: str) -> tuple[str, ...]:
    """All lines of `file` without line ends; empty when it cannot be read or decoded."""
    try:
        with tokenize.open(file) as handle:
            return tuple(handle.read().splitlines())
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return _held(file)


def _held(file: str) -> tuple[str, ...]:
    """What the interpreter keeps of code that was typed in."""
    held = getattr(sys.modules.get("linecache"), "cache", {}).get(file, ())
    lines = held[2] if len(held) == 4 else ()  # otherwise a promise to look, which is not ours to ask for
    return tuple(str(line).rstrip("\r\n") for line in lines)


def source_line(file: str, line: int) -> str:
    """Line number `line` (from 1) of `file`; "" when there is none."""
    lines = source_lines(file) if file else ()
    return lines[line - 1] if 0 < line <= len(lines) else ""
