"""How many threads: measured on the run's own update before it starts, because no rule of thumb knows the machine.

On a quiet machine a second thread helps large batches; beside other work it can make an update a hundred times slower,
and for small networks it only adds cost. So the update itself is timed with each number in turn, for about two seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# More threads must be worth it: within this of the best median, the fewer win.
_WORTH = 1.05


@dataclass(frozen=True)
class Calibration:
    """seconds: threads -> median seconds of one update. chosen: the fewest threads within 5 % of the fastest."""

    chosen: int
    seconds: dict[int, float]
    budget_s: float

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "chosen": self.chosen,
            "median_seconds_per_update": {str(count): round(took, 6) for count, took in self.seconds.items()},
            "calibrated_for_s": self.budget_s,
        }

    def __str__(self) -> str:
        each = ", ".join(f"{count}: {1e3 * took:.1f} ms" for count, took in self.seconds.items())
        return f"{self.chosen} thread{'s' if self.chosen > 1 else ''} (an update with {each})"


def calibrate(
    update: Callable[[], object],
    *,
    most: int,
    budget_s: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Time `update` with 1..`most` threads in turn for `budget_s` seconds; torch's number of threads is put back.

    Above four, only each power of two is tried, and `most` itself: two seconds are to say something about each. The
    rounds alternate, so that a disturbance meets all of them. Each number gets one unmeasured update and at least two
    measured ones, also beyond the budget.
    """
    counts = [count for count in range(1, most + 1) if count <= 4 or count == most or count & (count - 1) == 0]
    times: dict[int, list[float]] = {count: [] for count in counts}
    before = torch.get_num_threads()
    began = clock()
    try:
        while clock() - began < budget_s or len(times[counts[-1]]) < 3:
            for count in counts:
                torch.set_num_threads(count)
                start = clock()
                update()
                times[count].append(clock() - start)
    finally:
        torch.set_num_threads(before)
    medians = {count: statistics.median(took[1:]) for count, took in times.items()}
    best = min(medians.values())
    chosen = min(count for count, took in medians.items() if took <= _WORTH * best)
    return Calibration(chosen, medians, budget_s)
