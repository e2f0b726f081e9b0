"""How a DQN run begins: in a folder of its own or out of a checkpoint, on as many threads as its update wants."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from gradledger.recipes import _dqn_state, _dqn_told, _folder, _games, _machine, _memory
from gradledger.recipes._checks import check_device, check_numbers, make_folder, refused
from gradledger.recipes._tensorboard import Scalars
from gradledger.recipes._threads import Calibration, calibrate
from gradledger.rl import AtariSpec, Batch, LinearSchedule
from gradledger.train import checkpoint, seed

if TYPE_CHECKING:
    from gradledger.recipes.dqn_atari import Args, Run


def begin(make: Callable[[Args], Run], args: Args, saved: checkpoint.Checkpoint | None) -> Run:
    """A run that is ready for its first tick, and a folder that says what it is.

    Args:
        make: builds one from its arguments. saved: see `dqn_atari.train`.

    Raises:
        UsageError, CheckpointError: see `dqn_atari.train`.
    """
    began = time.perf_counter()
    _machine.forget_peak()
    args.check()
    args = dataclasses.replace(args, env=_games.resolve(args.env))
    if not args.resume:
        _folder.check_new(args.out, "dqn_atari")
    elif saved is None and not _folder.begins_again(args.out):
        saved = checkpoint.load(args.out / _folder.CHECKPOINTS)
    found = calibrated(make, args) if args.threads == "auto" else None
    run = make(dataclasses.replace(args, threads=found.chosen) if found else args)
    make_folder(args.out)
    if saved is not None:
        for one in saved.rejected:
            print(f"passed over {one.path.name}: {one.reason}", file=sys.stderr)
        _dqn_state.load(run, saved)
        saved.parts.clear()  # as much memory as the replay, and callers hold it as long as the run lasts
        print(f"resumed at {run.counters.env_step} steps from {saved.path.name}", flush=True)
    elif args.resume:
        _folder.cut_back(args.out, dict.fromkeys(_folder.TABLES, 0))
        print("no checkpoint was written yet: begins again with the same settings", flush=True)
    if found:
        run.calibration = found.record()
        print(f"calibrated: {found}", flush=True)
    run.scalars = Scalars(args.out / "tensorboard", wanted=args.tensorboard, env_step=run.counters.env_step)
    _folder.write_json(args.out / _folder.CONFIG, _dqn_told.config(run))
    _folder.write_json(args.out / _folder.ENVIRONMENT, run.lanes.settings)
    run.clock.spent["setup"] = run.clock.spent.get("setup", 0.0) + time.perf_counter() - began
    return run


def settle(args: Args) -> None:
    """Make the process fit for such a run: threads, memory, random states.

    Raises:
        UsageError: see `check`.
    """
    args.check()
    if args.threads != "auto":
        torch.set_num_threads(args.threads)
    _memory.keep_freed()
    seed.seed_all(args.rng_seed)


def schedules(args: Args) -> tuple[LinearSchedule, LinearSchedule]:
    """Exploration and learning rate over environment steps."""
    last = args.learning_rate if args.learning_rate_last is None else args.learning_rate_last
    return (
        LinearSchedule(args.epsilon_first, args.epsilon_last, args.epsilon_steps),
        LinearSchedule(args.learning_rate, last, args.learning_rate_steps),
    )


def check(args: Args) -> None:
    """Refuse what cannot run.

    Raises:
        UsageError: names the option.
    """
    counts = (
        "total_steps lanes max_episode_steps stack replay update_every batch n_step target_sync epsilon_steps "
        "eval_episodes log_every checkpoint_every threads learning_starts learning_rate_steps"
    )
    shares = (
        "gamma sticky epsilon_first epsilon_last eval_epsilon eval_sticky priority priority_correction "
        "learning_rate learning_rate_last"
    )
    check_numbers(args, counts=counts.split(), positive=("learning_rate", "clip"), shares=shares.split())
    if args.eval_sticky is not None and not args.is_atari:
        raise refused(
            f"eval_sticky={args.eval_sticky} for {args.env}",
            "a game of ALE: only its emulator repeats actions",
            "leave --eval-sticky out",
        )
    if args.shift and not (args.is_atari and 0 < args.shift < AtariSpec.height):
        raise refused(
            f"shift={args.shift} for {args.env}",
            f"0 to {AtariSpec.height - 1} pixels, and 0 where a state is no picture",
            "--shift 4 for a game of ALE, or leave it out",
        )
    if args.learning_starts >= args.total_steps:
        raise refused(
            f"learning_starts={args.learning_starts} of total_steps={args.total_steps}: no update would be made",
            "a run that learns",
            f"--learning-starts {max(args.total_steps // 10, 1)}, or --preset smoke for a short run",
        )
    check_device(args.device)


def calibrated(make: Callable[[Args], Run], args: Args) -> Calibration:
    """How many threads make the update of such a run fastest, on a run of its own; every random state is put back."""
    states = seed.capture()
    scratch = make(dataclasses.replace(args, lanes=1, replay=2 * (args.stack + args.n_step + 1), stagger=0))
    seen, rng = scratch.seen.array, np.random.default_rng(0)
    shape = (args.batch, *seen.shape[1:])
    state, following = (torch.from_numpy(rng.integers(0, 256, shape).astype(seen.dtype)) for _ in range(2))
    share = torch.from_numpy(rng.random(args.batch, dtype=np.float32))
    action, no = torch.zeros(args.batch, dtype=torch.int64), torch.zeros(args.batch, dtype=torch.bool)
    batch = Batch(state, action, share, following, share, action + 1, no, no, action, share).to(args.device)
    try:
        return calibrate(lambda: scratch.learn(batch), most=_machine.usable_cores())
    finally:
        scratch.lanes.close()
        seed.restore(*states)
