"""The record of the trials of a folder: each start and each end is a line; what failed or was killed stays.

trials.jsonl          started, finished, failed, interrupted: chained, see core.records
predictions/ID.npz    arrays of a finished trial, vouched for in its line
"""

from __future__ import annotations

import hashlib
import io
import os
import traceback
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradledger.core.files import file_digest
from gradledger.core.records import Fault, Records
from gradledger.evidence.errors import TrialError
from gradledger.evidence.lock import TRIALS
from gradledger.evidence.trial import Outcome, Trial

PREDICTIONS = "predictions"
Status = Literal["finished", "failed", "interrupted", "running"]


@dataclass(frozen=True)
class Attempt:
    """One try of a trial. number: from 1. seconds: None where it was killed. error: "" or what it failed with.
    running: it has begun and has not ended; of a process that is gone this means that it was killed."""

    trial: Trial
    number: int
    status: Status
    began: str
    plan: str
    seconds: float | None = None
    quantities: Mapping[str, Any] | None = None
    predictions: Mapping[str, Any] | None = None
    error: str = ""
    trace: str = ""


class TrialRecord:
    """The trials of one folder; the only writer of `trials.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._chain = Records(folder / TRIALS)

    def started(self, trial: Trial, *, plan: str) -> int:
        """A trial begins; returns the number of the attempt. plan: hash of the registered plan, or ""."""
        number = 1 + sum(one.trial.id == trial.id for one in self.attempts())
        body = {"event": "started", "id": trial.id, "attempt": number, "plan": plan}
        self._chain.append({**body, "arm": trial.arm, "config": dict(trial.config), "rng_seed": trial.rng_seed})
        return number

    def finished(self, trial: Trial, number: int, given: Outcome, seconds: float) -> None:
        """It came to its end. The arrays are on disk before the line that vouches for them."""
        body: dict[str, Any] = {"quantities": given.quantities, "predictions": {}}
        if given.predictions:
            body["predictions"] = save_arrays(self.folder / PREDICTIONS / f"{trial.id}.npz", given.predictions)
        self._end("finished", trial, number, seconds, body)

    def failed(self, trial: Trial, number: int, error: BaseException | str, seconds: float, trace: str = "") -> None:
        """It raised, or its process died; the error stays in the table."""
        if isinstance(error, BaseException):
            trace = trace or "".join(traceback.format_exception(error))
            error = told(error)
        self._end("failed", trial, number, seconds, {"error": error, "trace": trace[-8000:]})

    def interrupted(self, trial: Trial, number: int, seconds: float, why: str = "") -> None:
        """A person stopped it."""
        self._end("interrupted", trial, number, seconds, {"error": why} if why else {})

    def attempts(self) -> list[Attempt]:
        """Every attempt, in the order in which they began.

        Raises:
            RecordError: the file was edited.
        """
        found: dict[tuple[str, int], Attempt] = {}
        for record in self._chain.read():
            body = record.body
            key = (body["id"], body["attempt"])
            if body["event"] == "started":
                trial = Trial(body["arm"], body["config"], body["rng_seed"])
                found[key] = Attempt(trial, body["attempt"], "running", record.at, body["plan"])
            elif key in found:
                begun = found[key]
                found[key] = Attempt(
                    begun.trial,
                    begun.number,
                    body["event"],
                    begun.began,
                    begun.plan,
                    body["seconds"],
                    body.get("quantities"),
                    body.get("predictions"),
                    body.get("error", ""),
                    body.get("trace", ""),
                )
        return list(found.values())

    def latest(self) -> dict[str, Attempt]:
        """Trial id -> what counts of its attempts: the first that finished, or the newest."""
        found: dict[str, Attempt] = {}
        for one in self.attempts():
            known = found.get(one.trial.id)
            if known is None or known.status != "finished":
                found[one.trial.id] = one
        return found

    def measured(self) -> dict[tuple[str, int], Mapping[str, Any]]:
        """(arm, rng_seed) -> quantities of finished trials: what `judge` wants."""
        found = {}
        for one in self.latest().values():
            if one.status == "finished" and one.quantities is not None:
                found[one.trial.arm, one.trial.rng_seed] = one.quantities
        return found

    def predictions(self, id: str) -> dict[str, NDArray[Any]]:
        """The arrays of a finished trial.

        Raises:
            TrialError: it has none, or they are not what was written (names the array).
        """
        one = self.latest().get(id)
        if one is None or not one.predictions:
            raise TrialError(
                got=f"no predictions of trial {id}",
                wanted="a finished trial that returned an Outcome with predictions",
                where=str(self.folder),
                next_step="see the table of trials for the ids",
            )
        path = self.folder / PREDICTIONS / f"{id}.npz"
        found = array_faults(path, one.predictions, name=f"{PREDICTIONS}/{path.name}")
        if found:
            raise TrialError(
                got="; ".join(map(str, found[:3])),
                wanted="predictions as they were written",
                where=str(path),
                next_step="restore the file, or run the trial in a new folder",
            )
        return load_arrays(path)

    def faults(self) -> list[Fault]:
        """Where records or predictions are not what was written, or do not belong together."""
        found = self._chain.faults()
        if found:
            return found
        begun: set[tuple[str, int]] = set()
        known: set[str] = set()
        for line in self._chain.read():
            body, place = line.body, f"line {line.number}: body"
            key = (body.get("id", ""), body.get("attempt", 0))
            if body.get("event") == "started":
                begun.add(key)
                wanted = Trial(body["arm"], body["config"], body["rng_seed"]).id
                if body["id"] != wanted:
                    found.append(Fault(TRIALS, f"{place}.id", body["id"], f"{wanted}, of these settings and seed"))
            elif key not in begun:
                found.append(Fault(TRIALS, f"{place}.attempt", f"an end of {key}", "a line that says it began"))
            if body.get("predictions"):
                known.add(body["id"])
                path = self.folder / PREDICTIONS / f"{body['id']}.npz"
                found += array_faults(path, body["predictions"], name=f"{PREDICTIONS}/{path.name}")
        there = sorted((self.folder / PREDICTIONS).glob("*.npz"))
        found += [
            Fault(f"{PREDICTIONS}/{path.name}", "file", "a file that no trial wrote", "no such file")
            for path in there
            if path.stem not in known
        ]
        return found

    def _end(self, event: Status, trial: Trial, number: int, seconds: float, body: Mapping[str, Any]) -> None:
        self._chain.append({"event": event, "id": trial.id, "attempt": number, "seconds": round(seconds, 6), **body})


# ------------------------------------------------------------------------------------------------------------- arrays


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Write an npz file, whole or not at all; what vouches for it: SHA-256 of the file and of each array.

    The bytes depend on the arrays alone: entries in order of their names, without times.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(arrays):
                buffer = io.BytesIO()
                np.lib.format.write_array(buffer, np.ascontiguousarray(arrays[name]), allow_pickle=False)
                entry = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, buffer.getvalue())
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return {"sha256": file_digest(path), "arrays": {name: array_digest(arrays[name]) for name in sorted(arrays)}}


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def array_digest(array: NDArray[Any]) -> str:
    """SHA-256 of dtype, shape and values."""
    array = np.ascontiguousarray(array)
    return hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes()).hexdigest()


def array_faults(path: Path, vouched: Mapping[str, Any], *, name: str) -> list[Fault]:
    """Which arrays of a file are not those that were vouched for."""
    if not path.exists():
        return [Fault(name, "file", "no file", "the predictions that the trial wrote")]
    if file_digest(path) == vouched["sha256"]:
        return []
    try:
        there = {key: array_digest(value) for key, value in load_arrays(path).items()}
    except Exception as error:  # numpy and zipfile raise what they like for a torn file
        return [Fault(name, "file", f"unreadable ({type(error).__name__}: {error})", "the file as written")]
    wanted = vouched["arrays"]
    found = []
    for key in sorted({*there, *wanted}):
        if there.get(key) != wanted.get(key):
            got = f"an array of digest {there[key][:12]}" if key in there else "nothing"
            told_ = f"digest {wanted[key][:12]}" if key in wanted else "no such array"
            found.append(Fault(name, key, got, told_))
    return found or [Fault(name, "file", "other bytes around equal arrays", "the file as written")]


def told(error: BaseException) -> str:
    """An error on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__qualname__}: {text}"[:500] if text else type(error).__qualname__
