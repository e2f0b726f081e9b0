"""Values as dots on a line, one row an arm or a slice, with mean and interval: SVG for a page that fetches nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradledger.evidence._curves import safe
from gradledger.evidence.compare import Column

PLOTS, ROWS = 6, 24  # quantities that are drawn, and rows of one drawing; the tables have all
WIDTH, LEFT, STEP = 420, 130, 24  # of the drawing, in its own units
LETTERS = 20  # of a label


@dataclass(frozen=True)
class Row:
    """One line of dots. middle: their mean; low, high: its interval, None where there is none."""

    label: str
    values: tuple[float, ...]
    middle: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Dots:
    """Rows on one scale."""

    title: str
    rows: tuple[Row, ...]


def of_seeds(columns: Sequence[Column], quantities: Sequence[str]) -> list[Dots]:
    """Every seed of every arm, for these quantities as far as they have two seeds somewhere."""
    found = []
    for quantity in quantities:
        own = [one for one in columns if one.quantity == quantity and one.summary is not None]
        if not any(len(one.values) > 1 for one in own):
            continue
        rows = [
            Row(
                one.arm,
                tuple(one.values.values()),
                one.summary.mean,
                one.summary.interval.low,
                one.summary.interval.high,
            )
            for one in own
            if one.summary is not None
        ]
        found.append(Dots(f"{quantity}, every seed", tuple(rows[:ROWS])))
    return found[:PLOTS]


def of_slices(rows: Sequence[Mapping[str, Any]]) -> list[Dots]:
    """Mean and interval of every slice: records of `slices.by_slice`."""
    found = []
    for row in rows:
        held = row.get("interval")
        low, high = (held.get("low"), held.get("high")) if isinstance(held, Mapping) else (None, None)
        if isinstance(row.get("mean"), int | float) and math.isfinite(row["mean"]):
            found.append(Row(str(row.get("name", "")), (), float(row["mean"]), low, high))
    return [Dots("mean of every slice", tuple(found[:ROWS]))] if found else []


def svg(dots: Dots) -> str:
    """One figure: a dot a seed, a bar at the mean, a line over its interval."""
    numbers = [x for row in dots.rows for x in (*row.values, row.middle, row.low, row.high) if x is not None]
    low, high = min(numbers), max(numbers)
    span = (high - low) or abs(high) or 1.0

    def at(x: float) -> str:
        return f"{LEFT + 8 + (WIDTH - LEFT - 20) * (x - low) / span:.1f}"

    height = STEP * len(dots.rows) + 30
    parts = []
    for number, row in enumerate(dots.rows):
        y = 16 + STEP * number
        label = row.label if len(row.label) <= LETTERS else row.label[: LETTERS - 1] + "…"
        told = f"{row.label}: mean {row.middle:.6g}"
        if row.low is not None and row.high is not None:
            told += f", {row.low:.6g} to {row.high:.6g}"
            parts.append(f'<line class=i x1="{at(row.low)}" y1="{y}" x2="{at(row.high)}" y2="{y}"/>')
        parts += [f'<circle cx="{at(x)}" cy="{y}" r="3.5"/>' for x in row.values]
        parts.append(f'<line class=m x1="{at(row.middle)}" y1="{y - 8}" x2="{at(row.middle)}" y2="{y + 8}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" class="e">{safe(label)}<title>{safe(told)}</title></text>')
    edge = height - 22
    return (
        f'<figure><figcaption>{safe(dots.title)}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{safe(dots.title)}: {safe("; ".join(row.label for row in dots.rows[:6]))}">{"".join(parts)}'
        f'<line x1="{LEFT}" y1="{edge}" x2="{WIDTH - 8}" y2="{edge}"/>'
        f'<text x="{LEFT}" y="{height - 6}">{low:.4g}</text>'
        f'<text x="{WIDTH - 8}" y="{height - 6}" class="e">{high:.4g}</text></svg>'
        f"<p class=note>{'dot: a seed; ' if any(row.values for row in dots.rows) else ''}bar: mean; "
        "line: interval of the mean, level 0.95, where there is one</p></figure>"
    )
