"""The cell magic, in a real IPython shell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

SETUP = """
import torch
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
"""
FAULTY = """
for step in range(12):
    loss = net(torch.ones(8, 3)).pow(2).mean()
    loss.backward()
    optimizer.step()
kept = float(loss.detach())
"""
CORRECT = FAULTY.replace("    loss.backward()", "    optimizer.zero_grad()\n    loss.backward()")


@pytest.fixture
def shell(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    InteractiveShell.clear_instance()
    one = InteractiveShell.instance()
    one.history_manager.enabled = False
    one.run_line_magic("load_ext", "gradledger.integrations.notebook")
    one.run_cell(SETUP)
    yield one
    InteractiveShell.clear_instance()


def test_a_faulty_cell_is_told_with_its_line(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell_magic("gradledger", "--name seen", FAULTY)
    said = capsys.readouterr().err
    assert "GL-G01" in said
    assert "loss.backward()" in said
    assert [finding.code for finding in shell.user_ns["seen"].findings] == ["G1"]
    assert isinstance(shell.user_ns["kept"], float)


def test_the_lines_of_a_cell_are_shown_and_their_names_used(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell("def train(o):\n  for _ in range(12):\n    net(torch.ones(8, 3)).mean().backward()\n    o.step()\n")
    shell.run_cell("%%gradledger\ntrain(optimizer)")
    said = capsys.readouterr().err
    assert said.startswith("gradledger: 1 error in the cell\n")
    assert "3 │     net(torch.ones(8, 3)).mean().backward()" in said
    assert "fix       o.zero_grad()" in said


@pytest.mark.parametrize("words", ["--bogus", "--select GL-Z9", "--name 1x"])
def test_wrong_words_are_told_in_a_line_without_our_frames(
    words: str, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(f"%%gradledger {words}\nkept = 1")
    said = "".join(capsys.readouterr())
    assert "UsageError: [usage] " in said
    assert words.split()[-1] in said
    assert "Traceback" not in said
    assert "kept" not in shell.user_ns


def test_a_correct_cell_says_how_much_was_seen(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell_magic("gradledger", "", CORRECT)
    assert capsys.readouterr().err == "gradledger: nothing found in 12 optimizer steps\n"


def test_rules_can_be_left_out(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell_magic("gradledger", "--ignore G1,G3", FAULTY)
    assert "GL-G01" not in capsys.readouterr().err


def test_the_exception_of_a_cell_stays_its_own(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell_magic("gradledger", "", "print('before')\n1 / 0")
    out = capsys.readouterr()
    assert out.out.startswith("before\n")
    assert "ZeroDivisionError" in out.out + out.err
    shell.run_cell_magic("gradledger", "", CORRECT)  # and the next one is watched anew
    assert "12 optimizer steps" in capsys.readouterr().err


def test_unknown_words_are_refused(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="unrecognized arguments: --selct"):
        shell.run_cell_magic("gradledger", "--selct G", CORRECT)
