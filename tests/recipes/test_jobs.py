"""Seeds of a series side by side: each as if alone, shown, stopped and gone on with, a failed one in the table."""

from __future__ import annotations

import importlib
import json
import math
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evidence import experiments
from gradledger.evidence import trial
from gradledger.evidence.record import TrialRecord
from gradledger.evidence.runner import Halted
from gradledger.evidence.trial import Progress as Told
from gradledger.recipes import _main, _seeds, dqn_atari
from gradledger.recipes._command_line import parse
from gradledger.recipes._main import OneOfSeveral
from gradledger.recipes._progress import Progress, Status
from gradledger.recipes.dqn_atari import Args, train
from gradledger.recipes.ik_planar import Args as IkArgs

POLE: dict[str, Any] = {
    "preset": "smoke",
    "env": "CartPole-v1",
    "total_steps": 240,
    "replay": 240,
    "learning_starts": 80,
    "max_episode_steps": 40,
    "eval_episodes": 2,
    "log_every": 80,
    "checkpoint_every": 80,
    "pictures": False,
}


def test_a_series_side_by_side_has_every_seed_and_the_errors_of_those_that_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"out": str(tmp_path), "steps": 240}
    options: dict[str, Any] = {"settings": {"gamma": 0.9}, "config": config, "jobs": 2, "backend": "processes"}
    told = _seeds.run_beside("pole", (1, 2, 3), tmp_path, experiments.seed_of_a_series, **options)
    assert [row["rng_seed"] for row in told["seeds"]] == [1, 3]
    assert told["failed"] == [
        {"rng_seed": 2, "status": "failed", "attempts": 1, "error": "ValueError: the emulator said no"}
    ]
    assert json.loads((tmp_path / "seeds.json").read_text()) == json.loads(json.dumps(told))
    assert (tmp_path / "seed-3.log").read_text() == "plays\n"
    said = capsys.readouterr().out
    assert "pole, seed 2: failed in" in said
    assert "        2  failed: ValueError: the emulator said no" in said
    (tmp_path / "mended").touch()
    again = _seeds.run_beside("pole", (1, 2, 3), tmp_path, experiments.seed_of_a_series, **options)
    assert ([row["rng_seed"] for row in again["seeds"]], again["failed"]) == ([1, 2, 3], [])
    attempts = [(one.trial.rng_seed, one.number, one.status) for one in TrialRecord(tmp_path).attempts()]
    assert sorted(attempts) == [(1, 1, "finished"), (2, 1, "failed"), (2, 2, "finished"), (3, 1, "finished")]


def test_a_run_as_a_trial_goes_on_where_its_folder_ends_and_tells_how_far_it_is(tmp_path: Path) -> None:
    args = Args(**POLE, out=tmp_path)
    several = OneOfSeveral(train, args, {}, frozenset(_main.FREE))
    heard: list[Told] = []
    with trial.listening(heard.append):
        scores = several({}, 2)
    assert {"evaluation", "return_20", "env_step"} <= set(scores)
    assert heard[-1].step >= heard[-1].of == 240
    assert "loss" in heard[-1].figures
    record = (tmp_path / "seed-2" / "record.json").read_bytes()
    assert several({}, 2) == scores  # read, not played again
    assert (tmp_path / "seed-2" / "record.json").read_bytes() == record
    alone = train(Args(**POLE, rng_seed=2, out=tmp_path / "alone"))
    assert json.loads(record)["evaluation"] == json.loads(json.dumps(alone["evaluation"]))


def test_a_stopped_series_says_how_to_go_on_with_as_many_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {}

    def stopped(*words: Any, **options: Any) -> None:
        asked.update(options)
        raise Halted(signal.SIGTERM)

    monkeypatch.setattr(_seeds, "run_beside", stopped)
    out = str(tmp_path / "series")
    words = ["--preset=smoke", "--game=CartPole-v1", "--seeds=1..3", "--jobs=3", f"--out={out}", "--threads=2"]
    assert dqn_atari.main(words) == 143
    assert f"to go on: gradledger run dqn_atari --resume {out} --jobs 3" in capsys.readouterr().err
    assert asked["jobs"] == 3
    # what makes a run another run is in the trial's settings; what may change on the way is not
    assert asked["config"]["env"] == "CartPole-v1"
    assert not {"threads", "out", "resume", "rng_seed"} & set(asked["config"])


@pytest.mark.parametrize("name", ["arm6_policy", "ik_planar", "lab_gradients", "lab_pipeline", "seal_scout"])
def test_jobs_and_backend_of_a_recipe_that_runs_a_plan_are_its_own(name: str) -> None:
    module = importlib.import_module(f"gradledger.recipes.{name}")
    presets: dict[str, dict[str, Any]] = {preset: {} for preset in module.RECIPE.presets}
    asked = ["--jobs", "3", "--backend", "ray", "--retry-failed"]
    words = parse(module.Args, presets, asked, recipe=module.RECIPE, description="", series=False)
    assert (words.args.workers, words.args.backend, words.args.retry_failed, words.jobs) == (3, "ray", True, 1)


def test_a_plan_that_is_stopped_says_the_command_that_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(args: Any) -> None:
        raise KeyboardInterrupt

    words = ["--out", "a folder", "--jobs", "2"]
    options = {"recipe": __import__("gradledger.recipes.ik_planar", fromlist=["RECIPE"]).RECIPE, "description": ""}
    presets: dict[str, dict[str, Any]] = {"full": {}, "smoke": {}}
    assert _main.simple(IkArgs, presets, stopped, words, prog="gradledger run ik_planar", **options) == 130
    assert "to go on: gradledger run ik_planar --out 'a folder' --jobs 2" in capsys.readouterr().err


def test_progress_is_told_to_whoever_runs_this_and_keeps_the_last_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def status(loss: float) -> Status:
        return Status(0, 1, 1, math.nan, math.nan, loss, 0.1, 1.0)

    heard: list[Told] = []
    monkeypatch.setattr("gradledger.recipes._progress.time", SimpleNamespace(monotonic=lambda: 7.0))
    with trial.listening(heard.append), Progress("pole", total=16) as progress:
        progress.tick(8, lambda: status(0.5))
        progress.tick(9, lambda: status(0.25))  # too soon after the first
        progress.tick(16, lambda: status(math.nan))  # the last; no update since the row before
    assert [(one.step, one.of, dict(one.figures)) for one in heard] == [(8, 16, {"loss": 0.5}), (16, 16, {"loss": 0.5})]
