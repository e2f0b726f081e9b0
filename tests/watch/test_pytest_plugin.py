"""The pytest face, run as its users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SUITE = """\
import torch

def train(clear):
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(8):
        if clear:
            optimizer.zero_grad()
        net(torch.randn(8, 3)).pow(2).mean().backward()
        optimizer.step()

def test_faulty():
    train(False)

def test_correct():
    train(True)

def test_without_training():
    assert True

def test_asks(gradledger_watch):
    train(False)
    assert [f.key for f in gradledger_watch.findings] == ["GL-G01"]
"""


def run(folder: Path, *words: str) -> str:
    (folder / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    if subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlib.metadata import entry_points as e; assert 'gradledger' in e(group='pytest11').names",
        ],
        check=False,
        capture_output=True,
    ).returncode:
        command += ["-p", "gradledger.pytest_plugin"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    return done.stdout + done.stderr


def test_with_the_option_a_faulty_test_fails_with_the_report(tmp_path: Path) -> None:
    said = run(tmp_path, "--gradledger", "--deselect", "test_suite.py::test_asks")
    assert "1 failed, 2 passed" in said, said
    assert "GL-G01" in said
    assert "net(torch.randn(8, 3)).pow(2).mean().backward()" in said


def test_without_it_nothing_is_audited_but_what_asks(tmp_path: Path) -> None:
    said = run(tmp_path)
    assert "4 passed" in said, said
    said = run(tmp_path, "--gradledger", "--gradledger-fail-on", "never")
    assert "4 passed" in said, said
