"""Learning curves of finished or running DQN runs, side by side: the table, the numbers, the picture.

python benchmarks/dqn_curves.py RUN... [--at 48000,99000,...] [--csv FILE] [--picture FILE]

RUN is a folder of `gradledger run dqn_atari`.  Per run and place: the mean return of the last 20 training games that
had ended by then (real games, rewards not clipped, exploration as it was).  Below: the first step at which that mean
reached +10 and +18, and minutes of wall time until then, and the evaluation.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAST = 20


@dataclass(frozen=True)
class Curve:
    """One run: (environment step, return) of its games in the order in which they ended, and (step, second) marks."""

    name: str
    games: list[tuple[int, float]]
    clock: list[tuple[int, float]]
    record: dict[str, Any]

    def mean(self, step: int, last: int = LAST) -> float | None:
        """Mean return of the `last` games that had ended by `step`; None before that many have."""
        ended = [value for at, value in self.games if at <= step]
        return statistics.fmean(ended[-last:]) if len(ended) >= last else None

    def reached(self, goal: float) -> int | None:
        """The first step at which the mean of the last games is at least `goal`."""
        return next((at for at, _ in self.games if (mean := self.mean(at)) is not None and mean >= goal), None)

    def minutes(self, step: int) -> float:
        """Wall time until `step`, to the next row of the metrics."""
        return next((seconds for at, seconds in self.clock if at >= step), self.clock[-1][1]) / 60


def read(folder: Path) -> Curve:
    """A run's folder."""
    with (folder / "episodes.csv").open(newline="") as file:
        games = [(int(row["env_step"]), float(row["return"])) for row in csv.DictReader(file)]
    with (folder / "metrics.csv").open(newline="") as file:
        clock = [(int(row["env_step"]), float(row["seconds"])) for row in csv.DictReader(file)]
    record = folder / "record.json"
    return Curve(folder.name, games, clock, json.loads(record.read_text()) if record.exists() else {})


def table(curves: list[Curve], places: list[int]) -> str:
    """Markdown: a row a run."""
    head = ["run", *(f"{step:,}" for step in places), "+10 at", "+18 at", "evaluation"]
    rows = [head, ["---"] * len(head)]
    for curve in curves:
        marks = []
        for goal in (10.0, 18.0):
            step = curve.reached(goal)
            marks.append("not reached" if step is None else f"{step:,} ({curve.minutes(step):.0f} min)")
        ended = curve.clock[-1][0]
        means = [curve.mean(step) if step <= ended + 4000 else None for step in places]
        rows.append([curve.name, *("" if m is None else f"{m:+.1f}" for m in means), *marks, _evaluation(curve.record)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _evaluation(record: dict[str, Any]) -> str:
    told = record.get("evaluation") or {}
    numbers = told.get("returns") or told.get("return") or {}
    if isinstance(numbers, list):
        return f"{statistics.fmean(numbers):+.1f} ± {statistics.stdev(numbers):.1f} over {len(numbers)}"
    if "mean" not in numbers:
        return ""
    return f"{numbers['mean']:+.1f} ± {numbers['standard_deviation']:.1f} over {numbers['n']}"


def picture(curves: list[Curve], file: Path) -> None:
    """Mean of the last games over environment steps, a line a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for curve in curves:
        points = [(at, mean) for at, _ in curve.games if (mean := curve.mean(at)) is not None]
        axes.plot(*zip(*points, strict=True), label=curve.name, linewidth=1.4)
    axes.axhline(18, color="0.6", linewidth=0.8, linestyle="--")
    axes.axhline(10, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(xlabel="environment steps", ylabel=f"mean return of the last {LAST} games", ylim=(-21.5, 21.5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k")
    axes.legend(frameon=False)
    axes.grid(alpha=0.2)
    figure.savefig(file)


def main() -> None:
    """The table on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--at", default="48000,99000,145000,206000,246000,250000,260000")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    curves = [read(folder) for folder in given.runs]
    print(table(curves, [int(word) for word in given.at.split(",")]))
    if given.csv:
        with given.csv.open("w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(["run", "env_step", "return"])
            out.writerows([curve.name, *game] for curve in curves for game in curve.games)
    if given.picture:
        picture(curves, given.picture)


if __name__ == "__main__":
    main()
