"""`gradledger bench dqn`: the record has what the measurement protocol asks for, and the parts add up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gradledger.core.errors import UsageError
from gradledger.recipes import _dqn_bench as bench

ARGS: dict[str, Any] = {"env": "CartPole-v1", "lanes": 4, "replay": 800, "batch": 32, "max_episode_steps": 50}
SMALL = bench.Setting(args=ARGS, fill=200, warm=2, repeats=15)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    threads = torch.get_num_threads()
    found = bench.measure(SMALL, "sweep", "bf16", started=0.5)
    torch.set_num_threads(threads)
    return found


def test_every_part_is_measured_on_its_own(record: dict[str, Any]) -> None:
    timings = record["timings_seconds"]
    assert list(timings) == list(bench.PARTS)
    assert timings["start"]["median"] == 0.5
    for part, timing in timings.items():
        low, high = timing["quartiles"]
        assert 0 < low <= timing["median"] <= high, part
        assert timing["cpu_median"] >= 0
        assert timing["repeats"] == (1 if part in ("start", "setup", "first update", "evaluation") else 15)


def test_the_parts_add_up_to_a_tick(record: dict[str, Any]) -> None:
    # CPU seconds: on a busy machine the wall clock of any part may be anything
    cpu = {part: timing["cpu_median"] for part, timing in record["timings_seconds"].items()}
    assert cpu["forward"] < cpu["update"]
    # 4 lanes and an update every 4 steps: one update a tick
    parts = record["tick_from_parts_seconds"]
    assert parts["cpu_median"] == pytest.approx(
        sum(cpu[part] for part in ("environment", "acting", "replay", "batch", "update"))
    )
    assert 0.4 < cpu["tick"] / parts["cpu_median"] < 2.5
    assert record["env_steps_per_second"] == pytest.approx(4 / record["timings_seconds"]["tick"]["median"])


def test_the_record_says_what_was_resolved_and_what_was_done(record: dict[str, Any]) -> None:
    assert record["args"]["env"] == "CartPole-v1"
    assert (record["engine"], record["precision"], record["rng_seed"]) == ("sweep", "bf16", 1)
    assert (record["dtypes"]["compute"], record["dtypes"]["values"]) == ("torch.bfloat16", "torch.float32")
    assert record["dtypes"]["master"] == "torch.float32"
    assert record["input_shape"] == [32, 4]
    assert record["parameters"] == 4 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2
    assert record["versions"]["torch"] == torch.__version__
    assert {"revision", "python", "numpy", "gradledger"} <= record["versions"].keys()
    assert record["hardware"]["torch_threads"] == 1
    assert record["hardware"]["device"] == "cpu"
    assert record["memory"]["process_peak_bytes"] > 50 << 20
    assert record["memory"]["framework_peak_bytes"] is None
    assert record["memory"]["replay_bytes"] == 800 * (4 * 4 + 4 + 4 + 5)
    # the configured maximum is one thing, what was done another
    assert record["configured"]["total_steps"] == 400_000
    done = record["completed"]
    assert 200 <= done["env_step"] < 400
    assert done["evaluated_episode"] == 2
    json.dumps(record, allow_nan=False)


def test_the_table_fits_a_terminal(record: dict[str, Any]) -> None:
    other = {**record, "engine": "autograd", "precision": "fp32"}
    lines = bench.table([record, other]).splitlines()
    assert max(map(len, lines)) <= 80
    for part in bench.PARTS:
        assert sum(line.startswith(f"{part}: ") for line in lines) == 1
    assert sum("autograd fp32" in line for line in lines) == len(bench.PARTS) + 1


def test_what_cannot_be_measured_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"repeats=0.*warm=-1.*engines=magic"):
        bench.Setting(repeats=0, warm=-1, engines=("magic",)).check()
    with pytest.raises(UsageError, match="nothing to measure"):
        bench.Setting(precisions=()).check()


def test_the_verb_measures_each_setting_in_a_process_and_writes_the_record(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gradledger", "bench", "dqn", "--game", "CartPole-v1", "--precision", "fp32"]
    small = ["--repeats", "3", "--warm", "1", "--fill", "100", "--lanes", "4", "--replay", "400"]
    done = subprocess.run(
        [*command, "--engine", "autograd", *small, "--out", str(tmp_path)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert told["format"] == bench.FORMAT
    (one,) = told["records"]
    assert (one["engine"], one["precision"]) == ("autograd", "fp32")
    assert one["timings_seconds"]["start"]["median"] > 0.1  # torch was imported in that process
    assert one["memory"]["process_peak_bytes"] > 50 << 20
    assert "update: targets, backward" in done.stdout


def test_the_verb_says_what_is_wrong_with_its_options(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gradledger", "bench", "dqn", "--game", "CartPole-v1"]
    done = subprocess.run([*command, "--repeats", "0"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 2
    assert "got repeats=0" in done.stderr
    assert "Traceback" not in done.stderr
