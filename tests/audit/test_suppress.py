"""Allow comments: where they count, and what is said about the comments themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradledger.audit import suppress
from gradledger.audit.report import Note
from gradledger.audit.rule import Finding
from gradledger.core.site import Site

PROGRAM = """\
import torch

x = 1
loss.backward()  # gradledger: allow[GL-G01] warm start, cleared by hand
# gradledger: allow[missing-zero-grad, GL-T01] both are meant
step(
    a,
    b,
)
call(
    a,
    b,  # gradledger: allow[GL-G01] inside the statement
)
y = "# gradledger: allow[GL-G01] no comment"
z = 2
"""
CODES = {"missing-zero-grad": "GL-G01", "GL-G01": "GL-G01", "GL-T01": "GL-T01", "GL-O01": "GL-O01"}


def finding(file: Path, line: int, code: str = "G1") -> Finding:
    return Finding(code=code, severity="error", site=Site(str(file), line, "f"), message="m", fix="f")


def run(
    tmp_path: Path, text: str, *lines: int, code: str = "G1", ran: frozenset[str] = frozenset(CODES.values())
) -> Any:
    file = tmp_path / "train.py"
    file.write_text(text)
    found = [finding(file, line, code) for line in lines]
    kept, silenced, notes = suppress.apply(found, str(file), set(ran), lambda word: CODES[word])
    return [f.site.line for f in kept], [(s.finding.site.line, s.reason) for s in silenced], notes


def test_on_the_line_above_it_and_inside_the_statement(tmp_path: Path) -> None:
    kept, silenced, notes = run(tmp_path, PROGRAM, 3, 4, 6, 8, 10, 12, 14, 15)
    assert kept == [3, 14, 15]
    assert silenced == [
        (4, "warm start, cleared by hand"),
        (6, "both are meant"),
        (8, "both are meant"),
        (10, "inside the statement"),
        (12, "inside the statement"),
    ]
    assert notes == []


def test_another_code_is_not_allowed(tmp_path: Path) -> None:
    assert run(tmp_path, PROGRAM, 4, 6, code="T1")[0] == [4]


@pytest.mark.parametrize("head", ["", '"""A program."""\n', "#!/usr/bin/env python\n# a comment\n\n"])
def test_at_the_top_of_the_file_it_counts_everywhere(tmp_path: Path, head: str) -> None:
    text = head + "# gradledger: allow[GL-G01] a study of this very fault\nimport torch\nx = 1\nx = 2\n"
    count = len(text.splitlines())
    assert run(tmp_path, text, count - 1, count)[0] == []


def test_not_at_the_top_it_counts_for_one_statement(tmp_path: Path) -> None:
    text = "import torch\n# gradledger: allow[GL-G01] once\nx = 1\nx = 2\n"
    assert run(tmp_path, text, 3, 4)[0] == [4]


def test_without_a_reason_it_counts_and_is_remarked_upon(tmp_path: Path) -> None:
    kept, silenced, notes = run(tmp_path, "import torch\nx = 1  # gradledger: allow[GL-G01]\n", 2)
    assert (kept, silenced) == ([], [(2, "")])
    assert [(n.line, "gives no reason" in n.message) for n in notes] == [(2, True)]


def test_unused_and_unknown_ones_are_remarked_upon(tmp_path: Path) -> None:
    text = "import torch\nx = 1  # gradledger: allow[GL-O01] why\ny = 1  # gradledger: allow[nonsense] why\n"
    _, _, notes = run(tmp_path, text)
    assert [(n.line, n.message) for n in notes] == [
        (2, "allow[GL-O01] silences nothing"),
        (3, "allow[nonsense] names no rule"),
    ]


def test_a_rule_that_did_not_run_leaves_its_allow_alone(tmp_path: Path) -> None:
    text = "import torch\nx = 1  # gradledger: allow[GL-O01] why\n"
    assert run(tmp_path, text, ran=frozenset({"GL-G01"}))[2] == []


def test_files_that_cannot_be_read_allow_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "gone.py"
    kept, _, notes = suppress.apply([finding(missing, 1)], str(missing), set(), lambda word: CODES[word])
    assert len(kept) == 1
    assert notes == []
    binary = tmp_path / "data.py"
    binary.write_bytes(b"\xff\xfe\x00gradledger: allow[GL-G01] x")
    assert suppress.allows_in(str(binary)) == []


def test_a_file_with_a_syntax_error_still_gives_what_comes_before_it() -> None:
    allows = suppress.parse("import a\nx = 1  # gradledger: allow[GL-G01] r\ny = (\n", "f.py")
    assert [a.line for a in allows] == [2]


def test_notes_are_plain_records() -> None:
    assert Note("f", 1, "m") == Note("f", 1, "m")
