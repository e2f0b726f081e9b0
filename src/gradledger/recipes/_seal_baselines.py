"""What the error is of rules that need no net, on the sides that a net is trained and tested on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.evidence import baselines
from gradledger.evidence.baselines import Baseline, Side
from gradledger.recipes import _seal_data
from gradledger.recipes._seal_data import Data

MEAN, PENALTY = "mean of the training targets", 1.0


@lru_cache(maxsize=8)
def table(source: str, bursts: int, frames: int, target: str, how: str) -> tuple[Baseline, ...]:
    """Mean absolute error on the test side of each rule, fitted on the training side; intervals over whole caps."""
    data = _seal_data.load(source, bursts, frames, target)
    made = _seal_data.sides(source, bursts, frames, target, how)
    cap = _seal_data.sides(source, bursts, frames, target, "burst").groups
    train, test = (
        Side(
            seen(data)[at],
            data.recording.offset[at],
            groups=[cap[one] for one in at],
            metadata=metadata(data, at),
        )
        for at in (made.indices("train"), made.indices("test"))
    )
    # A fixed penalty: one chosen by leaving single rows out would be chosen on their siblings.
    penalty = PENALTY * len(made.indices("train"))
    return tuple(baselines.table(train, test, kind="numbers", metric=absolute_error, penalty=penalty))


def absolute_error(said: NDArray[Any], wanted: NDArray[Any]) -> NDArray[Any]:
    """(N,) of each row."""
    return np.asarray(np.abs(said - wanted).reshape(len(said), -1).mean(axis=1))


def value(rows: Sequence[Baseline], name: str) -> float:
    """The error of the rule of that name."""
    return next(one.value for one in rows if one.name == name)


def seen(data: Data) -> NDArray[np.float64]:
    """(N, D) blocks of 2 x 2 pixels over the crop's own mean: what the scout's net gets, at half the resolution."""
    images = data.recording.images.astype(np.float64)
    images /= np.maximum(images.mean(axis=(1, 2, 3), keepdims=True), 1e-3)
    height, width = (size // 2 * 2 for size in data.shape)
    blocks = images[..., :height, :width].reshape(len(images), 3, height // 2, 2, width // 2, 2)
    return np.asarray(blocks.mean(axis=(3, 5)).reshape(len(images), -1))


def metadata(data: Data, at: NDArray[np.int64]) -> dict[str, list[Any]]:
    """All that is known of a crop without looking at an edge. None of it moves a cap: a rule on these alone that beats
    the mean has found a shortcut."""
    recording = data.recording
    level = np.log(np.maximum(recording.images[at].astype(np.float64).mean(axis=(2, 3)), 1.0))
    found: dict[str, list[Any]] = {
        "line": _seal_data.rows(recording.line, at),
        "time": [recording.time[one] for one in at],
        "light": [recording.light[one] for one in at],
    }
    return found | {f"mean level of {name}": level[:, k].tolist() for k, name in enumerate(("red", "green", "blue"))}
