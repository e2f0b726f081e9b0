"""Trials in parallel processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from gradledger.evidence._attempt import Message, attempt, signal_named
from gradledger.evidence._desk import Desk
from gradledger.evidence.trial import Experiment, Trial

BEAT_S = 0.25  # the caller's display is drawn at least so often

Running = dict[Connection, tuple[Trial, Any]]


def run(
    experiment: Experiment,
    todo: Sequence[Trial],
    desk: Desk,
    *,
    workers: int,
    method: str,
    grace: float,
    beat: Callable[[], None],
    output: Callable[[Trial], Path] | None,
) -> None:
    """Run all, `workers` at a time. When this is interrupted, every worker is sent SIGTERM, has `grace` seconds to save
    what it has and to end, and is killed after that."""
    context: Any = multiprocessing.get_context(method)
    waiting = deque(todo)
    running: Running = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                trial = waiting.popleft()
                mine, theirs = context.Pipe(duplex=False)
                path = str(output(trial)) if output is not None else None
                # No daemon: those may have no children, and a trial may load its data with workers of its own.
                process = context.Process(target=_work, args=(experiment, trial, theirs, path, grace), daemon=False)
                desk.begin(trial)
                running[mine] = (trial, process)
                try:
                    process.start()
                except Exception as error:  # what cannot be pickled cannot be sent
                    del running[mine]
                    mine.close()
                    desk.fail(trial, error)
                finally:
                    theirs.close()
            _hear(running, desk, BEAT_S)
            beat()
    except BaseException:
        _stop(running, desk, grace, beat)
        raise


def _hear(running: Running, desk: Desk, seconds: float, *, stopping: bool = False) -> None:
    """Take what came within so many seconds."""
    for ready in wait(list(running), timeout=seconds) if running else ():
        mine = next(one for one in running if one is ready)
        if _heard(mine, *running[mine], desk, stopping):
            del running[mine]


def _heard(mine: Connection, trial: Trial, process: Any, desk: Desk, stopping: bool) -> bool:
    """Take one message of a worker; whether it was the last."""
    try:
        message: Message = mine.recv()
    except (EOFError, OSError):
        message = ("gone",)
    if message[0] == "progress":
        desk.progress(trial, message[1])
        return False
    process.join()
    mine.close()
    if desk.close(trial, message, stopping=stopping):
        return True
    if message[0] == "stopped":
        desk.interrupt(trial, f"stopped from outside by {signal_named(signal.SIGTERM)}")
    else:
        code = process.exitcode or 0
        desk.fail(trial, f"killed by {signal_named(-code)}" if code < 0 else f"its process ended with exit code {code}")
    return True


def _stop(running: Running, desk: Desk, grace: float, beat: Callable[[], None]) -> None:
    """Ask all workers to end, wait, kill the rest; each is written down as interrupted, or as what it came to."""
    for _, process in running.values():
        if process.pid is not None:  # None: it was about to start
            process.terminate()
    deadline = time.monotonic() + grace
    try:
        while running and time.monotonic() < deadline:
            _hear(running, desk, min(BEAT_S, grace), stopping=True)
            beat()
    finally:  # also when a second interrupt does not want to wait
        for mine, (trial, process) in running.items():
            if process.pid is not None:
                process.kill()
                process.join()
            mine.close()
            desk.interrupt(trial)
        running.clear()


def _work(experiment: Experiment, trial: Trial, pipe: Connection, output: str | None, grace: float) -> None:
    """In the worker. Ctrl-C in a terminal reaches every process of it; here only the runner's SIGTERM counts, which
    raises KeyboardInterrupt, as Ctrl-C would: an experiment that saves on one saves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_follow, args=(grace,), daemon=True).start()
    try:
        if output is not None:
            _into(output)
        message = attempt(experiment, trial, lambda progress: pipe.send(("progress", progress)))
    except KeyboardInterrupt:  # before it began, or between two lines of ours
        message = ("stopped",)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is over: what came of it is to arrive
    try:
        pipe.send(message)
    except BrokenPipeError:
        pass  # nobody listens any more
    finally:
        pipe.close()


def _follow(grace: float) -> None:
    """A worker whose runner was killed ends too: the next run must not find it at work in the same folder."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os._exit(1)


def _into(path: str) -> None:
    """What this process says from here on goes to a file, also what is said below python."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
