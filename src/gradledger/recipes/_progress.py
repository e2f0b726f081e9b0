"""How far a run is: two lines that stay at the bottom of a terminal, or one plain line now and then for a log file."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from gradledger.evidence import trial
from gradledger.evidence.live import duration as duration
from gradledger.evidence.live import screen

if TYPE_CHECKING:
    from rich.console import RenderableType

_REDRAW_S = 0.25
_WINDOW_S = 30.0  # the speed shown is that of the last so many seconds
_LABEL = 20  # columns for the name at most


@dataclass(frozen=True)
class Status:
    """What is shown. return_20, return_100: mean return of the last so many training episodes. NaN: none yet."""

    env_step: int
    optimizer_step: int
    episode: int
    return_20: float
    return_100: float
    loss: float
    epsilon: float
    seconds: float

    def line(self) -> str:
        """The plain line."""
        return (
            f"{self.env_step:8d} steps  {self.optimizer_step:7d} updates  {self.episode:5d} episodes  "
            f"return of the last 20: {self.return_20:7.2f}  loss {self.loss:.4f}  {self.seconds:8.1f} s"
        )


class Pace:
    """Steps a second over the last 30 seconds, and so the time that is left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, env_step: int) -> None:
        """The run is here now."""
        now = self._clock()
        self._seen.append((now, env_step))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()

    def restart(self) -> None:
        """What was seen says nothing about what comes: random play without updates is a hundred times faster."""
        self._seen.clear()

    def rate(self) -> float:
        """Steps a second; NaN before there are two points."""
        if len(self._seen) < 2 or self._seen[-1][0] <= self._seen[0][0]:
            return math.nan
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - began)

    def left(self, steps: int) -> float:
        """Seconds for so many steps at this speed; NaN where it cannot be said."""
        rate = self.rate()
        return max(steps, 0) / rate if rate > 0 else math.nan


class Progress:
    """``with Progress("pong", total=400_000) as progress: progress.tick(...)``.

    On a terminal (stderr) two lines are drawn there, by the caller's own thread, at most four times a second. Plain
    lines go to stdout, unless that is the same terminal.
    """

    def __init__(self, label: str, *, total: int, pace: Pace | None = None, stderr: TextIO | None = None) -> None:
        self._label, self._total = label, total
        self._pace = pace or Pace()
        self._stderr = stderr or sys.stderr
        self._live: Any = None
        self._drawn = self._told = -math.inf
        self._loss = math.nan
        self._shown: Status | None = None

    def __enter__(self) -> Progress:
        self._live = screen(self._stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._draw()
            self._live.stop()
            self._live = None

    def tick(self, env_step: int, status: Callable[[], Status]) -> None:
        """After each tick of the run; `status` is asked only when something is drawn, or told to whoever runs this as
        one trial of several."""
        if trial.listened():
            self._tell(env_step, status)
        if self._live is None:
            return
        now = time.monotonic()
        if now - self._drawn >= _REDRAW_S:
            self._drawn = now
            here = status()
            if here.optimizer_step and not (self._shown and self._shown.optimizer_step):
                self._pace.restart()
            self._pace.note(env_step)
            if math.isnan(here.loss):  # no update since the last row: the loss before is still the newest
                here = replace(here, loss=self._loss)
            self._loss = here.loss
            self._shown = here
            self._draw()

    def _tell(self, env_step: int, status: Callable[[], Status]) -> None:
        now = time.monotonic()
        if now - self._told >= _REDRAW_S or env_step >= self._total:
            self._told = now
            here = status()
            self._loss = self._loss if math.isnan(here.loss) else here.loss
            figures = {"loss": self._loss, "return_20": here.return_20, "return_100": here.return_100}
            known = {name: value for name, value in figures.items() if not math.isnan(value)}
            trial.tell(env_step, self._total, **known)

    def log(self, status: Status) -> None:
        """After each row of metrics, which begins the mean of the loss anew: what is told next may have none yet."""
        if not math.isnan(status.loss):
            self._loss = status.loss
        if self._live is None or not sys.stdout.isatty():
            print(status.line(), flush=True)

    def _draw(self) -> None:
        if self._shown is not None:
            self._live.update(picture(self._label, self._shown, self._total, self._pace), refresh=True)


def picture(label: str, status: Status, total: int, pace: Pace) -> RenderableType:
    """The two lines."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    name = label if len(label) <= _LABEL else label[: _LABEL - 1] + "…"
    first = Table.grid(padding=(0, 1), expand=True)
    for ratio in (None, 1, None):
        first.add_column(ratio=ratio, no_wrap=True)
    bar = ProgressBar(total=total, completed=min(status.env_step, total))
    # Fixed widths: nothing dances while the numbers grow.
    counted = f"{status.env_step:>{len(f'{total:,}')},}/{total:,} steps"
    left = pace.left(total - status.env_step) if status.optimizer_step else math.nan
    speed = f"{_number(pace.rate(), '6,.0f', 6)}/s  {duration(left):>8} left"
    first.add_row(Text(name, style="bold"), bar, f"{counted} {speed}")
    return Group(first, Text(_second(status), no_wrap=True, overflow="ellipsis", style="dim"))


def _second(status: Status) -> str:
    parts = [
        f"return of the last 20: {_number(status.return_20, '.2f')}, 100: {_number(status.return_100, '.2f')}",
        f"loss {_number(status.loss, '.4f')}",
        f"epsilon {status.epsilon:.2f}",
    ]
    return "  ".join(parts)


def _number(value: float, form: str, width: int = 0) -> str:
    return "-".rjust(width) if math.isnan(value) else format(value, form)
