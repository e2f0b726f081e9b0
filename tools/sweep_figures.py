"""Draws the figures of docs/sweep.md: `python tools/sweep_figures.py` (needs matplotlib; writes docs/figures/*.svg).

The memory figure is measured, not sketched: a convolutional net is planned under three budgets, and each schedule is
played through.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch
from torch import nn

from gradledger import sweep
from gradledger.sweep._planners import find

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
INK, SOFT, BLUE, RED = "#222222", "#8a8a8a", "#2f6db5", "#c23b22"
plt.rcParams.update(
    {
        "svg.hashsalt": "gradledger",
        "svg.fonttype": "path",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def save(figure: plt.Figure, name: str) -> None:
    """Write one figure without a date in it, so that equal figures are equal files."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None}, facecolor="white", bbox_inches="tight")
    plt.close(figure)


def chain() -> None:
    """One graph against local graphs that are walked back."""
    figure, axes = plt.subplots(2, 1, figsize=(7.2, 3.6))
    names = ["block 0", "block 1", "block 2", "loss"]
    for axis, cut in zip(axes, (False, True), strict=True):
        axis.set_xlim(-1.0, 8.4)
        axis.set_ylim(-1.5, 1.1)
        axis.axis("off")
        for k, name in enumerate(names):
            at = 2 * k + 0.2
            axis.add_patch(plt.Rectangle((at, -0.35), 1.1, 0.7, fill=False, ec=INK, lw=1.2))
            axis.text(at + 0.55, 0, name, ha="center", va="center", color=INK)
            into = "x" if k == 0 else f"$h_{k}$"
            axis.annotate("", (at, 0.15), (at - 0.9, 0.15), arrowprops={"arrowstyle": "->", "color": INK})
            axis.text(at - (0.68 if cut and k else 0.45), 0.28, into, ha="center", color=INK)
            if k:
                axis.annotate(
                    "", (at - 0.9, -0.2), (at, -0.2), arrowprops={"arrowstyle": "->", "color": RED, "lw": 1.3}
                )
                axis.text(at - (0.22 if cut else 0.45), -0.62, f"$d_{k}$", ha="center", color=RED)
                if cut:
                    axis.plot([at - 0.45] * 2, [-0.85, 0.75], color=BLUE, lw=1.4, ls=(0, (3, 2)))
            if k < 3:
                axis.annotate("", (at + 0.55, -1.05), (at + 0.55, -0.4), arrowprops={"arrowstyle": "->", "color": RED})
                axis.text(at + 0.55, -1.4, ".grad", ha="center", color=RED)
        title = (
            "sweep: the graph is cut at every boundary, one product a block" if cut else "loss.backward(): one graph"
        )
        axis.set_title(title, loc="left", color=INK, fontsize=10)
    save(figure, "sweep_chain")


def network() -> nn.Sequential:
    """The net of the memory figure."""
    torch.manual_seed(0)

    def conv(into: int, out: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU())

    return nn.Sequential(
        *(conv(3 if k == 0 else 32, 32) for k in range(8)),
        nn.MaxPool2d(2),
        *(conv(32 if k == 0 else 64, 64) for k in range(8)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def memory() -> None:
    """Bytes over the schedule, for three budgets."""
    net, x, y = network(), torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    kept = sweep.plan(net, example=(x, y), loss=nn.functional.cross_entropy)
    figure, axes = plt.subplots(3, 1, figsize=(7.2, 5.4), sharey=True)
    for axis, budget in zip(axes, ("keep", "50%", "min"), strict=True):
        played = sweep.simulate(find("budget").plan(kept.costs, budget=budget), kept.costs)
        levels = played.levels
        colours = {"reverse": RED, "record": BLUE}
        axis.bar(
            range(len(levels)),
            [level.peak / 2**20 for level in levels],
            width=1.0,
            color=[colours.get(level.action.kind, SOFT) for level in levels],
        )
        share = played.peak / kept.predicted.peak
        times = played.seconds / kept.predicted.seconds
        title = f'budget "{budget}": {share:.0%} of that memory, {times:.2f}x the time'
        axis.set_title("keep everything" if budget == "keep" else title, loc="left", fontsize=10)
        axis.axhline(played.peak / 2**20, color=INK, lw=0.8, ls=":")
        axis.set_ylabel("MiB")
        axis.set_xlim(-0.5, len(levels) - 0.5)
    axes[-1].set_xlabel("actions of one step: recorded (blue), run without keeping (grey), reversed (red)")
    figure.tight_layout()
    save(figure, "sweep_memory")


if __name__ == "__main__":
    chain()
    memory()
