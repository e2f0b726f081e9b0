"""The command as a user runs it: exit codes, streams, forms of the report, replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

FAULTY = """\
import sys
import torch

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(12):
    loss = net(torch.randn(8, 3)).pow(2).mean()
    loss.backward()
    optimizer.step()
print("arguments", sys.argv[1:], __name__)
print("to the other stream", file=sys.stderr)
"""
CORRECT = FAULTY.replace("    loss.backward()\n", "    optimizer.zero_grad()\n    loss.backward()\n")


@pytest.fixture
def command(tmp_path: Path) -> Run:
    """`gradledger` in a scratch folder that holds faulty.py and correct.py."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    (tmp_path / "correct.py").write_text(CORRECT)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GRADLEDGER_HOME": str(tmp_path / "home")}

    def run(*words: str, python: tuple[str, ...] = ("-m", "gradledger.cli.main")) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *python, *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    return run


def test_findings_go_to_standard_error_and_the_program_keeps_its_output(command: Run) -> None:
    done = command("audit", "faulty.py", "--format", "json")
    assert done.stdout == "arguments ['--format', 'json'] __main__\n"
    assert done.returncode == 3
    assert done.stderr.startswith("to the other stream\ngradledger: 1 error in faulty.py\n")
    assert "GL-G01" in done.stderr
    assert " 9 │ " in done.stderr


def test_a_correct_program_keeps_its_exit_code(command: Run) -> None:
    done = command("audit", "correct.py")
    assert done.returncode == 0
    assert "gradledger: no fault found in correct.py" in done.stderr


def test_json_to_a_file_leaves_both_streams_alone_and_replay_judges_the_same(command: Run, tmp_path: Path) -> None:
    done = command("audit", "--format", "json", "--output", "report.json", "--run", "kept", "faulty.py")
    assert (done.stdout, done.stderr) == ("arguments [] __main__\n", "to the other stream\n")
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(f["code"], f["line"], f["count"]) for f in report["findings"]] == [("GL-G01", 9, 11)]
    assert report["findings"][0]["file"] == str(tmp_path / "faulty.py")
    assert (report["program"], report["exit_code"]) == ("faulty.py", 0)

    without_torch = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; sys.argv[0] = 'gradledger';"
        "from gradledger.cli.main import entry; entry()"
    )
    again = command(
        "audit", "--format", "json", "--output", "again.json", "--replay", "kept", python=("-c", without_torch)
    )
    assert again.returncode == 3, again.stderr
    replayed = json.loads((tmp_path / "again.json").read_text())
    assert replayed["findings"] == report["findings"]
    assert replayed["checked"] == report["checked"]
    assert {p.name for p in tmp_path.iterdir()} == {"faulty.py", "correct.py", "report.json", "again.json", "kept"}


@pytest.mark.parametrize(("level", "code"), [("never", 0), ("error", 3)])
def test_fail_on(command: Run, level: str, code: int) -> None:
    assert command("audit", "--fail-on", level, "faulty.py").returncode == code


def test_a_program_that_fails_keeps_its_exit_code_and_its_traceback(command: Run, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(FAULTY + "raise ValueError('of the program')\n")
    done = command("audit", "raises.py")
    assert done.returncode == 1
    assert "ValueError: of the program" in done.stderr
    assert "gradledger/" not in done.stderr.partition("gradledger: ")[0]
    assert "ended by ValueError at raises.py:13" in " ".join(done.stderr.split())
    (tmp_path / "exits.py").write_text(FAULTY + "sys.exit(7)\n")
    assert command("audit", "exits.py").returncode == 7


def test_a_program_that_never_trained_is_not_called_sound(command: Run, tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text("import argparse\nimport torch\nargparse.ArgumentParser().parse_args()\n")
    done = command("audit", "words.py", "--format", "json")
    assert done.returncode == 2
    assert "nothing to judge in words.py: no backward and no step ran" in done.stderr
    told = " ".join(done.stderr.split())
    assert "--format stood after the program's name, so the program got it: ours come before it" in told


def test_select_and_ignore(command: Run) -> None:
    done = command("audit", "--select", "T", "faulty.py")
    assert done.returncode == 0
    assert "GL-G01" not in done.stderr


def test_an_allowed_finding_is_not_counted(command: Run, tmp_path: Path) -> None:
    text = FAULTY.replace("loss.backward()", "loss.backward()  # gradledger: allow[GL-G01] grows on purpose")
    (tmp_path / "allowed.py").write_text(text)
    done = command("audit", "allowed.py")
    assert done.returncode == 0
    assert "allowed: GL-G01 at allowed.py:9 (grows on purpose)" in done.stderr


def test_a_program_without_torch(command: Run, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('no tensor here')\n")
    done = command("audit", "plain.py")
    assert (done.returncode, done.stdout) == (0, "no tensor here\n")
    assert "never imported torch" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("audit", "gone.py"), "gone.py, which does not exist"),
        (("audit",), "got no program"),
        (("audit", "--select", "Z9", "faulty.py"), "got 'Z9'"),
        (("audit", "--output", "no/such/folder/x.json", "faulty.py"), "a file in a folder that exists"),
        (("audit", "--replay", "nothing"), "got 'nothing'"),
        (("audit", "--run", "correct.py", "faulty.py"), "--run: got correct.py, which is a file, wanted a folder"),
        (("explain", "Z9"), "`gradledger rules` lists every code and name"),
    ],
)
def test_what_cannot_run_exits_with_2_and_says_why(command: Run, words: tuple[str, ...], message: str) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_explain_and_rules(command: Run) -> None:
    page = command("explain", "G1").stdout
    assert page.startswith("# GL-G01 ")
    assert "## Program with the fault" in page
    assert "# <- GL-G01" in page
    listed = json.loads(command("rules", "--json").stdout)
    assert "GL-G01" in {row["code"] for row in listed}
    assert "GL-G01" in command("rules").stdout


def test_help_and_version(command: Run) -> None:
    assert "--fail-on LEVEL" in command("audit", "--help").stdout
    top = command("--help").stdout
    assert all(verb in top for verb in ("audit", "explain", "rules"))
    assert command("--version").stdout.startswith("gradledger ")


def test_the_audit_loads_neither_typer_nor_rich_before_the_program(command: Run, tmp_path: Path) -> None:
    names = "('typer', 'click', 'rich', 'torch', 'numpy', 'pytest')"
    (tmp_path / "looks.py").write_text(f"import sys\nprint([m for m in {names} if m in sys.modules])\n")
    done = command("audit", "looks.py")
    assert done.stdout == "[]\n"


def test_a_module_and_a_folder(command: Run, tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(FAULTY)
    done = command("audit", "--fail-on", "never", "-m", "pkg.train", "--lr", "3", "-m")
    assert done.stdout == "arguments ['--lr', '3', '-m'] __main__\n"
    assert done.returncode == 0
    assert "pkg/train.py:9" in done.stderr
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "__main__.py").write_text(FAULTY)
    assert "app/__main__.py:9" in command("audit", "app").stderr


def test_a_program_that_closes_standard_error_is_reported_on(command: Run, tmp_path: Path) -> None:
    (tmp_path / "closes.py").write_text(FAULTY + "sys.stderr.close()\n")
    done = command("audit", "closes.py")
    assert done.returncode == 3
    assert "GL-G01" in done.stderr
