"""Watching loads no module of a third party that the program itself does not load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradledger.core.events import FileTouched
from gradledger.ledger._store import read

NAMES = """
import sysconfig
ours = {"__main__", "gradledger", sysconfig._get_sysconfigdata_name()}
names = {name.partition(".")[0] for name in sys.modules}
print(*sorted(names - set(sys.stdlib_module_names) - ours))
"""
LOADS = "import sys, torch\n" + NAMES
# The library imports torch in its first lines, and is then half loaded when the watching begins.
TRAINS = """
import importlib.util, sys
assert importlib.util.find_spec("torch")
from safetensors.torch import load_file, save_file
import torch
torch.manual_seed(0)
rows = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for _ in range(2):
    for x, y in torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    schedule.step()
save_file(net.state_dict(), "net.safetensors")
net.load_state_dict(load_file("net.safetensors"))
""" + NAMES


@pytest.mark.parametrize(("program", "third"), [(LOADS, "torch"), (TRAINS, "safetensors")], ids=["loads", "trains"])
def test_the_program_sees_the_modules_that_it_loads(program: str, third: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)

    def printed(*words: str) -> str:
        command = [sys.executable, *words, "program.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    alone = printed()
    audit = ("-m", "gradledger", "audit", "--fail-on", "never", "--run", "run", "--format", "json", "--output", "r")
    assert printed(*audit, *(["--oracle"] if program is TRAINS else [])) == alone
    assert third in alone.split()
    told = json.loads((tmp_path / "r").read_text())["run"]
    assert told["failures"] == []
    assert told["events"] > 0
    if program is TRAINS:
        assert told["steps"] == 16
        stored = read(tmp_path / "run" / "ledger.sqlite")
        assert {event.method for event in stored if isinstance(event, FileTouched)} == {"save", "load"}
