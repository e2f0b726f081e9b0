"""Run training programs that none of us wrote, with and without the audit, and compare every bit.

    python tests/primer/run.py [NAME ...] [--json FILE]

Needs the [primer] extra.  For each program under tests/primer/programs: the exit code and its last line, which digests
every weight and the random state, must be the same (lines before may hold times); findings are listed for a person to
judge in docs/results/primer.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


def run(command: list[str]) -> tuple[int, str, str, float]:
    """Exit code, stdout, stderr, seconds."""
    started = time.perf_counter()
    env = dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    return done.returncode, done.stdout, done.stderr, time.perf_counter() - started


def one(program: Path) -> dict[str, object]:
    """One program, both ways."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        bare = run([sys.executable, str(program)])
        options = ["--fail-on", "never", "--format", "json", "--output", str(report)]
        watched = run([sys.executable, "-m", "gradledger", "audit", *options, str(program)])
        found = json.loads(report.read_text()) if report.exists() else None
    if bare[0] != 0:
        return dict(program=program.stem, same=False, error="does not run by itself: " + bare[2][-600:], findings=[])
    same = bare[0] == watched[0] and bare[1].splitlines()[-1:] == watched[1].splitlines()[-1:]
    error = "" if same and found is not None else f"exit {watched[0]}: {watched[1][-300:]} {watched[2][-600:]}"
    findings = [
        f"{f['code']} {f['severity']} {f['file']}:{f['line']} {f['message']}" for f in (found or {}).get("findings", [])
    ]
    return dict(program=program.stem, same=same, ratio=round(watched[3] / bare[3], 2), error=error, findings=findings)


def main() -> int:
    """Print one block a program; 1 when anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for program in sorted(PROGRAMS.glob("[a-z]*.py")):
        if arguments.names and program.stem not in arguments.names:
            continue
        row = one(program)
        rows.append(row)
        verdict = "same" if row["same"] else "DIFFERS"
        print(f"{row['program']:24} {verdict}  {row.get('ratio', '-')}x  {row['error']}", flush=True)
        for finding in row["findings"]:  # type: ignore[attr-defined]
            print("    ", finding)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    print(f"{len(rows)} programs, {sum(bool(r['same']) for r in rows)} unchanged in every bit")
    return 0 if rows and all(r["same"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
