"""What a process that the program has started does first: wait for it to join a group of ranks, then begin a watch.

Nothing of a child that never joins one is watched.  A forked child has this module's hook already; a spawned one gets
it while its target is unpickled (`Carrier`), so that no frame of ours lies below the program's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

Start = Callable[[str, str], None]
POINT = "_update_default_pg"  # torch calls it when the group of all ranks is there


class Carrier:
    """Pickles as a call of `arrive`, and so comes out as the target itself."""

    def __init__(self, target: Any, start: Start, folder: str, program: str) -> None:
        self.parts = (target, start, folder, program)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return arrive, self.parts


def arrive(target: Any, start: Start, folder: str, program: str) -> Any:
    """In a spawned child: install the hook and hand the target out."""
    try:
        if "torch" in sys.modules:
            hook(start, folder, program, owner=-1)
    except Exception:
        pass  # then the child is not watched
    return target


def hook(start: Start, folder: str, program: str, owner: int) -> Callable[[], None]:
    """Call `start` in a process other than `owner` once it has joined a group of ranks; returns the undo."""
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
                start(folder, program)
            except Exception:
                pass  # then this rank is not watched
        return result

    def undo() -> None:
        if getattr(group, POINT, None) is joined:
            setattr(group, POINT, original)

    setattr(group, POINT, joined)
    return undo
