"""What a process that the program has started does first: wait until it matters, then begin a watch.

It matters when the process joins a group of ranks, or builds its first optimizer; nothing of a child that does neither
is watched.  A forked child has this module's hooks already; a spawned one gets them while its target is unpickled
(`Carrier`), so that no frame of ours lies below the program's.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Start = Callable[[str, str], None]
POINT = "_update_default_pg"  # torch calls it when the group of all ranks is there


@dataclass(frozen=True, slots=True)
class Plan:
    """How a child begins its watch: as a rank, or by itself; the folder of its ledger; the program's name."""

    rank: Start
    alone: Start
    folder: str
    program: str


class Carrier:
    """Pickles as a call of `arrive`, and so comes out as the target itself."""

    def __init__(self, target: Any, plan: Plan) -> None:
        self.parts = (target, plan)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return arrive, self.parts


def arrive(target: Any, plan: Plan) -> Any:
    """In a spawned child: install the hooks and hand the target out."""
    try:
        from gradledger.ledger import _once_loaded

        _once_loaded.when("torch", lambda torch: _install(plan))
    except Exception:
        pass  # then the child is not watched
    return target


def _install(plan: Plan) -> None:
    try:
        hook(plan, owner=-1)
        arm(plan)
    except Exception:
        pass


def hook(plan: Plan, owner: int) -> Callable[[], None]:
    """Watch a process other than `owner` once it has joined a group of ranks; returns the undo."""
    from torch import distributed

    if not distributed.is_available():
        return lambda: None
    from torch.distributed import distributed_c10d as group

    original: Any = getattr(group, POINT, None)
    if original is None:
        return lambda: None

    def joined(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if os.getpid() != owner and distributed.is_initialized():
            undo()
            try:
                plan.rank(plan.folder, plan.program)
            except Exception:
                pass  # then this rank is not watched
        return result

    def undo() -> None:
        if getattr(group, POINT, None) is joined:
            setattr(group, POINT, original)

    setattr(group, POINT, joined)
    return undo


def arm(plan: Plan) -> None:
    """In a child: watch it once it builds its first optimizer."""
    optimizer = sys.modules["torch"].optim.Optimizer
    original = optimizer.__init__
    process = os.getpid()
    waiting = [plan]

    @functools.wraps(original)
    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        alone = optimizer.__init__ is first  # else somebody wraps this one, and has seen the call
        if alone:
            optimizer.__init__ = original
        if waiting and os.getpid() == process:  # else: a child of the child, which nobody would ask
            waiting.clear()
            try:
                plan.alone(plan.folder, plan.program)
            except Exception:
                pass  # then it is not watched
        (optimizer.__init__ if alone else original)(self, *args, **kwargs)

    optimizer.__init__ = first
