"""Several processes that train one model, each with a ledger of its own, and one report.

Every rank writes `rank<k>.sqlite` beside the ledger of the process that reports: rank 0 of `torchrun`, or the process
that started the ranks.  At its end that process copies what the others found, and the facts that only mean something
side by side, into its own ledger, which then stands alone.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from gradledger.core.errors import LedgerError
from gradledger.core.events import Event, RankBatch, RankFinding, RankLoss, RankParameters, RankRun, SamplerPass
from gradledger.ledger._store import read

WAIT = 10.0  # seconds for ranks that end later
STARTED = 1.0  # seconds for ranks that this process started: it has usually waited for them
PROCESSES = 32  # that train by themselves; of more, it is said how many there were
UNWATCHED = ".unwatched"
COMMON = (RankBatch, RankFinding, RankLoss, RankParameters, RankRun, SamplerPass)


def of_environment() -> tuple[int, int] | None:
    """(rank, ranks on this machine) when a launcher such as torchrun has started this process among others."""
    if "MASTER_ADDR" not in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    try:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        near = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    except (KeyError, ValueError):
        return None
    return (rank, min(near, world)) if world > 1 and 0 <= rank < world else None


def ledger_of(folder: Path, rank: int) -> Path:
    """Where a rank keeps its facts."""
    return folder / f"rank{rank}.sqlite"


def process_ledger(folder: Path, process: int) -> Path:
    """Where a process that trains by itself keeps its facts."""
    return folder / f"process{process}.sqlite"


def take_place(folder: Path, process: int) -> Path | None:
    """The ledger of one more process that trains by itself; None, and a mark, when there are enough of them."""
    if len(list(folder.glob("process*.sqlite"))) < PROCESSES:
        return process_ledger(folder, process)
    (folder / f"process{process}{UNWATCHED}").touch()
    return None


def processes(folder: Path) -> list[tuple[Path, bool]]:
    """Ledgers of the processes that the program started and that trained, in the order of their first fact; whether
    each is complete.  Waits a moment for those that are alive: a program usually waits for them itself."""
    until = time.monotonic() + STARTED
    found = []
    for path in sorted(folder.glob("process*.sqlite"), key=lambda p: (p.stat().st_ctime_ns, p.name)):
        while not (ended := _ended(path)) and _lives(int(path.stem.removeprefix("process"))):
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        found.append((path, ended))
    return found


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (OSError, OverflowError):
        return False
    return True


def collect(folder: Path, own: Path, ranks: int | None) -> Iterator[Event]:
    """What the other ranks have left in `folder`.  `ranks`: how many there must be (None: those that are there).

    Waits a while for those that have not ended; of a rank that was killed, what it wrote so far is taken.
    """
    until = time.monotonic() + (WAIT if ranks else STARTED)
    if ranks:
        expected = [ledger_of(folder, rank) for rank in range(1, ranks)]
    else:
        expected = sorted(folder.glob("rank*.sqlite"))
    for path in expected:
        if path == own:
            continue
        while not _ended(path) and time.monotonic() < until:
            time.sleep(0.02)
        try:
            yield from (event for event in read(path) if isinstance(event, COMMON))
        except LedgerError:
            continue


def _ended(path: Path) -> bool:
    """Whether a ledger is complete."""
    if not path.is_file():
        return False
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)
    except sqlite3.Error:
        return False
    try:
        return bool(connection.execute("SELECT 1 FROM events WHERE kind = 'run_ended' LIMIT 1").fetchone())
    except sqlite3.Error:
        return False
    finally:
        connection.close()
