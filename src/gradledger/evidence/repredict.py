"""Predictions made again from saved weights and saved inputs, and held against those that were saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.evidence.errors import TrialError
from gradledger.evidence.record import TrialRecord, array_digest, told
from gradledger.evidence.trial import Trial

Arrays = Mapping[str, NDArray[Any]]
# (folder, trial, its saved arrays) -> what the weights say now, under the names of the saved arrays
Says = Callable[[Path, Trial, Arrays], Arrays]
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Repeated:
    """One array of one trial. bits: equal to the last bit. away: the largest |again - saved| / max(1, |saved|); at:
    where that is; None where shapes differ or nothing can be subtracted. why: it does not agree."""

    arm: str
    rng_seed: int
    array: str
    bits: bool
    away: float | None
    at: tuple[int, ...] | None
    agrees: bool
    why: str = ""


def repredict(folder: Path, says: Says, *, tolerance: float = TOLERANCE) -> list[Repeated]:
    """Every finished trial of the folder.

    Args:
        says: loads the weights and predicts; a recipe offers it. It sees the saved arrays, and must take from them
            the inputs and, where they are kept there, the weights.
        tolerance: |again - saved| <= tolerance * max(1, |saved|) for every element. 0 asks for equal values.

    Raises:
        TrialError: no trial that finished; saved predictions that are not what was written, or are not there; or `says`
            raises, gives nothing, or gives an array under a name that was not saved.
    """
    if not 0 <= tolerance < float("inf"):
        raise _refused(f"tolerance={tolerance}", "a finite number from 0 up", folder, "0 asks for equal values")
    record = TrialRecord(folder)
    finished = [one for one in record.latest().values() if one.status == "finished"]
    if not finished:
        raise _refused("no finished trial", "one or more", folder, "check the folder")
    found = []
    for one in finished:
        saved = record.predictions(one.trial.id)
        again = _said(folder, says, one.trial, saved)
        found += [
            _held(one.trial, name, saved[name], np.asarray(array), tolerance) for name, array in sorted(again.items())
        ]
    return found


def _said(folder: Path, says: Says, trial: Trial, saved: Arrays) -> Arrays:
    place = f"arm {trial.arm}, rng_seed {trial.rng_seed}"
    try:
        again = says(folder, trial, saved)
    except Exception as error:  # of code that is not ours: it cannot be repeated, which is not the same as differing
        raise _refused(
            f"{place}: {told(error)}", "predictions from the saved weights", folder, "restore what is missing"
        ) from error
    if not isinstance(again, Mapping) or not again or not set(again) <= set(saved):
        names = ", ".join(map(str, again)) if isinstance(again, Mapping) else type(again).__name__
        raise _refused(
            f"{place}: arrays {names or '(none)'}", f"some of {', '.join(saved)}", folder, "correct the function"
        )
    return again


def _held(trial: Trial, name: str, saved: NDArray[Any], again: NDArray[Any], tolerance: float) -> Repeated:
    bits = array_digest(saved) == array_digest(again)
    if bits:
        return Repeated(trial.arm, trial.rng_seed, name, True, 0.0, None, True)
    if saved.shape != again.shape or saved.dtype.kind not in "fiub" or again.dtype.kind not in "fiub":
        why = f"{again.dtype} of shape {again.shape}, saved was {saved.dtype} of shape {saved.shape}"
        return Repeated(trial.arm, trial.rng_seed, name, False, None, None, False, why)
    one, other = saved.astype(np.float64), again.astype(np.float64)
    with np.errstate(invalid="ignore"):
        away = np.abs(other - one) / np.maximum(1.0, np.abs(one))
    away = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, away)
    away = np.where(np.isnan(away), np.inf, away)  # a number against none
    if not away.size:
        return Repeated(trial.arm, trial.rng_seed, name, False, 0.0, None, True)
    at = tuple(int(i) for i in np.unravel_index(int(away.argmax()), away.shape))
    worst = float(away[at])
    why = "" if worst <= tolerance else f"saved {saved[at]!s}, again {again[at]!s} at {list(at)}"
    return Repeated(trial.arm, trial.rng_seed, name, False, worst, at, worst <= tolerance, why)


def _refused(got: str, wanted: str, folder: Path, next_step: str) -> TrialError:
    return TrialError(got=got, wanted=wanted, where=f"repredict {folder}", next_step=next_step)
