"""Small pieces of wording that several rules share: numbers, lines, and the ways in which a value leaves the graph."""

from __future__ import annotations

import math
from collections.abc import Iterable

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
