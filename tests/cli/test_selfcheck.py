"""The comparison of a program with itself under the audit: what it sees, and what it leaves out by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gradledger.cli import _bits, _selfcheck
from gradledger.cli._options import parse
from gradledger.cli._selfcheck import Left, Start, compare, selfcheck
from gradledger.core.errors import UsageError
from gradledger.ledger._runner import resolve

TRAINS = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(net.parameters())
for _ in range(25):
    optimizer.zero_grad()
    loss = net(torch.randn(8, 3)).pow(2).mean()
    loss.backward()
    optimizer.step()
torch.save(net.state_dict(), "net.pt")
print("loss", loss.item())
"""
UNSTEADY = TRAINS + """
import random, time
print("at", time.time_ns())
print("drawn", random.random())
"""
NOTICES = TRAINS + """
import sys
if "gradledger.watch" in sys.modules:
    print("somebody is here")
    with torch.no_grad():
        net[0].weight[0, 0] += 1e-6
"""


def run(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """As a user starts it: the collector is asked at the end what is still there."""
    return subprocess.run(
        [sys.executable, "-m", "gradledger", "audit", "--selfcheck", *words],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=590,
    )


def rows(told: str) -> dict[str, dict[str, object]]:
    return {row["kind"]: row for row in json.loads(told)["rows"]}


def test_a_program_that_draws_from_the_clock_is_compared_in_everything_else(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNSTEADY)
    done = run(tmp_path, "--oracle=4", "--format", "json", "--output", "told.json", "train.py")
    assert done.returncode == 0, done.stderr
    answer = json.loads((tmp_path / "told.json").read_text())
    assert answer["explained"] >= 10, "of 25 iterations, the first and two out of four"
    assert answer["facts"] > 0
    told = rows((tmp_path / "told.json").read_text())
    assert [row["differ"] for row in told.values()] == [[]] * len(told)
    assert told["stdout"]["unsteady"] == ["stdout:line 2", "stdout:line 3"], told
    assert told["parameters"]["compared"] == told["gradients"]["compared"] == told["state"]["compared"] == 20
    assert told["file"]["compared"] == 2
    assert "random:torch at the end" not in told["random"]["unsteady"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["told.json", "train.py"], "it ran in copies"


def test_a_program_that_behaves_otherwise_when_watched_is_told_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NOTICES)
    done = run(tmp_path, "train.py")
    assert done.returncode == 5
    assert "train.py DIFFERS under the audit" in done.stderr
    assert " facts recorded\n" in done.stderr
    assert "oracle" not in done.stderr
    lines = {line.split("  ")[1]: line for line in done.stderr.splitlines() if line.startswith("  ")}
    assert "differ: line 2" in lines["stdout"]
    assert "differ" in lines["modules at the end"]
    assert lines["parameters"].split("  ")[-1].strip() == "same (20)"


def test_a_program_that_fails_is_compared_too_and_is_given_what_is_piped(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import sys, torch\nprint(sys.stdin.read())\nraise ValueError(sys.argv[1])\n")
    done = run(tmp_path, "--format", "json", "fails.py", "--no", stdin="a word")
    assert done.returncode == 0, done.stderr
    told = rows(done.stderr[done.stderr.index("{") :])
    assert told["exit code"] == {"kind": "exit code", "compared": 1, "differ": [], "unsteady": []}
    assert told["stderr"]["compared"] == 5, "the traceback"


def left(**bits: str) -> Left:
    return Left({name.replace("_", ":"): value for name, value in bits.items()}, 1)


def test_what_bare_runs_do_not_agree_on_is_left_out() -> None:
    bare = [left(stdout_1="a", file_x="1"), left(stdout_1="b", file_x="1")]
    told = {row.kind: row for row in compare(bare, left(stdout_1="c"))}
    assert (told["stdout"].differ, told["stdout"].unsteady) == ((), ("stdout:1",))
    assert told["file"].differ == ("file:x",), "a file that is missing under the audit is a difference"
    told = {row.kind: row for row in compare([left()], left(**{"stdout_1": "c", "random_numpy at the end": "1"}))}
    assert told["stdout"].differ == ("stdout:1",), "and so is a line that is printed only then"
    assert told["random"].compared == 0, "the audit may load a generator that the program does not use"


def printed(*lines: str) -> Left:
    return Left({f"stdout:line {n}": line for n, line in enumerate(lines, 1)}, 1)


def test_lines_that_come_in_another_order_each_time_are_compared_in_any_order() -> None:
    bare = [printed("a", "b", "c"), printed("b", "a", "c")]
    told = {row.kind: row for row in compare(bare, printed("c", "b", "a"))}["stdout"]
    assert (told.compared, told.differ, told.unsteady) == (3, (), ("stdout:their order",))
    told = {row.kind: row for row in compare(bare, printed("c", "b", "d"))}["stdout"]
    assert told.differ == ("stdout:lines in any order",)
    told = {row.kind: row for row in compare(bare[:1], printed("b", "a", "c"))}["stdout"]
    assert told.differ == ("stdout:line 1", "stdout:line 2"), "as long as the order is the same without the audit"


def test_a_program_that_changes_the_order_by_itself_is_run_until_it_does(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    orders = iter([b"a\nb\n", b"b\na\n", *[b"a\nb\n"] * 4, b"b\na\n"])

    def launch(start: Start) -> int:
        start.out.write_bytes(next(orders))
        start.err.write_bytes(b"")
        return 0

    answer = selfcheck(resolve("train.py"), launch=launch)
    assert answer.same
    assert answer.runs == 7, "the fifth bare run of five in one order is followed by one in the other"
    orders = iter([b"a\nb\n", b"b\na\n", *[b"a\nb\n"] * 9])
    assert not selfcheck(resolve("train.py"), launch=launch).same, "nor is it waited for without end"


def test_a_digest_sees_every_bit() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    before = _bits.digest([weight])
    assert before == _bits.digest([weight.clone()])
    assert before != _bits.digest([weight.t()])
    assert before != _bits.digest([weight.double()])
    assert before != _bits.digest([weight.clone().requires_grad_()])
    weight[1, 2] = torch.nextafter(weight[1, 2], torch.tensor(9.0))
    assert before != _bits.digest([weight])
    sparse = torch.eye(3).to_sparse()
    assert _bits.digest(sparse) != _bits.digest((2 * torch.eye(3)).to_sparse())


def test_a_digest_is_not_seen_by_modes() -> None:
    class Sees(torch.overrides.TorchFunctionMode):
        seen = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.seen += 1
            return function(*args, **(kwargs or {}))

    weight = torch.ones(3)
    with Sees() as mode, _bits._quiet():
        _bits.digest([weight])
    assert mode.seen == 0


def test_a_folder_that_is_too_large_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_selfcheck, "MOST_FILES", 3)
    (tmp_path / ".git").mkdir()
    for number in range(3):
        (tmp_path / f"{number}").touch()
        (tmp_path / ".git" / f"{number}").touch()
    _selfcheck._check_size(tmp_path)
    (tmp_path / "one more").touch()
    with pytest.raises(UsageError, match="--in-place"):
        _selfcheck._check_size(tmp_path)


@pytest.mark.parametrize("words", [["--in-place"], ["--selfcheck", "--like", "x"], ["--selfcheck", "--format", "html"]])
def test_options_that_do_not_go_together(words: list[str]) -> None:
    with pytest.raises(UsageError, match="selfcheck"):
        parse([*words, "train.py"])
