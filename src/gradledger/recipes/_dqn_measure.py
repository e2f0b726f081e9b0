"""A finished DQN run as a trial: what its folder says in numbers, and states that its network meets, to be asked again.

Axis letters: E lanes, N saved states, A actions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger import rl
from gradledger.core.errors import UsageError
from gradledger.evidence.trial import Outcome
from gradledger.recipes import _dqn_answer, _dqn_state, _folder, dqn_atari
from gradledger.rl.explore import random_actions
from gradledger.train import seed

WEIGHTS = "final.safetensors"
STATES, EVERY = 256, 7  # saved states of a run; every so many steps one is a candidate
LANES, RULE_LANES = 2, 10  # episodes that are played: one a lane
GAMES = 20  # first and last training games that are compared


@dataclass(frozen=True)
class Found:
    """A run folder. args: as its configuration has them; finished: it left a record."""

    folder: Path
    args: Mapping[str, Any]

    @property
    def rng_seed(self) -> int:
        """Of the run."""
        return int(self.args["rng_seed"])

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return (self.folder / _folder.RECORD).exists() and (self.folder / WEIGHTS).exists()


def runs(folder: Path) -> list[Found]:
    """The runs of a folder, by seed: it is one itself, or has them one level below.

    Raises:
        UsageError: there is none.
    """
    places = sorted({path.parent for pattern in ("", "*/") for path in folder.glob(f"{pattern}{_folder.CONFIG}")})
    found = [Found(place, _folder.read_config(place).get("args", {})) for place in places]
    found = [one for one in found if "rng_seed" in one.args and "env" in one.args]
    if not found:
        raise UsageError(
            got=f"no run in {folder}",
            wanted="folders that `gradledger run dqn_atari` left: they hold config.json",
            where="gradledger run dqn_evidence",
            next_step="check --runs",
        )
    return sorted(found, key=lambda one: (one.rng_seed, str(one.folder)))


def measure(found: Found, *, states: int = STATES) -> Outcome:
    """Quantities of a finished run, with the states it is asked again.

    Raises:
        UsageError: the run did not come to its end.
    """
    if not found.finished:
        raise UsageError(
            got=f"no {_folder.RECORD} in {found.folder}: the run has not ended",
            wanted="a run that came to its end",
            where="gradledger run dqn_evidence",
            next_step=f"gradledger run dqn_atari --resume {found.folder}, then --retry-failed here",
        )
    record = _folder.read_json(found.folder / _folder.RECORD)
    args = dqn_atari.Args(**{**found.args, "out": found.folder})
    random, nothing = rules(_of_environment(args))
    returns = np.asarray(record["evaluation"]["returns"], dtype=np.float64)
    player = _dqn_answer.load(found.folder / WEIGHTS, found.args, dtype=_dtype(args))
    played = play(args, player.greedy, states=states)
    exact = _dqn_answer.load(found.folder / WEIGHTS, found.args, dtype=_dtype(args), precision="fp32")
    # The saved answers are those of the saved weights, in float32: what another machine is asked to say again.
    values = exact.values(played["state"])
    acts = player.greedy(played["state"])
    taken = values[np.arange(len(acts)), played["action"]].astype(np.float64)
    quantities = {
        "evaluation": float(returns.mean()),
        "evaluation_lowest": float(returns.min()),
        "above_random": float((returns - random.mean()).mean()),
        "above_no_action": float((returns - nothing.mean()).mean()),
        **counted(record),
        **curves(found.folder),
        "value_bias": float((taken - played["discounted"]).mean()),
        "value_error": float(np.abs(taken - played["discounted"]).mean()),
        "acts_as_float32": float((acts == values.argmax(axis=1)).mean()),
        "seconds": float(sum(record["seconds"].values())),
    }
    arrays = {
        **played,
        "value": values,
        "value_taken": taken,
        "greedy": values.argmax(axis=1),
        "evaluation_return": returns,
        "random_mean": np.full(len(returns), random.mean()),
        "random_return": random,
        "no_action_return": nothing,
    }
    return Outcome(quantities, arrays)


def counted(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the counters say against what the settings ask for."""
    args, done = record["args"], record["completed"]
    due = (done["env_step"] - args["learning_starts"]) / args["update_every"]
    passed = done["env_step"] // args["target_sync"] - args["learning_starts"] // args["target_sync"]
    return {
        "env_steps_missing": max(0, args["total_steps"] - done["env_step"]),
        "updates_per_due": done["optimizer_step"] / due,
        "syncs_off": done["target_sync"] - passed,
        "failed_checkpoints": record["failed_checkpoints"],
    }


def curves(folder: Path) -> dict[str, Any]:
    """Of the tables that grow during a run: trajectories by row of metrics.csv, and means of training games."""
    rows, games = _folder.rows(folder / _folder.METRICS), _folder.rows(folder / _folder.EPISODES)
    learning = [row for row in rows if row["optimizer_step"] > 0]
    bad = sum(not (math.isfinite(row["loss"]) and math.isfinite(row["gradient_norm"])) for row in learning)
    norms = [row["gradient_norm"] for row in learning if math.isfinite(row["gradient_norm"])]
    returns = [row["return"] for row in games]
    found: dict[str, Any] = {
        "rows_not_finite": bad,
        "epsilon": [row["epsilon"] for row in rows],
        "loss": [row["loss"] for row in learning],
        "gradient_norm": [row["gradient_norm"] for row in learning],
        "return_20": [row["return_20"] for row in rows if math.isfinite(row["return_20"])],
        "training_games": len(returns),
    }
    if norms:
        found["largest_gradient_norm"] = max(norms)
    if returns:
        found["first_games"] = float(np.mean(returns[:GAMES]))
        found["last_games"] = float(np.mean(returns[-GAMES:]))
        found["improvement"] = found["last_games"] - found["first_games"]
    return found


# --------------------------------------------------------------------------------------------------------------- play


def play(args: dqn_atari.Args, policy: Callable[[NDArray[Any]], NDArray[Any]], *, states: int) -> dict[str, Any]:
    """Whole episodes of the greedy policy, in an environment of its own, and N states of them at equal distances.

    Returns arrays: state (N, S, *O); action (N,); discounted (N,), what the rewards from there on came to, clipped and
    discounted as in training; episode (N,), at (N,) its step and length (N,) of its episode.
    """
    lanes = _dqn_state.environment(args, lanes=LANES, rng_seed=seed.derived(args.rng_seed, "evidence"))
    seen = rl.FrameStack(lanes.reset(), stack=args.stack if args.is_atari else 1)
    kept: list[tuple[int, int, NDArray[Any], int]] = []  # lane, step, state, action
    rewards: list[list[float]] = [[] for _ in range(LANES)]
    over = [False] * LANES
    while not all(over):
        actions = policy(seen.array)
        for lane in range(LANES):
            if not over[lane] and len(rewards[lane]) % EVERY == 0:
                kept.append((lane, len(rewards[lane]), seen.array[lane].copy(), int(actions[lane])))
        step = lanes.step(actions)
        seen.push(step.next_frames, step.starts)
        for lane in range(LANES):
            if not over[lane]:
                rewards[lane].append(float(step.rewards[lane]))
        for episode in step.episodes:
            over[episode.lane] = True
    lanes.close()
    to_come = [_discounted(row, args) for row in rewards]
    chosen = [kept[at] for at in np.unique(np.linspace(0, len(kept) - 1, min(states, len(kept))).round().astype(int))]
    state = np.stack([one[2] for one in chosen])
    return {
        "state": state[:, None] if args.is_atari and args.stack == 1 else state,  # S is there also where it is 1
        "action": np.array([one[3] for one in chosen]),
        "discounted": np.array([to_come[lane][at] for lane, at, _, _ in chosen]),
        "episode": np.array([one[0] for one in chosen]),
        "at": np.array([one[1] for one in chosen]),
        "length": np.array([len(rewards[one[0]]) for one in chosen]),
    }


def _discounted(rewards: list[float], args: dqn_atari.Args) -> NDArray[np.float64]:
    """(T,) what came from each step on."""
    found = np.zeros(len(rewards) + 1)
    for at in range(len(rewards) - 1, -1, -1):
        reward = rewards[at]
        if args.reward_clip is not None:
            reward = max(-args.reward_clip, min(args.reward_clip, reward))
        found[at] = reward + args.gamma * found[at + 1]
    return found[:-1]


@functools.lru_cache(maxsize=8)
def rules(args: dqn_atari.Args) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns of 10 episodes each of random actions, and of action 0 (in Atari games: none); seeds of their own."""
    found = []
    for name in ("random", "nothing"):
        rng = seed.generator(0, f"evidence, {name}")
        lanes = _dqn_state.environment(args, lanes=RULE_LANES, rng_seed=seed.derived(0, f"evidence, {name}"))
        actions = lanes.simulator.actions

        def policy(states: NDArray[Any], name: str = name, rng: Any = rng, actions: int = actions) -> NDArray[Any]:
            if name == "random":
                return random_actions(len(states), actions, rng)
            return np.zeros(len(states), dtype=np.int64)

        stack = args.stack if args.is_atari else 1
        found.append(rl.evaluate(policy, lanes, episodes_per_lane=1, stack=stack, epsilon=0.0))
        lanes.close()
    return np.array(found[0].returns), np.array(found[1].returns)


def _of_environment(args: dqn_atari.Args) -> dqn_atari.Args:
    """What decides the environment alone: so that the rules are played once for all seeds."""
    return dqn_atari.Args(
        env=args.env, sticky=args.sticky, max_episode_steps=args.max_episode_steps, stack=args.stack, out=Path()
    )


def _dtype(args: dqn_atari.Args) -> str:
    if args.is_atari:
        return "uint8"
    lanes = _dqn_state.environment(args, lanes=1, rng_seed=0)
    lanes.close()
    return str(lanes.simulator.dtype)


def anew(config: Mapping[str, Any], rng_seed: int, out: Path) -> Outcome:
    """Train the run of an arm from the start, into `out`, and measure it."""
    preset = dqn_atari.PRESETS[config.get("preset", "seed")]
    args = dqn_atari.Args(**{**preset, **config, "rng_seed": rng_seed, "out": out})
    dqn_atari.train(args)
    (found,) = runs(out)
    return measure(found)
