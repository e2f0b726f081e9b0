"""Source lines of the user's files, read once.

Not `linecache`: the audit may run inside the watched process, whose caches are not ours to fill.
"""

from __future__ import annotations

import tokenize
from functools import lru_cache


@lru_cache(maxsize=256)
def source_lines(file: str) -> tuple[str, ...]:
    """All lines of `file` without line ends; empty when it cannot be read or decoded."""
    try:
        with tokenize.open(file) as handle:
            return tuple(handle.read().splitlines())
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return ()


def source_line(file: str, line: int) -> str:
    """Line number `line` (from 1) of `file`; "" when there is none."""
    lines = source_lines(file) if file else ()
    return lines[line - 1] if 0 < line <= len(lines) else ""
