"""An environment of its own for each tool that stands beside the audit: none decides what another gets."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import venv
from pathlib import Path

TORCH = importlib.metadata.version("torch").partition("+")[0]  # the one that gradledger is measured with
PROGRAMS = (f"torch=={TORCH}", "numpy", "gymnasium", "tensordict")  # what the programs of the case sets import
# PyPI name -> what is installed; those that run the program get the same torch as we have
WANTED: dict[str, tuple[str, ...]] = {
    "torch-preflight": ("torch-preflight==0.5.0",),
    "torchfix": ("torchfix==0.7.0",),
    "torch-audit": ("torch-audit==0.3.0", *PROGRAMS),
    "guardtower": ("guardtower==0.1.0", *PROGRAMS),
    "traincheck": ("traincheck==0.2.0", *PROGRAMS),
}


def interpreter(cache: Path, tool: str) -> Path:
    """Python of the tool's environment under `cache`, which is made where it is not there or was asked otherwise.

    Raises:
        SystemExit: pip could not install it; the message ends with pip's own words.
    """
    folder = cache / "environments" / tool
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    stamp = folder / "installed.json"
    wanted = json.dumps([sys.version.split()[0], *WANTED[tool]])
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"  {tool:16} installing {' '.join(WANTED[tool])} into {folder}", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *WANTED[tool]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{tool}: pip could not install {' '.join(WANTED[tool])} (exit code {done.returncode}). Where torch comes "
            f"from an index of your own, name it in PIP_EXTRA_INDEX_URL; or leave {tool} out of --peers.\n"
            f"{done.stderr.strip()[-1500:]}"
        )
    stamp.write_text(wanted, encoding="utf-8")
    return python


def versions(python: Path | str, *names: str) -> dict[str, str]:
    """Versions of the distributions that an interpreter has."""
    code = (
        "import importlib.metadata as m, json, sys\ngot = {}\nfor n in sys.argv[1:]:\n"
        "    try: got[n] = m.version(n)\n    except m.PackageNotFoundError: pass\nprint(json.dumps(got))"
    )
    done = subprocess.run([str(python), "-c", code, *names], capture_output=True, text=True, check=True)
    got: dict[str, str] = json.loads(done.stdout)
    return got
