"""Where our options end and the program's arguments begin."""

from __future__ import annotations

import pytest

from gradledger.cli._options import OPTIONS, help_text, parse
from gradledger.core.errors import UsageError


@pytest.mark.parametrize(
    ("line", "target", "module", "rest"),
    [
        ("train.py", "train.py", False, []),
        ("train.py --format json --help -m x", "train.py", False, ["--format", "json", "--help", "-m", "x"]),
        ("--format json train.py --output x", "train.py", False, ["--output", "x"]),
        ("--fail-on=never -- --odd.py a", "--odd.py", False, ["a"]),
        ("-m pkg.train --select x -- -h", "pkg.train", True, ["--select", "x", "--", "-h"]),
        ("-mpkg.train a", "pkg.train", True, ["a"]),
        ("--format json -m pkg", "pkg", True, []),
        ("folder -m", "folder", False, ["-m"]),
        ("--oracle 7.py --oracle", "7.py", False, ["--oracle"]),
        ("- a", "-", False, ["a"]),
    ],
)
def test_split(line: str, target: str, module: bool, rest: list[str]) -> None:
    arguments = parse(line.split())
    assert (arguments.target, arguments.module, list(arguments.rest)) == (target, module, rest)


def test_values_and_defaults() -> None:
    arguments = parse(["--select", "G1,T3", "--ignore=M2", "--output=r.json", "train.py"])
    assert arguments.codes("--select") == ["G1", "T3"]
    assert arguments.codes("--ignore") == ["M2"]
    assert arguments.values["--format"] == "text"
    assert arguments.values["--fail-on"] == "error"
    assert arguments.values["--output"] == "r.json"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "got no program"),
        ("--format json", "got no program"),
        ("--", "got no program"),
        ("--format xml train.py", "got --format xml, wanted --format text or json or md"),
        ("--output", "got --output without a value"),
        ("-m", "got -m without a module"),
        ("--fast train.py", "got --fast, wanted one of --format"),
        ("-x train.py", "got -x, wanted one of"),
        ("--oracle=0 train.py", "got --oracle=0, wanted --oracle=EVERY with a whole number above 0"),
        ("--oracle=often train.py", "got --oracle=often"),
        ("--oracle 5 train.py", "got --oracle 5, wanted --oracle=5, in one word"),
        ("--outptu r.txt train.py", "Next: did you mean --output?"),
    ],
)
def test_mistakes(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(line.split())


def test_the_oracle_has_a_value_of_its_own() -> None:
    assert parse(["train.py"]).values["--oracle"] == ""
    assert parse(["--oracle", "train.py"]).values["--oracle"] == "10"
    assert parse(["--oracle=50", "train.py"]).values["--oracle"] == "50"
    assert "  --oracle[=EVERY]  Recompute gradients" in help_text()


def test_replay_needs_no_program() -> None:
    assert parse(["--replay", "last"]).target == ""


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help(word: str) -> None:
    assert parse([word]).help
    text = help_text()
    assert all(option.name in text for option in OPTIONS)
    assert max(len(line) for line in text.splitlines()) <= 104


@pytest.mark.parametrize(("columns", "widest"), [("80", 80), ("40", 60), ("200", 100)])
def test_the_help_fits_the_terminal(columns: str, widest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert widest - 10 < max(map(len, help_text().splitlines())) <= widest
