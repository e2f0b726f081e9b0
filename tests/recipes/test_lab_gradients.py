"""Every number of the gradient lab, to the printed digits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from gradledger.cli import _app
from gradledger.core.errors import UsageError
from gradledger.evidence import bundle, report
from gradledger.evidence.errors import PlanError
from gradledger.recipes import _lab_gradients as lab
from gradledger.recipes._lab import PLANS, run
from gradledger.recipes.lab_gradients import BREAKS, Args, experiment, train

PRINTED: dict[str, Any] = {
    "hand.loss": 9.0,
    "hand.weight_grad": [[3.0, 3.0]] * 3,
    "hand.bias_grad": [[3.0, 3.0]],
    "completion.loss": 2.0,
    "completion.weight_grad": [[4.0, 0.0], [0.0, 0.0], [2.0, 0.0]],
    "numerical.loss": 17.0,
    "numerical.weight_grad": [[3.0, 5.0], [3.0, 5.0]],
    "scalar.grad": -4.0,
    "detach.shares": True,
    "clone.shares": False,
    "detach.write_arrives": True,
    "clone.write_arrives": False,
    "h3.frozen.detached.drift": 0.0,
    "h3.frozen.attached.drift": 0.0,
    "h3.trained.detached.drift": 0.0,
    "h3.frozen.detached.has_grad": False,
    "h3.frozen.attached.has_grad": False,
    "h3.trained.detached.has_grad": False,
    "h3.trained.attached.has_grad": True,
}
ROUNDED = {
    "hand.weight_grad_norm": (7.3485, 4),
    "scalar.central_difference": (-4.0, 9),
    "h1.norm": (0.764189, 6),
    "h2.norm_without_clear": (1.2994, 4),
    "h2.norm_with_clear": (0.7420, 4),
    "h2.ratio": (1.7511, 4),
    "h3.trained.attached.drift": (0.423201, 6),
    "h4.ratio": (2.0, 4),
    "break2.without_clear": (0.8660, 4),
    "break2.with_clear": (1.3056, 4),
}


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return lab.everything()


def test_the_numbers_are_those_of_the_lab(measured: dict[str, Any]) -> None:
    assert {name: measured[name] for name in PRINTED} == PRINTED
    assert {name: round(measured[name], digits) for name, (_, digits) in ROUNDED.items()} == {
        name: value for name, (value, _) in ROUNDED.items()
    }
    assert measured["hand.weight_grad_norm"] == pytest.approx(3 * math.sqrt(6), abs=1e-6)
    assert measured["h1.closed_form_distance"] < 1e-6
    assert "scalar outputs" in measured["break1.error"]
    assert PRINTED.keys() | ROUNDED.keys() | {"h1.closed_form_distance", "break1.error"} == measured.keys()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab") / "run"


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    return train(Args(out=folder))


def test_every_hypothesis_is_supported(told: dict[str, Any]) -> None:
    verdicts = {one["id"]: one["verdict"] for one in told["hypotheses"]}
    assert verdicts == dict.fromkeys(("H1", "H1b", "H2", "H3", "H3b", "H3c", "H4"), "supported")


@pytest.mark.parametrize("name", BREAKS)
def test_every_fault_is_loud_or_found_at_its_line(name: str, told: dict[str, Any]) -> None:
    broken = next(one for one in told["breaks"] if one["fault"] == name)
    assert broken["as_expected"], broken
    code, line = BREAKS[name].code, BREAKS[name].line
    assert broken["loud"] if code is None else [code, line] in [list(one) for one in broken["found"]]


def test_the_frozen_control_cannot_carry_the_claim(folder: Path, tmp_path: Path, told: dict[str, Any]) -> None:
    """With the control's arms as the claim's own, the missing detach is refuted: what the lab warns of."""
    text = (PLANS / "lab_gradients.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(
        text.replace(
            'arms = ["trained_attached", "trained_detached"]\ncontrol = ["frozen_attached", "frozen_detached"]',
            'arms = ["frozen_attached", "frozen_detached"]',
        ).replace("value = 0.7642", "value = 7.3485")
    )
    own = run("lab_gradients", experiment, {}, out=tmp_path / "run", predict=mine)
    verdicts = {one["id"]: one["verdict"] for one in own["hypotheses"]}
    assert (verdicts["H1"], verdicts["H3"], verdicts["H2"]) == ("refuted", "refuted", "supported")


def test_a_plan_is_not_edited_behind_its_result(folder: Path, tmp_path: Path, told: dict[str, Any]) -> None:
    edited = tmp_path / "edited.toml"
    edited.write_text((PLANS / "lab_gradients.toml").read_text().replace("tolerance = 1e-3", "tolerance = 1e-2"))
    with pytest.raises(PlanError, match="tolerance"):
        run("lab_gradients", experiment, {}, out=folder, predict=edited)


def test_a_fault_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="one of: not_a_scalar, no_clear, target_not_detached"):
        train(Args(break_="typo"))


def test_the_folder_is_sealed_and_its_report_shows_every_fault(folder: Path, told: dict[str, Any]) -> None:
    bundle.seal(folder)
    assert bundle.verify(folder) == []
    text = report.markdown(report.tell(folder))
    faults = text.partition("## Faults on purpose")[2]
    assert "| fault | predicted | actual | loud | audit found | as expected |" in faults
    for name, one in BREAKS.items():
        row = next(line for line in faults.splitlines() if line.startswith(f"| {name} |"))
        assert (one.code is None or f"{one.code} at line {one.line}" in row, row.endswith("True |")) == (True, True)
    assert "Faults on purpose" in (folder / "report.html").read_text()
    assert json.loads((folder / "environment.json").read_text())["torch"]["version"] == torch.__version__


def test_the_lab_runs_anew_within_its_tolerances_and_a_lab_has_no_weights(folder: Path, told: dict[str, Any]) -> None:
    said = CliRunner().invoke(_app.build(), ["retrain", str(folder)])
    assert (said.exit_code, "DIFFERS" in said.output) == (0, False), said.output
    assert "trained_attached, seed 42, target_drift: recorded 0.423" in said.output
    refused = CliRunner().invoke(_app.build(), ["repredict", str(folder)])
    assert "no function 'repredict'" in str(refused.exception)
