"""`gradledger audit --selfcheck`: the same program without and with the audit, compared bit for bit.

Each run starts from a fresh copy of the working folder at one and the same path, so that no run sees what another one
wrote, and paths in the output are equal.  Where the two runs differ the program is run again *without* the audit, up to
two times: what differs there as well is the program's own doing (a clock, a generator without a seed) and is left out
of the comparison, by name.  Lines of several processes that come in another order each time are compared in any order.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gradledger.cli import _bits
from gradledger.core.errors import UsageError
from gradledger.core.files import file_digest
from gradledger.ledger._runner import Target

MOST_BYTES = 512 * 2**20
MOST_FILES = 20_000
ORDERS = 7  # runs at most, until lines that came in another order do so by themselves
_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".git", ".venv", "*.pyc")


@dataclass(frozen=True, slots=True)
class Start:
    """A process to be started: the `words` after the interpreter, its folder, environment and streams."""

    words: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    stdin: bytes
    out: Path
    err: Path


Launch = Callable[[Start], int]  # runs it to its end; returns the exit code, negative for a signal


@dataclass(frozen=True, slots=True)
class Left:
    """What one run left, as name -> bits: "stdout:3" is its third line, "file:a/b" the hash of a file, and so on.

    Of a watched run also `facts`, how many were recorded, and `explained`, how many iterations the oracle explained.
    """

    bits: Mapping[str, str]
    steps: int
    facts: int = 0
    explained: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of thing that was compared: how many of it, and the names of those that differ."""

    kind: str
    compared: int
    differ: tuple[str, ...]
    unsteady: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The comparison.  `runs`: how often the program ran; `exit_code`: of the first run; `facts`, `explained`: as the
    watched run told (0: it left no report)."""

    program: str
    rows: tuple[Row, ...]
    runs: int
    steps: int
    exit_code: int
    facts: int
    explained: int

    @property
    def same(self) -> bool:
        """Nothing differs that is equal in every run without the audit."""
        return not any(row.differ for row in self.rows)


KINDS = ("exit code", "stdout", "stderr", "parameters", "gradients", "state", "random", "modules", "file")
_LABELS = {"state": "optimizer states", "random": "random states", "modules": "modules at the end", "file": "files"}


def spawn(start: Start) -> int:
    """Run a process of its own."""
    with start.out.open("wb") as out, start.err.open("wb") as err:
        return subprocess.run(
            [sys.executable, *start.words],
            cwd=start.folder,
            env=start.environment,
            input=start.stdin,
            stdout=out,
            stderr=err,
        ).returncode


def selfcheck(
    target: Target,
    *,
    in_place: bool = False,
    stdin: bytes = b"",
    say: Callable[[str], None] = lambda _: None,
    oracle: int = 0,
    launch: Launch = spawn,
) -> Answer:
    """Run `target` without and with the audit and compare everything that either leaves.

    Args:
        target: what to run, as `resolve` gives it.
        in_place: run in the working folder itself instead of in copies of it.
        stdin: what each run is given.
        say: told before each run.
        oracle: every how many iterations the watched run computes gradients again (0: never).
        launch: how a process is started.

    Raises:
        UsageError: the working folder is too large to be copied.
    """
    here = Path.cwd()
    if not in_place:
        _check_size(here)
    with tempfile.TemporaryDirectory(prefix="gradledger-selfcheck-") as name:
        scratch = Path(name)
        site = scratch / "site"
        site.mkdir()
        shutil.copyfile(_bits.__file__, site / "sitecustomize.py")
        folder = here if in_place else scratch / "run"
        command = _command(target, here, folder)

        def once(watched: bool) -> Left:
            if not in_place:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(here, folder, symlinks=True, ignore=_LEFT_OUT)
            return _run(command, folder, scratch, stdin, launch, watched=watched, oracle=oracle, files=not in_place)

        say("running it without the audit")
        bare = [once(False)]
        say("running it with the audit")
        watched = once(True)
        rows = compare(bare, watched)
        while any(row.differ for row in rows) and len(bare) < (ORDERS if _is_order_alone(rows, bare, watched) else 3):
            say("it differs: running it again without the audit, to see whether it does so by itself")
            bare.append(once(False))
            rows = compare(bare, watched)
        code = int(bare[0].bits["exit code"])
        return Answer(target.name, rows, len(bare) + 1, bare[0].steps, code, watched.facts, watched.explained)


def compare(bare: Sequence[Left], watched: Left) -> tuple[Row, ...]:
    """By kind: what all bare runs agree on and the watched one does not, and what they do not agree on."""
    names = {name for run in bare for name in run.bits}
    # a random generator that the program never loaded is none of its own
    names |= {name for name in watched.bits if not name.startswith("random:")}
    rows = []
    for kind in KINDS:
        differ, unsteady, compared = [], [], 0
        for name in sorted((n for n in names if n.partition(":")[0] == kind), key=_in_order):
            values = {run.bits.get(name) for run in bare}
            if len(values) > 1:
                unsteady.append(name)
                continue
            compared += 1
            if values != {watched.bits.get(name)}:
                differ.append(name)
        row = _in_any_order(kind, bare, watched) if unsteady else None
        rows.append(row or Row(kind, compared, tuple(differ), tuple(unsteady)))
    return tuple(rows)


def _in_any_order(kind: str, bare: Sequence[Left], watched: Left) -> Row | None:
    """Of a stream that holds the same lines in each bare run, in another order (several processes write to it), the
    lines in any order; None of anything else."""
    lines = [Counter(bits for name, bits in run.bits.items() if name.startswith(f"{kind}:line ")) for run in bare]
    if not lines[0] or any(other != lines[0] for other in lines):
        return None
    told = Counter(bits for name, bits in watched.bits.items() if name.startswith(f"{kind}:line "))
    missing = ((lines[0] - told) + (told - lines[0])).total()
    return Row(kind, lines[0].total(), (f"{kind}:lines in any order",) * (missing > 0), (f"{kind}:their order",))


def _is_order_alone(rows: Sequence[Row], bare: Sequence[Left], watched: Left) -> bool:
    """Whether what differs is the order of lines, so far the same in all bare runs."""
    kinds = [row.kind for row in rows if row.differ]
    return all((row := _in_any_order(kind, bare, watched)) is not None and not row.differ for kind in kinds)


def render(answer: Answer) -> str:
    """For a terminal."""
    verdict = "is the same in every bit" if answer.same else "DIFFERS under the audit: please report it"
    lines = [
        f"gradledger: {answer.program} {verdict}",
        f"{answer.runs - 1} run{'s' * (answer.runs > 2)} without the audit, 1 with it; {answer.steps} optimizer steps",
        f"{answer.facts} facts recorded" if answer.facts else "the audit recorded nothing, or left no report",
        *([f"the oracle explained {answer.explained} iterations"] if answer.explained else []),
        "",
    ]
    for row in answer.rows:
        label = _LABELS.get(row.kind, row.kind)
        if not row.compared and not row.unsteady:
            lines.append(f"  {label:<20}none")
            continue
        told = f"{len(row.differ)} of {row.compared} differ: {_few(row.differ)}" if row.differ else "same"
        count = "" if row.kind == "exit code" or row.differ else f" ({row.compared})"
        lines.append(f"  {label:<20}{told}{count}")
        if row.unsteady:
            lines.append(f"  {'':<20}not compared, differs without the audit too: {_few(row.unsteady)}")
    return "\n".join(lines) + "\n"


def as_json(answer: Answer) -> str:
    """Schema 1."""
    rows = [{"kind": r.kind, "compared": r.compared, "differ": r.differ, "unsteady": r.unsteady} for r in answer.rows]
    told = {name: getattr(answer, name) for name in ("program", "same", "runs", "steps")}
    told |= {name: getattr(answer, name) for name in ("exit_code", "facts", "explained")}
    return json.dumps({"schema": 1} | told | {"rows": rows}, indent=2) + "\n"


def _few(names: Sequence[str]) -> str:
    """The first three; of a random generator that differs all along, its first place alone."""
    seen: dict[str, str] = {}
    for name in names:
        kind, _, what = name.partition(":")
        seen.setdefault(what.partition(" at ")[0] if kind == "random" else name, what or name)
    shown = ", ".join([f"{what} (first)" if "random:" in names[0] else what for what in seen.values()][:3])
    return shown if len(seen) <= 3 else f"{shown} and {len(seen) - 3} more"


def _in_order(name: str) -> list[tuple[int, str]]:
    """Numbers in a name by their size."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", name)]


def _command(target: Target, here: Path, folder: Path) -> list[str]:
    """The words after ``python`` or ``gradledger audit``; a program outside of the copied folder keeps its place."""
    if target.kind == "module":
        return ["-m", target.name, *target.argv]
    path = Path(target.name).resolve()
    inside = path.is_relative_to(here.resolve())
    name = target.name if inside and not Path(target.name).is_absolute() else str(path)
    if inside and Path(target.name).is_absolute():
        name = str(folder / path.relative_to(here.resolve()))
    return [name, *target.argv]


def _run(
    command: list[str],
    folder: Path,
    scratch: Path,
    stdin: bytes,
    launch: Launch,
    *,
    watched: bool,
    oracle: int,
    files: bool,
) -> Left:
    trail, report, ledger = scratch / "bits.jsonl", scratch / "report.json", scratch / "ledger"
    for file in (trail, report):
        file.unlink(missing_ok=True)
    shutil.rmtree(ledger, ignore_errors=True)
    environment = dict(os.environ)
    before = environment.get("PYTHONPATH", "")
    environment |= {
        _bits.VARIABLE: str(trail),
        _bits.PATH_BEFORE: before,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(scratch / "site"), before))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    own = ["--fail-on", "never", "--format", "json", "--output", str(report), "--run", str(ledger)]
    own += [f"--oracle={oracle}"] if oracle else []
    words = ["-m", "gradledger", "audit", *own] if watched else []
    start = Start((*words, *command), folder, environment, stdin, scratch / "out", scratch / "err")
    code = launch(start)
    bits = {"exit code": str(code)}
    for stream in (start.out, start.err):
        for number, line in enumerate(stream.read_bytes().split(b"\n"), 1):
            bits[f"std{stream.name}:line {number}"] = line.hex()
    told = [json.loads(line) for line in trail.read_text().splitlines()] if trail.exists() else []
    steps = 0
    for line in told:
        steps = max(steps, line.get("step", line.get("steps", 0)))
        place = "the end" if "end" in line else f"step {line['step']}"
        for kind in ("parameters", "gradients", "state"):
            if kind in line:
                bits[f"{kind}:{place}"] = line[kind]
        bits |= {f"random:{generator} at {place}": state for generator, state in line["random"].items()}
        if "modules" in line:
            bits["modules:number"] = str(len(line["modules"]))
            bits |= {f"modules:{number}": state for number, state in enumerate(line["modules"])}
    if files:
        bits |= {f"file:{path.relative_to(folder)}": file_digest(path) for path in _files(folder)}
    told_by_audit = json.loads(report.read_text()) if report.exists() else {"run": {"events": 0}}
    return Left(bits, steps, told_by_audit["run"]["events"], (told_by_audit.get("oracle") or {}).get("explained", 0))


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


def _check_size(folder: Path) -> None:
    """Refuse what would be copied for a long time."""
    files = size = 0
    for parent, folders, names in os.walk(folder):
        left_out = _LEFT_OUT(parent, [*folders, *names])
        folders[:] = [name for name in folders if name not in left_out]
        for name in names:
            if name not in left_out:
                files += 1
                size += _size(Path(parent) / name)
        if files > MOST_FILES or size > MOST_BYTES:
            raise UsageError(
                got=f"{folder}, which holds more than {MOST_FILES} files or {MOST_BYTES // 2**20} MiB",
                wanted="a working folder that can be copied for each run",
                where="--selfcheck",
                next_step="use a smaller folder, or add --in-place: each run then sees what the one before wrote",
            )


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def piped(stream: TextIO | None) -> bytes:
    """What is piped into this command, for each run; nothing from a terminal, or from a pipe that stays silent."""
    if stream is None or stream.closed or stream.isatty() or not select.select([stream], [], [], 0.2)[0]:
        return b""
    return stream.buffer.read()
