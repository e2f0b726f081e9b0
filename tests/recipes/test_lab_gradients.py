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

# arm and quantity -> what the lab's text prints, and to how many digits; None: exactly this.
PRINTED: dict[tuple[str, str], tuple[Any, int | None]] = {
    ("hand", "loss"): (9.0, None),
    ("hand", "off_by_hand"): (0.0, None),
    ("hand", "weight_grad_norm"): (7.3485, 4),
    ("completion", "loss"): (2.0, None),
    ("completion", "off_by_hand"): (0.0, None),
    ("numerical", "loss"): (17.0, None),
    ("numerical", "off_by_hand"): (0.0, None),
    ("scalar", "gradient"): (-4.0, None),
    ("scalar", "central_difference"): (-4.0, 9),
    ("first_batch", "weight_grad_norm"): (0.764189, 6),
    ("two_batches_kept", "weight_grad_norm"): (1.2994, 4),
    ("two_batches_cleared", "weight_grad_norm"): (0.7420, 4),
    ("frozen_detached", "target_drift"): (0.0, None),
    ("frozen_detached", "target_grad"): (None, None),
    ("frozen_attached", "target_drift"): (0.0, None),
    ("frozen_attached", "target_grad"): (None, None),
    ("trained_detached", "target_drift"): (0.0, None),
    ("trained_detached", "target_grad"): (None, None),
    ("trained_attached", "target_drift"): (0.423201, 6),
    ("trained_attached", "target_grad"): ("a tensor", None),
    ("second_backward", "ratio"): (2.0, 4),
    ("fifty_steps_kept", "final_loss"): (0.8660, 4),
    ("fifty_steps_cleared", "final_loss"): (1.3056, 4),
    ("storages", "detach_shares"): (True, None),
    ("storages", "clone_shares"): (False, None),
    ("storages", "detach_write_arrives"): (True, None),
    ("storages", "clone_write_arrives"): (False, None),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab") / "run"


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    return train(Args(out=folder))


def test_the_numbers_are_those_of_the_lab(told: dict[str, Any]) -> None:
    measured = told["measured"]
    for (arm, quantity), (value, digits) in PRINTED.items():
        got = measured[arm][quantity]
        assert (got if digits is None else round(got, digits)) == value, (arm, quantity)
    assert measured["hand"]["weight_grad_norm"] == pytest.approx(3 * math.sqrt(6), abs=1e-6)
    kept, cleared = (measured[f"two_batches_{arm}"]["weight_grad_norm"] for arm in ("kept", "cleared"))
    assert round(kept / cleared, 4) == 1.7511
    assert measured["first_batch"]["closed_form_distance"] < 1e-6
    assert {arm for arm, _ in PRINTED} | {"not_a_scalar"} == set(measured)


def test_the_cases_on_paper_by_their_numbers() -> None:
    loss, weight, bias = lab.layer([[1.0] * 3], [[1.0] * 2] * 3, [[1.0] * 2], [[1.0] * 2], relu=True)
    assert (loss, weight.tolist(), bias.tolist()) == (9.0, [[3.0, 3.0]] * 3, [[3.0, 3.0]])
    paper = [[2.0, 0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[0.0] * 2], [[1.0] * 2]
    assert lab.layer(*paper, relu=False)[1].tolist() == [[4.0, 0.0], [0.0, 0.0], [2.0, 0.0]]
    other = lab.on_paper(
        {"x": [[1.0]], "weight": [[2.0]], "bias": [[0.0]], "target": [[1.0]], "relu": False, "by_hand": [[1.5]]}
    )
    assert (other["loss"], other["off_by_hand"]) == (1.0, 0.5)  # 2 (2 - 1) is 2, not 1.5


def test_every_hypothesis_is_supported(told: dict[str, Any]) -> None:
    verdicts = {one["id"]: one["verdict"] for one in told["hypotheses"]}
    ids = (
        *("P1", "P1b", "P1c", "P2", "P2b", "P3", "P3b", "P4", "P4b", "H1", "H1b", "H2", "H3", "H3b", "H3c", "H4"),
        *("H5", "H5b", "H6", "A1", "A1b", "A2", "A2b"),
    )
    assert verdicts == dict.fromkeys(ids, "supported")
    assert "scalar outputs" in lab.not_a_scalar()


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


def test_the_gradient_audit_says_what_carries_a_gradient_and_what_stopped_it(
    folder: Path, told: dict[str, Any]
) -> None:
    rows = {row["tensor"]: row for row in told["gradient_audit"]}
    assert {name: row["stopped by"] for name, row in rows.items() if row["stopped by"]} == {
        "target_net.weight": "frozen leaf",
        "target_net.bias": "frozen leaf",
        "best action": "integer op",
        "Q(following), detached": "detach",
        "target_net(following)": "frozen leaf",
        "td_target": "detach, frozen leaf",
        "logged mean of Q": "no_grad",
    }
    carrying = {name for name, row in rows.items() if row["carries a gradient"]}
    assert carrying == {"online.weight", "online.bias", "Q(state)", "Q(state, action)", "loss"}
    assert {name for name, row in rows.items() if row["leaf"] and row["grad_fn"]} == set()
    assert (rows["Q(state)"]["grad_fn"], rows["loss"]["grad_fn"]) == ("AddmmBackward0", "MseLossBackward0")
    assert rows["Q(state)"]["saved bytes"] == 16 * 4 * 4  # the input, for the weight's gradient
    assert rows["loss"]["saved bytes"] == 2 * 16 * 4  # prediction and target
    assert rows["Q(following)"]["carries a gradient"] is False  # it could, but nothing of the loss comes from it
    assert "Gradient audit of one iteration" in (folder / "report.html").read_text()


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
