"""A training run killed at twenty random moments; `benchmarks/crash.py --kills 200` is the long form of this."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "crash.py"


@pytest.mark.parametrize(
    ("kills", "how"), [(20, ()), (10, ("--background",))], ids=["waited for", "in the background"]
)
def test_a_run_killed_at_any_moment_ends_with_the_same_bits(tmp_path: Path, kills: int, how: tuple[str, ...]) -> None:
    told = tmp_path / "told.json"
    done = subprocess.run(
        [sys.executable, PROGRAM, "--kills", str(kills), "--steps", "24", "--every", "3", "--json", told, *how],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(told.read_text())
    assert counts["kills"] == kills
    assert [counts[name] for name in ("lost", "half", "other_weights", "other_losses")] == [0, 0, 0, 0]
