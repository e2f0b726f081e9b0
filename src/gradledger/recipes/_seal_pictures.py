"""Pictures of seal_scout: crops of every line and condition, the leak, the shortcut, risk by coverage, worst cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.evidence.record import Attempt
from gradledger.recipes import _seal_faults, _seal_measures
from gradledger.recipes._seal_data import Data

CROPS, LEAK, SHORTCUT, RISK, WORST, CURVES = (
    "crops.png", "leak.png", "shortcut.png", "risk.png", "worst.png", "curves.png",
)  # fmt: skip
Kept = Mapping[str, Mapping[str, NDArray[Any]]]
DPI = 100
CELLS = 10  # crops in a picture of them


def draw(
    out: Path, data: Data, own: Mapping[str, NDArray[Any]], finished: Sequence[Attempt], kept: Kept
) -> dict[str, str | None]:
    """Draw what can be drawn: file -> why it is not there, None where it is. own: arrays of the model's trial."""
    names = (CROPS, LEAK, SHORTCUT, RISK, WORST, CURVES)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return dict.fromkeys(names, "matplotlib is not installed")

    def figure(width: float, height: float) -> Any:
        return Figure(figsize=(width, height), layout="constrained")

    drawn = {
        CROPS: _crops(figure(8, 4), data),
        LEAK: _leak(figure(6, 3.5), data, finished, kept),
        SHORTCUT: _shortcut(figure(8, 3.5), data, finished),
        RISK: _risk(figure(6, 3.5), data, own),
        WORST: _worst(figure(8, 4), data, finished[0].trial.config, own),
        CURVES: _curves(figure(8, 4), data, finished),
    }
    for name, one in drawn.items():
        one.savefig(out / name, dpi=DPI)
    return dict.fromkeys(names)


def _shown(axes: Any, image: NDArray[np.uint8], title: str) -> None:
    bright = (image.astype(np.float64) * (255 / max(int(image.max()), 1))).astype(np.uint8)  # for the eye only
    axes.imshow(np.moveaxis(bright, 0, -1))
    axes.set_title(title, fontsize=7)
    axes.set_axis_off()


def _crops(figure: Any, data: Data) -> Any:
    recording = data.recording
    kinds = sorted(zip(recording.line, recording.condition, range(len(recording.ids)), strict=True))
    first = {(line, condition): at for line, condition, at in reversed(kinds)}
    chosen = sorted(first.values(), key=lambda at: (recording.line[at], recording.condition[at]))[:CELLS]
    between = np.linspace(0, len(recording.ids) - 1, CELLS).astype(int).tolist()  # where there are few kinds
    chosen += [at for at in between if at not in chosen][: CELLS - len(chosen)]
    cells = figure.subplots(2, CELLS // 2).ravel()
    for axes in cells:
        axes.set_axis_off()
    for axes, at in zip(cells, chosen, strict=False):
        label = f"{recording.offset[at, 0]:+.2f} {data.unit}"
        _shown(axes, recording.images[at], f"{recording.line[at]}, {recording.condition[at]}\n{label}")
    return figure


def _leak(figure: Any, data: Data, finished: Sequence[Attempt], kept: Kept) -> Any:
    axes = figure.subplots()
    config = finished[0].trial.config
    gaps = _seal_faults.gaps_of(data, config, finished, kept)
    for place, one in enumerate(gaps):
        axes.bar(place - 0.2, one.grouped, 0.36, color="C0", label="whole caps" if place == 0 else None)
        axes.bar(place + 0.2, one.random, 0.36, color="C1", label="single frames" if place == 0 else None)
        bounds = "" if one.low is None or one.high is None else f" ({one.low:+.3f} to {one.high:+.3f})"
        axes.text(place, max(one.grouped, one.random), f"leak {one.leak:+.3f}{bounds}", ha="center", va="bottom")
    axes.set_xticks(range(len(gaps)), [one.model for one in gaps])
    axes.set(ylabel=f"mean absolute error, {data.unit}", title="The same arm, the test side cut two ways")
    axes.margins(x=0.1, y=0.15)
    if gaps:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _shortcut(figure: Any, data: Data, finished: Sequence[Attempt]) -> Any:
    left, right = figure.subplots(1, 2)
    recording = data.recording
    for number, line in enumerate(sorted(set(recording.line))):
        mine = [i for i, one in enumerate(recording.line) if one == line]
        light = np.array(recording.light)[mine]
        left.scatter(light, recording.offset[mine, 0], s=4, color=f"C{number}", label=line)
    left.set(xlabel="light of the lamp", ylabel=f"label, {data.unit}", title="As recorded")
    left.legend(fontsize=7)
    for place, arm in enumerate((_seal_faults.BEFORE, _seal_faults.AFTER)):
        for quantity, colour, mark in (("light_moves", "C3", "o"), ("mae", "C0", "s"), ("relit", "C1", "^")):
            values = [(one.quantities or {})[quantity] for one in finished if one.trial.arm == arm]
            label = quantity.replace("_", " ") if place == 0 else None
            right.plot([place] * len(values), values, mark, color=colour, alpha=0.7, label=label)
    right.set_xticks((0, 1), ("light as recorded", "light divided out"))
    right.set(xlim=(-0.5, 1.5), ylim=(0, None), ylabel=data.unit, title="A point a seed")
    right.legend(fontsize=7)
    return figure


def _risk(figure: Any, data: Data, own: Mapping[str, NDArray[Any]]) -> Any:
    axes = figure.subplots()
    away = np.abs(own["said"] - own["target"])[:, 0].astype(np.float64)
    order = np.argsort(own["score"], kind="stable")
    answered = np.arange(1, len(away) + 1)
    axes.plot(answered / len(away), np.cumsum(away[order]) / answered, label="surest first")
    axes.plot(answered / len(away), np.cumsum(np.sort(away)) / answered, ":", label="if errors were known")
    axes.axhline(away.mean(), color="0.6", lw=1, label="all answered")
    axes.set(xlabel="share of held-out crops answered", ylabel=f"mean absolute error of these, {data.unit}")
    axes.set(ylim=(0, None), title="What abstaining buys")
    axes.legend(fontsize=8)
    return figure


def _worst(figure: Any, data: Data, config: Mapping[str, Any], own: Mapping[str, NDArray[Any]]) -> Any:
    recording, chosen = data.recording, _seal_measures.worst_of_caps(data, config, own)[:CELLS]
    cells = figure.subplots(2, CELLS // 2).ravel()
    for axes in cells:
        axes.set_axis_off()
    for axes, i in zip(cells, chosen, strict=False):
        at = int(own["at"][i])
        label, said = own["target"][i, 0], own["said"][i, 0]
        title = f"{recording.ids[at]}, {recording.condition[at]}\n{label:+.2f}, said {said:+.2f} {data.unit}"
        _shown(axes, recording.images[at], title)
    return figure


def _curves(figure: Any, data: Data, finished: Sequence[Attempt]) -> Any:
    axes = figure.subplots()
    arms = list(dict.fromkeys(one.trial.arm for one in finished))
    seen: set[str] = set()
    for one in finished:
        points = (one.quantities or {}).get("validation", [])
        arm = one.trial.arm
        axes.plot(
            np.arange(1, len(points) + 1), points, lw=1, color=f"C{arms.index(arm)}", label=None if arm in seen else arm
        )
        seen.add(arm)
    axes.set(yscale="log", xlabel="epoch", ylabel=f"mean absolute error on val, {data.unit}", title="A line a seed")
    axes.legend(fontsize=7, ncols=2)
    axes.grid(alpha=0.3)
    return figure
