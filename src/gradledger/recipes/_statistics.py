"""Mean, spread and interval of a handful of numbers: episodes of one network, or seeds of one setting."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradledger.evidence._normal import t_quantile


@dataclass(frozen=True)
class Spread:
    """Of n numbers: standard_deviation with n - 1, interval_95 Student's t interval of the mean.

    Both are None for a single number: one seed says nothing about the next.
    """

    n: int
    mean: float
    standard_deviation: float | None
    interval_95: tuple[float, float] | None
    median: float
    minimum: float
    maximum: float

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def spread(values: Sequence[float]) -> Spread:
    """Describe at least one finite number.

    The interval takes the numbers for independent and about normal. Returns of a game with a bound (Pong ends at 21)
    are not quite that; with few of them it is a rough guide, and it can reach past the bound.
    """
    mean = statistics.fmean(values)
    deviation = statistics.stdev(values) if len(values) > 1 else None
    interval = None
    if deviation is not None:
        half = t_quantile(0.975, len(values) - 1) * deviation / math.sqrt(len(values))
        interval = (mean - half, mean + half)
    return Spread(
        len(values), mean, deviation, interval, statistics.median(values), float(min(values)), float(max(values))
    )


def shown(values: Sequence[float]) -> str:
    """``-19.40 ± 1.20 (95 %: -19.85 to -18.95) over 30``: mean, standard deviation, interval of the mean."""
    found = spread(values)
    if found.standard_deviation is None or found.interval_95 is None:
        return f"{found.mean:.2f} over 1"
    low, high = found.interval_95
    return f"{found.mean:.2f} ± {found.standard_deviation:.2f} (95 %: {low:.2f} to {high:.2f}) over {found.n}"
