"""Saves that nobody waits for: the state of the moment they were asked at, whole or not there, nothing unsaid."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradledger.core.checkpoints import candidates, complaint
from gradledger.train import BackgroundSaves, CheckpointError, ResumeError, RunState, checkpoint
from gradledger.train.checkpoint import load, save


class Trained:
    """A net, its optimizer and their state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))
        self.net.to(memory_format=torch.channels_last)
        self.x = torch.randn(5, 3, 6, 6)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 0.1)
        self.state = RunState(net=self.net, optimizer=self.optimizer)

    def step(self) -> None:
        """One step."""
        self.optimizer.zero_grad()
        self.net(self.x).pow(2).mean().backward()
        self.optimizer.step()
        self.state.counters["optimizer_step"] += 1


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a checkpoint."""
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writing waits until this is set."""
    go, write = threading.Event(), checkpoint._write

    def slow(*given: Any) -> Any:
        assert go.wait(60)
        return write(*given)

    monkeypatch.setattr(checkpoint, "_write", slow)
    return go


def test_the_files_are_those_of_a_save_that_was_waited_for(tmp_path: Path, held: threading.Event) -> None:
    """Weights, moments, counters, random streams and facts change while the thread has not written a byte."""
    run = Trained()
    for round in range(3):  # from the second on, into the copies of the one before
        run.step()
        held.set()
        now = run.state.save(tmp_path / "now", round, facts={"losses": [1.0]}, keep=9)
        held.clear()
        facts = {"losses": [1.0]}
        then = run.state.save(tmp_path / "then", round, facts=facts, keep=9, wait=False)
        facts["losses"].append(2.0)
        run.step()
        torch.randn(3)
        assert complaint(then, deep=False) is not None
        held.set()
        assert run.state.wait() == then
        assert run.state.wait() is None
        mine, theirs = contents(then), contents(now)
        parent = [text.pop("manifest.json") for text in (mine, theirs)]
        assert mine == theirs
        assert len(mine) == 4
        assert (b'"parent": null' in parent[0]) == (round == 0)


def test_one_at_a_time_and_the_last_stays(tmp_path: Path) -> None:
    run = Trained()
    for step in range(6):
        run.step()
        run.state.save(tmp_path, step, wait=False)
    run.state.save(tmp_path, 6)
    assert [path.name[-1] for path in candidates(tmp_path)] == ["6", "5"]
    run.state.save(tmp_path, 7, wait=False)
    assert run.state.load(tmp_path).step == 7
    run.step()
    expected = [p.detach().clone() for p in run.net.parameters()]
    run.state.save(tmp_path, 8, wait=False)
    run.step()
    run.state.load_weights(tmp_path)
    assert all(torch.equal(p, e) for p, e in zip(run.net.parameters(), expected, strict=True))


@pytest.mark.parametrize("ask", ["wait", "save", "save and wait", "load", "load_weights"])
def test_what_went_wrong_is_raised_once_by_whatever_comes_next(tmp_path: Path, ask: str) -> None:
    run, folder = Trained(), tmp_path / "run"
    run.state.save(folder, 1)
    (folder / "step-000000000002.tmp").write_text("a file where the folder is to be")
    asks: dict[str, Callable[[], object]] = {
        "wait": run.state.wait,
        "save": lambda: run.state.save(folder, 3, wait=False),
        "save and wait": lambda: run.state.save(folder, 3),
        "load": lambda: run.state.load(folder),
        "load_weights": lambda: run.state.load_weights(folder),
    }
    run.state.save(folder, 2, wait=False)
    with pytest.raises(CheckpointError, match=r"step-000000000002.*the last checkpoint is step-000000000001"):
        asks[ask]()
    assert [path.name[-1] for path in candidates(folder)] == ["1"]
    (folder / "step-000000000002.tmp").unlink()
    asks[ask]()
    run.state.wait()
    assert load(folder).step == (3 if "save" in ask else 1)


def test_arguments_are_looked_at_at_once(tmp_path: Path) -> None:
    saves = BackgroundSaves()
    for wrong in ({"step": -1}, {"keep": 0}, {"facts": {"x": float("nan")}}, {"parts": {"a b": {}}}):
        given: dict[str, Any] = {"step": 1, "parts": {"a": {"x": torch.ones(2)}}, "facts": {}, "keep": 1} | wrong
        with pytest.raises(CheckpointError):
            saves.save(tmp_path, **given)
    assert saves.wait() is None
    assert not candidates(tmp_path)


def test_tensors_of_every_kind_are_what_they_were(tmp_path: Path) -> None:
    """Views, shared storage, other layouts, tensors of inference mode, and a save inside of it."""
    base, complexes = torch.arange(12.0).reshape(3, 4), torch.tensor([1 + 2j, 3 - 1j])
    with torch.inference_mode():
        inference = torch.ones(3)
    parts = {
        "a": {"view": base[1], "turned": base.t(), "twice": base, "none": torch.empty(0, 3)},
        "b": {"inference": inference, "flag": torch.tensor(True), "half": torch.ones(3, dtype=torch.bfloat16)},
        "c": {"asks": torch.ones(2, requires_grad=True), "conj": complexes.conj(), "neg": complexes.conj().imag},
    }
    wanted = {part: {name: one.detach().clone() for name, one in tensors.items()} for part, tensors in parts.items()}
    saves = BackgroundSaves()
    with torch.inference_mode():
        saves.save(tmp_path, 1, parts, {})
    saves.wait()
    save(tmp_path / "alone", 1, parts, {})
    saves.save(tmp_path, 2, parts, {})  # into copies that were made in inference mode
    base.zero_()
    saves.wait()
    for one in (load(tmp_path), load(tmp_path / "alone")):
        assert one.parts.keys() == wanted.keys()
        for part, tensors in wanted.items():
            for name, tensor in tensors.items():
                assert torch.equal(one.parts[part][name], tensor.resolve_conj().resolve_neg()), name


def test_it_is_refused_where_ranks_compare_what_they_wrote(tmp_path: Path) -> None:
    run = Trained()
    run.state._ranks = object()  # type: ignore[assignment]
    with pytest.raises(ResumeError, match="wait=False with ranks=True"):
        run.state.save(tmp_path, 1, wait=False)


PROGRAM = """
import os, sys, torch
from torch import nn
from gradledger.train import RunState, checkpoint

write = checkpoint._write
def slow(*given):
    import time
    time.sleep(0.5)
    return write(*given)
checkpoint._write = slow

net = nn.Linear(300, 300)
state = RunState(net=net)
state.save(sys.argv[1], 1, wait=False)
"""


FORKS = """
child = os.fork()
if not child:
    assert state.wait() is None
    state.save(sys.argv[1] + "-child", 5, wait=False)
    sys.exit(not str(state.wait()).endswith("5"))
assert not os.wait()[1]
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import signal; signal.raise_signal(signal.SIGINT)", -2, "KeyboardInterrupt"),
        (FORKS, 0, ""),
    ],
)
def test_a_program_that_ends_waits_for_its_last_checkpoint(tmp_path: Path, end: str, code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + end, tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert said or not done.stderr
    assert load(tmp_path / "run").step == 1


def test_an_error_that_nobody_asked_for_is_said_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no folder")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "run"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    assert "RuntimeWarning: a checkpoint was not written, and nobody asked: " in done.stderr
    assert "FileExistsError" in done.stderr
