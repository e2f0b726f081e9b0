"""What the benchmark around a scorer adds: CPU seconds of each process, and a part of the cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import audit_score  # noqa: E402

sys.path.remove(str(BENCHMARKS))

SCORER = '''
import json, os, pathlib, subprocess, sys
def run(command, cwd, timeout, env):
    raise AssertionError("replaced")
def main():
    folder = pathlib.Path(sys.argv[1])
    assert sys.argv[2:] == ["--bare", "--jobs", "1"], sys.argv
    for line in (folder / "manifest.jsonl").read_text().splitlines():
        name = json.loads(line)["file"]
        code, text, wall = run([sys.executable, name], folder, 60, os.environ)
        assert (code, text.strip()) == (3, "done"), text
        run([sys.executable, "-X", "utf8", name], folder, 60, os.environ)
        print("scored", name)
    return 5
'''


def _program(seconds: float) -> str:
    return f"import sys, time\nwhile time.process_time() < {seconds}: pass\nprint('done')\nsys.exit(3)\n"


def test_each_process_is_measured_and_the_scorers_verdict_is_the_exit_code(tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    cases.mkdir()
    for k in range(4):
        (cases / f"p{k}.py").write_text(_program(0.2))
    (cases / "manifest.jsonl").write_text("".join(json.dumps({"file": f"p{k}.py"}) + "\n" for k in range(4)))
    (tmp_path / "score.py").write_text(SCORER)
    command = [sys.executable, str(BENCHMARKS / "audit_score.py"), str(tmp_path / "score.py"), str(cases)]
    more = ["--every", "3", "--json", str(tmp_path / "used.json"), "--jobs", "1"]
    done = subprocess.run(command + more, capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("scored")] == ["scored p0.py", "scored p3.py"]
    used = json.loads((tmp_path / "used.json").read_text())
    assert sorted(used) == ["p0.py", "p3.py"]
    assert all(0.2 <= one[kind] < 2 for one in used.values() for kind in ("bare", "audit"))
    assert "over 2 scripts" in done.stdout


def test_a_process_that_is_too_late_has_no_exit_code(tmp_path: Path) -> None:
    code, text, wall, cpu = audit_score.measured(
        [sys.executable, "-c", "print('begun', flush=True)\nwhile True: pass"], tmp_path, 2.0, dict(os.environ)
    )
    assert code is None
    assert text.strip() == "begun"
    assert wall >= 2.0
    assert cpu > 0


def test_the_summary() -> None:
    used = {"a": dict(bare=1.0, audit=1.5), "b": dict(bare=2.0, audit=2.2), "c": dict(bare=1.0)}
    said = audit_score.summary(used)
    assert "median 1.30x, worst 1.50x, all together 1.23x over 2 scripts" in said
    assert "difference 0.35 s; 3 s of CPU without, 4 s with" in said
    assert audit_score.summary({}) == "no script ran both ways"


def test_what_is_no_scorer_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no Python file"):
        audit_score.load(tmp_path / "absent.py")
    (tmp_path / "other.py").write_text("def main(): ...\n")
    with pytest.raises(SystemExit, match="has no function run"):
        audit_score.load(tmp_path / "other.py")
