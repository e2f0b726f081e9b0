"""What trials say of themselves as scalars for TensorBoard, where it is installed; nothing at all where it is not."""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path
from typing import Any

from gradledger.evidence.runner import Report

FOLDER = "tensorboard"


class Scalars:
    """A watcher of trials: figures of each over its steps, under ``tensorboard/ARM, seed N`` of the folder.

    Needs the package tensorboard, and no torch. Nothing is made before there is something to write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._writers: dict[str, Any] = {}
        try:
            self._make: Any = importlib.import_module("tensorboard.summary").Writer
        except (ImportError, AttributeError):  # of a version before it could write on its own
            self._make = None

    def __call__(self, report: Report) -> None:
        """Take what a trial says."""
        if self._make is None or report.progress is None or report.before:
            return
        trial = report.trial
        if trial.id not in self._writers:
            name = re.sub(r"[^\w\-., ]", "_", f"{trial.arm}, seed {trial.rng_seed}")
            self._writers[trial.id] = self._make(str(self._folder / name))
        for name, value in report.progress.figures.items():
            if math.isfinite(value):
                self._writers[trial.id].add_scalar(name, value, report.progress.step)

    def close(self) -> None:
        """Write out what is left."""
        for one in self._writers.values():
            one.close()
        self._writers.clear()
