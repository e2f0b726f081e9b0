"""How the table of peers is counted: what their rules stand for, what is found, what is a false alarm."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradledger.audit import registry

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
sys.path.append(BENCHMARKS)
import _peer_rules as rules  # noqa: E402
import _peer_worker as worker  # noqa: E402
import audit_peers  # noqa: E402

sys.path.remove(BENCHMARKS)  # its data.py would hide the folder tests/data from whoever asks for that later

BAD: dict[str, Any] = dict(file="bad.py", code="G1", line=[7, 9], bugs=[], also=["G13"])
GOOD: dict[str, Any] = dict(file="good.py", code=None, line=[], bugs=[], also=[])


def _said(rule: str, *lines: int, severity: str = "error") -> dict[str, Any]:
    return dict(rule=rule, severity=severity, lines=list(lines), message="")


def _count(tool: str, item: dict[str, Any], *findings: dict[str, Any], broke: str = "") -> rules.Count:
    one = rules.Count(tool)
    one.add(item, dict(findings=list(findings), cpu=1.0, broke=broke))
    return one


def test_every_code_is_one_of_the_catalogue() -> None:
    known = {rules.short(loaded.rule.code) for loaded in registry.load().rules}
    named = {code for table in rules.MEANS.values() for codes in table.values() for code in codes} - {rules.ADVICE}
    assert named
    assert named <= known


def test_the_longest_beginning_of_a_rule_decides() -> None:
    assert rules.meaning("torchfix", "TOR002") == ("M7", "M11")
    assert rules.meaning("torchfix", "TOR003") == (rules.ADVICE,)
    assert rules.meaning("guardtower", "lora_base_frozen") == (rules.ADVICE,)
    assert rules.meaning("torch-audit", "TA301") == ()
    assert rules.meaning("gradledger", "GL-G01") == ("G1",)


def test_found_and_located() -> None:
    here = _count("torch-preflight", BAD, _said("TG003", 9))
    assert (here.faults, len(here.found), len(here.located), here.misled) == (1, 1, 1, [])
    elsewhere = _count("torch-preflight", BAD, _said("TG003", 8))
    assert (len(elsewhere.found), len(elsewhere.located)) == (1, 0)
    no_line = _count("torch-audit", BAD, _said("TA102"))
    assert (len(no_line.found), len(no_line.located)) == (1, 0)
    other = _count("torch-preflight", BAD, _said("TG005", 9))
    assert (other.found, other.located, other.misled) == ([], [], ["bad.py"])


def test_the_line_must_be_that_of_the_right_rule() -> None:
    one = _count("torch-preflight", BAD, _said("TG003", 8), _said("TG001", 7))
    assert (len(one.found), len(one.located)) == (1, 0)


def test_what_is_also_true_is_no_false_alarm() -> None:
    assert _count("torch-audit", BAD, _said("TA100")).misled == []


def test_each_fault_of_a_script_counts() -> None:
    two = dict(BAD, bugs=[dict(code="G8", line=[3]), dict(code="L1", line=[5])])
    one = _count("torch-preflight", two, _said("TG014", 3), _said("TG003", 5))
    assert (one.faults, one.found, one.located, one.misled) == (2, ["bad.py G8"], ["bad.py G8"], ["bad.py"])


def test_false_alarms_on_correct_programs() -> None:
    assert _count("torch-preflight", GOOD, _said("TG003", 1)).alarmed == ["good.py: TG003"]
    assert _count("torch-preflight", GOOD, _said("TG003", 1, severity="info")).alarmed == []
    advice = _count("torch-preflight", GOOD, _said("TG007", 1, severity="warning"))
    assert (advice.correct, advice.alarmed, advice.advised) == (1, [], 1)
    unknown = _count("torch-audit", GOOD, _said("TA301"))
    assert unknown.alarmed == ["good.py: TA301"], "a rule that stands for nothing is an alarm"


def test_a_program_that_ends_by_itself_is_not_the_tools_doing() -> None:
    assert _count("torch-audit", GOOD, broke="exit code 1: no").broken == ["good.py: exit code 1: no"]
    assert _count("torch-audit", dict(BAD, loud=True), broke="exit code 1: no").broken == []


def test_the_slowdown_is_taken_over_the_scripts_that_both_ran() -> None:
    one, bare = rules.Count("guardtower", cpu=dict(a=2.0, b=3.0, c=9.0)), rules.Count("bare", cpu=dict(a=1.0, b=1.0))
    assert rules.slowdown(one, bare) == (2.5, 2.5, 2)
    assert rules.slowdown(one, rules.Count("bare")) is None


def test_the_outputs_of_the_static_tools() -> None:
    text = "a/x.py:12:5: TOR003 [*] Please pass it\nnoise\ny.py:1:1: TOR101 Use of deprecated function\n"
    found = audit_peers.parse_torchfix(text)
    assert {name: [(f["rule"], f["lines"]) for f in fs] for name, fs in found.items()} == {
        "a/x.py": [("TOR003", [12])],
        "y.py": [("TOR101", [1])],
    }
    row = dict(code="TG001", severity="note", path="a/x.py", line=3, end_line=5, message="kept")
    (kept,) = audit_peers.parse_preflight(json.dumps(dict(diagnostics=[row])))["a/x.py"]
    assert (kept["severity"], kept["lines"]) == ("info", [3, 4, 5])
    folder = Path("/top")
    full = {"a/x.py": [_said("A")], "/top/a/x.py": [_said("B")], "x.py": [_said("C")]}
    assert [f["rule"] for f in audit_peers.of_file(full, folder, "a/x.py")] == ["A", "B"]


@pytest.mark.parametrize("tool", sorted(audit_peers.STATIC))
def test_a_tool_that_fails_is_not_one_that_found_nothing(tool: str, tmp_path: Path) -> None:
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(SystemExit, match="no such module"):
        list(audit_peers.run_static(tool, str(failing), tmp_path, ["x.py"]))


def test_results_are_kept_and_a_stopped_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def fake(tool: str, python: str, folder: Path, files: list[str]) -> Any:
        asked.append(list(files))
        for name in files:
            yield name, dict(findings=[], cpu=1.0, broke="")

    monkeypatch.setattr(audit_peers, "run_static", fake)
    given = argparse.Namespace(minutes=1e6, sample=3, python="", folder=Path())
    results: audit_peers.Results = {"b.py": dict(findings=[], cpu=2.0, broke="")}
    audit_peers.collect("torchfix", given, ["a.py", "b.py", "c.py", "d.py"], results, lambda: None)
    assert asked == [["a.py", "c.py"]]
    assert sorted(results) == ["a.py", "b.py", "c.py"]


def test_the_table_has_a_row_for_each_tool() -> None:
    done = {"good.py": dict(findings=[], cpu=1.0, broke=""), "bad.py": dict(findings=[], cpu=1.0, broke="")}
    found = {**done, "bad.py": dict(findings=[_said("TA102")], cpu=3.0, broke="")}
    results = {"torch-audit": found, "bare": done, "torchfix": done}
    text = audit_peers.report([BAD, GOOD], dict(results=results, versions={"torch-audit": "0.3.0"}))
    (row,) = [line for line in text.splitlines() if line.startswith("| torch-audit 0.3.0 ")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:] == ["2", "1 of 1", "0", "0 of 1", "0", "2.00", "2.00x (2 scripts)"]
    assert len([line for line in text.splitlines() if line.startswith("| torch")]) == 2


def test_the_model_of_an_optimizer_is_the_outermost_that_shares_with_it() -> None:
    import weakref

    inner, alone = nn.Linear(2, 2), nn.Linear(2, 2)
    outer = nn.Sequential(inner, nn.ReLU())
    hook = worker.Hook()
    hook.modules = {id(m): weakref.ref(m) for m in (inner, outer, alone)}
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    assert [id(m) for m in hook.models_of(optimizer)] == [id(outer)]
    replaced = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    hook.called = {id(inner): weakref.ref(inner)}
    assert [id(m) for m in hook.models_of(replaced)] == [id(outer)], "holding nothing live: what the program calls"


def test_the_leaves_of_a_loss() -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    assert worker._leaves((a * 2 + a.detach() * 3).sum()) == {id(a)}
    assert worker._leaves(a * b) == {id(a), id(b)}
    assert worker._leaves(torch.ones(1)) == set()
