"""`gradledger run` as a user runs it: the list, the recipe's own options, exit codes, and what mistakes are called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradledger.cli.main", "run", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_list_names_recipes_and_presets(tmp_path: Path) -> None:
    text = command("--list", folder=tmp_path)
    assert text.returncode == 0
    assert "--preset pong-fast" in text.stdout
    assert max(map(len, text.stdout.splitlines())) <= 80
    listed = json.loads(command("--list", "--json", folder=tmp_path).stdout)
    (dqn,) = [recipe for recipe in listed if recipe["name"] == "dqn_atari"]
    assert (dqn["default_preset"], dqn["extra"]) == ("seed", "rl")
    assert dqn["summary"].startswith("Deep Q-learning on Atari")


@pytest.mark.parametrize(
    ("words", "stream", "message"),
    [
        ((), "stdout", "Usage: gradledger run RECIPE"),
        (("dqn",), "stderr", "did you mean `gradledger run dqn_atari`?"),
        (("--game", "Pong"), "stderr", "Next: gradledger run RECIPE --game Pong, with RECIPE one of arm6_policy, "),
        (("--list", "x"), "stderr", "got x, wanted --list"),
    ],
)
def test_what_is_no_call_ends_with_2(words: tuple[str, ...], stream: str, message: str, tmp_path: Path) -> None:
    done = command(*words, folder=tmp_path)
    assert done.returncode == 2
    assert message in getattr(done, stream)
    assert "Traceback" not in done.stderr


def test_a_recipe_runs_with_its_own_options_and_is_not_run_over(tmp_path: Path) -> None:
    words = "dqn_atari --preset smoke --game CartPole-v1 --total-steps 300 --learning-starts 100 --log-every 100"
    done = command(*words.split(), "--eval-episodes", "2", "--out", "runs/a", "--no-pictures", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no terminal: no progress line
    assert len([line for line in done.stdout.splitlines() if " updates " in line]) == 3
    record = json.loads((tmp_path / "runs" / "a" / "record.json").read_text(encoding="utf-8"))
    assert record["completed"]["env_step"] >= 300
    assert record["args"]["env"] == "CartPole-v1"
    again = command("dqn_atari", "--game", "CartPole-v1", "--out", "runs/a", folder=tmp_path)
    assert again.returncode == 2
    assert "go on with: gradledger run dqn_atari --resume runs/a" in again.stderr


def test_the_help_is_the_recipes_own(tmp_path: Path) -> None:
    done = command("dqn_atari", "--help", folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: gradledger run dqn_atari [options]")
    for option in ("--env NAME, --game NAME", "--resume [DIR]", "--seeds LIST", "--threads INT|auto", "--precision"):
        assert option in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
