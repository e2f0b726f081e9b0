"""The planar arm's recipe: engines and resumes end with equal bits, and what it leaves can be used without it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from gradledger.cli import _app
from gradledger.evidence import bundle
from gradledger.evidence.record import TrialRecord
from gradledger.recipes import _ik_answer, _ik_evidence
from gradledger.recipes import _lab_pipeline as lab
from gradledger.recipes.ik_planar import NET, Args, Training, blocks, main, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ik") / "run"


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    return train(Args(preset="smoke", out=folder))


def trial(told: dict[str, Any], arm: str, rng_seed: int) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in told["trials"] if (one["arm"], one["rng_seed"]) == (arm, rng_seed))
    return found


def test_engines_and_a_resume_in_the_middle_end_with_the_same_bits(told: dict[str, Any]) -> None:
    for rng_seed in (0, 1):
        assert trial(told, "sweep", rng_seed)["weights"] == trial(told, "autograd", rng_seed)["weights"]
    assert trial(told, "resumed", 0)["weights"] == trial(told, "sweep", 0)["weights"]
    assert trial(told, "sweep", 0)["weights"] != trial(told, "sweep", 1)["weights"]
    verdicts = {one["id"]: one["verdict"] for one in told["hypotheses"]}
    assert (verdicts["I3"], verdicts["I4"]) == ("supported", "supported")
    assert verdicts["I1"] == "refuted"  # two epochs are a plumbing test, and it says so
    assert told["kind"] == "plumbing test"


def test_the_saved_model_says_again_what_was_recorded(folder: Path, told: dict[str, Any]) -> None:
    net = blocks(99)
    net.load_state_dict(load_file(folder / "model.safetensors"))
    record = TrialRecord(folder)
    kept = record.predictions(next(iter(record.latest())))
    with torch.no_grad():
        said = net(torch.from_numpy(kept["pose"])).numpy()
    assert np.array_equal(said, kept["said"])
    error = float(np.mean((kept["said"] - kept["joints"]) ** 2))
    assert error == pytest.approx(trial(told, "sweep", 0)["validation"], rel=1e-5)
    assert {name for name in kept if name.startswith(NET)} == {NET + name for name in net.state_dict()}


def test_running_again_runs_nothing(folder: Path, told: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--preset", "smoke", "--out", str(folder)]) == 0
    assert "finished in" not in capsys.readouterr().out


def test_a_call_that_was_killed_behind_its_last_trial_is_ended_by_the_next(
    folder: Path, told: dict[str, Any], tmp_path: Path
) -> None:
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    for name in ("environment.json", "card.toml", "results.json"):
        (again / name).unlink()
    assert main(["--preset", "smoke", "--out", str(again)]) == 0
    assert {"environment.json", "card.toml", "results.json"} <= {path.name for path in again.iterdir()}
    assert TrialRecord(again).attempts() == TrialRecord(folder).attempts()


def test_pictures_are_drawn(folder: Path, told: dict[str, Any]) -> None:
    assert told["pictures"] == {"curves.png": None, "errors.png": None}
    assert all((folder / name).stat().st_size > 10_000 for name in told["pictures"])


def test_the_hand_is_where_the_distances_say(told: dict[str, Any]) -> None:
    joints = torch.tensor([[0.3, 1.0, 2.0]])
    x = torch.tensor([0.3, 1.3, 3.3])
    assert torch.allclose(lab.forward_kinematics(joints)[0, :2], torch.stack([x.cos().sum(), x.sin().sum()]))
    one = trial(told, "sweep", 0)
    assert 0 < one["median_distance_m"] < one["worst_distance_m"] < 6


def document(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def test_the_folder_is_sealed_and_a_second_call_leaves_it_so(
    folder: Path, told: dict[str, Any], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    bundle.seal(copy)
    assert bundle.verify(copy) == []
    assert main(["--preset", "smoke", "--out", str(copy)]) == 0
    assert bundle.verify(copy) == []
    assert [one.in_version for one in bundle.openings(copy)] == [1]
    card = copy / "README.md"
    shown = f"{trial(told, 'sweep', 0)['validation']:.6f}"
    card.write_text(card.read_text().replace(shown, "0.001234", 1))
    fault = bundle.verify(copy)[0]
    assert (fault.file, "results.json#trials[0].validation" in fault.field) == ("README.md", True)


def test_regions_share_out_the_error_of_the_model(folder: Path, told: dict[str, Any]) -> None:
    rows = document(folder, "slices.json")["rows"]
    assert [one["name"] for one in rows] == ["q1 near its seam", "q2 nearly folded", "the rest"]
    assert sum(one["n"] for one in rows) == 1600
    assert all(one["groups"] == one["n"] for one in rows)  # each row is its own group
    mean = sum(one["n"] * one["mean"] for one in rows) / 1600
    assert mean == pytest.approx(trial(told, "sweep", 0)["validation"], rel=1e-5)
    joints = np.array([[-3.0, 2.7, 1.0], [0.0, 2.7, 1.0], [2.5, 2.5, 1.0]], dtype=np.float32)
    assert _ik_evidence.region(joints) == ["q1 near its seam", "q2 nearly folded", "the rest"]


def test_the_worst_are_the_worst(folder: Path, told: dict[str, Any]) -> None:
    rows = document(folder, "worst.json")["rows"]
    assert rows[0]["distance_m"] == pytest.approx(trial(told, "sweep", 0)["worst_distance_m"], rel=1e-5)
    data = lab.make_data()
    for one in rows:
        at = int(one["id"].removeprefix("pose-"))
        assert one["pose"] == data.validation_pose[at].tolist()
        angles = np.cumsum(one["said"])
        away = math.hypot(np.cos(angles).sum() - one["pose"][0], np.sin(angles).sum() - one["pose"][1])
        assert away == pytest.approx(one["distance_m"], abs=1e-5)
    assert [one["distance_m"] for one in rows] == sorted((one["distance_m"] for one in rows), reverse=True)


def test_latency_is_of_the_whole_path_call_by_call(folder: Path, told: dict[str, Any]) -> None:
    found = document(folder, "latency.json")
    assert list(found["stages"]) == ["read", "check", "model", "decide"]
    assert found["whole"]["calls"] >= 1000
    assert found["whole"]["mean_ms"] >= sum(one["mean_ms"] for one in found["stages"].values()) * 0.999
    assert found["whole"]["first_ms"] > 0


class Closed(torch.nn.Module):
    """The closed form in place of a net."""

    def forward(self, pose: torch.Tensor) -> torch.Tensor:
        return lab.inverse_kinematics(pose)


def test_an_answer_from_bytes_is_the_closed_form_where_the_net_is() -> None:
    data = lab.make_data()
    for pose, joints in zip(data.validation_pose[:200], data.validation_joints[:200], strict=True):
        found = _ik_answer.answer(Closed(), pose.numpy().astype("<f4").tobytes())
        assert found.joints == pytest.approx(joints.tolist(), abs=1e-4)
        assert found.away < 1e-5


def test_every_pose_of_the_data_is_in_range_and_malformed_ones_are_refused() -> None:
    data = lab.make_data()
    for pose in torch.cat([data.train_pose, data.validation_pose]).numpy():
        _ik_answer.checked(pose)
    answers = {one["input"]: one for one in _ik_evidence.refusals(Closed())["rows"]}
    # zeros in disguise are a pose of the workspace; the card says that this is not found
    assert [name for name, one in answers.items() if one["answer"] == "answered"] == ["most significant byte first"]
    assert "lengths in m" in answers["lengths in mm"]["wanted"]


def test_the_net_is_read_beside_rules_that_need_none(folder: Path, told: dict[str, Any]) -> None:
    reached = {one["name"]: one["value"] for one in told["baselines"]}
    data = lab.make_data()
    assert reached["mean of the training targets"] == pytest.approx(data.baseline, rel=1e-6)
    design = np.c_[data.train_pose.numpy(), np.ones(len(data.train_pose))].astype(float)
    weights, *_ = np.linalg.lstsq(design, data.train_joints.numpy().astype(float), rcond=None)
    held = np.c_[data.validation_pose.numpy(), np.ones(len(data.validation_pose))].astype(float)
    # the penalty is chosen with one row left out, and is next to none for 6,400 rows of 3 columns
    assert reached["linear"] == pytest.approx(((held @ weights - data.validation_joints.numpy()) ** 2).mean(), rel=1e-4)
    nearest = torch.cdist(data.validation_pose.double(), data.train_pose.double()).argmin(1)
    away = data.train_joints.double()[nearest] - data.validation_joints.double()
    assert reached["nearest neighbour"] == pytest.approx(float((away**2).mean()))
    assert reached["closed form"] < 1e-10 < reached["nearest neighbour"] < reached["linear"]
    assert reached["shuffled labels, linear"] > 0.95 * reached["mean of the training targets"]
    (sweep,) = [one for one in told["scale"] if one["arm"] == "sweep"]
    assert sweep["ratio"] == pytest.approx(sweep["value"] / reached["nearest neighbour"])
    assert "closed form" not in sweep["beaten"] + sweep["not_beaten"]
    assert "On the scale of the baselines" in (folder / "report.html").read_text()


def test_the_environment_is_told_once_a_call_that_ran_something(folder: Path, told: dict[str, Any]) -> None:
    assert [path.name for path in folder.glob("environment*.json")] == ["environment.json"]
    found = document(folder, "environment.json")
    assert found["packages"]["torch"].startswith(torch.__version__.partition("+")[0])
    assert (found["data"]["train"], found["data"]["validation"]) == (6400, 1600)
    assert set(found["derived_seeds"]) == {"weights", "order", "stop"}


def command(*words: str) -> Any:
    return CliRunner().invoke(_app.build(), list(words))


def test_the_weights_say_again_what_they_said(folder: Path, told: dict[str, Any], tmp_path: Path) -> None:
    said = command("repredict", str(folder), "--tolerance", "0")
    assert said.exit_code == 0, said.output
    assert said.output.count("equal to the last bit") == 5
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    weights = load_file(copy / "model.safetensors")
    weights["2.bias"][1] += 1e-3
    save_file(weights, copy / "model.safetensors")
    said = command("repredict", str(copy))
    assert (said.exit_code, "first that differs: said of sweep, seed 0" in said.output) == (1, True)
    assert "4 of 5 arrays agree" in said.output
    assert command("repredict", str(copy), "--tolerance", "0.002").exit_code == 0
    (copy / "model.safetensors").unlink()
    assert "model.safetensors" in str(command("repredict", str(copy)).exception)


def test_a_trial_runs_anew_to_the_same_bits(folder: Path, told: dict[str, Any]) -> None:
    said = command("retrain", str(folder), "--arm", "autograd", "--tolerance", "0")
    assert (said.exit_code, "3 of 3 quantities agree" in said.output) == (0, True), said.output


def test_a_stop_after_the_last_batch_of_an_epoch_ends_it() -> None:
    run = Training({"engine": "autograd", "epochs": 2}, 0)
    batches = len(run.loader)
    run.epoch(until=batches)
    assert (run.state.counters["epoch"], run.loader.epoch, len(run.losses)) == (1, 1, 1)
    run.epoch(until=batches + 3)
    assert (run.state.counters["epoch"], run.loader.epoch, len(run.losses)) == (1, 1, 1)
