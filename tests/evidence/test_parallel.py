"""Trials side by side: stopped and gone on with, named when killed, never left behind, shown while they run."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from evidence import experiments
from gradledger.evidence import live
from gradledger.evidence._attempt import NowAndThen
from gradledger.evidence.errors import TrialError
from gradledger.evidence.record import Attempt, TrialRecord
from gradledger.evidence.runner import Halted, Report, run_trials
from gradledger.evidence.trial import Progress, Trial

RUN = """
import sys
from pathlib import Path
from evidence import experiments
from gradledger.evidence.live import run_shown
from gradledger.evidence.trial import Trial
if __name__ == "__main__":
    config = {"folder": sys.argv[1], "steps": 4000, "wait": 0.01}
    run_shown(experiments.slow, [Trial("slow", config, seed) for seed in (0, 1)], Path(sys.argv[1]), workers=2)
"""


def slow(folder: Path, *seeds: int, steps: int = 4000, wait: float = 0.01) -> list[Trial]:
    return [Trial("slow", {"folder": str(folder), "steps": steps, "wait": wait}, seed) for seed in seeds]


def until(holds: Callable[[], bool], *, seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Stop:
    """A watcher that raises Ctrl-C once every one of these seeds has told of its progress."""

    def __init__(self, *seeds: int) -> None:
        self.left = set(seeds)

    def __call__(self, report: Report) -> None:
        if report.progress is not None and report.state == "running":
            self.left.discard(report.trial.rng_seed)
            if not self.left:
                self.left = {-1}
                raise KeyboardInterrupt


def test_ctrl_c_lets_every_trial_save_and_the_next_call_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_trials(experiments.slow, slow(tmp_path, 0, 1, 9), tmp_path, workers=3, watcher=Stop(0, 1, 9), grace=3.0)
    record = TrialRecord(tmp_path)
    assert [one.status for one in record.attempts()] == ["interrupted"] * 3
    assert not alive(int((tmp_path / "pid-9").read_text()))  # it would not end by itself, and was killed
    assert all(int((tmp_path / f"saved-{seed}").read_text()) < 3999 for seed in (0, 1))
    seen: list[Report] = []
    (tmp_path / "saved-1").write_text("3990")
    found = run_trials(experiments.slow, slow(tmp_path, 1), tmp_path, workers=2, watcher=seen.append)
    assert [(one.number, one.status) for one in found] == [(2, "finished")]
    assert found[0].quantities == {"loss": 1.0 / 4000, "began": 3990}
    assert {one.attempt for one in seen if one.state == "running"} == {2}
    assert record.faults() == []


@pytest.mark.parametrize(
    ("number", "status", "text"),
    [(signal.SIGKILL, "failed", "SIGKILL (signal 9)"), (signal.SIGTERM, "interrupted", "SIGTERM (signal 15)")],
)
def test_a_trial_that_a_signal_ended_is_named_with_it_and_the_others_go_on(
    tmp_path: Path, number: int, status: str, text: str
) -> None:
    sent: list[int] = []

    def kill(report: Report) -> None:
        if report.trial.rng_seed == 0 and report.progress is not None and not sent:
            sent.append(int((tmp_path / "pid-0").read_text()))
            os.kill(sent[0], number)

    trials = [*slow(tmp_path, 0), *slow(tmp_path, 1, steps=3)]
    ended, other = run_trials(experiments.slow, trials, tmp_path, workers=2, watcher=kill)
    assert (ended.status, other.status) == (status, "finished")
    assert text in ended.error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_runner(tmp_path: Path, number: int) -> None:
    (tmp_path / "run.py").write_text(RUN)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, str(tmp_path / "run.py"), str(tmp_path)]
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as runner:
        pids = [tmp_path / f"pid-{seed}" for seed in (0, 1)]
        try:
            until(lambda: all(one.exists() and one.read_text() for one in pids))
            runner.send_signal(number)
            runner.wait(120)
        finally:
            runner.kill()
    until(lambda: not any(alive(int(one.read_text())) for one in pids))
    assert all((tmp_path / f"saved-{seed}").exists() for seed in (0, 1))
    states = [one.status for one in TrialRecord(tmp_path).attempts()]
    assert states == (["interrupted"] * 2 if number == signal.SIGTERM else ["running"] * 2)


def test_sigterm_is_ctrl_c_with_its_own_number(tmp_path: Path) -> None:
    def ended(report: Report) -> None:
        if report.progress is not None:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Halted) as stopped:
        run_trials(experiments.slow, slow(tmp_path, 0), tmp_path, watcher=ended)
    assert stopped.value.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert TrialRecord(tmp_path).attempts()[0].status == "interrupted"


def test_what_a_worker_says_goes_to_a_file_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trials = slow(tmp_path, 0, 1, steps=2)
    run_trials(experiments.slow, trials, tmp_path, output=lambda one: tmp_path / "out" / f"{one.rng_seed}.log")
    assert (tmp_path / "out" / "1.log").read_text() == "seed 1 from 0\n"
    assert "seed 1" not in capfd.readouterr().out


def test_a_worker_of_many_short_steps_does_not_tell_of_each() -> None:
    heard: list[int] = []
    now = [0.0]
    listener = NowAndThen(lambda progress: heard.append(progress.step), clock=lambda: now[0])
    for step in range(1, 101):
        now[0] += 0.01
        listener(Progress(step, 100, {}))
    assert heard[0] == 1
    assert heard[-1] == 100
    assert len(heard) == 11


# ------------------------------------------------------------------------------------------------------------ display


class Terminal(io.StringIO):
    """A screen that says that it is one."""

    def isatty(self) -> bool:
        return True


def reports() -> list[Report]:
    trials = {seed: Trial("sweep", {"lr": 0.1}, seed) for seed in range(6)}
    half = Progress(500, 1000, {"loss": 0.125})
    return [
        Report(trials[0], "finished", 1, 6, 12.0, before=True),
        Report(trials[5], "waiting", 1, 6, 0.0),
        Report(trials[1], "running", 1, 6, 0.0),
        Report(trials[1], "running", 1, 6, 10.0, progress=half, rate=50.0, left=10.0),
        Report(trials[2], "running", 1, 6, 0.0, attempt=2),
        Report(trials[3], "failed", 2, 6, 3.0, error="ValueError: the loss is not finite"),
        Report(trials[4], "running", 2, 6, 0.0),
        Report(trials[4], "interrupted", 2, 6, 5.0),
    ]


def drawn(display: live.Display, width: int, height: int = 20) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(live.picture(list(display._rows.values()), display._counts, 65.0, height=height))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_table_has_state_loss_rate_and_time_left_of_every_trial() -> None:
    display = live.Display(stderr=io.StringIO())
    for report in reports():
        display(report)
    lines = drawn(display, 100).splitlines()
    cells = {line.split()[2]: line for line in lines if line.startswith("sweep, seed")}
    assert [cells[str(seed)].split()[3] for seed in range(6)] == [
        "done",
        "running",
        "resumed",
        "failed",
        "interrupted",
        "waiting",
    ]
    for text in ("500/1,000", "loss 0.125", "50", "0:10"):
        assert text in cells["1"]
    assert "ValueError: the loss" in cells["3"]
    told = "2 of 6 ended, 1:05 so far; 1 running; 1 resumed; 1 failed; 1 interrupted; 1 waiting; 1 done"
    assert told in lines[-1]
    assert max(len(line.rstrip()) for line in drawn(display, 60).splitlines()) <= 60
    short = drawn(display, 100, height=2)
    assert "4 not shown" in short
    assert "running" in short.splitlines()[1]


def test_the_rate_is_that_of_the_last_half_minute_and_of_this_attempt_alone() -> None:
    now = [0.0]
    display = live.Display(stderr=io.StringIO(), clock=lambda: now[0])
    trial = Trial("run", {}, 1)
    display(Report(trial, "running", 0, 1, 0.0, attempt=2))
    for step in (5000, 5010, 5020):  # it goes on from step 5,000
        display(Report(trial, "running", 0, 1, now[0], Progress(step, 6020, {}), rate=step / (now[0] + 1), attempt=2))
        now[0] += 1.0
    (row,) = display._rows.values()
    assert (row.rate, row.left) == (10.0, 100.0)
    for step in range(5120, 5621, 100):
        now[0] += 9.0
        display(Report(trial, "running", 0, 1, now[0], Progress(step, 6020, {}), attempt=2))
    assert row.rate == pytest.approx(100 / 9)


def test_on_a_terminal_a_table_is_drawn_and_elsewhere_lines_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    screen = Terminal()
    trials = [Trial("plain", {"steps": 5, "lr": 0.1}, seed) for seed in (0, 1)]
    with live.Display(stderr=screen) as display:
        run_trials(experiments.fit, trials, tmp_path, watcher=display, beat=display.beat)
    assert "plain, seed 1" in screen.getvalue()
    assert re.search(r"2 of 2 ended, \d+:\d\d so far; 2 done", screen.getvalue())
    capsys.readouterr()
    live.run_shown(experiments.frail, [Trial("frail", {}, seed) for seed in (0, 1)], tmp_path / "other")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("  frail, seed 0: finished in ")
    assert lines[1].endswith("(2 of 2): ValueError: the loss is not finite at step 3")
    live.run_shown(experiments.frail, [Trial("frail", {}, seed) for seed in (0, 1)], tmp_path / "other")
    assert capsys.readouterr().out == "  frail, seed 1: failed before: ValueError: the loss is not finite at step 3\n"


def test_plain_lines_of_progress_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    display = live.Display(stderr=io.StringIO(), clock=lambda: now[0])
    trial = Trial("run", {}, 1)
    display(Report(trial, "running", 0, 1, 0.0))
    for step in range(1, 26):
        now[0] += 1.0
        display(Report(trial, "running", 0, 1, now[0], Progress(step, 50, {"loss": 0.5}), rate=1.0))
    assert capsys.readouterr().out.splitlines() == [
        "  run, seed 1: 10 of 50, loss 0.5, 1/s, 0:40 left",
        "  run, seed 1: 20 of 50, loss 0.5, 1/s, 0:30 left",
    ]


def test_a_trial_in_a_process_of_its_own_may_have_workers(tmp_path: Path) -> None:
    found = run_trials(experiments.helped, [Trial("helped", {}, seed) for seed in (1, 2)], tmp_path, workers=2)
    assert [(one.status, one.quantities) for one in found] == [("finished", {"loss": 2.0}), ("finished", {"loss": 4.0})]


# ---------------------------------------------------------------------------------------------------------------- Ray


def test_without_ray_its_backend_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TrialError, match=r"pip install 'gradledger\[ray\]'"):
        run_trials(experiments.fit, [Trial("plain", {"steps": 5, "lr": 0.1}, 0)], tmp_path, backend="ray")
    assert TrialRecord(tmp_path).attempts() == []


class Cluster:
    """Ray's functions as `_ray` calls them: tasks run one by one when they are waited for, each after a trip through
    pickle. A trial of seed 2 loses its process."""

    class Gone(Exception):
        pass

    class Cancelled(Gone):
        pass

    exceptions = SimpleNamespace(RayError=Gone, TaskCancelledError=Cancelled)

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.ended = 0
        self.most = 0
        self.tasks: dict[int, Any] = {}
        self.results: dict[int, Any] = {}

    def is_initialized(self) -> bool:
        return False

    def init(self, **words: Any) -> None:
        self.asked.append(words)

    def shutdown(self) -> None:
        self.ended += 1

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        self.asked.append(options)

        def made(what: Any) -> Any:
            if isinstance(what, type):
                return SimpleNamespace(remote=lambda: self.actor(what()))
            return SimpleNamespace(remote=lambda *words: self.task(what, words))

        return made

    def actor(self, one: Any) -> Any:
        return SimpleNamespace(put=SimpleNamespace(remote=one.put), take=SimpleNamespace(remote=one.take))

    def task(self, function: Any, words: tuple[Any, ...]) -> int:
        number = len(self.tasks)
        self.tasks[number] = (function, pickle.loads(pickle.dumps(words[:2])), words[2])
        self.most = max(self.most, len(self.tasks) - len(self.results))
        return number

    def wait(self, tasks: list[int], *, num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        one = tasks[0]
        if one not in self.results:
            function, words, inbox = self.tasks[one]
            gone = words[1].rng_seed == 2
            self.results[one] = self.Gone("no process") if gone else function(*words, inbox)
        return [one], tasks[1:]

    def get(self, what: Any) -> Any:
        found = self.results[what] if isinstance(what, int) else what
        if isinstance(found, Exception):
            raise found
        return found

    def cancel(self, task: int, *, force: bool) -> None:
        self.results.setdefault(task, self.Cancelled())


def test_tasks_of_a_cluster_are_written_down_as_trials_of_processes_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)  # type: ignore[arg-type]
    fits = [Trial("plain", {"steps": 5, "lr": 0.1}, seed) for seed in (0, 1, 3)]
    seen: list[Report] = []
    there = run_trials(experiments.fit, fits, tmp_path / "ray", workers=2, backend="ray", watcher=seen.append)
    assert told(there) == told(run_trials(experiments.fit, fits, tmp_path / "here"))
    assert (cluster.most, cluster.ended) == (2, 1)
    assert {one.progress.step for one in seen if one.progress is not None} == {5}  # the newest that came
    assert cluster.asked[0]["num_cpus"] == 2
    assert {"num_cpus": 1, "max_retries": 0} in cluster.asked

    frail = [Trial("frail", {}, seed) for seed in (0, 1, 2, 3, 4, 5, 6)]
    there = run_trials(experiments.frail, frail, tmp_path / "frail", workers=3, backend="ray", ray={"address": "auto"})
    kept = [one for one in frail if one.rng_seed != 2]
    here = run_trials(experiments.frail, kept, tmp_path / "frail-here")
    assert told([one for one in there if one.trial.rng_seed != 2]) == told(here)
    assert (there[2].status, there[2].error) == ("failed", "its process died (Gone)")
    assert {"address": "auto"} in cluster.asked

    def stop(report: Report) -> None:
        if report.state == "finished" and not report.before:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trials(experiments.fit, fits, tmp_path / "cut", workers=2, backend="ray", watcher=stop)
    states = [one.status for one in TrialRecord(tmp_path / "cut").attempts()]
    assert states == ["finished", "interrupted"]
    again = run_trials(experiments.fit, fits, tmp_path / "cut", workers=2, backend="ray")
    assert [(one.number, one.status) for one in again] == [(1, "finished"), (2, "finished"), (1, "finished")]


def told(found: list[Attempt]) -> list[Any]:
    return [(one.trial, one.number, one.status, one.quantities, one.predictions, one.error) for one in found]


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install gradledger[ray]")
def test_a_ray_cluster_records_what_processes_record_and_can_be_interrupted(tmp_path: Path) -> None:
    fits = [Trial("plain", {"steps": 5, "lr": 0.1}, seed) for seed in (0, 1)]
    seen: list[Report] = []
    there = run_trials(experiments.fit, fits, tmp_path / "ray", workers=2, backend="ray", watcher=seen.append)
    here = run_trials(experiments.fit, fits, tmp_path / "processes", workers=2)
    assert told(there) == told(here)
    assert {one.progress.step for one in seen if one.progress is not None} <= {1, 2, 3, 4, 5}
    assert TrialRecord(tmp_path / "ray").faults() == []

    frail = [Trial("frail", {}, seed) for seed in (0, 1, 3, 4, 5, 6)]
    there = run_trials(experiments.frail, frail, tmp_path / "frail", workers=2, backend="ray")
    here = run_trials(experiments.frail, frail, tmp_path / "frail-here", workers=2)
    assert told(there) == told(here)
    (dead,) = run_trials(experiments.frail, [Trial("frail", {}, 2)], tmp_path / "frail", backend="ray")
    assert (dead.status, "its process died" in dead.error) == ("failed", True)

    with pytest.raises(KeyboardInterrupt):
        run_trials(experiments.slow, slow(tmp_path, 0, 1), tmp_path, workers=2, backend="ray", watcher=Stop(0, 1))
    assert [one.status for one in TrialRecord(tmp_path).attempts()] == ["interrupted"] * 2
    (tmp_path / "saved-0").write_text("3999")
    (found,) = run_trials(experiments.slow, slow(tmp_path, 0), tmp_path, backend="ray")
    assert (found.number, found.quantities) == (2, {"loss": 1.0 / 4000, "began": 3999})
