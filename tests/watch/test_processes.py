"""Children of a watched process record nothing into it; those of `multiprocessing` are watched by themselves."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from alone import alone
from gradledger.audit.engine import audit
from gradledger.ledger import _gather
from gradledger.ledger._store import read
from gradledger.ledger.probes import processes
from gradledger.watch import watch


def train(*, clear: bool) -> None:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(8):
        if clear:
            optimizer.zero_grad()
        net(torch.ones(4, 3)).pow(2).mean().backward()
        optimizer.step()


def faulty_child() -> None:
    torch.set_num_threads(1)
    train(clear=False)


@alone
def test_a_forked_child_is_not_watched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with watch(store=path) as running:
        pid = os.fork()
        if pid == 0:
            faulty_child()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        train(clear=True)
    assert running.findings == ()
    ended = running.report().ended
    assert ended is not None
    assert ended.steps == 8
    assert audit(read(path)).findings == ()


@alone
def test_a_child_may_watch_itself() -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with watch() as running:
        pid = os.fork()
        if pid == 0:
            with watch() as own:
                faulty_child()
            sender.send([f.key for f in own.findings])
            os._exit(0)
        os.waitpid(pid, 0)
        assert receiver.poll(10)
        assert receiver.recv() == ["GL-G01"]
        train(clear=True)
    assert running.findings == ()


@alone
def test_a_loader_with_workers() -> None:
    data = TensorDataset(torch.randn(32, 3), torch.randn(32, 1))
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with watch() as running:
        for _ in range(2):
            for x, y in DataLoader(data, batch_size=8, shuffle=True, num_workers=2, multiprocessing_context="fork"):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(net(x), y).backward()
                optimizer.step()
    assert running.findings == ()
    ended = running.report().ended
    assert ended is not None
    assert (ended.steps, ended.failures) == (8, ())


SCRIPT = """
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import torch


def train(seed):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(8):
        net(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()
    return round(net.weight.sum().item(), 6)


if __name__ == "__main__":
    pool = multiprocessing.get_context("fork").Pool(1)
    print(pool.map(train, [1]), pool.map(len, ["no training"]))
    pool.close()
    pool.join()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        print(list(executor.map(train, [2])))
    print(subprocess.run([sys.executable, "other.py"]).returncode)
"""


def test_workers_of_pools_and_executors_are_watched(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "other.py").write_text("print('a program of its own')\n")
    environment = {**os.environ, "GRADLEDGER_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    options = ("-m", "gradledger", "audit", "--format", "json", "--output", "report.json", "--run", "ledgers")
    bare, done = (
        subprocess.run(
            [sys.executable, *words, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        for words in ((), (*options, "--fail-on", "never"))
    )
    assert (done.returncode, done.stdout) == (bare.returncode, bare.stdout) == (0, bare.stdout), done.stderr[-3000:]
    report = json.loads((tmp_path / "report.json").read_text())
    (finding,) = report["findings"]
    where = SCRIPT.splitlines().index("        net(torch.randn(4, 3)).pow(2).mean().backward()") + 1
    assert (finding["code"], finding["line"], finding["evidence"]) == ("GL-G01", where, {"process": 1})
    assert len(list((tmp_path / "ledgers").glob("process*.sqlite"))) == 2
    ran = [(o["process"], o["rank"], o["steps"], o["backwards"], o["complete"]) for o in report["run"]["others"]]
    assert ran == [(1, None, 8, 8, True), (2, None, 8, 8, True)]
    (said,) = report["run"]["not_watched"]
    assert said.startswith("processes: 1 Python that the program started was not watched (subprocess, train.py:")
    assert "-m gradledger audit before its script" in said


@pytest.mark.parametrize(
    ("command", "counts"),
    [
        ([sys.executable, "train.py", "--lr", "1"], True),
        (["python3", "-u", "-W", "error", "-m", "pack.train"], True),
        ("python train.py", True),
        ([sys.executable, "-c", "print(1)"], False),
        ([sys.executable, "-m", "gradledger", "audit", "train.py"], False),
        ([sys.executable, "/x/site-packages/torch/_inductor/compile_worker/__main__.py"], False),
        (["nvidia-smi"], False),
        ([], False),
    ],
)
def test_which_commands_are_programs_of_their_own(command: Any, counts: bool) -> None:
    assert processes._is_program(command) is counts


def test_no_more_ledgers_than_there_are_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gather, "PROCESSES", 1)
    first = _gather.take_place(tmp_path, 11)
    assert first is not None
    first.touch()
    assert _gather.take_place(tmp_path, 12) is None
    with watch(store=tmp_path / "ledger.sqlite") as running:
        train(clear=True)
    ended = running.report().ended
    assert ended is not None
    assert any("1 more that the program started were not watched" in text for text in ended.not_watched)
