"""The programs under examples/: they run as plain Python, and the audit says of them what they deserve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from page_blocks import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}

# The faults planted in the one faulty program: the code and the text of the lines at which a person would edit.
PLANTED = {
    "dqn_cartpole": {
        "GL-T03": ["shadow.data = param.data"],
        "GL-G03": ["self.optimizer.zero_grad()", "loss.backward()", "self.optimizer.step()"],
    },
}


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_the_program_runs_as_plain_python(program: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(program)],
        cwd=tmp_path,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "a training program prints its progress"
    assert "nan" not in done.stdout
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_the_audit_finds_the_planted_faults_and_nothing_else(program: Path, tmp_path: Path) -> None:
    planted = PLANTED.get(program.stem, {})
    report = tmp_path / "report.json"
    command = [str(Path(sys.executable).with_name("gradledger")), "audit", "--format", "json", "--output", str(report)]
    done = subprocess.run(
        [*command, "--fail-on", "warning", str(program)],
        cwd=tmp_path,
        env={**ENV, "GRADLEDGER_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == (3 if planted else 0), done.stdout + done.stderr
    document = json.loads(report.read_text(encoding="utf-8"))
    assert document["run"]["failures"] == []
    findings = [f for f in document["findings"] if f["severity"] != "info"]
    assert sorted(f["code"] for f in findings) == sorted(planted)
    source = program.read_text(encoding="utf-8").splitlines()
    for finding in findings:
        assert Path(finding["file"]).name == program.name
        assert source[finding["line"] - 1].strip() in planted[finding["code"]]


def test_exactly_one_example_is_faulty_and_says_so() -> None:
    says = {path.stem for path in EXAMPLES if "faults are planted" in path.read_text(encoding="utf-8")}
    assert says == set(PLANTED)
    assert len(EXAMPLES) >= 4
