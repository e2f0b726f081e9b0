"""Predictions made again and trials run anew: agreement, the first that differs, and what cannot be repeated."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gradledger.cli import _app
from gradledger.evidence import lock
from gradledger.evidence.errors import BundleError, PlanError, StatisticsError, TrialError
from gradledger.evidence.hypothesis import parse
from gradledger.evidence.record import TrialRecord
from gradledger.evidence.repredict import repredict
from gradledger.evidence.retrain import Again, difference, retrain
from gradledger.evidence.runner import run_trials, trials_of
from gradledger.evidence.trial import Outcome, Trial

PLAN = """
name = "lines"
rng_seeds = [0, 1, 2]
[quantities.loss]
tolerance = 0.1
[arms.a]
slope = 1.0
[arms.b]
slope = 2.0
[[hypotheses]]
id = "H1"
claim = "b is worse"
quantity = "loss"
arms = ["b", "a"]
predicate = { kind = "ratio", low = 1.5 }
[[hypotheses]]
id = "H2"
claim = "the curve falls"
quantity = "curve"
arms = ["a"]
predicate = { kind = "trajectory", shape = "falling" }
"""

CODE = """
import numpy as np
from gradledger.evidence import Outcome

def experiment(config, rng_seed):
    x = np.random.default_rng(rng_seed).normal(size=20)
    said = config["slope"] * x
    loss = float((said ** 2).mean()) * {factor}
    saved = {{"x": x, "w": np.array(config["slope"]), "said": said}}
    return Outcome({{"loss": loss, "curve": [3.0, 2.0, 1.0 + {shift}]}}, saved)

def repredict(folder, trial, arrays):
    return {{"said": arrays["w"] * arrays["x"] * {factor}}}
"""


def lines(config: Mapping[str, Any], rng_seed: int) -> Outcome:
    """What CODE is without a change."""
    space: dict[str, Any] = {}
    exec(CODE.format(factor=1.0, shift=0.0), space)
    found: Outcome = space["experiment"](config, rng_seed)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    where = tmp_path / "run"
    where.mkdir()
    (where / "plan.toml").write_text(PLAN)
    version = lock.lock(where, where / "plan.toml")
    run_trials(lines, trials_of(version.plan), where, plan=version.sha256)
    return where


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Any]:
    names: list[str] = []

    def write(*, factor: float = 1.0, shift: float = 0.0) -> str:
        path = tmp_path / f"program_{len(names)}_{tmp_path.name}.py"
        path.write_text(CODE.format(factor=factor, shift=shift))
        names.append(path.stem)
        return str(path)

    yield write
    for name in names:
        sys.modules.pop(name, None)
    sys.path[:] = [one for one in sys.path if one != str(tmp_path)]


def command(*words: str) -> Any:
    return CliRunner().invoke(_app.build(), list(words))


# ----------------------------------------------------------------------------------------------------------- repredict


def test_predictions_agree_within_the_tolerance_and_the_first_that_differs_is_named(folder: Path, code: Any) -> None:
    said = command("repredict", str(folder), "--code", code(), "--tolerance", "0")
    assert (said.exit_code, said.output.count("equal to the last bit")) == (0, 6)
    near = command("repredict", str(folder), "--code", code(factor=1 + 1e-7))
    assert (near.exit_code, "agrees, off by" in near.output) == (0, True)
    far = command("repredict", str(folder), "--code", code(factor=1.01))
    assert (far.exit_code, "first that differs: said of a, seed 0" in far.output) == (1, True)


def test_how_far_predictions_are_off(folder: Path) -> None:
    def one_row(where: Path, trial: Trial, arrays: Mapping[str, Any]) -> dict[str, Any]:
        again = arrays["said"].copy()
        again[7] += 0.25 * max(1.0, abs(again[7]))
        return {"said": again}

    found = repredict(folder, one_row, tolerance=0.2)
    assert all((one.at, one.agrees, round(one.away or 0, 12)) == ((7,), False, 0.25) for one in found)
    assert repredict(folder, one_row, tolerance=0.26)[0].agrees
    shapes = repredict(folder, lambda f, t, arrays: {"said": arrays["said"][:, None]})
    assert (shapes[0].agrees, shapes[0].why) == (False, "float64 of shape (20, 1), saved was float64 of shape (20,)")
    gone = repredict(folder, lambda f, t, arrays: {"said": arrays["said"] * math.nan}, tolerance=1e9)
    assert (gone[0].agrees, gone[0].away) == (False, math.inf)


def test_what_cannot_be_predicted_again_is_no_difference(folder: Path, tmp_path: Path) -> None:
    def broken(where: Path, trial: Trial, arrays: Mapping[str, Any]) -> dict[str, Any]:
        raise FileNotFoundError("model.bin")

    with pytest.raises(TrialError, match=r"arm a, rng_seed 0: FileNotFoundError: model\.bin"):
        repredict(folder, broken)
    with pytest.raises(TrialError, match=r"arrays other"):
        repredict(folder, lambda f, t, arrays: {"other": arrays["said"]})
    with pytest.raises(TrialError, match="no finished trial"):
        repredict(tmp_path, broken)
    with pytest.raises(TrialError, match="tolerance=nan"):
        repredict(folder, broken, tolerance=math.nan)
    one = next(iter(TrialRecord(folder).latest()))
    path = folder / "predictions" / f"{one}.npz"
    arrays = dict(np.load(path))
    np.savez(path, **arrays | {"said": arrays["said"] + 1})
    with pytest.raises(TrialError, match="said"):
        repredict(folder, lambda f, t, arrays: {"said": arrays["said"]})


# ------------------------------------------------------------------------------------------------------------- retrain


def test_trials_run_anew_within_the_registered_tolerance(folder: Path, code: Any) -> None:
    said = command("retrain", str(folder), "--seeds", "2", "--code", code(factor=1.05, shift=0.5))
    assert (said.exit_code, "4 of 4 quantities agree" in said.output) == (0, True), said.output
    assert "no tolerance registered, decides nothing: [2]: off by 0.333 of it" in said.output
    far = command("retrain", str(folder), "--code", code(factor=1.2))
    assert (far.exit_code, "first that differs: loss of a, seed 0" in far.output) == (1, True)
    exact = command("retrain", str(folder), "--tolerance", "0", "--arm", "b", "--code", code())
    assert (exact.exit_code, "2 of 2 quantities agree" in exact.output) == (0, True)
    curve = command("retrain", str(folder), "--tolerance", "0.1", "--code", code(shift=0.5))
    assert (curve.exit_code, "first that differs: curve of a, seed 0" in curve.output) == (1, True)


def test_new_trials_lie_elsewhere_and_run_in_processes(folder: Path, code: Any, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    words = ("--seeds", "1", "--workers", "2", "-o", str(tmp_path / "again"), "--code", code())
    said = command("retrain", str(folder), *words)
    assert said.exit_code == 0, said.output
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert len(TrialRecord(tmp_path / "again").latest()) == 2


def test_a_trial_that_fails_now_differs(folder: Path, tmp_path: Path) -> None:
    def fails(config: Mapping[str, Any], rng_seed: int) -> Outcome:
        raise ValueError("no data")

    found = retrain(folder, fails, tmp_path / "again", arms=["a"])
    assert found == [Again("a", 0, "(trial)", "finished", "failed", None, False, "ValueError: no data")]


def test_what_cannot_be_run_anew_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StatisticsError, match="the arm 'c'"):
        retrain(folder, lines, tmp_path / "again", arms=["c"])
    with pytest.raises(StatisticsError, match="finished trials of 3 random seeds, wanted 4"):
        retrain(folder, lines, tmp_path / "again", seeds=4)
    bare = tmp_path / "bare"
    run_trials(lines, [Trial("a", {"slope": 1.0}, 0)], bare)
    with pytest.raises(StatisticsError, match="no quantity with a registered tolerance"):
        retrain(bare, lines, tmp_path / "again")
    assert all(one.agrees for one in retrain(bare, lines, tmp_path / "again", tolerance=0.0))
    lines_of = (folder / "trials.jsonl").read_text().replace('"slope":1.0', '"slope":1.5', 1)
    (folder / "trials.jsonl").write_text(lines_of)
    with pytest.raises(BundleError, match="slope"):
        retrain(folder, lines, tmp_path / "third")


def test_no_file_of_a_folder_is_run_and_folders_without_code_are_told_so(folder: Path) -> None:
    assert "results.json" in str(command("repredict", str(folder)).exception)
    (folder / "results.json").write_text('{"recipe": "lab_gradients"}')
    assert "no function 'repredict'" in str(command("repredict", str(folder)).exception)
    (folder / "results.json").write_text('{"recipe": "../../evil"}')
    assert "one of" in str(command("retrain", str(folder)).exception)
    (folder / "results.json").write_text('{"experiment": "evil.py"}')
    assert "--code FILE.py" in str(command("retrain", str(folder)).exception)


@pytest.mark.parametrize(
    ("recorded", "again", "tolerance", "found"),
    [
        (1.0, 1.0, 0.0, ""),
        (1.0, 1.1, 0.1, ""),
        (1.0, 1.2, 0.1, "off by 0.167 of it"),
        (0.0, 0.0, 0.0, ""),
        (None, 0.0, 1.0, "0.0, recorded was None"),
        (True, 1, 1.0, "1, recorded was True"),
        (math.nan, math.nan, 0.0, ""),
        (math.inf, math.inf, 0.0, ""),
        (math.inf, 1.0, 1.0, "1.0, recorded was inf"),
        ([1.0, [2.0, "a"]], [1.0, [2.0, "b"]], 0.0, "[1]: [1]: 'b', recorded was 'a'"),
        ([1.0], [1.0, 2.0], 0.0, "2 values, recorded were 1"),
    ],
)
def test_differences(recorded: Any, again: Any, tolerance: float, found: str) -> None:
    assert difference(recorded, again, tolerance) == found


def test_a_tolerance_is_part_of_the_plan_and_none_leaves_the_hash_alone() -> None:
    plain, other = parse(PLAN.replace("tolerance = 0.1\n", "")), parse(PLAN)
    assert plain.record()["quantities"]["loss"].keys() == {"low", "high", "unit", "about"}
    assert plain.sha256 != other.sha256
    assert lock.changed(plain, other) == ["quantities.loss.tolerance"]
    with pytest.raises(PlanError, match="tolerance -1"):
        parse(PLAN.replace("tolerance = 0.1", "tolerance = -1"))
