"""Synthetic runs of models whose parameters some optimizer misses."""

from __future__ import annotations

from typing import Any

from audit.build import Net, Run, at
from gradledger.core import events as ev
from gradledger.core.site import Site

STEP, BACKWARD, CLEAR = 12, 10, 8


def loop(run: Run, optimizer: int, *filled: Net | int, steps: int = 10) -> Run:
    """A training loop whose reverse passes fill `filled`."""
    for _ in range(steps):
        run.zero_grad(optimizer, line=CLEAR)
        run.backward(*filled, line=BACKWARD)
        run.step(optimizer, line=STEP)
    return run


def plain(run: Run, owner: Net, name: str, kind: str = "tensor", *, line: int = 5, **values: Any) -> None:
    """Something that hangs on a module without being registered."""
    values.setdefault("made_site", Site("train.py", line, "__init__"))
    run.emit(ev.PlainAttributes, at(20), module=owner.ident, attributes=(ev.PlainAttribute(name, kind, **values),))
