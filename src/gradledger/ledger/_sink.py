"""Where events go: a list (tests, short runs) or a SQLite file that outlives the process."""

from __future__ import annotations

import _thread
import json
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable

from gradledger.core.errors import LedgerError
from gradledger.core.events import Event
from gradledger.ledger import _store
from gradledger.ledger._codec import SiteTable, encode
from gradledger.ledger._thin import CAP, Thinner

FLUSH_EVENTS = 512
FLUSH_SECONDS = 1.0


class MemorySink:
    """Keeps every event in `events`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = False

    def put(self, event: Event) -> None:
        """Keep one event."""
        self.events.append(event)

    def close(self) -> None:
        """No more events will come."""
        self.closed = True


class PlainSink:
    """Keeps nothing and leaves nothing out: hands each event to `heard` at once."""

    def __init__(self, heard: Callable[[Event], None]) -> None:
        self._heard = heard

    def put(self, event: Event) -> None:
        """Take one event."""
        self._heard(event)

    def settle(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """No more events will come."""

    @property
    def problem(self) -> str:
        """Nothing is written, so nothing can fail."""
        return ""

    def note(self) -> str:
        """Nothing was left out."""
        return ""


class ThinSink:
    """Keeps nothing: hands each event that a store would keep to `heard`."""

    def __init__(self, heard: Callable[[Event], None]) -> None:
        self._thinner = Thinner(CAP, heard)

    def put(self, event: Event) -> None:
        """Take one event."""
        self._thinner.put(event)
        if self._thinner.pending() >= FLUSH_EVENTS:
            self._thinner.take()

    def settle(self) -> None:
        """Hand on what is still held back."""
        self._thinner.finish()

    def close(self) -> None:
        """No more events will come."""
        self._thinner.finish()

    @property
    def problem(self) -> str:
        """Nothing is written, so nothing can fail."""
        return ""

    def note(self) -> str:
        """What was left out, in words; empty when nothing was."""
        return self._thinner.note()


class SqliteSink:
    """Writes events to a new SQLite file at `path`: at least every second and every 512 events.

    What was flushed survives SIGKILL.  Repeating iterations are thinned, so neither memory nor the file grows for ever
    (see `_thin`).  In a forked child the sink does nothing: the connection belongs to the parent, and is closed over
    the fork so that the child never holds it.  `heard` is called with each event that is kept, and goes on being
    called when the file can no longer be written.

    Raises LedgerError when the file cannot be made, or, once, from `put` when it can no longer be written.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, cap: int = CAP, heard: Callable[[Event], None] | None = None
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._connection: sqlite3.Connection | None = _store.create(self.path)
        self._thinner = Thinner(cap, heard)
        self._sites = SiteTable()
        self._stored: list[tuple[int, str]] = []  # sites taken from the table, not yet committed
        self._lock = threading.RLock()  # a garbage collection inside a flush may report one more fact
        self._ticking = False
        self._off = False
        self._broken: sqlite3.Error | None = None
        _sinks.add(self)

    # ------------------------------------------------------------------ the program's side

    def put(self, event: Event) -> None:
        """Take one event."""
        if self._off:
            if self._broken is not None:  # whoever listens still hears
                with self._lock:
                    self._thinner.put(event)
                    self._thinner.take()
            return
        with self._lock:
            self._thinner.put(event)
            if self._broken is not None:
                self._give_up()
            elif self._thinner.pending() >= FLUSH_EVENTS:
                self._flush()
            elif not self._ticking:
                # Not a threading.Thread: the program must not meet it among its own threads.
                self._ticking = True
                _thread.start_new_thread(_tick, (weakref.ref(self),))

    def settle(self) -> None:
        """Let who listens hear what is still held back."""
        with self._lock:
            self._thinner.finish()

    def flush(self) -> None:
        """Write everything that is not yet on disk."""
        with self._lock:
            if not self._off:
                self._flush()

    def close(self) -> None:
        """Write the rest and the note on what was left out; the file is then complete and stands alone."""
        with self._lock:
            if self._off:
                if self._broken is not None:
                    self._thinner.finish()
                return
            self._thinner.finish()
            note = self._thinner.note()
            self._flush({"note": note} if note else {})
            self._off = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def note(self) -> str:
        """What was left out, in words; empty when nothing was."""
        return self._thinner.note()

    @property
    def problem(self) -> str:
        """Why nothing is written any more; empty while all is well."""
        return str(self._broken) if self._broken is not None else ""

    # ------------------------------------------------------------------ writing

    def _flush(self, meta: dict[str, str] | None = None) -> None:
        if self._thinner.pending() == 0 and not meta:
            return
        batch = self._thinner.take()
        rows = []
        for e in batch.events:
            try:
                rows.append((e.seq, e.iteration, e.KIND, encode(e, self._sites)))
            except (TypeError, ValueError):  # a value that is no plain data: the rules heard it, the file goes without
                continue
        self._stored += self._sites.fresh()
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = _store.connect(self.path)
            with connection:
                connection.executemany("INSERT OR IGNORE INTO sites VALUES (?, ?)", self._stored)
                connection.executemany("DELETE FROM events WHERE seq BETWEEN ? AND ?", batch.deleted)
                connection.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?)", rows)
                connection.executemany(
                    "INSERT OR REPLACE INTO tallies VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [
                        (t.number, json.dumps(t.what), t.sample, t.first, t.last, t.seen, t.kept)
                        for t in batch.tallies
                        if t.seen > 1
                    ],
                )
                connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list((meta or {}).items()))
            self._stored = []
        except sqlite3.Error as error:
            self._broken = error

    def _give_up(self) -> None:
        error, self._off = self._broken, True
        raise LedgerError(
            got=str(error),
            wanted="room and permission to write",
            where=self.path,
            next_step="the facts up to here are kept; free some space, or name another path, and run again",
        ) from error

    # ------------------------------------------------------------------ fork

    def _before_fork(self) -> None:
        self._lock.acquire()
        if not self._off:
            self._flush()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _after_fork_in_parent(self) -> None:
        self._lock.release()

    def _after_fork_in_child(self) -> None:
        self._off = True
        self._lock = threading.RLock()


def _tick(ref: weakref.ref[SqliteSink]) -> None:
    """Flush once a second, until the sink is closed or gone."""
    while True:
        time.sleep(FLUSH_SECONDS)
        sink = ref()
        if sink is None or sink._off:
            return
        sink.flush()
        del sink


_sinks: weakref.WeakSet[SqliteSink] = weakref.WeakSet()
_forking: list[SqliteSink] = []


def _before_fork() -> None:
    _forking.extend(_sinks)
    for sink in _forking:
        sink._before_fork()


def _after_fork_in_parent() -> None:
    while _forking:
        _forking.pop()._after_fork_in_parent()


def _after_fork_in_child() -> None:
    while _forking:
        _forking.pop()._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
