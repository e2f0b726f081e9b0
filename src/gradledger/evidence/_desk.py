"""Where everything that happens to trials is written down and told on, whatever runs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gradledger.evidence._attempt import Message
from gradledger.evidence.record import TrialRecord, told
from gradledger.evidence.trial import Progress, Trial, outcome, seconds_left

State = Literal["waiting", "running", "finished", "failed", "interrupted"]


@dataclass(frozen=True)
class Report:
    """What a display is told. rate: steps a second. left: seconds to the trial's end. done, of: trials. attempt: from
    1; above, it was stopped or failed before. before: it had ended before this call, and is not run."""

    trial: Trial
    state: State
    done: int
    of: int
    elapsed: float
    progress: Progress | None = None
    rate: float | None = None
    left: float | None = None
    error: str = ""
    attempt: int = 1
    before: bool = False


Watcher = Callable[[Report], None]


class Desk:
    """Writes down what happens to trials and tells the watcher."""

    def __init__(self, record: TrialRecord, plan: str, watcher: Watcher, *, done: int, of: int) -> None:
        self._record, self._plan, self._watcher = record, plan, watcher
        self._done, self._of = done, of
        self._begun: dict[str, tuple[int, float]] = {}

    def begin(self, trial: Trial) -> None:
        """A trial is started."""
        self._begun[trial.id] = (self._record.started(trial, plan=self._plan), time.monotonic())
        self._tell(trial, "running")

    def progress(self, trial: Trial, progress: Progress) -> None:
        """It said how far it is."""
        elapsed = self._elapsed(trial)
        rate = progress.step / elapsed if elapsed > 0 else None
        self._tell(trial, "running", elapsed, progress=progress, rate=rate, left=seconds_left(progress, elapsed))

    def finish(self, trial: Trial, given: Any) -> None:
        """An outcome that cannot be recorded is a failure of its trial, not of the others."""
        number, _ = self._begun[trial.id]
        elapsed = self._elapsed(trial)
        try:
            checked = outcome(given, where=f"trial {trial.arm}, rng_seed {trial.rng_seed}")
        except Exception as error:
            self.fail(trial, error)
            return
        self._record.finished(trial, number, checked, elapsed)
        self._done += 1
        self._tell(trial, "finished")

    def fail(self, trial: Trial, error: BaseException | str, trace: str = "") -> None:
        """It raised, or its process died."""
        number, _ = self._begun[trial.id]
        self._record.failed(trial, number, error, self._elapsed(trial), trace)
        self._done += 1
        self._tell(trial, "failed", error=error if isinstance(error, str) else told(error))

    def interrupt(self, trial: Trial, why: str = "") -> None:
        """It was stopped, and is tried again by the next call."""
        number, _ = self._begun[trial.id]
        self._record.interrupted(trial, number, self._elapsed(trial), why)
        self._tell(trial, "interrupted", error=why)

    def close(self, trial: Trial, message: Message, *, stopping: bool) -> bool:
        """Its worker said how it ended; False: the message does not say it, and whoever runs the workers has to.
        stopping: all are being stopped."""
        if message[0] == "outcome":
            self.finish(trial, message[1])
        elif stopping:  # an error on the way out is of the stop, and the trial is tried again
            self.interrupt(trial, message[1] if message[0] == "error" else "")
        elif message[0] == "error":
            self.fail(trial, message[1], message[2])
        else:
            return False
        return True

    def _elapsed(self, trial: Trial) -> float:
        return time.monotonic() - self._begun[trial.id][1]

    def _tell(self, trial: Trial, state: State, elapsed: float | None = None, **more: Any) -> None:
        seconds = self._elapsed(trial) if elapsed is None else elapsed
        attempt = self._begun[trial.id][0]
        self._watcher(Report(trial, state, self._done, self._of, seconds, attempt=attempt, **more))
