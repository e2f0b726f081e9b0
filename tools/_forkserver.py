"""Run many scripts under the audit quickly: torch is imported once, each script runs in a forked child.

A child is what `gradledger audit --format json --output FILE SCRIPT` would be, but for the import of torch, which for
small scripts is nearly all of the time.  The parent never runs a script and starts no thread, so forking it is safe.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEMORY_LIMIT = 8 << 30  # bytes of address space beyond which a script is taken for a runaway


@dataclass(frozen=True)
class Job:
    """`folder` is copied to a scratch folder; `script` (a path within it) is run there, `options` before its name."""

    folder: Path
    script: str
    options: tuple[str, ...] = ()
    copy_all: bool = True


@dataclass
class Result:
    """`report`: the JSON report (None: there was none); `output`: stdout and stderr of the script together; `replayed`:
    how judging the stored run again differs from the report ("": it does not)."""

    job: Job
    report: dict[str, Any] | None = None
    exit_code: int | None = None
    output: str = ""
    seconds: float = 0.0
    timed_out: bool = False
    findings: list[dict[str, Any]] = field(default_factory=list)
    replayed: str = ""


@dataclass
class _Child:
    job: Job
    scratch: Path
    started: float


def preload() -> None:
    """Import what every script needs; call before `run_all`."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    for name in ("numpy.ma", "gymnasium", "sklearn.decomposition", "sklearn.metrics", "sklearn.model_selection"):
        with contextlib.suppress(ImportError):  # of the development tools, and of a few scripts: seconds each time
            importlib.import_module(name)
    import torch
    import torch._dynamo  # the first optimizer of any program imports it, which takes seconds
    import torch.utils.data

    import gradledger.audit.render.html
    import gradledger.audit.render.json
    import gradledger.audit.render.md
    import gradledger.audit.render.sarif
    import gradledger.audit.render.text
    import gradledger.cli.commands.audit
    import gradledger.watch._beside  # noqa: F401
    from gradledger.audit import registry
    from gradledger.core.events import EVENTS
    from gradledger.ledger import _session, _shape, _sink, probes  # noqa: F401

    for name in _session.probe_names():  # all code as it is now, whatever is edited while scripts run
        importlib.import_module(f"{probes.__name__}.{name}")
    registry.load()
    for kind in EVENTS.values():  # what is written out once per class, or per process
        _shape.prepare(kind)
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what is imported stays: no child's collector need walk it, and copy its pages by that


def run_all(jobs: Iterable[Job], *, workers: int = 2, timeout: float = 120.0) -> Iterator[Result]:
    """Yield a result for each job, in order of completion."""
    todo = list(reversed(list(jobs)))
    running: dict[int, _Child] = {}
    try:
        while todo or running:
            while todo and len(running) < workers:
                job = todo.pop()
                scratch = Path(tempfile.mkdtemp(prefix="gradledger-score-"))
                _copy(job, scratch / "work")
                running[_fork(job, scratch)] = _Child(job, scratch, time.perf_counter())
            yield from _collect(running, timeout)
            time.sleep(0.005)
    finally:
        for pid, child in running.items():
            _kill(pid)
            os.waitpid(pid, 0)
            shutil.rmtree(child.scratch, ignore_errors=True)


def _collect(running: dict[int, _Child], timeout: float) -> Iterator[Result]:
    for pid, child in list(running.items()):
        late = time.perf_counter() - child.started > timeout
        if late:
            _kill(pid)
        done, status = os.waitpid(pid, 0 if late else os.WNOHANG)
        if not done:
            continue
        del running[pid]
        _kill(pid)  # what the script left behind in its process group
        yield _result(child, status, late)
        shutil.rmtree(child.scratch, ignore_errors=True)


def _result(child: _Child, status: int, late: bool) -> Result:
    result = Result(child.job, exit_code=os.waitstatus_to_exitcode(status), timed_out=late)
    result.seconds = time.perf_counter() - child.started
    result.output = (child.scratch / "output").read_text(encoding="utf-8", errors="replace")
    try:
        result.report = json.loads((child.scratch / "report.json").read_text(encoding="utf-8"))
        result.findings = result.report["findings"] if result.report else []
    except (OSError, ValueError, KeyError):
        result.report = None
    if result.report is not None:
        result.replayed = _replay(child.scratch, result.report)
    return result


def _replay(scratch: Path, report: dict[str, Any]) -> str:
    from gradledger.audit.engine import audit
    from gradledger.audit.render.json import as_dict
    from gradledger.ledger._store import read

    stored = list((scratch / "home").glob("runs/*/ledger.sqlite"))
    if not stored:  # a program that never imported torch
        return "" if report["run"]["events"] == 0 else "nothing was stored"
    here = os.getcwd()
    try:
        os.chdir(scratch / "work")
        again = json.loads(json.dumps(as_dict(audit(read(stored[0])))))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        os.chdir(here)
    for part in ("exit_code", "findings", "checked", "not_checked", "suppressed"):
        if again[part] != report[part]:
            return f"{part}: the run said {report[part]}, the stored run {again[part]}"
    return ""


def _copy(job: Job, target: Path) -> None:
    if job.copy_all:
        shutil.copytree(job.folder, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        target.mkdir(parents=True)
        (target / job.script).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(job.folder / job.script, target / job.script)


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _fork(job: Job, scratch: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        _child(job, scratch)
    except SystemExit as error:
        _finish(error.code if isinstance(error.code, int) else int(error.code is not None))
    except BaseException:
        import traceback

        traceback.print_exc()
        _finish(70)
    _finish(0)
    raise AssertionError("unreachable")


def _finish(code: int) -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _child(job: Job, scratch: Path) -> None:
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with (scratch / "output").open("wb") as out, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(scratch / "work")
    os.environ["GRADLEDGER_HOME"] = str(scratch / "home")
    from gradledger.cli.commands.audit import main
    from gradledger.ledger import _site

    _site.set_aside(sys._getframe())  # a program that the command runs has none of this tool's frames above its own

    main(["--format", "json", "--output", str(scratch / "report.json"), *job.options, job.script])
