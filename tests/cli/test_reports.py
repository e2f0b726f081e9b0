"""Reports, lists and comparisons as a user asks for them.  Two runs are recorded once; most tests replay them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from audit.render.html_structure import Page
from audit.render.sarif_structure import problems
from gradledger.cli.main import entry

Run = Callable[..., "Done"]

CORRECT = """\
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
target = torch.nn.Linear(3, 1).requires_grad_(False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(12):
    x = torch.randn(8, 3)
    loss = (net(x) - target(x)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("end", step)
"""
FAULTY = CORRECT.replace("    optimizer.zero_grad()\n", "")
NO_TORCH = (
    "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; sys.argv[0] = 'gradledger';"
    "from gradledger.cli.main import entry; entry()"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both programs and their runs, `good` and `bad`."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "correct.py").write_text(CORRECT)
    (folder / "faulty.py").write_text(FAULTY)
    for name, program in (("good", "correct.py"), ("bad", "faulty.py")):
        done = gradledger(folder, "audit", "--run", name, "--fail-on", "never", program)
        assert done.returncode == 0, done.stderr
    return folder


def gradledger(folder: Path, *words: str, torch: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    how = ("-m", "gradledger.cli.main") if torch else ("-c", NO_TORCH)
    given = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")}
    return subprocess.run(
        [sys.executable, *how, *words],
        cwd=folder,
        env={**given, "OMP_NUM_THREADS": "1", "GRADLEDGER_HOME": str(folder / "home"), **env},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@dataclass(frozen=True)
class Done:
    """What a command did: exit code and streams."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def replayed(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command within this process, in the folder of the runs: for what runs no program."""
    monkeypatch.chdir(place)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRADLEDGER_HOME", str(place / "home"))

    def run(*words: str, **env: str) -> Done:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["gradledger", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            entry()
        out, err = capsys.readouterr()
        return Done(int(stop.value.code or 0), out, err)

    return run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("audit", "--replay", "bad", "--format", "html", "--output", "alone.html", "--like", "good"), ""),
        (("ledger", "bad", "--kind", "step", "--limit", "1"), "SGD 1, step 0"),
        (("gradflow", "--replay", "bad", "--json", "alone.json"), "4 of 6 parameters carry"),
    ],
)
def test_a_recorded_run_is_shown_without_torch(place: Path, words: tuple[str, ...], says: str) -> None:
    done = gradledger(place, *words, torch=False)
    assert done.returncode == (3 if words[0] == "audit" else 0), done.stderr
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------- forms


def test_html_to_a_file(replayed: Run, place: Path) -> None:
    done = replayed("audit", "--replay", "bad", "--format", "html", "--output", "report.html")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    page = Page((place / "report.html").read_text(encoding="utf-8"))
    assert page.problems == []
    for words in ("GL-G01", "faulty.py:11", "Where gradients flow", "4 of 6 parameters carry a gradient", "net.0"):
        assert words in page.text


def test_html_of_a_running_program_keeps_its_streams(place: Path) -> None:
    done = gradledger(place, "audit", "--run", "again", "--format", "html", "--output", "live.html", "correct.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end 11\n", "")
    page = Page((place / "live.html").read_text(encoding="utf-8"))
    assert page.problems == []
    assert "no fault found in correct.py" in page.text
    assert "Watched" in page.text


def test_sarif_to_a_file(replayed: Run, place: Path) -> None:
    done = replayed("audit", "--replay", "bad", "--format", "sarif", "--output", "report.sarif")
    assert (done.returncode, done.stderr) == (3, "")
    document = json.loads((place / "report.sarif").read_text(encoding="utf-8"))
    assert problems(document) == []
    (result,) = document["runs"][0]["results"]
    assert result["ruleId"] == "GL-G01"
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "faulty.py"


# ------------------------------------------------------------------------------------------- the browser


def browser(folder: Path, body: str) -> str:
    script = folder / "browser.sh"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return f"{script} %s"


def wait_for(path: Path) -> str:
    for _ in range(300):
        if path.is_file() and path.read_text():
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} was not written")


def test_open_starts_the_browser_and_does_not_wait_for_it(replayed: Run, place: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    command = browser(tmp_path, f'echo noise; echo noise >&2; echo "$1" > {seen}; sleep 20')
    began = time.monotonic()
    done = replayed("audit", "--replay", "bad", "--open", BROWSER=command)
    assert time.monotonic() - began < 15
    assert done.returncode == 3
    page = place / "bad" / "report.html"
    assert done.stderr.endswith(f"gradledger: opened: {page}\n")
    assert "noise" not in done.stdout + done.stderr
    assert wait_for(seen).strip() == page.as_uri()
    assert Page(page.read_text(encoding="utf-8")).problems == []


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({}, "there is no display"),
        ({"BROWSER": "/no/such/browser %s"}, "no browser was found"),
        ({"BROWSER": "'"}, "BROWSER: No closing quotation"),
    ],
)
def test_without_a_browser_the_page_is_written_and_named(
    replayed: Run, place: Path, env: dict[str, str], says: str
) -> None:
    done = replayed("audit", "--replay", "good", "--open", **env)
    assert done.returncode == 0
    assert says in done.stderr
    assert done.stderr.endswith(f"the page is {place / 'good' / 'report.html'}\n")


# ------------------------------------------------------------------------------------------- --like


def test_like_tells_what_differs_and_changes_no_exit_code(replayed: Run) -> None:
    done = replayed("audit", "--replay", "bad", "--like", "good", "--fail-on", "never")
    assert done.returncode == 0
    assert "differences from good, over 6 parameters" in done.stderr
    assert "1 clear, 1 pass a step" in done.stderr
    assert "iteration 0, faulty.py:11" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--fail-on", "never", "--fail-on-difference", "--like", "good", "--replay", "bad"), 4),
        (("--fail-on-difference", "--like", "good", "--replay", "bad"), 3),
        (("--fail-on-difference", "--like", "good", "--replay", "good"), 0),
    ],
)
def test_fail_on_difference(replayed: Run, words: tuple[str, ...], code: int) -> None:
    assert replayed("audit", *words).returncode == code


def test_like_with_a_running_program(place: Path) -> None:
    done = gradledger(place, "audit", "--run", "again", "--like", "good", "--fail-on-difference", "correct.py")
    assert done.returncode == 0, done.stderr
    assert "0 differences from good" in done.stderr
    assert "gradient norms are equal in the first 12 measured iterations" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("audit", "--like", "nothing", "correct.py"), "--like: got 'nothing'"),
        (("audit", "--fail-on-difference", "correct.py"), "--fail-on-difference without --like"),
        (("audit", "--open=yes", "correct.py"), "--open alone: it takes no value"),
        (("audit", "--format", "pdf", "correct.py"), "text or json or md or html or sarif"),
        (("ledger", "nothing"), "gradledger ledger: got 'nothing'"),
        (("ledger", "good", "--iteration", "x"), "got 'x', wanted an iteration such as 7"),
        (("ledger", "good", "--iteration", "5..2"), "got '5..2'"),
        (("ledger", "good", "--kind", "hop"), "got hop, wanted a kind of fact"),
        (("ledger", "good", "--parameter", "zz*"), "there are: net.0.weight"),
        (("gradflow", "gone.py"), "gone.py, which does not exist"),
        (("gradflow", "--iteration", "-1", "correct.py"), "--iteration -1, wanted a number from 0"),
        (("gradflow", "--json", "no/folder/x", "correct.py"), "--json"),
        (("gradflow",), "gradledger gradflow: got no program"),
    ],
)
def test_what_cannot_run_exits_with_2_and_says_why(replayed: Run, words: tuple[str, ...], message: str) -> None:
    done = replayed(*words)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------- the ledger


def test_the_facts_of_a_run(replayed: Run) -> None:
    done = replayed("ledger", "good", "--iteration", "3", "--kind", "clear,step", "--kind", "backward")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[1:] for line in lines[::2] if "net" not in line][:3] == [
        ["3", "clear", "correct.py:10"], ["3", "backward", "correct.py:11"], ["3", "step", "correct.py:12"]
    ]  # fmt: skip
    assert "SGD 1, step 3: 4 filled by 1 pass" in done.stdout


def test_facts_about_a_parameter_or_a_module(replayed: Run) -> None:
    def found(*words: str) -> list[dict[str, object]]:
        done = replayed("ledger", "good", "--json", "--limit", "0", *words)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    about = found("--parameter", "target.*")
    assert {fact["fact"] for fact in about} == {"tensor_registered", "grad_flag_set"}
    assert all("target.weight" in str(fact["names"]) or "target.bias" in str(fact["names"]) for fact in about)
    modules = found("--module", "net", "--kind", "module_made,step")
    assert {str(f["fact"]) for f in modules} == {"module_made", "step"}
    assert len([f for f in modules if f["fact"] == "module_made"]) == 4, "the module and its three parts"
    assert len(found("--kind", "step", "--iteration", "4..")) == 8
    assert len(found("--kind", "step", "--iteration", "..4")) == 5


def test_the_limit_is_told_and_nothing_found_is_code_1(replayed: Run) -> None:
    done = replayed("ledger", "good", "--limit", "2")
    assert len(done.stdout.splitlines()) == 4
    assert "the first 2 facts; --limit 0 shows all" in done.stderr
    none = replayed("ledger", "good", "--kind", "clip")
    assert (none.returncode, none.stdout) == (1, "")
    assert "no fact was chosen" in none.stderr


# ------------------------------------------------------------------------------------------- gradflow


def test_gradflow_of_a_program(place: Path) -> None:
    done = gradledger(place, "gradflow", "--json", "flow.json", "correct.py", "--x")
    assert (done.returncode, done.stdout) == (0, "end 11\n")
    assert done.stderr.startswith("gradflow: iteration 0 of correct.py: 4 of 6 parameters carry a gradient\n")
    assert "requires_grad is False (correct.py:5)" in done.stderr
    document = json.loads((place / "flow.json").read_text())
    assert [p["carries"] for p in document["parameters"]] == [True] * 4 + [False] * 2
    assert all(p["norm"] > 0 for p in document["parameters"][:4])


def test_gradflow_of_a_late_iteration_then_stop(place: Path) -> None:
    (place / "long.py").write_text(CORRECT.replace("range(12)", "range(100000)"))
    done = gradledger(place, "gradflow", "--iteration", "1203", "--stop", "long.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("gradflow: iteration 1203 of long.py: 4 of 6 parameters carry a gradient\n")
    assert "SGD 1" in done.stderr
    assert "–  1 pass" not in done.stderr, "a late iteration is measured as an early one is"


def test_gradflow_keeps_the_exit_code_and_says_when_there_was_no_such_iteration(place: Path) -> None:
    (place / "fails.py").write_text(CORRECT + "raise SystemExit(7)\n")
    done = gradledger(place, "gradflow", "--output", "flow.txt", "fails.py")
    assert (done.returncode, done.stderr) == (7, "")
    assert "4 of 6 parameters" in (place / "flow.txt").read_text()
    late = gradledger(place, "gradflow", "--iteration", "500", "correct.py")
    assert late.returncode == 3
    assert "iteration 500 was not seen" in late.stderr
    (place / "plain.py").write_text("print('no tensor')\n")
    plain = gradledger(place, "gradflow", "plain.py")
    assert (plain.returncode, plain.stdout) == (3, "no tensor\n")
    assert "never imported torch" in plain.stderr


def test_gradflow_of_a_recorded_run_and_help(replayed: Run) -> None:
    done = replayed("gradflow", "--replay", "good", "--iteration", "4")
    assert done.returncode == 0
    assert "iteration 4 of correct.py: 4 of 6" in done.stderr
    shown = replayed("gradflow", "--help").stdout
    assert all(name in shown for name in ("--iteration", "--stop", "Exit code"))
