"""Statistics of an episode and of many: mean and variance merge exactly, quantiles only to an envelope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Stats = dict[str, NDArray[np.float64]]
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)


def of(values: NDArray[Any]) -> Stats:
    """min, max, mean, std (population), count and quantiles over the first axis, (*shape) each; count is (1,)."""
    rows = values.astype(np.float64)
    found = {"min": rows.min(axis=0), "max": rows.max(axis=0), "mean": rows.mean(axis=0), "std": rows.std(axis=0)}
    # Quantiles that are values of the data: an envelope of interpolated ones would not bound those of everything.
    found["count"] = np.array([len(rows)], dtype=np.float64)
    for name, share in QUANTILES.items():
        found[name] = np.quantile(rows, share, axis=0, method="inverted_cdf")
    return {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in found.items()}


def of_images(frames: NDArray[np.uint8]) -> Stats:
    """The same for frames (T, H, W, C) of bytes: per channel over frames and pixels, on the scale [0, 1], (C, 1, 1)."""
    channels = frames.reshape(-1, frames.shape[-1]) / 255.0
    found = of(channels)
    count = np.array([len(frames)], dtype=np.float64)
    return {name: count if name == "count" else value.reshape(-1, 1, 1) for name, value in found.items()}


def merge(parts: Sequence[Mapping[str, NDArray[np.float64]]]) -> Stats:
    """Of all samples together: exact min, max, mean and std (parallel formula).

    Quantiles cannot be had from quantiles: the lowest and below the middle the smallest, above it the largest is taken,
    the middle one by count; they bound the truth from outside, as the published tools do it.
    """
    count = np.array([float(part["count"].reshape(-1)[0]) for part in parts])
    total = count.sum()

    def weighted(name: str, values: Any) -> NDArray[np.float64]:
        shape = (len(parts), *[1] * np.ndim(parts[0][name]))
        return np.asarray((np.stack(values) * count.reshape(shape)).sum(axis=0) / total)

    mean = weighted("mean", [part["mean"] for part in parts])
    spread = [np.square(part["std"]) + np.square(part["mean"] - mean) for part in parts]
    merged = {
        "min": np.min([part["min"] for part in parts], axis=0),
        "max": np.max([part["max"] for part in parts], axis=0),
        "mean": mean,
        "std": np.sqrt(weighted("std", spread)),
        "count": np.array([total]),
    }
    for name, share in QUANTILES.items():
        if all(name in part for part in parts):
            values = [part[name] for part in parts]
            merged[name] = (
                weighted(name, values) if share == 0.5 else (np.min if share < 0.5 else np.max)(values, axis=0)
            )
    return merged


def to_json(stats: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Lists; the count as a whole number."""
    return {name: [int(value[0])] if name == "count" else value.tolist() for name, value in stats.items()}


def from_json(document: Mapping[str, Any]) -> Stats:
    """Arrays of float64; see `parse` for documents that may be anything."""
    return {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in document.items()}


def parse(document: Any) -> tuple[Stats | None, str]:
    """(statistics, "") or (None, what is wrong): numbers of one shape in every entry, a count, and nothing missing."""
    if not isinstance(document, Mapping):
        return None, "not an object"
    missing = [name for name in ("min", "max", "mean", "std", "count") if document.get(name) is None]
    if missing:
        return None, f"no {', '.join(missing)}"
    known = {name: value for name, value in document.items() if name in NAMES and value is not None}
    found: Stats = {}
    for name, value in known.items():
        try:
            found[name] = np.atleast_1d(np.asarray(value, dtype=np.float64))
        except (TypeError, ValueError):
            return None, f"{name} is not all numbers"
        if not np.all(np.isfinite(found[name])):
            return None, f"{name} is not all numbers"
    if found["count"].size != 1:
        return None, f"count of {found['count'].size} entries"
    shapes = {value.shape for name, value in found.items() if name != "count"}
    if len(shapes) > 1 or () in shapes or any(0 in shape for shape in shapes):
        return None, f"entries of shapes {sorted(shapes)}"
    return found, ""


def order(stated: Mapping[str, NDArray[np.float64]]) -> list[str]:
    """What cannot be, whatever the data: std below 0, mean outside min and max, quantiles that do not rise."""
    span = np.maximum(np.max(np.abs([stated["min"], stated["max"]]), axis=0), 1e-12)
    if np.any(stated["std"] < 0):
        return ["std below 0"]
    if np.any(stated["mean"] < stated["min"] - 1e-3 * span) or np.any(stated["mean"] > stated["max"] + 1e-3 * span):
        return ["a mean outside min and max"]
    ladder = [stated[name] for name in ("min", *QUANTILES, "max") if name in stated]
    if any(np.any(a > b + 1e-6 * span) for a, b in pairwise(ladder)):
        return ["quantiles that do not rise from min to max"]
    return []


def disagreement(stated: Mapping[str, NDArray[np.float64]], actual: Mapping[str, NDArray[np.float64]]) -> list[str]:
    """Where stated statistics are not those of the data: names of the entries, with both numbers.

    min and max to float32, mean and std to a thousandth of the range, quantiles by their order and their envelope.
    """
    found = []
    span = np.maximum(np.max(np.abs([actual["min"], actual["max"]]), axis=0), 1e-12)
    for name, share in (("min", 1e-6), ("max", 1e-6), ("mean", 1e-3), ("std", 1e-3)):
        if stated[name].size != actual[name].size:
            found.append(f"{name} of {stated[name].size} entries, not {actual[name].size}")
            continue
        off = np.abs(stated[name].reshape(actual[name].shape) - actual[name])
        if np.any(off > share * span):
            at = int(np.argmax(off / span))
            found.append(f"{name}[{at}] {stated[name].reshape(-1)[at]:.6g}, not {actual[name].reshape(-1)[at]:.6g}")
    if float(stated["count"].reshape(-1)[0]) != float(actual["count"].reshape(-1)[0]):
        found.append(f"count {stated['count'].reshape(-1)[0]:g}, not {actual['count'].reshape(-1)[0]:g}")
    return found or order(stated)
