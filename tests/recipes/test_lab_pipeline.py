"""The pipeline lab, run whole: every number, every verdict, every fault on purpose."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from gradledger.evidence import bundle, report
from gradledger.recipes import _lab, _lab_state
from gradledger.recipes import _lab_pipeline as lab
from gradledger.recipes._lab import Break
from gradledger.recipes.lab_pipeline import BREAKS, Args, train


@pytest.fixture(scope="module")
def data() -> lab.Data:
    return lab.make_data()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    said = train(Args(out=folder))
    assert json.loads((folder / "results.json").read_text()) == said
    return said


def test_every_hypothesis_is_supported_and_says_what_was_measured(told: dict[str, Any]) -> None:
    verdicts = {one["id"]: one["verdict"] for one in told["hypotheses"]}
    ids = (
        *("H1", "H1b", "H2", "H2b", "H2c", "H3", "H3b", "H4", "H4b", "H4c", "O1", "O1b", "O1c", "O2", "O2b", "O2c"),
        *("R1", "R2", "R2b", "R2c", "R3", "L1", "L1b", "L2", "L3", "L3b", "S1", "S1b", "S1c"),
    )
    assert verdicts == dict.fromkeys(ids, "supported")
    assert [one["isolated"] for one in told["hypotheses"] if one["id"] in ("H2", "H2b")] == [True, True]
    assert told["failed"] == {}


def test_the_numbers_are_those_of_the_lab(data: lab.Data, told: dict[str, Any]) -> None:
    measured = told["measured"]
    assert round(data.baseline, 6) == 1.520677
    assert measured["shuffled"]["validation"] <= 0.0083 * 1.1
    assert [round(loss, 6) for loss in measured["clear_after_backward"]["losses"]] == [3.348493] * 5
    assert round(measured["early_optimizer"]["head_grad_norm"], 4) == 46.5187


@pytest.mark.parametrize("name", BREAKS)
def test_every_silent_fault_is_found_at_its_line(name: str, told: dict[str, Any]) -> None:
    broken = next(one for one in told["breaks"] if one["fault"] == name)
    assert broken["as_expected"], broken
    code, found = BREAKS[name].code, [list(one) for one in broken["found"]]
    assert found == [] if code is None else [code, BREAKS[name].line] in found
    assert not broken["loud"]


def test_the_symptoms_are_those_that_were_predicted(told: dict[str, Any]) -> None:
    said = {one["fault"]: one["actual"] for one in told["breaks"]}
    before, after = map(float, re.findall(r"\d\.\d{4}", said["plain_attribute"]))
    assert after > 10 * before
    assert said["list_of_modules"].endswith("has: 2; hidden layers moved by 0.000000")
    assert 0.095 < float(re.findall(r"0\.\d+", said["augmented_view"])[0]) < 0.105
    assert said["worker_streams"] == "1280 samples in two epochs, 320 different draws of noise"
    assert 0.5 < float(re.findall(r"(0\.\d+) of it", said["padding"])[0]) < 0.75
    assert said["last_short_batch"].startswith("157 steps, the last on 16: each of these weighs 3.98 times")


def test_a_fault_that_is_none_is_not_as_expected_once_something_is_found(tmp_path: Path) -> None:
    """The honest answer for the last short batch is silence, and silence is what is asked for."""
    wrong = Break("pipeline_early_optimizer", "nothing", False, None)
    broken = _lab.run_break("early_optimizer", wrong)
    assert (broken.as_expected, [code for code, _ in broken.found]) == (False, ["GL-M04"])
    assert "NOT AS EXPECTED: nothing" in _lab.shown(broken, wrong)


def test_who_owns_the_order(data: lab.Data) -> None:
    assert lab.orders(data) == {
        "order.same_seed_same": True,
        "order.other_seed_same": False,
        "order.unshuffled_ignores_seed": True,
    }


def test_a_cosine_stepped_per_batch_climbs_again() -> None:
    rates = lab.stepped_per_batch()
    assert rates[100] == pytest.approx(rates[0] / 2)
    assert rates[200] == pytest.approx(0.0, abs=1e-12)
    assert rates[400] == pytest.approx(rates[0])


def test_the_map_can_be_inverted_where_the_lab_draws(data: lab.Data) -> None:
    joints = torch.cat([data.train_joints, data.validation_joints])
    assert float((lab.inverse_kinematics(lab.forward_kinematics(joints)) - joints).abs().max()) <= 2e-6
    double = joints.double()
    determinants = lab.determinant(double)
    assert math.floor(float(determinants.min()) * 1000) / 1000 == 0.149
    assert float(determinants.max()) == pytest.approx(1.0, abs=1e-4)
    jacobians = torch.func.vmap(torch.func.jacrev(lab.forward_kinematics))(double[:100])
    torch.testing.assert_close(torch.linalg.det(jacobians), determinants[:100], rtol=0, atol=1e-12)


def test_the_floor_of_the_arm_with_six_joints_is_below_five_sixths_of_its_variance(told: dict[str, Any]) -> None:
    """Of three joints with a known sum two thirds of the variance is left: 5/6 of all six, pi^2 / 3 each, at most."""
    floor = told["measured"]["six_joint_map"]["floor"]
    assert 0.75 * math.pi**2 / 3 < floor < 5 / 6 * math.pi**2 / 3 < 2.857 * 1.05
    pose, joints = _lab_state.six_joints()
    assert (tuple(pose.shape), tuple(joints.shape)) == ((10_000, 3), (10_000, 6))
    torch.testing.assert_close(pose[:, 2], joints[:, 3:].sum(1))


def test_the_programs_name_one_line_each() -> None:
    for one in BREAKS.values():
        marks = re.findall(r"# (?:no )?fault$", Path(one.path).read_text(encoding="utf-8"), re.M)
        assert marks == ["# no fault" if one.code is None else "# fault"]


def test_the_folder_is_sealed_and_its_report_shows_every_fault(folder: Path, told: dict[str, Any]) -> None:
    bundle.seal(folder)
    assert bundle.verify(folder) == []
    text = report.markdown(report.tell(folder))
    faults = text.partition("## Faults on purpose")[2]
    assert "| fault | predicted | actual | loud | audit found | as expected |" in faults
    for name, one in BREAKS.items():
        row = next(line for line in faults.splitlines() if line.startswith(f"| {name} |"))
        assert (f"{one.code} at line {one.line}" if one.code else "| nothing |") in row
        assert row.endswith("True |")
    assert "Faults on purpose" in (folder / "report.html").read_text()
    assert json.loads((folder / "environment.json").read_text())["torch"]["version"] == torch.__version__
