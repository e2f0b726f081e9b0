"""Predicates: what a hypothesis says of recorded quantities, as a closed set of frozen records.

Each answers for one rng_seed: True, False, or `Unknown` with the reason.  A value that is absent is unknown; a value
that is not finite fails every claim about numbers, for a run that diverged has answered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Literal, get_args

Shape = Literal["falling", "rising", "valley", "peak"]
SHAPES: tuple[str, ...] = get_args(Shape)


class Absent:
    """The value of a quantity that a trial did not record (None is a value: a gradient that is None)."""

    def __repr__(self) -> str:
        return "not recorded"


ABSENT = Absent()


@dataclass(frozen=True)
class Unknown:
    """No answer, and why."""

    why: str


Answer = bool | Unknown


@dataclass(frozen=True)
class Equals:
    """|value - `value`| <= tolerance; with `relative` the tolerance is a share of |`value`|."""

    value: float
    tolerance: float = 0.0
    relative: bool = False
    kind: Literal["equals"] = "equals"

    def holds(self, seen: Sequence[Any]) -> Answer:
        room = self.tolerance * abs(self.value) if self.relative else self.tolerance
        return _number(seen[0], lambda x: abs(x - self.value) <= room)


@dataclass(frozen=True)
class Range:
    """low <= value <= high; either bound may be absent. `open`: the bounds themselves do not count."""

    low: float | None = None
    high: float | None = None
    open: bool = False
    kind: Literal["range"] = "range"

    def holds(self, seen: Sequence[Any]) -> Answer:
        return _number(seen[0], lambda x: _within(x, self.low, self.high, self.open))


@dataclass(frozen=True)
class Ratio:
    """low <= first / second <= high, of two arms, or of two quantities of one arm (`over` names the second)."""

    low: float | None = None
    high: float | None = None
    over: str | None = None
    open: bool = False
    kind: Literal["ratio"] = "ratio"

    def holds(self, seen: Sequence[Any]) -> Answer:
        def compare(above: float, below: float) -> Answer:
            if below == 0:
                return Unknown(f"{above!r} / 0 has no value")
            return _within(above / below, self.low, self.high, self.open)

        return _pair(seen, compare)


@dataclass(frozen=True)
class Flat:
    """max - min of a trajectory <= tolerance."""

    tolerance: float = 1e-6
    kind: Literal["flat"] = "flat"

    def holds(self, seen: Sequence[Any]) -> Answer:
        return _curve(seen[0], lambda points: max(points) - min(points) <= self.tolerance)


@dataclass(frozen=True)
class IsNone:
    """The value is None (expect) or is something (not expect). A zero is not None."""

    expect: bool = True
    kind: Literal["is_none"] = "is_none"

    def holds(self, seen: Sequence[Any]) -> Answer:
        return Unknown("it was not recorded") if isinstance(seen[0], Absent) else (seen[0] is None) == self.expect


@dataclass(frozen=True)
class Identity:
    """Two recorded names of objects are one (or not); with a list of names, the first is among them (or not).

    Names come from `trial.Names`, which never gives one name to two objects. A boolean quantity stands for itself.
    """

    other: str | None = None
    expect: bool = True
    kind: Literal["identity"] = "identity"

    def holds(self, seen: Sequence[Any]) -> Answer:
        if any(isinstance(one, Absent) for one in seen):
            return Unknown("it was not recorded")
        if self.other is None:
            return seen[0] == self.expect if isinstance(seen[0], bool) else Unknown(f"{_told(seen[0])} is no boolean")
        first, second = seen
        if not isinstance(first, str):
            return Unknown(f"{_told(first)} is no name of an object")
        if isinstance(second, str):
            return (first == second) == self.expect
        if isinstance(second, Sequence) and all(isinstance(one, str) for one in second):
            return (first in second) == self.expect
        return Unknown(f"{_told(second)} is neither a name nor a list of names")


@dataclass(frozen=True)
class Trajectory:
    """How a curve runs. slack: how far a step may go the other way; least: the change it must make.

    falling, rising: from the first point to the last. valley, peak: the extreme lies inside, `least` away from both
    ends, and the curve goes one way before it and the other way after it.
    """

    shape: Shape
    slack: float = 0.0
    least: float = 0.0
    kind: Literal["trajectory"] = "trajectory"

    def holds(self, seen: Sequence[Any]) -> Answer:
        return _curve(seen[0], self._runs)

    def _runs(self, points: Sequence[float]) -> bool:
        if self.shape in ("rising", "peak"):
            points = [-x for x in points]
        if self.shape in ("falling", "rising"):
            return _falls(points, self.slack) and points[0] - points[-1] >= self.least and points[0] > points[-1]
        at = min(range(len(points)), key=points.__getitem__)
        before, after = points[: at + 1], points[at:][::-1]
        depth = min(points[0], points[-1]) - points[at]
        return (
            0 < at < len(points) - 1
            and depth > 0
            and depth >= self.least
            and _falls(before, self.slack)
            and _falls(after, self.slack)
        )


@dataclass(frozen=True)
class Separates:
    """|first - second| > margin, of two arms."""

    margin: float
    kind: Literal["separates"] = "separates"

    def holds(self, seen: Sequence[Any]) -> Answer:
        return _pair(seen, lambda a, b: abs(a - b) > self.margin)


@dataclass(frozen=True)
class NotSeparated:
    """|first - second| <= margin, of two arms: the control cannot see the effect."""

    margin: float = 0.0
    kind: Literal["not_separated"] = "not_separated"

    def holds(self, seen: Sequence[Any]) -> Answer:
        return _pair(seen, lambda a, b: abs(a - b) <= self.margin)


Predicate = Equals | Range | Ratio | Flat | IsNone | Identity | Trajectory | Separates | NotSeparated
KINDS: dict[str, type[Predicate]] = {
    "equals": Equals,
    "range": Range,
    "ratio": Ratio,
    "flat": Flat,
    "is_none": IsNone,
    "identity": Identity,
    "trajectory": Trajectory,
    "separates": Separates,
    "not_separated": NotSeparated,
}


def arms_wanted(predicate: Predicate) -> int:
    """How many arms the predicate compares."""
    if isinstance(predicate, Ratio):
        return 1 if predicate.over is not None else 2
    return 2 if isinstance(predicate, Separates | NotSeparated) else 1


def second_quantity(predicate: Predicate) -> str | None:
    """The quantity beside the hypothesis' own, or None."""
    if isinstance(predicate, Ratio):
        return predicate.over
    return predicate.other if isinstance(predicate, Identity) else None


def described(predicate: Predicate) -> str:
    """In words, for tables.

    Example:
        >>> described(Range(low=1.2, high=1.8))
        'from 1.2 to 1.8'
    """
    match predicate:
        case Equals(value, tolerance, relative):
            room = f"{tolerance:.4g} of it" if relative else f"{tolerance:.4g}"
            return f"equals {value:.6g}" + (f" within {room}" if tolerance else "")
        case Range(low, high, open):
            return _bounds(low, high, open)
        case Ratio(low, high, over, open):
            return f"ratio {f'to {over} ' if over else 'of the arms '}{_bounds(low, high, open)}"
        case Flat(tolerance):
            return f"flat to {tolerance:.4g}"
        case IsNone(expect):
            return "is None" if expect else "is not None"
        case Identity(other, expect):
            return str(expect) if other is None else f"is {'' if expect else 'not '}(in) {other}"
        case Trajectory(shape, slack, least):
            extra = [f"by {least:.4g} or more"] if least else []
            extra += [f"steps the other way up to {slack:.4g}"] if slack else []
            return ", ".join([shape, *extra])
        case Separates(margin):
            return f"the arms differ by more than {margin:.4g}"
        case NotSeparated(margin):
            return f"the arms differ by {margin:.4g} or less"


def document(predicate: Predicate) -> dict[str, Any]:
    """Ready for TOML or JSON; absent bounds are left out."""
    pairs = ((field.name, getattr(predicate, field.name)) for field in fields(predicate))
    return {name: value for name, value in pairs if value is not None}


def examples(predicate: Predicate, low: float, high: float) -> list[tuple[Any, ...]]:
    """Values within a domain at which the answer may turn: bounds, a step beyond them, the ends of the domain.

    Args:
        low, high: what the quantity can be; infinite where nothing is known.
    """
    match predicate:
        case IsNone():
            return [(None,), (0.0,)]
        case Identity(None):
            return [(True,), (False,)]
        case Identity():
            return [("a", "a"), ("a", "b")]
        case Equals(value, tolerance, relative):
            room = tolerance * abs(value) if relative else tolerance
            marks = [value, value - room, value + room]
        case Range(first, last):
            marks = [one for one in (first, last) if one is not None]
            marks += [(marks[0] + marks[-1]) / 2] if marks else []
        case Ratio(first, last):
            bounds = [one for one in (first, last) if one is not None]
            marks = [1.0, *bounds, *([sum(bounds) / len(bounds)] if bounds else [])]
        case Flat(tolerance):
            marks = [0.0, tolerance, 2 * tolerance + 1]
        case Trajectory(_, slack, least):
            marks = [0.0, slack + least + 1]
        case Separates(margin) | NotSeparated(margin):
            marks = [0.0, margin, 2 * margin + 1]
    # What is not finite fails every claim about a number; a claim that only this could refute is settled beforehand.
    ends = {x for x in (low, high) if math.isfinite(x)}
    points = sorted({x for mark in marks for x in _around(mark)} | ends | {0.0, 1.0})
    inside = [x for x in points if low <= x <= high]
    inside += [low + span for span in points if math.isfinite(low) and low <= low + span <= high]
    if isinstance(predicate, Equals | Range):
        return [(x,) for x in inside]
    if isinstance(predicate, Flat):
        return [([a, b],) for a in inside for b in inside]
    if isinstance(predicate, Trajectory):
        return [([a, b, c],) for a in inside for b in inside for c in (a, b, low, high) if math.isfinite(c)]
    return [(a, b) for a in inside for b in inside]


def comes_out(predicate: Predicate, low: float = -math.inf, high: float = math.inf) -> set[bool]:
    """Which answers are possible for values within a domain: a claim worth testing has both."""
    answers = (predicate.holds(seen) for seen in examples(predicate, low, high))
    return {answer for answer in answers if isinstance(answer, bool)}


# ------------------------------------------------------------------------------------------------------------ parts


def _number(value: Any, test: Any) -> Answer:
    if isinstance(value, Absent):
        return Unknown("it was not recorded")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Unknown(f"{_told(value)} is no number")
    return bool(test(value)) if math.isfinite(value) else False


def _pair(seen: Sequence[Any], test: Any) -> Answer:
    for one in seen:
        checked = _number(one, lambda x: True)
        if isinstance(checked, Unknown) or not checked:
            return checked
    answer: Answer = test(*seen)
    return answer


def _curve(value: Any, test: Any) -> Answer:
    if isinstance(value, Absent):
        return Unknown("it was not recorded")
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) < 2:
        return Unknown(f"{_told(value)} is no trajectory of two points or more")
    if any(isinstance(x, bool) or not isinstance(x, int | float) for x in value):
        return Unknown("a trajectory with points that are no numbers")
    return bool(test(value)) if all(math.isfinite(x) for x in value) else False


def _falls(points: Sequence[float], slack: float) -> bool:
    return all(later <= earlier + slack for earlier, later in pairwise(points))


def _within(x: float, low: float | None, high: float | None, open: bool) -> bool:
    if open:
        return (low is None or x > low) and (high is None or x < high)
    return (low is None or x >= low) and (high is None or x <= high)


def _around(x: float) -> tuple[float, ...]:
    """x, the numbers next to it, and numbers well beyond: a relative and an absolute step either way."""
    far = abs(x) + 1.0
    return (
        x,
        math.nextafter(x, -math.inf),
        math.nextafter(x, math.inf),
        x - far,
        x + far,
        x - far / 1e6,
        x + far / 1e6,
    )


def _bounds(low: float | None, high: float | None, open: bool) -> str:
    if low is not None and high is not None:
        return f"{'between' if open else 'from'} {low:.6g} {'and' if open else 'to'} {high:.6g}"
    if low is not None:
        return f"{'above' if open else 'at least'} {low:.6g}"
    return f"{'below' if open else 'at most'} {high:.6g}" if high is not None else "anything"


def _told(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
