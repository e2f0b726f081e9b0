"""What a DQN run plays in and what it remembers: its lanes, its replay, and itself as a checkpoint, all of it, so that
one that goes on ends with the same bits."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from gradledger.core.files import usual_mode
from gradledger.recipes import _folder
from gradledger.rl import (
    AtariSimulator,
    AtariSpec,
    Counters,
    GymSimulator,
    GymSpec,
    Lanes,
    LaneSpec,
    Replay,
    ReplaySpec,
    Simulator,
    Step,
)
from gradledger.train import CheckpointError, checkpoint, optimizer_state, seed

if TYPE_CHECKING:
    from gradledger.recipes.dqn_atari import Args, Run


def environment(args: Args, *, lanes: int, rng_seed: int, stagger: int = 0) -> Lanes:
    """Lanes of the game; another `rng_seed` gives an independent set."""
    simulator: Simulator = (
        AtariSimulator(AtariSpec(args.env, lanes=lanes, sticky=args.sticky))
        if args.is_atari
        else GymSimulator(GymSpec(args.env, lanes=lanes))
    )
    return Lanes(simulator, LaneSpec(rng_seed, args.max_episode_steps, stagger=stagger))


def replay(args: Args, simulator: Simulator, *, stack: int) -> Replay:
    """An empty replay for what this simulator shows. stack: frames in a state."""
    return Replay(
        ReplaySpec(
            capacity=args.replay,
            lanes=args.lanes,
            observation_shape=simulator.observation_shape,
            dtype=str(simulator.dtype),
            stack=stack,
            n_step=args.n_step,
            gamma=args.gamma,
            reward_clip=args.reward_clip,
            life_loss_terminates=args.life_loss_terminates,
            priority=args.priority,
        )
    )


def remember(
    run: Run, frames: NDArray[Any], starts: NDArray[np.bool_], actions: NDArray[np.int64], step: Step
) -> None:
    """Put a step into the replay, and its frames before the network's eyes. frames, starts: what the lanes showed when
    `actions` were chosen."""
    run.replay.add(
        frames,
        actions,
        step.rewards,
        step.terminated,
        step.truncated,
        life_lost=step.life_lost,
        valid=step.valid,
        starts=starts,
    )
    run.seen.push(step.next_frames, step.starts)


def save(run: Run) -> None:
    """Write a checkpoint. A disk that is full costs this one, not the run."""
    with run.clock("checkpoint"):
        lanes, lane_facts = run.lanes.state()
        replay, replay_facts = run.replay.state()
        states, random_facts = seed.capture(run.rng)
        moments, optimizer_facts = optimizer_state.capture(run.optimizer, run.online.named_parameters())
        parts = {
            "model": run.online.state_dict(),
            "target": run.target.model.state_dict(),
            "optimizer": moments,
            "replay": replay,
            "random": states,
            "lanes": {name: torch.from_numpy(array) for name, array in lanes.items()},
            "seen": {"frames": torch.from_numpy(run.seen.state())},
        }
        facts = {
            "args": _folder.plain(run.args),
            "calibration": run.calibration,
            "counters": run.counters.state(),
            "returns": list(run.returns),
            "sums": run.sums,
            "lanes": lane_facts,
            "replay": replay_facts,
            "random": random_facts,
            "optimizer": optimizer_facts,
            "clock": run.clock.spent,
            "tables": _folder.sizes(run.args.out),
        }
        try:
            checkpoint.save(run.args.out / _folder.CHECKPOINTS, run.counters.env_step, parts, facts)
        except CheckpointError as error:
            run.failed_checkpoints += 1
            print(f"no checkpoint at {run.counters.env_step} steps, the run goes on: {error}", file=sys.stderr)


def load(run: Run, saved: checkpoint.Checkpoint) -> None:
    """Take over a checkpoint; the lanes play their logs again."""
    parts, facts = saved.parts, saved.facts
    run.online.load_state_dict(parts["model"])
    run.publish()
    run.target.model.load_state_dict(parts["target"])
    optimizer_state.restore(run.optimizer, run.online.named_parameters(), parts["optimizer"], facts["optimizer"])
    run.replay.load_state(parts["replay"], facts["replay"])
    run.lanes.load_state({name: tensor.numpy() for name, tensor in parts["lanes"].items()}, facts["lanes"])
    run.seen.load_state(parts["seen"]["frames"].numpy())
    seed.restore(parts["random"], facts["random"], run.rng)
    run.counters = Counters.from_state(facts["counters"])
    run.returns.extend(facts["returns"])
    run.sums = dict(facts["sums"])
    run.clock.spent = dict(facts["clock"])
    run.calibration = facts.get("calibration")
    _folder.cut_back(run.args.out, facts["tables"])


def leave(run: Run) -> None:
    """Write `final.safetensors`: the online network in float32, and which game it plays."""
    path = run.args.out / "final.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in run.online.state_dict().items()}
    # One entry: several come in an order of chance, and equal runs are to end in equal files.
    facts = {"dqn_atari": json.dumps({"env": run.args.env, "env_step": run.counters.env_step}, sort_keys=True)}
    with usual_mode(path):
        save_file(tensors, path, metadata=facts)
