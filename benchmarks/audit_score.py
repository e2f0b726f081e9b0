"""The scorer of a case set, with the CPU seconds of whole processes beside its wall seconds.

    python benchmarks/audit_score.py SCORE.py FOLDER [--every K] [--json OUT] [options of the scorer]

SCORE.py is a scorer that calls `run(command, cwd, timeout, env)` for each process: the program alone (`--bare` is
added) and `AUDIT --format json --output FILE SCRIPT`, one after the other in scratch copies of FOLDER.  Its own verdict
is printed as it is; its `run` is replaced by one that does the same and also reads what the process used.  Wall seconds
mean little on a machine on which others work; CPU seconds, user and system, mean more.

--every K keeps every K-th line of the manifest (faulty and correct programs are mixed when K is odd).  With the
installed command on PATH:

    python benchmarks/audit_score.py score.py cases/public --every 7 --jobs 1 --timeout 600
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

Measured = tuple[int | None, str, float, float]
Used = dict[str, dict[str, float]]  # script -> {"bare": CPU seconds, "audit": CPU seconds}


def measured(command: list[str], cwd: Path, timeout: float, env: dict[str, str]) -> Measured:
    """Run to the end: exit code (None: too late), output, wall seconds, CPU seconds with those of its children."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        late, done = False, 0
        while not done:
            done, status, used = os.wait4(process.pid, os.WNOHANG)
            if not done and not late and time.perf_counter() - started > timeout:
                late = True
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.005)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    seconds = time.perf_counter() - started
    return None if late else process.returncode, text, seconds, used.ru_utime + used.ru_stime


def load(path: Path) -> ModuleType:
    """The scorer as a module."""
    spec = importlib.util.spec_from_file_location("scorer", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SystemExit(f"{path} is no Python file; wanted the scorer of the cases")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("run", "main"):
        if not callable(getattr(module, name, None)):
            raise SystemExit(f"{path} has no function {name}; wanted a scorer that starts processes by run()")
    return module


def part(folder: Path, every: int, scratch: Path) -> Path:
    """A folder with the same programs and every so many lines of the manifest."""
    if every == 1:
        return folder
    lines = [line for line in (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines() if line.strip()]
    for path in folder.iterdir():
        if path.name != "manifest.jsonl":
            (scratch / path.name).symlink_to(path.resolve())
    (scratch / "manifest.jsonl").write_text("\n".join(lines[::every]) + "\n", encoding="utf-8")
    return scratch


def summary(used: Used) -> str:
    """Medians and sums of the scripts that ran both ways."""
    both = [one for one in used.values() if one.get("bare") and one.get("audit")]
    if not both:
        return "no script ran both ways"
    ratios = [one["audit"] / one["bare"] for one in both]
    bare, audit = sum(one["bare"] for one in both), sum(one["audit"] for one in both)
    more = statistics.median(one["audit"] - one["bare"] for one in both)
    return (
        f"CPU time with / without audit, whole process: median {statistics.median(ratios):.2f}x, worst "
        f"{max(ratios):.2f}x, all together {audit / bare:.2f}x over {len(both)} scripts; median of the difference "
        f"{more:.2f} s; {bare:.0f} s of CPU without, {audit:.0f} s with"
    )


def main() -> int:
    """Score, then say what it cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scorer", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--json", type=Path, help="CPU seconds of each script")
    given, others = parser.parse_known_args()
    if given.every < 1:
        parser.error(f"--every {given.every}: wanted 1 (all) or more")
    scorer = load(given.scorer)
    used: Used = {}

    def run(command: list[str], cwd: Path, timeout: float, env: dict[str, str]) -> tuple[int | None, str, float]:
        code, text, wall, cpu = measured(command, cwd, timeout, env)
        kind = "bare" if command[:-1] == [sys.executable] else "audit"
        used.setdefault(command[-1], {})[kind] = cpu
        return code, text, wall

    scorer.run = run  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory(prefix="audit-score-") as scratch:
        sys.argv = [str(given.scorer), str(part(given.folder.resolve(), given.every, Path(scratch))), "--bare", *others]
        code = int(scorer.main())
    print(summary(used))
    if given.json:
        given.json.write_text(json.dumps(used, indent=1), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
