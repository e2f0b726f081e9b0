"""Series over a run of any length in bounded memory: bins whose width doubles when there are too many of them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

MOST = 256  # bins


class States:
    """How often each word occurred, by iteration."""

    def __init__(self) -> None:
        self.width = 1
        self.last = 0  # the largest iteration that was counted
        self._bins: dict[int, Counter[str]] = {}

    def add(self, iteration: int, word: str, weight: int = 1) -> None:
        """Count `word` at `iteration`."""
        self.last = max(self.last, iteration)
        self._bins.setdefault(iteration // self.width, Counter())[word] += weight
        while len(self._bins) > MOST:
            self.width *= 2
            merged: dict[int, Counter[str]] = {}
            for at, counts in self._bins.items():
                merged.setdefault(at // 2, Counter()).update(counts)
            self._bins = merged

    def bins(self) -> list[tuple[int, Counter[str]]]:
        """(first iteration, counts) of every bin that holds something, in order."""
        return [(at * self.width, self._bins[at]) for at in sorted(self._bins)]


@dataclass(slots=True)
class Point:
    """Values of one bin: how many, their sum, least and largest; `bad`: how many were nan or infinite."""

    count: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    bad: int = 0

    @property
    def mean(self) -> float | None:
        """Mean of the finite values."""
        return self.total / self.count if self.count else None

    def take(self, other: Point) -> None:
        """Add what another bin holds."""
        self.count += other.count
        self.total += other.total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.bad += other.bad


class Curve:
    """Numbers by iteration: mean, least and largest of each bin."""

    def __init__(self) -> None:
        self.width = 1
        self._bins: dict[int, Point] = {}

    def add(self, iteration: int, value: float) -> None:
        """Take one value."""
        finite = math.isfinite(value)
        one = Point(1, value, value, value) if finite else Point(bad=1)
        self._bins.setdefault(iteration // self.width, Point()).take(one)
        while len(self._bins) > MOST:
            self.width *= 2
            merged: dict[int, Point] = {}
            for at, point in self._bins.items():
                merged.setdefault(at // 2, Point()).take(point)
            self._bins = merged

    def points(self) -> list[tuple[int, Point]]:
        """(first iteration, values) of every bin that holds something, in order."""
        return [(at * self.width, self._bins[at]) for at in sorted(self._bins)]


__all__ = ["Curve", "Point", "States"]
