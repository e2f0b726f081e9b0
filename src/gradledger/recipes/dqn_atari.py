"""Deep Q-learning on Atari, its network trained by the explicit reverse sweep or by plain autograd.

    python -m gradledger.recipes.dqn_atari --preset smoke --out runs/smoke
    python -m gradledger.recipes.dqn_atari --preset pong-fast --rng-seed 1 --out runs/pong-1
    python -m gradledger.recipes.dqn_atari --resume --out runs/pong-1

Presets: `seed` (400,000 environment steps, one update every 4), `smoke` (3,000 steps: a plumbing test, not an agent),
`pong-fast` (double, 3-step returns, one update a step). Any ALE game by its ROM's name (`--env breakout`); a name
with a version (`--env CartPole-v1`) is a gymnasium environment and gets a small network over vectors.

The run folder holds `record.json` (settings, versions, counters, times, memory, evaluation), `metrics.csv`,
`episodes.csv`, `final.safetensors` and `checkpoints/`. A run that was killed goes on with `--resume`, and ends with the
same bits as one that was not.

Differences from Mnih et al. 2015: Adam; Double DQN and n-step returns as options; Huber loss times 2 (`--seed-scale`);
global gradient norm clipped at 10; several environments in step; an episode is a whole game, not a life; no sticky
actions unless asked. Not in the source and chosen here: update frequency, exploration schedule, Adam's epsilon, and
that the target network is synced by environment steps.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

from gradledger import __version__
from gradledger.core.errors import UsageError
from gradledger.recipes._command_line import option, parse
from gradledger.rl import (
    AtariSimulator,
    AtariSpec,
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

# ---------------------------------------------------------------------------------------------------------------- Args


@dataclass(frozen=True)
class Args:
    """Everything that decides a run. Steps are environment steps, over all lanes, unless they say otherwise."""

    preset: str = "seed"
    env: str = option("pong", "ROM of ale-py, or a gymnasium id such as CartPole-v1")
    out: Path = field(default=Path("runs/dqn"), metadata={"help": "run folder"})
    resume: bool = option(False, "go on from the newest whole checkpoint in the run folder")
    rng_seed: int = option(1, "decides weights, environments, exploration and batches")
    engine: Literal["sweep", "autograd"] = option("sweep", "what computes the gradients; equal weights either way")
    precision: Literal["fp32", "bf16"] = option("fp32", "bf16: compute copy in bfloat16, weights and Adam in float32")
    device: str = option("cpu", "torch device of the networks")
    threads: int = option(1, "torch threads")

    total_steps: int = option(400_000, "configured maximum")
    lanes: int = option(8, "environments in step")
    sticky: float = option(0.0, "probability that ALE repeats the last action")
    max_episode_steps: int = option(27_000, "an episode is truncated after so many of its steps")
    stagger: int = option(0, "the last lane plays about so many random, uncounted steps first, the others less")
    stack: int = option(4, "frames in a state (Atari)")

    replay: int = option(50_000, "capacity of the replay, in frames of all lanes")
    learning_starts: int = option(10_000, "steps before the first update")
    update_every: int = option(4, "steps per update")
    batch: int = option(32, "transitions in an update")
    n_step: int = option(1, "longest window of a return")
    gamma: float = option(0.99, "discount per step")
    reward_clip: float | None = option(1.0, "rewards are clamped to +- this when drawn; none: raw")
    life_loss_terminates: bool = option(False, "a lost life ends the return, not the game")
    double: bool = option(False, "the online network selects, the target network evaluates")
    target_sync: int = option(2_000, "steps between copies into the target network")
    learning_rate: float = option(1e-4, "of Adam")
    adam_epsilon: float = option(1e-8, "of Adam")
    clip: float = option(10.0, "global gradient norm")
    seed_scale: Literal[1, 2] = option(2, "factor on the Huber loss, see rl.td_loss")

    epsilon_first: float = option(1.0, "exploration at the start")
    epsilon_last: float = option(0.02, "exploration after epsilon_steps")
    epsilon_steps: int = option(40_000, "steps of the line between the two")

    eval_episodes: int = option(30, "episodes of the last evaluation")
    eval_epsilon: float = option(0.01, "exploration during evaluation")
    log_every: int = option(2_000, "steps between rows of metrics.csv")
    checkpoint_every: int = option(50_000, "steps between checkpoints")

    def check(self) -> None:
        """Refuse what cannot run, by name."""
        positive = (
            "total_steps lanes max_episode_steps stack replay update_every batch n_step target_sync epsilon_steps "
            "eval_episodes log_every checkpoint_every threads learning_starts"
        )
        wrong = [f"{name}={getattr(self, name)}" for name in positive.split() if getattr(self, name) < 1]
        wrong += [f"{name}={value}" for name in ("learning_rate", "clip") if not (value := getattr(self, name)) > 0]
        if wrong:
            raise UsageError(
                got=", ".join(wrong),
                wanted="numbers above 0",
                where="recipes.dqn_atari.Args",
                next_step="correct these options, see --help",
            )

    @property
    def is_atari(self) -> bool:
        """A ROM's name has no version."""
        return "-v" not in self.env


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
            self.write(
                "episodes.csv",
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
        """One step of Adam on one batch: clear, target, backward, clip, step."""
        args = self.args
        with self.clock("batch"):
            batch = self.replay.sample(args.batch, self.rng["replay"]).to(args.device)
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
        recent = list(self.returns)
        counters = self.counters
        row: dict[str, Any] = {
            **counters.state(),
            "epsilon": self.schedule.at(counters.env_step) if counters.env_step >= self.args.learning_starts else 1.0,
            "loss": self.sums["loss"] / updates,
            "gradient_norm": self.sums["norm"] / updates,
            "return_20": float(np.mean(recent[-20:])) if recent else math.nan,
            "return_100": float(np.mean(recent)) if recent else math.nan,
            "seconds": round(self.clock.total(), 3),
        }
        self.write("metrics.csv", row)
        print(
            f"{counters.env_step:8d} steps  {counters.optimizer_step:7d} updates  {counters.episode:5d} episodes  "
            f"return of the last 20: {row['return_20']:7.2f}  loss {row['loss']:.4f}  {row['seconds']:8.1f} s",
            flush=True,
        )
        self.sums = dict.fromkeys(self.sums, 0.0)

    def write(self, name: str, row: dict[str, Any]) -> None:
        """Append a row to a table of the run folder."""
        path = self.args.out / name
        fresh = not path.exists() or not path.stat().st_size
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(row)

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
                "args": plain(self.args),
                "counters": self.counters.state(),
                "returns": list(self.returns),
                "sums": self.sums,
                "lanes": lane_facts,
                "replay": replay_facts,
                "random": random_facts,
                "optimizer": optimizer_facts,
                "clock": self.clock.spent,
                "tables": {name: on_disk(self.args.out / name) for name in ("metrics.csv", "episodes.csv")},
            }
            try:
                checkpoint.save(self.args.out / "checkpoints", self.counters.env_step, parts, facts)
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
        for name, size in facts["tables"].items():  # rows written after the checkpoint come again
            path = self.args.out / name
            if path.exists():
                os.truncate(path, size)


def on_disk(path: Path) -> int:
    """Bytes of a table, all of them safe from a power cut; 0 where there is none."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


class Clock:
    """Wall seconds by part, the device's queue emptied at each border."""

    def __init__(self, device: str) -> None:
        self.spent: dict[str, float] = {}
        self._device = torch.device(device)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        self.synchronise()
        began = time.perf_counter()
        yield
        self.synchronise()
        self.spent[part] = self.spent.get(part, 0.0) + time.perf_counter() - began

    def total(self) -> float:
        """Seconds of all parts together."""
        return sum(self.spent.values())

    def synchronise(self) -> None:
        """Wait for the device; the CPU is never behind."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()


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
        )
    lanes.close()
    run.counters.evaluated_episode += episodes
    return scored


# ---------------------------------------------------------------------------------------------------------------- Save


def record(run: Run, scored: Evaluation) -> dict[str, Any]:
    """Everything that a reader needs to repeat or to doubt the run."""
    memory = torch.cuda.max_memory_allocated() if torch.device(run.args.device).type == "cuda" else None
    return {
        "recipe": "dqn_atari",
        "kind": "plumbing test: shows that the parts fit, says nothing about learning"
        if run.args.preset == "smoke"
        else "training run",
        "args": plain(run.args),
        "completed": run.counters.state(),
        "configured_maximum_steps": run.args.total_steps,
        "training_environment": run.lanes.settings,
        "returns_of_the_last_episodes": list(run.returns),
        "evaluation": scored.record(),
        "parameters": sum(parameter.numel() for parameter in run.online.parameters()),
        "seconds": {part: round(spent, 3) for part, spent in run.clock.spent.items()},
        "process_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "framework_peak_bytes": memory,  # None: torch counts no peak on the CPU
        "failed_checkpoints": run.failed_checkpoints,
        "versions": {
            "gradledger": __version__,
            "revision": revision(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "machine": {"system": platform.platform(), "threads": torch.get_num_threads(), "device": run.args.device},
        "input_shape": [run.args.batch, *([run.stack] if run.stack > 1 else []), *run.replay.spec.observation_shape],
    }


def revision() -> str | None:
    """The commit of the source, with "+" where it was changed since; None outside of a checkout."""
    here = Path(__file__).parent
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()


def plain(args: Args) -> dict[str, Any]:
    """The arguments, ready for JSON."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in dataclasses.asdict(args).items()}


def train(args: Args) -> dict[str, Any]:
    """A whole run. Returns the record that it also writes.

    Raises:
        UsageError: an option makes no sense, or the folder already holds a run and `resume` is off.
        CheckpointError: `resume` is on and no whole checkpoint is there.
    """
    args.check()
    if not args.resume and (args.out / "metrics.csv").exists():
        raise UsageError(
            got=f"a folder with a run in it: {args.out}",
            wanted="a new folder, or a run to resume",
            where="recipes.dqn_atari",
            next_step="choose another --out, or add --resume",
        )
    began = time.perf_counter()
    saved = checkpoint.load(args.out / "checkpoints") if args.resume else None
    args.out.mkdir(parents=True, exist_ok=True)
    run = Run(args)
    if saved is not None:
        for one in saved.rejected:
            print(f"passed over {one.path.name}: {one.reason}", file=sys.stderr)
        run.load(saved)
        print(f"resumed at {run.counters.env_step} steps from {saved.path.name}", flush=True)
    run.clock.spent["setup"] = run.clock.spent.get("setup", 0.0) + time.perf_counter() - began
    while run.counters.env_step < args.total_steps:
        before = run.counters.env_step
        run.tick()
        if before // args.checkpoint_every != run.counters.env_step // args.checkpoint_every:
            run.save()
    scored = score(run)
    save_file(
        {name: tensor.contiguous() for name, tensor in run.online.state_dict().items()},
        args.out / "final.safetensors",
        # One entry: several come in an order of chance, and equal runs are to end in equal files.
        metadata={"dqn_atari": json.dumps({"env": args.env, "env_step": run.counters.env_step}, sort_keys=True)},
    )
    told = record(run, scored)
    partial = args.out / "record.json.tmp"
    partial.write_text(json.dumps(told, indent=1, allow_nan=False), encoding="utf-8")
    partial.replace(args.out / "record.json")
    run.lanes.close()
    shown = f"{scored.mean:.2f} ± {scored.deviation:.2f} over {len(scored.returns)} episodes"
    print(f"{told['kind']}: {shown} -> {args.out}")
    return told


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; status 0, or 2 with the reason on stderr."""
    args, given = parse(Args, PRESETS, argv, description=__doc__ or "", default_preset="seed")
    try:
        if args.resume:
            args = resumed(args, given)
        train(args)
    except (UsageError, CheckpointError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def resumed(args: Args, given: dict[str, Any]) -> Args:
    """The arguments of the saved run; what was given beside --resume must not contradict them, but for a longer run."""
    saved = checkpoint.load(args.out / "checkpoints").facts["args"]
    free = {"out", "resume", "total_steps", "threads", "checkpoint_every", "eval_episodes"}
    wrong = {
        name: value
        for name, value in given.items()
        if name not in free and saved.get(name) != (str(value) if isinstance(value, Path) else value)
    }
    if wrong:
        raise UsageError(
            got=", ".join(f"{name}={value}" for name, value in wrong.items()),
            wanted=", ".join(f"{name}={saved.get(name)}" for name in wrong),
            where=f"recipes.dqn_atari, --resume in {args.out}",
            next_step="leave these options out, or start a new run in another folder",
        )
    return Args(**{**saved, **{name: given[name] for name in free & given.keys()}, "out": args.out, "resume": True})


if __name__ == "__main__":
    sys.exit(main())
