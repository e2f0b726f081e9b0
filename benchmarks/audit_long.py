"""Memory of a program of many iterations, with and without the audit.

    python benchmarks/audit_long.py [--iterations 100000] [--markdown FILE]

A small program with a target network, dropout, a schedule, clipping and an evaluation every 500 iterations prints its
resident memory ten times on its way; it runs as ``python`` and as ``gradledger audit``.  Told are both columns, what
the audit adds at each mark, its slope over the second half, the size of the recorded run, and the CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import copy, gc, os, sys
import torch

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

iterations = int(sys.argv[1])
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2))
target = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
rows = torch.randn(256, 4)
for number in range(1, iterations + 1):
    x = rows[torch.randint(256, (8,))]
    with torch.no_grad():
        y = target(x)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(net(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if number % 100 == 0:
        target.load_state_dict(net.state_dict())
    if number % 500 == 0:
        net.eval()
        with torch.no_grad():
            net(rows).sum().item()
        net.train()
    if number % (iterations // 10) == 0:
        print(number, round(resident(), 2), flush=True)
"""


def run(folder: Path, iterations: int, *words: str) -> tuple[list[tuple[int, float]], float]:
    """Marks of (iteration, MiB resident), and CPU seconds of the process."""
    command = [sys.executable, *words, "long.py", str(iterations)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    marks = [(int(line.split()[0]), float(line.split()[1])) for line in done.stdout.splitlines()]
    return marks, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Both runs, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=100_000)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "long.py").write_text(PROGRAM)
        bare, bare_seconds = run(folder, given.iterations)
        audit = ("-m", "gradledger", "audit", "--run", "kept", "--format", "json", "--output", "report.json")
        watched, watched_seconds = run(folder, given.iterations, *audit)
        report = json.loads((folder / "report.json").read_text())
        size = sum(path.stat().st_size for path in (folder / "kept").iterdir())
    lines = ["| iteration | MiB resident, bare | audited | more |", "|---|---|---|---|"]
    more = [(number, here - there) for (number, there), (_, here) in zip(bare, watched, strict=True)]
    for (number, there), (_, here), (_, by) in zip(bare, watched, more, strict=True):
        lines.append(f"| {number} | {there:.1f} | {here:.1f} | {by:.1f} |")
    first, last = more[len(more) // 2 - 1], more[-1]
    slope = (last[1] - first[1]) * 2**20 / (last[0] - first[0])
    told = (
        f"From iteration {first[0]} to {last[0]} the audit's part grows by {last[1] - first[1]:.2f} MiB, "
        f"{slope:.0f} bytes an iteration. "
        f"The recorded run takes {size / 2**20:.1f} MiB; {report['run']['sampled'] or 'every event was kept'}. "
        f"CPU seconds: {bare_seconds:.0f} bare, {watched_seconds:.0f} audited. "
        f"Findings: {', '.join(f['code'] for f in report['findings']) or 'none'}."
    )
    text = "\n".join([*lines, "", told]) + "\n"
    print(text)
    if given.markdown:
        given.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
