"""Trials as tasks of a Ray cluster, of this machine or of many; what is recorded is what processes record."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradledger.evidence._attempt import Message, attempt
from gradledger.evidence._desk import Desk
from gradledger.evidence.errors import TrialError
from gradledger.evidence.record import told
from gradledger.evidence.trial import Experiment, Progress, Trial

BEAT_S = 0.25


def run(
    experiment: Experiment,
    todo: Sequence[Trial],
    desk: Desk,
    *,
    workers: int,
    grace: float,
    beat: Callable[[], None],
    init: Mapping[str, Any] | None,
) -> None:
    """Run all, `workers` at a time, one CPU of the cluster each. A cluster that was connected before stays connected.

    Raises:
        TrialError: Ray is not installed.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as missing:
        raise TrialError(
            got=f"the backend 'ray', and no module {missing.name!r}",
            wanted="Ray",
            where="run_trials",
            next_step="pip install 'gradledger[ray]', or leave the backend out: processes of this machine",
        ) from missing
    ours = not ray.is_initialized()
    if ours:
        ray.init(**(dict(init) if init is not None else _local(workers)))
    try:
        _run(ray, experiment, todo, desk, workers, grace, beat)
    finally:
        if ours:
            ray.shutdown()


def _local(workers: int) -> dict[str, Any]:
    """A cluster of this machine, whose workers import what this process can import."""
    paths = os.pathsep.join(one for one in sys.path if one)
    return {
        "num_cpus": workers,
        "include_dashboard": False,
        "log_to_driver": False,
        "runtime_env": {"env_vars": {"PYTHONPATH": paths}},
    }


def _run(
    ray: Any,
    experiment: Experiment,
    todo: Sequence[Trial],
    desk: Desk,
    workers: int,
    grace: float,
    beat: Callable[[], None],
) -> None:
    inbox = ray.remote(num_cpus=0)(Inbox).remote()
    # A trial is written down each time that it begins: Ray must not begin it again on its own.
    task = ray.remote(num_cpus=1, max_retries=0)(_work)
    waiting, running = deque(todo), dict[Any, Trial]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                trial = waiting.popleft()
                desk.begin(trial)
                try:
                    running[task.remote(experiment, trial, inbox)] = trial
                except Exception as error:  # what cannot be pickled cannot be sent
                    desk.fail(trial, error)
            _hear(ray, inbox, running, desk, stopping=False)
            beat()
    except BaseException:
        for one in running:
            ray.cancel(one, force=False)  # raises KeyboardInterrupt in the task
        deadline = time.monotonic() + grace
        try:
            while running and time.monotonic() < deadline:
                _hear(ray, inbox, running, desk, stopping=True)
                beat()
        finally:
            for one, trial in running.items():
                ray.cancel(one, force=True)
                desk.interrupt(trial)
        raise


def _hear(ray: Any, inbox: Any, running: dict[Any, Trial], desk: Desk, *, stopping: bool) -> None:
    """Take what came within a quarter of a second."""
    if not running:
        return
    ready, _ = ray.wait(list(running), num_returns=1, timeout=BEAT_S)
    by_id = {trial.id: trial for trial in running.values()}
    for id, progress in ray.get(inbox.take.remote()).items():
        if id in by_id:
            desk.progress(by_id[id], progress)
    for one in ready:
        _ended(ray, one, running.pop(one), desk, stopping)


def _ended(ray: Any, task: Any, trial: Trial, desk: Desk, stopping: bool) -> None:
    try:
        message: Message = ray.get(task)
    except ray.exceptions.TaskCancelledError:
        message = ("stopped",)
    except ray.exceptions.RayError as error:  # the process, or the machine, that ran it is gone
        message = ("error", f"its process died ({type(error).__name__})", told(error))
    if not desk.close(trial, message, stopping=stopping):
        desk.interrupt(trial, "cancelled from outside")


class Inbox:
    """An actor that keeps the newest progress of each trial until it is asked for."""

    def __init__(self) -> None:
        self._newest: dict[str, Progress] = {}

    def put(self, id: str, progress: Progress) -> None:
        """A trial says how far it is."""
        self._newest[id] = progress

    def take(self) -> dict[str, Progress]:
        """What came since it was last asked."""
        taken, self._newest = self._newest, {}
        return taken


def _work(experiment: Experiment, trial: Trial, inbox: Any) -> Message:
    """In a worker of the cluster."""
    return attempt(experiment, trial, lambda progress: inbox.put.remote(trial.id, progress))
