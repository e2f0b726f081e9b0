"""How the table of peers is counted: what their rules stand for, what is found, what is a false alarm."""

from __future__ import annotations

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
import _peer_results  # noqa: E402
import _peer_rules as rules  # noqa: E402
import _peer_traincheck as traincheck  # noqa: E402
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


def test_results_are_kept_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.py").write_text(name)
    asked: list[tuple[str, str]] = []

    def runner(tool: str) -> Any:
        def run(name: str) -> dict[str, Any]:
            asked.append((tool, name))
            return dict(findings=[], cpu=1.0, broke="")

        return run

    def opened(version: str = "1") -> dict[str, Any]:
        return {t: _peer_results.Kept(tmp_path / f"{t}.jsonl", version, tmp_path) for t in ("bare", "guardtower")}

    runners = {tool: runner(tool) for tool in ("bare", "guardtower")}
    names = ["a.py", "b.py", "c.py"]
    stopped = audit_peers.run_together(runners, opened(), names)
    assert next(stopped) == "a.py"
    stopped.close()
    assert asked == [("bare", "a.py"), ("guardtower", "a.py")]
    list(audit_peers.run_together(runners, opened(), names))
    rest = [("guardtower", "b.py"), ("bare", "b.py"), ("bare", "c.py"), ("guardtower", "c.py")]
    assert asked[2:] == rest, "they take turns, and nothing is run twice"
    (tmp_path / "b.py").write_text("changed")
    assert opened()["bare"].missing(names) == ["b.py"]
    assert opened("2")["bare"].missing(names) == names, "another version of the tool"


def test_a_torn_line_and_a_changed_reference_are_no_results(tmp_path: Path) -> None:
    for name in ("bug.py", "clean.py"):
        (tmp_path / name).write_text(name)
    kept = _peer_results.Kept(tmp_path / "t.jsonl", "1", tmp_path)
    kept.add("bug.py", dict(findings=[], cpu=1.0, broke=""), beside=["clean.py"])
    with (tmp_path / "t.jsonl").open("a") as file:
        file.write('{"file": "clean.py", "of')
    assert _peer_results.Kept(tmp_path / "t.jsonl", "1", tmp_path).missing(["bug.py", "clean.py"]) == ["clean.py"]
    (tmp_path / "clean.py").write_text("another reference")
    assert _peer_results.Kept(tmp_path / "t.jsonl", "1", tmp_path).missing(["bug.py"]) == ["bug.py"]


def test_an_invariant_that_fails_stands_for_any_fault_and_is_an_alarm_on_a_correct_program() -> None:
    said = _said("APIContainRelation:0123abcd", severity="warning")
    bad = _count("traincheck", BAD, said)
    assert (len(bad.found), len(bad.located), bad.misled) == (1, 0, [])
    assert _count("traincheck", GOOD, said).alarmed == ["good.py: APIContainRelation:0123abcd"]
    many = _count("traincheck", GOOD, *(_said(f"R:{k:02}", severity="warning") for k in range(9)))
    assert many.alarmed == ["good.py: R:00, R:01, R:02, R:03, R:04, R:05 and 3 more"]


def test_the_models_that_a_person_would_name() -> None:
    source = """
import copy, torch, torch.nn as nn
class Base(nn.Module): ...
class Net(Base): ...
net = Net().to("cpu")
head, body = nn.Linear(2, 2), torch.nn.GRU(2, 2)
target = copy.deepcopy(net).requires_grad_(False)
loss_fn = nn.MSELoss()
scale = nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def build():
    inner = nn.Sequential(head)
    return inner
"""
    assert traincheck.model_names(source) == ["net", "head", "body", "target", "inner"]


def test_a_faulty_program_is_compared_with_a_second_run_of_its_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, scripts = tmp_path / "programs", tmp_path / "bin"
    folder.mkdir()
    scripts.mkdir()
    for name in ("bug.py", "clean.py"):
        (folder / name).write_text("pass\n")
    commands = {
        "traincheck-collect": "import pathlib, sys\n"
        "to = pathlib.Path(sys.argv[sys.argv.index('--output-dir') + 1]); to.mkdir()\n"
        "(to / 'trace').write_text(sys.argv[sys.argv.index('--pyscript') + 1])",
        "traincheck-infer": "import sys; open(sys.argv[-1], 'w').write('one\\ntwo\\n')",
        "traincheck-check": "import json, pathlib, sys\n"
        "to = pathlib.Path(sys.argv[sys.argv.index('-o') + 1]) / 'trace'; to.mkdir(parents=True)\n"
        "known = {'invariant': {'relation': 'Flaky', 'text_description': 'always'}}\n"
        "new = {'invariant': {'relation': 'Lead', 'text_description': 'zero_grad before step'}}\n"
        "bug = pathlib.Path('trace/trace').read_text() == 'bug.py'\n"
        "(to / 'failed.log').write_text('\\n'.join(json.dumps(r, indent=4) for r in [known] + [new] * bug))",
    }
    for name, code in commands.items():
        (scripts / name).write_text(f"#!{sys.executable}\n{code}\n")
        (scripts / name).chmod(0o755)
    tool = traincheck.TrainCheck(scripts, folder, tmp_path / "cache", Path(sys.executable))
    results = dict(tool.results("bug.py", "clean.py"))
    assert list(results) == ["clean.py", "bug.py"]
    assert [f["message"] for f in results["clean.py"]["findings"]] == ["always"]
    assert [f["message"] for f in results["bug.py"]["findings"]] == ["zero_grad before step"]
    assert results["clean.py"]["invariants"] == 2
    assert results["clean.py"]["reference_cpu"] > 0
    assert min(r["cpu"] for r in results.values()) > 0
    assert {r["broke"] for r in results.values()} == {""}


def test_an_invariant_is_the_same_in_whatever_order_its_sets_are_written() -> None:
    def invariant(*values: str, relation: str = "APIContainRelation") -> dict[str, Any]:
        return dict(relation=relation, precondition=dict(clauses=[dict(prop="stage", values=list(values))]))

    one = traincheck.name_of(invariant("training", "testing"))
    assert one == traincheck.name_of(invariant("testing", "training"))
    assert one.startswith("APIContainRelation:")
    assert one != traincheck.name_of(invariant("testing"))


def test_a_command_that_fails_is_said_with_its_reason(tmp_path: Path) -> None:
    folder, scripts = tmp_path / "programs", tmp_path / "bin"
    folder.mkdir()
    scripts.mkdir()
    for name in ("bug.py", "clean.py"):
        (folder / name).write_text("pass\n")
    (scripts / "traincheck-collect").write_text("#!/bin/sh\necho 'TypeError: no proxy of this' >&2\nexit 3\n")
    (scripts / "traincheck-collect").chmod(0o755)
    tool = traincheck.TrainCheck(scripts, folder, tmp_path / "cache", Path(sys.executable))
    results = dict(tool.results("bug.py", "clean.py"))
    assert results["clean.py"]["broke"] == "traincheck-collect ends with 3: TypeError: no proxy of this"
    assert results["bug.py"]["broke"].startswith("its reference clean.py: traincheck-collect ends with 3")
    assert results["bug.py"]["cpu"] is None


def test_the_part_that_a_slow_tool_is_run_on_holds_each_faulty_program_with_its_twin() -> None:
    items = [dict(file=f"{k}_{kind}.py", code="G1" if kind == "bug" else None, twin=f"{k}_{other}.py")
             for k in range(20) for kind, other in (("bug", "clean"), ("clean", "bug"))]  # fmt: skip
    part = audit_peers.traincheck_part(items, 8)
    assert [i["file"] for i in part] == [i["file"] for i in audit_peers.traincheck_part(items[::-1], 8)]
    assert len(part) == 8
    assert {i["twin"] for i in part} == {i["file"] for i in part}
    assert part[0]["code"], "the faulty one first: its reference is run with it"


def test_the_table_has_a_row_for_each_tool() -> None:
    done = {"good.py": dict(findings=[], cpu=1.0, broke=""), "bad.py": dict(findings=[], cpu=1.0, broke="")}
    found = {**done, "bad.py": dict(findings=[_said("TA102")], cpu=3.0, broke="")}
    results = {"torch-audit": found, "bare": done, "torchfix": done}
    text = audit_peers.report([BAD, GOOD], results, {"torch-audit": "0.3.0"})
    (row,) = [line for line in text.splitlines() if line.startswith("| torch-audit 0.3.0 ")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:] == ["2", "1 of 1", "0", "0 of 1", "0", "2.00", "4.00", "2.00x", "2.00x"]
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
