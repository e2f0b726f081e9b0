"""Trials shown while they run: a table that stays at the bottom of a terminal, plain lines anywhere else.

    with Display() as display:
        run_trials(experiment, trials, folder, workers=4, watcher=display, beat=display.beat)

or `run_shown`, which is this.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from gradledger.evidence._scalars import Scalars
from gradledger.evidence.record import Attempt
from gradledger.evidence.runner import Backend, Report, run_trials
from gradledger.evidence.trial import Experiment, Trial

if TYPE_CHECKING:
    from rich.console import RenderableType

REDRAW_S = 0.25
LINE_S = 10.0  # a plain line of progress of each trial at most so often
WINDOW_S = 30.0  # the rate shown is that of the last so many seconds
ROWS = 40  # drawn at most, however high the screen
ORDER = ("running", "resumed", "failed", "interrupted", "waiting", "done")
STYLES = {"running": "bold", "resumed": "bold", "failed": "red", "interrupted": "yellow", "waiting": "dim", "done": ""}


def run_shown(
    experiment: Experiment,
    trials: Sequence[Trial],
    folder: Path,
    *,
    plan: str = "",
    workers: int = 1,
    backend: Backend = "processes",
    ray: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
    output: Callable[[Trial], Path] | None = None,
    scalars: bool = True,
) -> list[Attempt]:
    """`runner.run_trials` under a display; arguments, result and errors are its.

    Args:
        scalars: write them for TensorBoard, where it is installed; False for trials that write their own.
    """
    with Display() as display, closing(Scalars(folder)) as written:

        def watch(report: Report) -> None:
            display(report)
            if scalars:
                written(report)

        return run_trials(
            experiment,
            trials,
            folder,
            plan=plan,
            workers=workers,
            backend=backend,
            ray=ray,
            retry_failed=retry_failed,
            output=output,
            watcher=watch,
            beat=display.beat,
        )


@dataclass
class Row:
    """What is known of one trial, and when it was how far: (monotonic seconds, step) of the last 30 seconds."""

    report: Report
    seen: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def state(self) -> str:
        """waiting, running, resumed (it runs, and began before), done, failed or interrupted."""
        match self.report.state:
            case "running":
                return "resumed" if self.report.attempt > 1 else "running"
            case "finished":
                return "done"
        return self.report.state

    @property
    def rate(self) -> float | None:
        """Steps a second lately; over all of it while there is one point. A trial that goes on from a checkpoint has
        not taken the steps before it in the time that it ran."""
        if len(self.seen) > 1 and self.seen[-1][0] > self.seen[0][0]:
            (began, first), (now, last) = self.seen[0], self.seen[-1]
            return (last - first) / (now - began)
        return self.report.rate if self.report.attempt == 1 else None

    @property
    def left(self) -> float | None:
        """Seconds to its end at this rate."""
        told, rate = self.report.progress, self.rate
        return (told.of - told.step) / rate if told is not None and rate else None


def screen(stderr: TextIO) -> Any:
    """A part of the terminal that is drawn again and again, begun; None where there is no terminal that can do it."""
    if not stderr.isatty():
        return None
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stderr)
    if console.is_dumb_terminal:
        return None
    # Prints of the program would tear the lines; rich puts them above, but only where both share a screen.
    live = Live(console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty(), redirect_stderr=True)
    live.start()
    return live


class Display:
    """A watcher. On a terminal (stderr) a table is drawn, by the caller's own thread, at most four times a second;
    plain lines go to stdout, unless that is the same terminal."""

    def __init__(self, *, stderr: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stderr, self._clock = stderr or sys.stderr, clock
        self._live: Any = None
        self._rows: dict[str, Row] = {}
        self._counts = (0, 0)
        self._began = clock()
        self._drawn = -float("inf")
        self._lines: dict[str, float] = {}

    def __enter__(self) -> Display:
        self._began = self._clock()
        self._live = screen(self._stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._draw(final=True)
            self._live.stop()
            self._live = None

    def __call__(self, report: Report) -> None:
        """Something happened to a trial."""
        row = self._rows.setdefault(report.trial.id, Row(report))
        if report.state == "running" and report.progress is None:
            row.seen.clear()
        if report.progress is None and row.report.progress is not None and report.state != "running":
            row.report = Report(**{**vars(report), "progress": row.report.progress})  # how far it came stays on show
        else:
            row.report = report
        if report.state == "running" and report.progress is not None:
            now = self._clock()
            row.seen.append((now, report.progress.step))
            while len(row.seen) > 2 and now - row.seen[0][0] > WINDOW_S:
                row.seen.popleft()
        self._counts = (report.done, report.of)
        if self._live is not None:
            self.beat()
        if self._live is None or not sys.stdout.isatty():
            self._say(row)

    def beat(self) -> None:
        """Draw, if it is time to: seconds pass also while nothing happens."""
        if self._live is not None and self._clock() - self._drawn >= REDRAW_S:
            self._draw()

    def _draw(self, *, final: bool = False) -> None:
        self._drawn = self._clock()
        height = ROWS if final else min(ROWS, max(1, self._live.console.size.height - 4))
        elapsed = self._clock() - self._began
        self._live.update(picture(list(self._rows.values()), self._counts, elapsed, height=height), refresh=True)

    def _say(self, row: Row) -> None:
        now, id = self._clock(), row.report.trial.id
        if row.report.state == "running" and row.report.progress is not None:
            if now - self._lines.get(id, self._began) < LINE_S:
                return
            self._lines[id] = now
        text = line(row, self._counts)
        if text:
            print(text, flush=True)


def line(row: Row, counts: tuple[int, int]) -> str:
    """The plain line of a trial; "" where there is nothing new to say of it."""
    report = row.report
    name = f"  {report.trial.arm}, seed {report.trial.rng_seed}"
    error = f": {report.error}" if report.error else ""
    if report.before:
        return f"{name}: failed before{error}" if report.state == "failed" else ""
    if report.state in ("finished", "failed", "interrupted"):
        return f"{name}: {report.state} in {report.elapsed:.1f} s ({counts[0]} of {counts[1]}){error}"
    if report.state == "running" and report.progress is not None:
        told = report.progress
        parts = [f"{told.step:,} of {told.of:,}", _figures(row)]
        parts += [f"{row.rate:,.3g}/s" if row.rate else "", f"{duration(row.left)} left" if row.left else ""]
        return f"{name}: {', '.join(part for part in parts if part)}"
    return f"{name}: goes on, attempt {report.attempt}" if row.state == "resumed" else ""


def picture(rows: Sequence[Row], counts: tuple[int, int], elapsed: float, *, height: int) -> RenderableType:
    """The table: running trials first; what does not fit is counted in the last line."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), show_edge=False)
    heads = (("trial", 3), ("state", None), ("step", None), ("", 4), ("per s", None), ("left", None))
    for head, ratio in heads:
        table.add_column(head, ratio=ratio, no_wrap=True, overflow="ellipsis", justify="left" if ratio else "right")
    ordered = sorted(rows, key=lambda row: ORDER.index(row.state))
    shown = ordered[:height]
    for row in shown:
        report, told = row.report, row.report.progress
        running = report.state == "running"
        ended = report.elapsed if report.state in ("finished", "failed", "interrupted") else None
        table.add_row(
            f"{report.trial.arm}, seed {report.trial.rng_seed}",
            row.state,
            f"{told.step:,}/{told.of:,}" if told is not None else "",
            report.error or _figures(row),
            f"{row.rate:,.3g}" if running and row.rate else "",
            duration(row.left) if running and row.left is not None else f"in {duration(ended)}" if ended else "",
            style=STYLES[row.state],
        )
    kinds = Counter(row.state for row in rows)
    last = [f"{counts[0]} of {counts[1]} ended, {duration(elapsed)} so far"]
    last += [f"{len(rows) - len(shown)} not shown"] if len(rows) > len(shown) else []
    last += [f"{kinds[state]} {state}" for state in ORDER if kinds[state]]
    return Group(table, Text("; ".join(last), no_wrap=True, overflow="ellipsis", style="dim"))


def duration(seconds: float | None) -> str:
    """3:07:05, 7:05 or 0:05; "?" for None and NaN; days from 100 hours on."""
    if seconds is None or math.isnan(seconds):
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours / 24:.0f} days"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _figures(row: Row) -> str:
    told = row.report.progress
    return "  ".join(f"{name} {value:.4g}" for name, value in told.figures.items()) if told is not None else ""
