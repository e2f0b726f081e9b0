"""Trials of a folder run anew, elsewhere, and their quantities held against those on record."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradledger.evidence import lock
from gradledger.evidence.errors import BundleError, StatisticsError
from gradledger.evidence.hypothesis import Plan
from gradledger.evidence.predicate import second_quantity
from gradledger.evidence.record import Attempt, TrialRecord
from gradledger.evidence.runner import Watcher, run_trials
from gradledger.evidence.trial import Experiment


@dataclass(frozen=True)
class Again:
    """One quantity of one trial. tolerance: None where none was registered; then the quantity is told and decides
    nothing: agrees is None. why: how it differs, in a list the first place where it does."""

    arm: str
    rng_seed: int
    quantity: str
    recorded: Any
    again: Any
    tolerance: float | None
    agrees: bool | None
    why: str = ""


def retrain(
    folder: Path,
    experiment: Experiment,
    scratch: Path,
    *,
    seeds: int = 1,
    arms: Sequence[str] = (),
    tolerance: float | None = None,
    workers: int = 1,
    watcher: Watcher | None = None,
    beat: Callable[[], None] | None = None,
) -> list[Again]:
    """Run the finished trials of the first `seeds` random seeds anew, and compare.

    Tolerances are relative: |again - recorded| <= tolerance * max(|again|, |recorded|), element by element of lists;
    what is no number must be equal. Without `tolerance` each quantity has the one that the plan registered.

    Args:
        folder: only read. scratch: where the new trials are recorded; an empty folder, or one of an earlier call.
        seeds: how many of the recorded random seeds. arms: only these; default: all.
        tolerance: for every quantity of the plan, in place of the registered ones.
        workers, watcher, beat: see `run_trials`.

    Raises:
        StatisticsError: no such arm, no finished trial, or neither `tolerance` nor a registered one.
        BundleError: the records of the folder do not hold together.
    """
    record = TrialRecord(folder)
    faults = record.faults()
    if faults:
        raise BundleError(
            got="; ".join(map(str, faults[:3])),
            wanted="records that hold together",
            where=str(folder),
            next_step="restore the file: a run is not compared with an edited record",
        )
    if seeds < 1 or (tolerance is not None and not 0 <= tolerance < math.inf):
        raise _refused(f"seeds={seeds}, tolerance={tolerance}", "one seed or more, a tolerance from 0 up", folder)
    versions = lock.versions(folder)
    plan = versions[-1].plan if versions else None
    chosen = _chosen(record, folder, seeds, arms)
    wanted: dict[str, float | None] = dict.fromkeys(_registered(plan, chosen), tolerance)
    if tolerance is None:
        known = plan.quantities if plan else {}
        wanted = {name: known[name].tolerance if name in known else None for name in wanted}
        if all(one is None for one in wanted.values()):
            raise _refused(
                "no quantity with a registered tolerance",
                "--tolerance, or `tolerance` under [quantities.NAME] of the plan",
                folder,
                "say how far a run may be from the recorded one, such as --tolerance 0.1",
            )
    done = run_trials(experiment, [one.trial for one in chosen], scratch, workers=workers, watcher=watcher, beat=beat)
    found: list[Again] = []
    for old, new in zip(chosen, done, strict=True):
        found += _compared(old, new, wanted)
    return found


def decided(found: Sequence[Again]) -> bool:
    """Whether every quantity that decides agrees."""
    return all(one.agrees is not False for one in found)


def _chosen(record: TrialRecord, folder: Path, seeds: int, arms: Sequence[str]) -> list[Attempt]:
    finished = [one for one in record.latest().values() if one.status == "finished"]
    there = {one.trial.arm for one in finished}
    for arm in arms:
        if arm not in there:
            raise _refused(f"the arm {arm!r}", f"one of {', '.join(sorted(there))}", folder)
    held = [one for one in finished if not arms or one.trial.arm in arms]
    first = list(dict.fromkeys(one.trial.rng_seed for one in held))[:seeds]
    if not held or len(first) < seeds:
        raise _refused(f"finished trials of {len(first)} random seeds", f"{seeds}", folder)
    return [one for one in held if one.trial.rng_seed in first]


def _registered(plan: Plan | None, chosen: Sequence[Attempt]) -> list[str]:
    """Quantities that the plan names; all that were recorded where there is no plan."""
    if plan is None:
        return list(dict.fromkeys(name for one in chosen for name in one.quantities or {}))
    names = list(plan.quantities)
    for one in plan.hypotheses:
        names += [name for name in (one.quantity, second_quantity(one.predicate)) if name is not None]
    return list(dict.fromkeys(names))


def _compared(old: Attempt, new: Attempt, wanted: dict[str, float | None]) -> list[Again]:
    arm, seed, before = old.trial.arm, old.trial.rng_seed, old.quantities or {}
    if new.status != "finished":
        return [Again(arm, seed, "(trial)", "finished", new.status, None, False, new.error)]
    after = new.quantities or {}
    found = []
    for name, tolerance in wanted.items():
        if name not in before and name not in after:
            continue  # of another arm
        if name not in before or name not in after:
            where = "before" if name in before else "now"
            found.append(
                Again(arm, seed, name, before.get(name), after.get(name), tolerance, False, f"recorded only {where}")
            )
            continue
        why = difference(before[name], after[name], tolerance or 0.0)
        agrees = None if tolerance is None else not why
        found.append(Again(arm, seed, name, before[name], after[name], tolerance, agrees, why))
    return found


def difference(recorded: Any, again: Any, tolerance: float) -> str:
    """Where two recorded values differ by more than a relative tolerance: "" or the first place and its values."""
    if isinstance(recorded, list) and isinstance(again, list):
        if len(recorded) != len(again):
            return f"{len(again)} values, recorded were {len(recorded)}"
        for at, (one, other) in enumerate(zip(recorded, again, strict=True)):
            found = difference(one, other, tolerance)
            if found:
                return f"[{at}]: {found}"
        return ""
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (recorded, again))
    if numbers and math.isfinite(recorded) and math.isfinite(again):
        away = abs(again - recorded)
        largest = max(abs(again), abs(recorded))
        return "" if away <= tolerance * largest else f"off by {away / largest:.3g} of it"
    same = type(recorded) is type(again) and (recorded == again or (recorded != recorded and again != again))
    return "" if same or (numbers and recorded == again) else f"{again!r}, recorded was {recorded!r}"


def _refused(got: str, wanted: str, folder: Path, next_step: str = "correct the call") -> StatisticsError:
    return StatisticsError(got=got, wanted=wanted, where=f"retrain {folder}", next_step=next_step)
