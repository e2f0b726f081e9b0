"""Programs at the ends of the scale: killed, of several parts, of many parameters, of very large ones, very long."""

from __future__ import annotations

import gc
import json
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradledger.watch import Watch, watch


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=590)


def errors(running: Watch) -> list[str]:
    return [f.key for f in running.findings if f.severity == "error"]


# ------------------------------------------------------------------ a program that is killed

KILLED = """
import os, signal, time, torch
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
begun = steps = 0
while steps < 40 or time.monotonic() - begun < 2.5:
    begun = begun or time.monotonic()
    net(torch.randn(8, 3)).pow(2).mean().backward()  # line 7: nothing clears
    optimizer.step()
    steps += 1
print("killed", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_program_is_judged_on_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    done = run(tmp_path, "-m", "gradledger", "audit", "--run", "kept", "killed.py")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "killed\n"), done.stderr
    judged = run(
        tmp_path, "-m", "gradledger", "audit", "--replay", "kept", "--format", "json", "--output", "told.json"
    )
    assert judged.returncode == 3, judged.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert [(f["code"], f["line"]) for f in told["findings"]] == [("GL-G01", 8)]
    assert told["run"]["complete"] is False
    assert told["run"]["events"] >= 60


# ------------------------------------------------------------------ several programs in one process

PROGRAM = """
import torch
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
for _ in range(12):
    optimizer.zero_grad()
    loss = net(torch.ones(4, 3)).pow(2).mean()
    loss.backward()
    optimizer.step()
"""


def test_two_programs_in_one_process_are_kept_apart(tmp_path: Path) -> None:
    never, early, good = tmp_path / "never.py", tmp_path / "early.py", tmp_path / "good.py"
    good.write_text(PROGRAM)
    never.write_text(PROGRAM.replace("    optimizer.zero_grad()\n", ""))
    early.write_text(PROGRAM.replace("    optimizer.step()\n", "    optimizer.zero_grad()\n    optimizer.step()\n"))
    with watch() as running:
        for path in (good, never, good, early):
            runpy.run_path(str(path), run_name="__main__")
    found = {(f.code, Path(f.site.file).name) for f in running.findings if f.severity == "error"}
    assert found == {("G1", "never.py"), ("G2", "early.py")}
    with watch() as running:
        runpy.run_path(str(good), run_name="__main__")
    assert errors(running) == []


def test_a_watch_after_another_begins_anew_with_the_same_network() -> None:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def train(*, clear: bool) -> None:
        for _ in range(12):
            if clear:
                optimizer.zero_grad()
            net(torch.ones(4, 3)).pow(2).mean().backward()
            optimizer.step()

    with watch() as first:
        train(clear=False)
    with watch() as second:
        train(clear=True)
    with watch() as third:
        train(clear=False)
    assert errors(second) == []
    assert errors(first) == errors(third) == ["GL-G01"]


def test_an_error_in_an_inner_watch_leaves_the_outer_one_on() -> None:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step() -> None:
        net(torch.ones(4, 3)).pow(2).mean().backward()
        optimizer.step()

    def fail() -> None:
        step()
        raise ZeroDivisionError

    with watch() as outer:
        step()
        for _ in range(3):
            with pytest.raises(ZeroDivisionError), watch() as inner:
                fail()
        for _ in range(8):
            step()
    ended = outer.report().ended
    assert ended is not None
    assert (ended.steps, ended.exception) == (12, "")
    assert errors(outer) == errors(inner) == ["GL-G01"]


# ------------------------------------------------------------------ many parameters, and large ones


def test_one_of_five_hundred_parameters_is_never_cleared() -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(250)))
    parameters = list(net.parameters())
    assert len(parameters) == 500
    optimizer = torch.optim.SGD(parameters, lr=1e-6)
    with watch() as running:
        for _ in range(12):
            for parameter in parameters[:-1]:
                parameter.grad = None
            net(torch.ones(4, 4)).pow(2).mean().backward()
            optimizer.step()
    (finding,) = [f for f in running.findings if f.severity == "error"]
    assert finding.key in ("GL-G01", "GL-G03")
    assert "249.bias" in f"{finding.subject} {finding.message} {finding.evidence}"
    assert running.report().ended is not None
    assert running.world.tensors


LARGE = """
import resource, torch
from gradledger.watch import watch

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

net = torch.nn.Linear(10_000, 10_000, bias=False, device="meta").to_empty(device="cpu")
torch.nn.init.constant_(net.weight, 1e-4)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

def train(steps):
    for _ in range(steps):
        net(torch.ones(1, 10_000)).mean().backward()
        optimizer.step()

train(2)  # a second pass needs room for its gradients beside those that stand there, watched or not
optimizer.zero_grad()
before = peak()
with watch() as running:
    train(5)
print(sum(p.numel() for p in net.parameters()), before, peak() - before, [f.key for f in running.findings])
"""


def test_a_hundred_million_parameters_cost_no_copy(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    done = run(tmp_path, "large.py")
    assert done.returncode == 0, done.stderr
    count, before, more, keys = done.stdout.split(maxsplit=3)
    assert int(count) == 100_000_000
    assert float(before) > 3 * 400 * 1e6 / 2**20, "weights and gradients of two passes, in MiB"
    assert float(more) < 100, "a copy of either would be 381 MiB"
    assert keys.strip() == "['GL-G01']"


# ------------------------------------------------------------------ long

BEGIN, MORE = 2000, 2000


def test_memory_of_a_long_run_stays_as_it_is(tmp_path: Path) -> None:
    """The same over 100,000 iterations: `benchmarks/audit_long.py`."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    blocks = []
    with watch(store=tmp_path / "ledger.sqlite") as running:
        for number in range(BEGIN + MORE):
            if number == BEGIN:
                gc.collect()
                blocks.append(sys.getallocatedblocks())
            optimizer.zero_grad()
            net(torch.ones(4, 3)).pow(2).mean().backward()
            optimizer.step()
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert (blocks[1] - blocks[0]) / MORE < 3, f"objects that stay of each iteration, {blocks}"
    assert errors(running) == []
