"""Where stored runs lie: `$GRADLEDGER_HOME/runs`, else the user's cache folder; never the current folder.

A run is a folder `<time>-<program>-<pid>` that holds `ledger.sqlite`.  The last fifty are kept.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from gradledger.core.errors import LedgerError
from gradledger.ledger import _gather

KEPT = 50
LEDGER = "ledger.sqlite"


def home() -> Path:
    """The folder of all runs (not made)."""
    given = os.environ.get("GRADLEDGER_HOME")
    if given:
        return Path(given).expanduser().absolute() / "runs"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "gradledger" / "runs"
    cache = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or str(Path.home() / ".cache")
    return Path(cache) / "gradledger" / "runs"


def new_run(program: str, folder: Path | None = None) -> Path:
    """Make the folder of a new run and return the path of its ledger; `folder` instead of one below `home()`.

    Where the cache cannot be written, a temporary folder is used.  Older runs beyond the last fifty are removed.
    Processes that one launcher has started (torchrun) share a folder: rank 0 keeps the ledger that is reported.
    Raises OSError when no folder can be made at all.
    """
    place = _gather.of_environment()
    ledger = LEDGER if place is None or place[0] == 0 else _gather.ledger_of(Path(), place[0]).name
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        # the other ranks begin at the same time: each clears its own place
        patterns = ("rank*.sqlite", "process*.sqlite", f"process*{_gather.UNWATCHED}")
        of_others = [p.name for pattern in patterns for p in folder.glob(pattern)]
        stale = [LEDGER, *of_others] if place is None else [ledger]
        for old in (name + end for name in stale for end in ("", "-wal", "-shm")):
            (folder / old).unlink(missing_ok=True)
        return (folder / ledger).absolute()
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(program).name.removesuffix(".py"))[:40] or "program"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{os.getpid()}"
    if place is not None:
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        name = f"{time.strftime('%Y%m%d', _began(os.getppid()))}-ranks-{stem}-{os.getppid()}-{again}"
    try:
        root = home()
        (root / name).mkdir(parents=True, exist_ok=True)
        _prune(root, keep=root / name)
        (root / name / ledger).unlink(missing_ok=True)
        return root / name / ledger
    except (OSError, RuntimeError):  # RuntimeError: no home folder can be determined
        return Path(tempfile.mkdtemp(prefix="gradledger-")) / ledger


def _began(process: int) -> time.struct_time:
    """When a process began, so that all its children give one answer; the epoch where that cannot be known."""
    try:
        return time.localtime(os.stat(f"/proc/{process}").st_ctime)
    except OSError:
        return time.localtime(0)


def find_run(word: str, where: str = "--replay") -> Path:
    """The ledger that `word` names: a ledger file, a run folder, the name of a kept run, or "last".

    `where`: what was being asked, for the error.  Raises LedgerError when there is none.
    """
    root = home()
    for path in (Path(word), root / word):
        if path.is_file():
            return path
        if (path / LEDGER).is_file():
            return path / LEDGER
    runs = _runs(root)
    if word == "last" and runs:
        return runs[-1] / LEDGER
    raise LedgerError(
        got=repr(word),
        wanted=f"a run folder, a {LEDGER}, the name of a run below {root}, or 'last'",
        where=where,
        next_step=f"kept runs: {', '.join(r.name for r in runs[-3:])}" if runs else "audit a program first",
    )


def _runs(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    found = [p for p in root.iterdir() if (p / LEDGER).is_file()]
    return sorted(found, key=lambda p: (p / LEDGER).stat().st_mtime)


def _prune(root: Path, keep: Path) -> None:
    folders = sorted((p for p in root.iterdir() if p.is_dir() and p != keep), key=lambda p: p.name)
    for folder in folders[: max(len(folders) - KEPT + 1, 0)]:
        shutil.rmtree(folder, ignore_errors=True)
