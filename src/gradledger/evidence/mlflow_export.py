"""The trials of a folder as runs of MLflow: parameters, metrics with their steps, tags, files.

One run holds the folder (verdicts as tags, its files as artifacts), and under it one run each attempt of a trial, also
those that failed or were killed. What is there already is not written again, so a folder is exported as often as one
likes. Nothing is read back: the folder stays the evidence, MLflow shows it.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gradledger._version import __version__
from gradledger.core.records import leaves, plain
from gradledger.evidence import bundle, lock
from gradledger.evidence.errors import ExportError
from gradledger.evidence.hypothesis import FINGERPRINT
from gradledger.evidence.judge import judge
from gradledger.evidence.record import PREDICTIONS, Attempt, TrialRecord

BATCH, TAGS = 1000, 100  # what one call of MLflow takes: metrics, and parameters or tags
LONGEST = 500  # characters of a parameter that every server takes; trial.json has all of it
STATES = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "KILLED"}
KEY, WHOLE = "gradledger.key", "gradledger.whole"  # which attempt a run is; that all of it has arrived


@dataclass(frozen=True)
class Exported:
    """What was done. runs: all of the folder; new: those that were not there before."""

    experiment: str
    uri: str
    runs: int
    new: int


def tracking_uri(target: str) -> str:
    """A folder becomes an SQLite store in it, made if need be; what has a scheme stays as it is."""
    if re.match(r"^[a-z][a-z0-9+.-]*:", target):
        return target
    folder = Path(target).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"


def export(folder: Path, target: str, *, experiment: str = "") -> Exported:
    """Write the trials of a folder to MLflow.

    Args:
        folder: of a run. target: a folder of this machine, or a tracking URI such as ``sqlite:///runs.db`` or
            ``http://localhost:5000``. experiment: its name there; default: the name of the plan, or of the folder.

    Raises:
        ExportError: MLflow is not installed, it refuses, or the folder has no trials.
        RecordError, PlanError: records or plan of the folder were edited.
    """
    versions, record = lock.versions(folder), TrialRecord(folder)
    attempts = record.attempts()
    if not attempts:
        raise ExportError(
            got="no trials", wanted="the folder of a run", where=str(folder), next_step="check the path, or run first"
        )
    client, entities = _client(tracking_uri(target))
    name = experiment or (versions[-1].plan.name if versions else folder.resolve().name)
    try:
        return _export(client, entities, folder, versions, attempts, name, target)
    except Exception as error:
        if all(kind.__name__ != "MlflowException" for kind in type(error).__mro__):
            raise
        raise ExportError(
            got=f"{' '.join(str(error).split())[:300]}",
            wanted="an experiment of MLflow that takes runs",
            where=f"{target}, experiment {name!r}",
            next_step="check the server and --experiment; what arrived before stays, and a new call goes on",
        ) from error


def _export(
    client: Any,
    entities: Any,
    folder: Path,
    versions: list[lock.Version],
    attempts: list[Attempt],
    name: str,
    target: str,
) -> Exported:
    place = client.get_experiment_by_name(name)
    at = place.experiment_id if place is not None else client.create_experiment(name, **_artifacts(target, name))
    there = {run.data.tags[KEY]: run for run in _runs(client, at) if KEY in run.data.tags}
    fingerprints = {
        quantity for one in versions for quantity, about in one.plan.quantities.items() if about.unit == FINGERPRINT
    }
    first = attempts[0]
    whole = f"{versions[0].sha256 if versions else folder.resolve().name}/{first.began}"
    new, parent = 0, there.get(whole)
    if parent is None:
        tags = {KEY: whole, "mlflow.runName": folder.resolve().name, "gradledger.version": __version__}
        parent = client.create_run(at, start_time=_milliseconds(first.began), tags=tags)
        new += 1
    for one in attempts:
        key = f"{one.trial.id}/{one.number}/{one.began}"
        known = there.get(key)
        if known is not None and known.data.tags.get(WHOLE) == one.status:
            continue
        began = _milliseconds(one.began)
        run = known
        if run is None:
            run = client.create_run(at, start_time=began, tags=_tags(one, key, parent.info.run_id))
            new += 1
        _fill(client, entities, run.info.run_id, one, fingerprints)
        with tempfile.TemporaryDirectory() as scratch:
            told = Path(scratch) / "trial.json"
            told.write_text(json.dumps(plain(_document(one)), indent=1) + "\n", encoding="utf-8")
            client.log_artifact(run.info.run_id, str(told))
        if one.predictions:
            client.log_artifact(run.info.run_id, str(folder / PREDICTIONS / f"{one.trial.id}.npz"), PREDICTIONS)
        end = began + round(1000 * one.seconds) if one.seconds is not None else began
        client.set_terminated(run.info.run_id, status=STATES[one.status], end_time=end)
        client.set_tag(run.info.run_id, WHOLE, one.status)
    _fill_parent(client, entities, parent.info.run_id, folder, versions)
    return Exported(name, tracking_uri(target), len(attempts) + 1, new)


def _client(uri: str) -> tuple[Any, Any]:
    # MLflow tells its makers of its use unless it is asked not to: an export goes to the target and nowhere else.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        tracking: Any = importlib.import_module("mlflow.tracking")
        entities: Any = importlib.import_module("mlflow.entities")
    except ImportError as missing:
        raise ExportError(
            got=f"an export to MLflow, and no module {missing.name!r}",
            wanted="MLflow",
            where="evidence",
            next_step="pip install 'gradledger[mlflow]'",
        ) from missing
    return tracking.MlflowClient(tracking_uri=uri), entities


def _artifacts(target: str, name: str) -> dict[str, str]:
    """Files of an SQLite store that we made lie beside it, not in the folder in which the command was given."""
    if tracking_uri(target) == target:
        return {}
    return {"artifact_location": (Path(target).absolute() / "artifacts" / _safe(name)).as_uri()}


def _runs(client: Any, experiment: str) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_runs([experiment], max_results=BATCH, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _tags(one: Attempt, key: str, parent: str) -> dict[str, str]:
    again = f" ({one.number})" if one.number > 1 else ""
    return {
        KEY: key,
        "mlflow.runName": f"{one.trial.arm}, seed {one.trial.rng_seed}{again}",
        "mlflow.parentRunId": parent,
        "gradledger.trial": one.trial.id,
        "gradledger.attempt": str(one.number),
        "gradledger.plan": one.plan or "none",
    }


def _fill(client: Any, entities: Any, run: str, one: Attempt, fingerprints: set[str]) -> None:
    """Parameters, metrics and tags of an attempt; a second time they are the same ones, at the same times."""
    began = _milliseconds(one.began)
    settings = {"arm": one.trial.arm, "rng_seed": one.trial.rng_seed, **dict(leaves(dict(one.trial.config)))}
    params = [entities.Param(_safe(key), _short(value)) for key, value in settings.items() if key]
    metrics, tags = [], [entities.RunTag("gradledger.status", one.status)]
    if one.error:
        tags.append(entities.RunTag("gradledger.error", one.error))
    for name, value in (one.quantities or {}).items():
        curve = value if isinstance(value, list) and value and all(map(_is_number, value)) else None
        if curve is not None:
            metrics += [entities.Metric(_safe(name), float(y), began, step) for step, y in enumerate(curve)]
        elif _is_number(value) and name not in fingerprints:
            metrics.append(entities.Metric(_safe(name), float(value), began, 0))
        else:  # no number to be drawn: None, names, booleans, fingerprints
            tags.append(entities.RunTag(_safe(f"quantity.{name}"), _short(value)))
    for at in range(0, max(len(params), len(tags)), TAGS):
        client.log_batch(run, params=params[at : at + TAGS], tags=tags[at : at + TAGS])
    for at in range(0, len(metrics), BATCH):
        client.log_batch(run, metrics=metrics[at : at + BATCH])


def _fill_parent(client: Any, entities: Any, run: str, folder: Path, versions: list[lock.Version]) -> None:
    """Verdicts and the plan as tags, and the files at the top of the folder; anew with each export."""
    tags = {"gradledger.status": "folder"}
    if versions:
        tags |= {"gradledger.plan": versions[-1].sha256, "gradledger.registered": versions[-1].at}
        judged = judge(versions[-1].plan, TrialRecord(folder).measured())
        tags |= {f"verdict.{_safe(one.id)}": f"{one.verdict}: {one.claim}"[:LONGEST] for one in judged}
    sealed = folder / bundle.BUNDLE
    if sealed.is_file():
        tags["gradledger.seal"] = str(json.loads(sealed.read_text(encoding="utf-8")).get("self", ""))
    rows = [entities.RunTag(key, value) for key, value in tags.items()]
    for at in range(0, len(rows), TAGS):
        client.log_batch(run, tags=rows[at : at + TAGS])
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
            client.log_artifact(run, str(path))
    client.set_terminated(run, status="FINISHED")


def _document(one: Attempt) -> Mapping[str, Any]:
    return {
        "trial": one.trial.id,
        "arm": one.trial.arm,
        "config": dict(one.trial.config),
        "rng_seed": one.trial.rng_seed,
        "attempt": one.number,
        "status": one.status,
        "began": one.began,
        "seconds": one.seconds,
        "plan": one.plan,
        "quantities": one.quantities,
        "predictions": one.predictions,
        "error": one.error,
        "trace": one.trace,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 2**53:
        text = f"{value:.0f}"
    else:
        text = value if isinstance(value, str) else json.dumps(plain(value))
    return text if len(text) <= LONGEST else text[: LONGEST - 4] + " ..."


def _safe(name: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _milliseconds(at: str) -> int:
    return round(datetime.fromisoformat(at).timestamp() * 1000)
