"""What the trials of seal_scout see: crops from the generator or from a folder, their contract, and two splits.

Sides are train, val, calibrate and test. "burst": whole bursts, and what was saved twice, go to one side. "frame":
every frame for itself, which is the leak that is shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.core.errors import UsageError
from gradledger.data import groups, leaks, manifest, neighbours
from gradledger.data.manifest import Manifest
from gradledger.data.schema import Field, Schema
from gradledger.data.split import Split, split
from gradledger.recipes import _seal_folder, _seal_physics
from gradledger.recipes._seal_physics import Recording

GENERATED, DATA_SEED, SPLIT_SEED = "generated", 2026, 11
SHARES = {"train": 0.55, "val": 0.1, "calibrate": 0.15, "test": 0.2}
TOLERANCE = 0.03
# Thumbnails (grey levels) nearer than this are two copies of one picture: frames of a burst, one vibration apart, are
# farther.
NEAR = 1.5


@dataclass(frozen=True)
class Data:
    """Crops with all that is known of them. unit: of the label. source: "generated" or the folder."""

    recording: Recording
    unit: str
    source: str

    @property
    def shape(self) -> tuple[int, int]:
        """(H, W) in pixels."""
        height, width = self.recording.images.shape[2:]
        return height, width


def named(config: Mapping[str, Any]) -> tuple[str, int, int, str]:
    """Source, bursts, frames and target of an arm: the first arguments of `load` and of `sides`."""
    return config["data"], config["bursts"], config["frames"], config["target"]


@lru_cache(maxsize=2)
def load(source: str, bursts: int, frames: int, target: str) -> Data:
    """The data of a trial: a function of these alone, made once in a process.

    Args:
        source: "generated", or a folder as `_seal_folder` reads it; then `bursts` and `frames` mean nothing.
        target: column of the label in the folder's table.
    """
    if source != GENERATED:
        found, unit = _seal_folder.read(Path(source), target=target)
        return Data(found, unit, source)
    return Data(_seal_physics.record(bursts, frames, DATA_SEED), "mm", source)


def schema(data: Data) -> Schema:
    """The contract of a batch: pixels as the camera gives them, labels in their unit."""
    height, width = data.shape
    low, high = (-2.0, 2.0) if data.source == GENERATED else bounds(data.recording.offset)
    image = Field(
        "image", ("B", "C", "H", "W"), (None, 3, height, width), "uint8", "grey level", "crop: x right, y down",
        low=0, high=255, channel="C", role="image",
    )  # fmt: skip
    offset = Field(
        "offset", ("B", "A"), (None, 1), "float32", data.unit, "crop: x right, y down", low=low, high=high,
        channel="A", constant_ok=True,
    )  # fmt: skip
    return Schema("seal crops", (image, offset))


def bounds(values: NDArray[Any]) -> tuple[float, float]:
    """What a label can be, where no physics says it: what was seen, and a quarter more on either side."""
    low, high = float(values.min()), float(values.max())
    room = 0.25 * max(high - low, 1e-6)
    return low - room, high + room


def copies(data: Data) -> NDArray[np.int64]:
    """(P, 2) pairs of crops of different bursts that are one picture saved twice."""
    pairs = neighbours.near_edges(thumbnails(data.recording.images), NEAR)
    burst = np.array(data.recording.burst)
    twice: NDArray[np.int64] = pairs[burst[pairs[:, 0]] != burst[pairs[:, 1]]]
    return twice


def thumbnails(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(N, D) mean grey levels of blocks of at most 4 x 4 pixels, all channels together."""
    grey = images.astype(np.float64).mean(axis=1)
    block = 4 if min(grey.shape[1:]) >= 16 else 1
    height, width = (size // block * block for size in grey.shape[1:])
    blocks = grey[:, :height, :width].reshape(len(grey), height // block, block, width // block, block)
    return np.asarray(blocks.mean(axis=(2, 4)).reshape(len(grey), -1))


@lru_cache(maxsize=4)
def sides(source: str, bursts: int, frames: int, target: str, how: str) -> Manifest:
    """The split "burst" or "frame" of what `load` gives, on record with the hash of every crop.

    "named" is the split that trusts the names of bursts: whole bursts, but copies under another name may part.
    """
    data = load(source, bursts, frames, target)
    recording = data.recording
    if how == "frame":
        key, made = {"frame": recording.ids}, _by_frame(len(recording.ids))
    else:
        key = {"burst": recording.burst}
        edges = copies(data) if how == "burst" else None
        made = split(
            key, shares=SHARES, labels=recording.line, edges=edges, tolerance=TOLERANCE, rng_seed=SPLIT_SEED
        )
    return manifest.record(made, recording.ids, key, hashes=None if how == "frame" else hashes(recording.images))


def _by_frame(count: int) -> Split:
    """Each sample for itself, at random: what `sklearn.model_selection.train_test_split` would do."""
    rank = np.random.default_rng(SPLIT_SEED).permutation(count)
    edges = np.cumsum(list(SHARES.values())) * count
    names = [list(SHARES)[min(int(np.searchsorted(edges, at, side="right")), len(SHARES) - 1)] for at in rank]
    held = {name: names.count(name) / count for name in SHARES}
    reasons = ("drawn",) * count
    return Split(tuple(names), tuple(range(count)), reasons, dict(SHARES), held, TOLERANCE, SPLIT_SEED)


def hashes(images: NDArray[np.uint8]) -> list[str]:
    """SHA-256 of each crop."""
    return [groups.content_hash(image) for image in images]


def digest(data: Data) -> str:
    """SHA-256 of all crops and labels in order."""
    total = hashlib.sha256(data.recording.images.tobytes())
    total.update(data.recording.offset.tobytes())
    return total.hexdigest()


def leaks_of(data: Data, made: Manifest) -> list[str]:
    """Near twins across the sides of a split, in words; [] when there are none."""
    return leaks.twins(made, thumbnails(data.recording.images))


def require_enough(data: Data) -> None:
    """Refuse data that are too few to be split into four sides of whole bursts.

    Raises:
        UsageError: fewer than 20 bursts.
    """
    count = len(set(data.recording.burst))
    if count < 20:
        raise UsageError(
            got=f"{count} bursts in {data.source}",
            wanted="20 or more: four sides of whole bursts, and an interval needs nine to calibrate on",
            where="seal_scout",
            next_step="record more, or name shorter bursts where frames are truly unrelated",
        )


def rows(names: Sequence[str], at: NDArray[np.int64]) -> list[str]:
    """The names at these places."""
    return [names[int(one)] for one in at]
