"""Pages of docs/results, made by the programs under tools/ from the folder of a test's run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def made_page(tool: str, folder: Path, docs: Path) -> int:
    """Run the program with another folder of docs; its exit code."""
    words = [sys.executable, str(TOOLS / f"{tool}.py"), str(folder), "--docs", str(docs)]
    return subprocess.run(words, check=False, timeout=120).returncode
