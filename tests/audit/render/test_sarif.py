"""SARIF as the standard asks for it, and results that are recognised when their lines move."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from audit.render.sarif_structure import problems
from gradledger.audit.render import sarif
from gradledger.audit.report import Note, Report, Suppressed
from gradledger.audit.rule import Finding, NotChecked
from gradledger.core.events import RunEnded, RunStarted
from gradledger.core.site import NOWHERE, Site

SOURCE = """\
for x, y in data:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.step()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my train.py"
    file.write_text(SOURCE)
    return file


def finding(file: Path, line: int = 4, **values: Any) -> Finding:
    fields: dict[str, Any] = {
        "code": "G1", "severity": "error", "site": Site(str(file), line, "train"), "message": "It grows.",
        "fix": "optimizer.zero_grad()", "evidence": {"multiple": float("inf")}, "count": 120, "iteration": 1,
        "related": (Site(str(file), 3, "train"), Site("/elsewhere/lib.py", 9, "f")),
    }  # fmt: skip
    return Finding(**{**fields, **values})


def report(file: Path, *findings: Finding, **values: Any) -> Report:
    fields: dict[str, Any] = {
        "started": RunStarted(program=str(file), argv=("--lr", "3")),
        "ended": RunEnded(exit_code=0, steps=120, backwards=120, failures=("norms: ValueError (1x)",)),
        "findings": findings,
        "suppressed": (Suppressed(finding(file, 5, code="G3"), "meant so"),),
        "notes": (Note(str(file), 2, "allow[GL-G02] silences nothing"), Note("", 0, "torn")),
        "checked": ("GL-G01", "GL-G03"),
        "not_checked": (NotChecked("O1", "no scheduler was built"),),
        "names": {"GL-G01": "zero-grad-missing", "GL-G03": "cleared-too-rarely", "GL-O01": "x", "GL-Z99": "foreign"},
        "events": 500,
    }
    return Report(**{**fields, **values})


def run_of(document: str) -> Any:
    parsed = json.loads(document)
    assert problems(parsed) == []
    (run,) = parsed["runs"]
    return run


def test_the_standard_is_kept(program: Path) -> None:
    findings = (
        finding(program),
        finding(program, severity="info", site=NOWHERE, related=()),
        finding(program, severity="warning", site=Site("/gone/[1](2).py", 3, "f")),
    )
    run = run_of(sarif.render(report(program, *findings)))
    assert [r["level"] for r in run["results"]] == ["error", "note", "warning", "error"]
    rules = run["tool"]["driver"]["rules"]
    assert [r["id"] for r in rules] == ["GL-G01", "GL-G03", "GL-O01", "GL-Z99"]
    assert all(r["help"]["text"] for r in rules)
    assert "## " in rules[0]["help"]["markdown"]
    assert rules[0]["name"] == "ZeroGradMissing"
    assert run["results"][-1]["suppressions"] == [
        {"kind": "inSource", "status": "accepted", "justification": "meant so"}
    ]
    assert run["invocations"][0]["arguments"] == ["--lr", "3"]
    texts = [n["message"]["text"] for n in run["invocations"][0]["toolConfigurationNotifications"]]
    assert texts == ["GL-O01 was not checked: no scheduler was built"]


def test_places_lead_to_the_files(program: Path) -> None:
    (result, _) = run_of(sarif.render(report(program, finding(program))))["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "my%20train.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {
        "startLine": 4, "startColumn": 5, "endColumn": 21, "snippet": {"text": "    optimizer.step()"}
    }  # fmt: skip
    base = run_of(sarif.render(report(program)))["originalUriBaseIds"]["%SRCROOT%"]["uri"]
    assert Path(unquote(urlparse(base).path)) == program.parent
    outside = result["relatedLocations"][1]["physicalLocation"]["artifactLocation"]
    assert outside == {"uri": "file:///elsewhere/lib.py"}


def marks(file: Path, *lines: int) -> list[str]:
    from gradledger.audit._source import source_lines

    source_lines.cache_clear()
    results = run_of(sarif.render(report(file, *(finding(file, n) for n in lines), suppressed=())))["results"]
    return [r["partialFingerprints"]["gradledger/v1"] for r in results]


def test_fingerprints_survive_moved_lines_and_tell_results_apart(program: Path) -> None:
    before = marks(program, 4, 5)
    assert len(set(before)) == 2, "two lines of one text in one function"
    program.write_text("import torch\n\n\n" + SOURCE.replace("    optimizer", "\toptimizer"))
    assert marks(program, 7, 8) == before
    program.write_text(SOURCE.replace("optimizer.step()", "optimizer.step(closure)", 1))
    assert marks(program, 4) != before[:1]


def test_text_of_the_program_makes_no_links(program: Path) -> None:
    (result, _) = run_of(sarif.render(report(program, finding(program, message="[press](http://evil) [0](1)"))))[
        "results"
    ]
    assert "](" not in result["message"]["text"]


def test_a_run_cut_off(program: Path) -> None:
    run = run_of(sarif.render(report(program, ended=None)))
    assert run["invocations"][0]["executionSuccessful"] is False


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: d.pop("version"), "without version"),
        (lambda d: d["runs"][0]["results"][0].update(ruleIndex=3), "does not lead"),
        (lambda d: d["runs"][0]["results"][0].update(level="fatal"), "is none of"),
        (lambda d: d["runs"][0]["results"][0].update(severity="error"), "no property severity"),
        (lambda d: d["runs"][0]["originalUriBaseIds"]["%SRCROOT%"].update(uri="file:///x"), "slash"),
        (lambda d: d["runs"][0]["results"][0]["message"].pop("text"), "no text"),
        (lambda d: d["runs"][0]["tool"]["driver"]["rules"][0].update(helpUri="not a uri"), "is no URI"),
    ],
)
def test_the_check_can_fail(program: Path, spoil: Any, says: str) -> None:
    document = copy.deepcopy(sarif.as_dict(report(program, finding(program))))
    spoil(document)
    assert any(says in problem for problem in problems(document))
