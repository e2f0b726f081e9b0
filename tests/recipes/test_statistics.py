"""Mean, spread and interval against tables and brute force; the table over seeds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradledger.recipes import _folder, _seeds
from gradledger.recipes._statistics import shown, spread, t_quantile


@pytest.mark.parametrize(
    ("freedom", "point"),  # a printed table of Student's t, two-sided 95 %
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (29, 2.045), (120, 1.980)],
)
def test_the_quantile_is_the_tables(freedom: int, point: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(point, abs=5e-4)


def test_nineteen_of_twenty_intervals_hold_the_mean() -> None:
    rng = np.random.default_rng(0)
    held = [
        low <= 3.0 <= high
        for _ in range(1_000)
        for low, high in [spread(rng.normal(3.0, 2.0, 4).tolist()).interval_95 or (math.nan, math.nan)]
    ]
    assert 0.93 < np.mean(held) < 0.97


def test_a_spread_by_hand() -> None:
    found = spread([2.0, 4.0, 9.0])
    assert (found.n, found.mean, found.median, found.minimum, found.maximum) == (3, 5.0, 4.0, 2.0, 9.0)
    assert found.standard_deviation == pytest.approx(math.sqrt(13.0))
    assert found.interval_95 == pytest.approx((5 - 4.302653 * math.sqrt(13 / 3), 5 + 4.302653 * math.sqrt(13 / 3)))
    alone = spread([7.0])
    assert (alone.standard_deviation, alone.interval_95) == (None, None)
    assert shown([2.0, 4.0, 9.0]) == "5.00 ± 3.61 (95 %: -3.96 to 13.96) over 3"
    assert shown([7.0]) == "7.00 over 1"


def record(mean: float, returns: list[float]) -> dict[str, Any]:
    return {
        "kind": "training run",
        "returns_of_the_last_episodes": returns,
        "evaluation": {"mean": mean, "standard_deviation": 1.5},
        "completed": {"env_step": 400_000},
        "seconds": {"update": 3_000.0, "acting": 600.5},
    }


def test_every_seed_is_in_the_table_and_an_interrupted_series_has_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {4: 18.0, 5: -20.0, 6: 19.0}

    def run(rng_seed: int, out: Path) -> dict[str, Any]:
        assert out == tmp_path / f"seed-{rng_seed}"
        if rng_seed == 7:
            raise KeyboardInterrupt
        return record(scores[rng_seed], [1.0] * 80 + [3.0] * 20)

    with pytest.raises(KeyboardInterrupt):
        _seeds.run_seeds("dqn_atari", (4, 5, 6, 7), tmp_path, run, settings={"gamma": 0.9, "rng_seed": 1})
    told = json.loads((tmp_path / "seeds.json").read_text())
    assert [row["rng_seed"] for row in told["seeds"]] == [4, 5, 6]
    assert (told["asked"], told["args"]) == ([4, 5, 6, 7], {"gamma": 0.9})
    assert _seeds.series(tmp_path) == told
    assert _seeds.series(tmp_path / "seed-4") is None
    over = told["over_seeds"]["evaluation"]
    assert over["mean"] == pytest.approx(17 / 3)
    assert over["standard_deviation"] == pytest.approx(np.std(list(scores.values()), ddof=1))
    assert over["median"] == 18.0
    assert (told["seeds"][0]["return_20"], told["seeds"][0]["return_100"]) == (3.0, pytest.approx(1.4))
    rows = _seeds.lines(told)
    assert max(map(len, rows)) <= 80
    assert [line.split()[0] for line in rows] == ["seed", "4", "5", "6", "mean", "sd", "95", "to", "median"]
    assert "-20.00 ± 1.50" in rows[2]
    assert "seed 6 (3 of 4)" in capsys.readouterr().out


def test_one_seed_has_no_spread() -> None:
    told = _seeds.table("dqn_atari", (1,), {1: _seeds.score_of(record(2.0, []))}, {})
    json.dumps(told, allow_nan=False)
    assert told["over_seeds"]["evaluation"]["interval_95"] is None
    assert "return_20" not in told["over_seeds"]  # no training episode ended
    assert _seeds.lines(told)[3].split() == ["sd", "-", "-", "-"]


# -------------------------------------------------------------------------------------------------------- Run folder


def test_tables_are_cut_back_to_a_checkpoint_and_documents_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    _folder.append(path, {"env_step": 1, "loss": math.nan})
    then = _folder.sizes(tmp_path)
    _folder.append(path, {"env_step": 2, "loss": 0.5})
    assert [row["env_step"] for row in _folder.rows(path)] == [1, 2]
    _folder.cut_back(tmp_path, then)
    assert path.read_text() == "env_step,loss\n1,nan\n"
    assert then["episodes.csv"] == 0
    _folder.cut_back(tmp_path, {"metrics.csv": 0})
    _folder.append(path, {"env_step": 3, "loss": 0.25})
    assert path.read_text() == "env_step,loss\n3,0.25\n"
    _folder.write_json(tmp_path / "record.json", {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        _folder.write_json(tmp_path / "record.json", {"a": math.inf})
    assert json.loads((tmp_path / "record.json").read_text()) == {"a": 1}


def test_a_folder_that_is_gone_or_taken_is_named(tmp_path: Path) -> None:
    with pytest.raises(_folder.FolderError, match=r"gone/metrics\.csv: got FileNotFoundError.*--resume"):
        _folder.append(tmp_path / "gone" / "metrics.csv", {"a": 1})
    with pytest.raises(_folder.FolderError, match="No such file"):
        _folder.read_config(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(_folder.UsageError, match=r"file/run, and .*file is a file"):
        _folder.check_new(tmp_path / "file" / "run", "x")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(_folder.UsageError, match=rf"gradledger run x --resume {tmp_path}"):
        _folder.check_new(tmp_path, "x")
