"""The cloned policy: demonstrations go through their folder unchanged, engines and resumes end with equal bits, and
what is left in the folder can be checked without the recipe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from gradledger.cli import _app
from gradledger.data import lerobot
from gradledger.data.collate import Pad
from gradledger.evidence import bundle
from gradledger.evidence.record import TrialRecord
from gradledger.recipes import (
    _arm6_answer,
    _arm6_demos,
    _arm6_evidence,
    _arm6_expert,
    _arm6_film,
    _arm6_policies,
    arm6_policy,
)
from gradledger.recipes._arm6_env import Arm6Env, ArmError
from gradledger.recipes.arm6_policy import Args, loss_of, main, train, weighted
from recipes.pages import made_page

CONFIG = {"engine": "sweep", "epochs": 3, "demonstrations": 40, "noise": 0.2, "observe": "target", "episodes": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arm6") / "run"


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_arm6_film, "render", lambda *_: "no renderer in this test; drawn as lines")
        return train(Args(preset="smoke", out=folder))


def trial(told: dict[str, Any], arm: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in told["trials"] if one["arm"] == arm)
    return found


def document(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def kept_of(folder: Path) -> dict[str, Any]:
    record = TrialRecord(folder)
    return dict(record.predictions(next(iter(record.latest()))))


def command(*words: str) -> Any:
    return CliRunner().invoke(_app.build(), list(words))


# ------------------------------------------------------------------------------------------------------- demonstrations


def test_demonstrations_are_the_experts_actions_in_a_published_format(folder: Path, told: dict[str, Any]) -> None:
    found = lerobot.open_folder(folder / "demonstrations")
    assert (found.episodes, found.info.fps, dict(found.info.splits)) == (40, 20, {"train": "0:32", "val": "32:40"})
    demos = _arm6_demos.read(folder / "demonstrations")
    again = _arm6_demos.made(40, 0.2)
    assert demos.sha256 == again.sha256
    assert trial(told, "sweep")["demonstrations"] == demos.fingerprint
    assert trial(told, "without_noise")["demonstrations"] != demos.fingerprint
    assert all(np.array_equal(a, b) for a, b in zip(demos.observations, again.observations, strict=True))
    steps = {len(one) for one in demos.actions}
    assert len(steps) > 3
    assert max(steps) <= 50
    arm = Arm6Env()
    for seen, shown in zip(demos.observations[7][::5], demos.actions[7][::5], strict=True):
        # what is written is what the expert would do there, without the noise that was played
        arm.reset(options={"target": seen[12:15]})
        arm.place(seen[:6])
        assert shown == pytest.approx(_arm6_expert.act(arm), abs=1e-4)


def test_a_demonstration_ends_at_its_target(told: dict[str, Any]) -> None:
    demos = _arm6_demos.made(40, 0.2)
    ended = [seen for seen in demos.observations if len(seen) < 50]
    assert ended
    for seen in ended:
        assert (np.linalg.norm(seen[-4:, 15:], axis=1) <= 0.02 + 1e-6).all()


def test_scales_are_of_the_training_side_alone() -> None:
    demos = _arm6_demos.made(40, 0.2)
    seen, _ = demos.frames(demos.train)
    assert demos.mean == pytest.approx(seen.astype(np.float64).mean(axis=0), abs=1e-5)
    assert demos.deviation == pytest.approx(seen.astype(np.float64).std(axis=0), abs=1e-5)
    everything, _ = demos.frames(range(40))
    assert np.abs(demos.mean - everything.mean(axis=0)).max() > 1e-3


def test_padding_has_no_part_in_the_loss() -> None:
    demos = _arm6_demos.made(40, 0.2)
    samples = _arm6_demos.Trajectories(demos, demos.train, width=18)
    chosen = sorted(range(32), key=lambda at: len(samples[at]["action"]))[::10]
    batch = Pad(("observation", "action"))([samples[at] for at in chosen])
    assert not batch["mask"].all()
    said = torch.randn(batch["action"].shape)
    away = (said - batch["action"]).square()
    wanted = torch.cat([away[row, :steps] for row, steps in enumerate(batch["mask"].sum(1))])
    assert loss_of(said, (batch["action"], batch["mask"])).item() == pytest.approx(wanted.mean().item(), rel=1e-6)


# ------------------------------------------------------------------------------------------------------------- training


def test_engines_and_a_resume_end_with_the_same_bits(told: dict[str, Any]) -> None:
    bits = {one["arm"]: one["weights"] for one in told["trials"]}
    assert bits["sweep"] == bits["autograd"] == bits["resumed"]
    assert len(set(bits.values())) == 3
    verdicts = {one["id"]: one["verdict"] for one in told["hypotheses"]}
    assert (verdicts["A5"], verdicts["A6"]) == ("supported", "supported")
    assert verdicts["A1"] == "refuted"  # two epochs are a plumbing test, and it says so
    assert told["kind"] == "plumbing test"


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_stop_anywhere_ends_with_the_same_bits(stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches an epoch: in the middle, after the last batch of an epoch, and after that of a later one."""
    monkeypatch.setattr(arm6_policy, "evaluate", lambda run, _: arm6_policy.fingerprint(run.net.parameters()))
    whole = arm6_policy.experiment(CONFIG | {"interrupt": False}, 1)

    class Drawn:
        def integers(self, *_: int) -> int:
            return stop

    monkeypatch.setattr(arm6_policy.np.random, "default_rng", lambda _: Drawn())
    assert arm6_policy.experiment(CONFIG | {"interrupt": True}, 1) == whole


# ------------------------------------------------------------------------------------------------------------- evidence


def test_rules_without_a_net_set_the_scale(told: dict[str, Any]) -> None:
    rows = {one["name"]: one for one in told["baselines"]}
    assert list(rows)[:2] == [_arm6_policies.NONE, _arm6_policies.MEAN]
    assert rows[_arm6_policies.EXPERT]["success_rate"] == 1.0
    assert rows[_arm6_policies.NONE]["success_rate"] == 0.0
    best = min(rows[name]["final_distance_m"] for name in (_arm6_policies.NONE, _arm6_policies.MEAN))
    mine = trial(told, "sweep")
    assert mine["distance_below_baselines_m"] == pytest.approx(best - mine["final_distance_m"])


def test_no_action_ends_where_it_began(told: dict[str, Any], folder: Path) -> None:
    kept = kept_of(folder)
    still = np.linalg.norm(kept["start"] - kept["target"], axis=1).mean()
    assert {one["name"]: one for one in told["baselines"]}[_arm6_policies.NONE]["final_distance_m"] == pytest.approx(
        still, abs=1e-6
    )


def test_a_pose_does_not_say_the_joints_and_an_observation_says_the_action(folder: Path, told: dict[str, Any]) -> None:
    rows = {one["map"]: one["floor_over_variance"] for one in document(folder, "learnable.json")["rows"]}
    assert all(share > 0.5 for name, share in rows.items() if name.startswith("joints"))
    assert rows["action from the joints alone"] > 0.5
    assert rows["action from joints, target and way"] < 0.05
    words = ("--inputs", "hand", "--targets", "joints")
    said = command("data", "learnable", str(folder / "pose_map.npz"), *words)
    assert (said.exit_code, "does not follow from the input" in said.output) == (1, True), said.output


def test_the_folder_is_sealed_and_a_second_call_leaves_it_so(
    folder: Path, told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_arm6_film, "render", lambda *_: "no renderer in this test; drawn as lines")
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    assert bundle.verify(copy) == []
    assert (copy / bundle.BUNDLE).exists()
    assert main(["--preset", "smoke", "--out", str(copy)]) == 0
    assert bundle.verify(copy) == []
    card = copy / "README.md"
    shown = f"{trial(told, 'sweep')['validation']:.5f}"
    card.write_text(card.read_text().replace(shown, "0.00123", 1))
    fault = bundle.verify(copy)[0]
    assert (fault.file, "results.json#trials[0].validation" in fault.field) == ("README.md", True)


def test_figures_and_predictions_are_made_again(folder: Path, told: dict[str, Any], tmp_path: Path) -> None:
    for words in (
        ("success_rate", "accuracy", "reached", "asked"),
        ("final_distance_m", "mae", "final", "nothing"),
        ("validation", "mse", "said", "action"),
    ):
        options = zip(("--quantity", "--metric", "--prediction", "--target"), words, strict=True)
        said = command("rescore", str(folder), *(word for pair in options for word in pair))
        assert said.exit_code == 0, said.output
    said = command("repredict", str(folder), "--tolerance", "0")
    assert said.exit_code == 0, said.output
    assert said.output.count("equal to the last bit") == 10  # five trials: the actions said, and where the hands end
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    weights = load_file(copy / "model.safetensors")
    weights["3.bias"][1] += 1e-2
    save_file(weights, copy / "model.safetensors")
    said = command("repredict", str(copy))
    assert (said.exit_code, "8 of 10 arrays agree" in said.output) == (1, True), said.output


def test_slices_and_worst_cases_are_of_the_episodes(folder: Path, told: dict[str, Any]) -> None:
    rows = document(folder, "slices.json")["rows"]
    assert sum(one["n"] for one in rows) == 8
    mean = sum(one["n"] * one["mean"] for one in rows) / 8
    assert mean == pytest.approx(trial(told, "sweep")["final_distance_m"])
    worst = document(folder, "worst.json")["rows"]
    assert worst[0]["distance_m"] == pytest.approx(trial(told, "sweep")["worst_final_distance_m"])
    for one in worst:
        assert np.linalg.norm(np.subtract(one["hand"], one["target"])) == pytest.approx(one["distance_m"])
        arm = Arm6Env()
        arm.reset(seed=one["seed"])
        assert arm.target.tolist() == one["target"]


def test_the_report_says_what_a_simulation_does_not_prove(folder: Path, told: dict[str, Any]) -> None:
    assert _arm6_evidence.UNPROVEN in (folder / "report.html").read_text()
    assert "What a simulation does not prove" in (folder / "README.md").read_text()


def test_pictures_say_what_they_are(folder: Path, told: dict[str, Any]) -> None:
    assert (told["pictures"]["curves.png"], told["pictures"]["trajectories.png"]) == (None, None)
    assert told["pictures"]["episode.gif"] == "no renderer in this test; drawn as lines"
    assert all((folder / name).stat().st_size > 5_000 for name in ("curves.png", "trajectories.png", "episode.png"))


def test_the_page_of_results_is_made_from_the_folder(folder: Path, told: dict[str, Any], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    assert made_page("arm6_results", copy, tmp_path / "docs") == 0
    page = (tmp_path / "docs" / "results" / "arm6_policy.md").read_text()
    for one in told["trials"]:
        assert f"| {one['arm']} | 0 | finished | {one['success_rate']:.3f} |" in page
        assert f"| {one['weights']:.0f} |" in page
    assert "{{" not in page
    assert not (tmp_path / "docs" / "figures" / "arm6_episode.gif").exists()  # nothing was rendered in this test
    (copy / "worst.json").unlink()
    assert made_page("arm6_results", copy, tmp_path / "none") == 1


# --------------------------------------------------------------------------------------------------------------- answer


def test_observations_of_the_simulation_are_answered_and_malformed_ones_refused(
    folder: Path, told: dict[str, Any]
) -> None:
    kept, net = kept_of(folder), weighted(load_file(folder / "model.safetensors"))
    path = _arm6_answer.Path(net)
    for seen, said in zip(kept["observation"][::9], kept["said"][::9], strict=True):
        answer = path.answer(seen.astype("<f4").tobytes())
        assert answer.speeds == pytest.approx(np.clip(said, -1, 1) * 2.0, abs=1e-5)
        assert answer.cut == (np.abs(said) > 1).sum()
    for raw in _arm6_answer.malformed().values():
        with pytest.raises(ArmError):
            path.answer(raw)
    rows = {one["input"]: one for one in document(folder, "rejections.json")["rows"]}
    assert all(one["answer"] == "refused" for one in rows.values())
    assert "joint 0 at" in rows["joints in degrees"]["got"]
    found = document(folder, "latency.json")
    assert list(found["stages"]) == ["read", "check", "model", "decide"]
    assert found["whole"]["calls"] >= 1000
