"""Runs trials: one after the other or in parallel processes; goes on where it was stopped; loses none that failed."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from gradledger.evidence.errors import TrialError
from gradledger.evidence.hypothesis import Plan
from gradledger.evidence.record import Attempt, TrialRecord, told
from gradledger.evidence.trial import Experiment, Outcome, Progress, Trial, listening, outcome, seconds_left

State = Literal["running", "finished", "failed", "interrupted"]


@dataclass(frozen=True)
class Report:
    """What a display is told. rate: steps a second. left: seconds to the trial's end. done, of: trials."""

    trial: Trial
    state: State
    done: int
    of: int
    elapsed: float
    progress: Progress | None = None
    rate: float | None = None
    left: float | None = None
    error: str = ""


Watcher = Callable[[Report], None]


def trials_of(plan: Plan) -> list[Trial]:
    """The trials that a plan's hypotheses ask for."""
    return [Trial(arm, plan.arms[arm], seed) for arm, seed in plan.needed()]


def run_trials(
    experiment: Experiment,
    trials: Sequence[Trial],
    folder: Path,
    *,
    plan: str = "",
    workers: int = 1,
    retry_failed: bool = False,
    watcher: Watcher | None = None,
    start_method: Literal["spawn", "fork", "forkserver"] = "spawn",
) -> list[Attempt]:
    """Run every trial that has not finished in this folder, and return what counts of each, in the order given.

    A trial that was killed or interrupted is tried again. One that failed is not, except with `retry_failed`, and its
    failure stays on record either way. Ctrl-C records who was interrupted and is raised again.

    Args:
        experiment: (config, rng_seed) -> quantities. With workers above 1 it must be importable by another process.
        plan: hash of the registered plan, kept with each trial.
        workers: processes at a time; 1 runs in this process.

    Raises:
        TrialError: fewer than one worker, or two trials of one id.
        RecordError: the records of the folder were edited.
    """
    if workers < 1:
        raise TrialError(got=f"workers={workers}", wanted="1 or more", where="run_trials", next_step="name a number")
    ids = [one.id for one in trials]
    twice = next((one for one in trials if ids.count(one.id) > 1), None)
    if twice is not None:
        arms = ", ".join(one.arm for one in trials if one.id == twice.id)
        raise TrialError(
            got=f"trial {twice.id} more than once (arms {arms}, rng_seed {twice.rng_seed})",
            wanted="trials that differ in settings or seed",
            where="run_trials",
            next_step="arms with equal settings are one arm",
        )
    record = TrialRecord(folder)
    ended = {id for id, one in record.latest().items() if one.status == "finished"}
    if not retry_failed:
        ended |= {id for id, one in record.latest().items() if one.status == "failed"}
    todo = [one for one in trials if one.id not in ended]
    desk = _Desk(record, plan, watcher or (lambda report: None), done=len(trials) - len(todo), of=len(trials))
    if workers == 1:
        for one in todo:
            _run_here(experiment, one, desk)
    else:
        _run_beside(experiment, todo, desk, workers, start_method)
    latest = record.latest()
    return [latest[id] for id in ids]


class _Desk:
    """Writes down what happens to trials and tells the watcher."""

    def __init__(self, record: TrialRecord, plan: str, watcher: Watcher, *, done: int, of: int) -> None:
        self._record, self._plan, self._watcher = record, plan, watcher
        self._done, self._of = done, of
        self._begun: dict[str, tuple[int, float]] = {}

    def begin(self, trial: Trial) -> None:
        self._begun[trial.id] = (self._record.started(trial, plan=self._plan), time.monotonic())
        self._tell(trial, "running")

    def progress(self, trial: Trial, progress: Progress) -> None:
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
        number, _ = self._begun[trial.id]
        self._record.failed(trial, number, error, self._elapsed(trial), trace)
        self._done += 1
        self._tell(trial, "failed", error=error if isinstance(error, str) else told(error))

    def interrupt(self, trial: Trial) -> None:
        number, _ = self._begun[trial.id]
        self._record.interrupted(trial, number, self._elapsed(trial))
        self._tell(trial, "interrupted")

    def _elapsed(self, trial: Trial) -> float:
        return time.monotonic() - self._begun[trial.id][1]

    def _tell(self, trial: Trial, state: State, elapsed: float | None = None, **more: Any) -> None:
        seconds = self._elapsed(trial) if elapsed is None else elapsed
        self._watcher(Report(trial, state, self._done, self._of, seconds, **more))


def _run_here(experiment: Experiment, trial: Trial, desk: _Desk) -> None:
    desk.begin(trial)
    try:
        with listening(lambda progress: desk.progress(trial, progress)):
            given = experiment(trial.config, trial.rng_seed)
    except KeyboardInterrupt:
        desk.interrupt(trial)
        raise
    except (Exception, SystemExit) as error:
        desk.fail(trial, error)
    else:
        desk.finish(trial, given)


def _run_beside(experiment: Experiment, todo: Sequence[Trial], desk: _Desk, workers: int, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    waiting = deque(todo)
    running: dict[Connection, tuple[Trial, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                trial = waiting.popleft()
                mine, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(experiment, trial, theirs), daemon=True)
                desk.begin(trial)
                try:
                    process.start()
                except Exception as error:  # what cannot be pickled cannot be sent
                    mine.close()
                    desk.fail(trial, error)
                    continue
                finally:
                    theirs.close()
                running[mine] = (trial, process)
            for ready in wait(list(running)) if running else ():
                mine = next(one for one in running if one is ready)
                if _heard(mine, *running[mine], desk):
                    del running[mine]
    except BaseException:
        for mine, (trial, process) in running.items():
            process.terminate()
            process.join()
            mine.close()
            desk.interrupt(trial)
        raise


def _heard(mine: Connection, trial: Trial, process: Any, desk: _Desk) -> bool:
    """Take one message of a worker; whether it was the last."""
    try:
        kind, *rest = mine.recv()
    except EOFError:
        process.join()
        code = process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        desk.fail(trial, f"the process of the trial died ({how})")
        mine.close()
        return True
    if kind == "progress":
        desk.progress(trial, rest[0])
        return False
    process.join()
    mine.close()
    if kind == "outcome":
        desk.finish(trial, rest[0])
    else:
        desk.fail(trial, rest[0], rest[1])
    return True


def _work(experiment: Experiment, trial: Trial, pipe: Connection) -> None:
    """In the worker: errors travel as text, because not every exception can be pickled."""
    try:
        with listening(lambda progress: pipe.send(("progress", progress))):
            given: Mapping[str, Any] | Outcome = experiment(trial.config, trial.rng_seed)
        checked = outcome(given, where=f"trial {trial.arm}, rng_seed {trial.rng_seed}")
        pipe.send(("outcome", checked))
    except KeyboardInterrupt:
        pass  # the parent was interrupted as well, and writes it down
    except (Exception, SystemExit) as error:
        pipe.send(("error", told(error), traceback.format_exc()))
    finally:
        pipe.close()
