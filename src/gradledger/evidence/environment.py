"""What a result was made with: interpreter, packages, hardware, threads, the code and what was changed in it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradledger._version import __version__
from gradledger.core.files import file_digest
from gradledger.core.records import now

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OMP_WAIT_POLICY")
DETERMINISM = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES")
LONGEST = 1_000_000  # characters of a diff that are kept; its hash is of the whole


def environment(
    *, code: Path | None = None, files: Sequence[Path] = (), seeds: Mapping[str, int] | None = None, **more: Any
) -> dict[str, Any]:
    """The record of this process and machine, ready for JSON.

    Args:
        code: a folder of the code that is run; default: the current one. Its git revision and diff are recorded.
        files: hashed one by one: data, splits, the program.
        seeds: random seed -> by the name of who owns it, such as {"weights": 0, "data order": 1}.
        more: what only the caller knows: torch's threads, determinism flags, unsupported operations met.
    """
    return {
        "at": now(),
        "gradledger": __version__,
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": Path(sys.executable).name,
            "flags": {name: getattr(sys.flags, name) for name in ("optimize", "hash_randomization", "utf8_mode")},
        },
        "packages": packages(),
        "hardware": hardware(),
        "threads": {"usable_cores": usable_cores(), **{name: os.environ.get(name) for name in THREADS}},
        "determinism": {name: os.environ.get(name) for name in DETERMINISM},
        "code": revision(code or Path.cwd()),
        "files": {str(path): _digest(path) for path in files},
        "seeds": dict(seeds or {}),
        **more,
    }


def packages() -> dict[str, str]:
    """Name -> version of every installed distribution, by name: what pip resolved, not what was asked for."""
    found = {}
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"]
        if name:
            found[name.lower().replace("_", "-")] = one.version
    return dict(sorted(found.items()))


def hardware() -> dict[str, Any]:
    """System, CPU, cores and bytes of memory."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        memory = None
    return {"system": platform.platform(), "cpu": cpu_model(), "cores": os.cpu_count(), "memory_bytes": memory}


def revision(folder: Path) -> dict[str, Any]:
    """The commit that the code is at, the diff against it, and files that git does not know, by hash.

    Everything is None outside of a checkout, or where git is absent.
    """
    root = _git(folder, "rev-parse", "--show-toplevel")
    commit = _git(folder, "rev-parse", "HEAD")
    if root is None or commit is None:
        return {"commit": None, "changed": None, "diff": None, "diff_sha256": None, "unknown_files": None}
    diff = _git(folder, "diff", "--no-ext-diff", "HEAD") or ""
    others = (_git(folder, "ls-files", "--others", "--exclude-standard", "--full-name", ":/") or "").splitlines()
    top = Path(root.strip())
    return {
        "commit": commit.strip(),
        "changed": bool(diff.strip()) or bool(others),
        "diff": diff[:LONGEST],
        "diff_sha256": hashlib.sha256(diff.encode("utf-8", errors="surrogateescape")).hexdigest(),
        "unknown_files": {name: _digest(top / name) for name in others[:200]},
    }


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", errors="replace")


def _digest(path: Path) -> str | None:
    try:
        return file_digest(path)
    except OSError:
        return None


def cpu_model() -> str:
    """The CPU's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may use; a container or `taskset` may have left it fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
