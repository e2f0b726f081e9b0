"""What the worker processes of loaders draw: their queues of indices look at the generators for us (see `_draws`)."""

from __future__ import annotations

import json
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from gradledger.core.events import WorkerDraws
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _draws, _site
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session

PASSES = 2  # of one loader
WORKERS = 16
_LOOP, _QUEUE = "_worker_loop", 2  # torch's function, and the place of the queue of indices among its arguments


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.passes: Counter[int] = Counter()
        self.sites: dict[int, Site] = {}
        self.current = -1
        self.begun = 0

    def begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.read()
        number = self.recorder.objects.number(args[0])
        self.passes[number] += 1
        self.sites.setdefault(number, _site.here(1))
        self.current = number if self.passes[number] <= PASSES else -1
        self.begun = 0

    def starts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A process begins: let a worker's queue be asked by way of ours, for the moment of the start."""
        process = args[0]
        given = getattr(process, "_args", ())
        if self.current < 0 or getattr(getattr(process, "_target", None), "__name__", "") != _LOOP:
            return None
        if self.begun >= WORKERS or len(given) <= _QUEUE or not hasattr(given[_QUEUE], "get"):
            return None
        self.begun += 1
        where = (self.session.folder, self.current, self.passes[self.current])
        process._args = (*given[:_QUEUE], _draws.Asked(given[_QUEUE], where), *given[_QUEUE + 1 :])
        return process, given

    def started(self, state: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # a started process forgets its arguments; one that could not be started keeps them
        if state is not None and hasattr(state[0], "_args"):
            state[0]._args = state[1]

    def raised(self, state: Any, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.started(state, None, args, kwargs)

    def read(self) -> None:
        """Take in what workers have left."""
        if not self.passes or not self.session.folder:
            return
        for path in sorted(Path(self.session.folder).glob(_draws.FILE)):
            try:
                told = json.loads(path.read_text(encoding="utf-8"))
                path.unlink()
            except (OSError, ValueError):
                continue
            for name, state, drawn in told["draws"]:
                if drawn:
                    self.recorder.emit(
                        WorkerDraws,
                        self.sites.get(told["loader"], NOWHERE),
                        loader=told["loader"],
                        epoch=told["pass"],
                        worker=told["worker"],
                        workers=told["workers"],
                        name=name,
                        state=state,
                    )


def install(session: Session) -> Undo:
    """Watch passes and the start of workers, when the run has a folder."""
    if not session.folder:
        return lambda: None
    probe = _Probe(session)
    session.at_end.append(probe.read)

    def skip(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return bool(args[0].num_workers == 0)

    return together(
        observe(session.recorder, DataLoader, "__iter__", before=probe.begins, skip=skip),
        observe(
            session.recorder,
            BaseProcess,
            "start",
            before=probe.starts,
            after=probe.started,
            raised=probe.raised,
        ),
    )
