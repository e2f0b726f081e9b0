"""Scalars for TensorBoard where it is installed; nothing at all where it is not."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradledger.core.errors import UsageError


class Scalars:
    """Writes rows of numbers under their names. `wanted`: None writes if TensorBoard is installed, True insists.

    A run that resumes at `env_step` takes the points after it off the graph: they come again.

    Raises:
        UsageError: `wanted` is True and TensorBoard is not installed.
    """

    def __init__(self, folder: Path, *, wanted: bool | None, env_step: int = 0) -> None:
        self._writer: Any = None
        if wanted is False:
            return
        try:
            module = importlib.import_module("torch.utils.tensorboard")
        except ImportError as missing:
            if wanted:
                raise UsageError(
                    got=f"--tensorboard, and no {missing.name}",
                    wanted="TensorBoard",
                    where="recipes",
                    next_step="pip install 'gradledger[tensorboard]', or leave the option out",
                ) from missing
            return
        purge = env_step + 1 if env_step else None
        self._writer = module.SummaryWriter(log_dir=str(folder), purge_step=purge)

    def write(self, row: Mapping[str, float], *, env_step: int) -> None:
        """One point for each number of `row`, at this step; NaN means that there is none yet."""
        if self._writer is not None:
            for name, value in row.items():
                if not math.isnan(value):
                    self._writer.add_scalar(name, value, env_step)

    def close(self) -> None:
        """Flush and close; without effect when nothing is written."""
        if self._writer is not None:
            self._writer.close()
