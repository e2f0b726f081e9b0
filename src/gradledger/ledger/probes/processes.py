"""Processes that the program starts: those that train are watched, too, each into a ledger of its own.

The target of a process that is about to be spawned is wrapped for the moment of pickling and put back; pools and
executors start their workers in the same way.  A Python that is started by `subprocess` is a program of its own: it is
only counted, and the report says how to watch it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import util
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gradledger.core.site import is_installed
from gradledger.ledger import _arrival, _site
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session

_LOOP = "_worker_loop"  # of a DataLoader: no rank
_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


class _Owner:
    """What a forked child is told by: as long as this object lives, `multiprocessing` calls `born` in each."""

    def __init__(self, plan: _arrival.Plan) -> None:
        self.plan, self.process = plan, os.getpid()
        util.register_after_fork(self, _Owner.born)

    def born(self) -> None:
        if os.getpid() != self.process:
            _arrival.arm(self.plan)


class _Programs:
    """Pythons that were started as programs of their own, by the line that starts them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.counts: dict[tuple[str, int], int] = {}

    def started(self, before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        command = args[1] if len(args) > 1 else kwargs.get("args", ())
        site = _site.here(1)
        if not site.file or not _is_program(command):
            return
        self.counts[site.key()] = self.counts.get(site.key(), 0) + 1
        count = sum(self.counts.values())
        lines = ", ".join(f"{os.path.basename(file)}:{line}" for file, line in list(self.counts)[:3])
        what = "1 Python that the program started was" if count == 1 else f"{count} Pythons that it started were"
        self.session.recorder.not_watched["processes"] = (
            f"{what} not watched (subprocess, {lines}); to watch what one trains, put -m gradledger audit before its "
            "script"
        )


def _is_program(command: Any) -> bool:
    """Whether a command is a Python over a script or module that is the program's own."""
    if isinstance(command, (str, bytes, os.PathLike)):
        text = os.fsdecode(command)
        words = text.split() if isinstance(command, str) else [text]
    else:
        words = [os.fsdecode(word) for word in command if isinstance(word, (str, bytes, os.PathLike))]
    if not words or not (words[0] == sys.executable or Path(words[0]).name.startswith("python")):
        return False
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
        at += 2 if words[at] in _OPTIONS_WITH_VALUE else 1
    rest = words[at:]
    if not rest or rest[0] in ("-c", "-"):
        return False  # a question of one line
    name = rest[1] if rest[0] == "-m" and len(rest) > 1 else rest[0]
    own = name.partition(".")[0] if rest[0] == "-m" else ""
    return own not in ("gradledger", "pip", "torch", "venv", "ensurepip") and not is_installed(name)


def install(session: Session) -> Undo:
    """Watch the start of processes, when the run has a folder for their ledgers."""
    programs = _Programs(session)
    counted = observe(session.recorder, subprocess.Popen, "__init__", after=programs.started)
    if session.start_rank is None or session.start_alone is None or not session.folder:
        return counted
    plan = _arrival.Plan(session.start_rank, session.start_alone, session.folder, session.program)
    undo = _arrival.hook(plan, owner=os.getpid())
    owners = [_Owner(plan)]

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        process = args[0]
        target = getattr(process, "_target", None)
        method = getattr(process, "_start_method", None)
        if method in (None, "fork") or target is None or getattr(target, "__name__", "") == _LOOP:
            return None
        process._target = _arrival.Carrier(target, plan)
        return process, target

    def after(state: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if state is not None and hasattr(state[0], "_target"):  # a started process has forgotten it
            state[0]._target = state[1]

    def raised(state: Any, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        after(state, None, args, kwargs)

    started = observe(session.recorder, BaseProcess, "start", before=before, after=after, raised=raised)
    return together(counted, undo, owners.clear, started)
