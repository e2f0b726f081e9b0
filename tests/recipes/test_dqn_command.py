"""The DQN recipe as a user runs it: series of seeds, stopping and going on, what lies in the run folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from gradledger.recipes import _dqn_begin, _dqn_state, _folder, dqn_atari
from gradledger.recipes._threads import Calibration
from gradledger.recipes.dqn_atari import Args, Run, train

TINY: dict[str, Any] = {
    "preset": "smoke",
    "env": "CartPole-v1",
    "total_steps": 400,
    "replay": 400,
    "learning_starts": 80,
    "update_every": 4,
    "target_sync": 80,
    "epsilon_steps": 300,
    "max_episode_steps": 40,
    "eval_episodes": 2,
    "log_every": 80,
    "checkpoint_every": 160,
    "pictures": False,
}
WORDS = [
    word for name, value in TINY.items() if name != "pictures" for word in (f"--{name.replace('_', '-')}", str(value))
]
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def leaves(folder: Path) -> tuple[bytes, bytes, Any]:
    """What equal runs have in common, to the bit."""
    told = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    return (
        (folder / "final.safetensors").read_bytes(),
        (folder / "episodes.csv").read_bytes(),
        (told["completed"], told["evaluation"]),
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seed 2, run by itself."""
    out = tmp_path_factory.mktemp("alone") / "run"
    train(Args(**TINY, rng_seed=2, out=out))
    return out


def test_seeds_run_one_after_the_other_and_each_is_as_if_alone(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "series")
    save, saved = _dqn_state.save, []

    def stop_in_the_second(run: Run) -> None:
        save(run)
        saved.append(run.counters.env_step)
        if len(saved) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_dqn_state, "save", stop_in_the_second)
        assert dqn_atari.main([*WORDS, "--no-pictures", "--seeds", "1..3", "--out", out]) == 130
    assert f"interrupted; to go on: gradledger run dqn_atari --resume {out}" in capsys.readouterr().err
    assert [row["rng_seed"] for row in json.loads((tmp_path / "series" / "seeds.json").read_text())["seeds"]] == [1]
    first = (tmp_path / "series" / "seed-1" / "record.json").read_bytes()

    assert dqn_atari.main(["--resume", out, "--gamma", "0.5"]) == 2
    assert "got gamma=0.5, wanted gamma=0.99" in capsys.readouterr().err
    assert dqn_atari.main(["--resume", out]) == 0
    said = capsys.readouterr().out
    assert (tmp_path / "series" / "seed-1" / "record.json").read_bytes() == first  # read, not run again
    assert said.count("resumed at") == 1
    assert leaves(tmp_path / "series" / "seed-2") == leaves(alone)
    told = json.loads((tmp_path / "series" / "seeds.json").read_text())
    assert [row["rng_seed"] for row in told["seeds"]] == [1, 2, 3]
    means = [row["evaluation"] for row in told["seeds"]]
    assert told["over_seeds"]["evaluation"]["mean"] == pytest.approx(sum(means) / 3)
    assert "95 % from" in said
    record = json.loads((tmp_path / "series" / "seed-3" / "record.json").read_text())
    assert (record["args"]["rng_seed"], record["args"]["total_steps"]) == (3, 400)

    assert dqn_atari.main([*WORDS, "--seeds", "4,3", "--out", out]) == 2
    assert "seed-3" in capsys.readouterr().err
    assert not (tmp_path / "series" / "seed-4").exists()  # refused before the first began


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_goes_on_to_the_same_end(
    number: signal.Signals, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = [*WORDS, "--no-pictures", "--rng-seed", "2", "--checkpoint-every", "100000", "--out", str(out)]
    command = [sys.executable, "-m", "gradledger.recipes.dqn_atari"]
    child = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)
    assert child.stdout is not None
    assert "steps" in child.stdout.readline()
    child.send_signal(number)
    _, said = child.communicate(timeout=120)
    assert child.returncode == 128 + number
    assert f"stopped and saved; to go on: gradledger run dqn_atari --resume {out}" in said
    assert "Traceback" not in said
    assert dqn_atari.main(["--resume", str(out)]) == 0
    assert leaves(out) == leaves(alone)


def test_a_run_killed_before_its_first_checkpoint_begins_again(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"

    def killed(run: Run) -> None:
        (run.args.out / "checkpoints" / "step-000000000160.tmp").mkdir(parents=True)  # half of one
        raise SystemError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(_dqn_state, "save", killed)
        with pytest.raises(SystemError):
            train(Args(**TINY, rng_seed=2, out=out))
    assert _folder.rows(out / "metrics.csv")
    assert dqn_atari.main(["--resume", "--out", str(out), "--gamma", "0.5"]) == 2
    assert "got gamma=0.5, wanted gamma=0.99" in capsys.readouterr().err
    assert dqn_atari.main(["--resume", "--out", str(out)]) == 0
    assert "begins again with the same settings" in capsys.readouterr().out
    assert leaves(out) == leaves(alone)
    assert (out / "metrics.csv").read_text().count("env_step") == 1


def test_pictures_threads_and_scalars_change_nothing_of_the_run(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[tuple[dict[str, float], int]] = []
    real = _dqn_begin.Scalars

    class Listening(real):  # type: ignore[misc, valid-type]
        def write(self, row: dict[str, float], *, env_step: int) -> None:
            rows.append((row, env_step))

    def one(update: Any, most: int) -> Calibration:
        for _ in range(3):
            update()
        return Calibration(1, {1: 0.02, 2: 0.04}, 2.0)

    monkeypatch.setattr(_dqn_begin, "Scalars", Listening)
    monkeypatch.setattr(_dqn_begin, "calibrate", one)
    out = tmp_path / "run"
    told = train(Args(**{**TINY, "pictures": True}, rng_seed=2, threads="auto", out=out))
    assert leaves(out) == leaves(alone)
    assert told["args"]["threads"] == 1
    assert told["calibration"]["median_seconds_per_update"] == {"1": 0.02, "2": 0.04}
    assert told["pictures"] == {
        "curves.png": None,
        "film.gif": "no episode of frames",
        "strip.png": "no episode of frames",
    }
    episodes = _folder.rows(out / "episodes.csv")
    shown = [(row["return/episode"], at) for row, at in rows if "return/episode" in row]
    assert shown == [(row["return"], row["env_step"]) for row in episodes]
    metrics = _folder.rows(out / "metrics.csv")
    assert [(row["loss"], at) for row, at in rows if "loss" in row][1:] == [
        (pytest.approx(row["loss"]), row["env_step"]) for row in metrics[1:]
    ]
    assert rows[-1] == ({"return/evaluation": told["evaluation"]["mean"]}, told["completed"]["env_step"])
    for row in metrics:
        then = [one["return"] for one in episodes if one["env_step"] <= row["env_step"]]
        assert row["return_20"] == pytest.approx(sum(then[-20:]) / len(then[-20:]))
        assert row["return_100"] == pytest.approx(sum(then[-100:]) / len(then[-100:]))


def test_the_folder_of_an_atari_run_tells_everything(tmp_path: Path) -> None:
    out = tmp_path / "run"
    pong = {"env": "Pong", "total_steps": 200, "lanes": 4, "learning_starts": 120, "max_episode_steps": 25, "batch": 4}
    told = train(Args(**{**TINY, **pong, "eval_episodes": 2, "pictures": True}, out=out))
    assert sorted(path.name for path in out.iterdir()) == [
        "checkpoints",
        "config.json",
        "curves.png",
        "environment.json",
        "episodes.csv",
        "film.gif",
        "final.safetensors",
        "metrics.csv",
        "record.json",
        "strip.png",
    ]
    assert json.loads((out / "record.json").read_text()) == json.loads(json.dumps(told))
    assert json.loads((out / "environment.json").read_text()) == told["training_environment"]
    config = json.loads((out / "config.json").read_text())
    assert {key: told[key] for key in config} == config
    assert config["args"]["env"] == "pong"
    assert config["kind"].startswith("plumbing test")
    assert config["machine"]["usable_cores"] >= 1
    assert config["versions"]["ale-py"]
    scored = told["evaluation"]
    low, high = scored["interval_95"]
    assert low <= scored["mean"] <= high
    assert {"setup", "acting", "environment", "replay", "batch", "update", "checkpoint", "evaluation", "pictures"} == (
        set(told["seconds"])
    )
    assert told["process_peak_bytes"] > 2**27
    assert set(told["pictures"].values()) == {None}
    with Image.open(out / "film.gif") as film:
        lasts = []
        for index in range(film.n_frames):  # type: ignore[attr-defined]
            film.seek(index)
            lasts.append(film.info["duration"])
    assert scored["lengths"][0] == 25
    assert sum(lasts) == 24 * 70 + 1_500  # pictures that do not change are one that lasts longer


def test_a_folder_without_a_run_cannot_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--resume", str(tmp_path)], ["--resume", "--out", str(tmp_path / "gone")]):
        assert dqn_atari.main(words) == 2
        assert f"--resume, and no run in {words[-1]}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_may_be_calibrated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    out = tmp_path / "run"
    train(Args(**TINY, out=out))
    monkeypatch.setattr(_dqn_begin, "calibrate", lambda update, most: Calibration(2, {1: 0.3, 2: 0.1}, 2.0))
    assert dqn_atari.main(["--resume", str(out), "--threads", "auto", "--total-steps", "480"]) == 0
    told = json.loads((out / "record.json").read_text())
    assert (told["args"]["threads"], told["machine"]["torch_threads"], told["calibration"]["chosen"]) == (2, 2, 2)
    torch.set_num_threads(before)
