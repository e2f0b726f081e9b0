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

import math
import os
import sys
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
from torch import Tensor, nn

from gradledger import rl
from gradledger.recipes import (
    _denormal,
    _dqn_begin,
    _dqn_score,
    _dqn_state,
    _dqn_told,
    _folder,
    _games,
    _main,
    _statistics,
)
from gradledger.recipes._clock import Clock
from gradledger.recipes._command_line import option
from gradledger.recipes._dqn_presets import PRESETS as PRESETS
from gradledger.recipes._progress import Progress
from gradledger.recipes._registry import Recipe
from gradledger.recipes._stop import StopWish
from gradledger.recipes._tensorboard import Scalars
from gradledger.rl.explore import random_actions
from gradledger.sweep import Sweep
from gradledger.train import GradientEngine, PlainBackward, Shadow, checkpoint, seed

RECIPE = Recipe(
    presets={
        "smoke": "3,000 steps, about a minute: a plumbing test that shows that the parts fit, no agent",
        "seed": "400,000 steps, one update every 4, plain DQN: the setting of the specification",
        "pong-fast": "double, 3-step returns, one update a step: meant to learn Pong in few steps",
        "pong-hour": "He's start, 5-step returns, priorities, falling rate: Pong in about an hour of one core",
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
    precision: Literal["fp32", "bf16"] = option("fp32", "bf16: a copy in bfloat16 computes all but the last layer")
    device: str = option("cpu", "torch device of the networks")
    threads: int | Literal["auto"] = option(1, "torch threads; auto: timed on the update for two seconds, and recorded")
    flush_denormal: bool = option(True, "numbers below 1.2e-38 count as 0: Intel's processors are slow on them")

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
    dueling: bool = option(False, "a head of two streams: value of the state, advantage of each action")
    initial: rl.Initial = option("torch", "how weights start; he: states differ as much after each layer as before")
    priority: float = option(0.0, "exponent of prioritised replay, such as 0.6; 0: uniform draws")
    priority_correction: float = option(0.5, "exponent of its importance weights, 0 to 1")
    shift: int = option(0, "each drawn state is moved by up to so many pixels, such as 4 (Atari); 0: as it was")
    target_sync: int = option(2_000, "steps between copies into the target network")
    learning_rate: float = option(1e-4, "learning rate of Adam")
    learning_rate_last: float | None = option(None, "what it falls to on a line; none: it stays")
    learning_rate_steps: int = option(260_000, "steps from the start to the end of that line")
    adam_epsilon: float = option(1e-8, "epsilon of Adam")
    clip: float = option(10.0, "the global gradient norm is clipped at this")
    seed_scale: Literal[1, 2] = option(2, "factor on the Huber loss and so on every gradient")

    epsilon_first: float = option(1.0, "exploration at the start")
    epsilon_last: float = option(0.02, "exploration after epsilon_steps")
    epsilon_steps: int = option(40_000, "steps of the line between the two")

    eval_episodes: int = option(30, "episodes of the last evaluation")
    eval_epsilon: float = option(0.01, "exploration during evaluation")
    eval_sticky: float | None = option(None, "a second evaluation under this probability of a repeated action (Atari)")
    log_every: int = option(2_000, "steps between rows of metrics.csv")
    checkpoint_every: int = option(50_000, "steps between checkpoints")
    pictures: bool = option(True, "draw curves.png, film.gif and strip.png")
    tensorboard: bool | None = option(None, "scalars under OUT/tensorboard; auto: where TensorBoard is installed")

    def check(self) -> None:
        """Refuse what cannot run, by name."""
        _dqn_begin.check(self)

    @property
    def is_atari(self) -> bool:
        """Whether it is a ROM of ale-py, seen as frames, or a gymnasium environment, seen as vectors."""
        return _games.is_rom(self.env)


# -------------------------------------------------------------------------------------------------------------- Blocks


def network(args: Args, simulator: rl.Simulator, dtype: torch.dtype) -> nn.Sequential:
    """The Q-network as a chain of blocks; convolutions keep their channels last in memory."""
    chosen: Any = {"dueling": args.dueling, "initial": args.initial, "dtype": dtype}
    if args.is_atari:
        net = rl.atari_q_network(simulator.actions, stack=args.stack, **chosen)
        for parameter in net.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        return net.to(args.device)
    return rl.mlp_q_network(math.prod(simulator.observation_shape), simulator.actions, **chosen).to(args.device)


def loss_of(args: Args, errors: list[Tensor]) -> Any:
    """(q, (action, target, weight)) -> scalar, the mean over the batch; in float32 whatever q is.

    With prioritised replay it leaves in `errors` how far off each value was; without, weights are not looked at.
    """

    def loss(q: Tensor, wanted: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        action, target, weight = wanted
        if not args.priority:
            return rl.td_loss(q.float(), action, target, scale=args.seed_scale)
        errors[:] = [rl.td_error(q.float(), action, target)]
        return rl.td_loss(q.float(), action, target, scale=args.seed_scale, weight=weight)

    return loss


# --------------------------------------------------------------------------------------------------------------- Setup


class Run:
    """A run between two ticks: everything that a checkpoint holds, and what can be built again without one."""

    def __init__(self, args: Args) -> None:
        _dqn_begin.settle(args)
        self.args = args
        self.lanes = _dqn_state.environment(args, lanes=args.lanes, rng_seed=args.rng_seed, stagger=args.stagger)
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
        self.errors: list[Tensor] = []  # of the last batch, see loss_of
        make = Sweep if args.engine == "sweep" else PlainBackward
        self.engine: GradientEngine = make(self.compute, loss_of(args, self.errors))
        self.replay = _dqn_state.replay(args, simulator, stack=self.stack)
        self.schedule, self.rates = _dqn_begin.schedules(args)
        streams = ("actions", "replay", "shift") if args.shift else ("actions", "replay")
        self.rng = {name: seed.generator(args.rng_seed, name) for name in streams}
        self.counters = rl.Counters()
        self.returns: deque[float] = deque(maxlen=100)
        self.sums = {"updates": 0.0, "loss": 0.0, "norm": 0.0}  # since the last row of metrics.csv
        self.clock = Clock(args.device)
        self.progress = Progress(f"{args.env}, seed {args.rng_seed}", total=args.total_steps)
        self.scalars = Scalars(args.out, wanted=False)
        self.calibration: dict[str, Any] | None = None  # how --threads auto came to its choice
        self.failed_checkpoints = 0
        self.seen = rl.FrameStack(self.lanes.reset(), stack=self.stack)

    def publish(self) -> None:
        """Copy the master weights into the network that runs."""
        if self.compute is not self.online:
            with torch.no_grad():
                for mine, master in zip(self.compute.parameters(), self.online.parameters(), strict=True):
                    mine.copy_(master)

    def inputs(self, states: Tensor) -> Tensor:
        """States as the network wants them: on the device, frames with channels last, vectors in its dtype."""
        states = states.to(self.args.device)
        if not self.args.is_atari:
            return states.to(self.dtype)
        states = states.unsqueeze(1) if self.stack == 1 else states  # one frame alone comes without an axis for it
        return rl.channels_last(states)

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
                actions = rl.epsilon_greedy(
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
            _dqn_state.remember(self, frames, starts, actions, step)
        counters.env_step += int(step.valid.sum())
        counters.frame = counters.env_step * self.lanes.simulator.frame_skip
        counters.episode += len(step.episodes)
        self.returns.extend(episode.episode_return for episode in step.episodes)
        _dqn_told.episodes(self, step.episodes)
        if learning and before // args.target_sync != counters.env_step // args.target_sync:
            self.target.sync()
            counters.target_sync += 1
        if before // args.log_every != counters.env_step // args.log_every:
            _dqn_told.metrics(self)

    def update(self) -> None:
        """One batch out of the replay, and one step of Adam on it."""
        args, rng = self.args, self.rng["replay"]
        with self.clock("batch"):
            batch = self.replay.sample(args.batch, rng, correction=args.priority_correction)
            if args.shift:
                batch = batch.shifted(args.shift, self.rng["shift"])
            batch = batch.to(args.device)
        self.learn(batch)
        if args.priority:
            self.replay.prioritise(batch.slot, *self.errors)

    def learn(self, batch: rl.Batch) -> None:
        """One step of Adam: clear, target, backward, clip, step."""
        args = self.args
        with self.clock("batch"):
            states, following = self.inputs(batch.state), self.inputs(batch.next_state)
        with self.clock("update"):
            with torch.no_grad():
                next_target = self.target.model(following).float()
                next_online = self.compute(following).float() if args.double else None
            target = rl.td_target(batch.reward, batch.discount, next_target, next_online_q=next_online)
            self.optimizer.param_groups[0]["lr"] = self.rates.at(self.counters.env_step)
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.engine.backward(states, (batch.action, target, batch.weight))
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


# ---------------------------------------------------------------------------------------------------------------- Save


def train(args: Args, saved: checkpoint.Checkpoint | None = None) -> dict[str, Any]:
    """A whole run. Returns the record that it also writes.

    Args:
        saved: where to go on from; without it the newest checkpoint of the run folder, if `args.resume` is on.

    Raises:
        UsageError: an option makes no sense, or the folder already holds a run and `resume` is off.
        CheckpointError: `resume` is on and no whole checkpoint is there.
        Stopped: SIGINT or SIGTERM came; the run is saved.
    """
    with _denormal.flushing(args.flush_denormal):
        run = _dqn_begin.begin(Run, args, saved)
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
            run.progress.tick(run.counters.env_step, lambda: _dqn_told.status(run))
            due = before // args.checkpoint_every != run.counters.env_step // args.checkpoint_every
            if due or wish.signal_number is not None:
                _dqn_state.save(run)
                _dqn_told.pictures(run)
            wish.raise_if_any()


def finish(run: Run) -> dict[str, Any]:
    """Evaluate, and write what a finished run leaves."""
    print(f"evaluates {run.args.eval_episodes} episodes at {run.counters.env_step} steps", flush=True)
    scored = _dqn_score.score(run)
    sticky = None if run.args.eval_sticky is None else _dqn_score.score(run, sticky=run.args.eval_sticky)
    _dqn_state.leave(run)
    told = _dqn_told.record(run, scored, sticky, _dqn_told.pictures(run, scored))
    _folder.write_json(run.args.out / _folder.RECORD, told)
    print(f"{told['kind']}\nreturn {_statistics.shown(scored.returns)} episodes -> {run.args.out}", flush=True)
    if sticky is not None:
        print(f"return {_statistics.shown(sticky.returns)} episodes, sticky {run.args.eval_sticky:g}", flush=True)
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
        free=("total_steps", "eval_episodes", "eval_sticky"),
        prog=prog,
    )


if __name__ == "__main__":
    sys.exit(main())
