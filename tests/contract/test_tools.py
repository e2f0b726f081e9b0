"""The tools that make rules and their pages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gradledger.audit import registry

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_of_the_rules_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool("generate_docs").main(["--check"]) == 0, capsys.readouterr().err


def test_stale_pages_are_seen_and_written(tmp_path: Path) -> None:
    docs = tool("generate_docs")
    wanted = docs.pages(registry.load())
    folder = tmp_path / "rules"
    docs.write(folder, wanted)
    assert docs.stale(folder, wanted) == []
    (folder / "README.md").write_text("old")
    (folder / "GL-Z99.md").write_text("of no rule")
    assert docs.stale(folder, wanted) == ["README.md is stale", "GL-Z99.md belongs to no rule"]
    docs.write(folder, wanted)
    assert docs.stale(folder, wanted) == []


def test_a_new_rule_keeps_the_contract_but_for_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_rule = tool("new_rule")
    monkeypatch.setattr(new_rule, "ROOT", tmp_path)
    assert new_rule.main(["Z42", "gradient-averaged-twice", "--family", "gradient lifecycle"]) == 0
    audit = tmp_path / "src" / "gradledger" / "audit"
    (path,) = (audit / "rules").glob("*.py")
    assert path.name == "z42_gradient_averaged_twice.py"
    assert {p.name for p in (audit / "fixtures" / "z42").iterdir()} == {"bad.py", "good.py", "near_miss.py"}
    assert "# gradledger: expect GL-Z42" in (audit / "fixtures" / "z42" / "bad.py").read_text()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    assert registry.check(path.stem, module).key == "GL-Z42"
    assert new_rule.main(["Z42", "gradient-averaged-twice", "--family", "gradient lifecycle"]) == 1


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("G1", "another-name", "GL-G01 another-name is taken by GL-G01"),
        ("z42", "a-name", "code 'z42': wanted a letter and a number"),
        ("Z42", "one", "name 'one': wanted kebab-case"),
    ],
)
def test_a_bad_or_taken_code_is_refused(code: str, name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        tool("new_rule").main([code, name, "--family", "modules"])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
