"""Deep Q-learning on Atari, its network trained by the explicit reverse sweep or by plain autograd.

    gradledger run dqn_atari --preset smoke --out runs/smoke
    gradledger run dqn_atari --preset pong-fast --seeds 1..3 --out runs/pong
    gradledger run dqn_atari --resume runs/pong/seed-1

Any ALE game by its ROM's name (--game Breakout); a name with a version (--game CartPole-v1) is a gymnasium environment
and gets a small network over vectors.

The run folder holds config.json and environment.json from the start, metrics.csv, episodes.csv and checkpoints/ as they
grow, and at the end final.safetensors, record.json (settings, versions, hardware, counters, times, memory, evaluation),
curves.png, film.gif and strip.png. A run that was killed goes on with --resume, and ends with the same bits as one that
was not.

Differences from Mnih et al. 2015: Adam; Double DQN and n-step returns as options; Huber loss times 2 (`--seed-scale`);
global gradient norm clipped at 10; several environments in step; an episode is a whole game, not a life; no sticky
actions unless asked. Not in the source and chosen here: update frequency, exploration schedule, Adam's epsilon, and
that the target network is synced by environment steps.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# A thread that spins while it waits costs other programs, and here our own environment, more than it gains.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from gradledger.recipes import _folder, _games, _machine, _main, _pictures, _statistics
from gradledger.recipes._checks import check_device, check_numbers, refused
from gradledger.recipes._clock import Clock
from gradledger.recipes._command_line import option
from gradledger.recipes._progress import Progress, Status
from gradledger.recipes._registry import Recipe
from gradledger.recipes._stop import StopWish
from gradledger.recipes._tensorboard import Scalars
from gradledger.recipes._threads import Calibration, calibrate
from gradledger.rl import (
    AtariSimulator,
    AtariSpec,
    Batch,
    Counters,
    Evaluation,
    FrameStack,
    GymSimulator,
    GymSpec,
    Lanes,
    LaneSpec,
    LinearSchedule,
    Replay,
    ReplaySpec,
    Simulator,
    atari_q_network,
    epsilon_greedy,
    evaluate,
    mlp_q_network,
    td_loss,
    td_target,
)
from gradledger.rl.explore import random_actions
from gradledger.sweep import Sweep
from gradledger.train import CheckpointError, GradientEngine, PlainBackward, Shadow, checkpoint, optimizer_state, seed

RECIPE = Recipe(
    presets={
        "smoke": "3,000 steps, about a minute: a plumbing test that shows that the parts fit, no agent",
        "seed": "400,000 steps, one update every 4, plain DQN: the setting of the specification",
        "pong-fast": "double, 3-step returns, one update a step: meant to learn Pong in few steps",
    },
    default_preset="seed",
    extra="rl",
)

# ---------------------------------------------------------------------------------------------------------------- Args


@dataclass(frozen=True)
class Args:
    """Everything that decides a run. Steps are environment steps, over all lanes, unless they say otherwise."""

    preset: str = "seed"
    env: str = option(
        "pong",
        "ROM of ale-py in any case, or a gymnasium id such as CartPole-v1",
        aliases=("--game",),
        metavar="NAME",
        reader=_games.resolve,
    )
    out: Path = field(default=Path("runs/dqn"), metadata={"help": "run folder"})
    resume: bool = option(False, "go on from the newest whole checkpoint in DIR or --out", or_value_of="out")
    rng_seed: int = option(1, "decides weights, environments, exploration and batches")
    engine: Literal["sweep", "autograd"] = option("sweep", "what computes the gradients; equal weights either way")
    precision: Literal["fp32", "bf16"] = option("fp32", "bf16: compute copy in bfloat16, weights and Adam in float32")
    device: str = option("cpu", "torch device of the networks")
    threads: int | Literal["auto"] = option(1, "torch threads; auto: timed on the update for two seconds, and recorded")

    total_steps: int = option(400_000, "environment steps of the run")
    lanes: int = option(8, "environments in step")
    sticky: float = option(0.0, "probability that ALE repeats the last action")
    max_episode_steps: int = option(27_000, "an episode is truncated after so many of its steps")
    stagger: int = option(0, "the last lane plays about so many random, uncounted steps first, the others less")
    stack: int = option(4, "frames in a state (Atari)")

    replay: int = option(50_000, "capacity of the replay, in frames of all lanes")
    learning_starts: int = option(10_000, "steps before the first update")
    update_every: int = option(4, "steps from one update to the next")
    batch: int = option(32, "transitions in an update")
    n_step: int = option(1, "longest window of a return")
    gamma: float = option(0.99, "discount per step")
    reward_clip: float | None = option(1.0, "rewards are clamped to +- this when drawn; none: raw")
    life_loss_terminates: bool = option(False, "no bootstrap past a lost life; the game goes on")
    double: bool = option(False, "the online network selects, the target network evaluates")
    target_sync: int = option(2_000, "steps between copies into the target network")
    learning_rate: float = option(1e-4, "learning rate of Adam")
    adam_epsilon: float = option(1e-8, "epsilon of Adam")
    clip: float = option(10.0, "the global gradient norm is clipped at this")
    seed_scale: Literal[1, 2] = option(2, "factor on the Huber loss and so on every gradient")

    epsilon_first: float = option(1.0, "exploration at the start")
    epsilon_last: float = option(0.02, "exploration after epsilon_steps")
    epsilon_steps: int = option(40_000, "steps of the line between the two")

    eval_episodes: int = option(30, "episodes of the last evaluation")
    eval_epsilon: float = option(0.01, "exploration during evaluation")
    log_every: int = option(2_000, "steps between rows of metrics.csv")
    checkpoint_every: int = option(50_000, "steps between checkpoints")
    pictures: bool = option(True, "draw curves.png, film.gif and strip.png")
    tensorboard: bool | None = option(None, "scalars under OUT/tensorboard; auto: where TensorBoard is installed")

    def check(self) -> None:
        """Refuse what cannot run, by name."""
        counts = (
            "total_steps lanes max_episode_steps stack replay update_every batch n_step target_sync epsilon_steps "
            "eval_episodes log_every checkpoint_every threads learning_starts"
        )
        shares = "gamma sticky epsilon_first epsilon_last eval_epsilon"
        check_numbers(self, counts=counts.split(), positive=("learning_rate", "clip"), shares=shares.split())
        if self.learning_starts >= self.total_steps:
            raise refused(
                f"learning_starts={self.learning_starts} of total_steps={self.total_steps}: no update would be made",
                "a run that learns",
                f"--learning-starts {max(self.total_steps // 10, 1)}, or --preset smoke for a short run",
            )
        check_device(self.device)

    @property
    def is_atari(self) -> bool:
        """Whether it is a ROM of ale-py, seen as frames, or a gymnasium environment, seen as vectors."""
        return _games.is_rom(self.env)


PRESETS: dict[str, dict[str, Any]] = {
    "seed": {},
    "smoke": {
        "total_steps": 3_000,
        "replay": 2_000,
        "learning_starts": 500,
        "target_sync": 500,
        "epsilon_steps": 2_000,
        "eval_episodes": 2,
        "log_every": 500,
        "checkpoint_every": 1_500,
    },
    "pong-fast": {"double": True, "n_step": 3, "update_every": 1},
}

# --------------------------------------------------------------------------------------------------------- Environment


def environment(args: Args, *, lanes: int, rng_seed: int, stagger: int = 0) -> Lanes:
    """Lanes of the game; another `rng_seed` gives an independent set."""
    simulator: Simulator = (
        AtariSimulator(AtariSpec(args.env, lanes=lanes, sticky=args.sticky))
        if args.is_atari
        else GymSimulator(GymSpec(args.env, lanes=lanes))
    )
    return Lanes(simulator, LaneSpec(rng_seed, args.max_episode_steps, stagger=stagger))


# -------------------------------------------------------------------------------------------------------------- Blocks


def network(args: Args, simulator: Simulator, dtype: torch.dtype) -> nn.Sequential:
    """The Q-network as a chain of blocks; convolutions keep their channels last in memory."""
    if args.is_atari:
        net = atari_q_network(simulator.actions, stack=args.stack, dtype=dtype)
        for parameter in net.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        return net.to(args.device)
    return mlp_q_network(math.prod(simulator.observation_shape), simulator.actions).to(args.device, dtype)


def loss_of(args: Args) -> Any:
    """(q, (action, target)) -> scalar, the mean over the batch; in float32 whatever q is."""

    def loss(q: Tensor, wanted: tuple[Tensor, Tensor]) -> Tensor:
        action, target = wanted
        return td_loss(q.float(), action, target, scale=args.seed_scale)

    return loss


# --------------------------------------------------------------------------------------------------------------- Setup


class Run:
    """A run between two ticks: everything that a checkpoint holds, and what can be built again without one."""

    def __init__(self, args: Args) -> None:
        args.check()
        if args.threads != "auto":
            torch.set_num_threads(args.threads)
        seed.seed_all(args.rng_seed)
        self.args = args
        self.lanes = environment(args, lanes=args.lanes, rng_seed=args.rng_seed, stagger=args.stagger)
        simulator = self.lanes.simulator
        self.stack = args.stack if args.is_atari else 1
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.precision]

        # `online` is what Adam moves, in float32. `compute` is what runs: the same network, or its copy in bfloat16.
        self.online = network(args, simulator, torch.float32)
        self.compute = self.online if args.precision == "fp32" else network(args, simulator, self.dtype)
        self.publish()
        self.target = Shadow(self.compute, make=lambda: network(args, simulator, self.dtype))
        self.optimizer = torch.optim.Adam(
            self.online.parameters(), lr=args.learning_rate, eps=args.adam_epsilon, fused=True
        )
        loss = loss_of(args)
        self.engine: GradientEngine = (
            Sweep(self.compute, loss) if args.engine == "sweep" else PlainBackward(self.compute, loss)
        )
        self.replay = Replay(
            ReplaySpec(
                capacity=args.replay,
                lanes=args.lanes,
                observation_shape=simulator.observation_shape,
                dtype=str(simulator.dtype),
                stack=self.stack,
                n_step=args.n_step,
                gamma=args.gamma,
                reward_clip=args.reward_clip,
                life_loss_terminates=args.life_loss_terminates,
            )
        )
        self.schedule = LinearSchedule(args.epsilon_first, args.epsilon_last, args.epsilon_steps)
        self.rng = {name: seed.generator(args.rng_seed, name) for name in ("actions", "replay")}
        self.counters = Counters()
        self.returns: deque[float] = deque(maxlen=100)
        self.sums = {"updates": 0.0, "loss": 0.0, "norm": 0.0}  # since the last row of metrics.csv
        self.clock = Clock(args.device)
        self.progress = Progress(f"{args.env}, seed {args.rng_seed}", total=args.total_steps)
        self.scalars = Scalars(args.out, wanted=False)
        self.calibration: dict[str, Any] | None = None  # how --threads auto came to its choice
        self.failed_checkpoints = 0
        self.seen = FrameStack(self.lanes.reset(), stack=self.stack)

    def publish(self) -> None:
        """Copy the master weights into the network that runs."""
        if self.compute is not self.online:
            with torch.no_grad():
                for mine, master in zip(self.compute.parameters(), self.online.parameters(), strict=True):
                    mine.copy_(master)

    def inputs(self, states: Tensor) -> Tensor:
        """States as the network wants them: on the device, frames with channels last, vectors in its dtype."""
        states = states.to(self.args.device)
        return states.contiguous(memory_format=torch.channels_last) if self.args.is_atari else states.to(self.dtype)

    def greedy(self, states: NDArray[Any]) -> NDArray[np.int64]:
        """(E, S, *O) -> (E,) the best action of the network that runs."""
        with torch.no_grad():
            best = self.compute(self.inputs(torch.from_numpy(states))).argmax(dim=1)
        return best.cpu().numpy()  # type: ignore[no-any-return]

    # ----------------------------------------------------------------------------------------------------------- Loop

    def tick(self) -> None:
        """One step of all lanes; the updates that are due run while the lanes play."""
        args, counters, before = self.args, self.counters, self.counters.env_step
        learning = before >= args.learning_starts
        with self.clock("acting"):
            if learning:
                epsilon = self.schedule.at(before)
                actions = epsilon_greedy(
                    self.greedy(self.seen.array), epsilon, self.lanes.simulator.actions, self.rng["actions"]
                )
            else:
                actions = random_actions(args.lanes, self.lanes.simulator.actions, self.rng["actions"])
        frames, starts = self.lanes.frames, self.lanes.starts
        self.lanes.send(actions)
        while learning and counters.optimizer_step < (before - args.learning_starts) // args.update_every + 1:
            self.update()
        with self.clock("environment"):
            step = self.lanes.receive()
        with self.clock("replay"):
            self.replay.add(
                frames,
                actions,
                step.rewards,
                step.terminated,
                step.truncated,
                life_lost=step.life_lost,
                valid=step.valid,
                starts=starts,
            )
            self.seen.push(step.next_frames, step.starts)
        counters.env_step += int(step.valid.sum())
        counters.frame = counters.env_step * self.lanes.simulator.frame_skip
        counters.episode += len(step.episodes)
        self.returns.extend(episode.episode_return for episode in step.episodes)
        for episode in step.episodes:
            self.scalars.write({"return/episode": episode.episode_return}, env_step=counters.env_step)
            _folder.append(
                args.out / _folder.EPISODES,
                {
                    "env_step": counters.env_step,
                    "lane": episode.lane,
                    "return": episode.episode_return,
                    "length": episode.length,
                    "truncated": int(episode.truncated),
                },
            )
        if learning and before // args.target_sync != counters.env_step // args.target_sync:
            self.target.sync()
            counters.target_sync += 1
        if before // args.log_every != counters.env_step // args.log_every:
            self.log()

    def update(self) -> None:
        """One batch out of the replay, and one step of Adam on it."""
        with self.clock("batch"):
            batch = self.replay.sample(self.args.batch, self.rng["replay"]).to(self.args.device)
        self.learn(batch)

    def learn(self, batch: Batch) -> None:
        """One step of Adam: clear, target, backward, clip, step."""
        args = self.args
        with self.clock("batch"):
            states, following = self.inputs(batch.state), self.inputs(batch.next_state)
        with self.clock("update"):
            with torch.no_grad():
                next_target = self.target.model(following).float()
                next_online = self.compute(following).float() if args.double else None
            target = td_target(batch.reward, batch.discount, next_target, next_online_q=next_online)
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.engine.backward(states, (batch.action, target))
            self.collect_gradients()
            norm = nn.utils.clip_grad_norm_(self.online.parameters(), args.clip)
            self.optimizer.step()
            self.publish()
        self.counters.optimizer_step += 1
        self.sums["updates"] += 1
        self.sums["loss"] += float(loss)
        self.sums["norm"] += float(norm)

    def collect_gradients(self) -> None:
        """Move the gradients of a bfloat16 copy to the master weights, in float32."""
        if self.compute is not self.online:
            for mine, master in zip(self.compute.parameters(), self.online.parameters(), strict=True):
                master.grad = None if mine.grad is None else mine.grad.float()
                mine.grad = None

    def log(self) -> None:
        """One row of metrics: means since the row before."""
        updates = self.sums["updates"] or math.nan
        status, norm = self.status(), self.sums["norm"] / updates
        row: dict[str, Any] = {
            **self.counters.state(),
            "epsilon": status.epsilon,
            "loss": status.loss,
            "gradient_norm": norm,
            "return_20": status.return_20,
            "return_100": status.return_100,
            "seconds": round(status.seconds, 3),
        }
        _folder.append(self.args.out / _folder.METRICS, row)
        shown = {"return/last_20": status.return_20, "return/last_100": status.return_100, "loss": status.loss}
        shown |= {"gradient_norm": norm, "epsilon": status.epsilon}
        self.scalars.write(shown, env_step=status.env_step)
        self.progress.log(status)
        self.sums = dict.fromkeys(self.sums, 0.0)

    def status(self) -> Status:
        """What is shown of the run; the loss is the mean since the last row of metrics."""
        counters, recent = self.counters, list(self.returns)
        return Status(
            env_step=counters.env_step,
            optimizer_step=counters.optimizer_step,
            episode=counters.episode,
            return_20=float(np.mean(recent[-20:])) if recent else math.nan,
            return_100=float(np.mean(recent)) if recent else math.nan,
            loss=self.sums["loss"] / (self.sums["updates"] or math.nan),
            epsilon=self.schedule.at(counters.env_step) if counters.env_step >= self.args.learning_starts else 1.0,
            seconds=self.clock.total(),
        )

    # ------------------------------------------------------------------------------------------------------ Checkpoint

    def save(self) -> None:
        """Write a checkpoint. A disk that is full costs this one, not the run."""
        with self.clock("checkpoint"):
            lanes, lane_facts = self.lanes.state()
            replay, replay_facts = self.replay.state()
            states, random_facts = seed.capture(self.rng)
            moments, optimizer_facts = optimizer_state.capture(self.optimizer, self.online.named_parameters())
            parts = {
                "model": self.online.state_dict(),
                "target": self.target.model.state_dict(),
                "optimizer": moments,
                "replay": replay,
                "random": states,
                "lanes": {name: torch.from_numpy(array) for name, array in lanes.items()},
                "seen": {"frames": torch.from_numpy(self.seen.state())},
            }
            facts = {
                "args": _folder.plain(self.args),
                "calibration": self.calibration,
                "counters": self.counters.state(),
                "returns": list(self.returns),
                "sums": self.sums,
                "lanes": lane_facts,
                "replay": replay_facts,
                "random": random_facts,
                "optimizer": optimizer_facts,
                "clock": self.clock.spent,
                "tables": _folder.sizes(self.args.out),
            }
            try:
                checkpoint.save(self.args.out / _folder.CHECKPOINTS, self.counters.env_step, parts, facts)
            except CheckpointError as error:
                self.failed_checkpoints += 1
                print(f"no checkpoint at {self.counters.env_step} steps, the run goes on: {error}", file=sys.stderr)

    def load(self, saved: checkpoint.Checkpoint) -> None:
        """Take over a checkpoint; the lanes play their logs again."""
        parts, facts = saved.parts, saved.facts
        self.online.load_state_dict(parts["model"])
        self.publish()
        self.target.model.load_state_dict(parts["target"])
        optimizer_state.restore(self.optimizer, self.online.named_parameters(), parts["optimizer"], facts["optimizer"])
        self.replay.load_state(parts["replay"], facts["replay"])
        self.lanes.load_state({name: tensor.numpy() for name, tensor in parts["lanes"].items()}, facts["lanes"])
        self.seen.load_state(parts["seen"]["frames"].numpy())
        seed.restore(parts["random"], facts["random"], self.rng)
        self.counters = Counters.from_state(facts["counters"])
        self.returns.extend(facts["returns"])
        self.sums = dict(facts["sums"])
        self.clock.spent = dict(facts["clock"])
        self.calibration = facts.get("calibration")
        _folder.cut_back(self.args.out, facts["tables"])


def calibrated(args: Args) -> Calibration:
    """How many threads make the update of such a run fastest, on a run of its own; every random state is put back."""
    states = seed.capture()
    scratch = Run(dataclasses.replace(args, lanes=1, replay=2 * (args.stack + args.n_step + 1), stagger=0))
    seen, rng = scratch.seen.array, np.random.default_rng(0)
    shape = (args.batch, *seen.shape[1:])
    state, following = (torch.from_numpy(rng.integers(0, 256, shape).astype(seen.dtype)) for _ in range(2))
    share = torch.from_numpy(rng.random(args.batch, dtype=np.float32))
    action, no = torch.zeros(args.batch, dtype=torch.int64), torch.zeros(args.batch, dtype=torch.bool)
    batch = Batch(state, action, share, following, share, action + 1, no, no).to(args.device)
    try:
        return calibrate(lambda: scratch.learn(batch), most=_machine.usable_cores())
    finally:
        scratch.lanes.close()
        seed.restore(*states)


# ------------------------------------------------------------------------------------------------------------ Evaluate


def score(run: Run) -> Evaluation:
    """Play the configured episodes in an environment of its own, seeds that training never used."""
    episodes = run.args.eval_episodes
    lanes_count = max(count for count in range(1, 11) if episodes % count == 0)
    lanes = environment(run.args, lanes=lanes_count, rng_seed=seed.derived(run.args.rng_seed, "evaluation"))
    with run.clock("evaluation"):
        scored = evaluate(
            run.greedy,
            lanes,
            episodes_per_lane=episodes // lanes_count,
            stack=run.stack,
            epsilon=run.args.eval_epsilon,
            rng_seed=run.args.rng_seed,
            film=run.args.pictures and run.args.is_atari,
        )
    lanes.close()
    run.counters.evaluated_episode += episodes
    run.scalars.write({"return/evaluation": scored.mean}, env_step=run.counters.env_step)
    return scored


# ---------------------------------------------------------------------------------------------------------------- Save


def config(run: Run) -> dict[str, Any]:
    """What is known when a run starts."""
    return {
        "recipe": "dqn_atari",
        "kind": "plumbing test: shows that the parts fit, says nothing about learning"
        if run.args.preset == "smoke"
        else "training run",
        "args": _folder.plain(run.args),
        "calibration": run.calibration,
        "versions": _machine.versions(("ale-py", "gymnasium")),
        "machine": _machine.hardware(run.args.device),
    }


def record(run: Run, scored: Evaluation, pictures: dict[str, str | None]) -> dict[str, Any]:
    """Everything that a reader needs to repeat or to doubt the run."""
    return {
        **config(run),
        "completed": run.counters.state(),
        "configured_maximum_steps": run.args.total_steps,
        "training_environment": run.lanes.settings,
        "returns_of_the_last_episodes": list(run.returns),
        "evaluation": {
            **scored.record(),
            "interval_95": _statistics.spread(scored.returns).interval_95,
            "interval": "Student's t over the episodes of one network; over training seeds it is another",
        },
        "parameters": sum(parameter.numel() for parameter in run.online.parameters()),
        "seconds": {part: round(spent, 3) for part, spent in run.clock.spent.items()},
        "process_peak_bytes": _machine.peak_bytes(),
        "framework_peak_bytes": _machine.device_peak_bytes(run.args.device),
        "failed_checkpoints": run.failed_checkpoints,
        "input_shape": [run.args.batch, *([run.stack] if run.stack > 1 else []), *run.replay.spec.observation_shape],
        "pictures": pictures,  # file -> why it is not there, or null
    }


def draw(run: Run, scored: Evaluation | None = None) -> dict[str, str | None]:
    """The pictures: file -> why it is not there. Those of an episode only once there is one."""
    args = run.args
    if not args.pictures:
        return _pictures.none("--no-pictures")
    title = f"dqn_atari: {args.env}, preset {args.preset}, {args.engine}, {args.precision}, seed {args.rng_seed}"
    loss = f"Huber loss x {args.seed_scale}, mean per row"
    episode = None
    if scored is not None and scored.film is not None:
        caption = f"{args.env}, evaluation episode of {scored.lengths[0]:,} steps, return {scored.returns[0]:g}"
        episode = _pictures.Episode(scored.film, run.lanes.simulator.frame_skip, caption)
    with run.clock("pictures"):
        return _pictures.draw(args.out, title=title, loss=loss, episode=episode)


def train(args: Args, saved: checkpoint.Checkpoint | None = None) -> dict[str, Any]:
    """A whole run. Returns the record that it also writes.

    Args:
        saved: where to go on from; without it the newest checkpoint of the run folder, if `args.resume` is on.

    Raises:
        UsageError: an option makes no sense, or the folder already holds a run and `resume` is off.
        CheckpointError: `resume` is on and no whole checkpoint is there.
        Stopped: SIGINT or SIGTERM came; the run is saved.
    """
    began = time.perf_counter()
    _machine.forget_peak()
    args.check()
    args = dataclasses.replace(args, env=_games.resolve(args.env))
    if not args.resume:
        _folder.check_new(args.out, "dqn_atari")
    elif saved is None and not _folder.begins_again(args.out):
        saved = checkpoint.load(args.out / _folder.CHECKPOINTS)
    found = calibrated(args) if args.threads == "auto" else None
    run = Run(dataclasses.replace(args, threads=found.chosen) if found else args)
    args.out.mkdir(parents=True, exist_ok=True)
    if saved is not None:
        for one in saved.rejected:
            print(f"passed over {one.path.name}: {one.reason}", file=sys.stderr)
        run.load(saved)
        saved.parts.clear()  # as much memory as the replay, and callers hold it as long as the run lasts
        print(f"resumed at {run.counters.env_step} steps from {saved.path.name}", flush=True)
    elif args.resume:
        _folder.cut_back(args.out, dict.fromkeys(_folder.TABLES, 0))
        print("no checkpoint was written yet: begins again with the same settings", flush=True)
    if found:
        run.calibration = found.record()
        print(f"calibrated: {found}", flush=True)
    run.scalars = Scalars(args.out / "tensorboard", wanted=args.tensorboard, env_step=run.counters.env_step)
    _folder.write_json(args.out / _folder.CONFIG, config(run))
    _folder.write_json(args.out / _folder.ENVIRONMENT, run.lanes.settings)
    run.clock.spent["setup"] = run.clock.spent.get("setup", 0.0) + time.perf_counter() - began
    try:
        loop(run)
        return finish(run)
    finally:
        run.scalars.close()
        run.lanes.close()


def loop(run: Run) -> None:
    """Tick until the configured maximum; checkpoints on the way, and one before a wish to stop is granted."""
    args = run.args
    with StopWish() as wish, run.progress:
        while run.counters.env_step < args.total_steps:
            before = run.counters.env_step
            run.tick()
            run.progress.tick(run.counters.env_step, run.status)
            due = before // args.checkpoint_every != run.counters.env_step // args.checkpoint_every
            if due or wish.signal_number is not None:
                run.save()
                draw(run)
            wish.raise_if_any()


def finish(run: Run) -> dict[str, Any]:
    """Evaluate, and write what a finished run leaves."""
    args = run.args
    print(f"evaluates {args.eval_episodes} episodes at {run.counters.env_step} steps", flush=True)
    scored = score(run)
    save_file(
        {name: tensor.contiguous() for name, tensor in run.online.state_dict().items()},
        args.out / "final.safetensors",
        # One entry: several come in an order of chance, and equal runs are to end in equal files.
        metadata={"dqn_atari": json.dumps({"env": args.env, "env_step": run.counters.env_step}, sort_keys=True)},
    )
    told = record(run, scored, draw(run, scored))
    _folder.write_json(args.out / _folder.RECORD, told)
    print(f"{told['kind']}\nreturn {_statistics.shown(scored.returns)} episodes -> {args.out}", flush=True)
    return told


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """The command line. Returns the exit code, see `_main.main`."""
    return _main.main(
        Args,
        PRESETS,
        train,
        argv,
        name="dqn_atari",
        recipe=RECIPE,
        description=__doc__ or "",
        free=("total_steps", "eval_episodes"),
        prog=prog,
    )


if __name__ == "__main__":
    sys.exit(main())
