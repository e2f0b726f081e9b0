"""Pictures of the arm: losses and success of every seed, paths of the hand, and one episode as a strip of frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gradledger.evidence.record import Attempt
from gradledger.recipes import _arm6_film, _arm6_policies
from gradledger.recipes._arm6_demos import Demonstrations
from gradledger.recipes._arm6_env import HERTZ, NEAR_M, links
from gradledger.recipes._arm6_rollout import Rollouts, play

CURVES, TRAJECTORIES, EPISODE, FILM = "curves.png", "trajectories.png", "episode.png", "episode.gif"
SHOWN = 24  # episodes whose paths are drawn
STRIP = (0, 8, 16, 24, 36, 50)  # steps


def draw(
    out: Path, attempts: Sequence[Attempt], net: nn.Module, kept: Mapping[str, NDArray[Any]], demos: Demonstrations
) -> dict[str, str | None]:
    """Draw what can be drawn: file -> why it is not there or is another one, None where it is as it should be.

    Args:
        attempts: finished trials. net: of one of them. kept: its arrays.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return dict.fromkeys((CURVES, TRAJECTORIES, EPISODE, FILM), "matplotlib is not installed")
    seeds = kept["episode_seed"][:SHOWN].tolist()
    rules = _arm6_policies.baselines(demos)
    played = {"cloned": play(_arm6_policies.of_net(net), seeds)}
    beside = (_arm6_policies.EXPERT, _arm6_policies.MEAN, _arm6_policies.NONE)
    played |= {name: play(rules[name], seeds) for name in beside}
    curves(Figure(figsize=(10, 4.2), layout="constrained"), attempts).savefig(out / CURVES, dpi=110)
    trajectories(Figure(figsize=(10, 4.6), layout="constrained"), played).savefig(out / TRAJECTORIES, dpi=110)
    cloned = played["cloned"]
    why = _arm6_film.render(cloned.joints[0], cloned.targets[0], STRIP, out)
    if why is not None:
        strip(Figure(figsize=(12, 2.4), layout="constrained"), cloned).savefig(out / EPISODE, dpi=110)
    return {CURVES: None, TRAJECTORIES: None, EPISODE: why, FILM: why}


def curves(figure: Any, attempts: Sequence[Attempt]) -> Any:
    """Left: training loss by epoch. Right: success rate of every trial by arm."""
    left, right = figure.subplots(1, 2)
    arms = list(dict.fromkeys(one.trial.arm for one in attempts))
    for number, arm in enumerate(arms):
        mine = [one for one in attempts if one.trial.arm == arm]
        for at, one in enumerate(mine):
            losses = (one.quantities or {}).get("losses", [])
            style = "--" if arm == "autograd" else "-"
            left.plot(np.arange(1, len(losses) + 1), losses, style, color=f"C{number}", lw=1, label=None if at else arm)
        rates = [(one.quantities or {})["success_rate"] for one in mine]
        right.plot(rates, np.full(len(rates), number), "o", color=f"C{number}", alpha=0.6)
    left.set(yscale="log", xlabel="epoch", ylabel="training loss (mean over real entries)", title="Every trial")
    left.legend(fontsize=8, loc="upper right")
    left.grid(alpha=0.3)
    right.set(xlim=(-0.02, 1.02), yticks=range(len(arms)), yticklabels=arms, xlabel="success rate", title="Every seed")
    right.invert_yaxis()
    right.grid(alpha=0.3)
    return figure


def trajectories(figure: Any, played: Mapping[str, Rollouts]) -> Any:
    """Left: paths of the hand seen from above. Right: distance to the target over time, median and middle 80 %."""
    left, right = figure.subplots(1, 2)
    cloned = next(iter(played.values()))
    for number, (path, target) in enumerate(zip(cloned.hands, cloned.targets, strict=True)):
        colour = f"C{number % 10}"
        left.plot(path[:, 0], path[:, 1], "-", color=colour, lw=1)
        left.plot(*path[0, :2], ".", color=colour, ms=4)
        left.plot(*target[:2], "x", color=colour, ms=6)
    left.set(aspect="equal", xlabel="x, m", ylabel="y, m")
    left.set_title("Paths of the hand from above: start (dot), target (cross)", fontsize=10)
    left.grid(alpha=0.3)
    for number, (name, one) in enumerate(played.items()):
        seconds = np.arange(one.distances.shape[1]) / HERTZ
        low, middle, high = np.quantile(one.distances, (0.1, 0.5, 0.9), axis=0)
        right.plot(seconds, middle, color=f"C{number}", label=name)
        right.fill_between(seconds, low, high, color=f"C{number}", alpha=0.15, lw=0)
    right.axhline(NEAR_M, color="k", lw=0.8, ls=":")
    right.set(yscale="log", xlabel="time, s", ylabel="hand to target, m")
    right.set_title(f"Median and middle 80 % of {len(cloned.seeds)} episodes", fontsize=10)
    right.legend(fontsize=8, loc="lower left")
    right.grid(alpha=0.3)
    return figure


def strip(figure: Any, played: Rollouts) -> Any:
    """The first episode as six drawings of the arm, from the side of the camera."""
    across = np.array([[0.7071, 0.7071, 0.0], [-0.303, 0.303, 0.9035]])  # the axes of the camera `side`
    for axes, step in zip(figure.subplots(1, len(STRIP)), STRIP, strict=True):
        points, target = links(played.joints[0, step]) @ across.T, across @ played.targets[0]
        axes.plot(*points.T, "o-", color="C0", lw=3, ms=4)
        axes.plot(*target, "o", color="C3", ms=8, alpha=0.7)
        axes.set(aspect="equal", xlim=(-0.7, 0.8), ylim=(-0.3, 1.0), xticks=[], yticks=[])
        axes.set_title(f"{step / HERTZ:.2f} s", fontsize=10)
    return figure
