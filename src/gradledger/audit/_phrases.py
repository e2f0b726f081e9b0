"""Small pieces of wording that several rules share: numbers, lines, and the ways in which a value leaves the graph."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import PurePath

from gradledger.core.events import Cut
from gradledger.core.site import Site

WAYS = {
    "detach": "`.detach()`",
    "detach_": "`.detach_()`",
    "data": "`.data`",
    "item": "`.item()`",
    "float": "`float(...)`",
    "int": "`int(...)`",
    "numpy": "`.numpy()`",
    "tolist": "`.tolist()`",
    "no_grad": "no_grad",
    "rebuilt": "`torch.tensor(...)` of Python numbers",
    "tensor": "`torch.tensor(...)`",
    "as_tensor": "`torch.as_tensor(...)`",
    "from_numpy": "`torch.from_numpy(...)`",
    "autograd_grad": "`torch.autograd.grad` without create_graph",
    "integer": "an integer result",
}

_LINE = re.compile(r"\bline (\d+)(?! of \S+\.py)")


def number(value: float | None) -> str:
    """Four significant digits; "?" when unknown."""
    if value is None:
        return "?"
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def way_out(cut: Cut | None) -> str:
    """How a value left the graph, in words a person would search for."""
    return WAYS.get(cut.how, f"`{cut.how}`") if cut is not None else "an operation without gradient"


def times(count: int, noun: str) -> str:
    """ "1 step", "4 steps"."""
    plural = noun if count == 1 else noun + ("es" if noun.endswith(("s", "x")) else "s")
    return f"{count} {plural}"


def distinct(site: Site, others: Iterable[Site]) -> tuple[Site, ...]:
    """`others` that are in a file and on another line than `site`, each line once, in order."""
    kept: dict[tuple[str, int], Site] = {}
    for other in others:
        if other.file and other.key() != site.key():
            kept.setdefault(other.key(), other)
    return tuple(kept.values())


def with_files(text: str, site: Site, related: Iterable[Site]) -> str:
    """`text` with "line 7" told as "line 7 of other.py" where line 7 is one of another file.

    A rule says "line N" of its related lines.  Where the finding's own file has no such line among them and just one
    other file has, that one is meant.
    """
    files: dict[int, set[str]] = {site.line: {site.file}}
    for other in related:
        files.setdefault(other.line, set()).add(other.file)

    def told(match: re.Match[str]) -> str:
        at = files.get(int(match[1]), set())
        if len(at) != 1 or site.file in at:
            return match[0]
        path = PurePath(next(iter(at)))
        same_name = path.name in ("__init__.py", "__main__.py", PurePath(site.file).name)
        return f"{match[0]} of {PurePath(*path.parts[-2:]) if same_name else path.name}"

    return _LINE.sub(told, text)
