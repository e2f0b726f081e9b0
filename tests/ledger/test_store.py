"""Stored ledgers: what goes in comes out, without torch, and wrong files are told apart."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from gradledger.core.errors import LedgerError
from gradledger.core.events import EVENTS, Event, ModeSet
from gradledger.core.site import Frame, Site
from gradledger.ledger._sink import SqliteSink
from gradledger.ledger._store import read, read_meta, read_tallies

SITE = Site("train.py", 7, "fit", 3, True, (Frame("train.py", 30, "main"), Frame("run.py", 2, "<module>")))


def example(hint: Any, depth: int = 0) -> Any:
    """A value of a field type of the vocabulary."""
    if hint is Site:
        return SITE
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{f.name: example(hints[f.name], depth + 1) for f in fields(hint)})
    if get_origin(hint) is tuple:
        args = get_args(hint)
        return tuple(example(a, depth) for a in (args[:1] * 2 if args[-1] is Ellipsis else args))
    inner = [a for a in get_args(hint) if a is not type(None)]
    if inner:
        return example(inner[0], depth)
    return {int: 3, float: 0.5, str: "word", bool: True}[hint]


@pytest.mark.parametrize("kind", sorted(EVENTS))
def test_every_event_comes_back_as_it_was(kind: str, tmp_path: Path) -> None:
    cls = EVENTS[kind]
    hints = get_type_hints(cls)
    values = {f.name: example(hints[f.name]) for f in fields(cls) if f.name not in ("seq", "iteration")}
    full = cls(seq=1, iteration=0, **values)
    optional = {
        f.name: None
        for f in fields(cls)
        if type(None) in get_args(hints[f.name]) and f.name not in ("seq", "iteration")
    }
    sparse = cls(seq=2, iteration=0, **{**values, **optional})
    sink = SqliteSink(tmp_path / "run.db")
    sink.put(full)
    sink.put(sparse)
    sink.close()
    assert list(read(tmp_path / "run.db")) == [full, sparse]


def small(path: Path) -> Path:
    sink = SqliteSink(path)
    sink.put(ModeSet(seq=1, site=SITE, module=1, training=True, changed=2))
    sink.close()
    return path


def test_a_closed_ledger_is_one_file(tmp_path: Path) -> None:
    small(tmp_path / "run.db")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.db"]


def test_reading_loads_no_torch(tmp_path: Path) -> None:
    small(tmp_path / "run.db")
    code = (
        "import sys; from gradledger.ledger._store import read; "
        "print(len(list(read('run.db'))), 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1", "False", "False"], done.stderr


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"\[ledger\].*none\.db: got no file, wanted a ledger"):
        list(read(tmp_path / "none.db"))


def test_a_text_file_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here\n" * 100)
    with pytest.raises(LedgerError, match="got file is not a database"):
        list(read(tmp_path / "notes.txt"))


def test_another_database_is_no_ledger(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE meta (key TEXT, value TEXT)")
    with pytest.raises(LedgerError, match="a database of something else"):
        list(read(tmp_path / "other.db"))


@pytest.mark.parametrize("reader", [lambda p: list(read(p)), read_tallies, read_meta])
def test_another_schema_is_refused(tmp_path: Path, reader: Any) -> None:
    path = small(tmp_path / "run.db")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = '999' WHERE key = 'schema'")
    with pytest.raises(LedgerError, match=r"got schema 999, wanted schema 1.*version of gradledger that wrote it"):
        reader(path)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    path = small(tmp_path / "run.db")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE events SET kind = 'levitated'")
    with pytest.raises(LedgerError, match="event of kind 'levitated'"):
        list(read(path))


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    path = small(tmp_path / "run.db")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(LedgerError, match="run the program again"):
        list(read(path))


def test_a_ledger_in_a_read_only_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(tmp_path / "run.db")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere, so chmod would show nothing
    assert len(list(read(path))) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.db"]


def test_fields_added_later_take_their_defaults(tmp_path: Path) -> None:
    path = small(tmp_path / "run.db")
    with sqlite3.connect(path) as db:
        (body,) = db.execute("SELECT body FROM events").fetchone()
        db.execute("UPDATE events SET body = ?", (body.rsplit(",", 1)[0] + "]",))
    cls: type[Event] = ModeSet
    names = [f.name for f in fields(cls)]
    assert names[-1] == "changed"  # has no default: then the ledger is damaged, and says so by its type
    with pytest.raises(TypeError, match="changed"):
        list(read(path))
