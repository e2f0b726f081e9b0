"""What every benchmark of the sweep is built on: contestants take turns, and a goal stands beside each figure.

Clocks on a shared machine drift by tens of per cent within a minute.  So nobody is timed alone: in each round every
contestant makes one turn, the order rotates, and the median over rounds of the ratio within a round is reported.
With one thread it is the ratio of CPU seconds, which other people's programs disturb less; with more threads that of
wall seconds, since a thread that spins costs CPU seconds and helps nobody.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

Work = Callable[[], object]


@dataclass(frozen=True)
class Turns:
    """The turns of one contestant: seconds of one call, round by round."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    def seconds(self) -> tuple[float, ...]:
        """What ratios are made of, see the head of this file."""
        return self.cpu if torch.get_num_threads() == 1 else self.wall

    @property
    def median(self) -> float:
        """Seconds of one call, middle of the rounds."""
        return statistics.median(self.seconds())


@dataclass(frozen=True)
class Ratio:
    """How much longer one takes than another: median of the rounds, quartiles, fastest turn by fastest turn."""

    median: float
    low: float
    high: float
    fastest: float

    def __str__(self) -> str:
        return f"{self.median:.3f}x [{self.low:.3f}-{self.high:.3f}]"


def alternate(
    contestants: Mapping[str, Work], *, rounds: int, warm: int = 2, least_s: float = 0.02, before: Work | None = None
) -> dict[str, Turns]:
    """Let the contestants take turns.

    Args:
        contestants: name to a call without arguments.
        rounds: turns of each.
        warm: calls of each that are not counted.
        least_s: a turn repeats the call until it lasted about this long, so that tiny work is not lost in the clock.
        before: called before each turn, not timed.
    """
    repeats: dict[str, int] = {}
    for name, work in contestants.items():
        for _ in range(warm):
            work()
        started = time.perf_counter()
        work()
        repeats[name] = max(1, round(least_s / max(time.perf_counter() - started, 1e-9)))
    fewest = max(repeats.values())  # the same number for all, or the short ones profit from warm caches
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for k in range(rounds):
        gc.collect()
        shift = k % len(names)
        order = names[shift:] + names[:shift]
        for name in order if k // len(names) % 2 == 0 else reversed(order):
            work = contestants[name]
            if before is not None:
                before()
            cpu_started, started = time.process_time(), time.perf_counter()
            for _ in range(fewest):
                work()
            ended, cpu_ended = time.perf_counter(), time.process_time()
            wall[name].append((ended - started) / fewest)
            cpu[name].append((cpu_ended - cpu_started) / fewest)
    return {name: Turns(tuple(wall[name]), tuple(cpu[name])) for name in names}


def ratio(turns: Mapping[str, Turns], name: str, to: str) -> Ratio:
    """Median and quartiles of the ratios within the rounds."""
    mine, theirs = turns[name].seconds(), turns[to].seconds()
    pairs = sorted(a / b for a, b in zip(mine, theirs, strict=True))
    fastest = min(mine) / min(theirs)
    if len(pairs) < 4:
        return Ratio(statistics.median(pairs), pairs[0], pairs[-1], fastest)
    low, middle, high = statistics.quantiles(pairs, n=4)
    return Ratio(middle, low, high, fastest)


@dataclass
class Goals:
    """What was to be reached and what was; `main` ends with 1 when one is missed and --strict was given."""

    missed: int = 0

    def at_most(self, what: str, got: float, most: float, *, unit: str = "x") -> bool:
        """Print one line of the verdict; True where it is reached."""
        return self._line(what, got <= most, f"{got:.3f}{unit}", f"<= {most:g}{unit}")

    def at_least(self, what: str, got: float, least: float, *, unit: str = "x") -> bool:
        """Print one line of the verdict; True where it is reached."""
        return self._line(what, got >= least, f"{got:.3f}{unit}", f">= {least:g}{unit}")

    def holds(self, what: str, got: bool, said: str = "") -> bool:
        """A goal that is kept or not."""
        return self._line(what, got, said or ("yes" if got else "no"), "yes")

    def _line(self, what: str, good: bool, got: str, wanted: str) -> bool:
        self.missed += not good
        print(f"  {'reached' if good else 'MISSED ':8} {what}: {got}, goal {wanted}", flush=True)
        return good


def arguments(
    text: str | None, *, rounds: int, quick: int, more: Callable[[argparse.ArgumentParser], None] | None = None
) -> argparse.Namespace:
    """Parse the options every benchmark has, set the threads, print what the figures depend on."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds and the smaller cases: does it run?")
    parser.add_argument("--rounds", type=int, default=None, help=f"turns of each contestant (default {rounds})")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a goal is missed")
    if more is not None:
        more(parser)
    given = parser.parse_args()
    if given.rounds is None:
        given.rounds = quick if given.quick else rounds
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    print(
        f"{Path(sys.argv[0]).name} at {commit()}, torch {torch.__version__}, python {platform.python_version()}, "
        f"{given.threads} thread(s) of {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {given.rounds} rounds"
        f"{', quick' if given.quick else ''}",
        flush=True,
    )
    return given


def finish(goals: Goals, given: argparse.Namespace) -> None:
    """Leave with 1 when a goal was missed and the caller wants to know."""
    if goals.missed and given.strict:
        raise SystemExit(1)


def commit(*packages: str) -> str:
    """Short hash of the tree that is measured; a plus where one of the packages (the sweep) was changed since."""

    def git(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", *(f"../src/gradledger/{one}" for one in packages or ("sweep",)))
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "an unknown commit"


def table(rows: Iterable[Sequence[object]], head: Sequence[str], left: Container[int] = ()) -> None:
    """Columns as wide as they need to be; the first stands left, and those in `left`, the others right."""
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    for row in cells:
        shown = [
            cell.ljust(width) if k == 0 or k in left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  " + "  ".join(shown).rstrip())
    sys.stdout.flush()


def say(text: str) -> None:
    """A line that is seen at once, also through a pipe."""
    print(text, flush=True)


def mb(size: float) -> str:
    """Bytes as millions."""
    return f"{size / 1e6:.2f}"
