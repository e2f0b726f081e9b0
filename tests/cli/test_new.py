"""`gradledger new experiment`: what it writes runs at once, ends with verdicts, and can be checked and repeated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradledger.cli import _app
from gradledger.evidence import bundle

NAME = "my_first_rates"


def command(*words: str) -> Any:
    return CliRunner().invoke(_app.build(), list(words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("new") / "deep"
    said = command("new", "experiment", NAME, "-o", str(where))
    assert (said.exit_code, f"python {where / NAME}.py" in said.output) == (0, True), said.exception
    return where


def python(folder: Path, *words: str) -> Any:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    done = python(folder, f"{NAME}.py")
    assert done.returncode == 0, done.stderr
    assert "H1 supported" in done.stdout
    return folder / "runs" / NAME


def test_it_runs_at_once_and_ends_with_verdicts(folder: Path, run: Path) -> None:
    told = json.loads((run / "results.json").read_text())
    assert told["experiment"] == f"{NAME}.py"
    assert {one["id"]: one["verdict"] for one in told["hypotheses"]} == dict.fromkeys(("H1", "H2", "H3"), "supported")
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert not any("NAME" in (folder / f"{NAME}{suffix}").read_text() for suffix in (".py", ".toml", ".card.toml"))


def test_what_it_leaves_is_sealed_scored_and_run_anew(folder: Path, run: Path) -> None:
    card = (run / "README.md").read_text()
    assert f"# {NAME}" in card
    assert "| fast | 2 | finished | 0.0" in card
    assert json.loads((run / "environment.json").read_text())["torch"]["threads of a trial"] == 1
    bundle.seal(run)
    assert command("rescore", str(run), "--quantity", "validation").exit_code == 0
    again = command("repredict", str(run), "--code", str(folder / f"{NAME}.py"))
    assert (again.exit_code, "6 of 6 arrays agree" in again.output) == (0, True), again.output
    said = command("retrain", str(run), "--code", str(folder / f"{NAME}.py"), "--tolerance", "0", "--arm", "fast")
    sys.modules.pop(NAME)
    sys.path.remove(str(folder))
    assert (said.exit_code, "3 of 3 quantities agree" in said.output) == (0, True), said.output
    assert bundle.verify(run) == []


def test_a_plan_changed_after_the_run_is_refused(folder: Path, run: Path) -> None:
    plan = folder / f"{NAME}.toml"
    kept = plan.read_text()
    plan.write_text(kept.replace("low = 2.0", "low = 1.2"))
    done = python(folder, f"{NAME}.py")
    plan.write_text(kept)
    assert (done.returncode, "hypotheses.H1.predicate.low" in done.stderr) == (1, True)


def test_nothing_is_replaced_and_names_that_cannot_be_imported_are_refused(folder: Path, tmp_path: Path) -> None:
    before = (folder / f"{NAME}.py").read_text()
    assert "there already" in str(command("new", "experiment", NAME, "-o", str(folder)).exception)
    assert (folder / f"{NAME}.py").read_text() == before
    (tmp_path / "half.toml").write_text("mine")
    assert "there already" in str(command("new", "experiment", "half", "-o", str(tmp_path)).exception)
    assert [path.name for path in tmp_path.iterdir()] == ["half.toml"]
    for name, why in (("my-run", "can import"), ("../up", "can import"), ("class", "can import"), ("json", "module")):
        assert why in str(command("new", "experiment", name, "-o", str(tmp_path)).exception)
    (tmp_path / "file").write_text("")
    assert "a folder that can be written" in str(
        command("new", "experiment", "mine_x", "-o", str(tmp_path / "file")).exception
    )
