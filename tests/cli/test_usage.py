"""A wrong command line, whichever verb: exit code 2, and got, wanted, where and what next on one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gradledger.cli.main import entry


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nosuch", "gradledger: got 'nosuch', wanted one of audit, "),
        ("ledgre run", "Next: did you mean ledger?"),
        ("data lerobot chekc x", "gradledger data lerobot: got 'chekc', wanted one of check, convert. Next: did"),
        ("ledger", "gradledger ledger: got no RUN, wanted RUN (a run folder, a ledger.sqlite, "),
        ("data check t.npz", "gradledger data check: got no --schema, wanted --schema S (the contract, a JSON file)"),
        ("data split t.csv --grup g -o x", "got --grup, wanted one of -o, --output, "),
        ("data split t.csv --grup g -o x", "Next: did you mean --group? `gradledger data split --help`"),
        ("data leaks s.json --task regress", "got --task regress, wanted one of 'classes', 'values'."),
        ("data learnable t.csv --inputs a --goal=x", "got --goal x, wanted a number."),
        ("data split t.csv --gap", "gradledger data split: got --gap without a value, wanted --gap and its value."),
        ("ledger run --limit x", "gradledger ledger: got --limit x, wanted a whole number."),
        ("ledger run --limit -1", "got --limit -1, wanted a number of at least 0."),
        ("sweep plan m.py:make --width 3", "got --width 3, wanted a number of at least 30."),
        ("ledger one two", "got two, one word too many, wanted RUN and options."),
        ("rules one two", "got one two, words too many, wanted options alone."),
        ("explain GL-G01 --json", "got --json, wanted one of --help."),
        ("report nothing_here", "gradledger report: got nothing_here, which is not there, wanted a folder"),
        ("report .", "got ., with neither plan.lock.jsonl nor trials.jsonl"),
    ],
)
def test_it_is_told_as_every_other_error(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gradledger", *line.split()])
    with pytest.raises(SystemExit) as ended:
        entry()
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith("gradledger: [usage] gradledger")
    assert told.count("\n") == 1
    assert says in told
    assert "Next: " in told


@pytest.mark.parametrize(("line", "code"), [("data", 2), ("checkpoint", 2), ("--help", 0), ("--version", 0)])
def test_a_verb_without_words_shows_its_help(
    line: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gradledger", *line.split()])
    with pytest.raises(SystemExit) as ended:
        entry()
    shown = "".join(capsys.readouterr())
    assert ended.value.code == code
    assert "Usage: gradledger" in shown or shown.startswith("gradledger 0.")
