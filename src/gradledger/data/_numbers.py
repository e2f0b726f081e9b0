"""Faults that keep the shape and show in the numbers only: another unit, swapped colours, swapped axes of equal size.

Each compares a batch with `Field.typical`, and speaks only where another reading explains the batch far better than
the one the schema names: a batch that is merely unusual is none of its business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data.schema import Violation

if TYPE_CHECKING:
    from gradledger.data.schema import Field

# Standard errors beyond which "by chance" is no explanation, and how much better the other reading must be.
SURE, BETTER = 6.0, 3.0
# What units are mistaken for: the factor on the values, and in words.
SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "m": ((1000.0, "millimetres"), (100.0, "centimetres")),
    "mm": ((0.001, "metres"), (0.1, "centimetres")),
    "rad": ((180.0 / np.pi, "degrees"),),
    "deg": ((np.pi / 180.0, "radians"),),
    "m/s": ((1000.0, "millimetres per second"),),
    "rad/s": ((180.0 / np.pi, "degrees per second"),),
    "s": ((1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds")),
    "ms": ((0.001, "seconds"),),
}
_PICTURES = ((255.0, "bytes 0..255"), (1 / 255.0, "values divided by 255 twice"))


def looks(field: Field, array: NDArray[Any], present: NDArray[np.bool_]) -> Iterator[Violation]:
    """Violations that only `typical` can tell."""
    if field.typical is None or array.dtype.kind == "b" or not present.any():
        return
    rows = np.where(present, array.astype(np.float64), np.nan)
    means = _means(rows, field.axes.index(field.channel) if field.channel else None)
    if means.shape != np.shape(field.typical.mean):
        return
    yield from _scale(field, rows, means)
    yield from _colours(field, rows)
    yield from _axes(field, rows, means)


def _means(rows: NDArray[np.float64], at: int | None) -> NDArray[np.float64]:
    """Mean over everything but the channel axis, (C,) or (1,)."""
    with np.errstate(all="ignore"):
        if at is None:
            return np.atleast_1d(np.nanmean(rows))
        sums = np.nansum(rows, axis=tuple(axis for axis in range(rows.ndim) if axis != at))
        counts = np.sum(~np.isnan(rows), axis=tuple(axis for axis in range(rows.ndim) if axis != at))
        return np.asarray(sums / np.maximum(counts, 1))


def _misfit(means: NDArray[np.float64], field: Field, samples: int) -> float:
    """Largest distance of a channel mean from the typical one, in standard errors of a batch of independent samples."""
    assert field.typical is not None
    mean, spread = np.asarray(field.typical.mean), np.asarray(field.typical.spread)
    floor = 1e-6 * (np.abs(mean) + np.asarray(field.typical.std)) + 1e-12
    return float(np.max(np.abs(means - mean) / np.maximum(spread / np.sqrt(samples), floor)))


def _scale(field: Field, rows: NDArray[np.float64], means: NDArray[np.float64]) -> Iterator[Violation]:
    assert field.typical is not None
    size = float(np.sqrt(np.mean(np.square(field.typical.mean) + np.square(field.typical.std))))
    got = float(np.sqrt(np.nanmean(np.square(rows))))
    if size <= 0 or got <= 0:
        return
    ratio = got / size
    for factor, words in _PICTURES if field.role == "image" else SCALES.get(field.unit, ()):
        # Within a factor of two of the mistake, and off by more than the typical data can be: a robot at rest has
        # small velocities too, so few samples are no evidence of a small scale.
        if 0.5 <= ratio / factor <= 2.0 and (factor > 1 or rows.shape[0] >= 8):
            if _misfit(means / factor, field, rows.shape[0]) <= _misfit(means, field, rows.shape[0]) + SURE:
                unit = f" {field.unit}" if field.unit else ""
                yield Violation(
                    field.name,
                    f"a typical size of {got:.4g} (x{ratio:.3g})",
                    f"about {size:.4g}{unit}",
                    f"looks like {words}",
                )
                return
    if ratio > 100.0:
        yield Violation(
            field.name, f"a typical size of {got:.4g} (x{ratio:.3g})", f"about {size:.4g}", "another scale or unit"
        )


def _colours(field: Field, rows: NDArray[np.float64]) -> Iterator[Violation]:
    """First against third channel: where red is brighter than blue in what is typical, it should be so here."""
    if field.role != "image" or not field.channel:
        return
    at = field.axes.index(field.channel)
    assert field.typical is not None
    if rows.shape[at] not in (3, 4):
        return
    wanted = field.typical.mean[0] - field.typical.mean[2]
    # Per sample, so that the error of the difference comes from the batch itself.
    channels = np.moveaxis(rows, at, 1).reshape(rows.shape[0], rows.shape[at], -1)
    with np.errstate(all="ignore"):
        each = np.nanmean(channels[:, 0] - channels[:, 2], axis=1)
    got = float(np.nanmean(each))
    own = float(np.nanstd(each)) / np.sqrt(max(len(each) - 1, 1))
    typical = float(np.hypot(field.typical.spread[0], field.typical.spread[2])) / np.sqrt(len(each))
    error = max(own, 0.1 * typical, 1e-12)
    far, near = abs(got - wanted), abs(got + wanted)
    if far > SURE * error and near < far / BETTER and abs(wanted) > 0.02 * (abs(field.typical.std[0]) + 1e-12):
        yield Violation(
            field.name,
            f"first minus third colour {got:+.4g}",
            f"about {wanted:+.4g}",
            "colours look reversed: BGR (as OpenCV reads) for RGB",
        )


def _axes(field: Field, rows: NDArray[np.float64], means: NDArray[np.float64]) -> Iterator[Violation]:
    """Another axis of the same size that fits the channels far better than the channel axis does."""
    if not field.channel or len(means) < 2:
        return
    at = field.axes.index(field.channel)
    mine = _misfit(means, field, rows.shape[0])
    if mine <= SURE:
        return
    for other, axis in enumerate(field.axes):
        if other == at or rows.shape[other] != rows.shape[at]:
            continue
        theirs = _misfit(_means(rows, other), field, rows.shape[at] if other == 0 else rows.shape[0])
        if theirs < mine / BETTER:
            yield Violation(
                field.name,
                f"channels that vary along {axis}",
                f"along {field.channel}",
                f"axes {field.channel} and {axis} look swapped; both have {rows.shape[at]} entries",
            )
            return
