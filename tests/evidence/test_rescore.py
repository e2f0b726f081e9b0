"""Metrics from saved predictions: against scikit-learn, and against trials that said something else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from sklearn import metrics as oracle
from typer.testing import CliRunner

from gradledger.cli.commands import rescore as command
from gradledger.evidence.errors import StatisticsError
from gradledger.evidence.rescore import METRICS, rescore
from gradledger.evidence.runner import run_trials
from gradledger.evidence.trial import Outcome, Trial


def honest_but_for_two(config: Mapping[str, Any], rng_seed: int) -> Outcome:
    """Seed 2 tells a better figure than its predictions have; seed 3 a column for a row; seed 4 saves none."""
    rng = np.random.default_rng(rng_seed)
    prediction, target = rng.normal(size=(30, 2)).astype(np.float32), rng.normal(size=(30, 2)).astype(np.float32)
    loss = float(np.mean((prediction - target) ** 2))
    if rng_seed == 3:
        prediction = prediction[:, :1]
    saved = {} if rng_seed == 4 else {"prediction": prediction, "target": target}
    return Outcome({"loss": loss * (0.9 if rng_seed == 2 else 1.0)}, saved)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run_trials(honest_but_for_two, [Trial("a", {"x": 1}, seed) for seed in range(5)], tmp_path)
    return tmp_path


def test_what_the_predictions_do_not_bear_out_is_told(folder: Path) -> None:
    found = rescore(folder, quantity="loss", metric="mse", prediction="prediction", target="target")
    assert [one.agrees for one in found] == [True, True, False, False, False]
    assert found[2].again == pytest.approx(found[2].recorded / 0.9, rel=1e-6)  # type: ignore[operator]
    assert found[3].why == "shapes (30, 1) and (30, 2) differ"
    assert found[4].why == "it saved no array prediction, target"
    found = rescore(folder, quantity="los", metric="mse", prediction="prediction", target="target")
    assert found[0].why == "it recorded no number 'los'"


def test_metrics_against_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    p, t = rng.normal(size=(50, 3)), rng.normal(size=(50, 3))
    assert METRICS["mse"](p, t) == pytest.approx(oracle.mean_squared_error(t, p), rel=1e-12)
    assert METRICS["rmse"](p, t) == pytest.approx(oracle.mean_squared_error(t, p) ** 0.5, rel=1e-12)
    assert METRICS["mae"](p, t) == pytest.approx(oracle.mean_absolute_error(t, p), rel=1e-12)
    assert METRICS["max_error"](p, t) == pytest.approx(oracle.max_error(t.ravel(), p.ravel()), rel=1e-12)
    labels, said = rng.integers(0, 3, size=50), rng.integers(0, 3, size=50)
    assert METRICS["accuracy"](said, labels) == pytest.approx(oracle.accuracy_score(labels, said), rel=1e-12)
    small = np.array([250], dtype=np.uint8)
    assert METRICS["mae"](small, np.array([255], dtype=np.uint8)) == 5.0  # bytes do not wrap


def test_the_command_ends_with_one_when_a_trial_differs(folder: Path) -> None:
    app = typer.Typer()
    app.command()(command.command)
    said = CliRunner().invoke(app, [str(folder), "--quantity", "loss"])
    assert (said.exit_code, "2 of 5 trials agree" in said.output) == (1, True)
    assert "a, seed 2: recorded" in said.output
    assert CliRunner().invoke(app, [str(folder), "--quantity", "loss", "--metric", "r2"]).exit_code == 1


def test_what_cannot_be_scored_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StatisticsError, match="the metric 'r2'"):
        rescore(folder, quantity="loss", metric="r2", prediction="prediction", target="target")
    with pytest.raises(StatisticsError, match="no finished trial"):
        rescore(tmp_path / "none", quantity="loss", metric="mse", prediction="prediction", target="target")
