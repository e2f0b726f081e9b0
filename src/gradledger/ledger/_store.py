"""A stored ledger: one SQLite file.  Reading it needs neither torch nor the program.

Tables: `meta` (key, value), `sites` (id, JSON), `events` (seq, iteration, kind, JSON body with sites as ids) and
`tallies` (how often iterations of one shape occurred, since a long run keeps only some of them).
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from gradledger.core.errors import LedgerError
from gradledger.core.events import EVENTS, SCHEMA, Event
from gradledger.core.site import Site
from gradledger.ledger._codec import decode, site_from_json
from gradledger.ledger._thin import Tally

FORMAT = "gradledger"

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE sites (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE events (seq INTEGER PRIMARY KEY, iteration INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE tallies (
    id INTEGER PRIMARY KEY, what TEXT NOT NULL, sample INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    seen INTEGER NOT NULL, kept INTEGER NOT NULL
);
"""


def create(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """A new ledger file, in write-ahead mode.  Raises LedgerError when the file exists or cannot be made."""
    where = os.fspath(path)
    if os.path.exists(where) and os.path.getsize(where) > 0:
        raise LedgerError(
            got="a file that exists already",
            wanted="the path of a new ledger",
            where=where,
            next_step="name another path, or remove the file",
        )
    try:
        connection = connect(where)
        connection.executescript(_TABLES)
        connection.execute("INSERT INTO meta VALUES ('format', ?), ('schema', ?)", (FORMAT, str(SCHEMA)))
        connection.commit()
    except sqlite3.Error as error:
        raise LedgerError(
            got=str(error),
            wanted="a path that can be written",
            where=where,
            next_step="check that its folder exists, may be written and has room",
        ) from error
    return connection


def connect(where: str) -> sqlite3.Connection:
    """A connection for writing.  What is committed survives the end of the process, also by SIGKILL."""
    connection = sqlite3.connect(where, check_same_thread=False, isolation_level="DEFERRED")
    connection.execute("PRAGMA journal_mode=WAL")
    # No fsync: a commit lies in the system's memory then, which outlives the process (though not a power cut).
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA cache_size=-256")  # KiB; rows are appended, hardly ever read: 2 MiB would only fill up
    return connection


def read(path: str | os.PathLike[str]) -> Iterator[Event]:
    """All events of a stored ledger, in order.

    Raises LedgerError for a file that is missing, no ledger, damaged, or of another schema.
    """
    with _Reader(path) as reader:
        yield from reader.events()


def read_tallies(path: str | os.PathLike[str]) -> list[Tally]:
    """How often each shape of iteration occurred and how many of them are among the events.  Raises as `read`."""
    with _Reader(path) as reader:
        return reader.tallies()


def read_meta(path: str | os.PathLike[str]) -> dict[str, str]:
    """`schema`, and `note` with what was left out.  Raises as `read`."""
    with _Reader(path) as reader:
        return reader.meta


class _Reader:
    """An open ledger whose schema has been checked."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.where = os.fspath(path)
        if not os.path.isfile(self.where):
            raise LedgerError(
                got="no file",
                wanted="a ledger written by a watched run",
                where=self.where,
                next_step="check the path",
            )
        self._connection = self._open()
        try:
            self.meta = dict(self._connection.execute("SELECT key, value FROM meta"))
        except sqlite3.Error as error:
            self._connection.close()
            raise self._no_ledger(str(error)) from error
        if self.meta.get("format") != FORMAT:
            self._connection.close()
            raise self._no_ledger("a database of something else")
        if self.meta.get("schema") != str(SCHEMA):
            self._connection.close()
            raise LedgerError(
                got=f"schema {self.meta.get('schema')}",
                wanted=f"schema {SCHEMA}",
                where=self.where,
                next_step="read it with the version of gradledger that wrote it, or run the program again",
            )

    def _open(self) -> sqlite3.Connection:
        writable = os.access(os.path.dirname(os.path.abspath(self.where)), os.W_OK)
        # A ledger in write-ahead mode wants to put an index beside the file: not possible in a read-only folder.
        mode = "mode=rw" if writable and os.access(self.where, os.W_OK) else "mode=ro&immutable=1"
        return sqlite3.connect(f"{Path(self.where).absolute().as_uri()}?{mode}", uri=True)

    def _no_ledger(self, got: str) -> LedgerError:
        return LedgerError(
            got=got,
            wanted="a ledger written by a watched run",
            where=self.where,
            next_step="check the path; a torn file cannot be repaired, run the program again",
        )

    def events(self) -> Iterator[Event]:
        try:
            sites: dict[int, Site] = {
                number: site_from_json(body) for number, body in self._connection.execute("SELECT id, body FROM sites")
            }
            rows = self._connection.execute("SELECT seq, iteration, kind, body FROM events ORDER BY seq")
            for seq, iteration, kind, body in rows:
                if kind not in EVENTS:
                    raise LedgerError(
                        got=f"an event of kind {kind!r}",
                        wanted=f"the {len(EVENTS)} kinds of schema {SCHEMA}",
                        where=f"{self.where}, event {seq}",
                        next_step="read it with the version of gradledger that wrote it",
                    )
                yield decode(kind, seq, iteration, body, sites)
        except sqlite3.Error as error:
            raise self._no_ledger(str(error)) from error

    def tallies(self) -> list[Tally]:
        try:
            rows = self._connection.execute("SELECT id, what, sample, first, last, seen, kept FROM tallies ORDER BY id")
            return [
                Tally(number, tuple((k, f, n) for k, f, n in json.loads(what)), *rest) for number, what, *rest in rows
            ]
        except sqlite3.Error as error:
            raise self._no_ledger(str(error)) from error

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


__all__ = ["Tally", "connect", "create", "read", "read_meta", "read_tallies"]
