"""The file that tensors are moved out to.

It has no name and is open only here: it is gone with the walk, and with the process however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gradledger.core.errors import SweepError

_PIECE = 1 << 26  # bytes of one read or write: between two of them an interrupt is heard


class OffloadWarning(UserWarning):
    """Moving out was asked for, and does not free what it is meant to free."""


class Scratch:
    """One private file without a name, in the folder for temporary files (TMPDIR); room that was read is used again."""

    def __init__(self) -> None:
        if not hasattr(os, "preadv"):
            raise SweepError(
                got="a system whose files cannot be read at a place (no preadv)",
                wanted="Linux or macOS",
                where="offload to disk",
                next_step="plan with place='host', or without offload",
            )
        self.folder = "the folder for temporary files"
        try:
            self.folder = tempfile.gettempdir()
            file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115  closed by the finalizer
        except OSError as error:
            raise SweepError(
                got=f"{error.strerror or error} in {self.folder}, where a file for what moves out is to be made",
                wanted="a folder that can be written to",
                where="offload to disk",
                next_step="make it writable, point TMPDIR at another disk, or plan without @disk",
            ) from error
        _warn_of_memory(self.folder)
        self._file = file.fileno()
        self._end = 0
        self._free: list[tuple[int, int]] = []  # (bytes, where)
        self.close = weakref.finalize(self, file.close)

    def write(self, pieces: Iterable[memoryview], size: int) -> int:
        """Write pieces of `size` bytes in all, one after another; returns where they begin."""
        fitting = [hole for hole in self._free if hole[0] >= size]
        if fitting:
            hole = min(fitting)
            self._free.remove(hole)
            at = hole[1]
            if hole[0] > size:
                self._free.append((hole[0] - size, at + size))
        else:
            at, self._end = self._end, self._end + size
        done = 0
        try:
            for done in self._moved(write_at, pieces, at, "nothing was written"):  # noqa: B007
                pass
        except OSError as error:
            raise self._failed(error, f"moved out (of {size})", size - done) from error
        return at

    def read(self, pieces: Iterable[memoryview], at: int) -> None:
        """Fill the pieces from where `write` has put them."""
        done = 0
        try:
            for done in self._moved(read_at, pieces, at, "the file ends too early"):  # noqa: B007
                pass
        except OSError as error:
            raise self._failed(error, "read back", done) from error

    def _moved(
        self, move: Callable[[int, memoryview, int], int], pieces: Iterable[memoryview], at: int, nothing: str
    ) -> Iterator[int]:
        """Move the pieces one after another from `at` on, by as much as one call moves; yields the bytes so far."""
        done = 0
        for piece in pieces:
            for start in range(0, len(piece), _PIECE):
                part = piece[start : start + _PIECE]
                while part:
                    count = move(self._file, part, at + done)
                    if count <= 0:
                        raise OSError(errno.EIO, nothing)
                    part, done = part[count:], done + count
                    yield done

    def give(self, at: int, size: int) -> None:
        """What was written there is not needed any more."""
        self._free.append((size, at))
        joined: list[tuple[int, int]] = []
        for length, start in sorted(self._free, key=lambda hole: hole[1]):
            if joined and joined[-1][1] + joined[-1][0] == start:
                joined[-1] = (joined[-1][0] + length, joined[-1][1])
            else:
                joined.append((length, start))
        if joined[-1][1] + joined[-1][0] == self._end:
            self._end = joined.pop()[1]
        self._free = joined

    def _failed(self, error: OSError, what: str, size: int) -> SweepError:
        room = ""
        with contextlib.suppress(OSError):
            room = f", {shutil.disk_usage(self.folder).free} free there"
        reading = what == "read back"
        return SweepError(
            got=f"{error.strerror or error}: {size} bytes could not be {what}"
            if not reading
            else f"{error.strerror or error} after {size} bytes were {what}",
            wanted="room for what the plan moves out" if not reading else "the bytes that were moved out",
            where=f"offload to a file in {self.folder}{room}",
            next_step="free some space, point TMPDIR at another disk, or plan without @disk"
            if not reading
            else "look after that disk, point TMPDIR at another, or plan without @disk",
        )


def write_at(file: int, part: memoryview, at: int) -> int:
    """One write; returns how many bytes went."""
    return os.pwrite(file, part, at)


def read_at(file: int, part: memoryview, at: int) -> int:
    """One read; returns how many bytes came."""
    return os.preadv(file, [part], at)


@functools.cache
def _warn_of_memory(folder: str) -> None:
    if _in_memory(folder):
        warnings.warn(
            OffloadWarning(
                f"gradledger sweep: {folder} is a file system in memory (tmpfs), so what moves there frees nothing; "
                "point TMPDIR at a disk"
            ),
            stacklevel=2,
        )


def _in_memory(folder: str) -> bool:
    """Whether a folder lies in memory, where the system tells."""
    try:
        rows = [row.split(" ") for row in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return False
    real = os.path.realpath(folder)
    best, kind = "", ""
    for row in rows:
        point = row[4].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, row[row.index("-") + 1]
    return kind in ("tmpfs", "ramfs")
