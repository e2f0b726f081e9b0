"""Pictures of a run: its curves, a film of one evaluation episode, and a strip of its frames.

matplotlib draws the curves and Pillow the rest; a run does without what is not installed, and its record says so.
Nothing here touches pyplot or its settings, and no random number is drawn.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.recipes import _folder

CURVES, FILM, STRIP = "curves.png", "film.gif", "strip.png"
_MOST_PICTURES = 1_500  # of a film: longer episodes are shown in full, every k-th step
_TILES = (2, 6)  # rows and columns of a strip
_SCALE = 2  # of 84 x 84 frames on today's screens


@dataclass(frozen=True)
class Episode:
    """One filmed episode. frames: (T, H, W) uint8, what the agent saw at each of its steps.

    skip: emulated frames per step; there are 60 in a second of Atari. caption: of the strip.
    """

    frames: NDArray[np.uint8]
    skip: int
    caption: str


def draw(out: Path, *, title: str, loss: str, episode: Episode | None) -> dict[str, str | None]:
    """All that can be drawn: file -> why it is not there, None where it is. A picture is no reason to lose a run.

    Args:
        loss: what the loss is, for its axis. episode: None where nothing was played yet, or nothing that can be seen.
    """
    told = none("no episode of frames")
    told[CURVES] = _attempt(curves, out, title=title, loss=loss)
    if episode is not None:
        told |= {FILM: _attempt(film, out, episode), STRIP: _attempt(strip, out, episode)}
    return told


def none(reason: str) -> dict[str, str | None]:
    """No picture at all, for this reason."""
    return dict.fromkeys((CURVES, FILM, STRIP), reason)


def _attempt(one: Callable[..., str | None], *args: Any, **words: Any) -> str | None:
    try:
        return one(*args, **words)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def curves(out: Path, *, title: str, loss: str) -> str | None:
    """Draw curves.png from the tables of a run folder. Returns why not, or None.

    Args:
        loss: what the loss is, for its axis.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed"
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    metrics, episodes = _folder.rows(out / _folder.METRICS), _folder.rows(out / _folder.EPISODES)
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    axes: Any = figure.subplots(2, 2, sharex=True)
    (top, speed), (lost, norm) = axes

    if not episodes:
        top.text(0.5, 0.5, "no training episode ended yet", ha="center", transform=top.transAxes)
    steps = [row["env_step"] for row in episodes]
    returns = [row["return"] for row in episodes]
    top.plot(steps, returns, ".", markersize=2.5, color="0.65", label="episode")
    for width, style in ((20, "C0-"), (100, "C1-")):
        means = running_mean(returns, width)
        top.plot(steps, means, style, linewidth=1.5, label=f"mean of the last {width}")
    top.set(title="Return of training episodes", ylabel="return (sum of raw rewards, one episode)")
    top.legend(loc="upper left", fontsize="small")

    x = [row["env_step"] for row in metrics]
    lost.plot(x, [row["loss"] for row in metrics], "C2-")
    lost.set(title="Loss", ylabel=loss)
    norm.plot(x, [row["gradient_norm"] for row in metrics], "C3-")
    norm.set(title="Gradient norm", ylabel="global L2 norm before the clip")
    at, pace = speeds(metrics)
    speed.plot(at, pace, "C4-")
    speed.set(title="Speed while learning", ylabel="environment steps per second (wall)")
    speed.set_ylim(bottom=0)
    for axis in (lost, norm):
        axis.set_xlabel("environment steps")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.margins(x=0.02)
        axis.xaxis.set_major_locator(MaxNLocator(6))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _whole(out / CURVES, lambda path: figure.savefig(path, format="png", dpi=110))
    return None


def film(out: Path, episode: Episode) -> str | None:
    """Write film.gif, at the speed of the game. Returns why not, or None."""
    if importlib.util.find_spec("PIL") is None:
        return "Pillow is not installed"
    from PIL import Image

    stride = -(-len(episode.frames) // _MOST_PICTURES)
    chosen = episode.frames[::stride]
    pictures = [Image.fromarray(_larger(frame)) for frame in chosen]
    # GIF counts in hundredths of a second.
    lasts = max(20, round(100 * stride * episode.skip / 60) * 10)
    ends = [*[lasts] * (len(pictures) - 1), 1_500]  # the last one stays, so that the end of a game is seen
    _whole(
        out / FILM,
        lambda path: pictures[0].save(
            path, format="GIF", save_all=True, append_images=pictures[1:], duration=ends, loop=0, optimize=False
        ),
    )
    return None


def strip(out: Path, episode: Episode) -> str | None:
    """Write strip.png: frames at equal distances, from the first to the last, each with its step. Or why not."""
    if importlib.util.find_spec("PIL") is None:
        return "Pillow is not installed"
    from PIL import Image, ImageDraw, ImageFont

    rows, columns = _TILES
    at = chosen_steps(len(episode.frames), rows * columns)
    height, width = (size * _SCALE for size in episode.frames.shape[1:])
    gap, label, head = 6, 18, 28
    font: Any = ImageFont.load_default(size=13)
    sheet = Image.new("L", (gap + columns * (width + gap), head + rows * (height + label + gap)), 255)
    pen = ImageDraw.Draw(sheet)
    pen.text((gap, 7), episode.caption, fill=0, font=font)
    for index, step in enumerate(at):
        row, column = divmod(index, columns)
        left, top = gap + column * (width + gap), head + row * (height + label + gap)
        sheet.paste(Image.fromarray(_larger(episode.frames[step])), (left, top + label))
        seconds = step * episode.skip / 60
        pen.text((left, top + 1), f"step {step:,} ({seconds:.1f} s)", fill=0, font=font)
    _whole(out / STRIP, lambda path: sheet.save(path, format="PNG"))
    return None


def chosen_steps(length: int, most: int) -> list[int]:
    """Up to `most` different steps of 0..length-1 at equal distances, first and last among them."""
    count = min(length, most)
    return [round(index * (length - 1) / max(count - 1, 1)) for index in range(count)]


def running_mean(values: list[float], width: int) -> list[float]:
    """Mean of the last `width` values at each point, of all there are before that."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - width, 0)
    means: list[float] = ((sums[ends] - sums[begins]) / (ends - begins)).tolist()
    return means


def speeds(metrics: list[dict[str, float]]) -> tuple[list[float], list[float]]:
    """(steps, steps a second) between rows of metrics with updates; random play before them is a hundred times faster
    and would flatten the rest."""
    pairs = [(b, row) for b, row in pairwise(metrics) if row["optimizer_step"] > b["optimizer_step"]]
    took = [row["seconds"] - b["seconds"] for b, row in pairs]
    rates = [
        (row["env_step"] - b["env_step"]) / s if s > 0 else math.nan for (b, row), s in zip(pairs, took, strict=True)
    ]
    return [row["env_step"] for _, row in pairs], rates


def _larger(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return frame.repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)


def _whole(path: Path, write: Callable[[Path], object]) -> None:
    """Beside, then renamed: a run that is killed leaves the old picture or the new one."""
    partial = path.with_name(f"{path.name}.tmp")
    write(partial)
    partial.replace(path)
