"""Run training programs that none of us wrote, with and without the audit, and compare every bit.

    python tests/primer/run.py [NAME ...] [--json FILE] [--runs FOLDER] [--processes] [--oracle EVERY] [--selfcheck]

Needs the [primer] extra.  For each program under tests/primer/programs: the exit code and its last line, which digests
every weight and the random state, must be the same (lines before may hold times); findings are listed for a person to
judge in docs/results/primer.md.  A program whose library is not installed is named as not run and counts for nothing.

Libraries are imported once, here, and each program runs in two forks: one bare, one as `gradledger audit` would run it.
A library that cannot be loaded beside those of the programs before it gets processes of its own.
With `--processes` each starts from nothing, as from a shell, which costs the imports twice a program.  `--runs` keeps
the recorded runs: `gradledger audit --replay FOLDER/NAME` judges one again, with other rules.  `--oracle EVERY` has the
oracle look at every EVERY-th iteration.

With `--selfcheck` the comparison is that of `gradledger audit --selfcheck`: parameters, gradients, optimizer states and
random generators after optimizer steps, every module alive at the end, both output streams and every file left.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import gc
import importlib
import json
import os
import resource
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
TOOLS = Path(__file__).resolve().parents[2] / "tools"
CPU_LIMIT = 300  # seconds a program may compute
ENVIRONMENT = dict(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", KERAS_BACKEND="torch", DDE_BACKEND="pytorch")


@dataclass(frozen=True)
class Ran:
    """One run: exit code (negative: the signal), its output, seconds of computing."""

    code: int
    out: str
    err: str
    seconds: float


def imported(program: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(module, names taken from it) for every import of a library at the head of a program."""
    for node in ast.parse(program.read_text()).body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("_"):
            yield node.module, tuple(alias.name for alias in node.names)


def preload() -> None:
    """Import torch and the audit itself, as they are now."""
    sys.path.insert(0, str(TOOLS))
    import _forkserver

    _forkserver.preload()
    import gradledger.audit.render.json
    import gradledger.watch  # noqa: F401


def absent(program: Path) -> str:
    """Import a program's libraries; what the first that is not there is called, or ""."""
    for module, names in imported(program):
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as error:
            return error.name or module
        for name in names:  # some packages load their parts when these are asked for
            getattr(loaded, name, None)
    return ""


def fork(work: Callable[[], None], folder: Path) -> Ran:
    """Run `work` in a child of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # the children's collector leaves shared pages alone
    pid = os.fork()
    if not pid:
        _child(work, folder)
    _, status, used = os.wait4(pid, 0)
    out, err = ((folder / name).read_text(errors="replace") for name in ("out", "err"))
    return Ran(os.waitstatus_to_exitcode(status), out, err, used.ru_utime + used.ru_stime)


def _child(work: Callable[[], None], folder: Path) -> None:
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT))
        for descriptor, name in ((1, "out"), (2, "err")):
            with (folder / name).open("wb") as file:
                os.dup2(file.fileno(), descriptor)
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def bare(program: Path) -> None:
    """What `python PROGRAM` does."""
    sys.argv[:] = [str(program)]
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program), run_name="__main__")


def watched(program: Path, options: list[str]) -> None:
    """What `gradledger audit PROGRAM` does."""
    from gradledger.cli.commands.audit import main
    from gradledger.ledger import _site

    _site.set_aside(sys._getframe())  # this runner's own frames are no part of the program
    main([*options, str(program)])


def process(command: list[str]) -> Ran:
    """Run a command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(done.returncode, done.stdout, done.stderr, seconds)


def loaded(program: Path, processes: bool) -> tuple[str, bool]:
    """Import a program's libraries: what is not installed, or "", and whether it needs processes of its own."""
    try:
        return absent(program), processes
    except Exception:  # some libraries are not to be loaded beside one that another program needs
        return "", True


def one(program: Path, runs: Path | None, processes: bool, oracle: int) -> dict[str, Any]:
    """One program, both ways."""
    missing, processes = loaded(program, processes)
    row: dict[str, Any] = dict(program=program.stem, same=False, absent=missing, error="", findings=[])
    if missing:
        row["error"] = f"{row['absent']} is not installed"
        return row
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = folder / "report.json"
        kept = runs / program.stem if runs is not None else folder / "run"
        options = ["--fail-on", "never", "--format", "json", "--output", str(report), "--run", str(kept)]
        options += [f"--oracle={oracle}"] if oracle else []
        if processes:
            without = process([str(program)])
            audited = process(["-m", "gradledger", "audit", *options, str(program)])
        else:
            without = fork(lambda: bare(program), folder)
            audited = fork(lambda: watched(program, options), folder)
        found = json.loads(report.read_text()) if report.exists() else None
    same_end = without.out.splitlines()[-1:] == audited.out.splitlines()[-1:]
    row["same"] = without.code == audited.code == 0 and same_end and found is not None
    row["seconds"] = [round(without.seconds, 1), round(audited.seconds, 1)]
    if without.code:
        row["error"] = f"does not run by itself (exit {without.code}): {without.err[-1500:]}"
    elif not row["same"]:
        row["error"] = f"exit {audited.code}: {without.out[-300:]} {audited.out[-300:]} {audited.err[-1500:]}"
    row["events"] = found["run"]["events"] if found else 0
    row["oracle"] = (found or {}).get("oracle")
    row["findings"] = [
        f"{f['code']} {f['severity']} {f['file']}:{f['line']} {f['message']}" for f in (found or {}).get("findings", [])
    ]
    return row


def selfchecked(program: Path, processes: bool, oracle: int) -> dict[str, Any]:
    """One program as `gradledger audit --selfcheck` compares it; what differs in forks is run again in processes."""
    import _forked
    import selfcheck

    from gradledger.cli import _selfcheck

    missing, processes = loaded(program, processes)
    row: dict[str, Any] = dict(program=program.stem, same=False, absent=missing, error="", findings=[])
    if missing:
        row["error"] = f"{missing} is not installed"
        return row
    for launch in (_selfcheck.spawn,) if processes else (_forked.launch, _selfcheck.spawn):
        answer = selfcheck.one(PROGRAMS, program.name, alone=False, oracle=oracle, launch=launch)
        row |= dataclasses.asdict(answer) | {"program": program.stem, "same": answer.same and answer.exit_code == 0}
        row["forked"] = launch is not _selfcheck.spawn
        if row["same"]:
            break
    row["bits"] = sum(kind.compared for kind in answer.rows)
    unsteady = [name for kind in answer.rows for name in kind.unsteady]
    row["error"] = f"does not repeat without the audit either: {', '.join(unsteady[:6])}" if unsteady else ""
    if not row["same"]:
        row["error"] += "\n" + _selfcheck.render(answer)
    return row


def main() -> int:
    """Print one block a program; 1 when anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--oracle", type=int, default=0, metavar="EVERY")
    parser.add_argument("--selfcheck", action="store_true")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if not (PROGRAMS / f"{name}.py").exists()]
    if unknown:
        parser.error(f"no program of that name in {PROGRAMS}: {', '.join(unknown)}")
    os.environ.update(ENVIRONMENT)
    if not arguments.processes:
        preload()
    chosen = [PROGRAMS / f"{name}.py" for name in arguments.names] or sorted(PROGRAMS.glob("[a-z]*.py"))
    rows = []
    for program in chosen:
        if arguments.selfcheck:
            row = selfchecked(program, arguments.processes, arguments.oracle)
        else:
            row = one(program, arguments.runs, arguments.processes, arguments.oracle)
        rows.append(row)
        verdict = "not run" if row["absent"] else "same" if row["same"] else "DIFFERS"
        print(f"{row['program']:26} {verdict}  {row.get('seconds', row.get('bits', ''))}  {row['error']}", flush=True)
        for finding in row["findings"]:
            print("    ", finding, flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1))
    ran = [row for row in rows if not row["absent"]]
    same = sum(row["same"] for row in ran)
    bits = sum(row.get("bits", 0) for row in ran)
    told = f" that repeats ({bits} digests and lines)" if arguments.selfcheck else ""
    print(f"{len(ran)} programs, {same} unchanged in every bit{told}, {len(rows) - len(ran)} not run")
    return 0 if ran and same == len(ran) else 1


if __name__ == "__main__":
    sys.exit(main())
