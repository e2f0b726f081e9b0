"""What a DQN run tells of itself: the rows of its tables, its configuration and record, its pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradledger.recipes import _folder, _machine, _pictures, _statistics
from gradledger.recipes._progress import Status
from gradledger.rl import Episode, Evaluation

if TYPE_CHECKING:
    from gradledger.recipes.dqn_atari import Run


def episodes(run: Run, ended: Sequence[Episode]) -> None:
    """One row of episodes.csv for each episode that ended in this step."""
    for episode in ended:
        run.scalars.write({"return/episode": episode.episode_return}, env_step=run.counters.env_step)
        _folder.append(
            run.args.out / _folder.EPISODES,
            {
                "env_step": run.counters.env_step,
                "lane": episode.lane,
                "return": episode.episode_return,
                "length": episode.length,
                "truncated": int(episode.truncated),
            },
        )


def metrics(run: Run) -> None:
    """One row of metrics.csv: means since the row before."""
    shown = status(run)
    norm = run.sums["norm"] / (run.sums["updates"] or math.nan)
    row: dict[str, Any] = {
        **run.counters.state(),
        "epsilon": shown.epsilon,
        "loss": shown.loss,
        "gradient_norm": norm,
        "return_20": shown.return_20,
        "return_100": shown.return_100,
        "seconds": round(shown.seconds, 3),
    }
    _folder.append(run.args.out / _folder.METRICS, row)
    scalars = {"return/last_20": shown.return_20, "return/last_100": shown.return_100, "loss": shown.loss}
    scalars |= {"gradient_norm": norm, "epsilon": shown.epsilon}
    run.scalars.write(scalars, env_step=shown.env_step)
    run.progress.log(shown)
    run.sums = dict.fromkeys(run.sums, 0.0)


def status(run: Run) -> Status:
    """What is shown of the run; the loss is the mean since the last row of metrics."""
    counters, recent = run.counters, list(run.returns)
    return Status(
        env_step=counters.env_step,
        optimizer_step=counters.optimizer_step,
        episode=counters.episode,
        return_20=float(np.mean(recent[-20:])) if recent else math.nan,
        return_100=float(np.mean(recent)) if recent else math.nan,
        loss=run.sums["loss"] / (run.sums["updates"] or math.nan),
        epsilon=run.schedule.at(counters.env_step) if counters.env_step >= run.args.learning_starts else 1.0,
        seconds=run.clock.total(),
    )


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


def record(
    run: Run, scored: Evaluation, sticky: Evaluation | None, drawn: dict[str, str | None]
) -> dict[str, Any]:
    """Everything that a reader needs to repeat or to doubt the run. sticky: the second evaluation, where one was asked
    for. drawn: what `pictures` returned."""
    return {
        **config(run),
        "completed": run.counters.state(),
        "configured_maximum_steps": run.args.total_steps,
        "training_environment": run.lanes.settings,
        "returns_of_the_last_episodes": list(run.returns),
        "evaluation": evaluation(scored),
        **({} if sticky is None else {"evaluation_sticky": evaluation(sticky)}),
        "parameters": sum(parameter.numel() for parameter in run.online.parameters()),
        "seconds": {part: round(spent, 3) for part, spent in run.clock.spent.items()},
        "process_peak_bytes": _machine.peak_bytes(),
        "framework_peak_bytes": _machine.device_peak_bytes(run.args.device),
        "failed_checkpoints": run.failed_checkpoints,
        "input_shape": [run.args.batch, *([run.stack] if run.stack > 1 else []), *run.replay.spec.observation_shape],
        "pictures": drawn,  # file -> why it is not there, or null
    }


def evaluation(scored: Evaluation) -> dict[str, Any]:
    """An evaluation in the record, with the interval of its mean."""
    return {
        **scored.record(),
        "interval_95": _statistics.spread(scored.returns).interval_95,
        "interval": "Student's t over the episodes of one network; over training seeds it is another",
    }


def pictures(run: Run, scored: Evaluation | None = None) -> dict[str, str | None]:
    """Draw: file -> why it is not there. The pictures of an episode only once there is one."""
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
