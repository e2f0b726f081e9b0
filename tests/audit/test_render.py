"""The renderers: the same findings for a person, a program and a page."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from gradledger.audit.render import json as json_form
from gradledger.audit.render import md, text
from gradledger.audit.report import Note, Report
from gradledger.audit.rule import Finding, NotChecked
from gradledger.core.events import RunEnded, RunStarted
from gradledger.core.site import NOWHERE, Frame, Site

SOURCE = """\
for x, y in data:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    return file


def report(program: Path, **values: object) -> Report:
    finding = Finding(
        code="G1",
        severity="error",
        site=Site(str(program), 4, "train"),
        related=(Site(str(program), 3, "train"), Site("/elsewhere/lib.py", 9, "f"), Site(str(program), 3, "train")),
        message="The gradients of all earlier iterations are still in .grad when the optimizer steps: " + "x " * 60,
        fix="optimizer.zero_grad()",
        evidence={"multiple": 120.0, "largest": float("inf"), "tensors": 4, "steps": [1, 2, 3], "late": None},
        count=120,
        iteration=1,
    )
    fields: dict[str, object] = {
        "started": RunStarted(program="train.py"),
        "ended": RunEnded(exit_code=0, steps=120, backwards=120),
        "findings": (finding,),
        "suppressed": (),
        "notes": (Note(str(program), 2, "allow[GL-G02] silences nothing"),),
        "checked": ("GL-G01", "GL-G02"),
        "not_checked": (NotChecked("O1", "no scheduler was built"), NotChecked("O2", "no scheduler was built")),
        "names": {"GL-G01": "missing-zero-grad"},
        "events": 500,
    }
    return Report(**{**fields, **values})  # type: ignore[arg-type]


def test_json_has_the_promised_fields(program: Path) -> None:
    document = json.loads(json_form.render(report(program)))
    assert (document["schema"], document["program"], document["exit_code"]) == (1, "train.py", 0)
    (finding,) = document["findings"]
    assert {"code", "name", "severity", "file", "line", "related_lines", "count", "evidence", "message", "fix"} <= set(
        finding
    )
    assert (finding["code"], finding["name"], finding["line"], finding["count"]) == (
        "GL-G01",
        "missing-zero-grad",
        4,
        120,
    )
    assert finding["file"] == str(program)
    assert finding["related_lines"] == [3]
    assert [r["file"] for r in finding["related"]] == [str(program), "/elsewhere/lib.py"]
    assert finding["evidence"]["largest"] == "inf"
    assert document["checked"] == ["GL-G01", "GL-G02"]
    assert document["not_checked"][0] == {"code": "GL-O01", "reason": "no scheduler was built"}


def test_text_fits_80_columns_and_shows_what_matters(program: Path) -> None:
    shown = text.render(report(program), footer=["recorded: " + "/a" * 60])
    lines = shown.splitlines()
    assert max(len(line) for line in lines if "/a/a" not in line) <= 80
    assert lines[0] == "gradledger: 1 error in train.py"
    assert "1. error  GL-G01 missing-zero-grad" in lines
    assert any(line.startswith(" ▸    4 │ ") and "optimizer.step()" in line for line in lines)
    assert "   train.py:4, in train" in lines
    assert any(line.split() == ["fix", "optimizer.zero_grad()"] for line in lines)
    assert any("120 times, first in iteration 1" in line for line in lines)
    assert "multiple 120, largest inf, tensors 4, steps [1, 2, 3]" in shown
    assert "GL-O01, GL-O02: no scheduler was built" in shown
    assert "\x1b" not in shown


def test_ascii_where_the_stream_cannot_do_more(program: Path) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    shown = text.compose(report(program), stream)
    assert shown.isascii()
    assert " >    4 | " in shown


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_colour_on_a_terminal_only(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in text.compose(report(program), Terminal())
    assert "\x1b[" not in text.compose(report(program), io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in text.compose(report(program), Terminal())


def test_a_finding_without_a_line_or_readable_source(program: Path) -> None:
    nowhere = Finding(code="G1", severity="warning", site=NOWHERE, message="m", fix="f")
    gone = Finding(code="G1", severity="info", site=Site("/gone.py", 3, "f"), message="m", fix="f")
    shown = text.render(report(program, findings=(nowhere, gone)))
    assert "1 warning and 1 remark" in shown
    assert "/gone.py:3, in f" in shown


def test_a_line_of_a_library_keeps_its_number(program: Path) -> None:
    deep = Site(f"/opt/{'folder/' * 9}lib/python3.11/site-packages/lightning/pytorch/core/optimizer.py", 154, "step")
    far = Site(f"/home/{'folder/' * 12}train.py", 7, "train")
    here = Site(str(program), 4, "")
    faulty = Finding(code="G1", severity="error", site=here, message="m", fix="f", related=(deep, far))
    shown = text.render(report(program, findings=(faulty,)))
    assert "related   lightning/pytorch/core/optimizer.py:154, in step" in shown
    assert "folder/train.py:7, in train" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_verdict_of_a_clean_run(program: Path) -> None:
    shown = text.render(report(program, findings=()))
    assert shown.startswith("gradledger: no fault found in train.py\n120 optimizer steps")


def test_how_a_run_ended(program: Path) -> None:
    ended = RunEnded(exit_code=1, exception="RuntimeError", frames=(Frame(str(program), 3, "train"),))
    assert "ended by RuntimeError at train.py:3" in " ".join(text.render(report(program, ended=ended)).split())
    assert "cut off" in text.render(report(program, ended=None))


def test_markdown(program: Path) -> None:
    shown = md.render(report(program))
    assert "## 1. GL-G01 missing-zero-grad (error)" in shown
    assert ">    4 | optimizer.step()" in shown
    assert "- fix: `optimizer.zero_grad()`" in shown
