"""Runs trials: one after the other or in parallel; goes on where it was stopped; loses none that failed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from gradledger.evidence import _processes, _ray
from gradledger.evidence._desk import Desk, State
from gradledger.evidence._desk import Report as Report
from gradledger.evidence._desk import Watcher as Watcher
from gradledger.evidence.errors import TrialError
from gradledger.evidence.hypothesis import Plan
from gradledger.evidence.record import Attempt, TrialRecord
from gradledger.evidence.trial import Experiment, Trial, listening

Backend = Literal["processes", "ray"]
GRACE_S = 60.0


class Halted(KeyboardInterrupt):
    """The runner was asked to end by a signal that is not Ctrl-C; every trial can go on. `signal_number`: which."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


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
    backend: Backend = "processes",
    ray: Mapping[str, Any] | None = None,
    beat: Callable[[], None] | None = None,
    grace: float = GRACE_S,
    output: Callable[[Trial], Path] | None = None,
) -> list[Attempt]:
    """Run every trial that has not finished in this folder, and return what counts of each, in the order given.

    A trial that was killed with its runner, or interrupted, is tried again. One that failed is not, except with
    `retry_failed`, and its failure stays on record either way. Ctrl-C (and SIGTERM, where nobody handles it) stops all
    trials, records who was interrupted, and is raised again: the same call goes on.

    Args:
        experiment: (config, rng_seed) -> quantities. With workers above 1 it must be importable by another process.
        plan: hash of the registered plan, kept with each trial.
        workers: trials at a time, each in a process; 1 runs in this process.
        watcher: told of each trial first as waiting, or as how it had ended before, and then of all that happens.
        backend: "processes" of this machine, or "ray": tasks of a Ray cluster; the records are equal.
        ray: arguments of `ray.init`, such as {"address": "auto"}; without them a cluster of this machine alone. One
            that is connected already is used as it is.
        beat: called a few times a second while trials run in other processes.
        grace: seconds that a worker has, when all are stopped, to save what it has.
        output: trial -> file that takes what its worker says on stdout and stderr; default: they share ours.

    Raises:
        TrialError: fewer than one worker, two trials of one id, or a backend that is not installed.
        RecordError: the records of the folder were edited.
    """
    _check(trials, workers)
    record = TrialRecord(folder)
    known = record.latest()
    kept = ("finished",) if retry_failed else ("finished", "failed")
    ended = {one.id: known[one.id] for one in trials if one.id in known and known[one.id].status in kept}
    todo = [one for one in trials if one.id not in ended]
    watch, tick = watcher or (lambda report: None), beat or (lambda: None)
    for number, old in enumerate(ended.values(), 1):
        state: State = "failed" if old.status == "failed" else "finished"
        seconds, error = old.seconds or 0.0, old.error
        watch(Report(old.trial, state, number, len(trials), seconds, error=error, attempt=old.number, before=True))
    for one in todo:
        watch(Report(one, "waiting", len(ended), len(trials), 0.0))
    desk = Desk(record, plan, watch, done=len(ended), of=len(trials))
    with _sigterm_halts():
        if todo and backend == "ray":
            _ray.run(experiment, todo, desk, workers=workers, grace=grace, beat=tick, init=ray)
        elif workers == 1 and output is None:
            for one in todo:
                _run_here(experiment, one, desk)
        else:
            _processes.run(
                experiment, todo, desk, workers=workers, method=start_method, grace=grace, beat=tick, output=output
            )
    latest = record.latest()
    return [latest[one.id] for one in trials]


def _run_here(experiment: Experiment, trial: Trial, desk: Desk) -> None:
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


@contextmanager
def _sigterm_halts() -> Iterator[None]:
    """Within: SIGTERM raises Halted, where it would have ended the process without a word."""

    def halt(number: int, frame: FrameType | None) -> None:
        raise Halted(number)

    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    before = signal.signal(signal.SIGTERM, halt) if mine else None
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGTERM, before)


def _check(trials: Sequence[Trial], workers: int) -> None:
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
