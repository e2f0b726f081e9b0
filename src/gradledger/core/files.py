"""Files as wholes.  Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def usual_mode(path: Path) -> Iterator[None]:
    """Around a foreign writer of `path`: the file gets the mode that `open` would give it (what the umask leaves, or
    the one that it has). safetensors lets nobody but the owner read what it writes.
    """
    new = not path.exists()
    path.touch()
    mode = path.stat().st_mode & 0o7777
    try:
        yield
    except BaseException:
        if new and not path.stat().st_size:
            path.unlink()
        raise
    path.chmod(mode)


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
