"""Transforms as pure functions with a record: what they were fitted on, and the same numbers in training and in use.

A transform never changes what it is given. Statistics carry the fingerprint of the samples they were fitted on, so
that a manifest can say whether those were its training side and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradledger.data._array import as_array
from gradledger.data.errors import DataError
from gradledger.data.manifest import Manifest, fingerprint

FORMAT = "gradledger-statistics/1"
Values = TypeVar("Values", Tensor, NDArray[Any])


@dataclass(frozen=True)
class Statistics:
    """Of one field, per entry of its last axes: mean, std (of the population), min, max. count: samples.

    fitted_on: fingerprint of the ids of the samples, "" where no ids were given.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    count: int
    shape: tuple[int, ...]
    fitted_on: str = ""

    def merged(self, other: Statistics) -> Statistics:
        """Statistics of both sets of samples together, by the parallel formula; exact up to rounding.

        The result has no fingerprint unless one side has no samples: two sets are not one set of ids.

        Raises:
            DataError: shapes that differ.
        """
        if self.shape != other.shape:
            raise _bad(f"shapes {self.shape} and {other.shape}", "equal shapes", "Statistics.merged")
        total = self.count + other.count
        mine, theirs = (np.array([one.mean, one.std]) for one in (self, other))
        share = other.count / total
        mean = mine[0] + (theirs[0] - mine[0]) * share
        variance = (
            np.square(mine[1]) * (1 - share)
            + np.square(theirs[1]) * share
            + np.square(theirs[0] - mine[0]) * share * (1 - share)
        )
        return Statistics(
            tuple(mean.tolist()),
            tuple(np.sqrt(variance).tolist()),
            tuple(np.minimum(self.low, other.low).tolist()),
            tuple(np.maximum(self.high, other.high).tolist()),
            total,
            self.shape,
        )


def fit(values: Any, *, ids: Sequence[str] | None = None, axes: tuple[int, ...] = (0,)) -> Statistics:
    """Statistics over `axes` (the samples, and for images for example (0, 2, 3)), in float64, NaN left out.

    Args:
        values: (N, ...). ids: of the N samples, for the fingerprint.

    Raises:
        DataError: nothing to fit on: no samples, an entry that is NaN in all of them, Inf, or ids of another number.
    """
    array, kind = as_array(values)
    if array is None or array.ndim == 0 or len(array) == 0:
        raise _bad(kind if array is None else f"shape {array.shape}", "at least one sample of numbers", "fit")
    if ids is not None and len(ids) != len(array):
        raise _bad(f"{len(ids)} ids", f"one for each of {len(array)} samples", "fit")
    rows = array.astype(np.float64)
    empty = np.isnan(rows).all(axis=axes)
    if np.isinf(rows).any() or np.any(empty):
        raise _bad(
            f"{int(np.isinf(rows).sum())} Inf, {int(np.sum(empty))} entries without any number", "numbers", "fit"
        )
    low, high = np.nanmin(rows, axis=axes), np.nanmax(rows, axis=axes)
    # A mean of equal numbers may be an ulp off, which would make a constant look alive.
    mean = np.clip(np.nanmean(rows, axis=axes), low, high)
    std = np.where(low == high, 0.0, np.nanstd(rows, axis=axes))
    parts = [tuple(np.ravel(part).tolist()) for part in (mean, std, low, high)]
    mark = fingerprint(list(ids)) if ids is not None else ""
    return Statistics(parts[0], parts[1], parts[2], parts[3], len(array), tuple(np.shape(mean)), mark)


def fit_side(manifest: Manifest, values: Any, *, side: str = "train", axes: tuple[int, ...] = (0,)) -> Statistics:
    """Statistics of one side of a split and of nothing else; values (N, ...) in the order of the manifest."""
    array, kind = as_array(values)
    if array is None or len(array) != len(manifest.ids):
        got = kind if array is None else f"{len(array)} samples"
        raise _bad(got, f"the {len(manifest.ids)} samples of the split, in its order", "fit_side")
    at = manifest.indices(side)
    return fit(array[at], ids=[manifest.ids[index] for index in at], axes=axes)


def require_fitted_on(statistics: Statistics, manifest: Manifest, *, side: str = "train") -> None:
    """Refuse statistics that saw another side.

    Raises:
        DataError: the fingerprint is not that of the side, or there is none.
    """
    if statistics.fitted_on != manifest.fingerprint(side):
        raise DataError(
            got=f"statistics of {statistics.count} samples" + ("" if statistics.fitted_on else " that have no ids"),
            wanted=f"statistics of the {len(manifest.indices(side))} samples of {side} and of no other",
            where="require_fitted_on",
            next_step="fit them with fit_side(manifest, values): the mean of a test set is a leak too",
        )


@dataclass(frozen=True)
class Standardise:
    """(x - mean) / std, entry by entry; an entry that never changed becomes 0 and comes back as its mean.

    axes: where the entries of the statistics are in an array: (-1,) when they belong to the last axis, (1,) for the
    channels of [B, C, H, W], () for none.
    """

    statistics: Statistics
    axes: tuple[int, ...] = (-1,)

    def apply(self, values: Values) -> Values:
        """A new array or tensor of the same shape, device and floating dtype."""
        mean, std = self._numbers(values)
        scaled: Values = (values - mean) / std
        return scaled

    def invert(self, values: Values) -> Values:
        """Back to units."""
        mean, std = self._numbers(values)
        scaled: Values = values * std + mean
        return scaled

    def _numbers(self, values: Values) -> tuple[Any, Any]:
        shape = [1] * values.ndim
        sizes = self.statistics.shape
        at = [axis % values.ndim for axis in self.axes] if values.ndim else []
        fits = len(at) == len(sizes) and all(values.shape[a] == size for a, size in zip(at, sizes, strict=True))
        floating = values.is_floating_point() if isinstance(values, Tensor) else values.dtype.kind == "f"
        if not fits or not floating:
            raise _bad(
                f"{values.dtype} {list(values.shape)}",
                f"floats with {list(sizes)} along axes {self.axes}",
                "Standardise",
            )
        for axis, size in zip(at, sizes, strict=True):
            shape[axis] = size
        mean = np.array(self.statistics.mean).reshape(shape)
        std = np.array(self.statistics.std).reshape(shape)
        std = np.where(std > 0, std, 1.0)
        if isinstance(values, Tensor):
            return tuple(torch.from_numpy(one).to(values) for one in (mean, std))  # type: ignore[return-value]
        return mean.astype(values.dtype), std.astype(values.dtype)


def bytes_to_unit(image: Values) -> Values:
    """uint8 0..255 to float32 0..1.

    Raises:
        DataError: anything but uint8: floats were scaled already, or were bytes once and lost it.
    """
    if str(image.dtype).removeprefix("torch.") != "uint8":
        raise _bad(f"{image.dtype}", "uint8", "bytes_to_unit")
    if isinstance(image, Tensor):
        return image.to(torch.float32) / 255.0
    return image.astype(np.float32) / np.float32(255.0)


def channels_first(image: Values) -> Values:
    """[..., H, W, C] to [..., C, H, W], as a contiguous copy.

    Raises:
        DataError: the last axis has not 1, 3 or 4 entries, or the third last has: it is channels-first already.
    """
    shape = tuple(image.shape)
    if len(shape) < 3 or shape[-1] not in (1, 3, 4) or (shape[-3] in (1, 3, 4) and shape[-2] > 4 and shape[-1] > 4):
        raise _bad(f"shape {list(shape)}", "[..., H, W, C] with 1, 3 or 4 channels", "channels_first")
    if isinstance(image, Tensor):
        return image.movedim(-1, -3).contiguous().clone()
    return np.array(np.moveaxis(image, -1, -3), order="C")


def angles_to_circle(angles: Values) -> Values:
    """Angles in rad (..., A) to (cos, sin) (..., 2 A): -pi and pi are one point, as a network cannot know."""
    if isinstance(angles, Tensor):
        return torch.cat([angles.cos(), angles.sin()], dim=-1)
    return np.asarray(np.concatenate([np.cos(angles), np.sin(angles)], axis=-1))


def circle_to_angles(points: Values) -> Values:
    """(cos, sin) (..., 2 A), not necessarily of length 1, to angles in (-pi, pi] (..., A).

    Raises:
        DataError: an odd number of entries.
    """
    size = points.shape[-1]
    if size % 2:
        raise _bad(f"shape {list(points.shape)}", "an even last axis", "circle_to_angles")
    half = size // 2
    if isinstance(points, Tensor):
        return torch.atan2(points[..., half:], points[..., :half])
    return np.asarray(np.arctan2(points[..., half:], points[..., :half]))


def write(statistics: Mapping[str, Statistics], path: Path) -> None:
    """Statistics of several fields as JSON."""
    fields = {name: {**vars(one)} for name, one in statistics.items()}
    path.write_text(json.dumps({"format": FORMAT, "fields": fields}, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Statistics]:
    """What `write` wrote.

    Raises:
        DataError: no such file, or another format.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}")
        return {name: _statistics(one) for name, one in document["fields"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
        raise _bad(f"{type(cause).__name__}: {cause}", f"a file of format {FORMAT}", str(path)) from cause


def _statistics(given: Mapping[str, Any]) -> Statistics:
    values: dict[str, Any] = {key: tuple(part) if isinstance(part, list) else part for key, part in given.items()}
    return Statistics(**values)


def _bad(got: str, wanted: str, where: str) -> DataError:
    return DataError(got=got, wanted=wanted, where=where, next_step="see docs/data.md, transforms")
