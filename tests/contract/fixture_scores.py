"""Every rule's own programs, run once a test session under the audit by `tools/fastscore.py`.

Runs only the programs of the rules that the selected tests ask about.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "fastscore.py"


@dataclass(frozen=True)
class Program:
    """A fixture program and what the audit said: `expected` is {code: lines}, empty for a correct program;
    `replayed`: how judging the stored run differs."""

    file: str
    expected: dict[str, list[int]]
    exit_code: int
    output: str
    report: dict[str, Any] | None
    replayed: str

    def found(self, *severities: str) -> list[dict[str, Any]]:
        """Findings of these severities."""
        assert self.report is not None, f"{self.file} gave no report:\n{self.output}"
        return [f for f in self.report["findings"] if f["severity"] in severities]


def run(codes: list[str], out: Path) -> dict[str, list[Program]]:
    """Run the programs of these rules; returns them by printed code of their rule."""
    command = [
        sys.executable,
        str(TOOL),
        "--fixtures",
        "--only",
        ",".join(codes),
        "--json",
        str(out),
        "--timeout",
        "120",
    ]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=1800, check=False
    )
    assert out.is_file(), f"{' '.join(command)} wrote nothing:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    data = json.loads(out.read_text(encoding="utf-8"))
    by_rule: dict[str, list[Program]] = {}
    for item in data["items"]:
        result = data["results"][item["file"]]
        expected = {bug["code"]: bug["line"] for bug in item["bugs"]}
        program = Program(
            item["file"], expected, result["exit_code"], result["output"], result["report"], result["replayed"]
        )
        by_rule.setdefault(item["rule"], []).append(program)
    return by_rule
