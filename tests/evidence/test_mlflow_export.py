"""Trials as runs of MLflow: against a stand-in that records every call, and against MLflow where it is installed."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from gradledger.cli import _app
from gradledger.evidence import bundle, lock, mlflow_export
from gradledger.evidence.errors import ExportError
from gradledger.evidence.mlflow_export import export
from gradledger.evidence.runner import run_trials, trials_of
from gradledger.evidence.trial import Outcome

PLAN = """
name = "rates"
rng_seeds = [0, 1]
[quantities.weights]
unit = "fingerprint"
[arms.slow]
rate = 0.05
net = { width = 8, layers = [1, 2] }
[arms.fast]
rate = 0.2
net = { width = 8, layers = [1, 2] }
[[hypotheses]]
id = "H1"
claim = "the loss is below 1"
quantity = "loss"
arms = ["fast"]
predicate = { kind = "range", high = 1.0 }
"""


def fitted(config: Mapping[str, Any], rng_seed: int) -> Outcome:
    if config["rate"] == 0.05 and rng_seed == 1:
        raise ValueError("the loss is not finite")
    curve = [1.0 / (1 + step * config["rate"]) for step in range(1200)]
    told = {"loss": curve[-1], "curve": curve, "grad": None, "held": "head", "weights": 2.0**52 - 1, "lost": math.nan}
    return Outcome(told, {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run of mine"
    made.mkdir()
    (made / "plan.toml").write_text(PLAN)
    version = lock.lock(made, made / "plan.toml")
    plan = version.plan
    run_trials(fitted, [*trials_of(plan), *_slow(plan)], made, plan=version.sha256)
    (made / "report.html").write_text("<p>here")
    bundle.seal(made)
    return made


def _slow(plan: Any) -> list[Any]:
    from gradledger.evidence.trial import Trial

    return [Trial("slow", plan.arms["slow"], seed) for seed in (0, 1)]


class Store:
    """What MlflowClient does, in memory; it takes no more than MLflow does in one call, and no other names."""

    def __init__(self) -> None:
        self.experiments: dict[str, SimpleNamespace] = {}
        self.runs: dict[str, SimpleNamespace] = {}

    def get_experiment_by_name(self, name: str) -> Any:
        return self.experiments.get(name)

    def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
        self.experiments[name] = SimpleNamespace(experiment_id=str(len(self.experiments)), at=artifact_location)
        return str(self.experiments[name].experiment_id)

    def create_run(self, experiment_id: str, start_time: int, tags: dict[str, str]) -> Any:
        run = f"run-{len(self.runs)}"
        data = SimpleNamespace(tags=dict(tags), params={}, metrics=set())
        info = SimpleNamespace(run_id=run, start_time=start_time, status="RUNNING", end_time=None)
        self.runs[run] = SimpleNamespace(info=info, data=data, files={}, experiment=experiment_id)
        return self.runs[run]

    def search_runs(self, experiments: list[str], max_results: int, page_token: str | None) -> Any:
        found = [one for one in self.runs.values() if one.experiment in experiments]
        at = int(page_token or 0)

        class Page(list[Any]):
            token = str(at + 2) if at + 2 < len(found) else None

        return Page(found[at : at + 2])

    def log_batch(self, run: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        assert len(metrics) <= 1000
        assert max(len(params), len(tags)) <= 100
        for key, value in params:
            assert self.runs[run].data.params.setdefault(key, value) == value
            assert len(value) <= 500
        self.runs[run].data.metrics |= set(metrics)
        self.runs[run].data.tags |= dict(tags)
        assert all(set(key) <= set("abcdefghijklmnopqrstuvwxyzH0123456789_-./ ") for key, *_ in (*metrics, *params))

    def log_artifact(self, run: str, path: str, folder: str = "") -> None:
        self.runs[run].files[f"{folder}/{Path(path).name}".lstrip("/")] = Path(path).read_bytes()

    def set_terminated(self, run: str, status: str, end_time: int | None = None) -> None:
        self.runs[run].info.status, self.runs[run].info.end_time = status, end_time

    def set_tag(self, run: str, key: str, value: str) -> None:
        self.runs[run].data.tags[key] = value


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    tracking, entities = SimpleNamespace(MlflowClient=lambda tracking_uri: store), SimpleNamespace()
    entities.Param = entities.RunTag = lambda key, value: (key, value)
    entities.Metric = lambda key, value, at, step: (key, str(value) if math.isnan(value) else value, at, step)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(tracking=tracking, entities=entities))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)  # type: ignore[arg-type]
    return store


def test_every_attempt_is_a_run_with_settings_curves_and_state(folder: Path, store: Store, tmp_path: Path) -> None:
    done = export(folder, str(tmp_path / "store"))
    assert (done.experiment, done.runs, done.new) == ("rates", 5, 5)
    assert done.uri == f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}"
    assert store.experiments["rates"].at == (tmp_path / "store" / "artifacts" / "rates").as_uri()
    by_name = {run.data.tags["mlflow.runName"]: run for run in store.runs.values()}
    assert list(by_name) == ["run of mine", "fast, seed 0", "fast, seed 1", "slow, seed 0", "slow, seed 1"]

    fast = by_name["fast, seed 0"]
    assert fast.data.params == {"arm": "fast", "rng_seed": "0", "rate": "0.2", "net.width": "8", "net.layers": "[1, 2]"}
    curve = sorted((step, value) for name, value, _, step in fast.data.metrics if name == "curve")
    assert curve == [(step, 1.0 / (1 + step * 0.2)) for step in range(1200)]
    assert {(name, value) for name, value, _, step in fast.data.metrics if step == 0 and name != "curve"} == {
        ("loss", 1.0 / (1 + 1199 * 0.2)),
        ("lost", "nan"),
    }
    tags = fast.data.tags
    assert (tags["quantity.grad"], tags["quantity.held"]) == ("null", "head")
    assert tags["quantity.weights"] == "4503599627370495"
    assert fast.info.status == "FINISHED"
    assert fast.info.end_time >= fast.info.start_time > 1.7e12
    told = json.loads(fast.files["trial.json"])
    assert (told["arm"], told["rng_seed"], told["config"]["net"]) == ("fast", 0, {"width": 8, "layers": [1, 2]})

    lost = by_name["slow, seed 1"]
    assert (lost.info.status, lost.data.tags["gradledger.error"]) == ("FAILED", "ValueError: the loss is not finite")
    assert "Traceback" in json.loads(lost.files["trial.json"])["trace"]

    whole = by_name["run of mine"]
    assert whole.data.tags["verdict.H1"] == "supported: the loss is below 1"
    assert whole.data.tags["gradledger.seal"] == json.loads((folder / "bundle.json").read_text())["self"]
    assert {"report.html", "plan.toml", "trials.jsonl", "bundle.json"} <= set(whole.files)
    assert {run.data.tags.get("mlflow.parentRunId") for run in store.runs.values()} == {None, whole.info.run_id}


def test_a_second_export_adds_what_is_new_and_one_that_was_cut_goes_on(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_terminated, calls = store.set_terminated, []

    def cut(run: str, status: str, end_time: int | None = None) -> None:
        calls.append(run)
        if len(calls) == 3:
            raise ConnectionError("gone")
        set_terminated(run, status, end_time)

    monkeypatch.setattr(store, "set_terminated", cut)
    with pytest.raises(ConnectionError):
        export(folder, "http://server")
    before = {name: len(run.data.metrics) for name, run in store.runs.items()}
    done = export(folder, "http://server")
    assert (done.runs, done.new, done.uri) == (5, 5 - len(before), "http://server")
    assert all(len(store.runs[name].data.metrics) == count for name, count in before.items())  # nothing twice
    assert store.experiments["rates"].at is None  # a server knows where its files go
    version = lock.versions(folder)[-1]
    again = run_trials(lambda c, s: {"loss": 2.0}, _slow(version.plan), folder, plan=version.sha256, retry_failed=True)
    assert [one.number for one in again] == [1, 2]
    assert export(folder, "http://server").new == 1
    assert export(folder, "http://server", experiment="other").new == 6
    names = [run.data.tags["mlflow.runName"] for run in store.runs.values() if run.experiment == "0"]
    assert names.count("slow, seed 1 (2)") == 1


def test_what_cannot_be_exported(folder: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="no trials"):
        export(tmp_path / "nowhere", "http://server")

    class MlflowException(Exception):
        pass

    class RestException(MlflowException):
        pass

    def refuse(name: str) -> None:
        raise RestException("experiment is\ndeleted")

    monkeypatch.setattr(store, "get_experiment_by_name", refuse)
    with pytest.raises(ExportError, match=r"http://server, experiment 'rates': got experiment is deleted"):
        export(folder, "http://server")
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(ExportError, match=r"pip install 'gradledger\[mlflow\]'"):
        export(folder, "http://server")


def test_the_command_says_where_to_look(folder: Path, store: Store, tmp_path: Path) -> None:
    words = ["report", str(folder), "--mlflow"]
    said = CliRunner().invoke(_app.build(), [*words, str(tmp_path / "ml"), "--experiment", "e"])
    assert said.exit_code == 0, said.output
    assert "-> 5 runs, 5 of them new, in experiment 'e'" in said.output
    assert f"mlflow ui --backend-store-uri sqlite:///{tmp_path / 'ml' / 'mlflow.db'}" in said.output
    assert "# rates" not in said.output
    both = CliRunner().invoke(_app.build(), [*words, "http://x", "-o", str(tmp_path / "r.md")])
    assert (both.exit_code, (tmp_path / "r.md").read_text().splitlines()[0]) == (0, "# rates")
    refused = CliRunner().invoke(_app.build(), ["report", str(folder), "--experiment", "e"])
    assert "no --mlflow" in str(refused.exception)


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="MLflow is not installed: gradledger[mlflow]")
def test_mlflow_gives_back_what_was_exported(folder: Path, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    assert export(folder, str(tmp_path / "store")).new == 5
    assert export(folder, str(tmp_path / "store")).new == 0
    client = MlflowClient(tracking_uri=mlflow_export.tracking_uri(str(tmp_path / "store")))
    place = client.get_experiment_by_name("rates")
    runs = {run.data.tags["mlflow.runName"]: run for run in client.search_runs([place.experiment_id])}
    assert len(runs) == 5
    fast = runs["fast, seed 0"]
    assert fast.data.params == {"arm": "fast", "rng_seed": "0", "rate": "0.2", "net.width": "8", "net.layers": "[1, 2]"}
    history = client.get_metric_history(fast.info.run_id, "curve")
    assert sorted((one.step, one.value) for one in history) == [(s, 1.0 / (1 + s * 0.2)) for s in range(1200)]
    assert fast.data.metrics["loss"] == 1.0 / (1 + 1199 * 0.2)
    assert math.isnan(fast.data.metrics["lost"])
    assert (fast.info.status, runs["slow, seed 1"].info.status) == ("FINISHED", "FAILED")
    whole = runs["run of mine"]
    assert whole.data.tags["verdict.H1"] == "supported: the loss is below 1"
    kept = Path(client.download_artifacts(whole.info.run_id, "trials.jsonl", str(tmp_path)))
    assert kept.read_bytes() == (folder / "trials.jsonl").read_bytes()
    told = Path(client.download_artifacts(fast.info.run_id, "trial.json", str(tmp_path)))
    assert json.loads(told.read_text())["arm"] == "fast"
