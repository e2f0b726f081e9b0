"""The planar arm's recipe: engines and resumes end with equal bits, and what it leaves can be used without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gradledger.evidence.record import TrialRecord
from gradledger.recipes import _lab_pipeline as lab
from gradledger.recipes.ik_planar import NET, Args, blocks, main, train


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


def test_pictures_are_drawn(folder: Path, told: dict[str, Any]) -> None:
    assert told["pictures"] == {"curves.png": None, "errors.png": None}
    assert all((folder / name).stat().st_size > 10_000 for name in told["pictures"])


def test_the_hand_is_where_the_distances_say(told: dict[str, Any]) -> None:
    joints = torch.tensor([[0.3, 1.0, 2.0]])
    x = torch.tensor([0.3, 1.3, 3.3])
    assert torch.allclose(lab.forward_kinematics(joints)[0, :2], torch.stack([x.cos().sum(), x.sin().sum()]))
    one = trial(told, "sweep", 0)
    assert 0 < one["median_distance_m"] < one["worst_distance_m"] < 6
