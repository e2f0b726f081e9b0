"""Evidence of finished runs: what their folders say in numbers, states that the weights are asked again, and edits."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gradledger.cli import _app
from gradledger.core.errors import UsageError
from gradledger.evidence import bundle, hypothesis
from gradledger.evidence.record import TrialRecord
from gradledger.recipes import _dqn_answer, _dqn_evidence, _dqn_measure, dqn_atari, dqn_evidence
from gradledger.recipes._dqn_measure import Found
from gradledger.recipes.dqn_atari import PRESETS, main
from gradledger.recipes.dqn_evidence import Args, train

WORDS = [
    "--preset=smoke",
    "--game=CartPole-v1",
    "--total-steps=320",
    "--learning-starts=80",
    "--target-sync=80",
    "--log-every=80",
    "--eval-episodes=4",
    "--max-episode-steps=30",
    "--lanes=4",
    "--replay=400",
    "--no-pictures",
    "--no-tensorboard",
]
SETTINGS = {"env": "CartPole-v1", "preset": "smoke", "total_steps": 320, "learning_starts": 80, "target_sync": 80}
SETTINGS |= {"log_every": 80, "eval_episodes": 4, "max_episode_steps": 30, "lanes": 4, "replay": 400}
PLAN = f"""
name = "pole"
rng_seeds = [1, 2]
[quantities.evaluation]
low = 0.0
tolerance = 0.0
[quantities.above_random]
tolerance = 0.0
[arms.pole]
{chr(10).join(f"{key} = {json.dumps(value)}" for key, value in SETTINGS.items())}
pictures = false
tensorboard = false
[[hypotheses]]
id = "C1"
claim = "no step is missing"
quantity = "env_steps_missing"
arms = ["pole"]
predicate = {{ kind = "equals", value = 0.0 }}
[[hypotheses]]
id = "C2"
claim = "every sync that was due came"
quantity = "syncs_off"
arms = ["pole"]
predicate = {{ kind = "equals", value = 0.0 }}
[[hypotheses]]
id = "C3"
claim = "a run of 320 steps balances for 29 steps"
quantity = "evaluation"
arms = ["pole"]
predicate = {{ kind = "range", low = 29.0 }}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pole") / "runs"
    threads = torch.get_num_threads()
    assert main([*WORDS, "--seeds=1,2", f"--out={out}"]) == 0
    torch.set_num_threads(threads)
    return out


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="module")
def folder(runs: Path, plan: Path) -> Path:
    return runs.parent / "evidence"


@pytest.fixture(scope="module")
def told(runs: Path, plan: Path, folder: Path) -> dict[str, Any]:
    return train(Args(runs=runs, out=folder, predict=plan, states=40))


def command(*words: str) -> Any:
    return CliRunner().invoke(_app.build(), list(words))


def test_every_seed_is_in_the_table_with_what_its_record_says(runs: Path, told: dict[str, Any], folder: Path) -> None:
    assert [(one["rng_seed"], one["status"]) for one in told["trials"]] == [(1, "finished"), (2, "finished")]
    for one in told["trials"]:
        record = json.loads((runs / f"seed-{one['rng_seed']}" / "record.json").read_text())
        assert one["evaluation"] == pytest.approx(record["evaluation"]["mean"])
        assert one["seconds"] == pytest.approx(sum(record["seconds"].values()))
        assert one["syncs_off"] == 0
        # 4 lanes: the last updates that are due may be those of the last tick
        assert one["updates_per_due"] == pytest.approx(1.0, abs=0.05)
        assert one["rows_not_finite"] == 0
    verdicts = {one["id"]: one["verdict"] for one in told["hypotheses"]}
    assert verdicts == {"C1": "supported", "C2": "supported", "C3": "refuted"}
    assert {one["plan_registered"] for one in told["beginnings"]} == {"after it had ended"}
    (evaluation,) = [one for one in told["over_seeds"] if one["quantity"] == "evaluation"]
    assert evaluation["mean"] == pytest.approx(np.mean([one["evaluation"] for one in told["trials"]]))
    assert evaluation["interval"]["why"] == "2 seeds: no interval below 3"
    assert [one["name"] for one in told["baselines"]] == ["random actions", "no action"]
    assert told["scale"][0]["value"] == pytest.approx(evaluation["mean"])
    assert told["over_seeds"][0] == evaluation  # what the head of the card refers to


def test_the_folder_stands_alone_is_sealed_and_a_second_call_leaves_it_so(
    runs: Path, folder: Path, told: dict[str, Any], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    bundle.seal(copy)
    assert dqn_evidence.main([f"--runs={runs}", f"--out={copy}", "--states=40"]) == 0
    assert bundle.verify(copy) == []
    card = copy / "README.md"
    shown = f"{told['trials'][0]['evaluation']:.2f}"
    assert shown in card.read_text()
    assert f'"value": {json.dumps(told["over_seeds"][0]["mean"])}' in card.read_text()
    card.write_text(card.read_text().replace(shown, "500.00", 1))
    assert any("results.json#" in one.field for one in bundle.verify(copy) if one.file == "README.md")
    for name in ("report.html", "slices.json", "worst.json", "latency.json", "rejections.json", "environment.json"):
        assert (copy / name).stat().st_size > 100
    assert not list(copy.rglob("checkpoints"))


def test_the_weights_say_again_what_was_saved_and_metrics_come_again(
    folder: Path, told: dict[str, Any], tmp_path: Path
) -> None:
    said = command("repredict", str(folder), "--tolerance", "0")
    assert (said.exit_code, said.output.count("equal to the last bit")) == (0, 4), said.output
    for quantity, prediction, target in (
        ("above_random", "evaluation_return", "random_mean"),
        ("value_bias", "value_taken", "discounted"),
    ):
        words = ["--quantity", quantity, "--metric", "mean_difference", "--prediction", prediction, "--target", target]
        assert command("rescore", str(folder), *words).exit_code == 0
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    one, other = (copy / f"runs/pole-seed-{seed}/final.safetensors" for seed in (1, 2))
    one.write_bytes(other.read_bytes())
    said = command("repredict", str(copy))
    assert (said.exit_code, "first that differs: " in said.output) == (1, True)


def test_a_run_trains_anew_to_the_same_numbers(folder: Path, told: dict[str, Any]) -> None:
    said = command("retrain", str(folder))
    assert said.exit_code == 0, said.output
    assert "evaluation: recorded" in said.output


def test_what_came_is_discounted_and_clipped_as_in_training(runs: Path, folder: Path, told: dict[str, Any]) -> None:
    (first, _) = _dqn_measure.runs(runs)
    kept = TrialRecord(folder).predictions(next(iter(TrialRecord(folder).latest())))
    gamma = first.args["gamma"]
    # one point a step: what comes from step t on is a geometric sum to the end of the episode
    wanted = [(1 - gamma ** (length - at)) / (1 - gamma) for at, length in zip(kept["at"], kept["length"], strict=True)]
    assert kept["discounted"] == pytest.approx(wanted)
    assert len(kept["action"]) <= 40
    assert set(kept["episode"].tolist()) == {0, 1}
    player = _dqn_answer.load(first.folder / "final.safetensors", first.args, dtype="float32")
    assert np.array_equal(player.greedy(kept["state"]), kept["action"])


def test_an_action_from_bytes_is_the_greedy_one_and_malformed_states_are_refused(
    runs: Path, folder: Path, told: dict[str, Any]
) -> None:
    (first, _) = _dqn_measure.runs(runs)
    kept = TrialRecord(folder).predictions(next(iter(TrialRecord(folder).latest())))
    player = _dqn_answer.load(first.folder / "final.safetensors", first.args, dtype="float32")
    said = [_dqn_answer.answer(player, state.tobytes()) for state in kept["state"]]
    assert said == player.greedy(kept["state"]).tolist()
    rows = {one["input"]: one["answer"] for one in _dqn_evidence.refusals(player, kept["state"])["rows"]}
    assert set(rows.values()) == {"refused"}
    latency = json.loads((folder / "latency.json").read_text())
    assert list(latency["stages"]) == ["read", "check", "model", "decide"]
    assert latency["whole"]["calls"] >= 1000


def test_a_dueling_network_over_single_frames_answers_as_it_played(tmp_path: Path) -> None:
    words = "--preset=smoke --game=pong --total-steps=60 --learning-starts=40 --lanes=2 --replay=200 --eval-episodes=1"
    words += " --max-episode-steps=20 --no-pictures --no-tensorboard --dueling --priority=0.6 --stack=1"
    threads = torch.get_num_threads()
    assert main([*words.split(), f"--out={tmp_path}"]) == 0
    torch.set_num_threads(threads)
    run = Found(tmp_path, json.loads((tmp_path / "config.json").read_text())["args"])
    player = _dqn_answer.load(tmp_path / "final.safetensors", run.args, dtype="uint8")
    assert player.shape == (1, 84, 84)
    args = dqn_atari.Args(**{**SETTINGS, "env": "pong", "stack": 1, "max_episode_steps": 20})
    played = _dqn_measure.play(args, player.greedy, states=5)
    assert played["state"].shape[1:] == (1, 84, 84)
    asked = [_dqn_answer.answer(player, state.tobytes()) for state in played["state"]]
    assert asked == played["action"].tolist()
    bad = _dqn_answer.malformed(player, played["state"][0])
    assert "frames in the wrong order" not in bad
    for raw in bad.values():
        with pytest.raises(_dqn_answer.StateError):
            _dqn_answer.answer(player, raw)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_frames_are_answered_and_a_black_picture_is_not(tmp_path: Path, precision: str) -> None:
    from safetensors.torch import save_file

    from gradledger import rl

    torch.manual_seed(0)
    net = rl.atari_q_network(6)
    save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, tmp_path / "w.safetensors")
    args = {"env": "pong", "stack": 4, "precision": precision}
    player = _dqn_answer.load(tmp_path / "w.safetensors", args, dtype="uint8")
    frames = np.random.default_rng(0).integers(0, 256, size=(3, 4, 84, 84), dtype=np.uint8)
    with torch.no_grad():
        wanted = net(torch.from_numpy(frames))
    assert np.allclose(player.values(frames), wanted.numpy(), atol=1e-5 if precision == "fp32" else 2e-2)
    assert _dqn_answer.answer(player, frames[1].tobytes()) == int(player.greedy(frames[1:2])[0])
    with pytest.raises(_dqn_answer.StateError, match="28224: 4 x 84 x 84 uint8"):
        _dqn_answer.answer(player, frames[1].tobytes()[:-1])
    with pytest.raises(_dqn_answer.StateError, match="a newest frame that is 0 all over"):
        _dqn_answer.answer(player, _dqn_answer.malformed(player, frames[1])["a black newest frame"])


def test_a_run_that_has_not_ended_is_a_failed_trial_and_is_read_later(
    runs: Path, plan: Path, tmp_path: Path
) -> None:
    partial = Path(shutil.copytree(runs, tmp_path / "runs"))
    record = (partial / "seed-2" / "record.json").rename(tmp_path / "record.json")
    out = tmp_path / "evidence"
    told = train(Args(runs=partial, out=out, predict=plan, states=10))
    assert [one["status"] for one in told["trials"]] == ["finished", "failed"]
    assert "the run has not ended" in told["trials"][1]["error"]
    assert {one["verdict"] for one in told["hypotheses"]} <= {"inconclusive", "refuted"}
    record.rename(partial / "seed-2" / "record.json")
    told = train(Args(runs=partial, out=out, states=10, retry_failed=True))
    assert [(one["status"], one["attempts"]) for one in told["trials"]] == [("finished", 1), ("finished", 2)]


def test_runs_that_fit_no_arm_or_differ_unnamed_are_refused(runs: Path, plan: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fits 0 arms: it has preset=smoke, env=CartPole-v1"):
        train(Args(runs=runs, out=tmp_path / "pong"))
    with pytest.raises(UsageError, match="no run in"):
        train(Args(runs=tmp_path, out=tmp_path / "none"))
    first, second = _dqn_measure.runs(runs)
    read = hypothesis.read(plan)
    other = Found(second.folder, {**second.args, "gamma": 0.5})
    with pytest.raises(UsageError, match="with different gamma"):
        dqn_evidence.assigned(read, [first, other])
    with pytest.raises(UsageError, match="both pole, seed 1"):
        dqn_evidence.assigned(read, [first, first])


def test_tables_with_a_loss_that_is_no_number_are_counted(tmp_path: Path) -> None:
    head = "env_step,optimizer_step,epsilon,loss,gradient_norm,return_20\n"
    rows = ["80,0,1.0,nan,nan,nan\n", "160,20,0.9,0.5,2.0,9.0\n", "240,40,0.8,inf,3.0,9.5\n"]
    (tmp_path / "metrics.csv").write_text(head + "".join(rows))
    (tmp_path / "episodes.csv").write_text("return\n" + "".join(f"{n}\n" for n in range(50)))
    found = _dqn_measure.curves(tmp_path)
    assert (found["rows_not_finite"], found["largest_gradient_norm"]) == (1, 3.0)
    assert found["improvement"] == pytest.approx(30.0)
    assert found["epsilon"] == [1.0, 0.9, 0.8]
    assert math.isinf(found["loss"][1])


def test_the_plan_for_pong_fits_the_preset_it_names() -> None:
    read = hypothesis.read(Path(dqn_evidence.__file__).parent / "plans" / "dqn_atari.toml")
    (arm,) = read.arms.values()
    assert arm["preset"] in PRESETS
    assert set(arm) <= {one.name for one in dataclasses.fields(dqn_atari.Args)}
    assert read.needed() == [("pong-fast", 1), ("pong-fast", 2), ("pong-fast", 3)]
