"""What the audit costs: whole processes, with and without it, alternately in one run.

    python benchmarks/audit_overhead.py [--repeats 7] [--programs tiny_mlp small_transformer small_conv]

For each program: median wall time of the whole process without and with `gradledger audit`, their ratio, the spread of
the pairwise ratios, and the median ratio of CPU time.  The process with the audit writes its report as JSON; outputs
are compared.  Both sides find their modules compiled, as those of an installed package are, in a folder of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent / "programs"
STEPS = {"tiny_mlp": 6000, "small_transformer": 600, "small_conv": 600}


def run(command: list[str], bytecode: str) -> tuple[float, float, str]:
    """Wall and CPU seconds of one process, and what it printed."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPYCACHEPREFIX=bytecode)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, done.stdout


def measure(name: str, repeats: int, bytecode: str) -> dict[str, object]:
    """Alternate bare and watched runs of one program."""
    program = str(HERE / f"{name}.py")
    bare, watched, cpu = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        report = str(Path(folder) / "report.json")
        audit = [sys.executable, "-m", "gradledger", "audit", "--format", "json", "--output", report, program]
        run([sys.executable, program], bytecode)  # both sides once, unmeasured: file caches and bytecode
        run(audit, bytecode)
        for _ in range(repeats):
            seconds, cpu_bare, plain = run([sys.executable, program], bytecode)
            bare.append(seconds)
            seconds, cpu_watched, same = run(audit, bytecode)
            watched.append(seconds)
            cpu.append(cpu_watched / cpu_bare)
            if plain != same:
                raise SystemExit(f"{name}: output differs under the audit:\n{plain}\n{same}")
        findings = json.loads(Path(report).read_text())["findings"]
    pairs = [w / b for w, b in zip(watched, bare, strict=True)]
    return dict(
        program=name,
        bare=statistics.median(bare),
        watched=statistics.median(watched),
        ratio=statistics.median(pairs),
        cpu=statistics.median(cpu),
        low=min(pairs),
        high=max(pairs),
        findings=[f["code"] for f in findings],
    )


def main() -> None:
    """Print one line a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--programs", nargs="+", default=list(STEPS), choices=list(STEPS))
    arguments = parser.parse_args()
    print(f"python {platform.python_version()}, one thread, {arguments.repeats} alternate pairs of whole processes")
    print(f"{'program':20} {'bare s':>8} {'audit s':>8} {'ratio':>7} {'pairs':>15} {'CPU ratio':>10}  findings")
    with tempfile.TemporaryDirectory() as bytecode:
        for name in arguments.programs:
            row = measure(name, arguments.repeats, bytecode)
            print(
                f"{name:20} {row['bare']:8.2f} {row['watched']:8.2f} {row['ratio']:6.3f}x "
                f"{row['low']:6.3f}-{row['high']:.3f} {row['cpu']:9.3f}x  {' '.join(row['findings']) or 'none'}",  # type: ignore[arg-type]
                flush=True,
            )


if __name__ == "__main__":
    main()
