"""What may happen to a run: a checkpoint that is damaged, a disk that takes no large files, a life that is lost.

Kills at many moments, a real full disk and every damage to every file: `benchmarks/dqn_kill.py`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradledger.recipes.dqn_atari import Args, Run, train
from gradledger.train import CheckpointError

CARTPOLE = Args(
    preset="smoke",
    env="CartPole-v1",
    total_steps=700,
    lanes=4,
    replay=600,
    learning_starts=120,
    update_every=4,
    target_sync=150,
    epsilon_steps=400,
    max_episode_steps=60,
    eval_episodes=2,
    log_every=200,
    checkpoint_every=200,
    pictures=False,
)


def left(folder: Path) -> dict[str, Any]:
    """What a run leaves that does not depend on the clock."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    return {
        "weights": (folder / "final.safetensors").read_bytes(),
        "episodes": (folder / "episodes.csv").read_bytes(),
        "completed": record["completed"],
        "evaluation": record["evaluation"],
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to; its checkpoints are those of 400 and 600 steps."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(replace(CARTPOLE, out=folder))
    assert len(list((folder / "checkpoints").glob("step-*"))) == 2
    return folder


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("replay.safetensors", lambda path: os.truncate(path, path.stat().st_size - 1)),
        ("optimizer.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x7f")),
        ("manifest.json", lambda path: os.truncate(path, 0)),
    ],
    ids=["cut by a byte", "a byte flipped", "manifest empty"],
)
def test_a_torn_checkpoint_is_passed_over_and_the_run_ends_with_the_same_bits(
    file: str, harm: Any, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(whole, torn)
    for name in ("record.json", "final.safetensors"):
        (torn / name).unlink()
    older, newest = sorted((torn / "checkpoints").glob("step-*"))
    harm(newest / file)
    train(replace(CARTPOLE, out=torn, resume=True))
    assert f"passed over {newest.name}: " in capsys.readouterr().err
    assert left(torn) == left(whole)
    assert older.name < newest.name


def test_with_every_checkpoint_torn_the_run_is_refused_and_nothing_is_touched(whole: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(whole, torn)
    for manifest in (torn / "checkpoints").glob("*/manifest.json"):
        manifest.unlink()
    before = {path: path.stat().st_mtime_ns for path in torn.rglob("*")}
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        train(replace(CARTPOLE, out=torn, resume=True))
    assert {path: path.stat().st_mtime_ns for path in torn.rglob("*")} == before


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to let any file grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_checkpoint_costs_checkpoints_and_nothing_else(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    newest = max((whole / "checkpoints").glob("step-*"))
    sizes = {path.name: path.stat().st_size for path in newest.iterdir()}
    limit = max(sizes.values()) - 1
    assert limit > (whole / "final.safetensors").stat().st_size  # what has to be written at the end still fits
    with files_of_at_most(limit):
        told = train(replace(CARTPOLE, out=out))
    assert told["failed_checkpoints"] >= 2
    assert "the run goes on" in capfd.readouterr().err
    assert left(out) == left(whole)
    assert not list((out / "checkpoints").glob("*.tmp"))


@pytest.mark.parametrize("asked", [False, True], ids=["a life is a life", "a life ends the return"])
def test_a_life_lost_on_breakout_ends_the_return_only_where_asked_and_never_the_episode(
    asked: bool, tmp_path: Path
) -> None:
    args = replace(CARTPOLE, env="breakout", out=tmp_path, n_step=3, replay=1_600, life_loss_terminates=asked)
    run = Run(replace(args, learning_starts=10_000, total_steps=20_000, max_episode_steps=10_000))
    lost: np.ndarray = np.zeros((0, 2), dtype=np.int64)
    for _ in range(390):
        run.tick()
        flags = run.replay._life_lost & ~run.replay._terminated
        lost = np.argwhere(flags[: run.replay._added - 5])  # whole windows behind them
        if len(lost) >= 5:
            break
    assert len(lost) >= 5
    rows, lanes = lost.T
    batch = run.replay._gather(rows, lanes, np.ones(len(rows), dtype=np.float32))
    ends = run.replay._terminated | run.replay._truncated | (run.replay._life_lost & asked)
    for k, (row, lane) in enumerate(lost):
        over = [j for j in range(3) if ends[row + j, lane]]
        length = over[0] + 1 if over else 3
        assert int(batch.length[k]) == length == (1 if asked else length)
        assert bool(batch.terminated[k]) == bool(over)
        assert float(batch.discount[k]) == pytest.approx(0.0 if over else 0.99**length)
        assert not run.replay._start[row + 1, lane]  # the game goes on, and so does the stack of frames
    run.lanes.close()
