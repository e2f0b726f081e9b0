"""The same program with and without us: every byte it prints, its exit code, every final weight and random state.

Each program under `programs/` exercises one hard thing and prints digests of its weights and generators at its end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
AUDIT = (
    str(Path(sys.executable).with_name("gradledger")),
    "audit",
    "--fail-on",
    "never",
    "--format",
    "json",
    "--output",
)
TIMEOUT_S = 300
# Programs about the end of Python, or about what they find in their environment: they are started as a user does.
AT_THE_END = {
    "hooks_at_end.py",
    "lifetimes.py",
    "uncaught.py",
    "chained.py",
    "signals.py",
    "stdin_exit.py",
    "environment.py",
}


@dataclass(frozen=True)
class Case:
    """A command line of Python, what it is given, and the exit code that shows that it came to its end."""

    command: str
    exit_code: int = 0
    flags: tuple[str, ...] = ()
    stdin: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    reports: bool = True
    told: int | None = None  # exit code in the report, where it is another one
    or_else: int | None = None  # the other end that Python knows for it: of Ctrl-C where the signal is blocked

    def __str__(self) -> str:
        return " ".join((*self.flags, self.command, *(f"{k}={v}" for k, v in self.environment)))


CASES = (
    Case("compiled_native.py"),
    Case("loaders.py spawn"),
    Case("children.py fork,spawn"),
    Case("compiled.py graphs"),
    Case("compiled.py aot_eager"),
    Case("scripted.py"),
    Case("distributed.py"),
    Case("loaders.py fork"),
    Case("draws.py fork"),
    Case("draws.py spawn"),
    Case("-m pack.train a b", 1),
    Case("supervised.py --steps 30 a --b", 2),
    Case("supervised.py --steps 30 a b"),
    Case("uncaught.py loss", 1),
    Case("uncaught.py backward", 1),
    Case("uncaught.py closure", 1),
    Case("chained.py", 1),
    Case("warn_python.py"),
    Case("warn_python.py", 1, flags=("-W", "error:Using a target size:UserWarning:__main__")),
    Case(
        "warn_python.py", environment=(("PYTHONWARNINGS", "ignore::UserWarning:torch.overrides,always::FutureWarning"),)
    ),
    Case("warn_native.py"),
    Case("warn_native.py", 1, flags=("-W", "error:The .grad attribute")),
    Case("stdin_exit.py text", 1, stdin="1 2 3\n4.5\n"),
    Case("stdin_exit.py hard", 7, stdin="0.5", reports=False),
    Case("stdin_exit.py nested", 4, stdin="2 2"),
    Case("pickles.py"),
    Case("threads.py"),
    Case("seeds.py"),
    Case("functional.py"),
    Case("autograds.py"),
    Case("attention.py"),
    Case("scaled.py"),
    Case("closures.py"),
    Case("optimizers.py"),
    Case("modes.py"),
    Case("signals.py plain", -2, told=130, or_else=1),
    Case("signals.py handler"),
    Case("signals.py terminated", -15, reports=False),
    Case("hooks_at_end.py leaves", 9),
    Case("hooks_at_end.py default", 1),
    Case("environment.py", environment=(("OMP_NUM_THREADS", ""),)),
    Case("lifetimes.py"),
    Case("stacks.py"),
    Case("reinforce.py"),
    Case("optimized.py", flags=("-O",)),
    Case("folder a", 6),
)


# Iterations that the oracle explains, and in which it abstains, at least: so it is known to have run.
WITH_ORACLE = {"autograds.py": (0, 4), "lifetimes.py": (3, 0), "reinforce.py": (4, 0)}


@dataclass(frozen=True)
class Ran:
    stdout: str
    stderr: str
    exit_code: int


def _run(case: Case, folder: Path, report: Path | None, *options: str) -> Ran:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "GRADLEDGER", "TORCH"))}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / ("kernels" if report is None else "kernels_of_the_watched_run")),
        "COLUMNS": "100",
        **dict(case.environment),
    }
    if case.command.split()[0] not in AT_THE_END:
        environment["PYTHONPATH"] = str(Path(__file__).parent / "ended")
    watch = () if report is None else (*AUDIT, str(report), *options)
    done = subprocess.run(
        [sys.executable, *case.flags, *watch, *case.command.split()],
        cwd=folder / "programs",
        input=case.stdin,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return Ran(done.stdout, done.stderr, done.returncode)


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Case, tuple[Future[Ran], Future[Ran], Path]]]:
    """Both runs of every selected case, started side by side on all cores."""
    wanted = [
        item.callspec.params["case"] for item in request.session.items if "case" in getattr(item, "fixturenames", ())
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = {}
        for number, case in enumerate(case for case in CASES if case in wanted):
            folder = tmp_path_factory.mktemp(f"parity{number}")
            shutil.copytree(PROGRAMS, folder / "programs", ignore=shutil.ignore_patterns("__pycache__"))
            (folder / "programs" / "note.txt").write_text("a note")
            report = folder / "report.json"
            started[case] = pool.submit(_run, case, folder, None), pool.submit(_run, case, folder, report), report
        yield started
        for future in [f for bare, watched, _ in started.values() for f in (bare, watched)]:
            future.cancel()


def _id(case: Case) -> str:
    """Without "::", by which pytest-xdist would take the rest for a test of another file, and run every case again."""
    return str(case).replace("::", ":")


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_a_program_cannot_tell(case: Case, runs: dict[Case, tuple[Future[Ran], Future[Ran], Path]]) -> None:
    bare, watched, report = runs[case]
    alone, under_watch = bare.result(), watched.result()
    assert under_watch.stdout == alone.stdout
    assert under_watch.stderr == alone.stderr
    assert under_watch.exit_code == alone.exit_code
    ends = (case.exit_code, case.or_else)
    assert alone.exit_code in ends, "the program did not come to the end that this case is about"
    assert alone.stdout or alone.stderr
    if case.reports:
        told = json.loads(report.read_text())
        assert told["checked"], "nothing was watched"
        assert told["exit_code"] == (case.exit_code if case.told is None else case.told)


@pytest.mark.parametrize("case", [case for case in CASES if str(case) in WITH_ORACLE], ids=_id)
def test_nor_when_gradients_are_computed_again(
    case: Case, runs: dict[Case, tuple[Future[Ran], Future[Ran], Path]], tmp_path: Path
) -> None:
    bare, watched, beside = runs[case]
    alone, _ = bare.result(), watched.result()
    report = tmp_path / "report.json"
    explained = _run(case, beside.parent, report, "--oracle=1")  # where they ran: tracebacks name the folder
    assert explained == alone
    told = json.loads(report.read_text())
    explained_at_least, abstained_at_least = WITH_ORACLE[str(case)]
    assert told["oracle"]["explained"] >= explained_at_least
    assert told["oracle"]["not_replayable"] >= abstained_at_least
    assert told["run"]["failures"] == []


def test_every_program_is_run() -> None:
    named = {word for case in CASES for word in case.command.split()}
    files = {path.name for path in PROGRAMS.iterdir() if not path.name.startswith("__")} - {"digest.py"}
    assert {name for name in files if name not in named} == {"pack"}
    assert len({case.command.split()[0] for case in CASES}) >= 25
