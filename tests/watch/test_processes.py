"""Children of a watched process record nothing into it."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from alone import alone
from gradledger.audit.engine import audit
from gradledger.ledger._store import read
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
