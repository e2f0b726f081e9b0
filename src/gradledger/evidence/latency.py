"""Latency: every call timed on its own, whole path and stages, with a tail that block means would hide."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradledger.evidence._normal import binomial_cdf
from gradledger.evidence.errors import StatisticsError

FEWEST_CALLS = 1000
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
Stage = tuple[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class Quantile:
    """A quantile of call times in ms. low, high: interval at `level`, from order statistics, whatever the shape of the
    distribution; None where the sample has no such bound, which is so above the maximum."""

    value_ms: float
    low_ms: float | None
    high_ms: float | None
    level: float


@dataclass(frozen=True)
class Timing:
    """Of one stage or of the whole path. first_ms: the first call, which is in no quantile. slower_at_most: with
    `level`, the share of calls that are slower than the maximum seen. together: correlation of a call's time with the
    next one's; well above 0 the intervals are too narrow."""

    calls: int
    first_ms: float
    quantiles: dict[str, Quantile]
    maximum_ms: float
    slower_at_most: float
    mean_ms: float
    together: float

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Latency:
    """stages: in their order. order: which input each call got. times_ns: (calls, 1 + stages), the whole path first,
    without the first call."""

    whole: Timing
    stages: dict[str, Timing]
    order: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    rng_seed: int

    def distribution(self) -> dict[str, list[float]]:
        """Whole path and stages -> the time in ms that 0, 1, ... 100 % of the calls do not exceed."""
        rows = np.quantile(self.times_ns / 1e6, np.linspace(0, 1, 101), axis=0, method="inverted_cdf")
        return {name: rows[:, at].tolist() for at, name in enumerate(("whole", *self.stages))}

    def record(self) -> dict[str, Any]:
        """Ready for JSON; the single times are left to a file of arrays."""
        return {
            "whole": self.whole.record(),
            "stages": {name: timing.record() for name, timing in self.stages.items()},
            "distribution_ms": self.distribution(),
            "clock": "time.perf_counter_ns",
            "order": f"random, rng_seed {self.rng_seed}",
        }


def measure(
    stages: Sequence[Stage],
    inputs: Sequence[Any],
    *,
    calls: int = FEWEST_CALLS,
    rng_seed: int = 0,
    synchronise: Callable[[], None] | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
    level: float = 0.95,
) -> Latency:
    """Time the path from an input to a decision, call by call.

    Args:
        stages: (name, function), each fed with what the one before it returned; the first gets an input.
        inputs: real ones; they are drawn in random order, each as often as the others (give or take one).
        calls: that count; one more, the first, is told apart.
        synchronise: waits for the accelerator; called at the end of every stage, within its time.

    Raises:
        StatisticsError: fewer than 1,000 calls, no stages or no inputs. What a stage raises passes through.
    """
    if calls < FEWEST_CALLS or not stages or not inputs:
        raise _refused(
            f"{calls} calls, {len(stages)} stages, {len(inputs)} inputs",
            f"{FEWEST_CALLS} calls or more, a stage, an input",
            "measure",
        )
    rng = np.random.default_rng(rng_seed)
    rounds = [rng.permutation(len(inputs)) for _ in range(-(-(calls + 1) // len(inputs)))]
    order = np.concatenate(rounds)[: calls + 1]
    times = np.zeros((calls + 1, 1 + len(stages)), dtype=np.int64)
    steps = [function for _, function in stages]
    wait = synchronise or (lambda: None)
    for call, at in enumerate(order.tolist()):
        value = inputs[at]
        begin = last = clock()
        for number, step in enumerate(steps, start=1):
            value = step(value)
            wait()
            now = clock()
            times[call, number] = now - last
            last = now
        times[call, 0] = last - begin
    return Latency(
        timing(times[:, 0], level=level),
        {name: timing(times[:, number], level=level) for number, (name, _) in enumerate(stages, start=1)},
        order,
        times[1:],
        rng_seed,
    )


def timing(times_ns: ArrayLike, *, level: float = 0.95) -> Timing:
    """Describe single call times in ns, the first of which is told apart."""
    row = np.asarray(times_ns, dtype=np.int64)
    rest = row[1:] / 1e6
    return Timing(
        len(rest),
        float(row[0] / 1e6),
        {name: quantile(rest, q, level=level) for name, q in QUANTILES.items()},
        float(rest.max()),
        float(1 - (1 - level) ** (1 / len(rest))),
        float(rest.mean()),
        _together(rest),
    )


def quantile(times_ms: ArrayLike, q: float, *, level: float = 0.95) -> Quantile:
    """The smallest time that a share q of the calls does not exceed, with its interval.

    The bounds are order statistics: the number of calls below the true quantile is binomial, whatever the times are.

    Raises:
        StatisticsError: no times, or q not between 0 and 1.
    """
    row = np.sort(np.asarray(times_ms, dtype=np.float64))
    n = len(row)
    if not n or not 0 < q < 1:
        raise _refused(f"{n} times, q={q}", "some times, and q between 0 and 1", "quantile")
    value = float(row[max(0, int(np.ceil(n * q - 1e-9)) - 1)])
    tail = (1 - level) / 2
    low = _largest(lambda k: binomial_cdf(k - 1, n, q) <= tail, n)  # P(the quantile lies below the k-th) <= tail
    high = _smallest(lambda k: 1 - binomial_cdf(k - 1, n, q) <= tail, n)
    return Quantile(value, float(row[low - 1]) if low else None, float(row[high - 1]) if high <= n else None, level)


def _largest(holds: Callable[[int], bool], n: int) -> int:
    """The largest k of 1..n that holds, 0 if none: holds up to some k, and not beyond."""
    low, high = 0, n
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _smallest(holds: Callable[[int], bool], n: int) -> int:
    """The smallest k of 1..n that holds, n + 1 if none."""
    low, high = 1, n + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _together(row: NDArray[np.float64]) -> float:
    centred = row - row.mean()
    spread = float(centred @ centred)
    return float(centred[:-1] @ centred[1:]) / spread if spread > 0 else 0.0


def _refused(got: str, wanted: str, where: str) -> StatisticsError:
    return StatisticsError(got=got, wanted=wanted, where=where, next_step="pass more, see docs/evidence.md")
