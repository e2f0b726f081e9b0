"""What a run ran on: the machine, the versions, the revision of the source, and how much memory it needed at most."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gradledger import __version__
from gradledger.evidence.environment import cpu_model
from gradledger.evidence.environment import usable_cores as usable_cores

_HERE = Path(__file__).parent
# Distributions that decide what a run computes or plays; those that are not installed are left out of the record.
_ALWAYS = ("torch", "numpy", "safetensors")


def versions(others: Sequence[str] = ()) -> dict[str, str | None]:
    """Versions of the library, of python, and of the distributions that are installed; `revision` of the source."""
    found: dict[str, str | None] = {
        "gradledger": __version__,
        "revision": revision(),
        "python": platform.python_version(),
    }
    for name in (*_ALWAYS, *others):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    found["torch"] = torch.__version__  # with its build: +cpu, +cu128
    return found


def revision() -> str | None:
    """The commit of the source, with "+" where it was changed since; None outside of a checkout."""
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=_HERE,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()


def hardware(device: str) -> dict[str, Any]:
    """The machine: CPU, cores of it and cores that this process may use, bytes of memory, and the torch device."""
    of = torch.device(device)
    return {
        "system": platform.platform(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "device": device,
        "device_name": torch.cuda.get_device_name(of) if of.type == "cuda" else None,
        "torch_threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
    }


def forget_peak() -> None:
    """Begin a new measurement of `peak_bytes`; without effect where the system has no way to do so."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        pass


def peak_bytes() -> int:
    """The most memory this process has had resident, since `forget_peak` where the system can say."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_peak_bytes(device: str) -> int | None:
    """The most that torch allocated on the device; None on a CPU, where torch does not count."""
    return torch.cuda.max_memory_allocated(device) if torch.device(device).type == "cuda" else None
