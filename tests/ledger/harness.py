"""A watched stretch of code inside a test: some probes installed, the events in a list."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

from gradledger.core.events import Event
from gradledger.ledger._session import Session
from gradledger.ledger._sink import MemorySink

E = TypeVar("E", bound=Event)


class Watched:
    """`session`, and the events so far by class."""

    def __init__(self, session: Session, sink: MemorySink) -> None:
        self.session = session
        self.sink = sink

    def all(self, cls: type[E]) -> list[E]:
        """The events of a class, in order."""
        return [e for e in self.sink.events if isinstance(e, cls)]

    def one(self, cls: type[E]) -> E:
        """The only event of a class."""
        (event,) = self.all(cls)
        return event

    def module(self, module: object) -> int:
        """Number of a module that has been seen."""
        number = self.session.recorder.modules.find(module)  # type: ignore[arg-type]
        assert number is not None
        return number

    def tensor(self, tensor: object) -> int:
        """Number of a tensor that has been seen."""
        number = self.session.recorder.tensors.find(tensor)  # type: ignore[arg-type]
        assert number is not None
        return number


@contextmanager
def watching(*probes: ModuleType) -> Iterator[Watched]:
    """Install these probes (none: all) for the body; no failure of ours may have been counted at the end."""
    sink = MemorySink()
    session = Session.open(sink)
    if probes:
        undos = [probe.install(session) for probe in probes]
        try:
            yield Watched(session, sink)
        finally:
            for call in session.at_end:
                call()
            for undo in reversed(undos):
                undo()
    else:
        session.install()
        try:
            yield Watched(session, sink)
        finally:
            session.uninstall()
    session.recorder.close()
    assert list(session.recorder.failures) == []


def here() -> int:
    """The line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno
