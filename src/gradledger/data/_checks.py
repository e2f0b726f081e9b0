"""What `Schema.check` looks for: each question about one field is one function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data._array import as_array
from gradledger.data._numbers import looks
from gradledger.data.schema import Declared, Field, Violation

if TYPE_CHECKING:
    from gradledger.data.schema import Schema

SHOWN = 8
# Below this many samples a channel that does not change is no evidence.
ENOUGH = 4


def check(
    schema: Schema, batch: Mapping[str, Any], declared: Mapping[str, Declared], now: float | None
) -> Iterator[Violation]:
    """Every violation, in the order of the fields."""
    arrays: dict[str, NDArray[Any]] = {}
    for field in schema.fields:
        yield from _says(field, declared.get(field.name, Declared()))
        if field.name not in batch:
            yield Violation(field.name, "nothing", field.text(), "the field is missing")
            continue
        array, dtype = as_array(batch[field.name])
        if array is None:
            yield Violation(field.name, dtype, field.text(), "not a rectangular array of numbers")
            continue
        wrong = [*_shape(field, array), *_dtype(field, array, dtype)]
        yield from wrong
        if array.size and array.ndim == len(field.axes):
            arrays[field.name] = array
    known = {field.name for field in schema.fields}
    if not schema.allow_extra:
        for name in batch:
            if name not in known:
                why = "the schema does not know it; allow_extra lets others be there, such as names and groups"
                yield Violation(str(name), "a field", f"only {', '.join(sorted(known))}", why)
    yield from _sizes(schema, arrays)
    for field in schema.fields:
        if field.name in arrays:
            yield from _values(field, arrays[field.name], arrays.get(field.mask), now)


def _says(field: Field, declared: Declared) -> Iterator[Violation]:
    """What the data says of itself, against the schema."""
    for what, got, wanted in (
        ("unit", declared.unit, field.unit),
        ("frame", declared.frame, field.frame),
        ("axes", declared.axes, " ".join(field.axes)),
    ):
        if got and wanted and got != wanted:
            yield Violation(field.name, f"{what} {got!r}", f"{what} {wanted!r}", f"the data declares another {what}")


def _shape(field: Field, array: NDArray[Any]) -> Iterator[Violation]:
    got, wanted = array.shape, field.shape
    if array.ndim == len(wanted) and all(w is None or g == w for g, w in zip(got, wanted, strict=True)):
        for axis, size in zip(field.axes, got, strict=True):
            if size == 0:
                why = "the batch is empty" if axis == field.axes[0] else f"axis {axis} is empty"
                yield Violation(field.name, f"shape {list(got)}", f"at least one along {axis}", why)
        return
    yield Violation(field.name, f"shape {list(got)}", field.text(), _why_shape(field, got))


def _why_shape(field: Field, got: tuple[int, ...]) -> str:
    wanted = field.shape

    def fits(shape: tuple[int, ...]) -> bool:
        return len(shape) == len(wanted) and all(w is None or g == w for g, w in zip(shape, wanted, strict=True))

    if len(got) == len(wanted):
        for order in _orders(field):
            there = dict(zip(order, got, strict=True))  # the axis at each place of the data: its size
            if fits(tuple(there[at] for at in range(len(got)))):
                return _order_text(field, order)
        wrong = [f"{a} is {g}, not {w}" for a, g, w in zip(field.axes, got, wanted, strict=True) if w not in (None, g)]
        return ", ".join(wrong)
    if len(got) == len(wanted) + 1:
        if fits(got[:-1]) and got[-1] == 1:
            return "a trailing axis of size 1 too many: against [B] it broadcasts to [B, B] without an error"
        if fits(got[1:]):
            return "an axis too many in front: a batch of batches"
        return f"one axis too many: {len(got)} for {' '.join(field.axes)}"
    if len(got) == len(wanted) - 1:
        if wanted[-1] in (1, None) and fits((*got, 1)):
            return f"axis {field.axes[-1]} is missing: [B] against [B, 1] broadcasts to [B, B] without an error"
        if fits((1, *got)):
            return f"axis {field.axes[0]} is missing: one sample, not a batch"
    return f"{len(got)} axes where {len(wanted)} are named: {' '.join(field.axes)}"


def _orders(field: Field) -> Iterator[tuple[int, ...]]:
    """Other orders of the axes, the usual mistakes first: channels last or first, two swapped, then any."""
    every = tuple(range(len(field.axes)))
    if field.role == "image" and field.channel:
        at = field.axes.index(field.channel)
        rest = [one for one in every[1:] if one != at]
        yield from (order for order in ((0, *rest, at), (0, at, *rest)) if at and order != every)
    for a, b in combinations(every, 2):
        yield tuple(b if one == a else a if one == b else one for one in every)
    yield from ((0, *order) for order in permutations(every[1:]))


def _order_text(field: Field, order: tuple[int, ...]) -> str:
    names = [field.axes[at] for at in order]
    moved = [at for at, one in enumerate(order) if at != one]
    image = field.role == "image" and bool(field.channel)
    if image and order[0] == 0 and field.channel in (names[1], names[-1]) and len(moved) > 2:
        text = f"axes look to be in the order {' '.join(names)}"
        return f"{text}: channels {'last' if names[-1] == field.channel else 'first'}, the element count is the same"
    if len(moved) > 2:
        return f"axes look to be in the order {' '.join(names)}; the element count is the same"
    a, b = (field.axes[at] for at in moved)
    text = f"axes {a} and {b} look swapped; the element count is the same"
    sizes = image and order[0] == 0 and field.channel not in (a, b)
    return f"{text} (PIL and OpenCV name a size as width, height)" if sizes else text


def _dtype(field: Field, array: NDArray[Any], got: str) -> Iterator[Violation]:
    if got == field.dtype:
        return
    why = "another dtype"
    if got == "uint8" and field.dtype.startswith(("float", "bfloat")):
        why = "bytes 0..255 where scaled floats are wanted"
    elif field.dtype == "uint8" and array.dtype.kind == "f":
        scaled = array.size > 0 and float(np.nanmax(np.abs(array), initial=0.0)) <= 1.0
        why = "scaled floats where bytes 0..255 are wanted" if scaled else "bytes that were read as floats"
    elif array.dtype.kind == "f" and field.role == "label":
        why = "class numbers are whole"
    elif array.dtype.kind in "iu" and field.dtype.startswith("float"):
        why = "whole numbers where measurements are wanted: a cast may have cut them"
    elif got == "float64" and field.dtype == "float32":
        why = "twice as wide: numpy's default, and a model in float32 refuses it"
    yield Violation(field.name, got, field.dtype, why)


def _sizes(schema: Schema, arrays: Mapping[str, NDArray[Any]]) -> Iterator[Violation]:
    """The same axis letter has the same size everywhere."""
    first: dict[str, tuple[str, int]] = {}
    for field in schema.fields:
        if field.name not in arrays:
            continue
        for axis, size in zip(field.axes, arrays[field.name].shape, strict=True):
            other, wanted = first.setdefault(axis, (field.name, size))
            if size != wanted:
                why = f"axis {axis} must be one size in all fields"
                yield Violation(field.name, f"{axis}={size}", f"{axis}={wanted} as in {other}", why)


def _values(field: Field, array: NDArray[Any], mask: NDArray[Any] | None, now: float | None) -> Iterator[Violation]:
    fits = all(w is None or g == w for g, w in zip(array.shape, field.shape, strict=True))
    present = np.ones(array.shape, dtype=bool)
    if array.dtype.kind == "f":
        nan = np.isnan(array)
        allowed = np.zeros(array.shape, dtype=bool)
        if field.missing == "nan":
            allowed = nan
        elif field.missing == "mask" and mask is not None and mask.shape == array.shape[: mask.ndim]:
            off = np.asarray(mask == 0).reshape(*mask.shape, *[1] * (array.ndim - mask.ndim))
            allowed = np.broadcast_to(off, array.shape)
        yield from _at(field, array, nan & ~allowed, "NaN", "numbers", "not a number")
        yield from _at(field, array, np.isinf(array) & ~allowed, "Inf", "finite numbers", "infinite")
        share = float(np.mean(allowed))
        if share > field.max_missing or share == 1.0:
            got, wanted = f"{share:.1%} missing", f"at most {field.max_missing:.1%}, and not all"
            yield Violation(field.name, got, wanted, "too little is left to learn or to decide from")
        present = np.isfinite(array) & ~allowed
    yield from _range(field, array, present)
    if field.role == "time":
        yield from _times(field, array, present, now)
        return
    if fits:
        yield from _constant(field, array, present)
        yield from looks(field, array, present)


def _range(field: Field, array: NDArray[Any], present: NDArray[np.bool_]) -> Iterator[Violation]:
    low, high = field.low, field.high
    if low is None and high is None:
        return
    outside = np.zeros(array.shape, dtype=bool)
    # Bounds in float32 for float32 data: pi as a bound admits pi as a value.
    kind = array.dtype.type if array.dtype.kind == "f" else np.float64
    if low is not None:
        outside |= array < kind(low)
    if high is not None:
        outside |= array > kind(high)
    outside &= present
    if not outside.any():
        return
    bad = array[outside].astype(np.float64)
    unit = f" {field.unit}" if field.unit else ""
    if low is not None and high is not None:
        wanted = f"[{low:g}, {high:g}]{unit}"
    else:
        wanted = f"at least {low:g}{unit}" if low is not None else f"at most {high:g}{unit}"
    got = f"{bad.min():.6g} to {bad.max():.6g}"
    yield from _at(field, array, outside, got, wanted, _why_range(field, array, present))


def _why_range(field: Field, array: NDArray[Any], present: NDArray[np.bool_]) -> str:
    values = array[present].astype(np.float64)
    largest, bound = float(np.abs(values).max()), max(abs(field.low or 0.0), abs(field.high or 0.0))
    whole = bool(np.all(values == np.round(values)))
    if bound <= 1.0 and whole and 1.0 < largest <= 255.0 and float(values.min()) >= 0:
        return "whole numbers up to 255: bytes that were read as floats"
    if bound <= 1.0 and 1.0 < largest <= 255.0 and field.role == "image":
        return "an image on the scale 0..255"
    if field.unit in ("rad", "rad/s") and bound > 0 and bound < largest <= 60 * bound:
        return "looks like degrees"
    if field.unit in ("m", "m/s") and largest > 20 * bound > 0:
        return "looks like millimetres"
    if bound > 0 and largest > 1e6 * bound:
        return "a sentinel for missing, or memory that was never written"
    return "outside the range"


def _times(field: Field, array: NDArray[Any], present: NDArray[np.bool_], now: float | None) -> Iterator[Violation]:
    times = np.where(present, array.astype(np.float64), np.nan)
    steps = np.diff(times, axis=-1)
    unit = f" {field.unit}" if field.unit else ""

    def later(bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.concatenate([np.zeros((*bad.shape[:-1], 1), dtype=bool), bad], axis=-1)

    if steps.size:
        wanted = f"times that rise along {field.axes[-1]}"
        yield from _at(field, array, later(steps == 0), "the same time again", wanted, "a stale sample")
        back = later(steps < 0)
        if back.any():
            got = f"{float(np.nanmin(steps, initial=np.inf)):.6g}{unit} from one to the next"
            yield from _at(field, array, back, got, wanted, "time runs backwards: shuffled or joined records")
        if field.max_gap is not None:
            # A relative ulp, so that 0.1 s steps in float32 do not break a bound of 0.1 s.
            slack = float(np.finfo(np.float32).eps) * float(np.nanmax(np.abs(times), initial=0.0))
            wide = later(steps > field.max_gap * (1 + 1e-6) + slack)
            got = f"a gap of {float(np.nanmax(steps, initial=-np.inf)):.6g}{unit}"
            yield from _at(field, array, wide, got, f"at most {field.max_gap:g}{unit}", "samples were lost")
    if field.max_age is not None and now is not None:
        last = times[..., -1] if times.ndim > 1 else times[-1:]
        age = now - last
        old = age > field.max_age
        if old.any():
            got = f"{float(np.nanmax(age)):.6g}{unit} old"
            yield Violation(
                field.name, got, f"at most {field.max_age:g}{unit}", "stale: the sensor or the queue stood still"
            )
        if (age < 0).any():
            got = f"{float(-np.nanmin(age)):.6g}{unit} after now"
            yield Violation(field.name, got, "times before now", "two clocks that do not agree")


def _constant(field: Field, array: NDArray[Any], present: NDArray[np.bool_]) -> Iterator[Violation]:
    if field.constant_ok or field.role == "label" or array.dtype.kind == "b" or array.shape[0] < ENOUGH:
        return
    at = field.axes.index(field.channel) if field.channel else None
    count = 1 if at is None else array.shape[at]
    for channel in range(count):
        part = array if at is None else np.take(array, channel, axis=at)
        there = present if at is None else np.take(present, channel, axis=at)
        values = part[there]
        if values.size and np.all(values == values.flat[0]):
            name = "every element" if at is None else f"{field.channel}={channel}"
            got = f"{name} is {float(values.flat[0]):.6g} in all {array.shape[0]} samples"
            yield Violation(field.name, got, "values that change", "a frozen or disconnected channel")


def _at(
    field: Field, array: NDArray[Any], bad: NDArray[np.bool_], got: str, wanted: str, reason: str
) -> Iterator[Violation]:
    count = int(bad.sum())
    if count:
        where = np.argwhere(bad)[:SHOWN]
        yield Violation(field.name, got, wanted, reason, tuple(tuple(map(int, index)) for index in where), count)
