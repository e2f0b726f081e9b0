"""A corpus of malformed batches, generated from a schema and one good batch, and a run of it against a predictor.

What a predictor lets through is a survivor: an input that should have been refused and was answered instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradledger.core.errors import GradledgerError
from gradledger.data._array import as_array
from gradledger.data.errors import SchemaError
from gradledger.data.schema import Declared

if TYPE_CHECKING:
    from gradledger.data.schema import Field, Schema

Batch = dict[str, Any]


@dataclass(frozen=True)
class Malformed:
    """One bad input. kind: what was done; field: to what; declared: what the data then says of itself."""

    kind: str
    field: str
    batch: Batch
    declared: Mapping[str, Declared] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Survivor:
    """A malformed input that was answered, or refused without saying what is wrong."""

    kind: str
    field: str
    outcome: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.field}: {self.outcome}"


def malformed(schema: Schema, good: Mapping[str, Any]) -> Iterator[Malformed]:
    """Every kind of fault that the schema can tell from a good batch; a field brings those that apply to it.

    Args:
        schema: best one that was `fitted`: without `typical`, kinds that only numbers can tell are left out.
        good: a batch that keeps the schema, of at least 8 samples. It is not changed.

    Raises:
        SchemaError: `good` does not keep the schema.
    """
    schema.require(good, where="malformed(schema, good)")
    arrays: dict[str, NDArray[Any]] = {}
    for one in schema.fields:
        array, _ = as_array(good[one.name])
        assert array is not None  # required above
        arrays[one.name] = array
    whole: Batch = dict(arrays)
    for one in schema.fields:
        array = arrays[one.name]

        def put(kind: str, value: Any, name: str = one.name) -> Malformed:
            return Malformed(kind, name, {**whole, name: value})

        yield Malformed("missing field", one.name, {name: value for name, value in whole.items() if name != one.name})
        yield from (put(kind, value) for kind, value in _structure(one, array))
        yield from (put(kind, value) for kind, value in _dtypes(one, array))
        yield from (put(kind, value) for kind, value in _values(one, array))
        if one.role == "time":
            yield from (put(kind, value) for kind, value in _clocks(one, array))
        if one.typical is not None:
            yield from (put(kind, value) for kind, value in _lookalikes(one, array))
        yield from _declarations(one, whole)
    yield Malformed("empty batch", "all fields", {name: array[:0] for name, array in arrays.items()})
    yield Malformed("empty dictionary", "all fields", {})
    if not schema.allow_extra:
        yield Malformed("unknown field", "surprise", {**whole, "surprise": np.zeros(3, np.float32)})
    if len(arrays) > 1:
        first = schema.fields[0].name
        yield Malformed("one sample fewer than the other fields", first, {**whole, first: arrays[first][:-1]})


def survivors(predictor: Callable[..., Any], cases: Iterator[Malformed]) -> list[Survivor]:
    """Run each case against `predictor(batch, declared=...)`; a refusal is any GradledgerError.

    Returns:
        The cases that were answered, and those that were refused by an accident (another exception): an empty list is
        a pass.
    """
    found = []
    for case in cases:
        try:
            predictor(case.batch, declared=case.declared)
        except GradledgerError:
            continue
        except Exception as accident:
            found.append(Survivor(case.kind, case.field, f"broke with {type(accident).__name__}: {accident}"))
        else:
            found.append(Survivor(case.kind, case.field, "answered"))
    return found


def require_none(found: list[Survivor]) -> None:
    """Fail a run in which any malformed input survived.

    Raises:
        SchemaError: with the list.
    """
    if found:
        raise SchemaError(
            got=f"{len(found)} survivors: " + "; ".join(map(str, found)),
            wanted="every malformed input refused",
            where="malformed inputs against the predictor",
            next_step="call Schema.require on the batch before the model sees it",
        )


def _structure(one: Field, array: NDArray[Any]) -> Iterator[tuple[str, Any]]:
    yield "None", None
    yield "text", "not an array"
    yield "text in an array", np.full(array.shape, "0.5")
    yield "objects", array.astype(object)
    yield "one number", array.reshape(-1)[0]
    yield "an axis too many at the end: [B] as [B, 1]", array[..., None]
    yield "an axis too many in front", array[None]
    yield "a single sample without its batch axis", array[0]
    yield "flattened", array.reshape(-1) if array.ndim > 1 else array.reshape(-1, 1)
    if array.ndim > 1:
        yield "last axis dropped", array[..., 0]
        ragged = [row.tolist() for row in array]
        ragged[0] = ragged[0][:-1]
        yield "ragged lists", ragged
    for a, b in combinations(range(array.ndim), 2):
        # Where both may vary, or are equal, only the numbers can tell; those are in `_lookalikes`.
        told = any(one.shape[x] not in (None, array.shape[y]) for x, y in ((a, b), (b, a)))
        if told:
            yield f"axes {one.axes[a]} and {one.axes[b]} swapped", np.swapaxes(array, a, b)
    for at, size in enumerate(one.shape):
        if size is not None and size > 1:
            yield f"cut short along {one.axes[at]}", np.take(array, range(size - 1), axis=at)
            yield f"one too many along {one.axes[at]}", np.concatenate([array, np.take(array, [0], axis=at)], axis=at)
    if array.ndim == 4 and one.role == "image" and one.shape[1] != array.shape[-1]:
        yield "HWC for CHW", np.moveaxis(array, 1, -1)


def _dtypes(one: Field, array: NDArray[Any]) -> Iterator[tuple[str, Any]]:
    for dtype in ("float64", "float32", "float16", "int64", "int32", "uint8", "bool", "complex64"):
        if dtype != one.dtype:
            with np.errstate(invalid="ignore"):
                yield f"{one.dtype} as {dtype}", np.nan_to_num(array).astype(dtype)
    if one.dtype == "uint8":
        yield "bytes scaled to [0, 1]", (array / 255.0).astype(np.float32)


def _values(one: Field, array: NDArray[Any]) -> Iterator[tuple[str, Any]]:
    if array.dtype.kind == "f":
        kinds = [("+Inf", np.inf), ("-Inf", -np.inf), ("memory never written", np.finfo(array.dtype).max)]
        if one.missing != "nan":
            kinds.append(("NaN", np.nan))
        for kind, value in kinds:
            if kind != "memory never written" or one.high is not None:
                yield f"{kind} in one element", _with(array, value)
        yield "NaN everywhere", np.full_like(array, np.nan)
        if one.missing == "nan" and one.max_missing < 1.0:
            gone = array.copy()
            count = int(np.ceil(one.max_missing * gone.size)) + 1
            gone.reshape(-1)[: min(count, gone.size)] = np.nan
            yield "more missing than allowed", gone
    if array.dtype.kind == "b":
        return
    if one.high is not None and _holds(array, one.high + _step(one)):
        yield "one element above the range", _with(array, one.high + _step(one))
    if one.low is not None and _holds(array, one.low - _step(one)):
        yield "one element below the range", _with(array, one.low - _step(one))
        if one.low > -999.0 and _holds(array, -999.0):
            yield "-999 for missing", _with(array, -999.0)
    if one.role not in ("label", "time") and not one.constant_ok:
        yield "frozen", np.broadcast_to(array.reshape(-1)[:1], array.shape).copy()
        yield "zeros", np.zeros_like(array)
        if one.channel and array.shape[one.axes.index(one.channel)] > 1:
            at = one.axes.index(one.channel)
            stuck = np.moveaxis(array.copy(), at, 0)
            stuck[-1] = stuck[-1].reshape(-1)[0]
            yield "one channel frozen", np.moveaxis(stuck, 0, at)
    if one.high is not None and one.low is not None and one.role == "value" and array.dtype.kind == "f":
        factors = {"m": ("mm for m", 1000.0), "rad": ("degrees for radians", 180.0 / np.pi)}
        if one.unit in factors:
            kind, factor = factors[one.unit]
            if np.nanmax(np.abs(array)) * factor > max(abs(one.low), abs(one.high)):
                yield kind, (array * factor).astype(array.dtype)
    if one.role == "image" and array.dtype.kind == "f" and one.high == 1.0:
        yield "bytes read as floats", np.round(array * 255).astype(array.dtype)
        yield "normalised twice, to [-1, 1]", (array * 2 - 1).astype(array.dtype)


def _clocks(one: Field, array: NDArray[Any]) -> Iterator[tuple[str, Any]]:
    if array.shape[-1] < 3:
        return
    middle = array.shape[-1] // 2
    again = array.copy()
    again[..., middle] = again[..., middle - 1]
    yield "the same time twice", again
    yield "time runs backwards", array[..., ::-1].copy()
    swapped = array.copy()
    swapped[..., [middle - 1, middle]] = swapped[..., [middle, middle - 1]]
    yield "two records swapped", swapped
    yield "clock stands still", np.broadcast_to(array[..., :1], array.shape).copy()
    if one.max_gap is not None:
        gap = array.copy()
        gap[..., middle:] += array.dtype.type(3 * one.max_gap)
        yield "samples lost", gap


def _lookalikes(one: Field, array: NDArray[Any]) -> Iterator[tuple[str, Any]]:
    """Right shape, right dtype, wrong meaning."""
    if one.role == "image" and one.channel and array.shape[one.axes.index(one.channel)] == 3:
        at = one.axes.index(one.channel)
        yield "BGR for RGB", np.take(array, [2, 1, 0], axis=at)
    if array.dtype.kind == "f" and one.role == "value":
        for unit, kind, factor in (("mm", "m for mm", 0.001), ("deg", "radians for degrees", np.pi / 180.0)):
            if one.unit == unit:
                yield kind, (array * factor).astype(array.dtype)
    if array.dtype.kind == "f" and one.role == "image":
        yield "divided by 255 twice", (array / 255.0).astype(array.dtype)
    if one.channel and one.role == "value":
        at = one.axes.index(one.channel)
        for other, size in enumerate(array.shape):
            if 0 < other != at and size == array.shape[at]:
                yield f"axes {one.axes[other]} and {one.axes[at]} swapped, equal sizes", np.swapaxes(array, other, at)


def _declarations(one: Field, whole: Batch) -> Iterator[Malformed]:
    true = Declared(one.unit, one.frame, " ".join(one.axes))
    if one.frame:
        yield Malformed("another frame", one.name, whole, {one.name: replace(true, frame=f"{one.frame}_other")})
    if one.unit:
        yield Malformed("another unit", one.name, whole, {one.name: replace(true, unit=f"k{one.unit}")})
    if len(one.axes) > 1:
        yield Malformed(
            "axes declared in another order", one.name, whole, {one.name: replace(true, axes=" ".join(one.axes[::-1]))}
        )


def _with(array: NDArray[Any], value: float) -> NDArray[Any]:
    changed = array.copy()
    changed.reshape(-1)[changed.size // 2] = value
    return changed


def _step(one: Field) -> float:
    whole = np.dtype(one.dtype).kind in "iu"
    return 1.0 if whole else max(abs(one.high or 0.0), abs(one.low or 0.0), 1.0) * 0.01


def _holds(array: NDArray[Any], value: float) -> bool:
    if array.dtype.kind == "f":
        return True
    info = np.iinfo(array.dtype)
    return info.min <= value <= info.max
