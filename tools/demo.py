"""Audit every program under examples/, print what was found, and say where the reports lie.

Exit code 0 when the audit said what the examples deserve: findings on the faulty program and silence on the others.
Run by `make demo`; by hand: ``.venv/bin/python tools/demo.py``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "demo"
FAULTY = {"dqn_cartpole"}
FINDINGS = 3  # the exit code of `gradledger audit` when findings reach --fail-on


def audit(program: Path) -> tuple[int, str, float]:
    """Audit one program; return the exit code, the report's text and the seconds it took."""
    report = OUT / f"{program.stem}.txt"
    log = OUT / f"{program.stem}.log"
    command = [
        *(str(Path(sys.executable).with_name("gradledger")), "audit"),
        *("--format", "text", "--output", str(report), "--fail-on", "warning"),
        *("--run", str(OUT / "runs" / program.stem)),
        str(program.relative_to(ROOT)),
    ]
    report.unlink(missing_ok=True)
    started = time.perf_counter()
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False)
    seconds = time.perf_counter() - started
    text = report.read_text(encoding="utf-8") if report.is_file() else log.read_text(encoding="utf-8")
    return done.returncode, text, seconds


def main() -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    programs = sorted((ROOT / "examples").glob("*.py"), key=lambda path: path.stem in FAULTY)
    parts: list[str] = []
    wrong: list[str] = []
    for program in programs:
        print(f"auditing examples/{program.name} ...", flush=True)
        code, text, seconds = audit(program)
        parts.append(f"{'=' * 80}\nexamples/{program.name}  (exit code {code}, {seconds:.1f} s)\n\n{text.strip()}\n")
        print(f"\n{text.strip()}\n", flush=True)
        if code != (FINDINGS if program.stem in FAULTY else 0):
            wrong.append(f"examples/{program.name}: exit code {code}; its output is in build/demo/{program.stem}.log")
    report = OUT / "report.txt"
    report.write_text("\n".join(parts), encoding="utf-8")
    print(f"{len(programs)} programs audited, {len(FAULTY)} of them faulty on purpose.")
    print(f"All reports: {report.relative_to(ROOT)}")
    print("Judge a run again without running it: .venv/bin/gradledger audit --replay build/demo/runs/dqn_cartpole")
    for line in wrong:
        print(f"not as expected: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
