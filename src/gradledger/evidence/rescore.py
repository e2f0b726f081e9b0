"""Metrics computed again from saved predictions, without the model and without the code that trained it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.evidence.errors import StatisticsError
from gradledger.evidence.record import TrialRecord

Array = NDArray[Any]


def _away(prediction: Array, target: Array) -> NDArray[np.float64]:
    away: NDArray[np.float64] = np.subtract(prediction, target, dtype=np.float64)
    return away


# Each a mean (or the largest) over all elements, in float64.
METRICS: dict[str, Callable[[Array, Array], float]] = {
    "mse": lambda p, t: float(np.mean(_away(p, t) ** 2)),
    "rmse": lambda p, t: float(np.sqrt(np.mean(_away(p, t) ** 2))),
    "mae": lambda p, t: float(np.mean(np.abs(_away(p, t)))),
    "max_error": lambda p, t: float(np.max(np.abs(_away(p, t)))),
    "mean_difference": lambda p, t: float(np.mean(_away(p, t))),
    "accuracy": lambda p, t: float(np.mean(p == t)),
}


@dataclass(frozen=True)
class Score:
    """One trial. recorded: what it said; again: what its predictions say; agrees: within the tolerance; why: not."""

    arm: str
    rng_seed: int
    recorded: float | None
    again: float | None
    agrees: bool
    why: str = ""


def rescore(
    folder: Path, *, quantity: str, metric: str, prediction: str, target: str, tolerance: float = 1e-5
) -> list[Score]:
    """Every finished trial; one without the arrays or the quantity does not agree, and says why.

    Args:
        quantity: as the trials recorded it. metric: one of METRICS. prediction, target: names of saved arrays.
        tolerance: relative; float32 means over 10,000 elements differ from float64 by about 1e-6.

    Raises:
        StatisticsError: no such metric, or no trial that finished.
        TrialError: predictions are not what was written.
    """
    if metric not in METRICS:
        raise _refused(f"the metric {metric!r}", f"one of {', '.join(METRICS)}", "choose a metric")
    record = TrialRecord(folder)
    finished = [one for one in record.latest().values() if one.status == "finished"]
    if not finished:
        raise _refused(f"no finished trial in {folder}", "one or more", "check the folder")
    found = []
    for one in finished:
        recorded: Any = (one.quantities or {}).get(quantity)
        known = isinstance(recorded, int | float) and not isinstance(recorded, bool)
        arrays = record.predictions(one.trial.id) if one.predictions else {}
        missing = [name for name in (prediction, target) if name not in arrays]
        why = "" if known else f"it recorded no number {quantity!r}"
        why = f"it saved no array {', '.join(missing)}" if missing else why
        if not why and arrays[prediction].shape != arrays[target].shape:
            # broadcasting would compare every prediction with every target
            why = f"shapes {arrays[prediction].shape} and {arrays[target].shape} differ"
        again = None if missing or why else METRICS[metric](arrays[prediction], arrays[target])
        agrees = again is not None and abs(again - recorded) <= tolerance * max(abs(recorded), abs(again))
        found.append(Score(one.trial.arm, one.trial.rng_seed, float(recorded) if known else None, again, agrees, why))
    return found


def _refused(got: str, wanted: str, next_step: str) -> StatisticsError:
    return StatisticsError(got=got, wanted=wanted, where="rescore", next_step=next_step)
