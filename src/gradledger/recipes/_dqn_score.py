"""What a DQN run's network plays for a score: games that training never saw."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gradledger import rl
from gradledger.recipes import _dqn_state
from gradledger.train import seed

if TYPE_CHECKING:
    from gradledger.recipes.dqn_atari import Run


def score(run: Run, *, sticky: float | None = None) -> rl.Evaluation:
    """Play the configured episodes in an environment of its own, with seeds that training never used.

    Args:
        sticky: another probability that ALE repeats the last action than the one the run learns under. Such an
            evaluation is the second of a run: it is not filmed, and its scalar has a name of its own.
    """
    args, episodes = run.args, run.args.eval_episodes
    lanes_count = max(count for count in range(1, 11) if episodes % count == 0)
    played = args if sticky is None else replace(args, sticky=sticky)
    name = "evaluation" if sticky is None else "evaluation_sticky"
    lanes = _dqn_state.environment(played, lanes=lanes_count, rng_seed=seed.derived(args.rng_seed, "evaluation"))
    with run.clock("evaluation"):
        scored = rl.evaluate(
            run.greedy,
            lanes,
            episodes_per_lane=episodes // lanes_count,
            stack=run.stack,
            epsilon=args.eval_epsilon,
            rng_seed=args.rng_seed,
            film=sticky is None and args.pictures and args.is_atari,
        )
    lanes.close()
    run.counters.evaluated_episode += episodes
    run.scalars.write({f"return/{name}": scored.mean}, env_step=run.counters.env_step)
    return scored
