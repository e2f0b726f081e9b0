"""tools/selfcheck.py: forked runs that see what processes of their own see, and the page that counts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "selfcheck.py"

TRAINS = """
import random
import numpy, torch
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    net(torch.randn(4, 3)).pow(2).mean().backward()
    optimizer.step()
print(random.random(), numpy.random.rand(), torch.rand(1).item())
"""

def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}  # the collector is asked what is there at the end
    command = [sys.executable, str(TOOL), *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=590)


def test_generators_without_a_seed_are_compared_and_counted(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "a_trains.py").write_text(TRAINS)
    done = run(tmp_path, str(programs), "--forked", "--oracle", "2", "--json", "told.json")
    assert done.returncode == 0, done.stderr
    (trains,) = json.loads((tmp_path / "told.json").read_text())["rows"]
    assert trains["same"]
    assert not any(kind["unsteady"] for kind in trains["rows"]), "forked runs begin with the same generators"
    assert (trains["steps"], trains["by_the_command"]) == (8, False)
    assert trains["explained"] >= 6
    assert trains["facts"] > 0
    trains["rows"][1]["differ"], trains["same"], trains["by_the_command"] = ["stdout:line 1"], False, True
    head = json.loads((tmp_path / "told.json").read_text())
    (tmp_path / "told.json").write_text(json.dumps(head | {"rows": [*head["rows"], trains]}))
    assert run(tmp_path, "--page", "page.md", "told.json").returncode == 0
    page = (tmp_path / "page.md").read_text()
    assert "| `programs` | 2 | 1 | 1 |" in page
    assert "`a_trains.py` (`programs`): **differs**: stdout:line 1; forked runs differed" in page
