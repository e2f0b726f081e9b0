"""Figures of trials for TensorBoard: through a stand-in of its writer, and read back where it is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from evidence import experiments
from gradledger.evidence._scalars import FOLDER
from gradledger.evidence.live import run_shown
from gradledger.evidence.trial import Trial

FITS = [Trial("a/b", {"steps": 5, "lr": 0.1}, seed) for seed in (0, 1)]


class Writer:
    """What it was told, by folder."""

    told: dict[str, list[tuple[str, float, int]]]
    closed: list[str]

    def __init__(self, folder: str) -> None:
        self.name = Path(folder).name
        self.told[self.name] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.told[self.name].append((name, value, step))

    def close(self) -> None:
        self.closed.append(self.name)


def test_every_trial_is_a_run_with_its_figures_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Writer, "told", {}, raising=False)
    monkeypatch.setattr(Writer, "closed", [], raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", SimpleNamespace(Writer=Writer))  # type: ignore[arg-type]
    first, _ = run_shown(experiments.fit, FITS, tmp_path)
    assert first.quantities is not None
    curve = first.quantities["curve"]
    assert Writer.told["a_b, seed 0"] == [("loss", value, step) for step, value in enumerate(curve, start=1)]
    assert Writer.closed == list(Writer.told) == ["a_b, seed 0", "a_b, seed 1"]
    run_shown(experiments.fit, FITS, tmp_path)  # nothing is left to run
    assert len(Writer.closed) == 2


def test_without_tensorboard_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    assert [one.status for one in run_shown(experiments.fit, FITS, tmp_path)] == ["finished"] * 2
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="not installed: gradledger[tensorboard]")
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first, _ = run_shown(experiments.fit, FITS, tmp_path)
    assert first.quantities is not None
    events = EventAccumulator(str(tmp_path / FOLDER / "a_b, seed 0"))
    events.Reload()
    read = [(one.step, pytest.approx(one.tensor_proto.float_val[0])) for one in events.Tensors("loss")]
    assert [(step, value) for step, value in enumerate(first.quantities["curve"], start=1)] == read
