"""The DQN recipe: engines agree to the bit, kills cost nothing, what is refused is named."""

from __future__ import annotations

import copy
import csv
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gradledger.core.errors import UsageError
from gradledger.recipes import _dqn_state, dqn_atari
from gradledger.recipes.dqn_atari import PRESETS, Args, Run, network, train
from gradledger.rl import AtariSimulator, AtariSpec, atari_q_network, random_shift, td_loss, td_target
from gradledger.sweep import Sweep
from gradledger.train import CheckpointError, PlainBackward, _hashed, checkpoint, seed

CARTPOLE: dict[str, Any] = {
    "preset": "smoke",
    "env": "CartPole-v1",
    "total_steps": 1_500,
    "replay": 800,
    "learning_starts": 200,
    "update_every": 3,
    "target_sync": 300,
    "epsilon_steps": 800,
    "max_episode_steps": 60,
    "n_step": 3,
    "double": True,
    "eval_episodes": 4,
    "log_every": 250,
    "checkpoint_every": 300,
    "pictures": False,  # tests/recipes/test_dqn_command.py looks at them
}
PONG = {**CARTPOLE, "env": "pong", "total_steps": 280, "lanes": 4, "learning_starts": 80, "max_episode_steps": 30}
PONG |= {"target_sync": 70, "checkpoint_every": 100, "log_every": 100, "eval_episodes": 1, "batch": 8}


def options(settings: dict[str, Any]) -> list[str]:
    words = []
    for name, value in settings.items():
        option = "--" + name.replace("_", "-")
        flag = option.replace("--", "--" if value else "--no-", 1)
        words += [flag] if isinstance(value, bool) else [option, str(value)]
    return words


def folder_facts(folder: Path) -> dict[str, Any]:
    """Everything a run leaves that does not depend on the clock."""
    rows = list(csv.DictReader((folder / "metrics.csv").open(encoding="utf-8")))
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    return {
        "weights": (folder / "final.safetensors").read_bytes(),
        "episodes": (folder / "episodes.csv").read_bytes(),
        "metrics": [{key: value for key, value in row.items() if key != "seconds"} for row in rows],
        "completed": record["completed"],
        "evaluation": record["evaluation"],
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("settings", [CARTPOLE, PONG], ids=["cartpole", "pong"])
def test_the_engines_leave_the_same_run_to_the_bit(settings: dict[str, Any], precision: Any, tmp_path: Path) -> None:
    facts = []
    for engine in ("sweep", "autograd"):
        out = tmp_path / engine
        train(Args(**settings, engine=engine, precision=precision, out=out))
        facts.append(folder_facts(out))
    assert facts[0] == facts[1]
    start = network(
        Args(**settings), Run(Args(**settings, out=tmp_path / "x")).lanes.simulator, torch.float32
    ).state_dict()
    final = load_file(tmp_path / "sweep" / "final.safetensors")
    assert all(final[name].dtype == torch.float32 and not torch.equal(final[name], start[name]) for name in final)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 0.0)])
def test_the_sweeps_gradients_equal_the_monolithic_ones_on_a_fixed_batch(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    net = atari_q_network(6, dtype=dtype)
    x = torch.randint(0, 256, (32, 4, 84, 84), dtype=torch.uint8)
    y = (torch.randint(0, 6, (32,)), 2 * torch.randn(32, dtype=dtype))
    found = []
    for engine in (Sweep(net, lambda q, w: td_loss(q, *w)), PlainBackward(net, lambda q, w: td_loss(q, *w))):
        net.zero_grad()
        engine.backward(x, y)
        found.append([parameter.grad.clone() for parameter in net.parameters()])
    assert max(float((a - b).abs().max()) for a, b in zip(*found, strict=True)) <= tolerance
    assert all(float(gradient.abs().max()) > 0 for gradient in found[0])


RANKED = {**CARTPOLE, "dueling": True, "priority": 0.6, "total_steps": 900}
RANKED |= {"learning_rate_last": 1e-5, "learning_rate_steps": 800}


SHIFTED = {**PONG, "shift": 4}


@pytest.mark.parametrize("settings", [CARTPOLE, SHIFTED, RANKED], ids=["cartpole", "pong, shifted", "ranked"])
def test_a_run_killed_twice_ends_like_one_that_was_not(settings: dict[str, Any], tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(Args(**settings, out=whole))
    command = [sys.executable, "-m", "gradledger.recipes.dqn_atari", "--out", str(broken)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # A line of log is printed every log_every steps; the kills fall somewhere behind the line with that number.
    for kill_after, words in ((2, options(settings)), (2, ["--resume"])):
        child = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True, env=environment)
        assert child.stdout is not None
        for _ in range(kill_after):
            assert child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert child.returncode == -signal.SIGKILL
        assert not (broken / "record.json").exists()
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "resumed at" in done.stdout
    assert folder_facts(broken) == folder_facts(whole)


def test_the_counters_are_what_the_schedule_says(tmp_path: Path) -> None:
    told = train(Args(**CARTPOLE, out=tmp_path / "run"))
    counted = told["completed"]
    episodes = list(csv.DictReader((tmp_path / "run" / "episodes.csv").open(encoding="utf-8")))
    steps = counted["env_step"]
    assert 1_500 <= steps < 1_508
    assert counted["frame"] == steps  # CartPole repeats no action
    # 200 steps before the first update, then one every 3 up to the step before the last tick
    assert (steps - 8 - 200) // 3 <= counted["optimizer_step"] <= (steps - 200) // 3 + 1
    assert counted["target_sync"] == 5
    assert counted["episode"] == len(episodes)
    assert counted["evaluated_episode"] == len(told["evaluation"]["returns"]) == 4
    assert sum(int(row["length"]) for row in episodes) <= steps
    assert max(int(row["length"]) for row in episodes) <= 60
    assert all((int(row["length"]) == 60) >= int(row["truncated"]) for row in episodes)
    assert told["kind"].startswith("plumbing test")
    assert told["evaluation"]["environment"]["rng_seed"] != told["training_environment"]["rng_seed"]


def test_frames_are_four_a_step_on_atari(tmp_path: Path) -> None:
    told = train(Args(**PONG, out=tmp_path / "run"))
    assert told["completed"]["frame"] == 4 * told["completed"]["env_step"]
    assert told["parameters"] == 1_687_206
    assert told["input_shape"] == [8, 4, 84, 84]


def test_a_finished_run_is_scored_under_sticky_actions_too(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    assert dqn_atari.main([*options(PONG), "--no-pictures", "--out", out]) == 0
    told = json.loads((tmp_path / "run" / "record.json").read_text())
    weights = (tmp_path / "run" / "final.safetensors").read_bytes()
    assert "evaluation_sticky" not in told
    assert dqn_atari.main(["--resume", "--out", out, "--eval-sticky", "0.25", "--eval-episodes", "2"]) == 0
    again = json.loads((tmp_path / "run" / "record.json").read_text())
    assert (tmp_path / "run" / "final.safetensors").read_bytes() == weights
    plain, sticky = again["evaluation"], again["evaluation_sticky"]
    assert plain["environment"]["repeat_action_probability"] == 0.0
    assert sticky["environment"]["repeat_action_probability"] == 0.25
    assert again["training_environment"] == told["training_environment"]
    assert len(plain["returns"]) == len(sticky["returns"]) == 2
    assert again["completed"]["evaluated_episode"] == 4


def test_the_target_moves_only_at_syncs_shares_nothing_and_gets_no_gradient(tmp_path: Path) -> None:
    run = Run(Args(**CARTPOLE, out=tmp_path))
    tmp_path.mkdir(exist_ok=True)
    online = {parameter.data_ptr() for parameter in run.compute.parameters()}
    moved = 0
    for _ in range(120):
        before = [parameter.clone() for parameter in run.target.model.parameters()]
        syncs = run.counters.target_sync
        run.tick()
        target = list(run.target.model.parameters())
        changed = any(not torch.equal(a, b) for a, b in zip(before, target, strict=True))
        assert changed == (run.counters.target_sync > syncs)
        moved += changed
        assert all(parameter.grad is None and not parameter.requires_grad for parameter in target)
        assert not online & {parameter.data_ptr() for parameter in target}
    assert moved == run.counters.target_sync >= 2
    held = {id(parameter) for group in run.optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in run.online.parameters()}


def test_what_the_policy_sees_is_what_the_replay_rebuilds(tmp_path: Path) -> None:
    run = Run(Args(**PONG, out=tmp_path))
    shown: list[np.ndarray] = []
    for _ in range(40):
        shown.append(run.seen.state())
        run.tick()
    rows = np.repeat(np.arange(40), 4)
    rebuilt = run.replay._stacked(rows, np.tile(np.arange(4), 40)).numpy()
    assert np.array_equal(rebuilt, np.concatenate(shown))


def test_a_state_of_one_frame_is_seen_by_a_network_of_one_channel(tmp_path: Path) -> None:
    train(Args(**{**PONG, "total_steps": 120, "lanes": 2}, stack=1, out=tmp_path / "run"))
    first = load_file(tmp_path / "run" / "final.safetensors")["1.0.weight"]
    assert first.shape == (32, 1, 8, 8)
    run = Run(Args(**PONG, stack=1, out=tmp_path / "x"))
    frames = torch.randint(0, 256, (3, 84, 84), dtype=torch.uint8)  # as the replay and the lanes give them
    wanted = run.compute(frames.view(3, 1, 84, 84)).argmax(dim=1)
    assert run.greedy(frames.numpy()).tolist() == wanted.tolist()
    run.lanes.close()


@pytest.mark.parametrize("flush", [True, False])
def test_denormal_numbers_count_as_zero_while_a_run_lasts(flush: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """A moment of 1.2e-38 that shrinks by a tenth, in fused Adam, and a gradient of 1e-40: 0, or what they are."""
    seen: list[bool] = []

    def look(run: Run) -> None:
        weight = torch.nn.Parameter(torch.ones(64))
        weight.grad = torch.zeros(64)
        optimizer = torch.optim.Adam([weight], fused=True)
        optimizer.step()
        optimizer.state[weight]["exp_avg"].fill_(1.2e-38)
        optimizer.step()
        small = torch.tensor(1.0, requires_grad=True)
        (small * 1e-20 * 1e-20).backward()
        moment = optimizer.state[weight]["exp_avg"].view(torch.int32)  # 0 is 0 in whatever mode it is looked at
        seen.extend([bool((moment == 0).all()), bool(small.grad.view(torch.int32) == 0)])
        raise KeyboardInterrupt

    known = torch.set_flush_denormal(True)
    torch.set_flush_denormal(False)
    assert known or platform.machine() not in ("x86_64", "AMD64", "aarch64")
    monkeypatch.setattr(Run, "tick", look)
    with pytest.raises(KeyboardInterrupt):
        train(Args(**CARTPOLE, flush_denormal=flush, out=tmp_path / "run"))
    assert seen == [flush and known] * 2
    assert torch.tensor(1e-30) * 1e-10 != 0


def test_the_learning_rate_falls_on_a_line_of_environment_steps(tmp_path: Path) -> None:
    line = {"learning_rate": 1e-3, "learning_rate_last": 2e-4, "learning_rate_steps": 1_000}
    run = Run(Args(**{**CARTPOLE, **line}, out=tmp_path))
    used = []
    step = run.optimizer.step
    run.optimizer.step = lambda: used.append((run.counters.env_step, run.optimizer.param_groups[0]["lr"])) or step()
    while run.counters.env_step < 1_200:
        run.tick()
    assert len(used) > 300
    for env_step, rate in used:
        assert rate == pytest.approx(1e-3 - 8e-4 * min(env_step, 1_000) / 1_000)
    assert used[-1][1] == pytest.approx(2e-4)
    run.lanes.close()


def test_a_prioritised_update_is_the_one_worked_out_from_its_batch(tmp_path: Path) -> None:
    """The gradient of one update against plain autograd on the same batch and weights, and the errors it leaves."""
    run = Run(Args(**RANKED, out=tmp_path))
    while run.counters.env_step < 240:
        run.tick()
    drawn = []
    sample = run.replay.sample
    run.replay.sample = lambda *words, **named: drawn.append(sample(*words, **named)) or drawn[-1]
    net = copy.deepcopy(run.online)
    run.update()
    batch = drawn[0]
    assert batch.weight.min() < batch.weight.max() == 1
    after = batch.next_state
    target = td_target(batch.reward, batch.discount, run.target.model(after), next_online_q=net(after))
    taken = net(batch.state).gather(1, batch.action[:, None]).squeeze(1)
    each = 2 * torch.nn.functional.smooth_l1_loss(taken, target, reduction="none")
    (batch.weight * each).mean().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), run.args.clip)
    for mine, plain in zip(run.online.parameters(), net.parameters(), strict=True):
        assert torch.allclose(mine.grad, plain.grad, rtol=1e-5, atol=1e-8)
    errors = (taken - target).abs().clamp(max=1).detach().double().numpy()
    rows, lanes = np.divmod(batch.slot.numpy(), 8)
    held = run.replay.state()[0]["priority"].numpy()[rows % (800 // 8), lanes]
    last = {int(slot): place for place, slot in enumerate(batch.slot)}  # drawn twice: the last one counts
    for slot, place in last.items():
        here = batch.slot.tolist().index(slot)
        assert held[here] == pytest.approx((errors[place] + 1e-6) ** 0.6, rel=1e-4)
    run.lanes.close()


def test_an_update_learns_from_shifted_states_and_the_players_see_them_as_they_are(tmp_path: Path) -> None:
    run = Run(Args(**SHIFTED, out=tmp_path / "run"))
    drawn, learned, seen = [], [], []
    sample, learn, greedy = run.replay.sample, run.learn, run.greedy
    run.replay.sample = lambda *words, **named: drawn.append(sample(*words, **named)) or drawn[-1]
    run.learn = lambda batch: learned.append(batch) or learn(batch)
    run.greedy = lambda states: seen.append(np.array_equal(states, run.seen.array)) or greedy(states)
    while not run.counters.optimizer_step:
        run.tick()
    rng = seed.generator(run.args.rng_seed, "shift")
    assert len(drawn) == len(learned) == run.counters.optimizer_step
    for before, after in zip(drawn, learned, strict=True):
        assert torch.equal(after.state, random_shift(before.state, 4, rng))
        assert torch.equal(after.next_state, random_shift(before.next_state, 4, rng))
        assert not torch.equal(after.state, before.state)
    assert seen == [True]
    run.lanes.close()


@pytest.mark.parametrize("chosen", [{"env": "CartPole-v1", "shift": 4}, {"shift": 84}, {"shift": -1}])
def test_a_shift_that_cannot_be_is_refused(chosen: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"shift={chosen['shift']} for .*0 to 83 pixels.*--shift 4"):
        Args(**chosen).check()


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_hashed, "save_file", full)
        told = train(Args(**{**CARTPOLE, "total_steps": 700}, out=tmp_path / "run"))
    assert told["failed_checkpoints"] == 2
    assert "the run goes on" in capsys.readouterr().err


def test_options_that_cannot_be_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"batch=0, learning_rate=-1\.0"):
        train(Args(batch=0, learning_rate=-1.0, out=tmp_path))
    with pytest.raises(UsageError, match=r"eval_sticky=1\.5"):
        train(Args(env="pong", eval_sticky=1.5, out=tmp_path))
    with pytest.raises(UsageError, match=r"eval_sticky=0\.25 for CartPole-v1, wanted a game of ALE"):
        train(Args(**{**CARTPOLE, "eval_sticky": 0.25}, out=tmp_path))
    (tmp_path / "metrics.csv").write_text("x")
    with pytest.raises(UsageError, match="a folder with a run in it"):
        train(Args(out=tmp_path))
    with pytest.raises(CheckpointError, match="no checkpoint at all"):
        train(Args(out=tmp_path / "new", resume=True))
    assert not (tmp_path / "new").exists()


def test_the_command_line_refuses_to_change_a_run_that_it_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    assert dqn_atari.main([*options({**CARTPOLE, "total_steps": 400}), "--out", out]) == 0
    assert dqn_atari.main(["--resume", "--out", out, "--gamma", "0.9"]) == 2
    assert "got gamma=0.9, wanted gamma=0.99" in capsys.readouterr().err
    assert dqn_atari.main(["--resume", "--out", out, "--total-steps", "500"]) == 0
    assert json.loads((tmp_path / "run" / "record.json").read_text())["completed"]["env_step"] >= 500
    assert dqn_atari.main(["--engine", "magic"]) == 2
    assert "invalid choice: 'magic'" in capsys.readouterr().err


def test_presets_say_what_the_source_says() -> None:
    seed, smoke, fast = (Args(**{**PRESETS[name], "preset": name}) for name in ("seed", "smoke", "pong-fast"))
    assert (seed.total_steps, seed.replay, seed.learning_starts, seed.target_sync) == (400_000, 50_000, 10_000, 2_000)
    assert (seed.batch, seed.gamma, seed.learning_rate, seed.clip) == (32, 0.99, 1e-4, 10.0)
    assert (seed.double, seed.n_step, seed.seed_scale, seed.update_every) == (False, 1, 2, 4)
    assert (smoke.total_steps, smoke.replay, smoke.learning_starts, smoke.target_sync) == (3_000, 2_000, 500, 500)
    assert (fast.double, fast.n_step, fast.update_every, fast.epsilon_last) == (True, 3, 1, 0.02)
    # The setting of docs/results/dqn_pong.md: another one needs runs of its own.
    assert PRESETS["pong-hour"] == {
        "total_steps": 260_000,
        "double": True,
        "initial": "he",
        "n_step": 5,
        "priority": 0.5,
        "update_every": 2,
        "target_sync": 1_000,
        "learning_rate": 2.5e-4,
        "learning_rate_last": 2e-5,
        "learning_rate_steps": 220_000,
        "epsilon_last": 0.01,
    }


def test_breakout_runs_unchanged(tmp_path: Path) -> None:
    told = train(Args(**{**PONG, "env": "breakout", "total_steps": 120, "sticky": 0.25}, out=tmp_path / "run"))
    assert told["training_environment"]["repeat_action_probability"] == 0.25
    simulator = AtariSimulator(AtariSpec("breakout", lanes=1))
    assert told["parameters"] == 1_684_128 + 513 * simulator.actions


def test_a_run_loaded_between_two_ticks_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Four checkpoints, two of them before the first update; after each one everything is compared."""
    args = Args(**PONG, precision="bf16", engine="autograd", out=tmp_path)
    one = Run(args)
    saved, ticks = {}, 45
    for tick in range(ticks):
        if tick in (1, 18, 32, 33):  # lane 0 pads at 31
            _dqn_state.save(one)
            saved[tick] = checkpoint.load(tmp_path / "checkpoints")
        one.tick()
    end = one.lanes.state()[0]
    for tick, loaded in saved.items():
        two = Run(args)
        _dqn_state.load(two, loaded)
        for _ in range(tick, ticks):
            two.tick()
        assert two.counters == one.counters
        assert np.array_equal(two.seen.array, one.seen.array)
        assert all(np.array_equal(array, end[name]) for name, array in two.lanes.state()[0].items())
        assert all(torch.equal(a, one.replay.state()[0][name]) for name, a in two.replay.state()[0].items())
        for mine, theirs in ((two.online, one.online), (two.target.model, one.target.model)):
            assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
    assert one.counters.optimizer_step > 20
