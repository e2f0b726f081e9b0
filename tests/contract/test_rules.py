"""What every rule owes, over the registry: a new rule file is tested here without a new test."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from contract.fixture_scores import ROOT, Program, run
from gradledger.audit import registry
from gradledger.audit.engine import audit
from gradledger.audit.registry import LoadedRule, Registry
from gradledger.audit.rule import FAMILIES, SECTIONS, SEVERITIES, Family
from gradledger.core import events as ev

# The first test of the file waits for the programs of all rules, minutes on a loaded machine.
pytestmark = pytest.mark.timeout(1800)
RULES = registry.load().rules
each_rule = pytest.mark.parametrize("loaded", RULES, ids=lambda loaded: loaded.rule.key)

sys.path.insert(0, str(ROOT / "tools"))
import fastscore  # noqa: E402


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Program]]:
    """Programs of the rules under test, by code."""
    wanted = {
        item.callspec.params["loaded"].rule.code
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "programs" in item.fixturenames
    }
    return run(sorted(wanted), tmp_path_factory.mktemp("contract") / "scores.json")


def test_every_file_among_the_rules_is_a_rule() -> None:
    assert registry.load().broken == ()
    folder = ROOT / "src" / "gradledger" / "audit" / "rules"
    files = {p.stem for p in folder.glob("*.py") if not p.stem.startswith("_")}
    assert files == {r.module.__name__.rpartition(".")[2] for r in RULES}


def test_codes_and_names_are_unique() -> None:
    assert len({r.rule.key for r in RULES}) == len({r.rule.name for r in RULES}) == len(RULES)


def test_every_fixture_folder_belongs_to_a_rule() -> None:
    folders = {p.name for p in registry.FIXTURES.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders == {r.fixtures.name for r in RULES}


@each_rule
def test_record(loaded: LoadedRule) -> None:
    rule = loaded.rule
    assert re.fullmatch(r"[A-Z][1-9]\d?", rule.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name), "kebab-case, and a name that says the bad pattern"
    assert rule.family in FAMILIES == get_args(Family)
    assert rule.severity in SEVERITIES
    assert rule.summary.endswith(".")
    assert "\n" not in rule.summary
    stem = loaded.module.__name__.rpartition(".")[2]
    assert stem == f"{rule.key.removeprefix('GL-').lower()}_{rule.name.replace('-', '_')}"


@each_rule
def test_manual_page_has_its_sections_in_order(loaded: LoadedRule) -> None:
    found = [m[1] for m in re.finditer(r"^#+ (.+)$", loaded.page, re.MULTILINE) if m[1] in SECTIONS]
    assert found == list(SECTIONS)
    for section in re.split(r"^## .+$", loaded.page, flags=re.MULTILINE)[1:]:
        assert section.strip(), "an empty section"


@each_rule
def test_a_rule_imports_neither_torch_nor_the_ledger(loaded: LoadedRule) -> None:
    tree = ast.parse(Path(loaded.module.__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not [n for n in names if n.split(".")[0] in ("torch", "numpy") or n.startswith("gradledger.ledger")]


@each_rule
def test_an_empty_run_gives_nothing_and_does_not_raise(loaded: LoadedRule) -> None:
    report = audit([ev.RunStarted(program="x.py", seq=1), ev.RunEnded(seq=2)], rules=Registry((loaded,)))
    assert report.findings == ()
    assert [n for n in report.not_checked if "itself failed" in n.reason] == []


@each_rule
def test_two_states_share_nothing(loaded: LoadedRule) -> None:
    first, second = loaded.module.init(), loaded.module.init()
    assert first is not second or isinstance(first, int | str | tuple | frozenset | type(None))


@each_rule
def test_listens_names_event_classes(loaded: LoadedRule) -> None:
    listens: Any = getattr(loaded.module, "LISTENS", None)
    assert listens is None or (listens and all(issubclass(kind, ev.Event) for kind in listens))


@each_rule
def test_it_has_its_programs(loaded: LoadedRule) -> None:
    names = {p.stem for p in loaded.fixtures.glob("*.py")}
    assert {"bad", "good", "near_miss"} <= names
    assert all(re.fullmatch(r"(bad|good|near_miss)(_\w+)?", name) for name in names)
    mark = f"# gradledger: expect {loaded.rule.key}"
    for path in loaded.fixtures.glob("*.py"):
        count = path.read_text(encoding="utf-8").count("# gradledger: expect")
        if path.stem.startswith("bad"):
            assert mark in path.read_text(encoding="utf-8"), f"{path} marks no line with {mark}"
        else:
            assert count == 0, f"{path} is correct and marks a line"


@each_rule
def test_the_faulty_programs_are_found_at_the_marked_line_and_nothing_else_is(
    loaded: LoadedRule, programs: dict[str, list[Program]]
) -> None:
    bad = [p for p in programs[loaded.rule.code] if p.expected]
    assert bad
    for program in bad:
        said = [
            (f["code"], f["line"], f["related_lines"], f["message"]) for f in program.found("error", "warning", "info")
        ]
        for code, lines in program.expected.items():
            hits = [f for f in program.found("error", "warning", "info") if fastscore.short(f["code"]) == code]
            assert hits, f"{program.file}: {code} was not found, but {said}\n{program.output}"
            where = [(f["line"], f["related_lines"]) for f in hits]
            assert {line for line, _ in where} & set(lines), f"{program.file}: {code} is at {where}, expected {lines}"
            for line, related in where:
                assert {line, *related} & set(lines), f"{program.file}: {code} is also at {line}, expected {lines}"
            named = {n for _, related in where for n in related}
            for number, text in enumerate(loaded.fixtures.parent.joinpath(program.file).read_text().splitlines(), 1):
                if f"# gradledger: names {loaded.rule.key}" in text and code == loaded.rule.code:
                    assert number in named, f"{program.file}: {code} names {sorted(named)} beside, not line {number}"
        others = [s for s in program.found("error", "warning") if fastscore.short(s["code"]) not in program.expected]
        assert others == [], f"{program.file}: {said}"


@each_rule
def test_the_correct_programs_run_and_nothing_is_found(loaded: LoadedRule, programs: dict[str, list[Program]]) -> None:
    correct = [p for p in programs[loaded.rule.code] if not p.expected]
    assert len(correct) >= 2
    for program in correct:
        assert program.exit_code == 0, f"{program.file}: exit code {program.exit_code}\n{program.output}"
        said = [(f["code"], f["line"], f["message"]) for f in program.found("error", "warning")]
        assert said == [], f"{program.file}: {said}"


@each_rule
def test_no_failure_of_our_own(loaded: LoadedRule, programs: dict[str, list[Program]]) -> None:
    for program in programs[loaded.rule.code]:
        assert program.report is not None, f"{program.file} gave no report:\n{program.output}"
        assert program.report["run"]["failures"] == [], program.file
        failed = [n for n in program.report["not_checked"] if "itself failed" in n["reason"]]
        assert failed == [], program.file


@each_rule
def test_the_stored_runs_are_judged_the_same(loaded: LoadedRule, programs: dict[str, list[Program]]) -> None:
    for program in programs[loaded.rule.code]:
        assert program.replayed == "", program.file


@each_rule
def test_what_a_finding_says(loaded: LoadedRule, programs: dict[str, list[Program]]) -> None:
    own = [
        f
        for p in programs[loaded.rule.code]
        for f in p.found("error", "warning", "info")
        if f["code"] == loaded.rule.key
    ]
    assert own
    for finding in own:
        assert finding["file"].endswith(".py")
        assert finding["line"] > 0
        assert finding["message"].strip()
        assert len(finding["message"]) <= 500, "one or two sentences"
        assert finding["fix"].strip()
        assert finding["evidence"], "a finding shows its numbers"
        for hedge in ("maybe", "perhaps", "might be", "could be wrong"):
            assert hedge not in finding["message"].lower()
