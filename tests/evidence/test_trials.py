"""Trials: recorded as they happen, resumed by id, none of them lost; edits of records and predictions are named."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evidence import experiments
from gradledger.core.records import Records, canonical
from gradledger.evidence.environment import environment, revision
from gradledger.evidence.errors import TrialError
from gradledger.evidence.lock import TRIALS
from gradledger.evidence.record import PREDICTIONS, TrialRecord, load_arrays, save_arrays
from gradledger.evidence.runner import Report, run_trials
from gradledger.evidence.trial import Names, Outcome, Trial, outcome, tell

FIT = {"steps": 5, "lr": 0.1}


def trials(*seeds: int, arm: str = "plain", **config: Any) -> list[Trial]:
    return [Trial(arm, {**FIT, **config}, seed) for seed in seeds]


def test_an_id_is_of_settings_and_seed_alone() -> None:
    one = Trial("a", {"x": 1, "y": 2}, 0)
    assert one.id == Trial("b", {"y": 2, "x": 1}, 0).id
    assert one.id not in (Trial("a", {"x": 1.0, "y": 2}, 0).id, Trial("a", {"x": 1, "y": 2}, 1).id)


def test_trials_are_recorded_with_their_predictions_and_come_out_the_same_in_processes(tmp_path: Path) -> None:
    here = run_trials(experiments.fit, trials(0, 1, 2), tmp_path / "here", plan="abc")
    beside = run_trials(experiments.fit, trials(0, 1, 2), tmp_path / "beside", workers=2)
    assert [one.status for one in here] == ["finished"] * 3
    assert [one.quantities for one in here] == [one.quantities for one in beside]
    assert [one.predictions for one in here] == [one.predictions for one in beside]
    assert {one.plan for one in here} == {"abc"}
    record = TrialRecord(tmp_path / "here")
    assert set(record.measured()) == {("plain", 0), ("plain", 1), ("plain", 2)}
    arrays = record.predictions(here[0].trial.id)
    loss = np.mean((arrays["prediction"] - arrays["target"]) ** 2)
    assert loss < here[0].quantities["loss"]  # the step after the last measured loss
    assert record.faults() == []


def test_a_second_call_runs_only_what_is_new(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(config: Mapping[str, Any], rng_seed: int) -> Mapping[str, Any]:
        calls.append(rng_seed)
        return {"loss": 0.0}

    run_trials(counted, trials(0, 1), tmp_path)
    found = run_trials(counted, trials(2, 1, 0), tmp_path)
    assert calls == [0, 1, 2]
    assert [one.trial.rng_seed for one in found] == [2, 1, 0]


@pytest.mark.parametrize("workers", [1, 3])
def test_no_failed_trial_disappears_and_none_takes_others_with_it(tmp_path: Path, workers: int) -> None:
    seeds = (0, 1, 3, 4, 5, 6) if workers == 1 else (0, 1, 2, 3, 4, 5, 6)
    found = run_trials(experiments.frail, trials(*seeds), tmp_path, workers=workers)
    by_seed = {one.trial.rng_seed: one for one in found}
    assert {seed: one.status for seed, one in by_seed.items()} == {
        seed: "finished" if seed in (0, 6) else "failed" for seed in seeds
    }
    assert by_seed[1].error == "ValueError: the loss is not finite at step 3"
    assert "experiments.py" in by_seed[1].trace
    assert by_seed[3].error == "SystemExit: 4"
    assert "quantities.loss: got a numpy.ndarray" in by_seed[4].error
    assert "without quantities" in by_seed[5].error
    if workers > 1:
        assert by_seed[2].error == "killed by SIGKILL (signal 9)"
    again = run_trials(experiments.frail, trials(*seeds), tmp_path)
    assert again == found
    assert TrialRecord(tmp_path).faults() == []


def test_a_retry_is_asked_for_and_keeps_the_failure(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    todo = trials(0, mended=str(mended))
    folder = tmp_path / "run"
    assert run_trials(experiments.once_broken, todo, folder)[0].status == "failed"
    mended.touch()
    assert run_trials(experiments.once_broken, todo, folder)[0].status == "failed"
    assert run_trials(experiments.once_broken, todo, folder, retry_failed=True)[0].status == "finished"
    assert [(one.number, one.status) for one in TrialRecord(folder).attempts()] == [(1, "failed"), (2, "finished")]


def test_an_interrupted_trial_is_on_record_and_is_tried_again(tmp_path: Path) -> None:
    def stopped(config: Mapping[str, Any], rng_seed: int) -> Mapping[str, Any]:
        if rng_seed == 1:
            raise KeyboardInterrupt
        return {"loss": 0.0}

    with pytest.raises(KeyboardInterrupt):
        run_trials(stopped, trials(0, 1, 2), tmp_path)
    assert [one.status for one in TrialRecord(tmp_path).attempts()] == ["finished", "interrupted"]
    found = run_trials(experiments.fit, trials(0, 1, 2), tmp_path)
    assert [(one.number, one.status) for one in found] == [(1, "finished"), (2, "finished"), (1, "finished")]


def test_a_run_that_was_killed_leaves_its_trial_as_begun_and_goes_on(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from gradledger.evidence.runner import run_trials; from gradledger.evidence.trial import Trial\n"
        "def die(config, rng_seed):\n    return {'loss': 0.0} if rng_seed == 0 else os._exit(9)\n"
        f"run_trials(die, [Trial('plain', {FIT!r}, s) for s in (0, 1)], Path(sys.argv[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 9
    assert [one.status for one in TrialRecord(tmp_path).attempts()] == ["finished", "running"]
    found = run_trials(experiments.fit, trials(0, 1), tmp_path)
    assert [(one.number, one.status) for one in found] == [(1, "finished"), (2, "finished")]


def test_progress_reaches_the_watcher_with_rate_and_time_left(tmp_path: Path) -> None:
    def slow(config: Mapping[str, Any], rng_seed: int) -> Mapping[str, Any]:
        for step in range(4):
            time.sleep(0.01)
            tell(step + 1, 4, loss=1.0 / (step + 1))
        return {"loss": 0.25}

    seen: list[Report] = []
    run_trials(slow, trials(0, 1), tmp_path, watcher=seen.append)
    assert [one.state for one in seen] == ["waiting"] * 2 + (["running"] * 5 + ["finished"]) * 2
    (second,) = [one for one in seen if one.trial.rng_seed == 0 and one.progress and one.progress.step == 2]
    assert second.progress is not None
    assert second.progress.figures == {"loss": 0.5}
    assert second.rate == pytest.approx(2 / second.elapsed)
    assert second.left == pytest.approx(second.elapsed)
    assert [(one.done, one.of) for one in seen if one.state == "finished"] == [(1, 2), (2, 2)]
    run_trials(experiments.fit, trials(5, 6), tmp_path / "beside", workers=2, watcher=seen.append)
    assert {one.trial.rng_seed for one in seen if one.progress and one.progress.step == 5} == {5, 6}
    seen.clear()
    run_trials(experiments.fit, trials(5, 7), tmp_path / "beside", watcher=seen.append)
    assert [(one.trial.rng_seed, one.state, one.before) for one in seen[:2]] == [
        (5, "finished", True),
        (7, "waiting", False),
    ]
    tell(1, 2, loss=0.0)  # nobody listens


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="workers=0"):
        run_trials(experiments.fit, trials(0), tmp_path, workers=0)
    with pytest.raises(TrialError, match=r"more than once \(arms plain, other, rng_seed 0\)"):
        run_trials(experiments.fit, [*trials(0), *trials(0, arm="other")], tmp_path)
    (found,) = run_trials(lambda config, rng_seed: {"loss": 0.0}, trials(7), tmp_path, workers=2)
    assert (found.status, "pickle" in found.error) == ("failed", True)


def test_outcomes_are_checked() -> None:
    with pytest.raises(TrialError, match="a float"):
        outcome(0.5, where="here")
    with pytest.raises(TrialError, match=r"here: predictions.y: got an array of dtype object"):
        outcome(Outcome({"a": 1.0}, {"y": np.array([None])}), where="here")
    checked = outcome({"a": math.inf, "b": (1, 2)}, where="here")
    assert checked.quantities == {"a": {"not_finite": "inf"}, "b": [1, 2]}


def test_names_are_never_given_twice() -> None:
    names = Names()
    given = {names(object()) for _ in range(50)}  # each object is gone, for all its maker knows, before the next
    assert len(given) == 50


def test_the_file_of_predictions_depends_on_the_arrays_alone(tmp_path: Path) -> None:
    arrays = {"b": np.arange(3.0), "a": np.array(["x", "yy"])}
    first = save_arrays(tmp_path / "1.npz", arrays)
    assert save_arrays(tmp_path / "2.npz", dict(reversed(arrays.items()))) == first
    assert all(np.array_equal(value, arrays[name]) for name, value in load_arrays(tmp_path / "1.npz").items())


# ------------------------------------------------------------------------------------------------------------- edits


@pytest.fixture
def run(tmp_path: Path) -> TrialRecord:
    run_trials(experiments.fit, trials(0, 1), tmp_path)
    return TrialRecord(tmp_path)


def test_an_edited_metric_is_named(run: TrialRecord) -> None:
    path = run.folder / TRIALS
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    lines[3]["body"]["quantities"]["loss"] = 0.0
    path.write_bytes(b"".join(canonical(line) + b"\n" for line in lines))
    assert [(one.file, one.field) for one in run.faults()] == [(TRIALS, "line 4: body.quantities.loss")]


def test_a_failed_trial_that_was_taken_out_is_missed(tmp_path: Path) -> None:
    run_trials(experiments.frail, trials(0, 1, 6), tmp_path)
    path = tmp_path / TRIALS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[4:]))
    assert {one.field for one in TrialRecord(tmp_path).faults()} >= {"line 3: number", "line 3: previous"}


def test_edited_predictions_are_named_by_file_and_array(run: TrialRecord) -> None:
    one = run.attempts()[0]
    path = run.folder / PREDICTIONS / f"{one.trial.id}.npz"
    arrays = load_arrays(path)
    arrays["prediction"][3] = arrays["target"][3]
    np.savez_compressed(path, **arrays)
    assert [(fault.file, fault.field) for fault in run.faults()] == [(f"{PREDICTIONS}/{path.name}", "prediction")]
    with pytest.raises(TrialError, match=f"{path.name}: prediction"):
        run.predictions(one.trial.id)
    del arrays["target"]
    np.savez_compressed(path, **arrays)
    assert [fault.field for fault in run.faults()] == ["prediction", "target"]
    path.write_bytes(path.read_bytes()[:50])
    assert [fault.field for fault in run.faults()] == ["file"]
    path.unlink()
    assert [fault.got for fault in run.faults()] == ["no file"]


def test_predictions_from_elsewhere_are_found(run: TrialRecord) -> None:
    save_arrays(run.folder / PREDICTIONS / "better.npz", {"prediction": np.zeros(3)})
    assert [(one.file, one.got) for one in run.faults()] == [("predictions/better.npz", "a file that no trial wrote")]


def test_an_appended_result_without_a_start_and_a_wrong_id_are_found(run: TrialRecord) -> None:
    chain = Records(run.folder / TRIALS)
    body = {"event": "finished", "id": "0" * 16, "attempt": 1, "seconds": 1.0, "quantities": {}, "predictions": {}}
    chain.append(body)
    start = {"event": "started", "id": "f" * 16, "attempt": 1, "plan": "", "arm": "a", "config": {}, "rng_seed": 0}
    chain.append(start)
    assert [one.field for one in run.faults()] == ["line 5: body.attempt", "line 6: body.id"]


# ------------------------------------------------------------------------------------------------------- environment


def test_the_environment_names_what_the_result_was_made_with(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("a\n1\n")
    found = environment(code=tmp_path, files=[data], seeds={"weights": 0}, torch={"threads": 1})
    assert found["packages"]["numpy"] == np.__version__
    assert found["python"]["version"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert found["hardware"]["cores"] >= found["threads"]["usable_cores"] >= 1
    assert found["code"]["commit"] is None  # no checkout
    assert len(found["files"][str(data)]) == 64
    assert (found["seeds"], found["torch"]) == ({"weights": 0}, {"threads": 1})
    assert json.loads(canonical(found))


def test_the_revision_says_what_was_changed(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "train.py").write_text("lr = 1\n")
    git("add", ".")
    git("commit", "-m", "first")
    clean = revision(tmp_path)
    assert (len(clean["commit"]), clean["changed"], clean["diff"]) == (40, False, "")
    (tmp_path / "train.py").write_text("lr = 2\n")
    (tmp_path / "new.py").write_text("x = 1\n")
    dirty = revision(tmp_path)
    assert dirty["changed"]
    assert "-lr = 1\n+lr = 2" in dirty["diff"]
    assert list(dirty["unknown_files"]) == ["new.py"]
    assert dirty["diff_sha256"] != clean["diff_sha256"]
