"""Processes that the program starts: those that join a group of ranks are watched, too, each into a ledger of its own.

The target of a process that is about to be spawned is wrapped for the moment of pickling and put back.
"""

from __future__ import annotations

import os
from multiprocessing.process import BaseProcess
from typing import Any

from gradledger.ledger import _arrival
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session

_LOOP = "_worker_loop"  # of a DataLoader: no rank


def install(session: Session) -> Undo:
    """Watch the start of processes, when the run has a folder for their ledgers."""
    start, folder, program = session.start_rank, session.folder, session.program
    if start is None or not folder:
        return lambda: None
    undo = _arrival.hook(start, folder, program, owner=os.getpid())

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        process = args[0]
        target = getattr(process, "_target", None)
        method = getattr(process, "_start_method", None)
        if method not in ("spawn", "forkserver") or target is None or getattr(target, "__name__", "") == _LOOP:
            return None
        process._target = _arrival.Carrier(target, start, folder, program)
        return process, target

    def after(state: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if state is not None and hasattr(state[0], "_target"):  # a started process has forgotten it
            state[0]._target = state[1]

    def raised(state: Any, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        after(state, None, args, kwargs)

    return together(undo, observe(session.recorder, BaseProcess, "start", before=before, after=after, raised=raised))
