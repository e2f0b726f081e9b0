"""One trial in a process that is not the runner's: what it sends back, and how it is asked to stop."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

from gradledger.evidence.record import told
from gradledger.evidence.trial import Experiment, Progress, Trial, listening, outcome

TOLD_S = 0.1  # seconds between two reports of progress that leave a process
Message = tuple[Any, ...]


def attempt(experiment: Experiment, trial: Trial, listener: Callable[[Progress], None]) -> Message:
    """Run it. Returns ("outcome", Outcome), ("error", text, trace) or ("stopped",).

    Errors travel as text, because not every exception can be pickled.
    """
    try:
        with listening(NowAndThen(listener)):
            given = experiment(trial.config, trial.rng_seed)
        return ("outcome", outcome(given, where=f"trial {trial.arm}, rng_seed {trial.rng_seed}"))
    except KeyboardInterrupt:
        return ("stopped",)
    except (Exception, SystemExit) as error:
        return ("error", told(error), traceback.format_exc())


class NowAndThen:
    """A listener that hears the first, the last, and in between no more than ten reports a second: a trial of many
    short steps must not spend its time on telling of them."""

    def __init__(self, listener: Callable[[Progress], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._listener, self._clock, self._last = listener, clock, -float("inf")

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        if progress.step >= progress.of or now - self._last >= TOLD_S:
            self._last = now
            self._listener(progress)


def signal_named(number: int) -> str:
    """``SIGKILL (signal 9)``."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
